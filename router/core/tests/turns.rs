//! All slots are taken for long, and other tenants wait: turns.

#[allow(dead_code, reason = "here steps are of several groups, and a second apart")]
mod small;

use std::collections::BTreeMap;

use pelton_core::{Core, CoreConfig, Event, GroupId, Limits, Micros, NewRequest, Party, Plan, RequestId, StopRule};
use small::{GROUP, all_draw, config, request};

const SECOND: u64 = 1_000_000;
const OTHER: GroupId = GroupId(1);

/// Answers of thousands of tokens.
fn long(id: u64, tenant: u64, at: u64) -> NewRequest {
    let stop = StopRule { max_tokens: 10_000, min_tokens: 0, stop_ids: [].into() };
    let party = Party { tenant, user: 0 };
    NewRequest { stop, party, arrival: Micros(at), ..request(id, [id as u32; 5]) }
}

fn config_of(slots: u32) -> CoreConfig {
    let limits = Limits { appends: 4_096, history: 16_384, ..config().limits };
    CoreConfig { max_running: slots, max_model_len: 16_384, max_waiting: 100, limits, ..config() }
}

fn small_core(slots: u32) -> Core {
    small::core(16_384, config_of(slots))
}

/// One step of each group, one second after the one before. Who has a row.
fn second(core: &mut Core, now: &mut u64, slots: &mut BTreeMap<(GroupId, u32), u64>) -> Vec<u64> {
    *now += SECOND;
    let mut ran = Vec::new();
    for group in core.groups().collect::<Vec<_>>() {
        let Some(plan) = core.plan(group, Micros(*now)) else { continue };
        slots.extend(plan.admits.iter().map(|admit| ((group, admit.slot.0), admit.request.0)));
        ran.extend(plan.rows.iter().filter_map(|row| slots.get(&(group, row.slot.0))));
        commit(core, group, &plan);
    }
    ran.sort_unstable();
    ran
}

fn commit(core: &mut Core, group: GroupId, plan: &Plan) {
    core.commit(group, all_draw(plan, 7)).expect("results of the step that is due");
    if plan.step.0.is_multiple_of(50) || !plan.admits.is_empty() {
        core.check();
    }
    assert!(core.events().all(|event| !matches!(event, Event::Refused { .. })));
}

#[test]
fn who_has_all_slots_gives_one_up_for_one_that_is_due_once_its_turn_is_over() {
    let (mut core, mut now, mut slots) = (small_core(2), 0, BTreeMap::new());
    for id in 1..=3 {
        core.submit(long(id, 1, 0)).expect("it fits");
    }
    assert_eq!(second(&mut core, &mut now, &mut slots), [1, 2]);
    core.submit(long(4, 2, SECOND)).expect("it fits");
    for _ in 0..30 {
        assert_eq!(second(&mut core, &mut now, &mut slots), [1, 2], "at {} s", now / SECOND);
    }
    assert_eq!(second(&mut core, &mut now, &mut slots), [2, 4]);
    assert_eq!((core.counts().turns_ended, core.counts().preemptions), (1, 1));
    let explained = core.explain(RequestId(1)).expect("it lives");
    assert_eq!(explained.preempted.times, 1);
    assert_eq!(core.explain(RequestId(4)).expect("it lives").preempted_others, explained.preempted, "what it cost");
    for _ in 0..200 {
        assert_eq!(second(&mut core, &mut now, &mut slots), [2, 4], "both have a slot, at {} s", now / SECOND);
    }
    core.abort(RequestId(4));
    core.abort(RequestId(3));
    assert_eq!(second(&mut core, &mut now, &mut slots), [1, 2], "it goes on");
    assert_eq!(core.explain(RequestId(1)).expect("it lives").drawn, 32, "with what it has drawn");
}

#[test]
fn requests_of_one_tenant_wait_for_each_other() {
    let (mut core, mut now, mut slots) = (small_core(1), 0, BTreeMap::new());
    for id in 1..=3 {
        core.submit(long(id, 1, 0)).expect("it fits");
    }
    for _ in 0..500 {
        assert_eq!(second(&mut core, &mut now, &mut slots), [1]);
    }
}

#[test]
fn nobody_gives_up_a_slot_where_another_is_free_or_about_to_be() {
    let (mut core, mut now, mut slots) = (small_core(1), 0, BTreeMap::new());
    core.submit(long(1, 1, 0)).expect("it fits");
    second(&mut core, &mut now, &mut slots);
    core.submit(long(2, 2, 0)).expect("it fits");
    for _ in 0..25 {
        second(&mut core, &mut now, &mut slots);
    }
    core.add_group(OTHER, 16_384, false);
    for _ in 0..100 {
        assert_eq!(second(&mut core, &mut now, &mut slots), [1, 2]);
    }
    assert_eq!(core.counts().turns_ended, 0);
}

#[test]
fn who_has_all_memory_gives_up_as_much_as_one_that_is_due_needs() {
    for slots_count in [3, 8] {
        // 5 of these hold up to 30 blocks each of 120; the one that is due needs 60 at once.
        let (mut core, mut now, mut slots) = (small::core(120, config_of(slots_count)), 0, BTreeMap::new());
        for id in 1..=5 {
            let stop = StopRule { max_tokens: 115, min_tokens: 0, stop_ids: [].into() };
            core.submit(NewRequest { stop, ..long(id, 1, 0) }).expect("it fits");
        }
        for _ in 0..20 {
            second(&mut core, &mut now, &mut slots);
        }
        let prompt = (1_000..1_240).collect();
        let stop = StopRule { max_tokens: 200, min_tokens: 0, stop_ids: [].into() };
        core.submit(NewRequest { prompt, stop, ..long(9, 2, now) }).expect("it fits");
        let came = (1..1_000).find(|_| second(&mut core, &mut now, &mut slots).contains(&9)).expect("it comes");
        assert!((30..=40).contains(&came), "{came} s, with {slots_count} slots");
        assert!((1..=3).contains(&core.counts().turns_ended), "no more than it needs");
    }
}

#[test]
fn a_group_that_could_never_hold_it_is_no_room_for_one_that_is_due() {
    let (mut core, mut now, mut slots) = (small_core(1), 0, BTreeMap::new());
    core.add_group(OTHER, 8, false);
    core.submit(long(1, 1, 0)).expect("it fits");
    second(&mut core, &mut now, &mut slots);
    core.submit(long(2, 2, now)).expect("it fits");
    let came = (1..100).find(|_| second(&mut core, &mut now, &mut slots) == [2]).expect("it comes");
    assert!((30..=33).contains(&came), "{came} s");
}

#[test]
fn nobody_gives_up_a_slot_for_one_that_has_no_room_then() {
    // A short one, one with 400 tokens, and one that is due needs 225 blocks of 300.
    let (mut core, mut now, mut slots) = (small::core(300, config_of(2)), 0, BTreeMap::new());
    let of = |id, tenant, prompt: std::ops::Range<u32>, max_tokens, now| NewRequest {
        prompt: prompt.collect(),
        stop: StopRule { max_tokens, min_tokens: 0, stop_ids: [].into() },
        ..long(id, tenant, now)
    };
    core.submit(of(2, 1, 0..400, 380, 0)).expect("it fits");
    for _ in 0..30 {
        second(&mut core, &mut now, &mut slots);
    }
    core.submit(of(1, 1, 5_000..5_005, 200, now)).expect("it fits");
    core.submit(of(3, 2, 10_000..10_900, 200, now)).expect("it fits");
    second(&mut core, &mut now, &mut slots);
    for _ in 0..29 {
        assert_eq!(second(&mut core, &mut now, &mut slots), [1, 2], "at {} s", now / SECOND);
    }
    let came = (1..200).find(|_| second(&mut core, &mut now, &mut slots).contains(&3)).expect("it comes");
    assert!(came < 40 && core.counts().turns_ended >= 1, "after {came} s: those that have to go, when they may");
}

#[test]
fn what_those_share_that_have_to_go_is_room_for_one_that_is_due() {
    for sharing in [1, 2] {
        // Of 300 blocks a tenant's requests hold 200 together, found in the cache; the one that is due needs 150.
        let (mut core, mut now, mut slots) = (small::core(300, config_of(sharing + 1)), 0, BTreeMap::new());
        let of = |id, tenant, prompt: std::ops::Range<u32>, max_tokens, now| NewRequest {
            prompt: prompt.collect(),
            stop: StopRule { max_tokens, min_tokens: 0, stop_ids: [].into() },
            ..long(id, tenant, now)
        };
        core.submit(of(100, 1, 0..801, 1, 0)).expect("it fits");
        while !second(&mut core, &mut now, &mut slots).is_empty() {}
        let going = 1..=u64::from(sharing);
        going.clone().for_each(|id| core.submit(of(id, 1, 0..810, 100, now)).expect("it fits"));
        second(&mut core, &mut now, &mut slots);
        core.submit(of(50, 3, 5_000..5_005, 100, now)).expect("it fits");
        assert_eq!(second(&mut core, &mut now, &mut slots), Vec::from_iter(going.chain([50])));
        core.submit(of(9, 2, 10_000..10_600, 100, now)).expect("it fits");
        let came = (1..1_000).find(|_| second(&mut core, &mut now, &mut slots).contains(&9)).expect("it comes");
        assert!((30..=33).contains(&came), "{came} s, with {sharing} that share");
        assert_eq!(core.counts().turns_ended, u64::from(sharing), "the third one stays");
    }
}

#[test]
fn who_has_had_its_turn_waits_like_one_that_has_just_come() {
    let (mut core, mut now, mut slots) = (small_core(1), 0, BTreeMap::new());
    core.submit(long(1, 1, 0)).expect("it fits");
    second(&mut core, &mut now, &mut slots);
    core.submit(long(2, 2, now)).expect("it fits");
    (0..20).for_each(|_| assert_eq!(second(&mut core, &mut now, &mut slots), [1]));
    core.submit(long(3, 3, now)).expect("it fits");
    assert!((1..40).any(|_| second(&mut core, &mut now, &mut slots) == [2]));
    core.abort(RequestId(2));
    assert_eq!(second(&mut core, &mut now, &mut slots), [3], "its tenant was served less, and the first is not due");
}

#[test]
fn a_deadline_takes_nobodys_turn_away() {
    for deadline in [None, Some(50), Some(59), Some(100)] {
        let (mut core, mut now, mut slots) = (small_core(1), 0, BTreeMap::new());
        core.submit(long(1, 1, 0)).expect("it fits");
        second(&mut core, &mut now, &mut slots);
        let deadline = deadline.map(|deadline| Micros(deadline * SECOND));
        core.submit(NewRequest { deadline, ..long(2, 2, SECOND) }).expect("it fits");
        let came = (1..60).find(|_| second(&mut core, &mut now, &mut slots) == [2]);
        assert!(came.is_some_and(|came| came <= 33), "{deadline:?}: {came:?}");
    }
}

#[test]
fn in_steps_that_are_always_full_turns_end_and_those_that_stand_aside_have_theirs() {
    let config = CoreConfig { token_budget: 4, ..config_of(4) };
    let (mut core, mut now, mut slots) = (small::core(16_384, config), 0, BTreeMap::new());
    for id in 1..=4 {
        core.submit(NewRequest { prompt: [id as u32].into(), ..long(id, 1, 0) }).expect("it fits");
    }
    second(&mut core, &mut now, &mut slots);
    core.submit(NewRequest { prompt: [9].into(), ..long(9, 2, now) }).expect("it fits");
    assert!((1..40).any(|_| second(&mut core, &mut now, &mut slots).contains(&9)));

    let config = CoreConfig { token_budget: 4, ..config_of(2) };
    let (mut core, mut now, mut slots) = (small::core(16_384, config), 0, BTreeMap::new());
    let prompt = |first: u32| (first..first + 100).collect();
    core.submit(NewRequest { prompt: prompt(0), ..long(1, 1, 0) }).expect("it fits");
    second(&mut core, &mut now, &mut slots);
    core.submit(NewRequest { prompt: prompt(1_000), ..long(2, 2, 1) }).expect("it fits");
    core.submit(NewRequest { prompt: [7].into(), ..long(3, 1, 2) }).expect("it fits");
    assert!((1..100).any(|_| second(&mut core, &mut now, &mut slots).contains(&2)), "it stood aside");
}

#[test]
fn a_turn_is_long_beside_what_computing_its_request_again_takes() {
    let (mut core, mut now, mut slots) = (small_core(1), 0, BTreeMap::new());
    let commit_in = |core: &mut Core, us_per_token: u32, now: u64| {
        let plan = core.plan(GROUP, Micros(now)).expect("a step");
        let tokens: u32 = plan.rows.iter().map(|row| row.count).sum();
        let results = pelton_core::StepResults { took_us: tokens * us_per_token, ..all_draw(&plan, 7) };
        core.commit(GROUP, results).expect("results of the step that is due");
        core.events().for_each(drop);
    };
    // What a token of a prompt takes, 100 ms, is learned from prompts that end at once.
    for id in 100..160 {
        let stop = StopRule { max_tokens: 1, min_tokens: 0, stop_ids: [].into() };
        let prompt = (0..60).map(|at| id as u32 * 1_000 + at);
        core.submit(NewRequest { stop, ..request(id, prompt) }).expect("it fits");
        commit_in(&mut core, 100_000, 0);
    }
    let prompt = NewRequest { prompt: (0..60).collect(), ..long(1, 1, 0) };
    core.submit(prompt).expect("it fits");
    commit_in(&mut core, 100_000, SECOND);
    core.submit(long(2, 2, SECOND)).expect("it fits");
    now += SECOND;
    let turn = (1..200).find(|_| {
        second(&mut core, &mut now, &mut slots);
        core.counts().turns_ended > 0
    });
    let turn = turn.expect("it ends");
    assert!((45..=150).contains(&turn), "60 tokens and more take 6 s and more to compute, and the turn was {turn} s");
}

/// With more tenants than slots, each of them gets its share, and none waits for more than the turns of the others.
#[test]
fn tenants_take_turns_whatever_they_ask() {
    for (tenants, slots_count, each) in [(2, 1, 1), (2, 1, 3), (3, 1, 2), (3, 2, 1), (5, 2, 2), (5, 4, 3), (7, 3, 1)] {
        let (mut core, mut now, mut slots) = (small_core(slots_count), 0, BTreeMap::new());
        for id in 0..tenants * each {
            core.submit(long(id, id / each, 0)).expect("it fits"); // all of the first one's come first
        }
        let (mut ran, mut last): (BTreeMap<u64, u64>, BTreeMap<u64, u64>) = Default::default();
        for _ in 0..2_000 {
            for id in second(&mut core, &mut now, &mut slots) {
                *ran.entry(id / each).or_default() += 1;
                last.insert(id / each, now);
            }
            for tenant in 0..tenants {
                let idle = (now - last.get(&tenant).copied().unwrap_or(0)) / SECOND;
                let bound = 31 * (tenants + 1) + 2 * tenants;
                assert!(idle <= bound, "{tenant} of {tenants} with {slots_count} slots waits for {idle} s");
            }
        }
        let (least, most) = (ran.values().min().expect("some"), ran.values().max().expect("some"));
        assert!(most - least <= 31 * tenants + 2_000 / 4, "{tenants} tenants, {slots_count} slots: {ran:?}");
        assert!(core.counts().turns_ended <= 2_000 / 30 * u64::from(slots_count), "turns are not short");
    }
}

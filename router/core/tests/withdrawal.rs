//! Requests that are taken away from a worker that lives on.

mod small;

use pelton_core::{CacheChange, CacheScope, Core, CoreConfig, Event, Micros, Plan, RequestId, TokenId, Trust};
use small::{GROUP, commit, config, core, request, step};

fn release(core: &mut Core, id: u64) -> Plan {
    core.release(RequestId(id));
    core.check();
    core.plan(GROUP, Micros(9)).expect("it may run again")
}

fn tokens_of(core: &mut Core, id: u64) -> Vec<TokenId> {
    let mine = |event| match event {
        Event::Token { request, token, .. } if request == RequestId(id) => Some(token),
        _ => None,
    };
    core.events().filter_map(mine).collect()
}

fn starts(plan: &Plan) -> Vec<(u64, u32, u32)> {
    let slots =
        |row: &pelton_core::Row| plan.admits.iter().find(|admit| admit.slot == row.slot).map(|admit| admit.request.0);
    plan.rows.iter().map(|row| (slots(row).unwrap_or(u64::MAX), row.start, row.count)).collect()
}

#[test]
fn what_is_in_flight_of_a_request_that_is_withdrawn_counts_for_nothing_and_the_others_go_on() {
    let mut core = core(16, config());
    core.submit(request(1, 0..8)).expect("it fits");
    core.submit(request(2, 20..28)).expect("it fits");
    step(&mut core, 50);
    let (first, second) =
        (core.plan(GROUP, Micros(1)).expect("a step"), core.plan(GROUP, Micros(1)).expect("one ahead"));
    core.withdraw(RequestId(1), Trust::Full);
    core.check();
    assert_eq!((core.counts().held, core.counts().running), (1, 1));
    commit(&mut core, &first, 51);
    commit(&mut core, &second, 52);
    assert_eq!(tokens_of(&mut core, 1), [50], "51 and 52 came when it had left");
    let plan = core.plan(GROUP, Micros(2)).expect("the other one goes on");
    assert_eq!((plan.rows.len(), plan.drops.len()), (1, 1));
    commit(&mut core, &plan, 53);
    let plan = release(&mut core, 1);
    assert!(starts(&plan).contains(&(1, 8, 1)), "its own blocks are found again: {plan:?}");
    commit(&mut core, &plan, 60);
    assert_eq!(tokens_of(&mut core, 1), [60], "it goes on behind its first token");
    assert_eq!(core.counts().replayed, 1);
}

#[test]
fn one_that_is_not_trusted_finds_nothing_and_leaves_nothing_to_others() {
    let mut core = core(32, config());
    for (id, tokens) in [(1, 0..10), (2, 0..14)] {
        core.submit(request(id, tokens)).expect("it fits");
        step(&mut core, 50);
    }
    core.withdraw(RequestId(2), Trust::None);
    core.check();
    let plan = release(&mut core, 2);
    assert!(starts(&plan).contains(&(2, 0, 15)), "neither the other's blocks nor its own: {plan:?}");
    commit(&mut core, &plan, 51);
    core.withdraw(RequestId(2), Trust::None);
    let plan = release(&mut core, 2);
    assert!(starts(&plan).contains(&(2, 0, 16)), "not even those since then: {plan:?}");
    commit(&mut core, &plan, 52);
    core.abort(RequestId(2));

    core.submit(request(3, 0..14)).expect("it fits");
    let plan = step(&mut core, 50);
    assert!(starts(&plan).contains(&(3, 0, 14)), "what both have left was forgotten: {plan:?}");
    core.submit(request(4, 0..14)).expect("it fits");
    let plan = step(&mut core, 50);
    assert!(starts(&plan).contains(&(4, 13, 1)), "and is known again since then: {plan:?}");
}

#[test]
fn where_one_that_is_not_trusted_found_the_start_of_a_block_that_block_is_forgotten_and_no_other() {
    let config = CoreConfig { tells_cache_changes: true, ..config() };
    let mut core = core(32, config);
    for (id, tokens) in [(1, [0, 1, 2, 3, 4, 5, 6, 7]), (2, [0, 1, 2, 3, 4, 9, 9, 9]), (3, [0, 1, 2, 3, 8, 8, 8, 8])] {
        core.submit(request(id, tokens)).expect("it fits");
        ends_now(&mut core);
    }
    core.submit(request(4, [0, 1, 2, 3, 4, 5, 6, 0])).expect("it fits");
    assert_eq!(starts(&step(&mut core, 50)), [(4, 7, 1)], "it finds most of the first one's second block");
    let stored = core.cache_changes(GROUP).len();
    core.withdraw(RequestId(4), Trust::None);
    core.check();
    let removed = core.cache_changes(GROUP);
    assert!(removed.iter().all(|change| matches!(change, CacheChange::Removed { .. })), "{removed:?}");
    assert_eq!((stored, removed.len()), (5, 4), "the first block, its own, and two that begin as it does");
    core.abort(RequestId(4));
    core.submit(request(5, [0, 1, 2, 3])).expect("it fits");
    ends_now(&mut core);
    core.submit(request(6, [0, 1, 2, 3, 8, 8, 8, 8, 5])).expect("it fits");
    assert_eq!(starts(&step(&mut core, 50)), [(6, 8, 1)], "the one that begins otherwise was left");
}

#[test]
fn of_one_that_is_not_trusted_nothing_is_kept_or_told() {
    let mut core = core(32, pelton_core::CoreConfig { tells_cache_changes: true, ..config() });
    core.submit(request(1, 0..14)).expect("it fits");
    core.withdraw(RequestId(1), Trust::None);
    ends(&mut core, 1);
    assert_eq!(core.cache_changes(GROUP), []);
    core.submit(request(2, 100..120)).expect("it fits");
    ends_now(&mut core);
    let told = core.cache_changes(GROUP).len();
    assert!(told > 0);
    // Of the blocks that are idle, those that nobody can find are taken first.
    (3..9).for_each(|id| {
        core.submit(request(id, [id as TokenId * 1_000; 14])).expect("it fits");
        core.withdraw(RequestId(id), Trust::None);
        ends(&mut core, id);
    });
    core.submit(request(9, 100..120)).expect("it fits");
    let plan = core.plan(GROUP, Micros(9)).expect("a step");
    assert_eq!(starts(&plan), [(9, 19, 1)], "it was not pushed out");
}

fn long(id: u64) -> pelton_core::NewRequest {
    let stop = pelton_core::StopRule { max_tokens: 50, min_tokens: 0, stop_ids: [].into() };
    pelton_core::NewRequest { stop, ..request(id, [0, 1, 2, 3, 4, 5, 6, 0]) }
}

#[test]
fn a_block_whose_start_one_found_is_forgotten_behind_however_many_others() {
    let config = CoreConfig { max_running: 8, max_waiting: 100, ..config() };
    let mut core = core(128, config);
    core.submit(request(1, [0, 1, 2, 3, 4, 5, 6, 7])).expect("it fits");
    ends_now(&mut core);
    core.submit(long(2)).expect("it fits");
    assert_eq!(starts(&step(&mut core, 50)), [(2, 7, 1)]);
    for id in 3..23 {
        core.submit(request(id, [0, 1, 2, 3, 100 + id as TokenId, 8, 8, 8])).expect("it fits");
        let plan = core.plan(GROUP, Micros(0)).expect("a step");
        commit(&mut core, &plan, 50);
        core.abort(RequestId(id));
    }
    core.withdraw(RequestId(2), Trust::None);
    core.check();
    core.submit(request(30, [0, 1, 2, 3])).expect("it fits");
    ends_now(&mut core);
    core.submit(request(31, [0, 1, 2, 3, 4, 5, 6, 7])).expect("it fits");
    assert_eq!(starts(&step(&mut core, 50)), [(31, 4, 4)]);
}

fn ends_now(core: &mut Core) {
    step(core, small::STOP);
}

#[test]
fn what_one_has_left_and_was_filling_is_left_to_others_only_with_trust() {
    for (trust, start) in [(Trust::Full, 15), (Trust::None, 0)] {
        let mut core = core(32, config());
        core.submit(request(1, 0..14)).expect("it fits");
        step(&mut core, 50);
        step(&mut core, 51);
        core.withdraw(RequestId(1), trust);
        core.submit(request(2, (0..14).chain([50, 51]))).expect("it fits");
        let plan = step(&mut core, 52);
        assert_eq!(starts(&plan), [(2, start, 16 - start)], "{trust:?}");
    }
}

#[test]
fn a_block_that_one_was_filling_is_left_to_others_only_with_trust() {
    // No full block comes before it, which would have been forgotten and would hide it.
    for (trust, start) in [(Trust::Full, 3), (Trust::None, 0)] {
        let mut core = core(32, config());
        core.submit(request(1, 0..2)).expect("it fits");
        step(&mut core, 50);
        step(&mut core, 51);
        core.withdraw(RequestId(1), trust);
        core.submit(request(2, [0, 1, 50, 51])).expect("it fits");
        let plan = step(&mut core, 52);
        assert_eq!(starts(&plan), [(2, start, 4 - start)], "{trust:?}");
    }
}

#[test]
fn one_that_waits_or_is_kept_back_is_kept_back_and_one_that_has_ended_is_nobody() {
    let mut core = core(16, config());
    core.submit(request(1, 0..4)).expect("it fits");
    for trust in [Trust::Full, Trust::None] {
        core.withdraw(RequestId(1), trust);
        core.withdraw(RequestId(7), trust);
        assert_eq!((core.counts().held, core.counts().waiting, core.counts().replayed), (1, 0, 0));
        assert!(core.plan(GROUP, Micros(0)).is_none());
    }
    assert_eq!(starts(&release(&mut core, 1)), [(1, 0, 4)]);
}

#[test]
fn a_salt_stays_what_it_was_for_one_that_is_not_trusted() {
    let mut core = core(32, config());
    let salted = |id| pelton_core::NewRequest { scope: CacheScope::salted(7), ..request(id, 0..9) };
    core.submit(salted(1)).expect("it fits");
    core.withdraw(RequestId(1), Trust::None);
    ends(&mut core, 1);
    core.submit(request(2, 0..9)).expect("it fits");
    core.submit(salted(3)).expect("it fits");
    let plan = core.plan(GROUP, Micros(9)).expect("both are new");
    assert!(plan.rows.iter().all(|row| row.start == 0), "neither finds what it has left: {plan:?}");
}

fn ends(core: &mut Core, id: u64) {
    let plan = release(core, id);
    commit(core, &plan, small::STOP);
}

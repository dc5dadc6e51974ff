//! Who goes before whom when blocks are scarce, case by case.

mod small;

use pelton_core::{Core, CoreConfig, Event, Micros, NewRequest, Plan, RequestId, Row, SlotId, TokenId};
use small::{GROUP, STOP, commit, config, core, request, step};

/// A core that has seen only answers of one token, and expects no others: so it admits whatever fits now.
fn hopeful_core(blocks: u32, config: CoreConfig) -> Core {
    let mut core = core(blocks, config);
    for id in 900..908 {
        core.submit(request(id, [0])).expect("room");
        step(&mut core, STOP);
    }
    core.events().for_each(drop);
    core
}

fn row(slot: u32, start: u32, count: u32, known: u32, samples: bool) -> Row {
    Row {
        slot: SlotId(slot),
        start,
        count,
        known,
        drafts: 0,
        samples,
        masked: false,
        pools: false,
        scores: 0,
        embeds: 0,
        next: None,
    }
}

fn admitted(plan: &Plan) -> Vec<u64> {
    plan.admits.iter().map(|admit| admit.request.0).collect()
}

#[test]
fn the_queue_goes_by_priority_then_arrival_and_nobody_overtakes_one_that_finds_no_room() {
    // B:SC1
    let mut core = core(16, CoreConfig { max_running: 2, ..config() });
    for (id, priority) in [(1, 0), (2, 1), (3, 0), (4, -1)] {
        core.submit(NewRequest { priority, ..request(id, [id as TokenId]) }).expect("room");
    }
    assert_eq!(admitted(&step(&mut core, STOP)), [4, 1]);
    assert_eq!(admitted(&step(&mut core, STOP)), [3, 2]);

    let mut core = hopeful_core(12, config());
    core.submit(request(1, 0..20)).expect("room");
    core.submit(request(2, 100..130)).expect("fits when it is alone");
    core.submit(request(3, 200..202)).expect("room");
    assert_eq!(admitted(&step(&mut core, STOP)), [1], "2 finds 7 of 8 blocks, and 3 waits behind it");
    assert_eq!(admitted(&step(&mut core, STOP)), [2, 3]);
}

/// Two requests that hold all 6 blocks of a group, 12 tokens each; the next token of either needs a seventh.
fn full_house(priorities: [i32; 2]) -> Core {
    let mut core = hopeful_core(6, config());
    for (id, priority) in (1..).zip(priorities) {
        let prompt = 100 * id as TokenId..100 * id as TokenId + 11;
        core.submit(NewRequest { priority, ..request(id, prompt) }).expect("room");
    }
    step(&mut core, 7);
    core
}

#[test]
fn the_request_behind_gives_its_blocks_and_loses_no_token_that_is_in_flight() {
    let mut core = full_house([0, 0]);
    let twelfth = core.plan(GROUP, Micros(0)).expect("both compute their token 12");
    assert_eq!(
        core.plan(GROUP, Micros(0)),
        None,
        "no block for token 13: the second one yields, and the first one waits for it"
    );
    assert_eq!((core.counts().preemptions, core.counts().blocks_held), (1, 6));
    core.events().for_each(drop);
    commit(&mut core, &twelfth, 8);
    assert_eq!(core.events().count(), 2, "both are told what was drawn");
    assert_eq!((core.counts().running, core.counts().waiting, core.counts().blocks_held), (1, 1, 3));
    let plan = core.plan(GROUP, Micros(0)).expect("the first goes on");
    assert_eq!((plan.rows.len(), admitted(&plan)), (1, vec![]), "4 blocks are not there for the second");
    assert_eq!(plan.rows[0], row(0, 12, 1, 1, true));
}

#[test]
fn what_is_computed_once_more_is_booked_to_the_preemption_or_to_the_lost_worker() {
    let booked = |core: &mut Core| {
        while core.counts().running + core.counts().waiting > 0 {
            step(core, 7);
        }
        let told = core.events().filter_map(|event| match event {
            Event::Finished { explanation, .. } => Some((explanation.again_preempted, explanation.again_lost)),
            _ => None,
        });
        let told: Vec<_> = told.collect();
        (told, core.counts().again_preempted, core.counts().again_lost)
    };
    // The first one takes two of the second one's three blocks; of its 12 tokens those of the third are found.
    assert_eq!(booked(&mut full_house([0, 0])), (vec![(0, 0), (8, 0)], 8, 0));

    let mut core = core(16, CoreConfig { token_budget: 8, ..config() });
    core.submit(request(1, 0..20)).expect("room");
    step(&mut core, 7);
    core.worker_lost(GROUP);
    core.worker_back(GROUP, 16, false);
    // Of 20 tokens 8 had been computed: the others are computed for the first time.
    assert_eq!(booked(&mut core), (vec![(0, 8)], 0, 8));
}

#[test]
fn nobody_is_preempted_while_blocks_are_on_their_way_and_nobody_overtakes() {
    let mut core = full_house([0, 0]);
    let twelfth = core.plan(GROUP, Micros(0)).expect("both compute their token 12");
    core.abort(RequestId(2)); // its 3 blocks come home with the step in flight
    core.submit(request(3, [1])).expect("room");
    assert_eq!(
        (core.plan(GROUP, Micros(0)), core.counts().preemptions),
        (None, 0),
        "blocks are on their way: nobody is preempted"
    );
    commit(&mut core, &twelfth, 8);
    assert_eq!(admitted(&core.plan(GROUP, Micros(0)).expect("room for both")), [3]);
}

#[test]
fn the_victim_is_of_the_least_important_priority_and_there_the_one_with_the_least_to_lose() {
    for (priorities, lens, victim) in [
        ([0, 0, 0], [4, 8, 4], 3), // one block less to compute again
        ([0, 0, 0], [4, 4, 8], 2),
        ([0, 0, 0], [4, 4, 4], 3), // of equals the later one
        ([0, 1, 2], [4, 4, 8], 3), // priority goes first
        ([-1, 5, 0], [4, 8, 4], 2),
    ] {
        let mut core = hopeful_core(lens.iter().map(|len| len / 4).sum(), config());
        for ((id, priority), len) in (1..).zip(priorities).zip(lens) {
            let mut new = NewRequest { priority, ..request(id, (0..len).map(|at| 100 * id as TokenId + at)) };
            new.stop.max_tokens = 4;
            core.submit(new).expect("room");
        }
        let entered = step(&mut core, 7).admits;
        let plan = core.plan(GROUP, Micros(0)).expect("the first one takes a block");
        assert_eq!(plan.rows[0].slot, entered[0].slot, "{priorities:?} {lens:?}: it goes on");
        let dropped = plan.drops;
        let victims = entered.iter().filter(|admit| dropped.contains(&admit.slot)).map(|admit| admit.request);
        assert_eq!(victims.collect::<Vec<_>>(), [RequestId(victim)], "{priorities:?} {lens:?}");
        core.check();
    }
}

#[test]
fn one_that_has_waited_for_long_is_not_preempted_for_a_more_important_one() {
    let seconds = |seconds: u64| Micros(seconds * 1_000_000);
    let asked = |id: u64, priority, arrival| {
        let mut new = NewRequest { priority, arrival, ..request(id, (0..4).map(|at| 100 * id as TokenId + at)) };
        new.stop.max_tokens = 4;
        new
    };
    let mut core = hopeful_core(2, config());
    core.submit(asked(1, 0, seconds(0))).expect("room");
    core.submit(asked(2, -9, seconds(40))).expect("room");
    let first = core.plan(GROUP, seconds(41)).expect("both are admitted");
    assert_eq!(admitted(&first), [1, 2]);
    commit(&mut core, &first, 7);
    let second = core.plan(GROUP, seconds(41)).expect("the first one takes a block");
    assert_eq!((second.rows.len(), second.rows[0].slot), (1, first.admits[0].slot));
    assert_eq!(core.counts().preemptions, 1);
    core.check();
}

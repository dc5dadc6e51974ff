//! What stays in the prefix cache, case by case: pinned prefixes, tenants' quotas.

mod small;

use pelton_core::{
    CacheScope, Core, CoreConfig, Event, Kind, Micros, NewPin, NewRequest, Party, PinId, PinRefusal, RequestId,
    StateMode, TokenId,
};
use small::{GROUP, STOP, config, core, request, step};

fn pin(id: u64, tokens: impl IntoIterator<Item = TokenId>) -> NewPin {
    let tokens = tokens.into_iter().collect();
    NewPin { id: PinId(id), tokens, scope: CacheScope::default(), party: Party::default(), until: Micros(1_000) }
}

/// Runs a request of one drawn token to its end; says how much of its prompt was found.
fn run(core: &mut Core, new: NewRequest) -> u32 {
    core.submit(new).expect("room");
    step(core, STOP);
    let cached = |event| match event {
        Event::Admitted { cached, .. } => Some(cached),
        _ => None,
    };
    core.events().find_map(cached).expect("it was admitted")
}

fn of_tenant(tenant: u64, new: NewRequest) -> NewRequest {
    NewRequest { party: Party { tenant, user: 0 }, ..new }
}

/// Other prompts go by and take 18 blocks.
fn others_pass(core: &mut Core, first: u64) {
    for id in first..first + 6 {
        run(core, request(id, (0..12).map(|at| 1_000 * id as TokenId + at)));
    }
}

#[test]
fn a_pinned_prefix_outlives_what_pushes_others_out_and_goes_when_the_pin_ends() {
    for (pinned, expected) in [(true, 12), (false, 0)] {
        let mut core = core(16, config());
        if pinned {
            core.pin(pin(1, 0..12)).expect("room for three blocks");
        }
        run(&mut core, request(1, 0..14));
        others_pass(&mut core, 10);
        assert_eq!(run(&mut core, request(2, 0..14)), expected);
        others_pass(&mut core, 20);
        assert_eq!(run(&mut core, request(3, 0..14)), expected, "found once, it is as it was");
        core.tick(Micros(1_000));
        assert_eq!(core.counts().pins, 0);
        others_pass(&mut core, 30);
        core.check();
        assert_eq!(run(&mut core, request(4, 0..14)), 0, "the pin has ended");
    }
}

#[test]
fn what_is_there_when_the_pin_comes_is_kept_and_goes_when_it_is_taken_back() {
    let mut core = core(16, config());
    run(&mut core, request(1, 0..14));
    core.pin(pin(1, 0..14)).expect("three full blocks");
    assert_eq!((core.counts().pins, core.counts().blocks_pinned, core.next_deadline()), (1, 3, Some(Micros(1_000))));
    others_pass(&mut core, 10);
    assert_eq!(run(&mut core, request(2, 0..14)), 12);
    core.unpin(PinId(1));
    core.unpin(PinId(1));
    assert_eq!((core.counts().pins, core.counts().blocks_pinned, core.next_deadline()), (0, 0, None));
    others_pass(&mut core, 20);
    assert_eq!(run(&mut core, request(3, 0..14)), 0);
}

#[test]
fn a_pin_costs_nobody_its_turn_and_its_leaf_goes_first() {
    let mut core = core(6, config());
    core.pin(pin(1, 0..12)).expect("half of six blocks");
    run(&mut core, request(1, 0..13));
    run(&mut core, request(2, 100..116)); // four blocks: three that are not pinned, and one that is
    assert_eq!(core.counts().pinned_given_up, 1);
    assert_eq!(run(&mut core, request(3, 0..13)), 8, "the first two blocks are left");
    assert_eq!(core.counts().preemptions, 0);
}

#[test]
fn a_pin_outlives_the_worker() {
    let mut core = core(16, config());
    core.pin(pin(1, 0..12)).expect("room for three blocks");
    run(&mut core, request(1, 0..14));
    core.worker_lost(GROUP);
    core.worker_back(GROUP, 16, false);
    run(&mut core, request(2, 0..14)); // computes it anew
    others_pass(&mut core, 10);
    assert_eq!(run(&mut core, request(3, 0..14)), 12);
}

#[test]
fn pins_that_share_a_prefix_count_it_once_and_hold_it_until_the_last_one_ends() {
    let mut core = core(16, config());
    core.pin(pin(1, 0..12)).expect("three of eight blocks");
    core.pin(pin(2, 0..20)).expect("two more");
    assert_eq!(core.counts().blocks_pinned, 5);
    run(&mut core, request(1, 0..21));
    core.unpin(PinId(2));
    assert_eq!(core.counts().blocks_pinned, 3);
    others_pass(&mut core, 10);
    assert_eq!(run(&mut core, request(2, 0..21)), 12);
    core.pin(NewPin { until: Micros(5_000), ..pin(1, 0..12) }).expect("a longer life");
    core.tick(Micros(1_000));
    assert_eq!((core.counts().pins, core.next_deadline()), (1, Some(Micros(5_000))));
}

#[test]
fn of_each_kind_is_kept_what_a_hit_on_the_whole_prefix_needs() {
    for (kind, blocks) in [
        (Kind::Window { tokens: 6 }, 2),
        (Kind::Window { tokens: 1 }, 0),
        (Kind::State { mode: StateMode::All }, 1),
        (Kind::State { mode: StateMode::Align }, 1),
    ] {
        let mut core = core(32, CoreConfig { kinds: vec![Kind::Full, kind], ..config() });
        core.pin(pin(1, 0..12)).expect("room");
        assert_eq!(core.counts().blocks_pinned, 3 + blocks, "{kind:?}");
        run(&mut core, request(1, 0..14));
        (0..4).for_each(|at| others_pass(&mut core, 10 + 10 * at));
        assert_eq!(run(&mut core, request(2, 0..14)), 12, "{kind:?}");
    }
}

/// Each name takes memory, though the block is counted once.
#[test]
fn pins_name_the_same_blocks_only_so_often() {
    let mut core = core(16, config());
    let longer = |id: u64| pin(id, (0..24).chain([100 + id as TokenId; 4])); // 7 blocks, 6 of them common
    core.pin(longer(0)).expect("7 of 8 blocks");
    core.pin(longer(1)).expect("8 of 8 blocks");
    let again = |id| pin(id, 0..28 - 4);
    (2..10).for_each(|id| core.pin(again(id)).expect("6 blocks that are named already"));
    assert_eq!(core.counts().blocks_pinned, 8);
    assert_eq!(core.pin(again(10)), Err(PinRefusal::TooMany { needed: 6, left: 2 }), "of 64 names");
    core.pin(again(9)).expect("it is named so often already");
    core.unpin(PinId(0));
    core.pin(again(10)).expect("room");
}

#[test]
fn what_cannot_be_pinned_is_refused_with_the_reason_and_changes_nothing() {
    let none = Kind::State { mode: StateMode::None };
    let other = |pin| NewPin { party: Party { tenant: 7, user: 0 }, ..pin };
    for (config, new, expected) in [
        (config(), pin(2, 100..116), Ok(())),
        (config(), pin(2, 100..121), Err(PinRefusal::TooMany { needed: 5, left: 4 })),
        (config(), pin(2, (0..16).chain(100..112)), Ok(())), // four blocks are pinned already
        (config(), pin(2, 0..3), Err(PinRefusal::TooShort { tokens: 3, block_size: 4 })),
        (config(), NewPin { until: Micros(10), ..pin(2, 0..8) }, Err(PinRefusal::TooLate { ago: 90 })),
        (CoreConfig { pin_share: 25, ..config() }, pin(2, 0..16), Ok(())), // the very same
        (CoreConfig { pin_share: 25, ..config() }, pin(2, 50..54), Err(PinRefusal::TooMany { needed: 1, left: 0 })),
        (CoreConfig { tenant_cache_share: 50, ..config() }, pin(1, 0..16), Ok(())), // instead of itself
        (
            CoreConfig { tenant_cache_share: 50, ..config() },
            pin(2, 0..16),
            Err(PinRefusal::TooMany { needed: 4, left: 0 }),
        ),
        (CoreConfig { tenant_cache_share: 50, ..config() }, other(pin(2, 50..66)), Ok(())),
        (CoreConfig { prefix_caching: false, ..config() }, pin(2, 0..8), Err(PinRefusal::NoCache)),
        (CoreConfig { kinds: vec![none], ..config() }, pin(2, 0..8), Err(PinRefusal::NoCache)),
    ] {
        let caches = expected != Err(PinRefusal::NoCache);
        let mut core = core(16, config);
        core.tick(Micros(100));
        if caches {
            core.pin(pin(1, 0..16)).expect("four of sixteen blocks");
        }
        let before = core.counts();
        assert_eq!(core.pin(new.clone()), expected, "{new:?}");
        assert!(expected.is_ok() || core.counts() == before);
        core.check();
    }
}

#[test]
fn a_tenant_over_its_quota_gives_up_its_own_first() {
    let share = |tenant_cache_share| CoreConfig { tenant_cache_share, ..config() };
    for (config, expected) in [(share(100), [0, 8]), (share(50), [8, 8])] {
        let mut core = core(16, config);
        run(&mut core, of_tenant(1, request(1, 0..9)));
        for id in 2..8 {
            run(&mut core, of_tenant(2, request(id, (0..9).map(|at| 100 * id as TokenId + at))));
        }
        let found =
            [run(&mut core, of_tenant(1, request(20, 0..9))), run(&mut core, of_tenant(2, request(21, 700..709)))];
        assert_eq!(found, expected, "the second tenant's prompts take 18 blocks");
        core.check();
    }
}

#[test]
fn whoever_leaves_a_shared_block_last_answers_for_it() {
    let mut core = core(16, CoreConfig { tenant_cache_share: 25, ..config() });
    run(&mut core, of_tenant(1, request(1, 0..16)));
    assert_eq!(run(&mut core, of_tenant(2, request(2, 0..17))), 16);
    run(&mut core, of_tenant(1, request(3, 100..116))); // four blocks: all that the first one may leave
    assert_eq!(run(&mut core, of_tenant(1, request(4, 0..13))), 12);
    assert_eq!(run(&mut core, of_tenant(3, request(5, 100..113))), 4, "three were given up for what it used since");
    core.check();
}

#[test]
fn a_quota_of_nothing_leaves_nothing() {
    let mut core = core(16, CoreConfig { tenant_cache_share: 0, ..config() });
    run(&mut core, request(1, 0..9));
    assert_eq!(run(&mut core, request(2, 0..9)), 0);
    core.abort(RequestId(2));
}

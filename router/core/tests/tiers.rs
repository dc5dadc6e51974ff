//! The tiers below the device, case by case. The worlds show that what comes back is right; these show that it comes back,
//! when, and at what price.

use std::sync::Arc;

use pelton_core::{
    BlockId, CacheChange, CacheScope, Core, CoreConfig, DiskEntry, DiskFault, DiskOrder, DiskPlace, Event, Explanation,
    Goal, GroupId, Kind, Limits, Medium, Micros, NewRequest, Party, Plan, RequestId, RowResult, Sampling, StepResults,
    StopRule, TokenId, Trust, Wait,
};

const GROUP: GroupId = GroupId(0);
const OTHER: GroupId = GroupId(1);
const STOP: TokenId = 99;

fn config() -> CoreConfig {
    CoreConfig {
        block_size: 4,
        kinds: vec![Kind::Full],
        max_model_len: 64,
        limits: Limits {
            slots: 4,
            tokens: 64,
            appends: 64,
            saves: 8,
            loads: 8,
            copies: 4,
            states: 8,
            biases: 4,
            suppressed: 4,
            history: 256,
            scores: 8,
            embeds: 0,
        },
        max_running: 4,
        max_waiting: 8,
        token_budget: 64,
        itl_target_us: None,
        hash_key: [1, 2],
        host_blocks: 32,
        disk_places: 0,
        drafts_max: 0,
        prefix_caching: true,
        pin_share: 0,
        tenant_cache_share: 100,
        tells_cache_changes: false,
    }
}

fn core(blocks: u32, config: CoreConfig) -> Core {
    let mut core = Core::new(config);
    core.add_group(GROUP, blocks, true);
    core
}

fn request(id: u64, prompt: impl IntoIterator<Item = TokenId>) -> NewRequest {
    NewRequest {
        id: RequestId(id),
        prompt: prompt.into_iter().collect(),
        generated: Vec::new(),
        scored: 0,
        goal: Goal::Tokens,
        sampling: Sampling::greedy(),
        stop: StopRule { max_tokens: 8, min_tokens: 0, stop_ids: Arc::new([STOP]) },
        masked: false,
        scope: CacheScope::default(),
        priority: 0,
        arrival: Micros(0),
        party: Party::default(),
        deadline: None,
    }
}

fn commit(core: &mut Core, group: GroupId, plan: &Plan, token: TokenId, took_us: u32) {
    let rows = plan.rows.iter().map(|row| row.samples.then_some(RowResult { token, logprobs: None })).collect();
    core.commit(group, StepResults { step: plan.step, took_us, draws: rows, ..StepResults::default() })
        .expect("results of the step that is due");
    core.check();
}

/// Plans and commits one step.
fn step(core: &mut Core, token: TokenId) -> Plan {
    let plan = core.plan(GROUP, Micros(0)).expect("there is something to do");
    commit(core, GROUP, &plan, token, 0);
    plan
}

/// Plans and commits until nothing is left to do. Every request draws one token.
fn run(core: &mut Core, group: GroupId) -> Vec<Plan> {
    let mut plans = Vec::new();
    while let Some(plan) = core.plan(group, Micros(0)) {
        commit(core, group, &plan, STOP, 0);
        plans.push(plan);
    }
    plans
}

/// Computes texts, one after the other.
fn compute(core: &mut Core, ids: std::ops::Range<u64>, text: impl Fn(u64) -> Vec<TokenId>) {
    for id in ids {
        core.submit(request(id, text(id))).expect("room");
        run(core, GROUP);
    }
}

/// A text of 17 tokens that no other number has.
fn text(of: u64) -> Vec<TokenId> {
    (0..17).map(|at| 1_000 * of as TokenId + at).collect()
}

fn told(core: &mut Core) -> Explanation {
    let ended = |event| match event {
        Event::Finished { explanation, .. } => Some(*explanation),
        _ => None,
    };
    core.events().filter_map(ended).last().expect("one has finished")
}

fn saves(plans: &[Plan]) -> Vec<usize> {
    plans.iter().map(|plan| plan.saves.len()).collect()
}

#[test]
fn full_blocks_are_saved_in_the_steps_after_they_fill_within_the_bound_and_ends_of_prompts_never() {
    for (bound, expected) in [(8, vec![0, 4]), (3, vec![0, 3, 1]), (1, vec![0, 1, 1, 1, 1])] {
        let limits = Limits { saves: bound, ..config().limits };
        let mut core = core(8, CoreConfig { limits, ..config() });
        core.submit(request(1, text(1))).expect("room");
        assert_eq!(saves(&run(&mut core, GROUP)), expected, "17 tokens fill 4 blocks");
        assert_eq!(
            (core.counts().saves, core.counts().host_blocks_findable, core.counts().host_blocks_held),
            (4, 4, 0)
        );
    }
}

#[test]
fn what_was_given_up_on_the_device_comes_back_and_the_rest_is_computed() {
    let mut core = core(6, config());
    compute(&mut core, 1..4, text); // 5 of 6 blocks each
    core.submit(request(4, text(1))).expect("room");
    let plan = step(&mut core, STOP);
    assert_eq!((plan.loads.len(), plan.rows[0].start, plan.rows[0].count), (4, 16, 1));
    let blocks: Vec<BlockId> = plan.appends.iter().map(|append| append.block).collect();
    let loaded: Vec<BlockId> = plan.loads.iter().map(|load| load.to).collect();
    assert_eq!(blocks[..4], loaded);
    let told = told(&mut core);
    assert_eq!((told.cached, told.cached_host, told.cached_disk, told.missed.evicted), (16, 16, 0, 0));
    assert_eq!((core.counts().host_hits, core.counts().loads, core.counts().host_blocks_held), (16, 4, 0));
    core.submit(request(4, text(1))).expect("room");
    assert!(step(&mut core, STOP).loads.is_empty(), "it is on the device again");
}

#[test]
fn at_most_all_but_one_of_the_tokens_are_brought_back() {
    let mut core = core(6, config());
    compute(&mut core, 1..4, text);
    core.submit(request(4, text(1)[..16].iter().copied())).expect("room");
    let plan = step(&mut core, STOP);
    assert_eq!((plan.loads.len(), plan.rows[0].start), (3, 12));
}

#[test]
fn loads_are_spread_over_steps_and_the_first_row_comes_with_the_last_of_them_while_others_run() {
    let limits = Limits { loads: 2, ..config().limits };
    let mut core = core(8, CoreConfig { limits, ..config() });
    compute(&mut core, 1..4, text);
    core.submit(request(4, [7])).expect("room");
    step(&mut core, 7);
    core.submit(request(5, text(1))).expect("room");
    let plans = [step(&mut core, 7), step(&mut core, 7)];
    let seen = plans.each_ref().map(|plan| (plan.admits.len(), plan.loads.len(), plan.rows.len()));
    assert_eq!(seen, [(1, 2, 1), (0, 2, 2)]);
}

#[test]
fn who_leaves_while_it_is_loading_leaves_nothing_held() {
    let limits = Limits { loads: 1, ..config().limits };
    let mut core = core(6, CoreConfig { limits, ..config() });
    compute(&mut core, 1..4, text);
    core.submit(request(4, text(1))).expect("room");
    let first = core.plan(GROUP, Micros(0)).expect("one load of four");
    assert_eq!((first.loads.len(), core.counts().host_blocks_held, core.counts().blocks_held), (1, 4, 5));
    core.abort(RequestId(4));
    core.check();
    assert_eq!((core.counts().host_blocks_held, core.counts().blocks_held), (1, 5), "a step in flight loads one");
    commit(&mut core, GROUP, &first, STOP, 0);
    assert_eq!((core.counts().host_blocks_held, core.counts().blocks_held), (0, 0));
}

#[test]
fn a_block_that_is_still_on_the_device_is_taken_from_there_behind_those_that_are_not() {
    let mut core = core(7, config());
    compute(&mut core, 100..108, |id| vec![id as TokenId]); // answers have one token: whatever fits now comes in
    core.submit(request(1, 0..8)).expect("room");
    let first = core.plan(GROUP, Micros(0)).expect("two blocks");
    commit(&mut core, GROUP, &first, STOP, 0);
    // It copies the second block but for its last token, computes that, and goes on alone: 0 1 | 2' 3' ...
    core.submit(request(2, 0..8)).expect("room");
    for token in [20, 21, 22, 23, 24] {
        step(&mut core, token);
    }
    // Others take what 1 has left: its second block.
    core.submit(request(3, 500..512)).expect("room");
    step(&mut core, STOP);
    core.finish(RequestId(2));
    core.submit(request(4, (0..8).chain([20, 21, 22, 23, 50]))).expect("room");
    let plan = step(&mut core, STOP);
    assert_eq!((plan.loads.len(), plan.rows[0].start), (1, 12), "{plan:?}");
    assert_eq!(plan.loads[0].to, plan.appends[1].block, "the second of three comes from the host's memory");
    assert_eq!(core.counts().host_hits, 4);
}

#[test]
fn what_is_saved_by_one_group_is_loaded_by_another_and_outlives_its_worker() {
    let mut core = core(6, config());
    core.add_group(OTHER, 6, true);
    core.add_group(GroupId(2), 6, false);
    core.submit(request(1, text(1))).expect("room");
    run(&mut core, GROUP);
    core.worker_lost(GROUP);
    core.check();
    core.submit(request(2, text(1))).expect("room");
    assert_eq!(core.plan(GroupId(2), Micros(0)), None, "it would have to compute all");
    let plans = run(&mut core, OTHER);
    assert_eq!(plans[0].loads.len(), 4);
    core.worker_back(GROUP, 6, true);
    core.worker_lost(OTHER);
    core.submit(request(4, text(1))).expect("room");
    assert_eq!(run(&mut core, GROUP)[0].loads.len(), 4);
}

#[test]
fn what_a_lost_worker_was_saving_is_not_found() {
    let mut core = core(6, config());
    core.submit(request(1, text(1))).expect("room");
    step(&mut core, STOP);
    let saving = core.plan(GROUP, Micros(0)).expect("saves alone");
    assert_eq!((saving.saves.len(), saving.rows.len(), core.counts().host_blocks_held), (4, 0, 4));
    core.worker_lost(GROUP);
    core.check();
    assert_eq!((core.counts().host_blocks_held, core.counts().host_blocks_findable), (0, 0));
    core.worker_back(GROUP, 6, true);
    core.submit(request(2, text(1))).expect("room");
    assert_eq!(step(&mut core, STOP).rows[0].start, 0);
}

#[test]
fn nothing_is_brought_back_that_is_computed_faster() {
    for (copy_us, token_us, loads) in [(1, 50, 4), (1_000, 1, 0)] {
        let mut core = core(6, config());
        for id in 1..30 {
            core.submit(request(id, text(id))).expect("room");
            while let Some(plan) = core.plan(GROUP, Micros(0)) {
                let tokens: u32 = plan.rows.iter().map(|row| row.count).sum();
                let copied = u32::try_from(plan.saves.len() + plan.loads.len()).expect("few");
                commit(&mut core, GROUP, &plan, STOP, 10 + tokens * token_us + copied * copy_us);
            }
        }
        core.submit(request(30, text(27))).expect("room");
        assert_eq!(step(&mut core, STOP).loads.len(), loads, "a copy takes {copy_us} us, a token {token_us} us");
    }
}

/// A disk that does all at once, and what it has done.
fn serve(core: &mut Core, kept: &mut Vec<DiskEntry>) -> usize {
    let orders = core.disk_orders();
    for order in &orders {
        match order.clone() {
            DiskOrder::Write { place, key, parent, tokens, salt, .. } => {
                kept.retain(|entry| entry.place != place);
                kept.push(DiskEntry { place, key, parent, tokens, salt, last_used: kept.len() as u64 });
                core.disk_done(place, Ok(()));
            }
            DiskOrder::Read { place, .. } => core.disk_done(place, Ok(())),
            DiskOrder::Erase { place } => kept.retain(|entry| entry.place != place),
        }
        core.check();
    }
    orders.len()
}

/// A disk with one text on it, as an earlier life has left it.
fn kept() -> Vec<DiskEntry> {
    let mut kept = Vec::new();
    let mut core = core(8, CoreConfig { disk_places: 16, ..config() });
    core.submit(request(1, text(1))).expect("room");
    run(&mut core, GROUP);
    assert_eq!(serve(&mut core, &mut kept), 4);
    assert_eq!(core.counts().disk_blocks, 4);
    kept
}

fn restored(entries: Vec<DiskEntry>) -> Core {
    let mut core = core(8, CoreConfig { disk_places: 16, ..config() });
    core.restore_disk(entries);
    core.check();
    core
}

#[test]
fn what_is_on_disk_after_a_restart_is_read_while_the_request_waits_and_others_pass() {
    let mut core = restored(kept());
    core.submit(request(1, text(1))).expect("room");
    core.submit(request(2, [7])).expect("room");
    let plan = step(&mut core, STOP);
    assert_eq!(plan.admits.iter().map(|admit| admit.request.0).collect::<Vec<_>>(), [2]);
    assert_eq!(serve(&mut core, &mut Vec::new()), 4);
    let plan = step(&mut core, STOP);
    assert_eq!((plan.loads.len(), plan.rows[0].start), (4, 16));
    let told = told(&mut core);
    assert_eq!((told.cached, told.cached_host, told.cached_disk), (16, 0, 16));
    assert_eq!((core.counts().disk_hits, core.counts().host_hits), (16, 0));
}

#[test]
fn nobody_waits_for_a_disk_that_hangs() {
    let mut core = restored(kept());
    core.submit(request(1, text(1))).expect("room");
    assert_eq!(core.disk_orders().len(), 4);
    assert_eq!(core.plan(GROUP, Micros(1_000)), None);
    let until = core.next_deadline().expect("the wait has an end");
    assert_eq!(core.plan(GROUP, Micros(until.0 - 1)), None);
    let plan = core.plan(GROUP, until).expect("it goes on without");
    assert_eq!((plan.rows[0].start, plan.rows[0].count), (0, 17));
    commit(&mut core, GROUP, &plan, STOP, 0);
    let waited = told(&mut core).waited;
    assert_eq!(waited.micros(Wait::Disk), until.0 - 1_000, "as seen at its first look");
    assert_eq!(core.counts().waited, waited, "whoever has ended counts");
    assert_eq!((core.counts().host_blocks_held, core.next_deadline()), (4, None), "the disk may still write there");
}

#[test]
fn one_read_that_is_slow_is_not_the_last() {
    let mut entries = Vec::new();
    let mut before = core(32, CoreConfig { disk_places: 16, ..config() });
    compute(&mut before, 1..4, text);
    while serve(&mut before, &mut entries) > 0 {}
    let mut core = restored(entries);
    for id in 100..140 {
        core.submit(request(id, [7, id as TokenId, 9])).expect("room"); // too few for a block
        while let Some(plan) = core.plan(GROUP, Micros(0)) {
            let tokens: u32 = plan.rows.iter().map(|row| row.count).sum();
            commit(&mut core, GROUP, &plan, STOP, 10 + tokens * 50);
        }
    }
    core.submit(request(1, text(1))).expect("room");
    let slow = core.disk_orders();
    assert_eq!(slow.len(), 4);
    core.tick(Micros(5_000_000));
    for order in slow {
        let DiskOrder::Read { place, .. } = order else { panic!("{order:?}") };
        core.disk_done(place, Ok(()));
    }
    let read_again = (0..1_000).find(|_| {
        core.submit(request(2, text(2))).expect("room");
        let is_read = !core.disk_orders().is_empty();
        core.abort(RequestId(2));
        is_read
    });
    assert!(read_again.is_some_and(|refused| refused > 0), "{read_again:?}");
}

#[test]
fn what_is_damaged_or_cannot_be_read_is_computed_and_forgotten() {
    for fault in [DiskFault::Damaged, DiskFault::Failed] {
        let mut core = restored(kept());
        core.submit(request(1, text(1))).expect("room");
        for (order, result) in core.disk_orders().into_iter().zip([Ok(()), Ok(()), Err(fault), Ok(())]) {
            let DiskOrder::Read { place, .. } = order else { panic!("{order:?}") };
            core.disk_done(place, result);
            core.check();
        }
        let plan = step(&mut core, STOP);
        assert_eq!((plan.loads.len(), plan.rows[0].start), (2, 8));
        assert_eq!((core.counts().disk_blocks, core.counts().host_blocks_held), (3, 0));
    }
}

#[test]
fn entries_that_are_not_what_they_say_are_erased() {
    let spoil: [fn(&mut DiskEntry); 5] = [
        |entry| entry.tokens[1] += 1,
        |entry| entry.key.0[3] ^= 1,
        |entry| entry.parent = None,
        |entry| entry.tokens = [1, 2, 3].into(),
        |entry| entry.place = DiskPlace(16),
    ];
    for spoil in spoil {
        let mut entries = kept();
        spoil(&mut entries[2]);
        let place = entries[2].place;
        let mut core = restored(entries);
        assert_eq!(core.counts().disk_blocks, 3);
        assert_eq!(core.disk_orders(), [DiskOrder::Erase { place }]);
        core.submit(request(1, text(1))).expect("room");
        assert_eq!(core.disk_orders().len(), 2, "those before it are of use");
    }
    let mut other_salt = kept();
    other_salt.iter_mut().for_each(|entry| entry.salt = 5);
    assert_eq!(restored(other_salt).counts().disk_blocks, 3, "the first one's key has the salt in it");
    let mut core = Core::new(CoreConfig { disk_places: 16, hash_key: [3, 4], ..config() });
    core.restore_disk(kept());
    assert_eq!((core.counts().disk_blocks, core.disk_orders().len()), (0, 4), "another secret, other keys");
}

#[test]
fn what_one_that_is_not_trusted_has_found_is_found_in_no_tier_and_what_was_under_way_comes_to_nothing() {
    for is_written in [true, false] {
        let config = CoreConfig { disk_places: 16, tells_cache_changes: true, ..config() };
        let (mut core, mut disk) = (core(32, config), Vec::new());
        compute(&mut core, 1..3, text);
        let writes = if is_written { Vec::new() } else { core.disk_orders() };
        while is_written && serve(&mut core, &mut disk) > 0 {}
        core.submit(request(3, text(1))).expect("room");
        assert_eq!(step(&mut core, 50).rows[0].start, 16);
        core.cache_changes(GROUP);
        core.withdraw(RequestId(3), Trust::None);
        core.check();
        let told = core.cache_changes(GROUP);
        let removed = |medium| {
            let is_there =
                |change: &&CacheChange| matches!(change, CacheChange::Removed { medium: its, .. } if *its == medium);
            told.iter().filter(is_there).count()
        };
        let of_disk = if is_written { 4 } else { 0 };
        let media = [Medium::Device, Medium::Host, Medium::Disk];
        assert_eq!((media.map(removed), told.len()), ([4, 4, of_disk], 8 + of_disk));
        assert_eq!((core.counts().host_blocks_findable, core.counts().disk_blocks), (4, of_disk), "the other text");
        for order in writes {
            let DiskOrder::Write { place, .. } = order else { panic!("{order:?}") };
            core.disk_done(place, Ok(()));
            core.check();
        }
        while serve(&mut core, &mut disk) > 0 {}
        assert_eq!((core.counts().disk_blocks, core.counts().host_blocks_held), (4, 0), "each of the other text");
        if is_written {
            assert!(disk.len() == 4 && disk.iter().all(|entry| entry.tokens[0] >= 2_000), "the files are gone");
        }
        core.abort(RequestId(3));
        core.submit(request(4, text(1))).expect("room");
        core.submit(request(5, text(2))).expect("room");
        assert_eq!(step(&mut core, 50).rows.iter().map(|row| row.start).collect::<Vec<_>>(), [0, 16]);
    }
}

#[test]
fn what_another_one_is_bringing_back_of_a_chain_that_is_not_trusted_is_not_found_when_it_is_there() {
    for is_there in [false, true] {
        let mut core = core(32, config());
        core.add_group(OTHER, 32, true);
        compute(&mut core, 1..2, text);
        for id in 10..15 {
            core.submit(request(id, text(1).into_iter().chain([id as TokenId]))).expect("room");
        }
        let here = core.plan(GROUP, Micros(0)).expect("those that find it");
        let there = core.plan(OTHER, Micros(0)).expect("the one for which there is no slot");
        assert_eq!((there.admits.len(), there.loads.len()), (1, 4));
        if is_there {
            commit(&mut core, OTHER, &there, 50, 0);
        }
        core.withdraw(here.admits[0].request, Trust::None);
        core.check();
        if !is_there {
            commit(&mut core, OTHER, &there, 50, 0);
        }
        commit(&mut core, GROUP, &here, 50, 0);
        (10..15).for_each(|id| core.abort(RequestId(id)));
        run(&mut core, GROUP);
        run(&mut core, OTHER);
        assert_eq!(core.counts().host_blocks_findable, 0, "nor saved once more");
        core.submit(request(20, text(1))).expect("room");
        let plans = [run(&mut core, GROUP), run(&mut core, OTHER)].concat();
        assert_eq!(plans[0].rows[0].start, 0);
    }
}

#[test]
fn a_file_that_was_forgotten_while_it_was_to_be_read_is_gone_after_a_clear() {
    let mut core = restored(kept());
    core.submit(request(1, text(1))).expect("room"); // its reads are ordered and not given
    core.withdraw(RequestId(1), Trust::None);
    core.clear_tiers();
    core.check();
    let orders = core.disk_orders();
    assert!(orders.len() == 4 && orders.iter().all(|order| matches!(order, DiskOrder::Erase { .. })), "{orders:?}");
}

#[test]
fn after_a_clear_nothing_is_found_and_what_was_under_way_comes_to_nothing() {
    let limits = Limits { loads: 1, ..config().limits };
    let mut core = core(6, CoreConfig { limits, disk_places: 16, ..config() });
    compute(&mut core, 1..4, text);
    let writes = core.disk_orders();
    core.submit(request(4, text(1))).expect("room");
    let loading = core.plan(GROUP, Micros(0)).expect("one load of four");
    core.clear_tiers();
    core.check();
    assert_eq!((core.counts().host_blocks_findable, core.counts().disk_blocks), (0, 0));
    commit(&mut core, GROUP, &loading, STOP, 0);
    assert_eq!(core.counts().replayed, 1);
    for order in writes {
        let DiskOrder::Write { place, .. } = order else { panic!("{order:?}") };
        core.disk_done(place, Ok(()));
        core.check();
    }
    assert_eq!((core.counts().disk_blocks, core.counts().host_blocks_held), (0, 0));
    assert!(core.disk_orders().iter().all(|order| matches!(order, DiskOrder::Erase { .. })));
    assert_eq!(step(&mut core, STOP).rows[0].start, 0, "it computes what it was loading");
}

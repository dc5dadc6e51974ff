//! What is read ahead from disk: how much of it at once, and who waits for it.

#[allow(dead_code, reason = "what is drawn here ends all")]
mod small;

use pelton_core::{Core, CoreConfig, DiskEntry, DiskOrder, Limits, Micros, Plan, RequestId, TokenId};
use small::{GROUP, STOP, commit, request};

fn config() -> CoreConfig {
    let limits = Limits { saves: 8, loads: 8, ..small::config().limits };
    CoreConfig { limits, host_blocks: 32, disk_places: 16, ..small::config() }
}

fn core(config: CoreConfig) -> Core {
    let mut core = Core::new(config);
    core.add_group(GROUP, 32, true);
    core
}

/// A text that fills 4 blocks and no other number has.
fn text(of: u64) -> Vec<TokenId> {
    (0..17).map(|at| 1_000 * of as TokenId + at).collect()
}

fn run(core: &mut Core, took_us: impl Fn(&Plan) -> u32) {
    while let Some(plan) = core.plan(GROUP, Micros(0)) {
        let results = pelton_core::StepResults { took_us: took_us(&plan), ..small::all_draw(&plan, STOP) };
        core.commit(GROUP, results).expect("results of the step that is due");
        core.check();
    }
}

/// A disk with so many texts on it, as an earlier life has left it.
fn kept(texts: u64) -> Vec<DiskEntry> {
    let (mut core, mut kept) = (core(config()), Vec::new());
    for id in 1..=texts {
        core.submit(request(id, text(id))).expect("room");
        run(&mut core, |_| 0);
    }
    while core.has_disk_orders() {
        for order in core.disk_orders() {
            let DiskOrder::Write { place, key, parent, tokens, salt, .. } = order else { panic!("{order:?}") };
            kept.push(DiskEntry { place, key, parent, tokens, salt, last_used: kept.len() as u64 });
            core.disk_done(place, Ok(()));
        }
    }
    kept
}

fn restored(texts: u64, host_blocks: u32) -> Core {
    let mut core = core(CoreConfig { host_blocks, ..config() });
    core.restore_disk(kept(texts));
    assert_eq!(core.counts().disk_blocks as u64, 4 * texts);
    core
}

#[test]
fn all_reads_together_hold_half_of_the_hosts_memory_at_most_and_others_go_on() {
    let mut core = restored(3, 10);
    for id in 1..=3 {
        core.submit(request(id, text(id))).expect("room");
        core.check();
    }
    let reads = core.disk_orders(); // from now on the disk hangs
    assert_eq!((reads.len(), core.counts().host_blocks_held), (5, 5), "four for the first one, one for the second");
    let plan = core.plan(GROUP, Micros(0)).expect("the third one waits for nothing");
    let admitted: Vec<u64> = plan.admits.iter().map(|admit| admit.request.0).collect();
    assert_eq!((admitted, plan.rows[0].start, plan.rows[0].count), (vec![3], 0, 17));
    commit(&mut core, &plan, STOP);
    run(&mut core, |_| 0);
    assert_eq!((core.counts().saves, core.counts().host_blocks_held), (4, 5), "what it has computed is saved");
    core.submit(request(4, text(2))).expect("room");
    assert!(core.disk_orders().iter().all(|order| !matches!(order, DiskOrder::Read { .. })), "nor is more read later");
    for order in reads {
        let DiskOrder::Read { place, .. } = order else { panic!("{order:?}") };
        core.disk_done(place, Ok(()));
        core.check();
    }
    core.submit(request(5, text(2).into_iter().take(9))).expect("room");
    assert_eq!(core.disk_orders().len(), 1, "it has answered: the second block of two is read");
}

#[test]
fn nobody_waits_for_what_another_one_has_waited_for_in_vain() {
    let mut core = restored(1, 32);
    core.submit(request(1, text(1))).expect("room");
    assert_eq!(core.disk_orders().len(), 4); // and it hangs
    let until = core.next_deadline().expect("the wait has an end");
    core.abort(RequestId(1));
    core.tick(until);
    core.submit(request(2, text(1))).expect("room");
    let plan = core.plan(GROUP, until).expect("it is computed at once");
    assert_eq!((plan.rows[0].start, plan.rows[0].count), (0, 17));
}

#[test]
fn a_read_takes_until_it_is_answered_be_nothing_else_done_meanwhile() {
    let mut core = restored(2, 32);
    for id in 100..140 {
        core.submit(request(id, [7, id as TokenId, 9])).expect("room"); // too few for a block
        run(&mut core, |plan| 10 + plan.rows.iter().map(|row| row.count).sum::<u32>() * 50);
    }
    core.submit(request(1, text(1))).expect("room");
    let slow = core.disk_orders();
    assert_eq!(slow.len(), 4);
    core.clock(Micros(900_000)); // the engine has slept
    for order in slow {
        let DiskOrder::Read { place, .. } = order else { panic!("{order:?}") };
        core.disk_done(place, Ok(()));
    }
    core.submit(request(2, text(2))).expect("room");
    assert!(core.disk_orders().is_empty(), "it is computed sooner");
}

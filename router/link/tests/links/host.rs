//! Host memory: it outlives workers, and no lost worker touches it.

use std::{sync::Arc, time::Duration};

use pelton_frame::{Load, Save};
use pelton_link::{HostShare, LinkOptions};
use rustix::process::{Signal, kill_process};

use crate::{
    neighbour::Home,
    rig::{Attached, Rig, is_gone, spawned, wait_for_end},
    worker::{BLOCK_BYTES, FAULTY_STEP},
};

fn with_host(mut options: LinkOptions) -> LinkOptions {
    options.host = Some(Arc::new(HostShare::new(8 * BLOCK_BYTES as u64)));
    options
}

/// Until the worker is in that step: one that is given up before lets go in good order.
fn until_the_faulty_step(worker: &Attached) {
    let (host, mut bytes) = (worker.host.clone().expect("it was handed over"), Vec::new());
    while bytes != [1; BLOCK_BYTES] {
        host.read(1, &mut bytes);
        std::thread::yield_now();
    }
}

#[test]
fn what_a_killed_worker_has_saved_the_next_one_loads() {
    let rig = Rig::start(with_host(spawned("")));
    let mut first = rig.attached();
    let host = first.host.clone().expect("it was handed over");
    assert_eq!(host.blocks(), 8);
    first.move_blocks(&[Save { block: 5, host_block: 7 }, Save { block: 6, host_block: 0 }], &[]);
    kill_process(first.pid(), Signal::KILL).unwrap();
    rig.lost();
    let mut second = rig.attached();
    assert!(Arc::ptr_eq(&host, second.host.as_ref().expect("it was handed over again")));
    second.move_blocks(&[], &[Load { host_block: 7, block: 5 }, Load { host_block: 0, block: 6 }]);
    second.take_steps(3);
}

#[test]
fn a_worker_of_others_is_lost_only_when_it_touches_host_memory_no_more() {
    let home = Home::new("fenced");
    let _worker = home.start_with("saves when it is given up");
    let rig = Rig::start(with_host(home.link()));
    let mut worker = rig.attached();
    for token in 1..=FAULTY_STEP {
        worker.submit(token as u32).unwrap();
    }
    until_the_faulty_step(&worker);
    rig.link.replace("garbage".to_owned());
    assert_eq!(rig.lost(), (1, "garbage".to_owned()));
    // Its last step wrote after it was given up, and before anybody was told of the loss.
    let (host, mut bytes) = (worker.host.clone().expect("it was handed over"), Vec::new());
    host.read(0, &mut bytes);
    assert_eq!(bytes, [77; BLOCK_BYTES]);
    assert!(!is_gone(worker.pid()), "it is not ours to end");
    rig.attached().take_steps(1);
}

#[test]
fn a_router_that_goes_kills_no_worker_of_others() {
    let home = Home::new("left");
    let _worker = home.start_with("is stuck in a step");
    let rig = Rig::start(with_host(home.link()));
    let mut worker = rig.attached();
    for token in 1..=FAULTY_STEP {
        worker.submit(token as u32).unwrap();
    }
    let _results = (worker.result(), worker.result());
    until_the_faulty_step(&worker);
    rig.link.shutdown(Duration::ZERO);
    assert!(!is_gone(worker.pid()));
}

#[test]
fn a_worker_of_others_that_does_not_let_go_of_host_memory_is_killed() {
    let home = Home::new("stuck");
    let _worker = home.start_with("is stuck in a step");
    let mut options = with_host(home.link());
    options.deadlines.let_go = Duration::from_millis(100);
    let rig = Rig::start(options);
    let mut worker = rig.attached();
    for token in 1..=FAULTY_STEP {
        worker.submit(token as u32).unwrap();
    }
    let _results = (worker.result(), worker.result());
    until_the_faulty_step(&worker);
    rig.link.replace("it is stuck".to_owned());
    assert_eq!(rig.lost().0, 1);
    wait_for_end(worker.pid());
}

//! Links with real processes, real sockets and real deaths. The other side is `worker.rs`: the worker
//! of `pelton-link-testing`, which draws tokens by a formula. It is this binary again, started as a link starts any worker.
#![allow(missing_docs)]

mod rig;
mod worker;

mod elsewhere;
mod host;
mod neighbour;
mod spawned;

#[test]
#[ignore = "the worker of these tests"]
fn worker_process() {
    worker::main();
}

#[test]
#[ignore = "a router that is killed by these tests"]
fn router_process() {
    spawned::router_that_is_killed();
}

//! Engines whose workers die, hang and lie. Every request's tokens are known beforehand, and no client may see that
//! anything has happened. The workers are this binary again: real processes, real frames, scripted deeds.
#![allow(missing_docs)]

mod model;
mod rig;
mod worker;

mod bugs;
mod dumps;
mod garbage;
mod losses;
mod plans;
mod suspects;
mod tiers;
mod vectors;

#[test]
#[ignore = "the worker of these tests"]
fn worker_process() {
    worker::main();
}

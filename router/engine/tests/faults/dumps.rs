//! What the log keeps of a worker that was lost: a line for each step that it had, and the name of the deadline.

use std::{
    io::{self, Write},
    sync::{Mutex, Once, PoisonError},
};

use pelton_engine::TierOptions;
use serde_json::{Value, json};

use crate::{
    model::answer,
    rig::{Case, POISON, Rig, play, poisoned_later},
    worker::{Deed, Fault},
};

/// What every test of this binary logs, a JSON object a line. The tests here tell their own lines by the tokens' places:
/// no other test has a request of this length as its engine's first one.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lost steps in which `requests` were computed.
fn dumped(requests: &str) -> Vec<Value> {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let lines =
        serde_json::Deserializer::from_slice(&log).into_iter::<Value>().map(|line| line.expect("a line is JSON"));
    let mut fields = lines.map(|mut line| line["fields"].take());
    fields.by_ref().filter(|fields| fields["requests"] == requests).collect()
}

/// Hangs with a single request, and looks for the steps that were in flight then.
#[track_caller]
fn are_dumped(fault: Fault, case: &Case, wait: &str, steps: &[(u64, &str, u32, u32)]) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing_subscriber::fmt().json().with_max_level(tracing::Level::WARN).with_writer(|| Log).init());
    // Without host memory: a replay computes all of it again, and its steps are known beforehand.
    let plays = [play(fault, if case.is_poisonous() { u32::MAX } else { 1 })];
    let rig = Rig::start_with(&plays, "/models/none".as_ref(), TierOptions::default());
    for outcome in rig.serve(std::slice::from_ref(case)) {
        if case.is_poisonous() {
            outcome.failure(case);
        } else {
            outcome.is_undisturbed(case);
        }
    }
    rig.stop();
    for &(step, requests, tokens, blocks) in steps {
        let lines = dumped(requests);
        assert!(!lines.is_empty(), "{requests}");
        for mut line in lines {
            assert!(line["age_ms"].take().is_u64());
            let expected = json!({
                "message": "a step is lost with its worker", "group": 0, "step": step, "age_ms": null, "rows": 1,
                "tokens": tokens, "blocks": blocks, "requests": requests,
                "reason": format!("the wait {wait} s"),
            });
            assert_eq!(line, expected);
        }
    }
}

#[test]
fn a_first_step_that_hangs_is_written_down_with_the_one_behind_it() {
    let case = Case::new(answer(&[7], 64), 5);
    let steps = [(1, "1[0..64]", 64, 16), (2, "1[64..65]", 1, 17)];
    are_dumped(Fault::At(1, Deed::Hang), &case, "`first-step` has passed its deadline of 5", &steps);
}

#[test]
fn a_later_step_that_hangs_is_written_down_with_the_one_behind_it() {
    let case = Case::new(answer(&[7], 62), 5);
    let steps = [(2, "1[62..63]", 1, 16), (3, "1[63..64]", 1, 16)];
    are_dumped(Fault::At(2, Deed::Hang), &case, "`step` has passed its deadline of 3", &steps);
}

#[test]
fn the_first_step_of_a_later_worker_has_a_shorter_deadline_than_one_that_may_compile() {
    let case = poisoned_later(40);
    let drawn = 1 + case.tokens().iter().position(|token| *token == POISON).expect("it is poisonous") as u32;
    let known = 40 + drawn;
    let replayed = format!("1[0..{known}]");
    let steps = [(1, replayed.as_str(), known, known.div_ceil(4))];
    are_dumped(Fault::Of(POISON, Deed::Hang), &case, "`first-step` has passed its deadline of 3", &steps);
}

//! What the log keeps of a worker that was lost: a line for each step that it had, and the name of the deadline.

use std::{
    io::{self, Write},
    sync::{Mutex, Once, PoisonError},
};

use serde_json::{Value, json};

use crate::{
    model::answer,
    rig::{Case, Rig, play},
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

/// Hangs in `step` with a single request, and looks for the steps that were in flight then.
#[track_caller]
fn is_dumped(prompt: u32, step: u64, wait: &str, steps: [(u64, &str, u32, u32); 2]) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing_subscriber::fmt().json().with_max_level(tracing::Level::WARN).with_writer(|| Log).init());
    let rig = Rig::start(&[play(Fault::At(step, Deed::Hang), 1)]);
    let case = Case::new(answer(&[7], prompt), 5);
    for outcome in rig.serve(std::slice::from_ref(&case)) {
        outcome.is_undisturbed(&case);
    }
    rig.stop();
    let reason = format!("the wait `{wait}` has passed its deadline of 3 s");
    for (step, requests, tokens, blocks) in steps {
        let [mut line] = <[Value; 1]>::try_from(dumped(requests)).expect("one line for each step");
        assert!(line["age_ms"].take().is_u64());
        let expected = json!({
            "message": "a step is lost with its worker", "group": 0, "step": step, "age_ms": null, "rows": 1,
            "tokens": tokens, "blocks": blocks, "requests": requests, "reason": reason,
        });
        assert_eq!(line, expected);
    }
}

#[test]
fn a_first_step_that_hangs_is_written_down_with_the_one_behind_it() {
    is_dumped(64, 1, "first-step", [(1, "1[0..64]", 64, 16), (2, "1[64..65]", 1, 17)]);
}

#[test]
fn a_later_step_that_hangs_is_written_down_with_the_one_behind_it() {
    is_dumped(62, 2, "step", [(2, "1[62..63]", 1, 16), (3, "1[63..64]", 1, 16)]);
}

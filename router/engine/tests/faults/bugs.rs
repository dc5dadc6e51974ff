//! Assertions that fire on the engine thread: the first is survived, the second ends the engine, and nothing hangs.

use pelton_engine::{Answer, Failure, Output, Phase};

use crate::{
    rig::{Case, Outcome, Rig, innocents, play},
    worker::Fault,
};

fn submitted(rig: &Rig, cases: &[Case]) -> Vec<Answer> {
    let mut answers: Vec<Answer> = cases.iter().map(|case| rig.submit(case)).collect();
    // Some run and some wait when the first token is there.
    assert!(matches!(answers[0].blocking_next(), Some(Output::Admitted { .. })));
    answers
}

#[test]
fn after_an_assertion_all_requests_go_on_from_the_journal() {
    let rig = Rig::start(&[play(Fault::Nowhere, 0)]);
    let cases = innocents(100);
    let answers = submitted(&rig, &cases);
    rig.engine.plant_bug();
    for (case, answer) in cases.iter().zip(answers) {
        Outcome::of(answer).is_undisturbed(case);
    }
    let prompts: usize = cases.iter().map(|case| case.prompt.len()).sum();
    let stats = rig.stop();
    assert_eq!((stats.bugs, stats.worker_restarts, stats.queue.requests), (1, 1, 0));
    assert_eq!(stats.prompt_tokens, prompts as u64, "counters go on where they were");
}

#[test]
fn a_second_assertion_within_a_minute_ends_the_engine_with_an_error_to_every_client() {
    let rig = Rig::start(&[play(Fault::Nowhere, 0)]);
    let cases = innocents(100);
    let answers = submitted(&rig, &cases);
    rig.engine.plant_bug();
    rig.engine.plant_bug();
    all_hear_of_the_end(&rig, answers, "two internal errors within a minute");
    assert_eq!(rig.stop().bugs, 2);
}

#[test]
fn an_assertion_that_fires_again_while_requests_are_replayed_ends_the_engine_too() {
    let rig = Rig::start(&[play(Fault::Nowhere, 0)]);
    let cases = innocents(20);
    let mut answers = submitted(&rig, &cases);
    answers.push(rig.submit(&Case::new(vec![1], 0))); // no server lets this pass: the schedule asserts that it is not
    all_hear_of_the_end(&rig, answers, "while its requests were replayed");
}

#[track_caller]
fn all_hear_of_the_end(rig: &Rig, answers: Vec<Answer>, words: &str) {
    for answer in answers {
        // What had ended before keeps its answer.
        if let Err(failure) = Outcome::of(answer).end {
            assert!(matches!(&failure, Failure::Internal(message) if message.contains(words)), "{failure}");
        }
    }
    rig.wait_for(|phase| matches!(phase, Phase::Failed { reason } if reason.contains(words)));
}

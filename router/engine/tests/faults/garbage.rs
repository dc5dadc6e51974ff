//! Workers that answer what they should not: it is counted, it costs the worker its life, and no client sees it.

use pelton_engine::BadFrames;

use crate::{
    rig::{Case, POISON, Rig, innocents, play},
    worker::{Deed, Fault},
};

/// Lies once, in a first step or later, and the counters are those that are expected.
#[track_caller]
fn survived(deed: Deed, is_expected: fn(BadFrames) -> bool) {
    for step in [1, 6] {
        let rig = Rig::start(&[play(Fault::At(step, deed), 2)]);
        let cases = innocents(60);
        for (case, outcome) in cases.iter().zip(rig.serve(&cases)) {
            outcome.is_undisturbed(case);
        }
        let stats = rig.stop();
        assert!(is_expected(stats.bad_frames), "{deed:?} in step {step}: {:?}", stats.bad_frames);
        assert_eq!((stats.bad_frames.total(), stats.worker_restarts, stats.condemned), (2, 2, 0));
    }
}

#[test]
fn a_frame_that_fails_its_check_is_counted_and_survived() {
    survived(Deed::ForgeChecksum, |bad| bad.checksum == 2);
}

#[test]
fn a_result_for_an_old_step_is_counted_and_survived() {
    survived(Deed::ForgeStep, |bad| bad.stale == 2);
}

#[test]
fn a_result_with_another_number_of_rows_is_counted_and_survived() {
    survived(Deed::ForgeRows, |bad| bad.contents == 2);
}

#[test]
fn a_duplicate_result_is_counted_and_survived() {
    // It is one too many, or it stands where the next step's is due, as the engine happens to have sent one ahead.
    survived(Deed::Duplicate, |bad| bad.unasked + bad.stale == 2);
}

#[test]
fn a_token_that_is_none_is_counted_and_survived() {
    survived(Deed::DrawNonsense, |bad| bad.contents == 2);
}

#[test]
fn a_step_that_the_worker_could_not_compute_is_counted_and_survived() {
    survived(Deed::Fail, |bad| bad.failed == 2);
}

#[test]
fn logits_that_are_not_finite_cost_the_worker_its_life_once_and_then_their_request_alone() {
    let rig = Rig::start(&[play(Fault::Of(POISON, Deed::NotFinite), u32::MAX)]);
    let mut cases = innocents(60);
    for at in [3, 20, 21] {
        cases.insert(at, Case::new(vec![5, at as u32, POISON, 6], 10));
    }
    for (case, outcome) in cases.iter().zip(rig.serve(&cases)) {
        if case.is_poisonous() {
            assert_eq!(outcome.failure(case), "the model's logits are not finite for this request");
        } else {
            outcome.is_undisturbed(case);
        }
    }
    let stats = rig.stop();
    assert_eq!((stats.worker_restarts, stats.bad_frames.contents), (1, 1), "the second worker has done nothing wrong");
}

#[test]
fn logits_that_a_new_worker_makes_finite_are_no_error_to_anybody() {
    let rig = Rig::start(&[play(Fault::Of(POISON, Deed::NotFinite), 1)]);
    let mut cases = innocents(60);
    cases.insert(20, Case::new(vec![5, 7, POISON, 6], 10));
    for (case, outcome) in cases.iter().zip(rig.serve(&cases)) {
        outcome.is_undisturbed(case);
    }
    assert_eq!(rig.stop().worker_restarts, 1);
}

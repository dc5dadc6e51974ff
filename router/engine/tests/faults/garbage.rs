//! Workers that answer what they should not: it is counted, it costs the worker its life, and no client sees it.

use pelton_engine::{BadFrames, Stats};

use crate::{
    rig::{Case, Outcome, POISON, Rig, innocents, play, poisoned_later},
    worker::{Deed, Fault},
};

/// Lies once in each of two lives, in a first step or later, and the counters are those that are expected.
#[track_caller]
fn survived(deed: Deed, is_expected: fn(BadFrames) -> bool) {
    survived_by([2, 2], deed, is_expected);
}

/// The same, by so many restarts, for the first step and for the later one.
#[track_caller]
fn survived_by(restarts: [u64; 2], deed: Deed, is_expected: fn(BadFrames) -> bool) {
    for (step, restarts) in [1, 6].into_iter().zip(restarts) {
        let rig = Rig::start(&[play(Fault::At(step, deed), 2)]);
        let cases = innocents(60);
        for (case, outcome) in cases.iter().zip(rig.serve(&cases)) {
            outcome.is_undisturbed(case);
        }
        let stats = rig.stop();
        assert!(is_expected(stats.bad_frames), "{deed:?} in step {step}: {:?}", stats.bad_frames);
        assert_eq!((stats.bad_frames.total(), stats.worker_restarts, stats.condemned), (2, restarts, 0));
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
fn what_is_not_finite_in_all_rows_of_a_step_is_counted_and_survived() {
    survived_by([2, 1], Deed::NotFinite, |bad| bad.contents == 2); // one that has been sound is not replaced twice a minute
}

/// What a request fails with whose logits are never finite.
const NEVER_FINITE: &str = "the model's logits are not finite for this request, 3 times when it was computed alone";

/// With so many workers, each of them answers so for the poisonous token.
fn not_finite(workers: usize, poisonous: &[(usize, Case)]) -> Stats {
    let rig = Rig::start(&vec![play(Fault::Of(POISON, Deed::NotFinite), u32::MAX); workers]);
    let mut cases = innocents(60);
    for (at, case) in poisonous {
        cases.insert(*at, case.clone());
    }
    for (case, outcome) in cases.iter().zip(rig.serve(&cases)) {
        if case.is_poisonous() {
            assert_eq!(outcome.failure(case), NEVER_FINITE);
        } else {
            outcome.is_undisturbed(case);
        }
    }
    let stats = rig.stop();
    assert_eq!((stats.condemned as usize, stats.suspects, stats.withheld), (poisonous.len(), 0, 0));
    stats
}

#[test]
fn logits_that_are_never_finite_cost_one_worker_its_life_and_then_their_requests_alone_an_error() {
    let poison = |at: usize| (at, Case::new(vec![5, at as u32, 6, POISON], 10)); // it stands in the row that draws
    let stats = not_finite(1, &[poison(3), poison(20), poison(21)]);
    assert_eq!(stats.worker_restarts, 1, "the second worker has done nothing wrong");
    // Each in company at least once but for two that may be flagged together, and three times alone.
    assert!((11..=12).contains(&stats.bad_frames.contents), "{:?}", stats.bad_frames);
}

/// A card that is bad, and its successor that is, too.
#[test]
fn workers_that_compute_nothing_that_is_finite_are_replaced_and_no_request_is_to_blame() {
    let rig = Rig::start(&[play(Fault::Always(Deed::NotFinite), 2)]);
    let cases = innocents(40);
    for (case, outcome) in cases.iter().zip(rig.serve(&cases)) {
        outcome.is_undisturbed(case);
    }
    let stats = rig.stop();
    assert_eq!((stats.worker_restarts, stats.condemned), (2, 0));
}

#[test]
fn a_request_that_is_alone_has_three_workers_before_it_is_to_blame() {
    let rig = Rig::start(&[play(Fault::Of(POISON, Deed::NotFinite), u32::MAX)]);
    let case = Case::new(vec![POISON], 3);
    assert_eq!(Outcome::of(rig.submit(&case)).failure(&case), NEVER_FINITE);
    let stats = rig.stop();
    assert_eq!((stats.worker_restarts, stats.condemned), (2, 1), "the last one lives on");
}

#[test]
fn a_request_whose_logits_come_to_be_not_finite_has_the_tokens_before_and_costs_no_second_worker_its_life() {
    let stats = not_finite(2, &[(30, poisoned_later(6))]);
    assert_eq!(stats.worker_restarts, 1, "once, so that another worker has a say");
}

#[test]
fn logits_that_a_new_worker_makes_finite_are_no_error_to_anybody() {
    let rig = Rig::start(&[play(Fault::Of(POISON, Deed::NotFinite), 1)]);
    let mut cases = innocents(60);
    cases.insert(20, Case::new(vec![5, 7, 6, POISON], 10));
    for (case, outcome) in cases.iter().zip(rig.serve(&cases)) {
        outcome.is_undisturbed(case);
    }
    assert_eq!(rig.stop().worker_restarts, 1);
}

#[test]
fn a_request_whose_logits_are_not_finite_is_computed_again_without_what_the_cache_holds() {
    // Host memory outlives the worker: what it holds would be found again by every worker that comes.
    let rig = Rig::start(&[play(Fault::OfCached(POISON, Deed::NotFinite), u32::MAX)]);
    let prefix = innocents(40).pop().expect("40 of them").prompt;
    let prefix = prefix[..prefix.len().min(40)].to_vec();
    let before = Case::new(prefix.clone(), 5);
    let of_prefix = |seed| Case::new([&prefix[..], &[seed, POISON]].concat(), 6);
    for case in [&before, &of_prefix(0), &before, &of_prefix(1), &before, &of_prefix(2), &of_prefix(3)] {
        Outcome::of(rig.submit(case)).is_undisturbed(case);
    }
    let stats = rig.stop();
    assert_eq!((stats.worker_restarts, stats.condemned), (1, 0));
    assert_eq!(stats.bad_frames.contents, 3, "each was wrong once, with what it had found; the last one found nothing");
}

//! Requests that kill whatever worker computes them: they are found, and their neighbours see nothing.

use crate::{
    rig::{Case, Outcome, POISON, Rig, dies_of_poison, innocents, play, poisoned_later},
    worker::{Deed, Fault},
};

#[track_caller]
fn found(workers: usize, guilty: &[(usize, Case)]) {
    let rig = Rig::start(&vec![dies_of_poison(); workers]);
    let mut cases = innocents(90);
    for (at, case) in guilty {
        assert!(case.is_poisonous());
        cases.insert(*at, case.clone());
    }
    for (case, outcome) in cases.iter().zip(rig.serve(&cases)) {
        if case.is_poisonous() {
            let message = outcome.failure(case);
            assert!(message.contains("this request alone") && !message.contains("signal"), "{message}");
        } else {
            outcome.is_undisturbed(case);
        }
    }
    let stats = rig.stop();
    assert_eq!((stats.condemned, stats.suspects, stats.withheld), (guilty.len() as u64, 0, 0));
    // For each: once among all, down the halves of 16 slots, three times alone; and room for meeting others.
    let deaths_max = guilty.len() * (1 + 4 + 3 + 2 * workers);
    assert!(stats.worker_restarts <= deaths_max as u64, "{} deaths, allowed: {deaths_max}", stats.worker_restarts);
}

#[test]
fn a_request_that_kills_its_worker_is_found_and_refused() {
    found(1, &[(5, Case::new(vec![1, 2, POISON], 10))]);
}

#[test]
fn a_request_that_draws_what_kills_is_refused_with_what_it_has_drawn() {
    found(1, &[(40, poisoned_later(6))]);
}

#[test]
fn several_such_requests_are_found_one_after_the_other() {
    let prompt = |seed| vec![seed, POISON, seed];
    found(
        1,
        &[
            (0, Case::new(prompt(1), 4)),
            (1, Case::new(prompt(2), 4)),
            (50, poisoned_later(6)),
            (80, Case::new(prompt(3), 9)),
        ],
    );
}

#[test]
fn they_are_found_among_two_workers() {
    found(2, &[(5, Case::new(vec![1, 2, POISON], 10)), (30, poisoned_later(6))]);
}

#[test]
fn one_that_is_alone_from_the_start_is_refused_after_three_workers() {
    let rig = Rig::start(&[dies_of_poison()]);
    let case = Case::new(vec![POISON], 3);
    let outcome = rig.serve(std::slice::from_ref(&case));
    assert!(outcome[0].failure(&case).contains("3 workers ended"));
    let after = innocents(5);
    for (case, outcome) in after.iter().zip(rig.serve(&after)) {
        outcome.is_undisturbed(case);
    }
    assert_eq!(rig.stop().worker_restarts, 3);
}

/// Its only step is the one that nobody believes: that step is suspected, though its results were read.
#[test]
fn one_for_which_workers_answer_garbage_is_refused_after_three_of_them() {
    let rig = Rig::start(&[play(Fault::Of(POISON, Deed::DenyToken), u32::MAX)]);
    let case = Case::new(vec![POISON], 1);
    let outcome = rig.serve(std::slice::from_ref(&case));
    assert!(outcome[0].failure(&case).contains("3 workers ended"));
    let after = innocents(5);
    for (case, outcome) in after.iter().zip(rig.serve(&after)) {
        outcome.is_undisturbed(case);
    }
    let stats = rig.stop();
    assert_eq!((stats.worker_restarts, stats.bad_frames.stale), (3, 3));
}

#[test]
fn clients_may_leave_and_come_while_suspects_are_tried() {
    let rig = Rig::start(&[dies_of_poison()]);
    let cases = innocents(60);
    let poisonous = rig.submit(&Case::new(vec![POISON, 1], 5));
    let mut answers: Vec<_> = cases.iter().map(|case| Some(rig.submit(case))).collect();
    rig.wait_for(|phase| *phase != pelton_engine::Phase::Ready);
    for answer in answers.iter_mut().step_by(4) {
        *answer = None; // in the queue, in a step, suspected or withheld
    }
    let late = innocents(20);
    let late_answers: Vec<_> = late.iter().map(|case| rig.submit(case)).collect();
    assert!(Outcome::of(poisonous).end.is_err());
    let stayed = cases.iter().zip(answers).filter_map(|(case, answer)| Some((case, answer?)));
    for (case, answer) in stayed.chain(late.iter().zip(late_answers)) {
        Outcome::of(answer).is_undisturbed(case);
    }
    let stats = rig.stop();
    assert_eq!((stats.condemned, stats.suspects, stats.withheld, stats.queue.requests), (1, 0, 0, 0));
}

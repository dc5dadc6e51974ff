//! Workers that die, hang, are stopped, or come back smaller: no client sees it.

use pelton_engine::{Phase, Stats};

use crate::{
    rig::{Case, Outcome, Rig, innocents, play},
    worker::{Deed, Fault, Play},
};

/// Serves many requests and returns what the engine has counted.
#[track_caller]
fn nobody_sees_it(plays: &[Play]) -> Stats {
    let rig = Rig::start(plays);
    let cases = innocents(100);
    for (case, outcome) in cases.iter().zip(rig.serve(&cases)) {
        outcome.is_undisturbed(case);
    }
    let stats = rig.stop();
    let prompts: usize = cases.iter().map(|case| case.prompt.len()).sum();
    let drawn: u32 = cases.iter().map(|case| case.max_tokens).sum();
    assert_eq!(
        (stats.prompt_tokens, stats.generated_tokens),
        (prompts as u64, drawn.into()),
        "counted once, replayed or not"
    );
    assert_eq!((stats.condemned, stats.suspects, stats.withheld, stats.bugs), (0, 0, 0, 0));
    stats
}

#[test]
fn a_sound_worker_draws_what_is_expected() {
    let stats = nobody_sees_it(&[play(Fault::Nowhere, 0)]);
    assert_eq!((stats.worker_restarts, stats.replayed), (0, 0));
    assert!(stats.cached_tokens > 0, "requests share prefixes, so that a wrong block would show");
}

#[test]
fn who_has_his_answer_finds_it_counted() {
    let rig = Rig::start(&[play(Fault::Nowhere, 0)]);
    let mut drawn = 0;
    for case in innocents(200) {
        Outcome::of(rig.submit(&case)).is_undisturbed(&case);
        drawn += u64::from(case.max_tokens);
        assert_eq!(rig.engine.stats().generated_tokens, drawn);
    }
}

#[test]
fn workers_that_die_in_a_step_are_replaced() {
    // In its first step a worker may have a single request, which the third such death would condemn.
    for (step, deaths) in [(1, 2), (2, 3), (7, 3)] {
        let stats = nobody_sees_it(&[play(Fault::At(step, Deed::Die), deaths)]);
        let Stats { worker_restarts, replayed, overdue_steps, .. } = stats;
        assert_eq!((worker_restarts, overdue_steps, stats.bad_frames.total()), (deaths.into(), 0, 0));
        assert!(replayed > 0);
    }
}

#[test]
fn a_worker_that_hangs_in_a_step_is_replaced_at_its_deadline() {
    for step in [1, 7] {
        let stats = nobody_sees_it(&[play(Fault::At(step, Deed::Hang), 1)]);
        assert_eq!((stats.worker_restarts, stats.overdue_steps), (1, 1));
    }
}

#[test]
fn a_worker_that_is_stopped_is_replaced_at_its_deadline() {
    let stats = nobody_sees_it(&[play(Fault::At(7, Deed::Stop), 1)]);
    assert_eq!((stats.worker_restarts, stats.overdue_steps), (1, 1));
}

#[test]
fn two_workers_may_die_one_while_the_other_serves() {
    // Which of them has come first is chance, but the requests need more steps than two sound lives of four.
    let stats = nobody_sees_it(&[play(Fault::At(5, Deed::Die), 3), play(Fault::At(5, Deed::Die), 3)]);
    assert!(stats.worker_restarts >= 1);
}

#[test]
fn a_worker_that_comes_back_smaller_serves_all_that_still_fit() {
    let smaller = Play { blocks_later: 24, ..play(Fault::At(4, Deed::Die), 1) };
    let stats = nobody_sees_it(&[smaller]);
    assert_eq!((stats.worker_restarts, stats.blocks), (1, 24));
    assert!(stats.preemptions > 0, "it is small enough to be felt");
}

#[test]
fn a_worker_that_cannot_come_back_leaves_its_requests_to_the_others() {
    let gone = Play { blocks_later: 0, ..play(Fault::At(4, Deed::Die), 1) };
    let stats = nobody_sees_it(&[gone, play(Fault::Nowhere, 0)]);
    assert_eq!((stats.worker_restarts, stats.workers, stats.workers_ready, stats.blocks), (1, 2, 1, 256));
}

#[test]
fn the_last_worker_that_cannot_come_back_ends_the_engine_with_its_own_words() {
    let gone = || Play { blocks_later: 0, ..play(Fault::At(2, Deed::Die), 1) };
    let rig = Rig::start(&[gone(), gone()]);
    for (case, outcome) in innocents(20).iter().zip(rig.serve(&innocents(20))) {
        assert!(outcome.end.is_err() || outcome.tokens == case.tokens());
    }
    rig.wait_for(|phase| *phase == Phase::Failed { reason: "the model has gone".to_owned() });
}

#[test]
fn what_fits_no_worker_any_more_is_refused_alone() {
    let smaller = || Play { blocks_later: 24, ..play(Fault::At(4, Deed::Die), 1) };
    let large = Case::new(vec![1; 100], 50); // 38 blocks of 4 tokens
    for (others, at) in [(innocents(30), 7), (Vec::new(), 0)] {
        let rig = Rig::start(&[smaller()]);
        let mut cases = others;
        cases.insert(at, large.clone());
        for (index, (case, outcome)) in cases.iter().zip(rig.serve(&cases)).enumerate() {
            if index == at {
                assert!(outcome.failure(case).contains("needs 38 KV blocks of 4 tokens; the server has 24"));
            } else {
                outcome.is_undisturbed(case);
            }
        }
        rig.stop();
    }
}

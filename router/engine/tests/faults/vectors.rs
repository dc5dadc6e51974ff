//! Models that give vectors: each request gets the one of its own tokens, whatever becomes of the workers.

use pelton_engine::{Goal, Stats};

use crate::{
    model::vector,
    rig::{Case, POISON, Rig, innocents, play},
    worker::{Deed, Fault, Play},
};

/// Requests for vectors.
fn cases(goal: Goal, count: usize) -> Vec<Case> {
    let short = innocents(count).into_iter().map(|case| Case { max_tokens: 0, goal, ..case });
    short.collect()
}

fn giving(of_all: bool, play: Play) -> Play {
    Play { vectors_of_all: Some(of_all), ..play }
}

fn is_poisonous(case: &Case) -> bool {
    case.prompt.contains(&POISON)
}

/// Serves them, each with the vector of its prompt; those with the poison fail with these words.
#[track_caller]
fn served(rig: Rig, cases: &[Case], words: &str) -> Stats {
    for (case, outcome) in cases.iter().zip(rig.serve(cases)) {
        if is_poisonous(case) {
            let failure = outcome.end.expect_err("it is poisonous").to_string();
            assert!(failure.contains(words), "{failure}");
            continue;
        }
        let usage = outcome.end.unwrap_or_else(|failure| panic!("{case:?} failed: {failure}"));
        assert_eq!(outcome.vector.as_deref(), Some(&vector(case.prompt.iter().copied())[..]), "{case:?}");
        assert_eq!((usage.prompt as usize, usage.completion, outcome.tokens.len()), (case.prompt.len(), 0, 0));
    }
    rig.stop()
}

#[test]
fn texts_with_a_common_start_share_it_if_the_last_token_gives_the_vector_and_never_otherwise() {
    for (of_all, goal) in [(false, Goal::VectorOfLast), (true, Goal::VectorOfAll)] {
        let cases = cases(goal, 100);
        let stats = served(Rig::start(&[giving(of_all, play(Fault::Nowhere, 0))]), &cases, "");
        assert_eq!(stats.cached_tokens > 0, !of_all, "{goal:?}");
        assert_eq!((stats.vectors, stats.generated_tokens, stats.bugs), (100, 0, 0));
        assert_eq!((stats.blocks_held, stats.queue.requests), (0, 0));
    }
}

#[test]
fn long_texts_are_cut_into_rows_if_the_last_token_gives_the_vector_and_are_one_otherwise() {
    let long =
        |seed: u32| Case { goal: Goal::VectorOfLast, ..Case::new((0..250).map(|at| at * 7 + seed).collect(), 0) };
    let cases: Vec<Case> =
        (0..5).map(|seed| Case { prompt: long(seed).prompt.iter().map(|t| t % 900).collect(), ..long(seed) }).collect();
    let stats = served(Rig::start(&[giving(false, play(Fault::Nowhere, 0))]), &cases, "");
    assert!(stats.steps >= 4 * 5, "{} steps", stats.steps);
    // Of all tokens: each is one row, of a step that has room for it whatever its budget.
    let cases: Vec<Case> = cases.into_iter().map(|case| Case { goal: Goal::VectorOfAll, ..case }).collect();
    let stats = served(Rig::start(&[giving(true, play(Fault::Nowhere, 0))]), &cases, "");
    assert_eq!(stats.steps, 5);
}

#[test]
fn workers_that_die_or_lie_are_replaced_and_nobody_sees_it() {
    for of_all in [false, true] {
        let goal = if of_all { Goal::VectorOfAll } else { Goal::VectorOfLast };
        for deed in [Deed::Die, Deed::ForgeChecksum, Deed::Fail] {
            let rig = Rig::start(&[giving(of_all, play(Fault::At(3, deed), 2))]);
            let stats = served(rig, &cases(goal, 60), "");
            assert_eq!((stats.worker_restarts, stats.condemned, stats.vectors), (2, 0, 60), "{deed:?}");
        }
    }
}

#[test]
fn a_text_that_kills_workers_is_found_and_refused_alone() {
    let mut cases = cases(Goal::VectorOfAll, 60);
    cases.insert(7, Case { goal: Goal::VectorOfAll, ..Case::new(vec![1, POISON, 2], 0) });
    let rig = Rig::start(&[giving(true, play(Fault::Of(POISON, Deed::Die), u32::MAX))]);
    let stats = served(rig, &cases, "3 workers ended");
    assert_eq!((stats.condemned, stats.suspects, stats.vectors), (1, 0, 60));
}

#[test]
fn a_vector_that_is_not_finite_costs_its_request_alone_in_the_end() {
    let mut cases = cases(Goal::VectorOfLast, 60);
    for at in [3, 20, 21] {
        let prompt = vec![5, at as u32, 6, POISON]; // it stands in the row that gives the vector
        cases.insert(at, Case { goal: Goal::VectorOfLast, ..Case::new(prompt, 0) });
    }
    let rig = Rig::start(&[giving(false, play(Fault::Of(POISON, Deed::NotFinite), u32::MAX))]);
    let stats = served(rig, &cases, "the model's vector is not finite for this request, 3 times");
    assert_eq!(stats.condemned, 3);
}

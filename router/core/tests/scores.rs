//! Prompts that are scored get on slowly: they are in nobody's way, and others are not in theirs.

#[allow(dead_code, reason = "here results tell scores")]
mod small;

use std::collections::BTreeMap;

use pelton_core::{
    Core, CoreConfig, Event, Limits, Micros, NewRequest, RequestId, Sampling, StepResults, StopRule, TokenScore,
};
use small::{GROUP, all_draw, config, request};

/// Steps of 64 tokens, of which 8 are scored.
fn small_core(slots: u32) -> Core {
    let limits = Limits { appends: 4_096, history: 4_096, ..config().limits };
    small::core(4_096, CoreConfig { max_running: slots, max_model_len: 4_096, max_waiting: 1_000, limits, ..config() })
}

fn prompt(id: u64, tokens: u32) -> NewRequest {
    let stop = StopRule { max_tokens: 1, min_tokens: 0, stop_ids: [].into() };
    NewRequest { stop, ..request(id, (0..tokens).map(|at| id as u32 * 10_000 + at)) }
}

fn scored(id: u64, tokens: u32) -> NewRequest {
    NewRequest { sampling: Sampling { prompt_logprobs: Some(0), ..Sampling::greedy() }, ..prompt(id, tokens) }
}

/// One step. How many tokens of each were scored, and who has ended.
fn step(core: &mut Core, told: &mut BTreeMap<RequestId, usize>) -> Vec<u64> {
    let plan = core.plan(GROUP, Micros(0)).expect("there is something to do");
    let scores: u32 = plan.rows.iter().map(|row| row.scores).sum();
    assert!(scores <= 8);
    let scores = vec![TokenScore::default(); scores as usize];
    core.commit(GROUP, StepResults { scores, ..all_draw(&plan, 7) }).expect("results of the step that is due");
    core.check();
    let mut ended = Vec::new();
    for event in core.events() {
        match event {
            Event::Scored { request, scores } => *told.entry(request).or_default() += scores.len(),
            Event::Finished { request, .. } => ended.push(request.0),
            _ => {}
        }
    }
    ended
}

#[test]
fn a_long_one_gets_on_beside_short_ones_that_go_on_coming() {
    let (mut core, mut told, mut next) = (small_core(4), BTreeMap::new(), 10);
    core.submit(scored(1, 400)).expect("it fits");
    step(&mut core, &mut told);
    for steps in 1..=60 {
        for _ in 0..2 {
            core.submit(scored(next, 7)).expect("it fits");
            next += 1;
        }
        if step(&mut core, &mut told).contains(&1) {
            assert_eq!(told[&RequestId(1)], 399);
            assert!(steps >= 49, "eight a step");
            return;
        }
    }
    panic!("it does not get on: {:?}", told[&RequestId(1)]);
}

#[test]
fn long_prompts_and_those_that_begin_the_same_do_not_wait_for_one_that_is_scored() {
    let (mut core, mut told) = (small_core(8), BTreeMap::new());
    core.submit(scored(1, 400)).expect("it fits");
    step(&mut core, &mut told);
    core.submit(prompt(2, 300)).expect("it fits");
    core.submit(NewRequest { prompt: scored(1, 200).prompt, ..prompt(3, 1) }).expect("it fits");
    let ended: Vec<u64> = (0..16).flat_map(|_| step(&mut core, &mut told)).collect();
    assert_eq!(ended, [2, 3], "500 tokens in steps of 64, beside it");
}

#[test]
fn those_behind_many_that_wait_to_be_scored_pass() {
    let (mut core, mut told) = (small_core(8), BTreeMap::new());
    for id in 1..=300 {
        core.submit(scored(id, 30)).expect("it fits");
    }
    core.submit(prompt(999, 20)).expect("it fits");
    let (mut plain, mut ended) = (None, Vec::new());
    for at in 1..=2_000 {
        let now = step(&mut core, &mut told);
        plain = plain.or_else(|| now.contains(&999).then_some(at));
        ended.extend(now);
        if ended.len() == 301 {
            break;
        }
    }
    assert!(plain.is_some_and(|plain| plain <= 8), "{plain:?}");
    ended.retain(|&id| id != 999);
    assert_eq!(ended, Vec::from_iter(1..=300), "in their order");
}

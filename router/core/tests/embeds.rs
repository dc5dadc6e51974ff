//! Prompts that are given as embeddings: a step has few of them, they are in nobody's way, and they are found by what they are.

#[allow(dead_code, reason = "here prompts stand for something else")]
mod small;

use std::collections::BTreeMap;

use pelton_core::{
    CacheScope, Core, CoreConfig, Event, Limits, Micros, NewRequest, RequestId, Sampling, Span, SpanKind, StopRule,
};
use small::{GROUP, all_draw, config, request};

/// Steps of 64 tokens, of which 8 are embeddings.
fn small_core(slots: u32) -> Core {
    let limits = Limits { appends: 4_096, history: 4_096, ..config().limits };
    small::core(4_096, CoreConfig { max_running: slots, max_model_len: 4_096, max_waiting: 1_000, limits, ..config() })
}

/// So many embeddings, all of them made of one number, and a token behind them.
fn embedded(id: u64, tokens: u32, content: u8) -> NewRequest {
    let span = Span { start: 0, tokens, digest: [content; 16], kind: SpanKind::Embeddings };
    let scope = CacheScope::default().with_spans(vec![span]).expect("one");
    let stop = StopRule { max_tokens: 1, min_tokens: 0, stop_ids: [].into() };
    NewRequest { scope, stop, ..request(id, (0..tokens).map(|_| 0).chain([9])) }
}

fn plain(id: u64, tokens: u32) -> NewRequest {
    let stop = StopRule { max_tokens: 1, min_tokens: 0, stop_ids: [].into() };
    NewRequest { stop, ..request(id, (0..tokens).map(|at| id as u32 * 10_000 + at)) }
}

/// What became of requests: how many tokens of each were found, and in which step it ended.
#[derive(Default)]
struct Told {
    steps: u32,
    cached: BTreeMap<u64, u32>,
    ended: BTreeMap<u64, u32>,
}

/// One step, and how many embeddings each of its rows begins with.
fn step(core: &mut Core, told: &mut Told) -> Vec<u32> {
    let plan = core.plan(GROUP, Micros(0)).expect("there is something to do");
    let embeds: Vec<_> = plan.rows.iter().map(|row| row.embeds).collect();
    assert!(embeds.iter().sum::<u32>() <= 8);
    assert!(plan.rows.iter().all(|row| row.embeds <= row.known));
    core.commit(GROUP, all_draw(&plan, 7)).expect("results of the step that is due");
    core.check();
    told.steps += 1;
    for event in core.events() {
        match event {
            Event::Admitted { request: RequestId(id), cached } => drop(told.cached.insert(id, cached)),
            Event::Finished { request: RequestId(id), .. } => drop(told.ended.insert(id, told.steps)),
            _ => {}
        }
    }
    embeds
}

#[test]
fn a_step_has_few_and_the_tokens_behind_them_come_with_the_last() {
    let (mut core, mut told) = (small_core(4), Told::default());
    core.submit(embedded(1, 20, 1)).expect("it fits");
    let embeds: Vec<_> = (0..3).map(|_| step(&mut core, &mut told)).collect();
    assert_eq!(embeds, [[8], [8], [4]]);
    assert_eq!(told.ended[&1], 3);
}

#[test]
fn long_ones_are_in_nobodys_way() {
    let (mut core, mut told) = (small_core(4), Told::default());
    for id in 1..=20 {
        core.submit(embedded(id, 400, id as u8)).expect("it fits");
    }
    step(&mut core, &mut told);
    core.submit(plain(30, 300)).expect("it fits");
    core.submit(plain(31, 7)).expect("it fits");
    for _ in 0..16 {
        step(&mut core, &mut told);
    }
    assert_eq!(told.ended.keys().collect::<Vec<_>>(), [&30, &31], "past nineteen that wait, and beside the first");
    for _ in 0..1_000 {
        step(&mut core, &mut told);
        if told.ended.len() == 22 {
            return;
        }
    }
    panic!("20 × 400 embeddings, 8 a step: {:?}", told.ended);
}

#[test]
fn they_are_found_by_what_they_are_and_not_by_their_tokens() {
    let (mut core, mut told) = (small_core(4), Told::default());
    let mut run = |new: NewRequest| {
        let id = new.id.0;
        core.submit(new).expect("it fits");
        while !told.ended.contains_key(&id) {
            step(&mut core, &mut told);
        }
        told.cached[&id]
    };
    assert_eq!(run(embedded(1, 40, 1)), 0);
    assert_eq!(run(embedded(2, 40, 1)), 40, "all but the last token");
    assert_eq!(run(embedded(3, 40, 2)), 0, "others of the same length");
    let zeros = NewRequest { scope: CacheScope::default(), ..embedded(4, 40, 1) };
    assert_eq!(run(zeros), 0, "the tokens that hold their places");
}

#[test]
fn penalties_count_no_token_that_holds_a_place() {
    let mut core = small_core(4);
    let sampling = Sampling { repetition_penalty: 1.5, ..Sampling::greedy() };
    core.submit(NewRequest { sampling: sampling.clone(), ..embedded(1, 5, 1) }).expect("it fits");
    let resumed = NewRequest { sampling, generated: vec![3, 4], ..embedded(2, 2, 2) };
    let stop = StopRule { max_tokens: 9, ..resumed.stop.clone() };
    core.submit(NewRequest { stop, ..resumed }).expect("it fits");
    let plan = core.plan(GROUP, Micros(0)).expect("two requests");
    let told: Vec<_> = plan.admits.iter().map(|admit| (&admit.history[..], admit.prompt_len)).collect();
    assert_eq!(told, [(&[9][..], 1), (&[9, 3, 4][..], 1)]);
}

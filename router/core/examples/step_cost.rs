//! What a step costs the engine thread: plan and commit with 256 running requests and 4,096 that wait.
//! `cargo run --release -p pelton-core --example step_cost`

use std::time::{Duration, Instant};

use pelton_core::{
    Core, CoreConfig, GroupId, Limits, Micros, NewRequest, Party, RequestId, RowResult, Sampling, StepResults, StopRule,
};

const RUNNING: u32 = 256;
const WAITING: u64 = 4_096;
const STEPS: u32 = 2_000;
const GROUP: GroupId = GroupId(0);

fn main() {
    let limits = Limits {
        slots: RUNNING,
        tokens: 16_384,
        appends: 4_096,
        copies: 256,
        biases: 1_024,
        suppressed: 1_024,
        history: 16_384,
    };
    let mut core = Core::new(CoreConfig {
        block_size: 32,
        max_model_len: 8_192,
        limits,
        max_running: RUNNING,
        max_waiting: usize::MAX,
        token_budget: 16_384,
        itl_target_us: None,
        hash_key: [1, 2],
        prefix_caching: true,
    });
    core.add_group(GROUP, 60_000);
    for id in 0..u64::from(RUNNING) + WAITING {
        let token = u32::try_from(id).expect("few requests");
        let stop = StopRule { max_tokens: 4_000, min_tokens: 0, stop_ids: [2].into() };
        let (prompt, sampling) = (vec![token; 32].into(), Sampling::greedy());
        let new = NewRequest {
            id: RequestId(id),
            prompt,
            generated: Vec::new(),
            sampling,
            stop,
            cache_salt: 0,
            priority: 0,
            arrival: Micros(id),
            party: Party::default(),
            deadline: None,
        };
        core.submit(new).expect("room");
    }
    let (mut plan_time, mut commit_time) = (Duration::ZERO, Duration::ZERO);
    let mut ahead = core.plan(GROUP, Micros(0)).expect("all prompts fit one step");
    for _ in 0..STEPS {
        let begin = Instant::now();
        let next = core.plan(GROUP, Micros(0)).expect("one step ahead");
        plan_time += begin.elapsed();
        assert_eq!(next.rows.len(), RUNNING as usize);
        let due = std::mem::replace(&mut ahead, next);
        let rows = due.rows.iter().map(|row| row.samples.then_some(RowResult { token: 5, logprobs: None })).collect();
        let begin = Instant::now();
        core.commit(GROUP, StepResults { step: due.step, took_us: 9_000, rows }).expect("as planned");
        core.events().for_each(drop);
        commit_time += begin.elapsed();
    }
    println!(
        "{RUNNING} running, {WAITING} waiting: plan {:.1} us, commit {:.1} us a step",
        micros(plan_time),
        micros(commit_time)
    );
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / f64::from(STEPS)
}

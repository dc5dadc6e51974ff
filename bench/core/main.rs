//! What a step costs the engine thread: plan and commit, and how that grows with what there is.
//!
//!     cargo run --release -p pelton-core --example bench_core [-- OUT.json]
//!
//! The goal: at most 50 us a step with 256 running, 4,096 waiting and 64k blocks (aim: 15). Each line is the median of
//! several rounds, each on a core of its own; the first line is the goal's, the others change one thing. In a line with
//! comings and goings every request ends after 32 tokens and another one, of 512 new tokens, comes: eight of each a step, with
//! all that they cost (submitted, looked up, admitted, indexed, given up for the next). In the line of long prompts all that wait have
//! 30,000 tokens and are computed one after the other, beside those that draw. In the line of eight groups each has the running
//! requests of the goal, and comings and goings; a step is one of one group. In that of all sorts, which come and go too, priorities
//! differ, every third request has a deadline, and hundreds are due. Ends with 1 if the goal's step takes longer.

use std::hint::black_box;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use pelton_core::{
    CacheScope, Core, CoreConfig, Event, Goal, GroupId, Kind, Limits, Micros, NewRequest, Party, Plan, RequestId,
    RowResult, Sampling, StepResults, StopRule,
};

const STEPS: u32 = 2_000;
const ROUNDS: usize = 5;
/// What a step may take.
const GOAL_US: f64 = 50.0;

/// What there is.
#[derive(Debug, Clone, Copy)]
struct Size {
    running: u32,
    waiting: u64,
    blocks: u32,
    tenants: u64,
    itl_target_us: Option<u32>,
    prefix_caching: bool,
    host_blocks: u32,
    flow: Flow,
    groups: u16,
    all_sorts: bool,
}

impl Size {
    /// In all groups.
    fn running(self) -> u32 {
        self.running * u32::from(self.groups)
    }
}

/// Who comes and goes while the clock runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// Nobody: all slots are taken, and all draw.
    Still,
    /// See the top of the file.
    Changing,
    /// See there.
    LongPrompts,
}

impl Flow {
    fn prompt(self, waits: bool) -> u32 {
        match self {
            Self::Changing => 512,
            Self::LongPrompts if waits => 30_000,
            Self::Still | Self::LongPrompts => 32,
        }
    }

    fn token_budget(self) -> u32 {
        if self == Self::LongPrompts { 8_192 } else { 1 << 18 }
    }

    /// Tokens of an answer. At the start the requests are at different places in theirs.
    fn answer(self, id: u64, waits: bool) -> u32 {
        let is_first = !waits;
        match self {
            Self::LongPrompts if waits => 1,
            Self::Still | Self::LongPrompts => 4_000,
            Self::Changing if is_first => 1 + u32::try_from(id).expect("small") % CHANGING_ANSWER,
            Self::Changing => CHANGING_ANSWER,
        }
    }
}

const CHANGING_ANSWER: u32 = 32;

/// Microseconds per step.
#[derive(Debug, Clone, Copy)]
struct Cost {
    plan: f64,
    commit: f64,
    slowest: f64, // of a hundred
}

const GOAL: Size = Size {
    running: 256,
    waiting: 4_096,
    blocks: 65_536,
    tenants: 1,
    itl_target_us: None,
    prefix_caching: true,
    host_blocks: 0,
    flow: Flow::Still,
    groups: 1,
    all_sorts: false,
};

fn main() -> ExitCode {
    let sizes = [
        ("goal", GOAL),
        ("64 running", Size { running: 64, ..GOAL }),
        ("1,024 running", Size { running: 1_024, ..GOAL }),
        ("none waiting", Size { waiting: 0, ..GOAL }),
        ("10,000 waiting", Size { waiting: 10_000, ..GOAL }),
        ("10,000 waiting of 1,000 tenants", Size { waiting: 10_000, tenants: 1_000, ..GOAL }),
        ("a host tier that is large", Size { host_blocks: 1 << 20, ..GOAL }),
        ("a host tier that is full", Size { host_blocks: 4_096, ..GOAL }),
        ("1 million blocks", Size { blocks: 1 << 20, ..GOAL }),
        ("with a time budget", Size { itl_target_us: Some(50_000), ..GOAL }),
        ("without prefix cache", Size { prefix_caching: false, ..GOAL }),
        ("comings and goings", Size { flow: Flow::Changing, ..GOAL }),
        ("the same without prefix cache", Size { flow: Flow::Changing, prefix_caching: false, ..GOAL }),
        ("eight groups", Size { flow: Flow::Changing, groups: 8, ..GOAL }),
        ("all sorts", Size { flow: Flow::Changing, tenants: 100, all_sorts: true, ..GOAL }),
        ("long prompts", Size { waiting: 1_024, flow: Flow::LongPrompts, ..GOAL }),
    ];
    let (mut lines, mut reached) = (Vec::new(), true);
    for (name, size) in sizes {
        let mut costs: Vec<Cost> = (0..ROUNDS).map(|_| measure(size)).collect();
        costs.sort_by(|one, other| (one.plan + one.commit).total_cmp(&(other.plan + other.commit)));
        let Cost { plan, commit, slowest } = costs[ROUNDS / 2];
        reached &= name != "goal" || plan + commit <= GOAL_US;
        println!(
            "{name:34} plan {plan:6.1} us   commit {commit:6.1} us   together {:6.1} us   p99 {slowest:6.1} us",
            plan + commit
        );
        lines.push(format!(
            r#"{{"size": "{name}", "running": {}, "waiting": {}, "blocks": {}, "plan_us": {plan:.2}, "commit_us": {commit:.2}, "p99_us": {slowest:.2}}}"#,
            size.running, size.waiting, size.blocks
        ));
    }
    let core = filled(GOAL);
    let mut snapshots: Vec<f64> = (0..ROUNDS).map(|_| snapshot_us(&core)).collect();
    snapshots.sort_by(f64::total_cmp);
    println!("a snapshot of the goal's core {:.0} us, once per segment of a recording", snapshots[ROUNDS / 2]);
    if let Some(out) = std::env::args().nth(1) {
        let mut file = std::fs::File::create(&out).unwrap_or_else(|error| panic!("{out}: {error}"));
        writeln!(file, "[\n  {}\n]", lines.join(",\n  ")).unwrap_or_else(|error| panic!("{out}: {error}"));
    }
    if reached {
        return ExitCode::SUCCESS;
    }
    eprintln!("the goal is missed: a step with 256 running and 4,096 waiting takes more than {GOAL_US} us");
    ExitCode::FAILURE
}

/// Everybody draws a token in every step; all that run at first have come in before the clock starts. To submit counts as planning.
fn measure(size: Size) -> Cost {
    let mut core = filled(size);
    let (mut plan_time, mut commit_time, mut steps) = (Duration::ZERO, Duration::ZERO, Vec::new());
    let first_new = u64::from(size.running()) + size.waiting;
    let mut next_id = first_new;
    let groups: Vec<GroupId> = core.groups().collect();
    // One group gives others the requests that it has no room for, a few with each plan.
    let warming = if groups.len() == 1 { 0 } else { 1_000 };
    let mut ahead: Vec<Option<Plan>> = groups.iter().map(|&group| core.plan(group, Micros(0))).collect();
    for step in 0..warming + STEPS {
        if step == warming {
            assert!(
                core.counts().running * 100 >= size.running() as usize * 95,
                "the groups are full: {:?}",
                core.counts()
            );
        }
        let now = Micros(u64::from(step) * 10_000);
        let at = step as usize % groups.len();
        let begin = Instant::now();
        let next = core.plan(groups[at], now);
        let planned = begin.elapsed();
        let Some(due) = std::mem::replace(&mut ahead[at], next) else { continue };
        let draws = due.rows.iter().map(|row| row.samples.then_some(RowResult { token: 5, logprobs: None })).collect();
        let begin = Instant::now();
        core.commit(groups[at], StepResults { step: due.step, took_us: 9_000, draws, ..StepResults::default() })
            .expect("as planned");
        let ended = core.events().filter(|event| matches!(black_box(event), Event::Finished { .. })).count();
        let committed = begin.elapsed();
        let come = if size.flow == Flow::Changing { ended } else { 0 };
        let come: Vec<NewRequest> =
            (next_id..).take(come).map(|id| NewRequest { arrival: now, ..request(id, size) }).collect();
        next_id += come.len() as u64;
        let begin = Instant::now();
        come.into_iter().for_each(|new| core.submit(new).expect("room"));
        let planned = planned + begin.elapsed();
        if step < warming {
            continue;
        }
        plan_time += planned;
        commit_time += committed;
        steps.push(planned + committed);
    }
    assert_eq!(size.flow == Flow::Changing, next_id > first_new);
    steps.sort();
    let slowest = steps[steps.len() * 99 / 100].as_secs_f64() * 1e6;
    Cost { plan: micros(plan_time), commit: micros(commit_time), slowest }
}

fn snapshot_us(core: &Core) -> f64 {
    let begin = Instant::now();
    drop(black_box(core.snapshot()));
    begin.elapsed().as_secs_f64() * 1e6
}

fn filled(size: Size) -> Core {
    let limits = Limits {
        slots: size.running + u32::from(size.flow == Flow::LongPrompts),
        tokens: 1 << 18,
        appends: 65_536,
        saves: 64,
        loads: 64,
        copies: 256,
        states: 0,
        biases: 1_024,
        suppressed: 1_024,
        history: 32_768,
        scores: 8,
        embeds: 0,
    };
    let mut core = Core::new(CoreConfig {
        block_size: 32,
        kinds: vec![Kind::Full],
        max_model_len: 32_768,
        limits,
        max_running: limits.slots,
        max_waiting: usize::MAX,
        token_budget: size.flow.token_budget(),
        itl_target_us: size.itl_target_us,
        hash_key: [1, 2],
        host_blocks: size.host_blocks,
        disk_places: 0,
        drafts_max: 0,
        prefix_caching: size.prefix_caching,
        pin_share: 0,
        tenant_cache_share: 100,
        tells_cache_changes: false,
    });
    (0..size.groups).for_each(|group| core.add_group(GroupId(group), size.blocks, true));
    (0..u64::from(size.running()) + size.waiting).for_each(|id| core.submit(request(id, size)).expect("room"));
    core
}

fn request(id: u64, size: Size) -> NewRequest {
    let token = u32::try_from(id).expect("few requests");
    let waits = id >= u64::from(size.running());
    NewRequest {
        id: RequestId(id),
        prompt: vec![token; size.flow.prompt(waits) as usize].into(),
        generated: Vec::new(),
        scored: 0,
        goal: Goal::Tokens,
        sampling: Sampling::greedy(),
        stop: StopRule { max_tokens: size.flow.answer(id, waits), min_tokens: 0, stop_ids: [2].into() },
        masked: false,
        scope: CacheScope::default(),
        priority: if size.all_sorts { i32::try_from(id % 7).expect("small") - 3 } else { 0 },
        arrival: Micros(0),
        party: Party { tenant: id % size.tenants, user: 0 },
        deadline: (size.all_sorts && id.is_multiple_of(3)).then_some(Micros(40_000_000 + 10_000 * id)),
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / f64::from(STEPS)
}

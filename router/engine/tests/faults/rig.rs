//! An engine under test with scripted workers, and requests whose every token is known beforehand.

use std::{path::Path, time::Duration};

use pelton_engine::{
    Answer, CacheScope, Deadlines, DiskOptions, Engine, EngineConfig, Failure, FinishReason, FirstContext, Goal,
    LoadOptions, Output, Party, Phase, QueueLimits, Sampling, Stats, StopRule, Submission, TierOptions, Usage,
    WorkerSpec,
};
use pelton_link_testing::this_binary;

use crate::{
    model::{BLOCK_BYTES, VOCAB, answer},
    worker::{Deed, Fault, Play},
};

/// Stands in no prompt of an innocent request, and no innocent request draws it.
pub(crate) const POISON: u32 = VOCAB - 1;

/// A worker that misbehaves so in each of its first `lives` lives.
pub(crate) fn play(fault: Fault, lives: u32) -> Play {
    Play { fault, lives, blocks: 256, blocks_later: 256, vectors_of_all: None }
}

/// One whose every life ends with the poisonous token.
pub(crate) fn dies_of_poison() -> Play {
    play(Fault::Of(POISON, Deed::Die), u32::MAX)
}

/// A request, and what an engine that nothing disturbs answers.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: u32,
    pub(crate) goal: Goal,
}

impl Case {
    pub(crate) fn new(prompt: Vec<u32>, max_tokens: u32) -> Self {
        Self { prompt, max_tokens, goal: Goal::Tokens }
    }

    pub(crate) fn tokens(&self) -> Vec<u32> {
        answer(&self.prompt, self.max_tokens)
    }

    /// Whether the poisonous token ever stands in a row of it: the last token it draws does not.
    pub(crate) fn is_poisonous(&self) -> bool {
        self.prompt.contains(&POISON) || self.tokens()[..self.max_tokens as usize - 1].contains(&POISON)
    }
}

/// Innocent requests of all lengths; every third begins like the one before it.
pub(crate) fn innocents(count: usize) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for seed in 0_u32.. {
        if cases.len() == count {
            break;
        }
        let mut prompt = answer(&[seed], 3 + seed * 7 % 40);
        if seed % 3 == 0
            && let Some(before) = cases.last()
        {
            prompt.splice(0..0, before.prompt[..before.prompt.len() / 2].iter().copied());
        }
        let case = Case::new(prompt, 5 + seed * 5 % 30);
        if !case.is_poisonous() {
            cases.push(case);
        }
    }
    cases
}

/// A request of so many prompt tokens that draws the poisonous token by itself, after some others.
pub(crate) fn poisoned_later(prompt: u32) -> Case {
    let is_meant = |case: &Case| {
        let at = case.tokens().iter().position(|token| *token == POISON);
        !case.prompt.contains(&POISON) && at.is_some_and(|at| at > 2 && at < 18)
    };
    (0..).map(|seed| Case::new(answer(&[seed, seed], prompt), 20)).find(is_meant).expect("the vocabulary is small")
}

/// What became of a request.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u32>,
    pub(crate) vector: Option<Box<[f32]>>,
    pub(crate) end: Result<Usage, Failure>,
}

impl Outcome {
    /// Follows an answer to its end.
    pub(crate) fn of(mut answer: Answer) -> Self {
        let (mut tokens, mut vector) = (Vec::new(), None);
        loop {
            match answer.blocking_next().expect("an answer has a last message") {
                Output::Admitted { .. } => assert!(tokens.is_empty(), "admission is told first"),
                Output::Token { token, .. } => tokens.push(token),
                Output::Vector(made) => assert_eq!(vector.replace(made), None, "one vector"),
                Output::Finished { reason, usage, .. } => {
                    let gives_tokens = vector.is_none();
                    assert_eq!(reason, if gives_tokens { FinishReason::Length } else { FinishReason::Vector });
                    return Self { tokens, vector, end: Ok(usage) };
                }
                Output::Explained(_) | Output::Scored(_) => panic!("nobody asked"),
                Output::Failed(failure) => return Self { tokens, vector, end: Err(failure) },
            }
        }
    }

    /// Nothing of a fault is seen in it.
    #[track_caller]
    pub(crate) fn is_undisturbed(&self, case: &Case) {
        let usage = self.end.as_ref().unwrap_or_else(|failure| panic!("{case:?} failed: {failure}"));
        assert_eq!(self.tokens, case.tokens(), "{case:?}");
        assert_eq!((usage.prompt as usize, usage.completion), (case.prompt.len(), case.max_tokens));
    }

    /// Why it failed. What it has drawn before is right.
    #[track_caller]
    pub(crate) fn failure(&self, case: &Case) -> String {
        assert!(case.tokens().starts_with(&self.tokens));
        match &self.end {
            Err(failure @ (Failure::Internal(_) | Failure::NeverFits { .. })) => failure.to_string(),
            other => panic!("{case:?} should fail, and gave {other:?}"),
        }
    }
}

/// In host memory.
const HOST_BLOCKS: u64 = 256;

/// Host memory, and this below it.
pub(crate) fn below(disk: Option<DiskOptions>) -> TierOptions {
    TierOptions { host_bytes: HOST_BLOCKS * BLOCK_BYTES as u64, disk }
}

pub(crate) struct Rig {
    pub(crate) engine: Engine,
}

impl Rig {
    /// An engine with a worker for each play, and host memory below them. All of them have loaded.
    pub(crate) fn start(plays: &[Play]) -> Self {
        Self::start_with(plays, "/models/none".as_ref(), below(None))
    }

    /// The same with these tiers, for the model in this folder.
    pub(crate) fn start_with(plays: &[Play], model: &Path, tiers: TierOptions) -> Self {
        let worker = |play: &Play| {
            let (program, arguments) = this_binary("worker_process");
            let script = serde_json::to_string(play).expect("plain data");
            WorkerSpec::Spawn {
                program,
                arguments,
                env: vec![("SCRIPT".into(), script.into())],
                processors: Vec::new(),
            }
        };
        let load = LoadOptions {
            model_path: model.to_owned(),
            dtype: "float32".to_owned(),
            max_model_len: 0,
            first_context: FirstContext::default(),
            kv_bytes: 0,
            memory_limit_bytes: 1 << 30,
            block_size: 0,
            threads: 1,
            slots: 16,
            token_budget: 64,
            scores: 8,
            device: "cpu".to_owned(),
            quantize: "auto".to_owned(),
            quantize_skip: "head".to_owned(),
            kv_dtype: "auto".to_owned(),
            kept_folder: std::path::PathBuf::new(),
            kept_bytes: 0,
            model_backend: "auto".to_owned(),
            trust_remote_code: false,
            task: "auto".to_owned(),
            pooling: String::new(),
        };
        let engine = Engine::start(EngineConfig {
            workers: plays.iter().map(worker).collect(),
            load,
            max_running: 16,
            drafts_max: 0,
            token_budget: 64,
            prompt_embeds: false,
            queue: QueueLimits { requests: 1_000, tokens: None, wait: None },
            itl_target: None,
            tiers,
            prefix_caching: true,
            pin_share: 25,
            tenant_cache_share: 100,
            cache_events: None,
            record: None,
            deadlines: deadlines(),
        });
        let rig = Self { engine: engine.expect("an engine starts") };
        rig.wait_for(|phase| *phase == Phase::Ready);
        while rig.engine.stats().workers_ready < plays.len() as u64 {
            std::thread::sleep(Duration::from_millis(1)); // nothing tells of the others
        }
        rig
    }

    /// Waits for a phase. It must come: the engine ends by itself if its workers do not.
    pub(crate) fn wait_for(&self, is_meant: impl Fn(&Phase) -> bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut status = self.engine.status();
        let _ = runtime.block_on(status.wait_for(|status| is_meant(&status.phase))).expect("the engine lives");
    }

    pub(crate) fn submit(&self, case: &Case) -> Answer {
        let submitted = self.engine.submit(vec![Submission {
            prompt: case.prompt.clone().into(),
            embeds: None,
            goal: case.goal,
            sampling: Sampling::greedy(),
            stop: StopRule { max_tokens: case.max_tokens, min_tokens: 0, stop_ids: [].into() },
            grammar: None,
            scope: CacheScope::default(),
            keep: None,
            priority: 0,
            party: Party::default(),
            timeout: None,
        }]);
        let mut answers = submitted.unwrap_or_else(|failure| panic!("{case:?} is refused: {failure}"));
        answers.pop().expect("one answer per submission")
    }

    /// All at once.
    pub(crate) fn serve(&self, cases: &[Case]) -> Vec<Outcome> {
        let answers: Vec<Answer> = cases.iter().map(|case| self.submit(case)).collect();
        answers.into_iter().map(Outcome::of).collect()
    }

    /// Ends the engine and returns what it has counted.
    pub(crate) fn stop(self) -> Stats {
        self.engine.blocking_shutdown();
        self.engine.stats()
    }
}

/// Far above what a step of these workers takes, so that a deadline that passes means a worker that stands still.
fn deadlines() -> Deadlines {
    let (first_step, step) = (Duration::from_secs(5), Duration::from_secs(3));
    let link = pelton_link::Deadlines { back_off: Duration::ZERO, ..pelton_link::Deadlines::default() };
    Deadlines { first_step, step, link }
}

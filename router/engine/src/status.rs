//! What the engine says of itself: its phase, the loaded model, and counters.

use pelton_core::Waited;
use pelton_link::{Budget, ModelReport};

use crate::QueueStats;

/// Where the engine is in its life. Watched by readiness, the start-up display and the API.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Workers start and load.
    Loading {
        /// What is being done, in words.
        stage: String,
        /// Bytes done.
        done: u64,
        /// Bytes in all; 0: not known yet.
        total: u64,
    },
    /// Requests are served.
    Ready,
    /// The worker died and is being replaced; requests wait and will be replayed.
    Recovering {
        /// What happened.
        reason: String,
    },
    /// No new requests; running ones finish.
    Draining,
    /// The engine was shut down; no worker is left.
    Ended,
    /// The engine has given up and has ended: the process should end.
    Failed {
        /// Why, and what to change.
        reason: String,
    },
}

/// Phase, and what is known of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Where the engine is.
    pub phase: Phase,
    /// What loading will take; known early.
    pub budget: Option<Budget>,
    /// Known once loaded; stays known while recovering.
    pub model: Option<ModelReport>,
}

/// Counters and gauges, read at any time without disturbing the engine thread.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stats {
    /// Requests in a slot.
    pub running: u64,
    /// What was never admitted to a batch.
    pub queue: QueueStats,
    /// Workers that are configured.
    pub workers: u64,
    /// Of those, the ones that compute now.
    pub workers_ready: u64,
    /// KV blocks that requests hold.
    pub blocks_held: u64,
    /// KV blocks in all.
    pub blocks: u64,
    /// Blocks of host memory that a step or the disk reads or writes.
    pub host_blocks_held: u64,
    /// Blocks of host memory that can be found.
    pub host_blocks_findable: u64,
    /// Blocks of host memory in all.
    pub host_blocks: u64,
    /// Blocks on disk that can be found.
    pub disk_blocks: u64,
    /// Places for blocks on disk.
    pub disk_places: u64,
    /// Steps committed.
    pub steps: u64,
    /// Microseconds that workers took for steps.
    pub computing_us: u64,
    /// Microseconds in which they had requests.
    pub occupied_us: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Of those, looked up in the prefix cache and found.
    pub cached_tokens: u64,
    /// Of these, brought back from host memory.
    pub host_hit_tokens: u64,
    /// Of these, brought back from disk.
    pub disk_hit_tokens: u64,
    /// Blocks saved to host memory.
    pub saves: u64,
    /// Blocks loaded from there.
    pub loads: u64,
    /// Blocks written to disk.
    pub disk_writes: u64,
    /// Blocks read from disk.
    pub disk_reads: u64,
    /// Blocks that the disk has not written or not given back as they were written.
    pub disk_faults: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Drafts of tokens computed.
    pub drafted_tokens: u64,
    /// Of these, those that were drawn too.
    pub accepted_tokens: u64,
    /// Tokens that a grammar left no choice about, so that nobody drew them. They are generated tokens, too.
    pub forced_tokens: u64,
    /// Vectors made.
    pub vectors: u64,
    /// Rows that were computed a second time, because their masks did not come in time.
    pub unsampled: u64,
    /// Prompts that are kept because a client wants it.
    pub kept_prompts: u64,
    /// Blocks of these, in each worker.
    pub kept_blocks: u64,
    /// Wishes to keep a prompt that could not be fulfilled.
    pub keeps_refused: u64,
    /// Blocks of kept prompts that were given up all the same.
    pub kept_blocks_given_up: u64,
    /// Requests preempted.
    pub preemptions: u64,
    /// Of these, those for another tenant's that was due, after a turn of their own.
    pub turns_ended: u64,
    /// Tokens whose KV was lost by that.
    pub preempted_tokens: u64,
    /// Tokens computed once more after a preemption.
    pub again_preempted: u64,
    /// Tokens computed once more after a worker's loss.
    pub again_lost: u64,
    /// Requests whose deadline passed.
    pub expired: u64,
    /// Requests that clients left or that were aborted.
    pub aborted: u64,
    /// Times a worker was replaced.
    pub worker_restarts: u64,
    /// Requests that were replayed after a worker's death.
    pub replayed: u64,
    /// Results that failed their check; each cost its worker its life.
    pub bad_frames: BadFrames,
    /// Steps that passed their deadline; the same.
    pub overdue_steps: u64,
    /// Now: requests suspected to end workers.
    pub suspects: u64,
    /// Now: requests that wait because suspects are computed apart.
    pub withheld: u64,
    /// Requests that were refused because they end workers.
    pub condemned: u64,
    /// Prompt tokens that were computed again because the prefix cache had given them up.
    pub evicted_tokens: u64,
    /// Prompt tokens that nobody had computed before, as far as is remembered.
    pub new_tokens: u64,
    /// Those that no cache would have held: the last of each prompt, or of its blocks.
    pub too_short_tokens: u64,
    /// How long requests that have ended waited, and what for.
    pub waited: Waited,
    /// Assertions that fired on the engine thread.
    pub bugs: u64,
}

/// Results that failed their check, by what was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BadFrames {
    /// The words are not those that were signed.
    pub checksum: u64,
    /// They belong to another step or to another life of the worker.
    pub stale: u64,
    /// There are more of them than steps.
    pub unasked: u64,
    /// Their count of rows, or a token, is none that could be, or logits were not finite.
    pub contents: u64,
    /// The worker says that it could not compute the step.
    pub failed: u64,
}

impl BadFrames {
    /// Of all kinds.
    pub fn total(&self) -> u64 {
        self.checksum + self.stale + self.unasked + self.contents + self.failed
    }
}

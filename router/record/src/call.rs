//! What is recorded: every call that changes the core, in order, and of each plan a digest.

use std::hash::Hasher as _;

use pelton_core::{
    DiskEntry, DiskFault, DiskPlace, GroupId, Micros, NewPin, NewRequest, PinId, Plan, RequestId, StepId, StepResults,
    TokenId, Trust,
};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// One call. It is recorded before it is made: if an assertion fires in it, the recording ends with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Call {
    /// `add_group`.
    AddGroup {
        /// Which.
        group: GroupId,
        /// Its blocks.
        blocks: u32,
        /// Whether it reaches the host's memory.
        reaches_host: bool,
    },
    /// `submit`.
    Submit(Box<NewRequest>),
    /// `abort`.
    Abort(RequestId),
    /// `finish`.
    Finish(RequestId),
    /// `hold`.
    Hold(RequestId),
    /// `release`.
    Release(RequestId),
    /// `force`.
    Force {
        /// Whose tokens.
        request: RequestId,
        /// Behind how many that it has drawn.
        drawn: u32,
        /// What must follow.
        tokens: Vec<TokenId>,
    },
    /// `withdraw`.
    Withdraw {
        /// Which.
        request: RequestId,
        /// What is thought of its KV.
        trust: Trust,
    },
    /// `tick`.
    Tick(Micros),
    /// `clock`.
    Clock(Micros),
    /// `plan`.
    Plan {
        /// For which group.
        group: GroupId,
        /// When.
        now: Micros,
    },
    /// What came of the `plan` right before: none, or this plan.
    Planned(Option<Digest>),
    /// `commit`. Log-probabilities and vectors are left out: nothing depends on them.
    Commit {
        /// Whose results.
        group: GroupId,
        /// Of which step.
        step: StepId,
        /// How long it took.
        took_us: u32,
        /// What was drawn, in the order of `StepResults::draws`.
        tokens: Vec<Option<TokenId>>,
        /// How many vectors came. What stands in them is left out.
        vectors: usize,
        /// How many scores came. What stands in them is left out.
        scores: usize,
    },
    /// `disk_orders`: taking them changes the core.
    DiskOrders,
    /// `disk_done`.
    DiskDone {
        /// Where.
        place: DiskPlace,
        /// What came of it.
        result: Result<(), DiskFault>,
    },
    /// `restore_disk`.
    RestoreDisk(Vec<DiskEntry>),
    /// `clear_tiers`.
    ClearTiers,
    /// `pin`.
    Pin(Box<NewPin>),
    /// `unpin`.
    Unpin(PinId),
    /// `worker_lost`.
    WorkerLost(GroupId),
    /// `remove_group`.
    RemoveGroup(GroupId),
    /// `worker_back`.
    WorkerBack {
        /// Whose.
        group: GroupId,
        /// Its blocks.
        blocks: u32,
        /// Whether it reaches the host's memory.
        reaches_host: bool,
    },
}

impl Call {
    pub(crate) fn commit(group: GroupId, results: &StepResults) -> Self {
        let tokens = results.draws.iter().map(|row| row.as_ref().map(|result| result.token)).collect();
        let (step, took_us) = (results.step, results.took_us);
        let (vectors, scores) = (results.vectors.len(), results.scores.len());
        Self::Commit { group, step, took_us, tokens, vectors, scores }
    }
}

/// 64 bits of a plan: two plans that differ have the same ones once in 10^19 times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest(pub u64);

impl Digest {
    /// Of all that a plan says.
    pub fn of(plan: &Plan) -> Self {
        Self(checksum(&postcard::to_stdvec(plan).expect("a plan is plain values, and memory is there")))
    }
}

/// SipHash-1-3 with a key that everybody knows: it finds damage, not malice.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0x5065_6c74_6f6e, 0x7265_636f_7264);
    hasher.write(bytes);
    hasher.finish()
}

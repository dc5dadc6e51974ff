//! What happened to KV blocks, as plain values.

/// What happened in one step, in order of effect: a removal stands before the store that reuses the block.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Seconds since the Unix epoch.
    pub timestamp: f64,
    /// In order of effect.
    pub events: Vec<KvEvent>,
}

/// One thing that happened to blocks.
#[derive(Debug, Clone, PartialEq)]
pub enum KvEvent {
    /// Blocks hold the KV of these tokens from now on.
    Stored(Stored),
    /// Blocks can be found no more.
    Removed {
        /// The hashes under which they were stored.
        hashes: Vec<u64>,
        /// Where they were.
        medium: Medium,
    },
    /// No block can be found any more.
    Cleared,
}

/// A run of full blocks, each the continuation of the one before.
///
/// Readers recompute hashes of their own from the tokens and the extra keys, so both must be complete; our hash only names
/// the block in later events. It must be unique among live blocks and need not be equal between replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// One per block.
    pub hashes: Vec<u64>,
    /// The block that the first one continues. None: it starts a prompt.
    pub parent: Option<u64>,
    /// Of all blocks: `hashes.len() * block_size`.
    pub tokens: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// Name of the adapter. None: the base model.
    pub lora: Option<String>,
    /// Where they are.
    pub medium: Medium,
    /// What else their KV depends on: one list per block, or no list at all where it depends on nothing else.
    pub extra_keys: Vec<Vec<ExtraKey>>,
}

/// Where a block is: a tier, not a kind of hardware. Readers weigh a hit by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Where attention reads it: `GPU` on the wire, also when the worker computes on a CPU.
    Device,
    /// Host memory, from where it has to be copied: `CPU`.
    Host,
    /// Disk: `STORAGE`.
    Storage,
}

/// What a block's KV depends on besides tokens. A block's list has this order: adapter, media, salt, digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtraKey {
    /// Name of the adapter, or the salt (first block of a prompt only).
    Text(String),
    /// An image or the like that reaches into the block.
    Media {
        /// What identifies it.
        identifier: String,
        /// Of its first token from the block's first: negative where it began in an earlier block.
        offset: i64,
    },
    /// Of prompt embeddings.
    Digest(Vec<u8>),
}

impl Batch {
    /// Asserts what readers rely on to tell which tokens are in which block. A guard against bugs of ours.
    pub(crate) fn assert_whole(&self) {
        for event in &self.events {
            if let KvEvent::Stored(stored) = event {
                let blocks = stored.hashes.len();
                assert_eq!(stored.tokens.len(), blocks * stored.block_size as usize, "stored blocks are full");
                assert!(
                    stored.extra_keys.is_empty() || stored.extra_keys.len() == blocks,
                    "one list of keys per block"
                );
            }
        }
    }
}

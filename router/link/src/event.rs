//! What the supervisor tells the engine.

use std::sync::Arc;

use pelton_frame::{HostMemory, MaskWriter, RouterEnd};
use pelton_rpc::v1;

use crate::{Pooling, pooling::WIDTH_MAX};

/// One thing that happened to a worker. The bell is rung after each.
#[allow(clippy::large_enum_variant)] // a handful in a worker's life, each moved twice
pub enum LinkEvent {
    /// The worker starts or loads.
    Progress {
        /// What is being done, in words.
        stage: String,
        /// Bytes done.
        done: u64,
        /// Bytes in all; 0: not known yet.
        total: u64,
    },
    /// What loading will take; told before weights are read.
    Budget(Budget),
    /// The worker is ready for steps.
    Attached {
        /// Which life of the worker.
        epoch: u32,
        /// Where plans go in and results come out.
        port: RouterEnd,
        /// What was loaded.
        report: ModelReport,
        /// The host memory that it maps, if any.
        host: Option<Arc<HostMemory>>,
        /// Where masks go.
        masks: Arc<MaskWriter>,
    },
    /// The worker is gone: a child is dead and reaped, and one that others started touches host memory no more. Another is
    /// being started.
    Lost {
        /// Which life has ended.
        epoch: u32,
        /// Why.
        reason: String,
    },
    /// The worker cannot be had, and nothing more will be tried.
    GaveUp {
        /// Why, and what to change.
        reason: String,
    },
}

/// Bytes, as planned before loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// Weights, packed.
    pub weights_bytes: u64,
    /// Activations of the largest step.
    pub activation_bytes: u64,
    /// The KV arena.
    pub kv_bytes: u64,
    /// One block of it.
    pub kv_bytes_per_block: u64,
    /// Blocks in it.
    pub blocks: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// Prompt and output together.
    pub max_model_len: u32,
    /// The most the worker may take.
    pub memory_limit_bytes: u64,
    /// Blocks that one request of the longest context holds.
    pub blocks_per_request: u32,
}

/// What some of a model's layers keep of the past, in blocks of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// All of it.
    Full,
    /// So many tokens, the latest included.
    Window(u32),
}

/// What is loaded, as the worker reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelReport {
    /// "llama", "qwen3" ...
    pub family: String,
    /// "bfloat16" ...
    pub dtype: String,
    /// "cpu", "cuda:0".
    pub device: String,
    /// What the processor or card calls itself.
    pub device_name: String,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Prompt and output together.
    pub max_model_len: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// KV blocks.
    pub blocks: u32,
    /// A slot has a table of blocks for each.
    pub kinds: Vec<LayerKind>,
    /// Names the arithmetic.
    pub numerics_id: String,
    /// Whether tokens are the same in every batch.
    pub invariant: bool,
    /// What it takes.
    pub budget: Budget,
    /// What it gives instead of tokens, if it does.
    pub pooling: Option<Pooling>,
    /// Numbers of an embedding, which may stand in the place of a prompt's token; 0: none may.
    pub embed_width: u32,
}

impl From<v1::Budget> for Budget {
    fn from(budget: v1::Budget) -> Self {
        Self {
            weights_bytes: budget.weights_bytes,
            activation_bytes: budget.activation_bytes,
            kv_bytes: budget.kv_bytes,
            kv_bytes_per_block: budget.kv_bytes_per_block,
            blocks: budget.blocks,
            block_size: budget.block_size,
            max_model_len: budget.max_model_len,
            memory_limit_bytes: budget.memory_limit_bytes,
            blocks_per_request: budget.blocks_per_request,
        }
    }
}

impl ModelReport {
    /// Tokens that a step must have room for, whatever its budget: those of the longest text, where all of a text's are
    /// computed together. Else 0.
    pub fn tokens_together(&self) -> u32 {
        if self.pooling.as_ref().is_some_and(|pooling| pooling.is_bidirectional) { self.max_model_len } else { 0 }
    }

    /// The worker's claim, checked: what the engine divides by or allocates for is not zero.
    pub(crate) fn check(report: v1::ModelReport, device: String, device_name: String) -> Result<Self, String> {
        let sizes = [
            ("vocab_size", report.vocab_size),
            ("max_model_len", report.max_model_len),
            ("block_size", report.block_size),
            ("blocks", report.blocks),
        ];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(format!("the worker's model report has no `{name}`"));
        }
        if report.embed_width > WIDTH_MAX {
            return Err(format!("the worker's `embed_width` is {}; allowed: 0 to {WIDTH_MAX}", report.embed_width));
        }
        let kinds = report.kinds.iter().map(kind).collect::<Option<Vec<_>>>();
        let Some(kinds) = kinds.filter(|kinds| !kinds.is_empty()) else {
            return Err(format!("the worker's model report has no usable `kinds`: {:?}", report.kinds));
        };
        Ok(Self {
            family: report.family,
            dtype: report.dtype,
            device,
            device_name,
            vocab_size: report.vocab_size,
            max_model_len: report.max_model_len,
            block_size: report.block_size,
            blocks: report.blocks,
            kinds,
            numerics_id: report.numerics_id,
            invariant: report.invariant,
            budget: report.budget.unwrap_or_default().into(),
            pooling: report.pooling.map(Pooling::check).transpose()?,
            embed_width: report.embed_width,
        })
    }
}

fn kind(kind: &v1::Kind) -> Option<LayerKind> {
    match kind.sees.as_ref()? {
        v1::kind::Sees::Full(_) => Some(LayerKind::Full),
        v1::kind::Sees::Window(window) => (window.tokens > 0).then_some(LayerKind::Window(window.tokens)),
    }
}

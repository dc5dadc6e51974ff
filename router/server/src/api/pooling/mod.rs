//! Requests for vectors, classes and scores, and their answers. What a vector becomes (`vectors`) is decided here; how it
//! comes about is `generate`'s.

pub(crate) mod classify;
pub(crate) mod embeddings;
mod fields;
pub(crate) mod rerank;
pub(crate) mod score;
#[cfg(test)]
mod tests;
mod vectors;

use schemars::JsonSchema;
use serde::Serialize;

use super::stream::Head;
use crate::generate::Pooled;

/// The most inputs, pairs or documents of one request: OpenAI's bound.
const INPUTS_MAX: usize = 2048;

/// Tokens that were computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct PoolUsage {
    prompt_tokens: u64,
    total_tokens: u64,
    completion_tokens: u64,
}

impl PoolUsage {
    fn of(pooled: &[Pooled]) -> Self {
        let tokens = pooled.iter().map(|pooled| u64::from(pooled.tokens)).sum();
        Self { prompt_tokens: tokens, total_tokens: tokens, completion_tokens: 0 }
    }
}

/// A whole response: a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{Item}List")]
pub(crate) struct List<'a, Item> {
    #[serde(flatten)]
    head: &'a Head,
    data: Vec<Item>,
    usage: PoolUsage,
}

fn json(response: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(response).expect("numbers and texts are JSON")
}

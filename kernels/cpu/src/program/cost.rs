//! What each call of a step costs at the least, to hold against what it took.

use super::call::{Call, Per};
use super::{BufferId, Program, StepRows};
use crate::cache::{CacheFormat, CacheShape};
use crate::pool_rows::Pooling;

/// The least bytes that must move between memory and the cores, and multiplications and additions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Bytes of weights, caches and buffers, each counted once.
    pub bytes: f64,
    /// Multiplications and additions.
    pub flops: f64,
}

impl Program {
    /// The cost of one call in this step.
    pub fn cost(&self, call: &Call, rows: &StepRows<'_>) -> Cost {
        let counts = rows.counts();
        // With the room behind rows, of which there may be 64 bytes for each.
        let buffer = |id: &BufferId| self.parts.buffers[id.0].bytes(counts) as f64;
        let mut named = [call.reads(), call.writes()].concat();
        named.sort_unstable();
        named.dedup();
        let buffers: f64 = named.iter().map(buffer).sum();
        let element = self.parts.format.bytes() as f64;
        let row_bytes = |shape: CacheShape| match shape.format {
            CacheFormat::Plain => shape.dim as f64 * element,
            CacheFormat::Codes => shape.row() as f64,
        };
        match call {
            Call::Embed { out, .. } | Call::EmbedPacked { out, .. } | Call::EmbedSegments { out, .. } => {
                Cost { bytes: 2.0 * buffer(out), flops: 0.0 }
            }
            Call::PoolRows { out, pooling: Pooling::First | Pooling::Last, .. } => {
                Cost { bytes: 2.0 * buffer(out), flops: 0.0 }
            }
            Call::Pick { out, .. } | Call::Columns { out, .. } => Cost { bytes: 2.0 * buffer(out), flops: 0.0 },
            Call::Linear { x, weight, .. } | Call::GatedLinear { x, weight, .. } => {
                let (columns, depth) = weight.shape();
                let tokens = match self.parts.buffers[x.0].per {
                    Per::Step => buffer(x) / element / depth as f64,
                    Per::Token => counts.tokens as f64,
                    Per::Draw => counts.draws as f64,
                };
                let flops = 2.0 * tokens * columns as f64 * depth as f64;
                Cost { bytes: if tokens > 0.0 { buffers + weight.bytes() as f64 } else { 0.0 }, flops }
            }
            Call::RopeKvWrite { out, layer, .. } => {
                let shape = self.parts.layers[*layer].shape;
                let kv = (2 * counts.tokens * shape.heads) as f64;
                Cost { bytes: 2.0 * buffer(out) + kv * (shape.dim as f64 * element + row_bytes(shape)), flops: 0.0 }
            }
            Call::PagedAttention { layer, heads, is_whole, window, .. } => {
                let shape = self.parts.layers[*layer].shape;
                let window = window.unwrap_or(usize::MAX) as f64;
                let (keys, pairs) = if *is_whole { seen_whole(rows, window) } else { seen(rows, window) };
                let dim = shape.dim as f64;
                Cost {
                    bytes: buffers + 2.0 * keys * shape.heads as f64 * row_bytes(shape),
                    flops: 4.0 * pairs * *heads as f64 * dim,
                }
            }
            Call::PoolRows { pooling: Pooling::Mean, .. }
            | Call::Clear { .. }
            | Call::RmsNorm { .. }
            | Call::AddRmsNorm { .. }
            | Call::LayerNorm { .. }
            | Call::AddLayerNorm { .. }
            | Call::GateMul { .. }
            | Call::Activate { .. }
            | Call::Add { .. }
            | Call::Scale { .. }
            | Call::SoftCap { .. }
            | Call::CallBack { .. } => Cost { bytes: buffers, flops: 0.0 },
        }
    }
}

/// Keys that are read at least once, and pairs of a query and a key that it sees.
fn seen(rows: &StepRows<'_>, window: f64) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    // All pairs of the first `tokens` queries of a request.
    let pairs = |tokens: f64| {
        let growing = tokens.min(window);
        growing * (growing + 1.0) / 2.0 + (tokens - growing) * growing
    };
    for (pair, &start) in rows.row_offsets.windows(2).zip(rows.row_starts) {
        let (count, start) = (f64::from(pair[1] - pair[0]), f64::from(start));
        if count > 0.0 {
            sums.0 += (start + count).min(window - 1.0 + count);
            sums.1 += pairs(start + count) - pairs(start);
        }
    }
    sums
}

/// The same of rows whose tokens see both sides.
fn seen_whole(rows: &StepRows<'_>, window: f64) -> (f64, f64) {
    let counts = rows.row_offsets.windows(2).map(|pair| f64::from(pair[1] - pair[0]));
    counts.fold((0.0, 0.0), |sums, count| {
        // Without a window all pairs; else those whose distance is below it.
        let near = window.min(count);
        (sums.0 + count, sums.1 + near * (2.0 * count - near + 1.0) - count)
    })
}

//! What must be true of a program before it is planned. A recorder that breaks one of these has a bug, or met a model that
//! cannot be recorded; the model is run eagerly then.

use super::Parts;
use super::call::{BufferId, Call, Per, Weight};
use crate::element::Format;
use crate::rope::HeadsAt;

/// Why calls are no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("call {at} ({call}): {why}")]
pub struct Flaw {
    /// Which call; the number of calls: the result.
    pub at: usize,
    /// Its name.
    pub call: String,
    /// What is wrong.
    pub why: String,
}

pub(super) fn check(parts: &Parts) -> Result<(), Flaw> {
    let mut is_written = vec![false; parts.buffers.len()];
    for (at, call) in parts.calls.iter().enumerate() {
        let flaw = |why: String| Err(Flaw { at, call: call.name().to_owned(), why });
        let (reads, writes) = (call.reads(), call.writes());
        for id in reads.iter().chain(&writes) {
            if id.0 >= is_written.len() {
                return flaw(format!("names buffer {}; there are {}", id.0, is_written.len()));
            }
        }
        if let Some(id) = reads.iter().find(|id| !is_written[id.0]) {
            return flaw(format!("reads buffer {} before anything is written there", id.0));
        }
        if let Some(id) = named_twice(call) {
            return flaw(format!("is given buffer {} twice", id.0));
        }
        if let Call::RopeKvWrite { layer, .. } | Call::PagedAttention { layer, .. } = call
            && *layer >= parts.layers.len()
        {
            return flaw(format!("names layer {layer}; there are {}", parts.layers.len()));
        }
        if let Some(heads) = beyond_their_rows(parts, call) {
            return flaw(format!("reads heads at {heads:?}, which are no parts of a token's row"));
        }
        if let Call::Linear { weight, out_format, .. } = call
            && !fits(parts.format, weight, *out_format)
        {
            return flaw("mixes formats otherwise than in a float32 result".to_owned());
        }
        if let Call::EmbedPacked { out, table, .. } = call
            && !is_table_of(parts, table, *out)
        {
            return flaw("looks rows up in a weight that has none of its format and size".to_owned());
        }
        if let Call::PoolRows { out_format, .. } = call
            && *out_format != parts.format
            && *out_format != Format::Float32
        {
            return flaw("mixes formats otherwise than in a float32 result".to_owned());
        }
        writes.iter().for_each(|id| is_written[id.0] = true);
    }
    let result = parts.buffers.get(parts.result.0);
    if !is_written.get(parts.result.0).is_some_and(|&is| is) || result.is_some_and(|size| size.per != Per::Draw) {
        let why = "is not written, or not per draw".to_owned();
        return Err(Flaw { at: parts.calls.len(), call: "result".to_owned(), why });
    }
    Ok(())
}

/// A buffer that stands for two arguments. An RMS norm may be in place; a call-back does as it likes.
fn named_twice(call: &Call) -> Option<BufferId> {
    let ids = match call {
        Call::Pick { out, x, .. } | Call::Columns { out, x, .. } => vec![out, x],
        Call::Linear { out, x, .. } | Call::GatedLinear { out, x, .. } => vec![out, x],
        Call::PoolRows { out, x, .. } | Call::LayerNorm { out, x, .. } => vec![out, x],
        Call::GateMul { out, gate_up: x, .. } | Call::PagedAttention { out, q: x, .. } => vec![out, x],
        Call::Add { residual: out, x } => vec![out, x],
        Call::AddRmsNorm { out, residual, x, .. } | Call::AddLayerNorm { out, residual, x, .. } => {
            vec![out, residual, x]
        }
        // Queries, keys and values may all lie in one.
        Call::RopeKvWrite { out, q, k, v, .. } => {
            return [q, k, v].into_iter().map(|(id, _)| *id).find(|id| id == out);
        }
        Call::Embed { .. }
        | Call::EmbedPacked { .. }
        | Call::EmbedSegments { .. }
        | Call::Clear { .. }
        | Call::RmsNorm { .. }
        | Call::Activate { .. }
        | Call::Scale { .. }
        | Call::SoftCap { .. }
        | Call::CallBack { .. } => vec![],
    };
    (1..ids.len()).find(|&at| ids[..at].contains(&ids[at])).map(|at| *ids[at])
}

/// Heads that a token's row of their buffer does not have.
fn beyond_their_rows(parts: &Parts, call: &Call) -> Option<HeadsAt> {
    let Call::RopeKvWrite { q, k, v, layer, heads, .. } = call else { return None };
    let shape = parts.layers[*layer].shape;
    let asked = [(q, *heads), (k, shape.heads), (v, shape.heads)];
    let is_beyond = |((id, at), heads): &(&(BufferId, HeadsAt), usize)| {
        let row = parts.buffers[id.0];
        row.per != Per::Token
            || row.each != at.by_token * parts.format.bytes()
            || at.reach(*heads, shape.dim) > at.by_token
    };
    asked.into_iter().find(is_beyond).map(|((_, at), _)| *at)
}

/// Whether the columns of this weight are rows of a buffer.
fn is_table_of(parts: &Parts, table: &Weight, out: BufferId) -> bool {
    let row = parts.buffers[out.0];
    let bytes = table.shape().1 * parts.format.bytes();
    table.format() == parts.format && table.scheme().is_none() && row.per == Per::Token && row.each == bytes
}

fn fits(format: Format, weight: &Weight, out: Format) -> bool {
    format == weight.format() && (out == format || out == Format::Float32)
}

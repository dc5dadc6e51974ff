//! What is changed about a recorded program before it is planned. The bits of its result stay the same.
//!
//! There are three rules, because they are what pays. `pick_early`: a prefill of 384 tokens is 1.10 times as fast with 6 layers (the demo
//! model) and 1.17 times with 4 (CPU time on Zen 4, one thread, bfloat16). `gate_early`: with AMX, 0.91 of the time of the product and the
//! gate of 512 tokens, 0.975 of a step's. `space_rows`: with AMX, 0.93 to 0.96 of the time of all products of 512 tokens. What is not fused,
//! and what it would be worth: `docs/decisions/fusion.md`.

use std::collections::BTreeMap;

use super::Parts;
use super::call::{BufferId, Call, Per};

/// Rows that nobody looks at are not computed: after the last attention only those that draw go on.
///
/// `pick` stands before the head, where the model has it. It moves up past all calls that handle each token by itself, and is
/// made once for each buffer that these read:
///
/// ```text
///   attention; linear; add_rms_norm; linear; silu_mul; linear; add_rms_norm; pick
///   attention; pick; pick (the residual); linear; add_rms_norm; linear; silu_mul; linear; add_rms_norm     per draw
/// ```
/// A prefill of N layers saves most of one of them, and all of that in a chunk that draws nothing.
pub(super) fn pick_early(parts: &mut Parts) {
    let Some(at) = parts.calls.iter().position(|call| matches!(call, Call::Pick { .. })) else { return };
    let Call::Pick { out: picked, x: last, .. } = parts.calls[at] else { unreachable!("found above") };
    let first = parts.calls[..at].iter().rposition(|call| !is_by_token(call)).map_or(0, |before| before + 1);
    let moved = &parts.calls[first..at];
    let named: Vec<_> = moved.iter().flat_map(|call| [call.reads(), call.writes()].concat()).collect();
    let is_needed_later = |id: &BufferId| parts.calls[at + 1..].iter().any(|call| call.reads().contains(id));
    if moved.is_empty()
        || named.iter().any(|&id| parts.buffers[id.0].per != Per::Token)
        || named.iter().any(is_needed_later)
        || !moved.iter().any(|call| call.writes().contains(&last))
    {
        return;
    }

    let mut per_draw = BTreeMap::from([(last, picked)]);
    let mut calls = Vec::new();
    let mut is_written = Vec::new();
    for call in moved {
        for id in call.reads().into_iter().filter(|id| !is_written.contains(id)).collect::<Vec<_>>() {
            let width = parts.buffers[id.0].each / parts.format.bytes();
            calls.push(Call::Pick { out: draws_of(id, &mut per_draw, &mut parts.buffers), x: id, width });
            is_written.push(id);
        }
        is_written.extend(call.writes());
    }
    for call in moved {
        let mut call = call.clone();
        call.rename(|id| draws_of(id, &mut per_draw, &mut parts.buffers));
        calls.push(call);
    }
    parts.calls.splice(first..=at, calls);
}

/// The buffer that holds, per draw, what `id` holds per token.
fn draws_of(id: BufferId, per_draw: &mut BTreeMap<BufferId, BufferId>, buffers: &mut Vec<super::Size>) -> BufferId {
    *per_draw.entry(id).or_insert_with(|| {
        buffers.push(super::Size { per: Per::Draw, ..buffers[id.0] });
        BufferId(buffers.len() - 1)
    })
}

/// Gates are applied where a product computes them, if nobody else reads them and the weight allows it.
///
/// ```text
///   linear; silu_mul     →     linear_silu_mul
/// ```
pub(super) fn gate_early(parts: &mut Parts) {
    let mut at = 0;
    while at + 1 < parts.calls.len() {
        if let Some(gated) = gated(parts, at) {
            parts.calls.splice(at..at + 2, [gated]);
        }
        at += 1;
    }
}

/// What the call at `at` and the one behind it are together.
fn gated(parts: &Parts, at: usize) -> Option<Call> {
    let Call::Linear { out: both, x, weight, bias, .. } = &parts.calls[at] else { return None };
    let Call::GateMul { out, gate_up, width, activation } = &parts.calls[at + 1] else { return None };
    let readers = parts.calls.iter().filter(|call| call.reads().contains(both)).count();
    let is_theirs = gate_up == both && out != x && readers == 1 && *both != parts.result;
    if !is_theirs || !weight.can_be_gated() || weight.shape().0 != 2 * width {
        return None;
    }
    Some(Call::GatedLinear { out: *out, x: *x, weight: weight.clone(), bias: *bias, activation: *activation })
}

/// Rows that products alone read get room behind them where that spares packing them for tiles ([`Weight::room_behind_rows`]).
///
/// What writes them finds a row by the buffer's size ([`super::run`]); so no call changes.
pub(super) fn space_rows(parts: &mut Parts) {
    for id in (0..parts.buffers.len()).map(BufferId) {
        let mut rooms = vec![];
        let mut may_be = id != parts.result && parts.buffers[id.0].per != Per::Step;
        for call in &parts.calls {
            if call.writes().contains(&id) {
                may_be &= row_of(parts, call, id)
                    .is_some_and(|width| width * parts.format.bytes() == parts.buffers[id.0].each);
            }
            if call.reads().contains(&id) {
                match call {
                    Call::Linear { weight, .. } | Call::GatedLinear { weight, .. }
                        if weight.shape().1 * parts.format.bytes() == parts.buffers[id.0].each =>
                    {
                        rooms.push(weight.room_behind_rows());
                    }
                    _ => may_be = false,
                }
            }
        }
        let is_one = rooms.windows(2).all(|pair| pair[0] == pair[1]);
        if let (true, true, Some(&room)) = (may_be, is_one, rooms.first()) {
            parts.buffers[id.0].each += room;
        }
    }
}

/// Elements of a row, if it writes this buffer row by row, wherever rows begin. A token may have several, as heads that are normed.
fn row_of(parts: &Parts, call: &Call, id: BufferId) -> Option<usize> {
    let (written, width) = match call {
        Call::RmsNorm { out, x, gain, .. } if out != x => (out, gain.as_slice::<f32>().len()),
        Call::AddRmsNorm { out, gain, .. } => (out, gain.as_slice::<f32>().len()),
        Call::GateMul { out, width, .. } => (out, *width),
        Call::GatedLinear { out, weight, .. } => (out, weight.shape().0 / 2),
        Call::PagedAttention { out, heads, layer, .. } => (out, heads * parts.layers[*layer].shape.dim),
        _ => return None,
    };
    (*written == id).then_some(width)
}

/// Whether a token's result depends on that token alone.
fn is_by_token(call: &Call) -> bool {
    match call {
        Call::Columns { .. }
        | Call::RmsNorm { .. }
        | Call::AddRmsNorm { .. }
        | Call::LayerNorm { .. }
        | Call::AddLayerNorm { .. }
        | Call::Linear { .. }
        | Call::GatedLinear { .. }
        | Call::GateMul { .. }
        | Call::Activate { .. }
        | Call::Add { .. }
        | Call::Scale { .. }
        | Call::SoftCap { .. } => true,
        Call::Embed { .. } // by token, but it reads the step's ids or positions, not a buffer's rows
        | Call::EmbedPacked { .. }
        | Call::EmbedSegments { .. }
        | Call::PoolRows { .. }
        | Call::Pick { .. }
        | Call::Clear { .. }
        | Call::RopeKvWrite { .. }
        | Call::PagedAttention { .. }
        | Call::CallBack { .. } => false,
    }
}

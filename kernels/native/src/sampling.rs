//! The Python door of sampling and scores. As in `ops`: addresses of tensors that Python has checked and holds during the call.

use pelton_cpu::{SampleOut, SampleRows, ScoreOut, ScoreRows};
use pyo3::prelude::*;

use crate::ops::{cpu, refused};
use crate::span::{Span, check_apart};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(score, module)?)?;
    module.add_function(wrap_pyfunction!(sample, module)?)
}

/// Words of a parameter record.
const ADMIT_WORDS: usize = pelton_frame::Admit::WORDS;

#[pyfunction]
#[pyo3(signature = (out_tokens, out_flags, out_chosen, out_top_ids, out_top_logprobs, logits, vocabulary, params, slots, positions, counts, bias_ids, bias_values, suppressed, masks, mask_of))]
#[allow(clippy::too_many_arguments, reason = "one per tensor of the Python door")]
fn sample(
    py: Python<'_>,
    out_tokens: Span,
    out_flags: Span,
    out_chosen: Span,
    out_top_ids: Span,
    out_top_logprobs: Span,
    logits: Span,
    vocabulary: usize,
    params: Span,
    slots: Span,
    positions: Span,
    counts: Option<Span>,
    bias_ids: Span,
    bias_values: Span,
    suppressed: Span,
    masks: Span,
    mask_of: Span,
) -> PyResult<()> {
    let named = |name, span| (name, span, 4); // every tensor here has elements of 4 bytes
    check_apart(
        &[
            named("out_tokens", out_tokens),
            named("out_flags", out_flags),
            named("out_chosen", out_chosen),
            named("out_top_ids", out_top_ids),
            named("out_top_logprobs", out_top_logprobs),
        ],
        &[
            named("logits", logits),
            named("params", params),
            named("slots", slots),
            named("positions", positions),
            named("counts", counts.unwrap_or(Span::new(0, 0))),
            named("bias_ids", bias_ids),
            named("bias_values", bias_values),
            named("suppressed", suppressed),
            named("masks", masks),
            named("mask_of", mask_of),
        ],
    )?;
    // SAFETY: see the module's comment; apart by the check above. An `Admit` is 24 words, any of which may have any value.
    let (out, input) = unsafe {
        let out = SampleOut {
            tokens: out_tokens.write(),
            flags: out_flags.write(),
            chosen: out_chosen.write(),
            top_ids: out_top_ids.write(),
            top_logprobs: out_top_logprobs.write(),
        };
        let input = SampleRows {
            logits: logits.read(),
            vocabulary,
            params: Span::new(params.address(), params.elements() / ADMIT_WORDS).read(),
            slots: slots.read(),
            positions: positions.read(),
            counts: counts.map(|counts| counts.read()),
            bias_ids: bias_ids.read(),
            bias_values: bias_values.read(),
            suppressed: suppressed.read(),
            masks: masks.read(),
            mask_of: mask_of.read(),
        };
        (out, input)
    };
    py.detach(|| pelton_cpu::sample(&mut cpu(), out, input)).map_err(refused)
}

#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "an op's tensors")]
fn score(
    py: Python<'_>,
    out_ranks: Span,
    out_flags: Span,
    out_chosen: Span,
    out_top_ids: Span,
    out_top_logprobs: Span,
    logits: Span,
    vocabulary: usize,
    given: Span,
    wanted: Span,
) -> PyResult<()> {
    let named = |name, span| (name, span, 4); // every tensor here has elements of 4 bytes
    check_apart(
        &[
            named("out_ranks", out_ranks),
            named("out_flags", out_flags),
            named("out_chosen", out_chosen),
            named("out_top_ids", out_top_ids),
            named("out_top_logprobs", out_top_logprobs),
        ],
        &[named("logits", logits), named("given", given), named("wanted", wanted)],
    )?;
    // SAFETY: see the module's comment; apart by the check above.
    let (out, input) = unsafe {
        let out = ScoreOut {
            ranks: out_ranks.write(),
            flags: out_flags.write(),
            chosen: out_chosen.write(),
            top_ids: out_top_ids.write(),
            top_logprobs: out_top_logprobs.write(),
        };
        (out, ScoreRows { logits: logits.read(), vocabulary, given: given.read(), wanted: wanted.read() })
    };
    py.detach(|| pelton_cpu::score(&mut cpu(), out, input)).map_err(refused)
}

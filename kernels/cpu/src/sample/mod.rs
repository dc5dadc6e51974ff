//! From logits to tokens, each row as if it were alone.
//!
//! 1. One pass over the row finds the greatest logit of each block of 64 ([`row`]): what follows looks at the blocks that matter.
//! 2. Penalties, biases, masks, suppressed ids, if there are any, on a copy of the row ([`adjust`]), and the same pass over that.
//! 3. Temperature 0: the greatest logit, the lowest id winning a tie. Else scores s = (logit - greatest) / temperature,
//!    so that no temperature overflows; top-k, top-p, min-p leave some of them ([`select`]).
//! 4. The token with the greatest s + g, g being Gumbel noise that is a function of seed, position and token ([`draw`]):
//!    that is a draw from softmax(s), and it does not depend on how many other tokens were left.
//! 5. Log-probabilities of the raw model, if asked for, which take one more pass ([`logprobs`]).

mod adjust;
mod draw;
mod logprobs;
mod row;
mod score;
mod select;

use pelton_frame::{ADMIT_LOGPROBS, ADMIT_PENALTIES, Admit, RESULT_NOT_FINITE};

use crate::Cpu;
use crate::error::{Refusal, check_indices};
use crate::simd::{Kernel, Simd};
use crate::split::{Own, Shared, part};
use adjust::Adjustments;
use row::Row;
pub use score::{ScoreOut, ScoreRows, score};

/// What [`sample`] reads.
#[derive(Clone, Copy)]
pub struct SampleRows<'a> {
    /// `[rows, vocabulary]`.
    pub logits: &'a [f32],
    /// How many tokens there are.
    pub vocabulary: usize,
    /// `[slots]`: what each slot's request asked for.
    pub params: &'a [Admit],
    /// `[rows]`: the slot of each row.
    pub slots: &'a [i32],
    /// `[rows]`: the absolute position of the token that is drawn.
    pub positions: &'a [i32],
    /// `[slots, vocabulary]`: how often each token stands in the output; the top bit: it stands in the prompt.
    pub counts: Option<&'a [u32]>,
    /// `[slots, bias width]`.
    pub bias_ids: &'a [i32],
    /// `[slots, bias width]`.
    pub bias_values: &'a [f32],
    /// `[slots, suppressed width]`: ids that are suppressed, then those that are told in the place of the likeliest.
    pub suppressed: &'a [i32],
    /// `[masks, vocabulary / 32 rounded up]`: a bit per token, lowest first. What is beyond the vocabulary means nothing.
    pub masks: &'a [u32],
    /// `[rows]`: which mask a row is drawn within; below 0: none. Empty: no row has one.
    pub mask_of: &'a [i32],
}

/// What [`sample`] writes.
pub struct SampleOut<'a> {
    /// `[rows]`.
    pub tokens: &'a mut [i32],
    /// `[rows]`: `RESULT_*`.
    pub flags: &'a mut [i32],
    /// `[rows]`: log-probability of the token; 0 where it was not asked for.
    pub chosen: &'a mut [f32],
    /// `[rows, top]`: the likeliest tokens, best first, or the told ones as they stand; 0 past the number asked for.
    pub top_ids: &'a mut [i32],
    /// `[rows, top]`: their log-probabilities; 0 past the number asked for.
    pub top_logprobs: &'a mut [f32],
}

/// Draws one token per row.
pub fn sample(cpu: &mut Cpu, out: SampleOut<'_>, input: SampleRows<'_>) -> Result<(), Refusal> {
    let rows = input.slots.len();
    let vocabulary = input.vocabulary;
    assert!(vocabulary > 0 && input.logits.len() == rows * vocabulary && input.positions.len() == rows);
    assert!(out.tokens.len() == rows && out.flags.len() == rows && out.chosen.len() == rows);
    assert!(out.top_ids.len() == out.top_logprobs.len());
    let top = out.top_ids.len().checked_div(rows).unwrap_or(0);
    assert_eq!(out.top_ids.len(), rows * top);
    check(&input, top)?;

    let parts = cpu.parts(rows, rows * vocabulary);
    let isa = cpu.isa;
    let own_words = vocabulary + 2 * Row::blocks_of(vocabulary);
    let own = Own::new(cpu.scratch.scratch::<f32>(Own::<f32>::len(parts, own_words)), own_words);
    let (tokens, flags, chosen) = (Shared::new(out.tokens), Shared::new(out.flags), Shared::new(out.chosen));
    let (top_ids, top_logprobs) = (Shared::new(out.top_ids), Shared::new(out.top_logprobs));
    cpu.pool.run(parts, |thread| {
        let rows = part(rows, parts, thread);
        let tops = rows.start * top..rows.end * top;
        // SAFETY: each part has rows of its own, and a piece of scratch of its own.
        let (out, own) = unsafe {
            let out = SampleOut {
                tokens: tokens.piece(rows.clone()),
                flags: flags.piece(rows.clone()),
                chosen: chosen.piece(rows.clone()),
                top_ids: top_ids.piece(tops.clone()),
                top_logprobs: top_logprobs.piece(tops),
            };
            (out, own.of(thread))
        };
        isa.run(Rows { input, out, first: rows.start, top, own });
    });
    Ok(())
}

fn check(input: &SampleRows<'_>, top: usize) -> Result<(), Refusal> {
    let slots = input.params.len();
    let width = input.vocabulary.div_ceil(32);
    let masks = input.masks.len() / width;
    if !input.mask_of.is_empty() && input.mask_of.len() != input.slots.len() {
        let got = format!("has {} entries", input.mask_of.len());
        return Err(Refusal { argument: "mask_of", got, allowed: format!("{}, one per row", input.slots.len()) });
    }
    if let Some(&past) = input.mask_of.iter().find(|&&mask| mask >= 0 && mask as usize >= masks) {
        let got = format!("names mask {past}");
        return Err(Refusal { argument: "mask_of", got, allowed: format!("masks below {masks}, or less than 0") });
    }
    check_indices("slots", input.slots, slots)?;
    for &slot in input.slots {
        let params = &input.params[slot as usize];
        let refuse = |argument, got: String, allowed: String| Err(Refusal { argument, got, allowed });
        if params.top_logprobs as usize > top {
            let got = format!("asks for {} likeliest tokens in slot {slot}", params.top_logprobs);
            return refuse("params", got, format!("up to {top}, what `out_top_ids` has room for"));
        }
        if params.told_count != 0 && params.told_count != params.top_logprobs {
            let got = format!("tells {} tokens in slot {slot}", params.told_count);
            return refuse("params", got, format!("none, or as many as it asks for: {}", params.top_logprobs));
        }
        if params.temperature == f32::INFINITY {
            let got = format!("has an infinite temperature in slot {slot}");
            return refuse("params", got, "a finite one".into());
        }
        if params.flags & ADMIT_PENALTIES != 0 && input.counts.is_none() {
            return refuse("counts", "is None".into(), format!("counts, since slot {slot} has penalties"));
        }
        let listed = params.suppress_count.saturating_add(params.told_count);
        for (argument, ids, count) in
            [("bias_ids", input.bias_ids, params.bias_count), ("suppressed", input.suppressed, listed)]
        {
            let width = ids.len().checked_div(slots).unwrap_or(0);
            if count as usize > width {
                let got = format!("holds {width} ids per slot, and slot {slot} has {count}");
                return refuse(argument, got, format!("at least {count}"));
            }
            check_indices(argument, &ids[slot as usize * width..][..count as usize], input.vocabulary)?;
        }
    }
    Ok(())
}

/// The rows of one thread.
struct Rows<'a> {
    input: SampleRows<'a>,
    out: SampleOut<'a>,
    first: usize,
    top: usize,
    /// An adjusted row, the table of maxima of a raw one, and of that.
    own: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { input, out, first, top, own } = self;
        let (adjusted, maxima) = own.split_at_mut(input.vocabulary);
        let (maxima, adjusted_maxima) = maxima.split_at_mut(Row::blocks_of(input.vocabulary));
        let mut keys = Vec::new();
        for at in 0..out.tokens.len() {
            let row = first + at;
            let params = &input.params[input.slots[row] as usize];
            let logits = &input.logits[row * input.vocabulary..][..input.vocabulary];
            let (raw, is_finite) = Row::survey(simd, logits, maxima);
            let token = if is_finite {
                let room = (&mut *adjusted, &mut *adjusted_maxima);
                token_of(simd, &input, row, raw, room, &mut keys)
            } else {
                None
            };
            out.tokens[at] = token.unwrap_or(0) as i32;
            out.flags[at] = if token.is_some() { 0 } else { RESULT_NOT_FINITE as i32 };
            out.chosen[at] = 0.0;
            let (top_ids, top_logprobs) =
                (&mut out.top_ids[at * top..][..top], &mut out.top_logprobs[at * top..][..top]);
            top_ids.fill(0);
            top_logprobs.fill(0.0);
            if let (true, Some(token)) = (params.flags & ADMIT_LOGPROBS != 0, token) {
                let count = params.top_logprobs as usize;
                let shown = (&mut top_ids[..count], &mut top_logprobs[..count]);
                out.chosen[at] = if params.told_count > 0 {
                    shown.0.copy_from_slice(told(&input, row));
                    logprobs::tell(simd, raw, token, (&*shown.0, shown.1))
                } else {
                    logprobs::report(simd, raw, token, shown, &mut keys)
                };
            }
        }
    }
}

/// The ids whose log-probabilities a row tells.
fn told<'a>(input: &SampleRows<'a>, row: usize) -> &'a [i32] {
    let slot = input.slots[row] as usize;
    let params = &input.params[slot];
    let width = input.suppressed.len() / input.params.len();
    &input.suppressed[slot * width + params.suppress_count as usize..][..params.told_count as usize]
}

/// The token that is drawn for a row. None: every token is suppressed, or a penalty overflowed.
#[inline(always)]
fn token_of<S: Simd>(
    simd: S,
    input: &SampleRows<'_>,
    row: usize,
    raw: Row<'_>,
    (adjusted, maxima): (&mut [f32], &mut [f32]),
    keys: &mut Vec<u64>,
) -> Option<usize> {
    let params = &input.params[input.slots[row] as usize];
    let adjustments = Adjustments::of(input, row);
    let surveyed = if adjustments.is_empty() {
        raw
    } else {
        adjusted.copy_from_slice(raw.logits);
        adjustments.apply(adjusted);
        Row::survey(simd, adjusted, maxima).0
    };
    let likeliest = surveyed.first_of_the_greatest()?;
    if params.temperature.is_nan() || params.temperature <= 0.0 {
        return Some(likeliest);
    }
    let scores = surveyed.scored(params.temperature);
    let noise = draw::Noise::new(params, input.positions[row]);
    Some(if select::keeps_all(params, scores.len()) {
        noise.best_of_all(simd, scores, likeliest)
    } else {
        select::candidates(simd, params, scores, keys);
        noise.best_of(simd, keys)
    })
}

#[cfg(test)]
mod tests;

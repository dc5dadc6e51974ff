//! How likely given tokens were, by the raw logits: what a prompt's log-probabilities are made of.

use pelton_frame::RESULT_NOT_FINITE;

use super::logprobs;
use super::row::Row;
use crate::Cpu;
use crate::error::{Refusal, check_indices};
use crate::simd::{Kernel, Simd};
use crate::split::{Own, Shared, part};

/// What [`score`] reads.
#[derive(Clone, Copy)]
pub struct ScoreRows<'a> {
    /// `[rows, vocabulary]`.
    pub logits: &'a [f32],
    /// How many tokens there are.
    pub vocabulary: usize,
    /// `[rows]`: the token that stands there.
    pub given: &'a [i32],
    /// `[rows]`: how many of the likeliest tokens are asked for.
    pub wanted: &'a [i32],
}

/// What [`score`] writes.
pub struct ScoreOut<'a> {
    /// `[rows]`: 1 for the likeliest token, and so on; of equals the lower id comes first.
    pub ranks: &'a mut [i32],
    /// `[rows]`: `RESULT_*`.
    pub flags: &'a mut [i32],
    /// `[rows]`: log-probability of the given token.
    pub chosen: &'a mut [f32],
    /// `[rows, top]`: the likeliest tokens, best first; 0 past the number asked for.
    pub top_ids: &'a mut [i32],
    /// `[rows, top]`: their log-probabilities; 0 past the number asked for.
    pub top_logprobs: &'a mut [f32],
}

/// Tells each row's given token from the others. Rows that are not finite are flagged, and zero.
pub fn score(cpu: &mut Cpu, out: ScoreOut<'_>, input: ScoreRows<'_>) -> Result<(), Refusal> {
    let (rows, vocabulary) = (input.given.len(), input.vocabulary);
    assert!(vocabulary > 0 && input.logits.len() == rows * vocabulary && input.wanted.len() == rows);
    assert!(out.ranks.len() == rows && out.flags.len() == rows && out.chosen.len() == rows);
    assert!(out.top_ids.len() == out.top_logprobs.len());
    let top = out.top_ids.len().checked_div(rows).unwrap_or(0);
    assert_eq!(out.top_ids.len(), rows * top);
    check_indices("given", input.given, vocabulary)?;
    check_indices("wanted", input.wanted, top + 1)?;

    let parts = cpu.parts(rows, rows * vocabulary);
    let isa = cpu.isa;
    let blocks = Row::blocks_of(vocabulary);
    let maxima = Own::new(cpu.scratch.scratch::<f32>(Own::<f32>::len(parts, blocks)), blocks);
    let (ranks, flags, chosen) = (Shared::new(out.ranks), Shared::new(out.flags), Shared::new(out.chosen));
    let (top_ids, top_logprobs) = (Shared::new(out.top_ids), Shared::new(out.top_logprobs));
    cpu.pool.run(parts, |thread| {
        let rows = part(rows, parts, thread);
        let tops = rows.start * top..rows.end * top;
        // SAFETY: each part has rows of its own, and a piece of scratch of its own.
        let (out, maxima) = unsafe {
            let out = ScoreOut {
                ranks: ranks.piece(rows.clone()),
                flags: flags.piece(rows.clone()),
                chosen: chosen.piece(rows.clone()),
                top_ids: top_ids.piece(tops.clone()),
                top_logprobs: top_logprobs.piece(tops),
            };
            (out, maxima.of(thread))
        };
        isa.run(Rows { input, out, first: rows.start, top, maxima });
    });
    Ok(())
}

/// The rows of one thread.
struct Rows<'a> {
    input: ScoreRows<'a>,
    out: ScoreOut<'a>,
    first: usize,
    top: usize,
    maxima: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { input, out, first, top, maxima } = self;
        let mut keys = Vec::new();
        for at in 0..out.ranks.len() {
            let row = first + at;
            let (given, wanted) = (input.given[row] as usize, input.wanted[row] as usize);
            let logits = &input.logits[row * input.vocabulary..][..input.vocabulary];
            let (top_ids, top_logprobs) =
                (&mut out.top_ids[at * top..][..top], &mut out.top_logprobs[at * top..][..top]);
            top_ids.fill(0);
            top_logprobs.fill(0.0);
            let (surveyed, is_finite) = Row::survey(simd, logits, maxima);
            if !is_finite {
                (out.ranks[at], out.flags[at], out.chosen[at]) = (0, RESULT_NOT_FINITE as i32, 0.0);
                continue;
            }
            let likeliest = (&mut top_ids[..wanted], &mut top_logprobs[..wanted]);
            out.chosen[at] = logprobs::report(simd, surveyed, given, likeliest, &mut keys);
            (out.ranks[at], out.flags[at]) = (rank(logits, given), 0);
        }
    }
}

/// Counted from 1.
#[inline(always)]
fn rank(logits: &[f32], given: usize) -> i32 {
    let (before, from) = logits.split_at(given);
    let own = from[0];
    let better = |logits: &[f32], or_equal: bool| {
        logits.iter().map(|&logit| i32::from(logit > own || (or_equal && logit == own))).sum::<i32>()
    };
    1 + better(before, true) + better(from, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn each_rows_given_token_has_its_rank_and_its_log_probability() {
        for isa in Isa::available() {
            let mut cpu = Cpu::new(isa, 2);
            let logits = [1.0, 3.0, 3.0, 2.0, 1.0, 3.0, 3.0, 2.0, 0.0, f32::NAN, 0.0, 0.0];
            let (mut ranks, mut flags, mut chosen) = ([9; 3], [9; 3], [9.0; 3]);
            let (mut top_ids, mut top_logprobs) = ([9; 6], [9.0; 6]);
            let out = ScoreOut {
                ranks: &mut ranks,
                flags: &mut flags,
                chosen: &mut chosen,
                top_ids: &mut top_ids,
                top_logprobs: &mut top_logprobs,
            };
            let input = ScoreRows { logits: &logits, vocabulary: 4, given: &[2, 3, 0], wanted: &[2, 1, 2] };
            score(&mut cpu, out, input).unwrap();
            assert_eq!((ranks, flags), ([2, 3, 0], [0, 0, RESULT_NOT_FINITE as i32]));
            assert_eq!(top_ids, [1, 2, 1, 0, 0, 0]);
            let log_sum = logits[..4].iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
            for (got, logit) in [(chosen[0], 3.0), (chosen[1], 2.0), (top_logprobs[0], 3.0), (top_logprobs[2], 3.0)] {
                assert!((f64::from(got) - (logit - log_sum)).abs() < 1e-6, "{got}");
            }
            assert_eq!((chosen[2], &top_logprobs[3..]), (0.0, &[0.0; 3][..]));
        }
    }

    #[test]
    fn logits_whose_distances_to_the_greatest_round_to_one_number_keep_their_order() {
        let logits = [0.1_f32, 16.0, 0.1_f32.next_up(), 0.1_f32.next_down(), 0.1_f32.next_up()];
        assert_eq!(logits[0] - 16.0, logits[2] - 16.0);
        for isa in Isa::available() {
            for (given, rank) in [(0, 4), (1, 1), (2, 2), (3, 5), (4, 3)] {
                let (mut ranks, mut top_ids) = ([9], [9; 4]);
                let out = ScoreOut {
                    ranks: &mut ranks,
                    flags: &mut [9],
                    chosen: &mut [9.0],
                    top_ids: &mut top_ids,
                    top_logprobs: &mut [9.0; 4],
                };
                let input = ScoreRows { logits: &logits, vocabulary: 5, given: &[given], wanted: &[4] };
                score(&mut Cpu::new(isa, 1), out, input).unwrap();
                assert_eq!((ranks, top_ids), ([rank], [1, 2, 4, 0]));
            }
        }
    }

    #[test]
    fn a_token_that_is_none_and_more_than_there_is_room_for_are_refused() {
        let mut cpu = Cpu::new(Isa::best(), 1);
        for (given, wanted, argument) in [(4, 0, "given"), (-1, 0, "given"), (0, 1, "wanted")] {
            let out = ScoreOut {
                ranks: &mut [0],
                flags: &mut [0],
                chosen: &mut [0.0],
                top_ids: &mut [],
                top_logprobs: &mut [],
            };
            let input = ScoreRows { logits: &[0.0; 4], vocabulary: 4, given: &[given], wanted: &[wanted] };
            assert_eq!(score(&mut cpu, out, input).unwrap_err().argument, argument);
        }
    }
}

//! A step in flight: what the engine remembers of it, how its results are read, and what is wrong with those that no worker of
//! ours writes.
//!
//! Never here: plans and frames (`step.rs`), what is done about a worker that is not believed (`driver/losses.rs`).

use std::collections::BTreeSet;

use pelton_core::{RequestId, RowResult, SlotId, StepId, StepResults, TokenId, TokenLogprobs, TokenScore, accepted};
use pelton_frame as frame;

use crate::BadFrames;

/// What the engine remembers of a step in flight: how to read its results.
pub(crate) struct InFlight {
    pub(crate) step: StepId,
    pub(crate) rows: Vec<InFlightRow>,
    pub(crate) drafts: Vec<TokenId>, // of all rows, one row after the other
    pub(crate) tokens: u32,
    pub(crate) submitted: std::time::Instant,
}

/// One row of a step in flight.
#[derive(Clone, Copy)]
pub(crate) struct InFlightRow {
    pub(crate) request: RequestId,
    pub(crate) slot: u32,
    pub(crate) samples: bool,
    pub(crate) drafts: u32,
    pub(crate) pools: bool,
    pub(crate) scores: u32,
    pub(crate) mask: RowMask,
    pub(crate) logprobs: Option<u32>,
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) start: u32,
    pub(crate) count: u32,
}

/// What became of a row's mask.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowMask {
    /// It has none, or it was asked for.
    Settled,
    /// It can be asked for now: all tokens before the draw were known when the step was planned.
    Due,
    /// It can be asked for when the step before has come back.
    Later,
    /// The row before it drew nothing: this one counts for nothing.
    Void,
}

impl InFlight {
    /// KV blocks that the step's requests fill, those that they share counted for each.
    pub(crate) fn blocks(&self, block_size: u32) -> u32 {
        self.rows.iter().map(|row| (row.start + row.count).div_ceil(block_size)).sum()
    }

    /// Who was computed, and which of its tokens: "7[30..31] 9[0..64]".
    pub(crate) fn requests(&self) -> String {
        let row = |row: &InFlightRow| format!("{}[{}..{}]", row.request.0, row.start, row.start + row.count);
        self.rows.iter().map(row).collect::<Vec<_>>().join(" ")
    }
}

/// What is wrong with what a worker has written: the worker is replaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Garbage {
    #[error(transparent)]
    Frame(#[from] frame::FrameError),
    #[error(transparent)]
    Commit(#[from] pelton_core::CommitError),
    #[error("step {step}: the worker drew token {token}; the vocabulary ends at {vocab_size}")]
    Token { step: u64, token: u32, vocab_size: u32 },
    #[error("step {step}: the worker ranked a token {rank}; the vocabulary has {vocab_size}")]
    Rank { step: u64, rank: u32, vocab_size: u32 },
    #[error("step {step}: what was computed for these requests is not finite: {}", names(blamed))]
    NotFinite { step: u64, blamed: BTreeSet<RequestId> },
}

impl Garbage {
    /// Adds one to the counter of its kind.
    pub(crate) fn count(&self, frames: &mut BadFrames) {
        use frame::FrameError::{Checksum, Counter, Header, WorkerFailed};
        let counter = match self {
            Self::Frame(Checksum { .. }) => &mut frames.checksum,
            Self::Frame(Header { field: "step" | "epoch", .. }) | Self::Commit(_) => &mut frames.stale,
            Self::Frame(Counter { .. }) => &mut frames.unasked,
            Self::Frame(WorkerFailed { .. }) => &mut frames.failed,
            Self::Frame(_) | Self::Token { .. } | Self::Rank { .. } | Self::NotFinite { .. } => &mut frames.contents,
        };
        *counter += 1;
    }
}

fn names(requests: &BTreeSet<RequestId>) -> String {
    requests.iter().map(|request| request.0.to_string()).collect::<Vec<_>>().join(" ")
}

/// Results in the order of rows and draws, and the slots whose logits were not finite where it counts, with their requests.
pub(crate) fn read(
    step: &InFlight,
    results: &frame::Results,
    vocab_size: u32,
) -> Result<(StepResults, Vec<(SlotId, RequestId)>), Garbage> {
    assert_eq!(results.step, step.step.0, "the port has checked it");
    let mut not_finite = Vec::new();
    let top_width = results.top.len() / results.sampled.len().max(1);
    let pooled_width = results.pooled.len() / results.sampled.len().max(1);
    let (mut draws, mut vectors, mut scores) = (Vec::with_capacity(results.sampled.len()), Vec::new(), Vec::new());
    let mut first = 0;
    let likeliest = |index: usize, top: u32| {
        results.top[index * top_width..][..top_width].iter().take(top as usize).copied().collect::<Vec<_>>()
    };
    let mut drafts = step.drafts.as_slice();
    for row in &step.rows {
        let mut is_finite = true;
        for index in first..first + row.scores as usize {
            let top = likeliest(index, row.prompt_logprobs.unwrap_or(0));
            let logprobs = TokenLogprobs { chosen: results.chosen[index], top };
            check_tokens(results.step, logprobs.top.iter().map(|&(token, _)| token), vocab_size)?;
            let is_sound = results.flags[index] & frame::RESULT_NOT_FINITE == 0 && is_probable(logprobs.chosen);
            let rank = results.sampled[index];
            if is_sound && !(1..=vocab_size).contains(&rank) {
                return Err(Garbage::Rank { step: results.step, rank, vocab_size });
            }
            is_finite &= is_sound;
            scores.push(TokenScore { rank, logprobs });
        }
        first += row.scores as usize;
        if row.pools {
            let vector = &results.pooled[first * pooled_width..][..pooled_width];
            // JSON has no word for a number that is none: it is not left to the flag alone.
            let is_flagged = results.flags[first] & frame::RESULT_NOT_FINITE != 0;
            is_finite = !is_flagged && vector.iter().all(|number| number.is_finite());
            vectors.push(vector.into());
        }
        let (its_drafts, others) = drafts.split_at(row.drafts as usize);
        drafts = others;
        // Behind a draft that was not drawn nothing means anything.
        let drawn = results.sampled[first..=first + its_drafts.len()].iter().copied();
        let counts = first..=first + accepted(its_drafts, drawn);
        for index in first..=first + its_drafts.len() {
            if !row.samples {
                draws.push(None);
                continue;
            }
            if results.flags[index] & frame::RESULT_UNSAMPLED != 0 {
                draws.push(None); // if it has no mask, the core does not believe it
                continue;
            }
            let token = results.sampled[index];
            let logprobs =
                row.logprobs.map(|top| TokenLogprobs { chosen: results.chosen[index], top: likeliest(index, top) });
            let named = logprobs.iter().flat_map(|logprobs| &logprobs.top).map(|&(token, _)| token);
            check_tokens(results.step, named.chain([token]), vocab_size)?;
            let is_sound = results.flags[index] & frame::RESULT_NOT_FINITE == 0
                && logprobs.iter().all(|logprobs| is_probable(logprobs.chosen));
            is_finite &= is_sound || !counts.contains(&index);
            let logprobs = logprobs.map(Box::new);
            draws.push(Some(RowResult { token, logprobs }));
        }
        first += 1 + its_drafts.len();
        if !is_finite {
            not_finite.push((SlotId(row.slot), row.request));
        }
    }
    Ok((StepResults { step: step.step, took_us: results.duration_us, draws, vectors, scores }, not_finite))
}

fn check_tokens(step: u64, tokens: impl IntoIterator<Item = u32>, vocab_size: u32) -> Result<(), Garbage> {
    match tokens.into_iter().find(|&token| token >= vocab_size) {
        None => Ok(()),
        Some(token) => Err(Garbage::Token { step, token, vocab_size }),
    }
}

/// Whether this is the logarithm of a probability, but for rounding.
fn is_probable(logprob: f32) -> bool {
    logprob < 1e-3
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn told(not_finite: &[(SlotId, RequestId)]) -> Vec<u64> {
        not_finite.iter().map(|(_, request)| request.0).collect()
    }

    fn in_flight(rows: &[(u64, bool, Option<u32>)]) -> InFlight {
        let row = |&(id, samples, logprobs): &(u64, bool, Option<u32>)| InFlightRow {
            request: RequestId(id),
            slot: 0,
            samples,
            drafts: 0,
            pools: false,
            scores: 0,
            mask: RowMask::Settled,
            logprobs,
            prompt_logprobs: None,
            start: 0,
            count: 1,
        };
        InFlight {
            step: StepId(3),
            rows: rows.iter().map(row).collect(),
            drafts: vec![],
            tokens: 1,
            submitted: Instant::now(),
        }
    }

    #[test]
    fn results_come_back_by_row_with_the_logprobs_that_were_asked_for() {
        let step = in_flight(&[(1, false, None), (2, true, None), (3, true, Some(1))]);
        let results = frame::Results {
            step: 3,
            duration_us: 1,
            sampled: vec![99, 5, 6],
            flags: vec![0, frame::RESULT_NOT_FINITE, 0],
            chosen: vec![0.0, 0.0, -0.5],
            top: vec![(0, 0.0), (0, 0.0), (0, 0.0), (0, 0.0), (6, -0.5), (7, -1.0)],
            pooled: Vec::new(),
        };
        let (read, not_finite) = read(&step, &results, 100).expect("valid");
        assert_eq!(told(&not_finite), [2]);
        assert_eq!(read.draws[0], None);
        assert_eq!(read.draws[1], Some(RowResult { token: 5, logprobs: None }));
        let logprobs = read.draws[2].clone().and_then(|row| row.logprobs).expect("asked for");
        assert_eq!(*logprobs, TokenLogprobs { chosen: -0.5, top: vec![(6, -0.5)] });
    }

    #[test]
    fn vectors_come_back_by_row_and_what_is_not_finite_is_told_with_or_without_a_flag() {
        let mut step = in_flight(&[(1, false, None), (2, false, None), (3, false, None), (4, false, None)]);
        step.rows[1..].iter_mut().for_each(|row| row.pools = true);
        let results = frame::Results {
            step: 3,
            sampled: vec![0; 4],
            flags: vec![0, 0, frame::RESULT_NOT_FINITE, 0],
            chosen: vec![0.0; 4],
            pooled: vec![9.0, 9.0, 1.0, 2.0, 3.0, 4.0, f32::INFINITY, 5.0],
            ..frame::Results::default()
        };
        let (read, not_finite) = read(&step, &results, 100).expect("valid");
        assert_eq!(read.draws, vec![None; 4]);
        let vectors: Vec<&[f32]> = read.vectors.iter().map(|vector| &vector[..]).collect();
        assert_eq!(vectors, [&[1.0, 2.0][..], &[3.0, 4.0], &[f32::INFINITY, 5.0]]);
        assert_eq!(told(&not_finite), [3, 4]);
    }

    #[test]
    fn a_row_that_was_not_drawn_has_no_result() {
        let results = frame::Results {
            step: 3,
            sampled: vec![999],
            flags: vec![frame::RESULT_UNSAMPLED],
            chosen: vec![0.0],
            ..frame::Results::default()
        };
        let (read, not_finite) = read(&in_flight(&[(1, true, None)]), &results, 100).expect("valid");
        assert_eq!((&read.draws[..], not_finite.len()), (&[None][..], 0));
    }

    #[test]
    fn a_row_with_drafts_has_a_result_for_each_and_what_is_drawn_behind_a_wrong_one_is_not_looked_at() {
        let mut step = in_flight(&[(1, false, None), (2, true, Some(1)), (3, true, None)]);
        (step.rows[1].drafts, step.drafts) = (2, vec![7, 8]);
        let results = |sampled: [u32; 3], flags: [u32; 3]| frame::Results {
            step: 3,
            sampled: [&[0][..], &sampled, &[6]].concat(),
            flags: [&[0][..], &flags, &[0]].concat(),
            chosen: vec![0.0, -1.0, -2.0, -3.0, -4.0],
            top: (0..5).map(|at| (at, -(at as f32))).collect(),
            ..frame::Results::default()
        };
        let (all, not_finite) = read(&step, &results([7, 9, 5], [0, 0, frame::RESULT_NOT_FINITE]), 100).expect("valid");
        assert!(not_finite.is_empty(), "8 was not drawn");
        let drawn: Vec<_> = all.draws.iter().map(|draw| draw.as_ref().map(|draw| draw.token)).collect();
        assert_eq!(drawn, [None, Some(7), Some(9), Some(5), Some(6)]);
        let logprobs = all.draws[2].as_ref().and_then(|draw| draw.logprobs.as_deref()).expect("asked for");
        assert_eq!(*logprobs, TokenLogprobs { chosen: -2.0, top: vec![(2, -2.0)] });
        let (_, not_finite) = read(&step, &results([7, 8, 5], [0, 0, frame::RESULT_NOT_FINITE]), 100).expect("valid");
        assert_eq!(told(&not_finite), [2]);
    }

    #[test]
    fn what_is_scored_comes_before_what_is_drawn_with_as_many_of_the_likeliest_as_were_asked_for() {
        let mut step = in_flight(&[(1, false, None), (2, true, None)]);
        (step.rows[0].scores, step.rows[0].prompt_logprobs) = (2, Some(1));
        (step.rows[1].scores, step.rows[1].prompt_logprobs) = (1, Some(0));
        let results = |rank, flag| frame::Results {
            step: 3,
            sampled: vec![4, rank, 0, 7, 9],
            flags: vec![0, flag, 0, 0, 0],
            chosen: vec![-4.0, -1.0, 0.0, -7.0, 0.0],
            top: (0..10).map(|at| (at, -0.5)).collect(),
            ..frame::Results::default()
        };
        let (all, not_finite) = read(&step, &results(1, 0), 100).expect("valid");
        let score = |rank, chosen, top| TokenScore { rank, logprobs: TokenLogprobs { chosen, top } };
        let expected = [score(4, -4.0, vec![(0, -0.5)]), score(1, -1.0, vec![(2, -0.5)]), score(7, -7.0, vec![])];
        assert_eq!(all.scores, expected);
        assert_eq!(all.draws, [None, Some(RowResult { token: 9, logprobs: None })]);
        assert!(not_finite.is_empty());
        let (_, not_finite) = read(&step, &results(0, frame::RESULT_NOT_FINITE), 100).expect("valid");
        assert_eq!(told(&not_finite), [1]);
        for rank in [0, 101] {
            assert!(matches!(read(&step, &results(rank, 0), 100), Err(Garbage::Rank { .. })), "{rank}");
        }
    }

    #[test]
    fn an_unknown_token_is_garbage_among_the_likeliest_too() {
        let step = in_flight(&[(1, true, Some(1))]);
        let results = |token, likeliest, beyond| frame::Results {
            step: 3,
            sampled: vec![token],
            flags: vec![0],
            chosen: vec![0.0],
            top: vec![(likeliest, 0.0), (beyond, 0.0)],
            ..frame::Results::default()
        };
        assert!(matches!(read(&step, &results(100, 1, 1), 100), Err(Garbage::Token { token: 100, .. })));
        assert!(matches!(read(&step, &results(1, 101, 1), 100), Err(Garbage::Token { token: 101, .. })));
        assert!(read(&step, &results(99, 99, 500), 100).is_ok(), "one that was not asked for means nothing");
    }

    #[test]
    fn a_log_probability_that_is_none_is_told_without_a_flag() {
        let step = in_flight(&[(1, true, Some(0)), (2, true, None)]);
        for (chosen, told) in
            [(-0.5, 0), (1e-6, 0), (f32::NAN, 1), (f32::INFINITY, 1), (3.0, 1), (f32::NEG_INFINITY, 0)]
        {
            let results = frame::Results {
                step: 3,
                sampled: vec![1, 1],
                flags: vec![0, 0],
                chosen: vec![chosen, f32::NAN], // nobody asked for the second
                ..frame::Results::default()
            };
            let (_, not_finite) = read(&step, &results, 100).expect("valid");
            assert_eq!(not_finite.len(), told, "{chosen}");
        }
    }
}

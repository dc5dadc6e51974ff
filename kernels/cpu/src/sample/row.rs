//! A row of logits that is walked over once. What looks for its best tokens afterwards looks at the blocks that may have them.

use crate::math::filled;
use crate::simd::{LANES, Simd};

/// Tokens that share one entry of a row's table of maxima.
pub(super) const BLOCK: usize = 4 * LANES;

/// A row's logits, and the greatest of each block.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) logits: &'a [f32],
    maxima: &'a [f32],
    pub(super) greatest: f32,
}

/// s = (logit - greatest) / temperature of each token, made where it is looked at: at most 0, so that no temperature overflows.
#[derive(Clone, Copy)]
pub(super) struct Scores<'a> {
    pub(super) row: Row<'a>,
    temperature: f32,
}

impl<'a> Row<'a> {
    /// Entries of the table of a row of so many tokens.
    pub(super) fn blocks_of(vocabulary: usize) -> usize {
        vocabulary.div_ceil(BLOCK)
    }

    /// The row, and whether all of it is finite. `maxima`: of `blocks_of` entries.
    #[inline(always)]
    pub(super) fn survey<S: Simd>(simd: S, logits: &'a [f32], maxima: &'a mut [f32]) -> (Self, bool) {
        let zero = simd.splat(0.0);
        let mut greatest = simd.splat(f32::NEG_INFINITY);
        let mut residues = [zero; BLOCK / LANES]; // 0 · x is NaN for an infinite x, and stays so
        for (block, maximum) in logits.chunks(BLOCK).zip(maxima.iter_mut()) {
            let mut of_block = simd.splat(f32::NEG_INFINITY);
            for (chunk, residue) in block.chunks(LANES).zip(&mut residues) {
                of_block = simd.max(of_block, filled(simd, chunk, f32::NEG_INFINITY));
                *residue = simd.fma(filled(simd, chunk, 0.0), zero, *residue);
            }
            greatest = simd.max(greatest, of_block);
            *maximum = simd.max_lane(of_block);
        }
        let mut is_finite = true;
        for residue in residues {
            is_finite &= simd.sum(residue) == 0.0;
        }
        (Self { logits, maxima, greatest: simd.max_lane(greatest) }, is_finite)
    }

    /// The lowest id of the greatest logit; none, if that is not finite, or hidden behind what is not a number.
    #[inline(always)]
    pub(super) fn first_of_the_greatest(&self) -> Option<usize> {
        if !self.greatest.is_finite() {
            return None;
        }
        let is_it = |&logit: &f32| logit == self.greatest;
        let block = self.maxima.iter().position(is_it)?;
        Some(block * BLOCK + self.logits[block * BLOCK..].iter().position(is_it)?)
    }

    pub(super) fn scored(self, temperature: f32) -> Scores<'a> {
        Scores { row: self, temperature }
    }
}

impl Scores<'_> {
    /// How many tokens there are.
    pub(super) fn len(&self) -> usize {
        self.row.logits.len()
    }

    /// One token's.
    #[inline(always)]
    pub(super) fn of(&self, token: usize) -> f32 {
        self.of_logit(self.row.logits[token])
    }

    #[inline(always)]
    fn of_logit(&self, logit: f32) -> f32 {
        (logit - self.row.greatest) / self.temperature
    }

    /// The number of each block that has a token of at least this score.
    #[inline(always)]
    pub(super) fn blocks_from(&self, least: f32) -> impl Iterator<Item = usize> {
        // Rounding keeps the order, so a block's greatest score is that of its greatest logit.
        self.row
            .maxima
            .iter()
            .enumerate()
            .filter(move |&(_, &greatest)| self.of_logit(greatest) >= least)
            .map(|(at, _)| at)
    }

    /// The greatest of a block.
    #[inline(always)]
    pub(super) fn greatest_of(&self, block: usize) -> f32 {
        self.of_logit(self.row.maxima[block])
    }

    /// A block's, -inf beyond the vocabulary.
    #[inline(always)]
    pub(super) fn block<S: Simd>(&self, simd: S, block: usize) -> [S::V; BLOCK / LANES] {
        let (greatest, temperature) = (simd.splat(self.row.greatest), simd.splat(self.temperature));
        let mut scores = [simd.splat(f32::NEG_INFINITY); BLOCK / LANES];
        let end = self.len().min((block + 1) * BLOCK);
        for (scores, chunk) in scores.iter_mut().zip(self.row.logits[block * BLOCK..end].chunks(LANES)) {
            *scores = simd.div(simd.sub(filled(simd, chunk, f32::NEG_INFINITY), greatest), temperature);
        }
        scores
    }

    /// The score that `count` tokens at least reach, if that many blocks are there: the least of the best blocks' greatest.
    #[inline(always)]
    pub(super) fn reached_by(&self, count: usize) -> Option<f32> {
        if count >= self.row.maxima.len() {
            return None;
        }
        let mut maxima = self.row.maxima.to_vec();
        let (_, &mut least, _) = maxima.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
        Some(self.of_logit(least))
    }
}

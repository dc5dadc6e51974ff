//! What a step takes, learned from the steps that are done: a fixed part, and so much per row, per token and per thousand
//! tokens that attention reads; and per block that is copied between tiers.
//!
//! The four weights are the least squares fit over the latest steps, none of them negative. Steps that only decode and
//! steps with prompts are summed apart and count alike: an hour of decoding does not make the price of a prompt fade.
//! All arithmetic is in integers, so that recorded inputs give the same plans again on any machine.
//! Never here: clocks. How long a step took is what its results say.

use serde::{Deserialize, Serialize};

/// Fixed part, rows, tokens, thousands of tokens read.
const TERMS: usize = 4;
/// Weights are in 2^-16 us.
const WEIGHT_BITS: u32 = 16;
/// Sums keep so many bits behind the point, for they shrink with every step.
const SUM_BITS: u32 = 8;
/// A step's part in the sums falls to 1/e within 2^6 steps of its kind.
const MEMORY_BITS: u32 = 6;
/// Rounds of coordinate descent per step. It goes on where the last step's ended, so few are enough.
const ROUNDS: usize = 8;
/// A step that takes so many times what was foreseen is a hiccup of the machine: only so much of it is believed.
const SURPRISE_MAX: i128 = 4;
/// The same for what the copies of a step take.
const COPY_SURPRISE_MAX: u64 = 4;
/// So many steps of a kind are enough to foresee another one.
const STEPS_KNOWN: u64 = 4;
/// Attention reads a token of context per token computed: counted in units of 2^10, so that sums stay small.
const READ_BITS: u32 = 10;

/// The work of a step, as far as its duration depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Work {
    rows: u64,
    tokens: u64,
    read: u64, // tokens of context, summed over all tokens
    has_prompt: bool,
    copied: u64, // blocks, between tiers
}

impl Work {
    /// One more row, of `count` tokens behind `start` others.
    pub(crate) fn with_row(self, start: u32, count: u32) -> Self {
        let (start, count) = (u64::from(start), u64::from(count));
        Self {
            rows: self.rows + 1,
            tokens: self.tokens + count,
            read: self.read + count * start + count * (count + 1) / 2,
            has_prompt: self.has_prompt || count > 1,
            ..self
        }
    }

    /// So many drafts at the end of a row that was counted, behind `start` tokens. They make no prompt of it: what such rows
    /// take tells decoding steps apart.
    pub(crate) fn with_drafts(self, start: u32, drafts: u32) -> Self {
        let (start, drafts) = (u64::from(start), u64::from(drafts));
        Self { tokens: self.tokens + drafts, read: self.read + drafts * start + drafts * (drafts + 1) / 2, ..self }
    }

    /// So many tokens of a row that are scored. Each takes what a row takes that draws: logits, and a look at all of them.
    pub(crate) fn with_scores(self, scores: u32) -> Self {
        Self { rows: self.rows + u64::from(scores), ..self }
    }

    /// One more block that is copied between tiers.
    pub(crate) fn with_copied_block(self) -> Self {
        Self { copied: self.copied + 1, ..self }
    }

    fn terms(self) -> [i128; TERMS] {
        [1, i128::from(self.rows), i128::from(self.tokens), i128::from(self.read >> READ_BITS)]
    }
}

/// The sums that a least squares fit needs.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Sums {
    products: [[i128; TERMS]; TERMS],
    times: [i128; TERMS],
    steps: u64,
}

impl Sums {
    fn add(&mut self, terms: [i128; TERMS], took: i128) {
        for (row, &left) in self.products.iter_mut().zip(&terms) {
            for (sum, &right) in row.iter_mut().zip(&terms) {
                *sum += ((left * right) << SUM_BITS) - (*sum >> MEMORY_BITS);
            }
        }
        for (sum, &term) in self.times.iter_mut().zip(&terms) {
            *sum += ((term * took) << SUM_BITS) - (*sum >> MEMORY_BITS);
        }
        self.steps += 1;
    }
}

/// What a step is foreseen to take.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Prices {
    weights: [i128; TERMS],
    copied_block: i128,
    /// Whether enough steps that copied blocks between tiers have been seen.
    pub(crate) knows_copies: bool,
    /// Whether enough steps with prompts have been seen.
    pub(crate) knows_prompts: bool,
}

impl Prices {
    /// What a step of so much work will take, in microseconds; 0 as long as nothing is known.
    pub(crate) fn micros(&self, work: Work) -> u64 {
        let sum: i128 = self.weights.iter().zip(work.terms()).map(|(weight, term)| weight * term).sum();
        let sum = sum + self.copied_block * i128::from(work.copied);
        u64::try_from(sum >> WEIGHT_BITS).unwrap_or(u64::MAX)
    }

    /// What it takes to compute the tokens from `start` to `end` of a text, beside the fixed part of a step.
    pub(crate) fn computing(&self, start: u32, end: u32) -> u64 {
        let until = |tokens| self.micros(Work::default().with_row(0, tokens));
        until(end).saturating_sub(until(start))
    }

    /// What it takes to copy so many blocks between tiers.
    pub(crate) fn copying(&self, blocks: u64) -> u64 {
        u64::try_from((self.copied_block * i128::from(blocks)) >> WEIGHT_BITS).unwrap_or(u64::MAX)
    }

    /// How many tokens, at most `max`, a row may have so that all of the step takes no longer than `limit_us`. `with`: the step's
    /// work with a row of so many; a longer row never takes less, so halving finds it.
    pub(crate) fn tokens_within(&self, limit_us: u64, max: u32, with: impl Fn(u32) -> Work) -> u32 {
        let (mut fitting, mut beyond) = (0, max + 1);
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            let fits = self.micros(with(middle)) <= limit_us;
            *(if fits { &mut fitting } else { &mut beyond }) = middle;
        }
        fitting
    }
}

/// See the top of the file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CostModel {
    decoding: Sums,
    prompts: Sums,
    copies: CopySums,
    prices: Prices,
}

/// The sums for the price of a block that is copied between tiers: fitted to what steps take beyond what their rows do.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct CopySums {
    squares: i128,
    times: i128,
    steps: u64,
}

impl CostModel {
    pub(crate) fn prices(&self) -> Prices {
        self.prices
    }

    /// A step of so much work took so long.
    pub(crate) fn learn(&mut self, work: Work, took_us: u32) {
        if took_us == 0 {
            return; // nobody has measured it
        }
        let Some(took_us) = self.without_copies(work, took_us) else { return };
        let work = Work { copied: 0, ..work };
        let foreseen = i128::from(self.prices.micros(work));
        let sums = if work.has_prompt { &mut self.prompts } else { &mut self.decoding };
        let took = i128::from(took_us);
        let believed = if sums.steps >= STEPS_KNOWN && foreseen > 0 { took.min(foreseen * SURPRISE_MAX) } else { took };
        sums.add(work.terms(), believed);
        self.fit();
        self.prices.knows_prompts = self.prompts.steps >= STEPS_KNOWN;
    }

    /// What a step's rows took, if it had any; what is beyond their price teaches that of the blocks it copied.
    fn without_copies(&mut self, work: Work, took_us: u32) -> Option<u32> {
        if work.copied == 0 {
            return Some(took_us);
        }
        let rows = if work.rows > 0 { self.prices.micros(Work { copied: 0, ..work }) } else { 0 };
        if work.rows == 0 || self.decoding.steps + self.prompts.steps >= STEPS_KNOWN {
            let beyond = u64::from(took_us).saturating_sub(rows);
            let foreseen = self.prices.copying(work.copied);
            let believed =
                if self.prices.knows_copies { beyond.min((foreseen + 1) * COPY_SURPRISE_MAX) } else { beyond };
            let sums = &mut self.copies;
            let blocks = i128::from(work.copied);
            sums.squares += ((blocks * blocks) << SUM_BITS) - (sums.squares >> MEMORY_BITS);
            sums.times += ((blocks * i128::from(believed)) << SUM_BITS) - (sums.times >> MEMORY_BITS);
            sums.steps += 1;
            self.prices.copied_block = (sums.times << WEIGHT_BITS) / sums.squares.max(1);
            self.prices.knows_copies = sums.steps >= STEPS_KNOWN;
        }
        let copying = u32::try_from(self.prices.copying(work.copied)).unwrap_or(u32::MAX);
        (work.rows > 0).then(|| took_us.saturating_sub(copying).max(1))
    }

    /// Coordinate descent on the squared error: each weight in turn takes its best value beside the others.
    fn fit(&mut self) {
        let mut weights = self.prices.weights;
        for _ in 0..ROUNDS {
            for term in 0..TERMS {
                let product = |other: usize| self.decoding.products[term][other] + self.prompts.products[term][other];
                let times = self.decoding.times[term] + self.prompts.times[term];
                let others: i128 =
                    (0..TERMS).filter(|&other| other != term).map(|other| product(other) * weights[other]).sum();
                // Where the steps cannot tell two terms apart, a little inertia keeps both where they are.
                let inertia = product(term) >> 10;
                let best = (times << WEIGHT_BITS) - others + inertia * weights[term];
                weights[term] = (best / (product(term) + inertia).max(1)).max(0);
            }
        }
        self.prices.weights = weights;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that the model does not know: dearer than linear where the batch is small.
    fn machine(work: Work) -> u32 {
        let compute = work.tokens * 90 + work.rows * 12 + work.read / 150;
        u32::try_from(4_000 + compute.max(2_500)).expect("small")
    }

    fn decoding(rows: u32, context: u32) -> Work {
        (0..rows).fold(Work::default(), |work, _| work.with_row(context, 1))
    }

    #[test]
    fn it_foresees_steps_that_it_has_never_seen_within_a_tenth() {
        let mut model = CostModel::default();
        let mut seed = 1_u32;
        let mut random = |max: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % max
        };
        for step in 0..400 {
            let mut work = decoding(32 + random(64), 200 + random(2_000));
            if step % 3 == 0 {
                work = work.with_row(random(4_000), 64 + random(512));
            }
            let noise = 95 + random(11);
            model.learn(work, machine(work) * noise / 100);
        }
        for (rows, context, start, chunk) in [(40, 500, 0, 100), (90, 2_000, 3_000, 500), (64, 1_000, 100, 256)] {
            let work = decoding(rows, context).with_row(start, chunk);
            let (foreseen, real) = (model.prices().micros(work), u64::from(machine(work)));
            assert!(foreseen.abs_diff(real) * 10 <= real, "{work:?}: foreseen {foreseen}, took {real}");
        }
    }

    #[test]
    fn a_long_time_of_decoding_does_not_make_the_price_of_a_prompt_fade() {
        let mut model = CostModel::default();
        for chunk in 1..100 {
            model.learn(decoding(8, 100).with_row(0, chunk * 5), machine(decoding(8, 100).with_row(0, chunk * 5)));
        }
        let work = decoding(8, 100).with_row(0, 300);
        let before = model.prices().micros(work);
        for _ in 0..10_000 {
            model.learn(decoding(8, 100), machine(decoding(8, 100)));
        }
        let after = model.prices().micros(work);
        assert!(after.abs_diff(before) * 10 <= before, "{before} became {after}");
    }

    #[test]
    fn one_hiccup_is_not_believed() {
        let mut model = CostModel::default();
        for _ in 0..50 {
            model.learn(decoding(8, 100), 5_000);
        }
        model.learn(decoding(8, 100), 60_000_000);
        assert!(model.prices().micros(decoding(8, 100)) < 6_000);
    }

    #[test]
    fn the_chunk_is_the_longest_that_fits() {
        let mut model = CostModel::default();
        for chunk in 2..200 {
            let work = decoding(4, 50).with_row(0, chunk);
            model.learn(work, machine(work));
        }
        let work = decoding(4, 50);
        for limit in [0, 5_000, 9_000, 20_000, 1_000_000] {
            let chunk = model.prices().tokens_within(limit, 300, |count| work.with_row(10, count));
            assert!(chunk == 0 || model.prices().micros(work.with_row(10, chunk)) <= limit);
            assert!(chunk == 300 || model.prices().micros(work.with_row(10, chunk + 1)) > limit);
        }
    }

    #[test]
    fn the_price_of_a_copied_block_is_told_from_that_of_the_rows() {
        let mut model = CostModel::default();
        let copying = |work: Work, blocks: u32| (0..blocks).fold(work, |work, _| work.with_copied_block());
        for step in 0..400 {
            let blocks = [0, 3, 0, 8, 1][step as usize % 5];
            let work = copying(decoding(32 + step % 17, 400), blocks);
            model.learn(work, machine(decoding(32 + step % 17, 400)) + 300 * blocks);
            if step % 50 == 0 {
                model.learn(copying(Work::default(), 4), 1_200); // nothing but copies
            }
        }
        let price = model.prices().copying(1_000);
        assert!(model.prices().knows_copies && price.abs_diff(300_000) <= 30_000, "{price}");
        let (foreseen, real) = (model.prices().micros(decoding(40, 400)), u64::from(machine(decoding(40, 400))));
        assert!(foreseen.abs_diff(real) * 10 <= real, "foreseen {foreseen}, took {real}");
    }

    #[test]
    fn a_step_that_nobody_measured_teaches_nothing() {
        let mut model = CostModel::default();
        model.learn(decoding(4, 50), 0);
        assert_eq!(model.prices().micros(decoding(4, 50)), 0);
        assert!(!model.prices().knows_prompts);
    }
}

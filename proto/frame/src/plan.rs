//! A plan as borrowed records: how it is signed, and what must be true of it. Both sides run the same check: the router
//! before it publishes (what fails there is our bug), the worker before it hands anything out.

use std::ops::RangeInclusive;

use crate::{
    Admit, Append, Bias, Copy, FrameError, FrameHeader, Layout, Load, ROW_MASKED, ROW_POOLS, ROW_SAMPLES, Region, Row,
    Save,
    checksum::{Checksum, halves, whole},
};

/// How many regions the plan part has, without the header.
pub(crate) const PARTS: usize = 12;

/// Regions of the plan part in their order, without the header.
pub(crate) const PLAN_REGIONS: [Region; PARTS] = [
    Region::Drops,
    Region::Admits,
    Region::Biases,
    Region::Suppressed,
    Region::History,
    Region::Appends,
    Region::Saves,
    Region::Loads,
    Region::Copies,
    Region::Rows,
    Region::Tokens,
    Region::Embeds,
];

/// One step's plan. Applied in the order: drops, admits, appends, saves, loads, copies, rows. So a save reads what the
/// steps before have left, and copies and rows find what a load has brought.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PlanView<'a> {
    /// Counted from 1 within an epoch, without gaps.
    pub step: u64,
    /// Slots whose requests have left.
    pub drops: &'a [u32],
    /// Requests that enter a slot.
    pub admits: &'a [Admit],
    /// Logit biases of all admits.
    pub biases: &'a [Bias],
    /// Suppressed ids of all admits.
    pub suppressed: &'a [u32],
    /// Prompt and output of all admits with penalties.
    pub history: &'a [u32],
    /// Blocks put into tables.
    pub appends: &'a [Append],
    /// Blocks copied to host memory, before anything of this step writes.
    pub saves: &'a [Save],
    /// Blocks copied back from there, before copies and rows read.
    pub loads: &'a [Load],
    /// Copies between blocks.
    pub copies: &'a [Copy],
    /// What is computed.
    pub rows: &'a [Row],
    /// The known tokens of all rows.
    pub tokens: &'a [u32],
    /// The embeddings of all rows.
    pub embeds: &'a [f32],
}

/// What the ids of a plan may be, as far as the checking side knows. `ANY` where it knows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// KV blocks of the worker.
    pub blocks: u32,
    /// Kinds of layers, and so tables of a slot.
    pub kinds: u32,
    /// Blocks of the host memory that the worker maps; 0: it maps none.
    pub host_blocks: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// Token ids are below this.
    pub vocab: u32,
    /// Positions are below this.
    pub positions: u32,
}

impl Bounds {
    /// No bound.
    pub const ANY: Self = Self {
        blocks: u32::MAX,
        kinds: u32::MAX,
        host_blocks: u32::MAX,
        block_size: u32::MAX,
        vocab: u32::MAX,
        positions: u32::MAX,
    };

    /// Places of a table: those of the longest context.
    fn places(&self) -> u32 {
        if self.positions == u32::MAX { u32::MAX } else { self.positions.div_ceil(self.block_size) }
    }
}

impl<'a> PlanView<'a> {
    /// The words of each region, in the order of `PLAN_REGIONS`.
    pub(crate) fn parts(&self) -> [&'a [u32]; PARTS] {
        [
            self.drops,
            bytemuck::cast_slice(self.admits),
            bytemuck::cast_slice(self.biases),
            self.suppressed,
            self.history,
            bytemuck::cast_slice(self.appends),
            bytemuck::cast_slice(self.saves),
            bytemuck::cast_slice(self.loads),
            bytemuck::cast_slice(self.copies),
            bytemuck::cast_slice(self.rows),
            self.tokens,
            bytemuck::cast_slice(self.embeds),
        ]
    }

    /// The signed header of this plan.
    pub(crate) fn header(&self, epoch: u32, top: bool) -> FrameHeader {
        let (step_lo, step_hi) = halves(self.step);
        let count = |len: usize| u32::try_from(len).expect("counts were checked against capacities");
        let mut header = FrameHeader {
            step_lo,
            step_hi,
            epoch,
            drops: count(self.drops.len()),
            admits: count(self.admits.len()),
            appends: count(self.appends.len()),
            copies: count(self.copies.len()),
            biases: count(self.biases.len()),
            suppressed: count(self.suppressed.len()),
            history: count(self.history.len()),
            rows: count(self.rows.len()),
            tokens: count(self.tokens.len()),
            top: u32::from(top),
            saves: count(self.saves.len()),
            loads: count(self.loads.len()),
            draws: self.draws(),
            embeds: self.rows.iter().map(|row| row.embeds).sum(),
            ..FrameHeader::default()
        };
        (header.checksum_lo, header.checksum_hi) = halves(plan_checksum(&header, self.parts()));
        header
    }

    /// Records of each region of the result. Of a checked plan at most the slots and the scores.
    pub fn draws(&self) -> u32 {
        self.rows.iter().map(|row| 1 + row.drafts + row.scores).sum()
    }

    /// Whether some row gives a vector: then the result carries them.
    pub(crate) fn pools(&self) -> bool {
        self.rows.iter().any(|row| row.flags & ROW_POOLS != 0)
    }

    /// Whether everything fits, stays inside its bounds, and offsets are what they count.
    pub(crate) fn check(&self, layout: &Layout, bounds: &Bounds) -> Result<(), FrameError> {
        self.check_counts(layout)?;
        let slots = below(layout.capacities().slots);
        let mut at = Cursor { step: self.step, region: Region::Drops, index: 0 };
        for (index, slot) in self.drops.iter().enumerate() {
            (at.region, at.index) = (Region::Drops, index);
            at.within("slot", *slot, &slots)?;
        }
        self.check_admits(&mut at, layout, bounds)?;
        for (index, append) in self.appends.iter().enumerate() {
            (at.region, at.index) = (Region::Appends, index);
            at.within("slot", append.slot, &slots)?;
            at.within("kind", append.kind, &below(bounds.kinds))?;
            at.within("at", append.at, &below(bounds.places()))?;
            at.within("block", append.block, &below(bounds.blocks))?;
        }
        for (index, save) in self.saves.iter().enumerate() {
            (at.region, at.index) = (Region::Saves, index);
            at.within("block", save.block, &below(bounds.blocks))?;
            at.within("host_block", save.host_block, &below(bounds.host_blocks))?;
        }
        for (index, load) in self.loads.iter().enumerate() {
            (at.region, at.index) = (Region::Loads, index);
            at.within("host_block", load.host_block, &below(bounds.host_blocks))?;
            at.within("block", load.block, &below(bounds.blocks))?;
        }
        for (index, copy) in self.copies.iter().enumerate() {
            (at.region, at.index) = (Region::Copies, index);
            at.within("from", copy.from, &below(bounds.blocks))?;
            at.within("to", copy.to, &below(bounds.blocks))?;
            at.within("tokens", copy.tokens, &(0..=bounds.block_size))?;
        }
        self.check_rows(&mut at, layout, bounds)
    }

    fn check_counts(&self, layout: &Layout) -> Result<(), FrameError> {
        for (region, words) in PLAN_REGIONS.into_iter().zip(self.parts()) {
            let place = layout.place(region);
            let got = words.len().div_ceil(place.words.max(1)) as u64; // where nothing has a width, there is nothing
            if got > u64::from(place.capacity) {
                return Err(FrameError::TooMany { step: self.step, region, got, capacity: place.capacity });
            }
        }
        Ok(())
    }

    fn check_admits(&self, at: &mut Cursor, layout: &Layout, bounds: &Bounds) -> Result<(), FrameError> {
        let mut taken = vec![false; layout.capacities().slots as usize];
        for (index, admit) in self.admits.iter().enumerate() {
            (at.region, at.index) = (Region::Admits, index);
            at.vacant("slot", admit.slot, &mut taken)?;
            at.within("top_logprobs", admit.top_logprobs, &(0..=layout.capacities().top_logprobs))?;
            at.within("score_top", admit.score_top, &(0..=layout.capacities().top_logprobs))?;
            at.part("bias_offset + bias_count", admit.bias_offset, admit.bias_count, self.biases.len())?;
            let told = if admit.told_count == 0 { 0..=0 } else { admit.top_logprobs..=admit.top_logprobs };
            at.within("told_count", admit.told_count, &told)?;
            at.part(
                "suppress_offset + suppress_count + told_count",
                admit.suppress_offset,
                admit.suppress_count.saturating_add(admit.told_count),
                self.suppressed.len(),
            )?;
            at.part("history_offset + history_count", admit.history_offset, admit.history_count, self.history.len())?;
        }
        for (index, bias) in self.biases.iter().enumerate() {
            (at.region, at.index) = (Region::Biases, index);
            at.within("token", bias.token, &below(bounds.vocab))?;
        }
        at.tokens(Region::Suppressed, self.suppressed, bounds)?;
        at.tokens(Region::History, self.history, bounds)
    }

    fn check_rows(&self, at: &mut Cursor, layout: &Layout, bounds: &Bounds) -> Result<(), FrameError> {
        let capacities = layout.capacities();
        let mut taken = vec![false; capacities.slots as usize];
        let (mut tokens, mut flat, mut drafts, mut scores, mut embeds) = (0, 0, 0, 0, 0);
        for (index, row) in self.rows.iter().enumerate() {
            (at.region, at.index) = (Region::Rows, index);
            at.vacant("slot", row.slot, &mut taken)?;
            at.within("count", row.count, &(1..=capacities.tokens - flat))?; // empty once the step is full
            at.within("start", row.start, &(0..=bounds.positions.saturating_sub(row.count)))?;
            at.within("known", row.known, &(row.count - 1..=row.count))?;
            let drafts_max = if row.flags == ROW_SAMPLES && row.known == row.count { row.count - 1 } else { 0 };
            let left = capacities.slots.saturating_sub(drafts + self.rows.len() as u32);
            at.within("drafts", row.drafts, &(0..=drafts_max.min(left)))?;
            drafts += row.drafts;
            at.scores(row, capacities.scores - scores, bounds)?;
            scores += row.scores;
            let embeds_max = if row.flags & ROW_POOLS == 0 { row.known - row.drafts } else { 0 };
            at.within("embeds", row.embeds, &(0..=embeds_max.min(capacities.embeds - embeds)))?;
            embeds += row.embeds;
            at.within("token_offset", row.token_offset, &(tokens..=tokens))?;
            at.within("row_offset", row.row_offset, &(flat..=flat))?;
            at.within("flags", row.flags, &(0..=ROW_SAMPLES | ROW_MASKED | ROW_POOLS))?;
            if row.flags & (ROW_SAMPLES | ROW_MASKED) == ROW_MASKED {
                return Err(at.error("flags", row.flags.into(), "a mask where a token is drawn".to_owned()));
            }
            if row.flags & ROW_POOLS != 0 && (row.flags != ROW_POOLS || capacities.pooled_width == 0) {
                let words = "to pool alone, where frames carry vectors".to_owned();
                return Err(at.error("flags", row.flags.into(), words));
            }
            tokens += row.known; // at most `flat`, which is at most the capacity
            flat += row.count;
        }
        if self.tokens.len() != tokens as usize {
            let (got, expected) = (self.tokens.len() as u64, tokens.into());
            return Err(FrameError::Header { part: "plan", field: "tokens", got, expected });
        }
        let embedded = u64::from(embeds) * u64::from(capacities.embed_width);
        if self.embeds.len() as u64 != embedded {
            let got = self.embeds.len() as u64;
            return Err(FrameError::Header { part: "plan", field: "embeds", got, expected: embedded });
        }
        at.tokens(Region::Tokens, self.tokens, bounds)
    }
}

/// Over the header without its checksum, then the used words.
pub(crate) fn plan_checksum(header: &FrameHeader, parts: [&[u32]; PARTS]) -> u64 {
    let unsigned = FrameHeader { checksum_lo: 0, checksum_hi: 0, ..*header };
    let sum = Checksum::new().absorb(bytemuck::cast_ref::<_, [u32; FrameHeader::WORDS]>(&unsigned));
    parts.into_iter().fold(sum, Checksum::absorb).finish()
}

impl FrameHeader {
    /// The step.
    pub const fn step(&self) -> u64 {
        whole(self.step_lo, self.step_hi)
    }

    /// Records of each region, in the order of `PLAN_REGIONS`.
    pub(crate) const fn counts(&self) -> [u32; PARTS] {
        [
            self.drops,
            self.admits,
            self.biases,
            self.suppressed,
            self.history,
            self.appends,
            self.saves,
            self.loads,
            self.copies,
            self.rows,
            self.tokens,
            self.embeds,
        ]
    }
}

/// Which record is being checked, for the error.
struct Cursor {
    step: u64,
    region: Region,
    index: usize,
}

impl Cursor {
    /// Inlined, as a step has some ten of these a row: what is left of one is two comparisons.
    #[inline]
    fn within(&self, field: &'static str, got: u32, allowed: &RangeInclusive<u32>) -> Result<(), FrameError> {
        if *allowed.start() <= got && got <= *allowed.end() { Ok(()) } else { Err(self.outside(field, got, allowed)) }
    }

    #[inline]
    fn vacant(&self, field: &'static str, slot: u32, taken: &mut [bool]) -> Result<(), FrameError> {
        match taken.get_mut(slot as usize) {
            Some(is_taken) if !*is_taken => {
                *is_taken = true;
                Ok(())
            }
            Some(_) => Err(self.error(field, slot.into(), "each slot once".to_owned())),
            None => Err(self.outside(field, slot, &below(taken.len() as u32))),
        }
    }

    #[inline]
    fn scores(&self, row: &Row, left: u32, bounds: &Bounds) -> Result<(), FrameError> {
        let samples = row.flags & ROW_SAMPLES;
        let most = match () {
            () if row.flags & ROW_POOLS != 0 || row.drafts > 0 || row.known != row.count => 0,
            () => (row.count - samples).min(left),
        };
        self.within("scores", row.scores, &(0..=most))?;
        let is_followed = row.scores > 0 && samples == 0;
        self.within("next", row.next, &if is_followed { below(bounds.vocab) } else { 0..=0 })
    }

    fn part(&self, field: &'static str, offset: u32, count: u32, len: usize) -> Result<(), FrameError> {
        let end = u64::from(offset) + u64::from(count);
        if end <= len as u64 { Ok(()) } else { Err(self.error(field, end, format!("0 to {len}"))) }
    }

    fn tokens(&mut self, region: Region, tokens: &[u32], bounds: &Bounds) -> Result<(), FrameError> {
        self.region = region;
        match tokens.iter().position(|token| *token >= bounds.vocab) {
            None => Ok(()),
            Some(index) => {
                self.index = index;
                self.within("token", tokens[index], &below(bounds.vocab))
            }
        }
    }

    #[cold]
    fn outside(&self, field: &'static str, got: u32, allowed: &RangeInclusive<u32>) -> FrameError {
        let words =
            if allowed.is_empty() { "none".to_owned() } else { format!("{} to {}", allowed.start(), allowed.end()) };
        self.error(field, got.into(), words)
    }

    #[cold]
    fn error(&self, field: &'static str, got: u64, allowed: String) -> FrameError {
        FrameError::Bound { step: self.step, region: self.region, index: self.index, field, got, allowed }
    }
}

/// The range of ids below `count`. Empty for 0.
#[inline]
#[allow(clippy::reversed_empty_ranges)] // 1..=0 is how an inclusive range says "nothing"
fn below(count: u32) -> RangeInclusive<u32> {
    if count == 0 { 1..=0 } else { 0..=count - 1 }
}

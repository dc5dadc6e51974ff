//! One step in the contract's order: drops, admits, appends, saves, loads, copies, rows.

use pelton_cpu::program::{CallBacks, Program, Stop};
use pelton_cpu::{Cpu, HostBlocks, Refusal};
use pelton_frame::{MaskState, PlanView, RESULT_NOT_FINITE};

use crate::batch::{Arrays, Batch, NoRoom};
use crate::rules::{Drawn, DrawnRows, RowMasks, Rules};

/// Why a step could not be computed. What it left behind is of no known state.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The plan's rows have no place for their KV.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// A kernel refused what lies in the step.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The program stopped.
    #[error(transparent)]
    Stopped(#[from] Stop),
}

/// Fetches the masks of some slots for a step: the words of those that are here, one after the other, and a state for each
/// slot. It may wait for them.
pub type TakeMasks<'a> = &'a mut dyn FnMut(u64, &[u32], &mut Vec<u32>, &mut Vec<MaskState>);

/// What the batch is made for.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Requests at once.
    pub slots: usize,
    /// Kinds of layers: a slot has a block table for each.
    pub kinds: usize,
    /// Tokens of the longest request.
    pub positions: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Tokens there are.
    pub vocabulary: usize,
    /// Likeliest tokens that a result can carry per row.
    pub top_logprobs: usize,
    /// Numbers of the vector that a row is pooled to; 0: rows draw tokens.
    pub pooled_width: usize,
    /// What the model multiplies embeddings with that are given in the place of tokens, in the program's format.
    pub embed_scale: f32,
}

/// The state of one router's requests, from step to step.
pub struct Steps {
    batch: Batch,
    rules: Rules,
    top_logprobs: usize,
    pooled_width: usize,
    embed_scale: f32,
    arrays: Arrays,
    drawn: Drawn,
    scored: Drawn,
    masks: RowMasks,
    lists: [Vec<i32>; 3], // columns of the plan's moves
    results: RowResults,
}

/// By row of the step, with one more place for each of its drafts and, before these, its scores; zero where a row does not draw.
/// As words, floats by their bits.
#[derive(Default)]
pub struct RowResults {
    /// The tokens drawn, and the ranks of those that were scored.
    pub sampled: Vec<u32>,
    /// `RESULT_*`.
    pub flags: Vec<u32>,
    /// Their log-probabilities.
    pub chosen: Vec<u32>,
    /// `[draws, top_logprobs]`.
    pub top_ids: Vec<u32>,
    /// The log-probabilities of these.
    pub top_logprobs: Vec<u32>,
    /// `[rows, pooled_width]`: the vectors.
    pub pooled: Vec<u32>,
}

impl Steps {
    /// Empty slots.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            batch: Batch::new(sizes.kinds, sizes.slots, sizes.positions.div_ceil(sizes.block_size), sizes.block_size),
            rules: Rules::new(sizes.slots, sizes.vocabulary),
            top_logprobs: sizes.top_logprobs,
            pooled_width: sizes.pooled_width,
            embed_scale: sizes.embed_scale,
            arrays: Arrays::default(),
            drawn: Drawn::default(),
            scored: Drawn::default(),
            masks: RowMasks::default(),
            lists: Default::default(),
            results: RowResults::default(),
        }
    }

    /// Computes a checked plan. `host`: the router's memory of saved blocks, if it has handed one over; without it the bounds
    /// of the check let no plan name any. `masks` is asked when the logits are there. After an error these slots mean nothing any more.
    pub fn run(
        &mut self,
        cpu: &mut Cpu,
        program: &mut Program,
        host: Option<HostBlocks<'_>>,
        call_backs: &mut dyn CallBacks,
        masks: Option<TakeMasks<'_>>,
        plan: &PlanView<'_>,
    ) -> Result<&RowResults, StepError> {
        self.batch.apply(plan)?;
        self.rules.admit(plan);
        if let Some(host) = host {
            self.exchange(cpu, program, host, plan)?;
        }
        self.copy(cpu, program, plan)?;
        self.batch.lay_out(plan, self.rules.latest(), &mut self.arrays)?;
        self.results.clear(plan.draws() as usize, self.top_logprobs, self.pooled_width);
        if plan.rows.is_empty() {
            return Ok(&self.results);
        }
        program.run(cpu, &self.arrays.rows(plan.embeds, self.embed_scale), call_backs)?;
        if self.pooled_width > 0 {
            self.results.pool(&self.arrays.drawn_results, program.logits(), self.pooled_width);
            return Ok(&self.results);
        }
        let Arrays { drawn_slots, drawn_positions, scored_tokens, scored_slots, .. } = &self.arrays;
        let (top, logits) = (self.top_logprobs, program.logits());
        let (drawn, scored) = logits.split_at(logits.len() - scored_tokens.len() * self.rules.vocabulary());
        if !scored_tokens.is_empty() {
            self.rules.score(cpu, scored, scored_tokens, scored_slots, top, &mut self.scored)?;
            self.results.scatter(&self.arrays.scored_results, &self.scored, top);
        }
        if !drawn_slots.is_empty() {
            self.masks.take(plan, &self.arrays.drawn_rows, masks);
            let rows = DrawnRows { slots: drawn_slots, positions: drawn_positions, masks: &self.masks };
            self.rules.draw(cpu, drawn, rows, top, &mut self.drawn)?;
            self.results.scatter(&self.arrays.drawn_results, &self.drawn, top);
        }
        Ok(&self.results)
    }

    fn exchange(
        &mut self,
        cpu: &mut Cpu,
        program: &mut Program,
        host: HostBlocks<'_>,
        plan: &PlanView<'_>,
    ) -> Result<(), Refusal> {
        let [from, to, _] = &mut self.lists;
        if !plan.saves.is_empty() {
            column(from, plan.saves, |save| save.block);
            column(to, plan.saves, |save| save.host_block);
            program.save_blocks(cpu, host, from, to)?;
        }
        if !plan.loads.is_empty() {
            column(from, plan.loads, |load| load.host_block);
            column(to, plan.loads, |load| load.block);
            program.load_blocks(cpu, host, from, to)?;
        }
        Ok(())
    }

    fn copy(&mut self, cpu: &mut Cpu, program: &mut Program, plan: &PlanView<'_>) -> Result<(), Refusal> {
        if plan.copies.is_empty() {
            return Ok(());
        }
        let [from, to, tokens] = &mut self.lists;
        column(from, plan.copies, |copy| copy.from);
        column(to, plan.copies, |copy| copy.to);
        column(tokens, plan.copies, |copy| copy.tokens);
        program.copy_blocks(cpu, from, to, tokens)
    }
}

/// One field of all records, in the kernels' format. Ids and counts were checked against bounds that fit 31 bits.
fn column<T>(list: &mut Vec<i32>, records: &[T], field: impl Fn(&T) -> u32) {
    list.clear();
    list.extend(records.iter().map(|record| field(record) as i32));
}

impl RowResults {
    fn clear(&mut self, draws: usize, top: usize, width: usize) {
        self.pooled.clear();
        self.pooled.resize(draws * width, 0);
        for list in [&mut self.sampled, &mut self.flags, &mut self.chosen] {
            list.clear();
            list.resize(draws, 0);
        }
        for list in [&mut self.top_ids, &mut self.top_logprobs] {
            list.clear();
            list.resize(draws * top, 0);
        }
    }

    /// `vectors`: one for each of `places`.
    fn pool(&mut self, places: &[usize], vectors: &[f32], width: usize) {
        assert_eq!(vectors.len(), places.len() * width, "the program's result has the model's width");
        for (&place, vector) in places.iter().zip(vectors.chunks_exact(width)) {
            for (to, value) in self.pooled[place * width..][..width].iter_mut().zip(vector) {
                *to = value.to_bits();
            }
            if !vector.iter().all(|value| value.is_finite()) {
                self.flags[place] = RESULT_NOT_FINITE;
            }
        }
    }

    fn scatter(&mut self, places: &[usize], drawn: &Drawn, top: usize) {
        for (at, &place) in places.iter().enumerate() {
            self.sampled[place] = drawn.tokens[at] as u32;
            self.flags[place] = drawn.flags[at] as u32;
            self.chosen[place] = drawn.chosen[at].to_bits();
            for likeliest in 0..top {
                self.top_ids[place * top + likeliest] = drawn.top_ids[at * top + likeliest] as u32;
                self.top_logprobs[place * top + likeliest] = drawn.top_logprobs[at * top + likeliest].to_bits();
            }
        }
    }
}

//! One step in the contract's order: drops, admits, appends, copies, rows.

use pelton_cpu::program::{CallBacks, Program, Stop};
use pelton_cpu::{Cpu, Refusal};
use pelton_frame::PlanView;

use crate::batch::{Arrays, Batch, NoRoom};
use crate::rules::{Drawn, Rules};

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

/// What the batch is made for.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Requests at once.
    pub slots: usize,
    /// Tokens of the longest request.
    pub positions: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Tokens there are.
    pub vocabulary: usize,
    /// Likeliest tokens that a result can carry per row.
    pub top_logprobs: usize,
}

/// The state of one router's requests, from step to step.
pub struct Steps {
    batch: Batch,
    rules: Rules,
    top_logprobs: usize,
    arrays: Arrays,
    drawn: Drawn,
    copies: [Vec<i32>; 3],
    results: RowResults,
}

/// By row of the step; zero where a row does not draw. As words, floats by their bits.
#[derive(Default)]
pub struct RowResults {
    /// The token drawn.
    pub sampled: Vec<u32>,
    /// `RESULT_*`.
    pub flags: Vec<u32>,
    /// Its log-probability.
    pub chosen: Vec<u32>,
    /// `[rows, top_logprobs]`.
    pub top_ids: Vec<u32>,
    /// Their log-probabilities.
    pub top_logprobs: Vec<u32>,
}

impl Steps {
    /// Empty slots.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            batch: Batch::new(sizes.slots, sizes.positions.div_ceil(sizes.block_size), sizes.block_size),
            rules: Rules::new(sizes.slots, sizes.vocabulary),
            top_logprobs: sizes.top_logprobs,
            arrays: Arrays::default(),
            drawn: Drawn::default(),
            copies: Default::default(),
            results: RowResults::default(),
        }
    }

    /// Computes a checked plan. After an error these slots mean nothing any more.
    pub fn run(
        &mut self,
        cpu: &mut Cpu,
        program: &mut Program,
        call_backs: &mut dyn CallBacks,
        plan: &PlanView<'_>,
    ) -> Result<&RowResults, StepError> {
        self.batch.apply(plan)?;
        self.rules.admit(plan);
        self.copy(cpu, program, plan)?;
        self.batch.lay_out(plan, self.rules.latest(), &mut self.arrays)?;
        self.results.clear(plan.rows.len(), self.top_logprobs);
        if plan.rows.is_empty() {
            return Ok(&self.results);
        }
        program.run(cpu, &self.arrays.rows(), call_backs)?;
        if !self.arrays.drawn_rows.is_empty() {
            let Arrays { drawn_slots, drawn_positions, .. } = &self.arrays;
            let (top, logits) = (self.top_logprobs, program.logits());
            self.rules.draw(cpu, logits, drawn_slots, drawn_positions, top, &mut self.drawn)?;
            self.results.scatter(&self.arrays.drawn_rows, &self.drawn, top);
        }
        Ok(&self.results)
    }

    fn copy(&mut self, cpu: &mut Cpu, program: &mut Program, plan: &PlanView<'_>) -> Result<(), Refusal> {
        if plan.copies.is_empty() {
            return Ok(());
        }
        let [from, to, tokens] = &mut self.copies;
        for (list, word) in [(&mut *from, 0), (&mut *to, 1), (&mut *tokens, 2)] {
            list.clear();
            list.extend(plan.copies.iter().map(|copy| [copy.from, copy.to, copy.tokens][word] as i32));
        }
        program.copy_blocks(cpu, from, to, tokens)
    }
}

impl RowResults {
    fn clear(&mut self, rows: usize, top: usize) {
        for list in [&mut self.sampled, &mut self.flags, &mut self.chosen] {
            list.clear();
            list.resize(rows, 0);
        }
        for list in [&mut self.top_ids, &mut self.top_logprobs] {
            list.clear();
            list.resize(rows * top, 0);
        }
    }

    fn scatter(&mut self, rows: &[usize], drawn: &Drawn, top: usize) {
        for (at, &row) in rows.iter().enumerate() {
            self.sampled[row] = drawn.tokens[at] as u32;
            self.flags[row] = drawn.flags[at] as u32;
            self.chosen[row] = drawn.chosen[at].to_bits();
            for likeliest in 0..top {
                self.top_ids[row * top + likeliest] = drawn.top_ids[at * top + likeliest] as u32;
                self.top_logprobs[row * top + likeliest] = drawn.top_logprobs[at * top + likeliest].to_bits();
            }
        }
    }
}

//! How each slot draws: its parameters, biases, suppressed ids and counts, and the call of the sampling kernel.
//!
//! Tables grow to the largest request so far; the counts that penalties need are made when the first request with penalties
//! is admitted.

use pelton_cpu::{Cpu, Refusal, SampleOut, SampleRows, ScoreOut, ScoreRows, sample, score};
use pelton_frame::{ADMIT_PENALTIES, Admit, MaskState, PlanView, RESULT_UNSAMPLED, ROW_MASKED};

use crate::step::TakeMasks;

/// Top bit of a count: the token stands in the prompt. The other bits: how often it stands in the output.
const IN_PROMPT: u32 = 1 << 31;

pub(crate) struct Rules {
    vocabulary: usize,
    params: Vec<Admit>, // by slot, like all of these
    bias_ids: Table<i32>,
    bias_values: Table<f32>,
    suppressed: Table<i32>,
    counts: Option<Vec<u32>>, // [slots, vocabulary]
    latest: Vec<i32>,
    wanted: Vec<i32>, // by scored row
}

/// In `RowMasks::of`: the row has none.
const FREE: i32 = -1;
/// In `RowMasks::of`: it should have one, and is not drawn.
const MISSING: i32 = -2;

/// The masks of a step. Kept from step to step.
#[derive(Default)]
pub(crate) struct RowMasks {
    words: Vec<u32>, // those that are here, one after the other
    of: Vec<i32>,    // by drawn row: which of them; empty: no row has one
    slots: Vec<u32>,
    states: Vec<MaskState>,
}

impl RowMasks {
    /// Takes the masks of the rows that are drawn. Without `take` there are none: every masked row's is missing.
    pub(crate) fn take(&mut self, plan: &PlanView<'_>, drawn_rows: &[usize], take: Option<TakeMasks<'_>>) {
        self.of.clear();
        self.words.clear();
        self.states.clear();
        let masked = |&row: &usize| plan.rows[row].flags & ROW_MASKED != 0;
        self.slots.clear();
        self.slots.extend(drawn_rows.iter().filter(|row| masked(row)).map(|&row| plan.rows[row].slot));
        if self.slots.is_empty() {
            return;
        }
        if let Some(take) = take {
            take(plan.step, &self.slots, &mut self.words, &mut self.states);
        }
        let (mut states, mut here) = (self.states.iter(), 0..);
        self.of.extend(drawn_rows.iter().map(|row| match masked(row).then(|| states.next()) {
            None => FREE,
            Some(Some(MaskState::Here)) => here.next().expect("counts up"),
            Some(_) => MISSING,
        }));
    }
}

/// The rows that are drawn.
pub(crate) struct DrawnRows<'a> {
    pub(crate) slots: &'a [i32],
    /// Where the drawn tokens will stand.
    pub(crate) positions: &'a [i32],
    pub(crate) masks: &'a RowMasks,
}

/// What rows drew, in the order in which they were asked for. Of those that were scored the ranks stand in `tokens`.
#[derive(Default)]
pub(crate) struct Drawn {
    pub(crate) tokens: Vec<i32>,
    pub(crate) flags: Vec<i32>,
    pub(crate) chosen: Vec<f32>,
    pub(crate) top_ids: Vec<i32>,
    pub(crate) top_logprobs: Vec<f32>,
}

impl Drawn {
    /// Takes back what a row drew.
    fn forget(&mut self, row: usize, top: usize) {
        (self.tokens[row], self.flags[row], self.chosen[row]) = (0, RESULT_UNSAMPLED as i32, 0.0);
        self.top_ids[row * top..][..top].fill(0);
        self.top_logprobs[row * top..][..top].fill(0.0);
    }

    fn resize(&mut self, rows: usize, top: usize) {
        self.tokens.resize(rows, 0);
        self.flags.resize(rows, 0);
        self.chosen.resize(rows, 0.0);
        self.top_ids.resize(rows * top, 0);
        self.top_logprobs.resize(rows * top, 0.0);
    }
}

impl Rules {
    pub(crate) fn new(slots: usize, vocabulary: usize) -> Self {
        Self {
            vocabulary,
            params: vec![Admit::default(); slots],
            bias_ids: Table::new(slots),
            bias_values: Table::new(slots),
            suppressed: Table::new(slots),
            counts: None,
            latest: vec![0; slots],
            wanted: Vec::new(),
        }
    }

    /// What each slot drew last.
    pub(crate) fn latest(&self) -> &[i32] {
        &self.latest
    }

    /// How many tokens there are.
    pub(crate) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Takes in the rules of all requests that enter a slot.
    pub(crate) fn admit(&mut self, plan: &PlanView<'_>) {
        let cells = self.params.len() * self.vocabulary;
        for admit in plan.admits {
            let slot = admit.slot as usize;
            let of = |offset: u32, count: u32| offset as usize..offset as usize + count as usize;
            self.params[slot] = *admit;
            let biases = &plan.biases[of(admit.bias_offset, admit.bias_count)];
            self.bias_ids.put(slot, biases.iter().map(|bias| bias.token as i32));
            self.bias_values.put(slot, biases.iter().map(|bias| bias.value));
            let suppressed = &plan.suppressed[of(admit.suppress_offset, admit.suppress_count + admit.told_count)];
            self.suppressed.put(slot, suppressed.iter().map(|&id| id as i32));

            let has_penalties = admit.flags & ADMIT_PENALTIES != 0;
            if has_penalties && self.counts.is_none() {
                self.counts = Some(vec![0; cells]);
            }
            let Some(counts) = &mut self.counts else { continue };
            let counts = &mut counts[slot * self.vocabulary..][..self.vocabulary];
            counts.fill(0);
            // The prompt's tokens are marked, the output's counted: a request that resumes has both.
            let history = &plan.history[of(admit.history_offset, admit.history_count)];
            let (prompt, output) = history.split_at(history.len().min(admit.prompt_len as usize));
            prompt.iter().for_each(|&id| counts[id as usize] = IN_PROMPT);
            output.iter().for_each(|&id| counts[id as usize] += 1);
        }
    }

    /// Tells how likely each of `tokens` was by its row of `logits`. Nothing is drawn, and no rule of the slots counts but how many
    /// of the likeliest are reported.
    pub(crate) fn score(
        &mut self,
        cpu: &mut Cpu,
        logits: &[f32],
        tokens: &[i32],
        slots: &[i32],
        top: usize,
        scored: &mut Drawn,
    ) -> Result<(), Refusal> {
        scored.resize(tokens.len(), top);
        self.wanted.clear();
        self.wanted.extend(slots.iter().map(|&slot| self.params[slot as usize].score_top as i32));
        let out = ScoreOut {
            ranks: &mut scored.tokens,
            flags: &mut scored.flags,
            chosen: &mut scored.chosen,
            top_ids: &mut scored.top_ids,
            top_logprobs: &mut scored.top_logprobs,
        };
        score(cpu, out, ScoreRows { logits, vocabulary: self.vocabulary, given: tokens, wanted: &self.wanted })
    }

    /// Draws a token for each row of `logits`, and remembers it as its slot's latest. Of a slot with drafts nobody asks for that:
    /// the last of its draws may count or not. `top`: likeliest tokens reported per row.
    /// A row whose mask is missing comes back without a token, and nothing of it is remembered.
    pub(crate) fn draw(
        &mut self,
        cpu: &mut Cpu,
        logits: &[f32],
        rows: DrawnRows<'_>,
        top: usize,
        drawn: &mut Drawn,
    ) -> Result<(), Refusal> {
        let DrawnRows { slots, positions, masks } = rows;
        drawn.resize(slots.len(), top);
        let out = SampleOut {
            tokens: &mut drawn.tokens,
            flags: &mut drawn.flags,
            chosen: &mut drawn.chosen,
            top_ids: &mut drawn.top_ids,
            top_logprobs: &mut drawn.top_logprobs,
        };
        let input = SampleRows {
            logits,
            vocabulary: self.vocabulary,
            params: &self.params,
            slots,
            positions,
            counts: self.counts.as_deref(),
            bias_ids: &self.bias_ids.values,
            bias_values: &self.bias_values.values,
            suppressed: &self.suppressed.values,
            masks: &masks.words,
            mask_of: &masks.of,
        };
        sample(cpu, out, input)?;
        for (row, &slot) in slots.iter().enumerate() {
            if masks.of.get(row) == Some(&MISSING) {
                drawn.forget(row, top);
                continue;
            }
            let (slot, token) = (slot as usize, drawn.tokens[row]);
            self.latest[slot] = token;
            if let Some(counts) = &mut self.counts
                && self.params[slot].flags & ADMIT_PENALTIES != 0
            {
                counts[slot * self.vocabulary + token as usize] += 1;
            }
        }
        Ok(())
    }
}

/// `[slots, width]`, as wide as the largest request so far needs it.
struct Table<T> {
    slots: usize,
    width: usize,
    values: Vec<T>,
}

impl<T: Copy + Default> Table<T> {
    fn new(slots: usize) -> Self {
        Self { slots, width: 0, values: vec![] }
    }

    fn put(&mut self, slot: usize, values: impl ExactSizeIterator<Item = T>) {
        if values.len() > self.width {
            self.widen(values.len().next_power_of_two()); // so it grows a few times in all
        }
        for (to, value) in self.values[slot * self.width..].iter_mut().zip(values) {
            *to = value;
        }
    }

    fn widen(&mut self, width: usize) {
        let mut wider = vec![T::default(); self.slots * width];
        for (to, from) in wider.chunks_exact_mut(width).zip(self.values.chunks_exact(self.width.max(1))) {
            to[..self.width].copy_from_slice(from);
        }
        (self.width, self.values) = (width, wider);
    }
}

#[cfg(test)]
mod tests {
    use pelton_cpu::Isa;
    use pelton_frame::{Bias, Row};

    use super::*;

    const VOCABULARY: usize = 5;

    fn draw(rules: &mut Rules, logits: &[f32], slots: &[i32]) -> Vec<i32> {
        let (mut cpu, mut drawn) = (Cpu::new(Isa::best(), 1), Drawn::default());
        let rows = DrawnRows { slots, positions: &vec![9; slots.len()], masks: &RowMasks::default() };
        rules.draw(&mut cpu, logits, rows, 0, &mut drawn).unwrap();
        assert!(drawn.flags.iter().all(|&flags| flags == 0));
        drawn.tokens
    }

    #[test]
    fn each_slot_draws_by_its_own_rules_and_what_it_drew_counts() {
        let mut rules = Rules::new(3, VOCABULARY);
        let penalized = Admit {
            slot: 1,
            flags: ADMIT_PENALTIES,
            repetition: 1.0,
            frequency: 1.5,
            prompt_len: 2,
            history_count: 3,
            ..Admit::default()
        };
        let biased = Admit { slot: 2, bias_count: 2, suppress_count: 1, suppress_until: 100, ..Admit::default() };
        let plan = PlanView {
            admits: &[penalized, biased],
            history: &[4, 4, 3],
            biases: &[Bias { token: 0, value: 9.0 }, Bias { token: 2, value: 8.0 }],
            suppressed: &[0],
            ..PlanView::default()
        };
        rules.admit(&plan);
        let logits = [0.0, 1.0, 2.0, 3.0, 2.9];
        // Slot 1: token 3 stands in the output once (3 - 1.5), token 4 only in the prompt; then each draw lowers its own.
        assert_eq!(draw(&mut rules, &[logits, logits, logits].concat(), &[0, 1, 2]), [3, 4, 2]);
        assert_eq!(rules.latest(), [3, 4, 2]);
        assert_eq!(draw(&mut rules, &logits, &[1]), [2]);
        assert_eq!(draw(&mut rules, &logits, &[1]), [3]);
        // A slot that is admitted again forgets.
        rules.admit(&PlanView { admits: &[Admit { slot: 1, ..Admit::default() }], ..PlanView::default() });
        assert_eq!(draw(&mut rules, &logits, &[1]), [3]);
    }

    #[test]
    fn a_masked_row_is_drawn_within_its_mask_and_one_whose_mask_is_missing_leaves_no_trace() {
        let mut rules = Rules::new(4, VOCABULARY);
        let counted = Admit { slot: 3, flags: ADMIT_PENALTIES, repetition: 1.0, frequency: 9.0, ..Admit::default() };
        rules.admit(&PlanView { admits: &[counted], ..PlanView::default() });
        let row = |slot, flags| Row { slot, count: 1, flags, ..Row::default() };
        let rows = [row(0, 1), row(1, 3), row(2, 0), row(3, 3)];
        let plan = PlanView { step: 5, rows: &rows, ..PlanView::default() };
        let mut masks = RowMasks::default();
        let mut take = |step, slots: &[u32], words: &mut Vec<u32>, states: &mut Vec<MaskState>| {
            assert_eq!((step, slots), (5, &[1, 3][..]));
            words.push(0b00110);
            states.extend([MaskState::Here, MaskState::Missing]);
        };
        masks.take(&plan, &[0, 1, 3], Some(&mut take));
        let (mut cpu, mut drawn) = (Cpu::new(Isa::best(), 1), Drawn::default());
        let logits = [0.0, 1.0, 2.0, 3.0, 2.9].repeat(3);
        let drawn_rows = DrawnRows { slots: &[0, 1, 3], positions: &[9; 3], masks: &masks };
        rules.draw(&mut cpu, &logits, drawn_rows, 0, &mut drawn).unwrap();
        assert_eq!((&drawn.tokens[..], &drawn.flags[..]), (&[3, 2, 0][..], &[0, 0, RESULT_UNSAMPLED as i32][..]));
        assert_eq!(rules.latest(), [3, 2, 0, 0]);
        masks.take(&plan, &[0, 1, 3], None);
        let drawn_rows = DrawnRows { slots: &[0, 1, 3], positions: &[9; 3], masks: &masks };
        rules.draw(&mut cpu, &logits, drawn_rows, 0, &mut drawn).unwrap();
        assert_eq!(drawn.flags, [0, RESULT_UNSAMPLED as i32, RESULT_UNSAMPLED as i32]);
        assert_eq!(draw(&mut rules, &logits[..5], &[3]), [3], "what was not drawn is not counted");
    }

    #[test]
    fn a_table_keeps_what_it_has_when_it_grows() {
        let mut table = Table::new(3);
        table.put(1, [7].into_iter());
        table.put(2, [1, 2, 3].into_iter());
        table.put(0, std::iter::empty());
        assert_eq!(table.values, [0, 0, 0, 0, 7, 0, 0, 0, 1, 2, 3, 0]);
    }
}

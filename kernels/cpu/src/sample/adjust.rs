//! What a request changes about a row of logits before a token is drawn: penalties, biases, suppressed ids, in this order.

use pelton_frame::{ADMIT_PENALTIES, Admit};

use super::SampleRows;

/// In a count: the token stands in the prompt.
const IN_PROMPT: u32 = 1 << 31;

/// One row's share of the slots' tables.
pub(super) struct Adjustments<'a> {
    params: &'a Admit,
    /// Empty: no penalties.
    counts: &'a [u32],
    bias_ids: &'a [i32],
    bias_values: &'a [f32],
    /// Empty once the position has come where they end.
    suppressed: &'a [i32],
}

impl<'a> Adjustments<'a> {
    pub(super) fn of(input: &SampleRows<'a>, row: usize) -> Self {
        let slot = input.slots[row] as usize;
        let params = &input.params[slot];
        let of_slot = |len: usize, used: u32| {
            let start = slot * (len / input.params.len());
            start..start + used as usize
        };
        let biases = of_slot(input.bias_ids.len(), params.bias_count);
        let is_suppressing = i64::from(input.positions[row]) < i64::from(params.suppress_until);
        let suppressed = of_slot(input.suppressed.len(), if is_suppressing { params.suppress_count } else { 0 });
        let counts = match input.counts {
            Some(counts) if params.flags & ADMIT_PENALTIES != 0 => {
                &counts[slot * input.vocabulary..][..input.vocabulary]
            }
            _ => &[],
        };
        Self {
            params,
            counts,
            bias_ids: &input.bias_ids[biases.clone()],
            bias_values: &input.bias_values[biases],
            suppressed: &input.suppressed[suppressed],
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.bias_ids.is_empty() && self.suppressed.is_empty()
    }

    pub(super) fn apply(&self, logits: &mut [f32]) {
        let Admit { repetition, presence, frequency, .. } = *self.params;
        for (logit, &count) in logits.iter_mut().zip(self.counts) {
            if count == 0 {
                continue;
            }
            // Repetition counts the prompt, the other two only the output, as their inventors have it.
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            let written = count & !IN_PROMPT;
            if written > 0 {
                *logit = *logit - frequency * written as f32 - presence;
            }
        }
        for (&id, &value) in self.bias_ids.iter().zip(self.bias_values) {
            logits[id as usize] += value;
        }
        for &id in self.suppressed {
            logits[id as usize] = f32::NEG_INFINITY;
        }
    }
}

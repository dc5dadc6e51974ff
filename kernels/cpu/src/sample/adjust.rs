//! What a request changes about a row of logits before a token is drawn: penalties, biases, the mask, suppressed ids, in this
//! order. A mask that leaves suppressed ids alone lets one of them be drawn: what may not be otherwise cannot be forbidden.

use pelton_frame::{ADMIT_PENALTIES, Admit};

use super::SampleRows;
use super::row::BLOCK;

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
    /// Empty: no mask.
    mask: &'a [u32],
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
        let width = input.vocabulary.div_ceil(32);
        let mask = match input.mask_of.get(row) {
            Some(&mask) if mask >= 0 => &input.masks[mask as usize * width..][..width],
            _ => &[],
        };
        Self {
            params,
            counts,
            bias_ids: &input.bias_ids[biases.clone()],
            bias_values: &input.bias_values[biases],
            suppressed: &input.suppressed[suppressed],
            mask,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.bias_ids.is_empty() && self.suppressed.is_empty() && self.mask.is_empty()
    }

    pub(super) fn apply(&self, logits: &mut [f32]) {
        let Admit { repetition, presence, frequency, .. } = *self.params;
        for (logits, counts) in logits.chunks_mut(BLOCK).zip(self.counts.chunks(BLOCK)) {
            if counts.iter().fold(0, |any, count| any | count) == 0 {
                continue; // so it is with most: few tokens of a vocabulary stand in a text
            }
            for (logit, &count) in logits.iter_mut().zip(counts) {
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
        }
        for (&id, &value) in self.bias_ids.iter().zip(self.bias_values) {
            logits[id as usize] += value;
        }
        for (logits, &allowed) in logits.chunks_mut(32).zip(self.mask) {
            match allowed {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                _ => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        *logit = if allowed >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                    }
                }
            }
        }
        if !self.mask.is_empty() && self.leaves_suppressed_alone(logits.len()) {
            return;
        }
        for &id in self.suppressed {
            logits[id as usize] = f32::NEG_INFINITY;
        }
    }

    /// Whether the mask allows no token but suppressed ones.
    fn leaves_suppressed_alone(&self, vocabulary: usize) -> bool {
        if self.suppressed.is_empty() {
            return false;
        }
        let is_allowed = |id: usize| self.mask[id / 32] >> (id % 32) & 1 == 1;
        let mut ids: Vec<usize> = self.suppressed.iter().map(|&id| id as usize).filter(|&id| is_allowed(id)).collect();
        ids.sort_unstable();
        ids.dedup();
        let last = (1_u64 << (vocabulary % 32)) as u32;
        let within = |at: usize| if at == vocabulary / 32 { last.wrapping_sub(1) } else { u32::MAX };
        let allowed = self.mask.iter().enumerate().map(|(at, word)| (word & within(at)).count_ones() as usize);
        allowed.sum::<usize>() == ids.len()
    }
}

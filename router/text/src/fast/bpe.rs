//! Words to tokens by merges: of all neighbours that may merge the ones with the lowest rank do, the leftmost first,
//! until none may.
//!
//! Three ways, by the word:
//! 1. Most words are a token. Which tokens a word of their own bytes becomes is worked out when the tokenizer is opened.
//! 2. Short ones: the lowest rank is looked for anew after each merge. Quadratic, and faster than anything clever.
//! 3. Long ones: a heap of the neighbours that may merge, so that a megabyte of one letter takes a second and not a day.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::table::{Merge, NO_MERGE, Pairs, Words};

/// Longer words go the third way. 64 neighbours looked at 64 times are 4,096 comparisons, a few microseconds at most.
const SHORT_MAX: usize = 64;

/// A vocabulary and its merges.
pub(super) struct Bpe {
    byte_ids: [u32; 256],
    pairs: Pairs,
    words: Words,
}

impl Bpe {
    /// `tokens` are the vocabulary's, those of single bytes among them; `merges` are by rank, each the ids of two tokens
    /// and of both in one. `takes_whole_words`: a word that is a token is it, even if no merges lead there (`ignore_merges`).
    pub(super) fn new(tokens: &[(Vec<u8>, u32)], merges: &[[u32; 3]], takes_whole_words: bool) -> Option<Self> {
        let mut byte_ids = [None; 256];
        for (bytes, id) in tokens {
            if let [byte] = bytes[..] {
                byte_ids[usize::from(byte)] = Some(*id);
            }
        }
        if byte_ids.contains(&None) || u32::try_from(merges.len()).is_err() {
            return None;
        }
        let byte_ids = byte_ids.map(Option::unwrap_or_default);
        let pairs = merges.iter().enumerate();
        let pairs = pairs.map(|(rank, &[left, right, both])| ((left, right), (rank as u64) << 32 | u64::from(both)));
        let mut bpe = Self { byte_ids, pairs: Pairs::new(pairs), words: Words::with_capacity(0) };

        let mut words = Words::with_capacity(tokens.len());
        let mut ids = Vec::new();
        for (bytes, id) in tokens.iter().filter(|(bytes, _)| !bytes.is_empty()) {
            ids.clear();
            bpe.merged(bytes, &mut ids);
            if takes_whole_words || ids == [*id] {
                words.insert(bytes, *id);
            }
        }
        bpe.words = words;
        Some(bpe)
    }

    /// Adds the tokens of `word`.
    #[inline]
    pub(super) fn encode(&self, word: &[u8], ids: &mut Vec<u32>) {
        match self.words.get(word) {
            Some(id) => ids.push(id),
            None => self.merged(word, ids),
        }
    }

    #[inline(never)]
    fn merged(&self, word: &[u8], ids: &mut Vec<u32>) {
        if word.len() <= SHORT_MAX { self.merged_short(word, ids) } else { self.merged_long(word, ids) }
    }

    fn merged_short(&self, word: &[u8], ids: &mut Vec<u32>) {
        let mut parts = [0; SHORT_MAX];
        let mut merges = [NO_MERGE; SHORT_MAX]; // of each part with the next one
        let mut count = word.len();
        for (part, &byte) in parts.iter_mut().zip(word) {
            *part = self.byte_ids[usize::from(byte)];
        }
        for at in 1..count {
            merges[at - 1] = self.pairs.get(parts[at - 1], parts[at]);
        }
        while count > 1 {
            let lowest = merges[..count - 1].iter().copied().fold(NO_MERGE, Merge::min);
            if lowest == NO_MERGE {
                break;
            }
            let at = merges.iter().position(|&merge| merge == lowest).expect("it was found just now");
            parts[at] = lowest as u32; // the lower half: the token
            parts.copy_within(at + 2..count, at + 1);
            merges.copy_within(at + 1..count, at);
            count -= 1;
            merges[count - 1] = NO_MERGE;
            if at > 0 {
                merges[at - 1] = self.pairs.get(parts[at - 1], parts[at]);
            }
            if at + 1 < count {
                merges[at] = self.pairs.get(parts[at], parts[at + 1]);
            }
        }
        ids.extend_from_slice(&parts[..count]);
    }

    fn merged_long(&self, word: &[u8], ids: &mut Vec<u32>) {
        let mut parts: Vec<Part> = word
            .iter()
            .enumerate()
            .map(|(at, &byte)| Part {
                id: self.byte_ids[usize::from(byte)],
                previous: at.wrapping_sub(1),
                next: at + 1,
                merge: NO_MERGE,
            })
            .collect();
        let mut first = Vec::with_capacity(word.len());
        for at in 1..parts.len() {
            let merge = self.pairs.get(parts[at - 1].id, parts[at].id);
            parts[at - 1].merge = merge;
            if merge != NO_MERGE {
                first.push(Reverse((merge, at - 1)));
            }
        }

        // By rank, then from the left. A merge that is no longer its part's is passed over when it comes up.
        let mut heap = BinaryHeap::from(first);
        while let Some(Reverse((merge, at))) = heap.pop() {
            if parts[at].merge != merge {
                continue;
            }
            let (gone, previous) = (parts[at].next, parts[at].previous);
            let next = parts[gone].next;
            parts[gone].merge = NO_MERGE;
            parts[at] = Part { id: merge as u32, previous, next, merge: NO_MERGE };
            if let Some(part) = parts.get_mut(next) {
                part.previous = at;
                let merge = self.pairs.get(merge as u32, part.id);
                parts[at].merge = merge;
                if merge != NO_MERGE {
                    heap.push(Reverse((merge, at)));
                }
            }
            if let Some(part) = parts.get_mut(previous) {
                part.merge = self.pairs.get(part.id, merge as u32);
                if part.merge != NO_MERGE {
                    heap.push(Reverse((part.merge, previous)));
                }
            }
        }

        let mut at = 0;
        while let Some(part) = parts.get(at) {
            ids.push(part.id);
            at = part.next;
        }
    }
}

/// A part of a long word, in a list: the first one's `previous` and the last one's `next` are none's number.
struct Part {
    id: u32,
    previous: usize,
    next: usize,
    /// With the next one; of the last part, and of one that is gone, none.
    merge: Merge,
}

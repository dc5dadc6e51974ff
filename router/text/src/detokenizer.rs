//! Token ids to text, one at a time, never showing half a character.
//!
//! What is held back is at most the three bytes of a character that is not complete, so a token costs what its own
//! text costs, however long the answer is. The pieces shown add up to `Tokenizer::decode` of all ids.
//!
//! Bytes that are no UTF-8 become U+FFFD. For byte-level vocabularies one per maximal invalid sequence, as everywhere
//! in Rust. For byte-fallback ones (`<0xE2>`) one per byte; there the `tokenizers` crate also gives up the good
//! characters that touch a bad one, which cannot be done without holding back every run of such tokens to its end.

use std::sync::Arc;

use crate::decoding::Strip;
use crate::tokenizer::Tokenizer;

/// The text of one answer, as its tokens come.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Control tokens that have a text all the same; ascending.
    shown: Arc<[u32]>,
    has_begun: bool,
    /// The beginning of a character; at most 3 bytes.
    partial: Vec<u8>,
    /// How many bad bytes one U+FFFD stands for.
    replacement: Replacement,
    /// What is still to be taken off the beginning of the text.
    strip: Option<Strip>,
    /// All ids, if the decoder has no pieces.
    held: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replacement {
    PerSequence,
    PerByte,
}

impl Detokenizer {
    /// Tokens of a text that [`Detokenizer::behind`] looks at: a character has at most 4 bytes, of which each token has one or more.
    pub const BEHIND: usize = 4;

    /// For one answer. `skip_special`: control tokens have no text.
    pub fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let strip = tokenizer.decoding().strip();
        let replacement =
            if tokenizer.decoding().is_byte_fallback() { Replacement::PerByte } else { Replacement::PerSequence };
        let (shown, partial, held) = (Arc::default(), Vec::new(), Vec::new());
        Self { tokenizer, skip_special, shown, has_begun: false, partial, replacement, strip, held }
    }

    /// These control tokens have a text all the same: whoever reads it looks for them. `ids` are in ascending order.
    pub fn showing(self, ids: Arc<[u32]>) -> Self {
        Self { shown: ids, ..self }
    }

    /// Goes on from a text of which these are the last tokens: none of it is shown again, but what follows is no beginning, and a
    /// character that it has begun may be completed.
    pub fn behind(mut self, ids: &[u32]) -> Self {
        if self.tokenizer.decoding().has_pieces() {
            for &id in &ids[ids.len().saturating_sub(Self::BEHIND)..] {
                let _shown = self.push(id);
            }
        }
        self
    }

    /// Takes the next token; gives the text that can be shown now. An id that does not exist has no text.
    pub fn push(&mut self, id: u32) -> String {
        let tokenizer = self.tokenizer.clone();
        let decoding = tokenizer.decoding();
        let is_skipped = self.skip_special && decoding.is_special(id) && self.shown.binary_search(&id).is_err();
        if !decoding.has(id) || is_skipped {
            return String::new();
        }
        if !decoding.has_pieces() {
            self.held.push(id);
            return String::new();
        }
        let mut text = String::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            if let Some((bytes, is_raw)) = decoding.first_piece(id) {
                self.take(&bytes, is_raw, &mut text);
            }
        } else if let Some(piece) = decoding.piece(id) {
            self.take(piece.bytes, piece.is_raw, &mut text);
        }
        self.stripped(text)
    }

    /// Whether the text ends within a character: its beginning is held back.
    pub fn is_within_character(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Ends the answer; gives what was held back, broken characters as U+FFFD.
    pub fn finish(&mut self) -> String {
        if !self.tokenizer.decoding().has_pieces() {
            return self.tokenizer.decoding().whole(&std::mem::take(&mut self.held));
        }
        let mut text = String::new();
        self.give_up(&mut text);
        self.stripped(text)
    }

    fn take(&mut self, bytes: &[u8], is_raw: bool, text: &mut String) {
        if !is_raw {
            self.give_up(text);
            // Pieces that are not raw were made from a `str`.
            text.push_str(std::str::from_utf8(bytes).unwrap_or_default());
            return;
        }
        self.partial.extend_from_slice(bytes);
        let mut rest = self.partial.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    rest = after;
                    let Some(bad) = error.error_len() else { break };
                    replace(bad, self.replacement, text);
                    rest = &rest[bad..];
                }
            }
        }
        let kept = rest.len();
        self.partial.drain(..self.partial.len() - kept);
    }

    /// The character that was begun will not be completed.
    fn give_up(&mut self, text: &mut String) {
        if !self.partial.is_empty() {
            replace(self.partial.len(), self.replacement, text);
            self.partial.clear();
        }
    }

    fn stripped(&mut self, mut text: String) -> String {
        let Some(strip) = &mut self.strip else {
            return text;
        };
        let mut cut = 0;
        for c in text.chars() {
            if strip.count == 0 || c != strip.content {
                self.strip = None; // the beginning is over
                break;
            }
            strip.count -= 1;
            cut += c.len_utf8();
        }
        text.drain(..cut);
        text
    }
}

fn replace(bad_bytes: usize, replacement: Replacement, text: &mut String) {
    let count = match replacement {
        Replacement::PerSequence => 1,
        Replacement::PerByte => bad_bytes,
    };
    text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, count));
}

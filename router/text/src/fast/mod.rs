//! A fast way from text to tokens for tokenizers all of whose steps are known: byte-level BPE with one of the published
//! split patterns. The tokens are those of the `tokenizers` crate, which is what the tests ask it.
//!
//! A text goes
//!
//! ```text
//!   added tokens out   NFC, if asked for   added tokens out   split into words   each word to tokens
//!   (as it came)       (compose)           (normalized)       (split, deepseek)  (bpe)
//! ```
//!
//! and what lies around it (BOS and the like) is put there. Nothing is kept from one text to the next, and nothing is
//! allocated but the tokens. Never here: files, offsets, the way back from tokens to text.

mod added;
mod bpe;
mod classes;
mod compose;
mod deepseek;
mod known;
mod pattern;
mod published;
mod split;
mod table;

use std::borrow::Cow;

use tokenizers::Encoding;

use added::{Added, Part};
use bpe::Bpe;
use pattern::Pattern;

/// The steps of one tokenizer.
pub(crate) struct Fast {
    raw: Added,
    normalization: Normalization,
    normalized: Added,
    pattern: Pattern,
    bpe: Bpe,
    around: Around,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Normalization {
    None,
    Nfc,
}

/// The tokens that the model expects before and behind a text.
struct Around {
    before: Vec<u32>,
    behind: Vec<u32>,
}

impl Fast {
    /// `json` is what `tokenizer` was made from. `None`: something about it is not known here.
    pub(crate) fn of(json: &[u8], tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        known::known(json, tokenizer)
    }

    /// The tokens of `text`; `add_special`: and those that the model expects around it.
    pub(crate) fn encode(&self, text: &str, add_special: bool) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + self.around.before.len() + self.around.behind.len() + 16);
        if add_special {
            ids.extend_from_slice(&self.around.before);
        }
        self.raw.split(text, |part| match part {
            Part::Token(id) => ids.push(id),
            Part::Text(text) => self.between(&self.normalization.of(text), &mut ids),
        });
        if add_special {
            ids.extend_from_slice(&self.around.behind);
        }
        ids
    }

    /// The tokens of `text` alone, for the `tokenizers` crate to go on with.
    pub(crate) fn encoding(&self, text: &str) -> Encoding {
        known::encoding(self.encode(text, false))
    }

    fn between(&self, text: &str, ids: &mut Vec<u32>) {
        self.normalized.split(text, |part| match part {
            Part::Token(id) => ids.push(id),
            Part::Text(text) => self.pattern.words(text, |word| self.bpe.encode(word, ids)),
        });
    }
}

impl Normalization {
    fn of(self, text: &str) -> Cow<'_, str> {
        match self {
            Self::None => Cow::Borrowed(text),
            Self::Nfc => compose::composed(text),
        }
    }
}

#[cfg(test)]
mod tests;

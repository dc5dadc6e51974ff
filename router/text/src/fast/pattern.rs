//! Which split pattern a tokenizer has, told by its pre-tokenizer, and the words of a text by it.

use serde_json::{Value, json};

use super::classes::Classes;
use super::split::{self, Scan};
use super::{deepseek, published, split::cased};

/// The ways to split that are known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    Gpt2,
    /// Digits by themselves, then as GPT-2: StarCoder's, SmolLM's.
    Gpt2Digits,
    Llama3,
    Qwen2,
    Qwen35,
    O200k,
    Tekken,
    DeepSeek3,
}

impl Pattern {
    /// Of a pre-tokenizer as the `tokenizers` crate writes it; `None`: unknown. Offsets are not asked for, so how they are trimmed does not count.
    pub(super) fn of(pre_tokenizer: &Value) -> Option<Self> {
        if is_bytes(pre_tokenizer, true) {
            return Some(Self::Gpt2);
        }
        if pre_tokenizer["type"] != "Sequence" {
            return None;
        }
        match pre_tokenizer["pretokenizers"].as_array()?.as_slice() {
            [digits, bytes]
                if is_bytes(bytes, true) && *digits == json!({"type": "Digits", "individual_digits": true}) =>
            {
                Some(Self::Gpt2Digits)
            }
            [pattern, bytes] if is_bytes(bytes, false) => match split_by(pattern)? {
                published::GPT2 => Some(Self::Gpt2),
                published::LLAMA3 => Some(Self::Llama3),
                published::QWEN2 => Some(Self::Qwen2),
                published::QWEN35 => Some(Self::Qwen35),
                published::O200K => Some(Self::O200k),
                published::TEKKEN => Some(Self::Tekken),
                _ => None,
            },
            [first, second, third, bytes] if is_bytes(bytes, false) => {
                let is_known = |(part, pattern): (&Value, &str)| *part == isolated(pattern);
                [first, second, third].into_iter().zip(published::DEEPSEEK3).all(is_known).then_some(Self::DeepSeek3)
            }
            _ => None,
        }
    }

    /// Gives all words of `text`, in order; together they are the text.
    #[inline]
    pub(super) fn words<'a>(self, text: &'a str, mut word: impl FnMut(&'a [u8])) {
        let scan = Scan::new(text, Classes::get());
        match self {
            Self::Gpt2 => each(scan, 0, split::gpt2, &mut word),
            Self::Gpt2Digits => gpt2_digits(text, scan, &mut word),
            Self::Llama3 => each(scan, 0, split::words::<3, false>, &mut word),
            Self::Qwen2 => each(scan, 0, split::words::<1, false>, &mut word),
            Self::Qwen35 => each(scan, 0, split::words::<1, true>, &mut word),
            Self::O200k => each(scan, 0, cased::<3, true>, &mut word),
            Self::Tekken => each(scan, 0, cased::<1, false>, &mut word),
            Self::DeepSeek3 => deepseek::words(scan, word),
        }
    }
}

#[inline]
fn each<'a>(scan: Scan<'a>, mut at: usize, end: impl Fn(&Scan<'a>, usize) -> usize, word: &mut impl FnMut(&'a [u8])) {
    while at < scan.len() {
        let after = end(&scan, at);
        word(scan.slice(at, after));
        at = after;
    }
}

/// What is a digit here, Rust's standard library tells, and not the engine: as in the `tokenizers` crate.
fn gpt2_digits<'a>(text: &'a str, scan: Scan<'a>, word: &mut impl FnMut(&'a [u8])) {
    let mut at = 0;
    for (digit, matched) in text.match_indices(char::is_numeric) {
        each(scan.until(digit), at, split::gpt2, word);
        word(matched.as_bytes());
        at = digit + matched.len();
    }
    each(scan, at, split::gpt2, word);
}

/// Whether this is the step from text to bytes; `splits`: by GPT-2's pattern before that.
fn is_bytes(step: &Value, splits: bool) -> bool {
    let with_offsets =
        |trim: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trim, "use_regex": splits});
    *step == with_offsets(true) || *step == with_offsets(false)
}

/// The pattern whose matches become words. One that covers every text may as well be told by what lies between its matches, which is nothing.
fn split_by(step: &Value) -> Option<&str> {
    let pattern = step["pattern"]["Regex"].as_str()?;
    let removed = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": true});
    (*step == isolated(pattern) || *step == removed).then_some(pattern)
}

fn isolated(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

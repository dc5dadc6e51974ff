//! Filling in between two texts (`suffix`), with the marks that models of code were trained with.
//!
//! ```text
//!   BEFORE text AFTER suffix MIDDLE │ what belongs between them
//! ```

use pelton_engine::TokenId;
use pelton_text::{TextError, Tokenizer};

/// The marks of families, as their vocabularies name them: before the text, before the suffix, before the answer.
const KNOWN: [[&str; 3]; 4] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], // Qwen2.5-Coder, Granite
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],       // StarCoder
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],       // SantaCoder
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], // DeepSeek
];

/// The marks of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FillMarks([TokenId; 3]);

impl FillMarks {
    /// `None`: the vocabulary has none that are known.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let id = |name: &str| tokenizer.token_to_id(name);
        KNOWN.iter().find_map(|[before, after, middle]| Some(Self([id(before)?, id(after)?, id(middle)?])))
    }

    /// The prompt for what belongs between two texts. `add_special`: with what the tokenizer puts before any text.
    pub(crate) fn prompt(
        self,
        tokenizer: &Tokenizer,
        [text, suffix]: [&str; 2],
        add_special: bool,
    ) -> Result<Vec<TokenId>, TextError> {
        let Self([before, after, middle]) = self;
        let mut ids = Vec::new();
        if add_special {
            // What is added to an empty text stands before the marks; an end of the text has no place within them.
            ids.extend(tokenizer.encode("", true)?.into_iter().take(1));
        }
        ids.push(before);
        ids.extend(tokenizer.encode(text, false)?);
        ids.push(after);
        ids.extend(tokenizer.encode(suffix, false)?);
        ids.push(middle);
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::testing::{tokenizer, tokenizer_with, tokens};

    #[test]
    fn the_marks_stand_around_both_texts() {
        assert_eq!(FillMarks::of(&tokenizer()), None);
        let code = tokenizer_with(&["<fim_prefix>", "<fim_middle>", "<fim_suffix>"]);
        let marks = FillMarks::of(&code).expect("all three are there");
        let first = 259;
        let expected = [vec![first], tokens("a"), vec![first + 2], tokens("bc"), vec![first + 1]].concat();
        assert_eq!(marks.prompt(&code, ["a", "bc"], true), Ok(expected), "this tokenizer adds nothing");
        assert_eq!(FillMarks::of(&tokenizer_with(&["<fim_prefix>", "<fim_suffix>"])), None);
    }
}

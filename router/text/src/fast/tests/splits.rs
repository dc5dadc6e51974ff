//! Where words end, against the pre-tokenizers of the `tokenizers` crate: sharper than tokens, which may hide a wrong end.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::Value;
use tokenizers::utils::SysRegex;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

use super::super::{pattern::Pattern, published};
use super::files::patterns;
use super::texts::any_text;

struct Split {
    name: &'static str,
    pattern: Pattern,
    reference: PreTokenizerWrapper,
}

static ALL: LazyLock<Vec<Split>> = LazyLock::new(|| {
    let open = |(name, steps): (&'static str, Value)| {
        let pattern = Pattern::of(&steps).unwrap_or_else(|| panic!("{name} is known"));
        Split { name, pattern, reference: serde_json::from_value(steps).expect("a pre-tokenizer") }
    };
    patterns().into_iter().map(open).collect()
});

impl Split {
    fn check(&self, text: &str) {
        let mut parts = PreTokenizedString::from(text);
        self.reference.pre_tokenize(&mut parts).expect("any text can be split");
        let parts = parts.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let expected: Vec<usize> = parts.iter().filter(|part| !part.0.is_empty()).map(|part| part.1.1).collect();
        let ours = ends(self.pattern, text);
        assert!(ours == expected, "{}, {text:?}:\n {ours:?}\n {expected:?}", self.name);
    }
}

/// Where our words end.
fn ends(pattern: Pattern, text: &str) -> Vec<usize> {
    let (mut ends, mut end) = (Vec::new(), 0);
    pattern.words(text, |word| {
        assert_eq!(word, &text.as_bytes()[end..end + word.len()]);
        end += word.len();
        ends.push(end);
    });
    assert_eq!(end, text.len(), "{pattern:?}: {text:?}");
    ends
}

/// One character for all that patterns tell apart, and letters of contractions.
const KINDS: [char; 15] =
    ['A', 'e', 'つ', '\u{301}', '7', ' ', '\t', '\n', '\r', '\'', 'S', '!', '/', '\u{200d}', '\u{1c5}'];

#[test]
fn all_texts_of_four_kinds_of_characters_are_split_as_the_reference_does() {
    for split in ALL.iter() {
        for number in 0..KINDS.len().pow(4) {
            let text: String = (0..4).map(|place| KINDS[number / KINDS.len().pow(place) % KINDS.len()]).collect();
            split.check(&text);
        }
    }
}

/// The patterns that stand alone, straight against the engine, for which many texts are nothing.
const ALONE: [(Pattern, &str); 6] = [
    (Pattern::Gpt2, published::GPT2),
    (Pattern::Llama3, published::LLAMA3),
    (Pattern::Qwen2, published::QWEN2),
    (Pattern::Qwen35, published::QWEN35),
    (Pattern::O200k, published::O200K),
    (Pattern::Tekken, published::TEKKEN),
];

/// Each character within its contexts, by which characters are told from others.
fn check_each(contexts: &[&str], codes: std::ops::Range<u32>) {
    for (pattern, source) in ALONE {
        let engine = SysRegex::new(source).expect("a pattern");
        for start in codes.clone().step_by(0x1000) {
            let characters = (start..start + 0x1000).filter_map(char::from_u32);
            let text: String = characters
                .flat_map(|c| contexts.iter().map(move |context| context.replace('?', &c.to_string())))
                .collect();
            let expected: Vec<usize> = engine.find_iter(&text).map(|(_, end)| end).collect();
            let ours = ends(pattern, &text);
            let wrong = ours.iter().zip(&expected).position(|(ours, expected)| ours != expected);
            assert!(ours == expected, "{pattern:?}, from U+{start:04X}, word {wrong:?}");
        }
    }
}

/// What is a contraction depends on how the engine folds case.
#[test]
fn any_character_behind_an_apostrophe_is_split_as_the_engine_does() {
    check_each(&["'?e\n", "'?l\n", "'r?\n", "'v?\n", "'l?\n", "a'?\n", "A'?b\n"], 0..0x2_0000);
}

#[test]
fn any_character_between_others_is_split_as_the_engine_does() {
    check_each(&[" ?a", "!?!", "\n?A", "1? ? "], 0..0x3_2000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn any_text_is_split_as_the_reference_does(text in any_text()) {
        ALL.iter().for_each(|split| split.check(&text));
    }
}

//! The tokens against the `tokenizers` crate's, for vocabularies of every pattern: trained ones, random ones, the demo model's.

mod files;
mod splits;
mod texts;

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::{TruncationParams, TruncationStrategy};

use super::{Fast, published};
use crate::{Texts, TokenBounds, Tokenizer};
use files::{MergesBy, byte_level, patterns};
use texts::any_text;

/// One tokenizer, ours and the reference's.
struct Both {
    name: String,
    fast: Fast,
    reference: tokenizers::Tokenizer,
}

impl Both {
    fn new(name: &str, json: &Value) -> Self {
        let (fast, reference) = opened(json);
        let fast = fast.unwrap_or_else(|| panic!("{name} is known"));
        Self { name: name.to_owned(), fast, reference }
    }

    fn check(&self, text: &str) {
        for add_special in [false, true] {
            let expected = self.reference.encode_fast(text, add_special).expect("any text has tokens");
            let got = self.fast.encode(text, add_special);
            assert!(got == expected.get_ids(), "{}, {text:?}:\n {got:?}\n {:?}", self.name, expected.get_ids());
        }
    }
}

fn opened(json: &Value) -> (Option<Fast>, tokenizers::Tokenizer) {
    let json = json.to_string();
    let reference = tokenizers::Tokenizer::from_bytes(&json).expect("a valid tokenizer.json");
    (Fast::of(json.as_bytes(), &reference), reference)
}

/// Each pattern, with trained and with random merges, with and without NFC and `ignore_merges`, in turns.
static ALL: LazyLock<Vec<Both>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for (number, (name, steps)) in patterns().into_iter().enumerate() {
        for (turn, by) in [MergesBy::Training, MergesBy::Chance(number as u64)].into_iter().enumerate() {
            let mut json = byte_level(&steps, by);
            if (number + turn) % 2 == 0 {
                json["normalizer"] = json!({"type": "NFC"});
            }
            json["model"]["ignore_merges"] = json!((number / 2 + turn) % 2 == 0);
            all.push(Both::new(&format!("{name} {by:?}"), &json));
        }
    }
    all
});

static DEMO: LazyLock<Both> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pyworker/pelton/demo/tokenizer.json");
    let json = std::fs::read(path).expect("the demo model is in the repository");
    Both::new("demo", &serde_json::from_slice(&json).expect("a tokenizer.json"))
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn any_text_has_the_tokens_of_the_reference(text in any_text()) {
        ALL.iter().chain([&*DEMO]).for_each(|both| both.check(&text));
    }
}

#[test]
fn documents_and_sources_have_the_tokens_of_the_reference() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in [
        "src/fast/split.rs",
        "src/fast/classes.txt",
        "tests/golden/chats.json",
        "../../README.md",
        "../../bench/frontend/languages.txt",
    ] {
        let text = std::fs::read_to_string(root.join(file)).expect("it is in the repository");
        ALL.iter().chain([&*DEMO]).for_each(|both| both.check(&text));
    }
}

/// None of these may take the square of its length; a test that ends has shown it.
#[test]
fn long_runs_end() {
    for unit in ["a", "ab", " ", "\n", "!", "'", "\u{301}", "a\u{301}", "日", "1", "A", "<", "<|", " \n", "é"] {
        let text = unit.repeat((1 << 19) / unit.len());
        for both in ALL.iter().step_by(4).chain([&*DEMO]) {
            assert!(!both.fast.encode(&text, false).is_empty());
        }
        let short = &text[..unit.len() * (5_000 / unit.len())];
        ALL.iter().chain([&*DEMO]).for_each(|both| both.check(short));
    }
}

#[test]
fn words_around_the_length_where_the_way_changes_have_the_tokens_of_the_reference() {
    for length in 55..75 {
        for unit in ["a", "ab", "theand", "é日"] {
            let text: String = unit.chars().cycle().take(length).collect();
            ALL.iter().for_each(|both| both.check(&text));
        }
    }
}

#[test]
fn added_tokens_are_found_however_they_touch() {
    let parts = [
        "<|end|>",
        "<|end",
        "|>",
        "<s>",
        "<s>x",
        " ",
        "\u{3000}\n",
        "é",
        "e\u{301}",
        "<pad>",
        "a",
        "caf\u{e9}!",
        "日本",
    ];
    for first in parts {
        for second in parts {
            for third in parts {
                let text = [first, second, third, first].concat();
                ALL.iter().step_by(3).for_each(|both| both.check(&text));
            }
        }
    }
}

#[test]
fn what_the_model_expects_around_a_text_is_put_there() {
    let names = json!({"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}, "</s>": {"id": "</s>", "ids": [4, 5], "tokens": ["</s>", "x"]}});
    let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let template = json!({
        "type": "TemplateProcessing", "special_tokens": names,
        "single": [special("<s>"), text("A"), special("</s>")], "pair": [special("<s>"), text("A"), special("</s>"), text("B"), special("</s>")],
    });
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
    let roberta = json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": true, "add_prefix_space": false});
    let bert = json!({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]});
    let both_of = json!({"type": "Sequence", "processors": [bytes.clone(), template.clone()]});
    for processor in [Value::Null, template, bytes, roberta, bert, both_of] {
        let mut json = byte_level(&patterns()[1].1, MergesBy::Chance(1));
        json["post_processor"] = processor;
        let both = Both::new("around", &json);
        ["", "a", "the text, <|end|> and more"].into_iter().for_each(|text| both.check(text));

        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).expect("a valid tokenizer.json");
        let (first, second) = ("the first text of two", "and the second one, which is a little longer");
        for most in [None, Some(5), Some(9), Some(20)] {
            let mut reference = both.reference.clone();
            let truncation = most.map(|max_length| TruncationParams {
                max_length,
                strategy: TruncationStrategy::LongestFirst,
                ..Default::default()
            });
            reference.with_truncation(truncation).expect("there is room for the tokens around");
            let bounds = TokenBounds { last_text: None, all: most };
            let one = tokenizer.encode_within(Texts::One(second), true, bounds).expect("any text has tokens");
            assert_eq!(one, reference.encode(second, true).expect("any text has tokens").get_ids());
            let pair = tokenizer.encode_within(Texts::Pair(first, second), true, bounds).expect("any text has tokens");
            assert_eq!(pair, reference.encode((first, second), true).expect("any text has tokens").get_ids());
        }
    }
}

#[test]
fn a_list_of_no_normalizers_is_none() {
    let (name, steps) = patterns().swap_remove(6);
    let mut json = byte_level(&steps, MergesBy::Chance(4));
    json["normalizer"] = json!({"type": "Sequence", "normalizers": []});
    Both::new(name, &json).check("It's 1234 日本語<pad> e\u{301} the");
}

#[test]
fn what_is_not_known_is_left_to_the_reference() {
    let changes: &[(&str, Value)] = &[
        ("/model/dropout", json!(0.5)),
        ("/model/continuing_subword_prefix", json!("##")),
        ("/model/end_of_word_suffix", json!("</w>")),
        ("/normalizer", json!({"type": "NFKC"})),
        ("/normalizer", json!({"type": "Lowercase"})),
        ("/pre_tokenizer", Value::Null),
        ("/pre_tokenizer", json!({"type": "Whitespace"})),
        (
            "/pre_tokenizer",
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        ),
        (
            "/pre_tokenizer",
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
        ),
        ("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!(r"\p{L}+|\s+")),
        ("/pre_tokenizer/pretokenizers/0/pattern", json!({"String": published::LLAMA3})),
        ("/pre_tokenizer/pretokenizers/0/behavior", json!("MergedWithPrevious")),
        ("/pre_tokenizer/pretokenizers/0/invert", json!(true)),
        ("/pre_tokenizer/pretokenizers/1/add_prefix_space", json!(true)),
        ("/pre_tokenizer/pretokenizers/1/use_regex", json!(true)),
        ("/added_tokens/0/single_word", json!(true)),
    ];
    for (place, value) in changes {
        let mut json = byte_level(&patterns()[1].1, MergesBy::Chance(2));
        if place.starts_with("/model/c") || place.starts_with("/model/e") {
            json["model"]["merges"] = json!([]); // which would not fit
        }
        *json.pointer_mut(place).expect("the file has it") = value.clone();
        let (fast, reference) = opened(&json);
        assert!(fast.is_none(), "{place}: {value}");
        if *place != "/model/dropout" {
            let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).expect("a valid tokenizer.json");
            let expected = reference.encode("It's <s> 3rd text", true).expect("it has tokens");
            assert_eq!(
                tokenizer.encode("It's <s> 3rd text", true).as_deref(),
                Ok(expected.get_ids()),
                "{place}: {value}"
            );
        }
    }
    let mut json = byte_level(&patterns()[1].1, MergesBy::Chance(2));
    json["model"]["vocab"].as_object_mut().expect("a vocabulary").shift_remove("Ń");
    json["model"]["merges"] = json!([]);
    assert!(opened(&json).0.is_none(), "a byte without a token");
}

#[test]
fn merges_may_be_lines_and_may_come_twice() {
    let mut json = byte_level(&patterns()[1].1, MergesBy::Chance(3));
    let merges = json["model"]["merges"].as_array().expect("a list").clone();
    let line = |pair: &Value| format!("{} {}", pair[0].as_str().expect("a token"), pair[1].as_str().expect("a token"));
    let lines = merges.iter().map(line).chain(merges.iter().step_by(3).map(line));
    json["model"]["merges"] = std::iter::once("#version: 0.2".to_owned()).chain(lines).collect();
    let both = Both::new("lines", &json);
    for text in ["aaaaabababbaaab thethe", "It's\n\n  so", include_str!("../split.rs"), include_str!("mod.rs")] {
        both.check(text);
    }
}

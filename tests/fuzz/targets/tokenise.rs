//! Whatever text comes, for tokenizers of every published split pattern: the tokens of our own code are those of the `tokenizers`
//! crate.
//!
//! Input: a byte for the tokenizer, whose last bit says whether special tokens are added; then the text.
#![no_main]

#[path = "../../../router/text/src/fast/tests/files.rs"]
#[expect(dead_code, reason = "the tests of the tokeniser need more of it")]
mod files;
#[path = "../../../router/text/src/fast/published.rs"]
mod published;

use std::sync::LazyLock;

use files::{MergesBy, byte_level, patterns};
use libfuzzer_sys::fuzz_target;
use pelton_text::Tokenizer;
use serde_json::json;

/// Each pattern with random merges, every second one composed (NFC) first.
static ALL: LazyLock<Vec<(Tokenizer, tokenizers::Tokenizer)>> = LazyLock::new(|| {
    let made = patterns().into_iter().enumerate().map(|(number, (name, steps))| {
        let mut json = byte_level(&steps, MergesBy::Chance(number as u64));
        if number % 2 == 0 {
            json["normalizer"] = json!({"type": "NFC"});
        }
        json["model"]["ignore_merges"] = json!(number % 4 < 2);
        let json = json.to_string();
        let ours = Tokenizer::from_json(json.as_bytes()).expect("a valid tokenizer.json");
        assert!(ours.inline_bytes() > 4 << 10, "{name} is known");
        (ours, tokenizers::Tokenizer::from_bytes(&json).expect("a valid tokenizer.json"))
    });
    made.collect()
});

fuzz_target!(|input: &[u8]| {
    let [which, text @ ..] = input else { return };
    let text = String::from_utf8_lossy(text);
    let (ours, reference) = &ALL[usize::from(which / 2) % ALL.len()];
    let add_special = which & 1 == 1;
    let expected = reference.encode_fast(&*text, add_special).expect("any text has tokens");
    let got = ours.encode(&text, add_special).expect("any text has tokens");
    assert!(got == expected.get_ids(), "{text:?}:\n {got:?}\n {:?}", expected.get_ids());
});

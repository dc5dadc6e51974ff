//! Files of tokenizers: each pattern that is known, and vocabularies for them.

use serde_json::{Map, Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{PreTokenizerWrapper, TokenizerBuilder};

use super::published;

/// Where merges come from.
#[derive(Debug, Clone, Copy)]
pub(super) enum MergesBy {
    /// As a model's do.
    Training,
    /// Any tokens, in any order: ranks that no training gives.
    Chance(u64),
}

/// All known pre-tokenizers.
pub(super) fn patterns() -> Vec<(&'static str, Value)> {
    let bytes = |splits: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": splits, "use_regex": splits});
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let removed =
        |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": true});
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
    let alone = |pattern: &str| sequence(vec![split(pattern), bytes(false)]);
    vec![
        ("GPT-2", bytes(true)),
        ("Llama 3", alone(published::LLAMA3)),
        ("Qwen 2", alone(published::QWEN2)),
        ("Qwen 3.5", alone(published::QWEN35)),
        ("o200k", alone(published::O200K)),
        ("Tekken", alone(published::TEKKEN)),
        ("DeepSeek 3", sequence(published::DEEPSEEK3.map(split).into_iter().chain([bytes(false)]).collect())),
        ("SmolLM", sequence(vec![json!({"type": "Digits", "individual_digits": true}), bytes(true)])),
        ("GPT-2 as a pattern", alone(published::GPT2)),
        ("Llama 3, inverted", sequence(vec![removed(published::LLAMA3), bytes(false)])),
        ("o200k, inverted", sequence(vec![removed(published::O200K), bytes(false)])),
    ]
}

/// Text, `normalized`, `lstrip`, `rstrip`.
pub(super) const ADDED: [(&str, bool, bool, bool); 9] = [
    ("<|end|>", false, false, false),
    ("<|end|>\n", false, false, false),
    ("<s>", false, true, false),
    ("<s>x", false, false, true),
    ("<pad>", true, false, false),
    ("caf\u{e9}!", true, false, false),
    ("e\u{301}e\u{301}", true, true, true),
    ("the", true, false, false),
    ("日本", false, true, true),
];

/// A whole `tokenizer.json`.
pub(super) fn byte_level(steps: &Value, by: MergesBy) -> Value {
    let model = match by {
        MergesBy::Training => trained(steps),
        MergesBy::Chance(seed) => random(seed),
    };
    let first = model["vocab"].as_object().expect("a vocabulary").len();
    let added = ADDED.iter().zip(first..).map(|((content, normalized, lstrip, rstrip), id)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": lstrip, "rstrip": rstrip, "normalized": normalized, "special": !normalized})
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(), "normalizer": null,
        "pre_tokenizer": steps, "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": model,
    })
}

fn trained(steps: &Value) -> Value {
    let text = include_str!("../../../../../bench/frontend/languages.txt");
    let code = include_str!("../split.rs");
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<tokenizers::NormalizerWrapper>)
        .with_pre_tokenizer(Some(
            serde_json::from_value::<PreTokenizerWrapper>(steps.clone()).expect("a pre-tokenizer"),
        ))
        .with_post_processor(None::<tokenizers::PostProcessorWrapper>)
        .with_decoder(Some(ByteLevel::default()))
        .build()
        .expect("all parts are there");
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let mut trainer = BpeTrainer::builder().vocab_size(1_500).initial_alphabet(alphabet).show_progress(false).build();
    tokenizer.train(&mut trainer, [text, code].into_iter()).expect("the text is short");
    serde_json::to_value(tokenizer.get_model()).expect("it can be written")
}

/// Tokens of few characters joined at random, so that texts of those characters have many ways to be merged.
fn random(seed: u64) -> Value {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let mut draw = Draw(seed);
    let often: Vec<char> = "aabbttheeeĠĠĠsrl'Ċ13!Ã©Ìģæ".chars().collect();
    let mut names: Vec<String> = alphabet.iter().map(char::to_string).collect();
    let mut merges: Vec<[String; 2]> = Vec::new();
    while merges.len() < 600 {
        let mut half = || match draw.below(3) {
            0 => names[names.len() - 1 - draw.below((names.len() - 255) as u64)].clone(),
            _ => often[draw.below(often.len() as u64)].to_string(),
        };
        let pair = [half(), half()];
        let both = pair.concat();
        if both.len() > 24 || merges.contains(&pair) {
            continue;
        }
        if !names.contains(&both) {
            names.push(both);
        }
        merges.push(pair);
    }
    for last in (1..merges.len()).rev() {
        merges.swap(last, draw.below(last as u64 + 1));
    }
    // Words that no merges lead to: whether they are tokens depends on `ignore_merges`.
    names.extend(["Ġsuch", "such", "日本語", "not bytes"].map(str::to_owned));
    names.extend(["zebra", "Ġzebra"].map(str::to_owned));
    let vocab: Map<String, Value> =
        names.into_iter().zip(0..).map(|(name, id): (String, u32)| (name, id.into())).collect();
    json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
        "fuse_unk": true, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges,
    })
}

/// Numbers by a seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) % bound) as usize
    }
}

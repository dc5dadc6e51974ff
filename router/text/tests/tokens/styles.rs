//! Small tokenizers, one of each style that models use.

use std::sync::LazyLock;

use pelton_text::Tokenizer;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder};

/// One tokenizer, ours and the reference's.
pub(crate) struct Style {
    pub(crate) name: &'static str,
    pub(crate) json: String,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) reference: tokenizers::Tokenizer,
    pub(crate) is_byte_fallback: bool,
    pub(crate) strips_first_space: bool,
    /// Whether its decoder gives each token a text of its own.
    pub(crate) streams: bool,
}

static STYLES: LazyLock<Vec<Style>> = LazyLock::new(|| {
    let steps = |steps: Value| json!({"type": "Sequence", "decoders": steps});
    let to_space = || json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let metaspace =
        |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let strip = || json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let bytes = || json!({"type": "ByteFallback"});
    let fuse = || json!({"type": "Fuse"});

    let byte_fallback = |name, decoder| Style { is_byte_fallback: true, ..style(name, pieces(true, decoder)) };
    let mut styles = vec![
        style("byte-level BPE", trained_byte_level()),
        Style {
            strips_first_space: true,
            ..byte_fallback("Llama 2", steps(json!([to_space(), bytes(), fuse(), strip()])))
        },
        byte_fallback("Gemma", steps(json!([to_space(), bytes(), fuse()]))),
        style(
            "byte-level, in a sequence",
            with_decoder(
                &trained_byte_level(),
                steps(
                    json!([{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}, fuse()]),
                ),
            ),
        ),
        style("metaspace, always", pieces(false, metaspace("always"))),
        style("metaspace, never", pieces(false, metaspace("never"))),
        style("replace only", pieces(false, to_space())),
        style("strip each token", pieces(false, steps(json!([to_space(), strip()])))),
        style("WordPiece", pieces(false, json!({"type": "WordPiece", "prefix": "##", "cleanup": true}))),
        style("no decoder", pieces(false, Value::Null)),
    ];
    let whole = [
        ("CTC", json!({"type": "CTC", "pad_token": "<unk>", "word_delimiter_token": "▁", "cleanup": false})),
        ("BPE with suffixes", json!({"type": "BPEDecoder", "suffix": "▁"})),
        ("bytes before metaspace", steps(json!([bytes(), metaspace("first")]))),
        ("fused before replaced", steps(json!([fuse(), to_space()]))),
    ];
    styles.extend(whole.map(|(name, decoder)| Style { streams: false, ..style(name, pieces(true, decoder)) }));
    styles
});

/// All styles.
pub(crate) fn all() -> &'static [Style] {
    &STYLES
}

/// As Llama 3's or Qwen's.
pub(crate) fn byte_level() -> &'static Style {
    &STYLES[0]
}

/// As Llama 2's or Mistral's first.
pub(crate) fn byte_fallback() -> &'static Style {
    &STYLES[1]
}

fn style(name: &'static str, json: String) -> Style {
    let tokenizer = Tokenizer::from_json(json.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let reference = tokenizers::Tokenizer::from_bytes(&json).expect("opened already");
    Style { name, json, tokenizer, reference, is_byte_fallback: false, strips_first_space: false, streams: true }
}

fn trained_byte_level() -> String {
    let text = ["the quick brown fox", "the théâtre € costs 😀 the", "  spaces\n\nand lines\t", "日本語 the"];
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<tokenizers::NormalizerWrapper>)
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
        .with_post_processor(None::<tokenizers::PostProcessorWrapper>)
        .with_decoder(Some(ByteLevel::default()))
        .build()
        .expect("all parts are there");
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let mut trainer = BpeTrainer::builder().vocab_size(320).initial_alphabet(alphabet).show_progress(false).build();
    tokenizer.train(&mut trainer, text.into_iter()).expect("the text is short");
    tokenizer.add_special_tokens([AddedToken::from("<|end|>", true)]).expect("a name");
    tokenizer.add_tokens([AddedToken::from("<tool call>", false), AddedToken::from("Ġ€", false)]).expect("names");
    tokenizer.to_string(false).expect("it can be written")
}

/// BPE over `▁` and letters, with all bytes as tokens, and any decoder.
fn pieces(byte_fallback: bool, decoder: Value) -> String {
    let mut names: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    names.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    names.extend(["▁", "##", "##he", "é", " ", "▁▁", ".", "n't"].map(String::from));
    names.extend(('a'..='z').map(String::from));
    names.extend(["th", "the", "▁the", "▁▁the"].map(String::from));
    let vocab: serde_json::Map<String, Value> =
        names.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect();
    let next = names.len();
    let added = |id: usize, content: &str, special: bool| json!({"id": id, "content": content, "special": special, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false});
    json!({
        "version": "1.0",
        "added_tokens": [
            added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true),
            added(next, "<|end|>", true), added(next + 1, "<tool call>", false),
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": decoder,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": byte_fallback, "ignore_merges": false,
            "vocab": vocab, "merges": [["t", "h"], ["th", "e"], ["▁", "the"], ["▁", "▁the"], ["▁", "▁"]],
        },
    })
    .to_string()
}

fn with_decoder(json: &str, decoder: Value) -> String {
    let mut json: Value = serde_json::from_str(json).expect("a tokenizer.json");
    json["decoder"] = decoder;
    json.to_string()
}

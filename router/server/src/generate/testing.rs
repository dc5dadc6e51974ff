//! A tokenizer for tests: every byte is a token of its own id, so that tokens can be written as text.

use pelton_text::Tokenizer;
use serde_json::json;

/// Ends an answer; special.
pub(crate) const END: u32 = 256;
/// `<tool_call>`, not special.
const CALL: u32 = 257;
/// `</tool_call>`, not special.
const CALL_END: u32 = 258;

/// 256 bytes and three named tokens.
pub(crate) fn tokenizer() -> Tokenizer {
    tokenizer_with(&[])
}

/// The same with more tokens that are special, behind the others.
pub(crate) fn tokenizer_with(specials: &[&str]) -> Tokenizer {
    let added = |id, content: &str, special| {
        json!({ "id": id, "content": content, "special": special,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false })
    };
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let mut tokens =
        vec![added(END, "<end>", true), added(CALL, "<tool_call>", false), added(CALL_END, "</tool_call>", false)];
    tokens.extend((CALL_END + 1..).zip(specials).map(|(id, name)| added(id, name, true)));
    let vocab: serde_json::Map<_, _> = (0..=255).map(|byte| (name_of(byte).to_string(), json!(byte))).collect();
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "added_tokens": tokens,
        "model": { "type": "BPE", "vocab": vocab, "merges": [], "dropout": null, "unk_token": null,
                   "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false },
    });
    Tokenizer::from_json(file.to_string().as_bytes()).expect("a valid tokenizer")
}

/// The character that byte-level vocabularies write a byte as: itself if it is visible, else one from U+0100 on.
fn name_of(byte: u8) -> char {
    let is_visible = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !is_visible(byte)).count();
    char::from_u32(0x100 + u32::try_from(before).expect("below 256")).expect("a letter")
}

/// The tokens of a text: its bytes.
pub(crate) fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

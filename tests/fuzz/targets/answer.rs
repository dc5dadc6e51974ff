//! Whatever a model writes, in any format and cut anywhere: the pieces of a stream add up to those of the whole text, and every
//! call that ended is JSON.
//!
//! Input: a byte for the format, one for how it is read, then the text; a byte of 0xFF, which no text has, is a cut.
#![no_main]

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use pelton_text::{Certain, Format, FormatError, Piece, Reading, Tokenizer, Tools};
use serde_json::{json, value::RawValue};

/// Each known format, bound to a vocabulary without special tokens and to one where all of these are.
static FORMATS: LazyLock<Vec<[Format; 2]>> = LazyLock::new(|| {
    let specials =
        ["<think>", "</think>", "<tool_call>", "[TOOL_CALLS]", "<|message|>", "<|channel|>", "<|start|>", "[ARGS]"];
    let [none, some] = [&[][..], &specials].map(tokenizer);
    let Err(FormatError::Unknown { known, .. }) = Format::named("", &none) else { panic!("the nameless format") };
    let both = |name: &str| [&none, &some].map(|tokenizer| Format::named(name, tokenizer).expect("it is listed"));
    known.split(", ").map(both).collect()
});

/// Two tools whose parameters have types, and one without.
static TOOLS: LazyLock<Arc<Tools>> = LazyLock::new(|| {
    let tool =
        |name: &str, properties| json!({ "function": { "name": name, "parameters": { "properties": properties } } });
    Arc::new(Tools::new(&[
        tool("get_weather", json!({ "city": { "type": "string" }, "days": { "type": "integer" } })),
        tool("get_time", json!({ "zone": { "type": ["string", "null"] }, "at": { "type": "object" } })),
        tool("f", json!({})),
    ]))
});

fn tokenizer(specials: &[&str]) -> Tokenizer {
    let added = specials.iter().enumerate().map(|(at, content)| {
        json!({"id": at + 1, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
    });
    let model = json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"});
    let file = json!({"version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "model": model});
    Tokenizer::from_json(file.to_string().as_bytes()).expect("a tokenizer")
}

/// The pieces with those that go on in each other made one.
fn fold(pieces: impl IntoIterator<Item = Piece>) -> Vec<Piece> {
    let mut folded: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (folded.last_mut(), &piece) {
            (Some(Piece::Reasoning(all)), Piece::Reasoning(more))
            | (Some(Piece::Content(all)), Piece::Content(more)) => {
                all.push_str(more);
            }
            (Some(Piece::CallArguments { index, delta }), Piece::CallArguments { index: at, delta: more })
                if index == at =>
            {
                delta.push_str(more);
            }
            _ => folded.push(piece),
        }
    }
    folded
}

fuzz_target!(|input: &[u8]| {
    let [which, how, text @ ..] = input else { return };
    let text: Vec<_> = text.split(|&byte| byte == 0xFF).map(String::from_utf8_lossy).collect();
    let has = |bit: u8| how >> bit & 1 == 1;
    let format = &FORMATS[usize::from(*which) % FORMATS.len()][usize::from(has(0))];
    let (starts_in_reasoning, shows_special) = (has(1), has(2));
    let tools = has(3).then(|| Arc::clone(&TOOLS));
    let has_tools = tools.is_some();

    let certain = if has(4) { Certain::All } else { Certain::Nothing };
    let parser = format.parser(Reading { starts_in_reasoning, tools, shows_special, certain, has_form: has(5) });
    let read = |texts: &mut dyn Iterator<Item = &str>| {
        let mut parser = parser.clone();
        let mut pieces: Vec<Piece> = texts.flat_map(|text| parser.push(text)).collect();
        pieces.extend(parser.finish());
        assert_eq!(parser.finish(), [], "nothing is left");
        fold(pieces)
    };
    let streamed = read(&mut text.iter().map(|text| &**text));
    let whole = text.concat();
    assert_eq!(streamed, read(&mut [whole.as_str()].into_iter()), "{} cut as {text:?}", format.name());

    let (mut begun, mut ended) = (0, 0);
    let mut arguments = String::new();
    for piece in &streamed {
        match piece {
            Piece::CallStart { index, name, .. } => {
                assert!(has_tools && *index == begun && !name.is_empty());
                begun += 1;
                arguments.clear();
            }
            Piece::CallArguments { index, delta } => {
                assert_eq!(index + 1, begun);
                arguments.push_str(delta);
            }
            Piece::CallEnd { index } => {
                assert!(*index + 1 == begun && ended < begun, "each ends once");
                ended = begun;
                // As text: a number may be beyond what a float holds.
                serde_json::from_str::<HashMap<String, Box<RawValue>>>(&arguments).expect("the arguments are an object");
            }
            Piece::Reasoning(text) | Piece::Content(text) => assert!(!text.is_empty()),
        }
    }
});

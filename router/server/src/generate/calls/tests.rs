//! Calls that are drawn within their grammars are read as calls of these tools, whatever is drawn.

use std::sync::LazyLock;

use pelton_grammar::{Body, Grammar, Script, Spelling, TokenText, Vocabulary};
use pelton_text::{AnswerParser, Certain, Piece, Reading, Tools};
use proptest::prelude::*;

use super::*;
use crate::generate::testing::{END, tokenizer_with};

mod schemas;

const FORMATS: [&str; 26] = [
    "cohere",
    "deepseek-v3",
    "deepseek-v3.1",
    "deepseek-v3.2",
    "ernie-4.5",
    "function-gemma",
    "gemma-4",
    "glm-4.5",
    "granite",
    "harmony",
    "hermes",
    "hunyuan",
    "hunyuan-v3",
    "internlm",
    "jamba",
    "kimi-k2",
    "llama3-json",
    "llama4-pythonic",
    "minimax-m2",
    "mistral",
    "mistral-args",
    "olmo-3",
    "phi-4-mini",
    "qwen3-coder",
    "seed-oss",
    "xlam",
];

/// Tokens that are marks, or parts of some, in half of the tests.
const SPECIALS: [&str; 16] = [
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<escape>",
    "<|tool_call_begin|>",
    "<|tool_call|>",
    "<|python_tag|>",
    "<|action_start|>",
    "<|plugin|>",
    "[TOOL_CALLS]",
];

/// A format with the grammars of its answers.
struct Drawn {
    format: Format,
    /// Nothing but calls.
    calls: Grammar,
    /// Text and calls.
    free: Grammar,
}

/// All formats over one tokenizer.
struct World {
    tokenizer: Tokenizer,
    formats: Vec<Drawn>,
}

static WORLDS: LazyLock<[World; 2]> = LazyLock::new(|| [World::new(&[]), World::new(&SPECIALS)]);

impl World {
    fn new(specials: &[&str]) -> Self {
        let tokenizer = tokenizer_with(specials);
        let vocabulary = vocabulary(&tokenizer);
        let tools = offered();
        let refs: Vec<&Value> = tools.iter().collect();
        let formats = FORMATS.iter().map(|name| {
            let format = Format::named(name, &tokenizer).expect("known");
            let calls = calls(&format, &tokenizer, &refs, ToolReading::Parallel);
            let calls = calls.unwrap_or_else(|why| panic!("{name}: {why}"));
            let beside = beside(&format, &tokenizer, false).expect("it has calls");
            let compiled = |body| {
                let script = Script { reasoning: None, mark: Mark::new(), body };
                vocabulary.compile(&script, Spelling::Any).unwrap_or_else(|error| panic!("{name}: {error}"))
            };
            let free = compiled(Body::Free(calls.clone(), beside));
            Drawn { calls: compiled(Body::Calls(calls)), free, format }
        });
        let formats = formats.collect();
        Self { tokenizer, formats }
    }
}

fn tool(name: &str, parameters: &Value) -> Value {
    json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
}

/// What every format can write.
fn offered() -> [Value; 2] {
    let properties = json!({
        "city": { "type": "string" },
        "unit": { "type": "string", "enum": ["celsius", "kelvin"] },
        "days": { "type": "integer", "minimum": 1, "maximum": 99 },
        "hourly": { "type": "boolean" },
    });
    let parameters = json!({
        "type": "object", "properties": properties, "required": ["unit", "days"], "additionalProperties": false,
    });
    [
        tool("forecast", &parameters),
        tool("now", &json!({ "type": "object", "properties": {}, "additionalProperties": false })),
    ]
}

fn vocabulary(tokenizer: &Tokenizer) -> Vocabulary {
    let names: Vec<Option<String>> =
        (0..tokenizer.vocab_size()).map(|id| tokenizer.id_to_token(id).filter(|_| tokenizer.is_special(id))).collect();
    let tokens = (0..).zip(&names).map(|(id, special)| match (special, tokenizer.token_bytes(id)) {
        (Some(name), _) => TokenText::Special(name),
        (None, Some(bytes)) => TokenText::Bytes(bytes),
        (None, None) => TokenText::Nothing,
    });
    Vocabulary::new(tokens, &[END]).expect("it has an end")
}

/// A text drawn within the grammar: `choices` say which of the allowed tokens each is.
fn drawn(grammar: &Grammar, tokenizer: &Tokenizer, choices: &[u16]) -> Option<String> {
    let mut state = grammar.begin();
    let mut text = String::new();
    for &choice in choices {
        let mask = state.mask().expect("it goes on");
        let allowed: Vec<u32> = (0..tokenizer.vocab_size()).filter(|&token| mask.allows(token)).collect();
        // Mostly what is written in texts, so that they are varied, and marks, so that they end.
        let plain = |&token: &u32| token >= 256 || (32..127).contains(&token) || token == 10;
        let liked: Vec<u32> = allowed.iter().copied().filter(plain).collect();
        let from = if liked.is_empty() { return None } else { &liked };
        // Where nearly everything is allowed, a text is being written: a mark's beginning is likelier then.
        let marks: Vec<u32> =
            from.iter().copied().filter(|&token| token >= 256 || matches!(token, 10 | 34 | 60)).collect();
        let from = if from.len() > 60 && choice % 3 > 0 && !marks.is_empty() { &marks } else { from };
        let token = from[choice as usize / 3 % from.len()];
        if token == END {
            return Some(text);
        }
        state.take(&[token]).expect("it was allowed");
        let name = tokenizer.id_to_token(token).filter(|_| tokenizer.is_special(token));
        text += &name
            .unwrap_or_else(|| String::from_utf8_lossy(tokenizer.token_bytes(token).unwrap_or_default()).into_owned());
    }
    None
}

/// Names and arguments of the calls in a text, and what else is in it.
fn read(format: &Format, tools: &[Value], text: &str) -> (Vec<(String, String)>, String) {
    let tools = Some(std::sync::Arc::new(Tools::new(tools)));
    let reading = Reading { tools, certain: Certain::Marked, ..Reading::default() };
    let mut parser: AnswerParser = format.parser(reading);
    let (mut calls, mut content) = (Vec::new(), String::new());
    for piece in parser.push(text).into_iter().chain(parser.finish()) {
        match piece {
            Piece::CallStart { name, .. } => calls.push((name, String::new())),
            Piece::CallArguments { delta, .. } => calls.last_mut().expect("one has begun").1 += &delta,
            Piece::Content(text) => content += &text,
            _ => {}
        }
    }
    (calls, content)
}

/// Whether all of the calls are ones that were offered.
fn check(name: &str, text: &str, calls: Vec<(String, String)>) -> Result<(), TestCaseError> {
    for (tool, arguments) in calls {
        let arguments: Map<String, Value> = serde_json::from_str(&arguments)
            .map_err(|error| TestCaseError::fail(format!("{name}: {text:?}: {error}")))?;
        prop_assert!(["forecast", "now"].contains(&&*tool), "{name}: {text:?}: {tool}");
        if tool == "forecast" {
            let has_unit = ["celsius", "kelvin"].iter().any(|unit| arguments["unit"] == **unit);
            prop_assert!(has_unit, "{name}: {text:?}: {arguments:?}");
            prop_assert!(arguments["days"].as_u64().is_some_and(|days| (1..100).contains(&days)), "{name}: {text:?}");
            prop_assert!(arguments.get("city").is_none_or(Value::is_string), "{name}: {text:?}");
            prop_assert!(arguments.get("hourly").is_none_or(Value::is_boolean), "{name}: {text:?}");
            prop_assert!(arguments.keys().all(|key| ["city", "unit", "days", "hourly"].contains(&&**key)));
        } else {
            prop_assert!(arguments.is_empty(), "{name}: {text:?}");
        }
    }
    Ok(())
}

/// The tokens of a text; `specials`: names of control tokens are these.
fn tokens(tokenizer: &Tokenizer, text: &str, specials: bool) -> Vec<u32> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(&byte) = rest.as_bytes().first() {
        let special = SPECIALS.iter().find(|name| specials && rest.starts_with(**name));
        match special.and_then(|name| Some((tokenizer.token_to_id(name)?, name.len()))) {
            Some((id, length)) => {
                tokens.push(id);
                rest = &rest[length..];
            }
            None => {
                tokens.push(u32::from(byte));
                let Some(next) = rest.get(1..) else { break };
                rest = next;
            }
        }
    }
    tokens
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_drawn_is_read_as_calls_of_the_tools(choices in prop::collection::vec(any::<u16>(), 600), are_tokens: bool) {
        let World { tokenizer, formats } = &WORLDS[usize::from(are_tokens)];
        for Drawn { format, calls, .. } in formats {
            let name = format.name();
            let Some(text) = drawn(calls, tokenizer, &choices) else { continue };
            let (read, content) = read(format, &offered(), &text);
            prop_assert!(!read.is_empty() && content.trim().is_empty(), "{name}: {text:?} is {read:?} and {content:?}");
            check(name, &text, read)?;
        }
    }

    /// Marks, calls that were and were not offered, and what stands between them, in any order: what of it fits the grammar of an
    /// answer that may have calls is read without a call that was not offered.
    #[test]
    fn no_call_hides_in_free_text(
        choices in prop::collection::vec(any::<u16>(), 400),
        pieces in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..12),
        are_tokens: bool,
    ) {
        let World { tokenizer, formats } = &WORLDS[usize::from(are_tokens)];
        for Drawn { format, calls, free } in formats {
            let name = format.name();
            let offered_call = drawn(calls, tokenizer, &choices).unwrap_or_default();
            let beside = format.beside_calls().expect("it has calls");
            let shape = format.call_shape().expect("it has calls");
            let mut all: Vec<&str> = vec![
                " ", "\n", "hi", ", ", ";", "evil", "{\"name\": \"evil\", \"arguments\": {}}", "[evil()]", "evil(x=1)", "{}", "[",
                "{\"name\": \"now\", \"arguments\": {\"x\": 1}}", "[{\"name\": \"now\", \"parameters\": {\"x\": 1}}]", "call:evil{}",
                "[now(x=1)]", "<function=evil>\n</function>", "<|message|>", "<|channel|>commentary to=functions.evil<|message|>",
                "functions.evil:0", &offered_call, &offered_call, &offered_call,
            ];
            all.extend(&beside.marks);
            all.extend(format.reasoning_marks().into_iter().flat_map(|(open, close)| [open, close]));
            all.extend([shape.open, shape.close, shape.each_open, shape.each_close].into_iter().flatten());
            if let Begin::Bare(with) = &beside.begin {
                all.extend(with);
            }
            if let Begin::Messages { headers, between } = beside.begin {
                all.extend(headers);
                all.push(between);
            }
            let (mut text, mut taken) = (String::new(), Vec::new());
            for (at, specials) in &pieces {
                let piece = all[at.index(all.len())];
                let mut state = free.begin();
                state.take(&taken).expect("it was allowed");
                let next = tokens(tokenizer, piece, *specials);
                let fits = |token: &u32| state.mask().is_ok_and(|mask| mask.allows(*token)) && state.take(&[*token]).is_ok();
                if next.iter().all(fits) {
                    taken.extend(next);
                    text += piece;
                }
            }
            let (read, _) = read(format, &offered(), &text);
            let mut state = free.begin();
            state.take(&taken).expect("it was allowed");
            if state.mask().is_ok_and(|mask| mask.allows(END)) {
                check(name, &text, read)?;
            }
        }
    }
}

#[test]
fn calls_take_the_form_of_the_format() {
    let tokenizer = tokenizer_with(&[]);
    let tools = [&tool("f", &json!({ "type": "object" })), &tool("g", &json!({ "type": "object" }))];
    let of = |name: &str, reading| {
        calls(&Format::named(name, &tokenizer).expect("known"), &tokenizer, &tools, reading).expect("it writes them")
    };
    let schema = |calls: &Calls, at: usize| match &calls.tools[at].arguments {
        Arguments::Json(schema) => schema.clone(),
        Arguments::Fields(fields) => panic!("{fields:?} are no JSON"),
    };
    let hermes = of("hermes", ToolReading::Parallel);
    assert_eq!(hermes.each_open, Some(vec![Part::Text("<tool_call>".into())]));
    assert_eq!((hermes.tools.len(), hermes.are_many, &hermes.open), (2, true, &None));
    assert_eq!(schema(&hermes, 0)["properties"]["name"], json!({ "const": "f" }));
    let mistral = of("mistral", ToolReading::Single);
    assert_eq!((mistral.tools.len(), mistral.are_many), (1, false));
    assert_eq!((&schema(&mistral, 0)["type"], &schema(&mistral, 0)["maxItems"]), (&json!("array"), &json!(1)));
    let deepseek = of("deepseek-v3.1", ToolReading::Parallel);
    assert_eq!(deepseek.tools[1].head[0], Part::Text("g".into()));
    assert_eq!(schema(&deepseek, 1), json!({ "type": "object" }));
    let llama = of("llama3-json", ToolReading::Single);
    assert_eq!((llama.tools.len(), &schema(&llama, 2)["maxItems"]), (3, &json!(1)), "two objects and a list");
    let python = of("llama4-pythonic", ToolReading::Parallel);
    assert_eq!((python.open, python.between), (Some(vec![Part::Text("[".into())]), vec![Part::Text(", ".into())]));
    for name in ["harmony", "llama3-json"] {
        assert!(!of(name, ToolReading::Parallel).are_many, "{name}");
    }
    for name in ["qwen3-coder", "minimax-m2", "deepseek-v3.2", "olmo-3", "kimi-k2", "llama4-pythonic"] {
        assert!(of(name, ToolReading::Parallel).are_many && !of(name, ToolReading::Single).are_many, "{name}");
    }
}

#[test]
fn what_a_format_cannot_write_is_named() {
    let tokenizer = tokenizer_with(&[]);
    let refused = |name: &str, properties: Value, is_strict: bool| {
        let mut tool = tool("f", &json!({ "type": "object", "properties": properties }));
        tool["function"]["strict"] = json!(is_strict);
        calls(&Format::named(name, &tokenizer).expect("known"), &tokenizer, &[&tool], ToolReading::Parallel).err()
    };
    let pattern = json!({ "x": { "type": "string", "pattern": "a+" } });
    assert_eq!(refused("qwen3-coder", pattern.clone(), false), None, "it is asked for, not promised");
    let why = refused("qwen3-coder", pattern.clone(), true).expect("a promise that cannot be kept");
    assert!(why.contains("`x` of `f`") && why.contains("`pattern`"), "{why}");
    assert_eq!(refused("hermes", pattern, true), None);
    let list = json!({ "x": { "type": "array", "items": { "type": "string" } } });
    assert_eq!(refused("qwen3-coder", list.clone(), true), None, "it is JSON there");
    assert!(refused("gemma-4", list, false).is_some_and(|why| why.contains("`x` of `f`")));
    assert!(refused("olmo-3", json!({ "a b": {} }), false).is_some_and(|why| why.contains("`a b`")));
    let marked = json!({ "x": { "type": "string", "enum": ["a", "b</parameter>c"] } });
    assert!(refused("qwen3-coder", marked, false).is_some());
    let many: Map<String, Value> = (0..257).map(|at| (format!("x{at}"), json!({ "type": "integer" }))).collect();
    assert!(refused("qwen3-coder", Value::Object(many), false).is_some_and(|why| why.contains("257")));
    let unlisted = tool("f", &json!({ "type": "object", "properties": {}, "required": ["x"] }));
    let format = Format::named("gemma-4", &tokenizer).expect("known");
    assert!(calls(&format, &tokenizer, &[&unlisted], ToolReading::Parallel).is_err_and(|why| why.contains("`x`")));
    let large = json!({ "type": "object", "$defs": { "a": { "const": "x".repeat(1 << 19) } },
        "properties": { "a": { "$ref": "#/$defs/a" }, "b": { "$ref": "#/$defs/a" }, "c": { "type": "integer" } } });
    assert!(calls(&format, &tokenizer, &[&tool("f", &large)], ToolReading::Parallel).is_err());
    let elsewhere = tool("f", &json!({ "anyOf": [{ "type": "object" }] }));
    let format = Format::named("qwen3-coder", &tokenizer).expect("known");
    assert!(calls(&format, &tokenizer, &[&elsewhere], ToolReading::Parallel).is_err());
}

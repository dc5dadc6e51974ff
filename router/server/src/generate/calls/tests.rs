//! Calls that are drawn within their grammars are read as calls of these tools, whatever is drawn.

use pelton_grammar::{Body, Script, Spelling, TokenText, Vocabulary};
use pelton_text::{AnswerParser, Piece, Reading, Tools};
use proptest::prelude::*;

use super::*;
use crate::generate::testing::{END, tokenizer_with};

const FORMATS: [&str; 24] = [
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
    "qwen3-coder",
    "seed-oss",
];

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
fn drawn(vocabulary: &Vocabulary, tokenizer: &Tokenizer, calls: Calls, choices: &[u16]) -> Option<String> {
    let script = Script { reasoning: None, mark: Mark::new(), body: Body::Calls(calls) };
    let mut state = vocabulary.compile(&script, Spelling::Any).expect("a grammar").begin();
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
    let reading = Reading { tools: Some(std::sync::Arc::new(Tools::new(tools))), ..Reading::default() };
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_drawn_is_read_as_calls_of_the_tools(choices in prop::collection::vec(any::<u16>(), 600), are_tokens: bool) {
        let specials: &[&str] = if are_tokens {
            &["<|channel|>", "<|message|>", "<|constrain|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<escape>", "<|tool_call_begin|>"]
        } else {
            &[]
        };
        let tokenizer = tokenizer_with(specials);
        let vocabulary = vocabulary(&tokenizer);
        let tools = offered();
        let refs: Vec<&Value> = tools.iter().collect();
        for name in FORMATS {
            let format = Format::named(name, &tokenizer).expect("known");
            let calls = calls(&format, &tokenizer, &refs, ToolReading::Parallel).unwrap_or_else(|why| panic!("{name}: {why}"));
            let Some(text) = drawn(&vocabulary, &tokenizer, calls, &choices) else { continue };
            let (read, content) = read(&format, &tools, &text);
            prop_assert!(!read.is_empty() && content.trim().is_empty(), "{name}: {text:?} is {read:?} and {content:?}");
            for (tool, arguments) in read {
                let arguments: Map<String, Value> = serde_json::from_str(&arguments).map_err(|error| TestCaseError::fail(format!("{name}: {text:?}: {error}")))?;
                prop_assert!(["forecast", "now"].contains(&&*tool), "{name}: {tool}");
                if tool == "forecast" {
                    prop_assert!(["celsius", "kelvin"].iter().any(|unit| arguments["unit"] == **unit), "{name}: {text:?}: {arguments:?}");
                    prop_assert!(arguments["days"].as_u64().is_some_and(|days| (1..100).contains(&days)), "{name}: {text:?}");
                    prop_assert!(arguments.get("city").is_none_or(Value::is_string), "{name}: {text:?}");
                    prop_assert!(arguments.get("hourly").is_none_or(Value::is_boolean), "{name}: {text:?}");
                    prop_assert!(arguments.keys().all(|key| ["city", "unit", "days", "hourly"].contains(&&**key)));
                } else {
                    prop_assert!(arguments.is_empty(), "{name}: {text:?}");
                }
            }
        }
    }
}

#[test]
fn references_of_a_schema_follow_it_to_its_place() {
    let schema =
        json!({ "$defs": { "a": { "type": "null" } }, "items": [{ "$ref": "#/$defs/a" }, { "$ref": "other#/x" }] });
    let expected =
        json!({ "$defs": { "a": { "type": "null" } }, "items": [{ "$ref": "#/p/$defs/a" }, { "$ref": "other#/x" }] });
    assert_eq!(moved(&schema, "#/p"), expected);
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
    for name in ["harmony", "llama4-pythonic", "llama3-json"] {
        assert!(!of(name, ToolReading::Parallel).are_many, "{name}");
    }
    for name in ["qwen3-coder", "minimax-m2", "deepseek-v3.2", "olmo-3", "kimi-k2"] {
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

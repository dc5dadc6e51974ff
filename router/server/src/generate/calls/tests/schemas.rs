//! Schemas of tools, and which calls fit the grammars that are made of them.

use super::*;

/// Whether calls of a function `f` with these parameters are read out of texts, and which arguments they have.
struct Called {
    format: Format,
    tool: Value,
    grammar: Grammar,
}

impl Called {
    fn new(name: &str, parameters: Value) -> Self {
        let tokenizer = &WORLDS[0].tokenizer;
        let format = Format::named(name, tokenizer).expect("known");
        let mut tool = tool("f", &parameters);
        tool["function"]["strict"] = json!(true);
        let calls = calls(&format, tokenizer, &[&tool], ToolReading::Single);
        let body = Body::Calls(calls.unwrap_or_else(|why| panic!("{name}, {parameters}: {why}")));
        let script = Script { reasoning: None, mark: Mark::new(), body };
        let grammar = vocabulary(tokenizer).compile(&script, Spelling::Any);
        Self { grammar: grammar.unwrap_or_else(|error| panic!("{name}, {parameters}: {error}")), format, tool }
    }

    /// The arguments of a call that fits; `None`: it does not. One that fits is read, or the test fails.
    fn arguments(&self, text: &str) -> Option<Value> {
        let mut state = self.grammar.begin();
        for token in tokens(&WORLDS[0].tokenizer, text, false) {
            if !state.mask().expect("it goes on").allows(token) {
                return None;
            }
            state.take(&[token]).expect("it was allowed");
        }
        if !state.mask().expect("it goes on").allows(END) {
            return None;
        }
        let (calls, content) = read(&self.format, std::slice::from_ref(&self.tool), text);
        assert!(calls.len() == 1 && content.is_empty(), "{text:?} is {calls:?} and {content:?}");
        Some(serde_json::from_str(&calls[0].1).unwrap_or_else(|error| panic!("{text:?}: {error}")))
    }
}

/// A call in two formats: one whose arguments are a JSON object, and one with a parameter after the other.
fn hermes(arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>")
}

fn coder(parameters: &[(&str, &str)]) -> String {
    let each = parameters.iter().map(|(key, value)| format!("<parameter={key}>{value}</parameter>\n"));
    format!("<tool_call>\n<function=f>\n{}</function>\n</tool_call>", each.collect::<String>())
}

#[test]
fn arguments_are_an_object_whatever_the_schema_leaves_open() {
    for open in [json!({}), json!({ "additionalProperties": true }), json!(true), json!({ "properties": { "a": {} } })]
    {
        let called = Called::new("hermes", open.clone());
        assert_eq!(called.arguments(&hermes("{\"a\": 1}")), Some(json!({ "a": 1 })), "{open}");
        for other in ["false", "[]", "\"go\"", "1", "null"] {
            assert_eq!(called.arguments(&hermes(other)), None, "{open}: {other}");
        }
    }
    let llama = Called::new("llama3-json", json!({ "properties": { "q": { "type": "string" } } }));
    assert_eq!(llama.arguments("{\"name\": \"f\", \"parameters\": \"go\"}"), None);
    assert!(llama.arguments("{\"name\": \"f\", \"parameters\": {\"q\": \"go\"}}").is_some());
}

#[test]
fn references_mean_what_they_meant_where_the_schema_stood_alone() {
    let number = json!({ "type": "integer" });
    let a = |part: Value| json!({ "a": part });
    for schema in [
        json!({ "properties": a(json!({ "$ref": "#/$defs/x" })), "$defs": { "x": number } }),
        json!({ "properties": a(json!({ "$ref": "#x" })), "$defs": { "x": { "$anchor": "x", "type": "integer" } } }),
        json!({ "$id": "http://e/s", "properties": a(json!({ "$ref": "#/$defs/x" })), "$defs": { "x": number } }),
        json!({ "$id": "urn:uuid:1", "properties": a(json!({ "$ref": "urn:uuid:1#/$defs/x" })), "$defs": { "x": number } }),
        json!({ "$schema": "http://json-schema.org/draft-07/schema#", "$id": "#q", "definitions": { "x": number },
                "properties": a(json!({ "$ref": "#/definitions/x" })) }),
        json!({ "$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/all",
                "definitions": { "all": { "type": "object", "properties": { "a": number } } } }),
        json!({ "$schema": "http://json-schema.org/draft-04/schema#", "definitions": { "x": number },
                "properties": a(json!({ "$ref": "#/definitions/x" })) }),
        json!({ "properties": a(json!({ "$id": "inner", "$ref": "#/$defs/x", "$defs": { "x": number } })),
                "$defs": { "x": { "type": "null" } } }),
        json!({ "properties": a(json!({ "$ref": "#/properties/b" })).as_object().into_iter().flatten()
                .map(|(name, value)| (name.clone(), value.clone())).chain([("b".to_owned(), number.clone())])
                .collect::<Map<_, _>>() }),
    ] {
        for (name, call) in [
            ("hermes", hermes as fn(&str) -> String),
            ("mistral", |arguments| format!("[TOOL_CALLS][{{\"name\": \"f\", \"arguments\": {arguments}}}]")),
        ] {
            let called = Called::new(name, schema.clone());
            assert_eq!(called.arguments(&call("{\"a\": 5}")), Some(json!({ "a": 5 })), "{name}: {schema}");
            assert_eq!(called.arguments(&call("{\"a\": null}")), None, "{name}: {schema}");
        }
        if schema.get("$ref").is_none() {
            let called = Called::new("qwen3-coder", schema.clone());
            assert_eq!(called.arguments(&coder(&[("a", "5")])), Some(json!({ "a": 5 })), "{schema}");
            assert_eq!(called.arguments(&coder(&[("a", "null")])), None, "{schema}");
        }
    }
    // What is no reference stays as it is.
    let value = json!({ "$ref": "#/foo" });
    let called = Called::new("hermes", json!({ "properties": { "a": { "const": value } }, "required": ["a"] }));
    assert_eq!(called.arguments(&hermes("{\"a\": {\"$ref\": \"#/foo\"}}")), Some(json!({ "a": value })));
}

#[test]
fn what_tools_name_alike_stays_their_own() {
    let schema = |x: &str| {
        json!({ "$id": "http://example.com/example.json", "properties": { "a": { "$ref": "#/$defs/x" }, "b": { "$ref": "#x" } },
        "$defs": { "x": { "$anchor": "x", "type": x } }, "required": ["a", "b"] })
    };
    let tools = [tool("f", &schema("integer")), tool("g", &schema("string"))];
    let tokenizer = &WORLDS[0].tokenizer;
    let format = Format::named("mistral", tokenizer).expect("known");
    let calls = calls(&format, tokenizer, &[&tools[0], &tools[1]], ToolReading::Single).expect("it writes them");
    let script = Script { reasoning: None, mark: Mark::new(), body: Body::Calls(calls) };
    let grammar = vocabulary(tokenizer).compile(&script, Spelling::Any).expect("a grammar");
    let called = Called { format, tool: tools[0].clone(), grammar };
    let call = |arguments: &str| format!("[TOOL_CALLS][{{\"name\": \"f\", \"arguments\": {arguments}}}]");
    assert_eq!(called.arguments(&call("{\"a\": 5, \"b\": 6}")), Some(json!({ "a": 5, "b": 6 })));
    for wrong in ["{\"a\": \"5\", \"b\": 6}", "{\"a\": 5, \"b\": \"6\"}"] {
        assert_eq!(called.arguments(&call(wrong)), None);
    }
}

#[test]
fn many_parameters_that_refer_to_a_definition_are_served() {
    let one = |at: usize| (format!("p{at}"), json!({ "$ref": "#/$defs/e", "description": "x".repeat(300) }));
    let properties: Map<String, Value> = (0..100).map(one).collect();
    let called = Called::new("qwen3-coder", json!({ "properties": properties, "$defs": { "e": { "enum": [1, 2] } } }));
    assert_eq!(called.arguments(&coder(&[("p7", "2")])), Some(json!({ "p7": 2 })));
    assert_eq!(called.arguments(&coder(&[("p7", "3")])), None);
}

#[test]
fn a_parameter_that_stands_alone_refers_to_the_whole() {
    let inner = json!({ "type": "object", "properties": { "x": { "type": "integer" }, "y": { "$ref": "#/properties/x" } },
                        "additionalProperties": false });
    let kids = json!({ "type": "array", "items": { "$ref": "#" } });
    let next = json!({ "anyOf": [{ "$ref": "#" }, { "type": "null" }] });
    let own = json!({ "$ref": "#/$defs/x", "$defs": { "x": { "type": "null" } } });
    let schema = json!({ "properties": { "x": { "type": "boolean" }, "a%/~b": inner, "kids": kids, "next": next, "own": own },
                         "$defs": { "x": { "type": "boolean" } }, "additionalProperties": false });
    let called = Called::new("qwen3-coder", schema);
    let one = |key, value| called.arguments(&coder(&[(key, value)])).map(|all| all[key].clone());
    assert_eq!(one("a%/~b", "{\"x\": 49, \"y\": true}"), Some(json!({ "x": 49, "y": true })));
    assert_eq!(one("a%/~b", "{\"x\": 49, \"y\": 49}"), None);
    assert_eq!(one("kids", "[{\"x\": true}, {\"kids\": [{}]}]"), Some(json!([{ "x": true }, { "kids": [{}] }])));
    assert_eq!(one("kids", "[[]]"), None);
    assert_eq!(one("next", "{\"next\": {\"next\": null}}"), Some(json!({ "next": { "next": null } })));
    assert_eq!((one("own", "true"), one("own", "null")), (Some(json!(true)), None));
}

#[test]
fn the_mark_that_ends_a_value_is_a_text_within_one_that_is_json() {
    let list = json!({ "type": "array", "items": { "type": "string" } });
    let either = json!({ "type": ["string", "null"] });
    let called = Called::new("qwen3-coder", json!({ "properties": { "list": list, "either": either } }));
    let text = coder(&[("list", "[\"a</parameter>\\\"</tool_call>\"]")]);
    assert_eq!(called.arguments(&text), Some(json!({ "list": ["a</parameter>\"</tool_call>"] })));
    let text = coder(&[("either", "\"</parameter>\"")]);
    assert_eq!(called.arguments(&text), Some(json!({ "either": "</parameter>" })));
    let harmony = Called::new("harmony", json!({ "properties": { "a": { "type": "string" } } }));
    let text = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|start|><|message|>x\"}";
    assert_eq!(harmony.arguments(text), Some(json!({ "a": "<|start|><|message|>x" })));
}

#[test]
fn what_a_strict_tool_says_and_a_format_of_single_parameters_cannot_keep_is_named() {
    let refused = |name: &str, parameters: Value| {
        let mut tool = tool("f", &parameters);
        tool["function"]["strict"] = json!(true);
        let tokenizer = &WORLDS[0].tokenizer;
        let format = Format::named(name, tokenizer).expect("known");
        calls(&format, tokenizer, &[&tool], ToolReading::Single).err()
    };
    let with = |keyword: &str, value: Value| {
        let mut schema =
            json!({ "properties": { "a": { "const": 1 }, "b": { "type": "integer" } }, "required": ["a"] });
        schema[keyword] = value;
        schema
    };
    for (keyword, value) in [
        ("minProperties", json!(2)),
        ("maxProperties", json!(1)),
        ("dependentRequired", json!({ "a": ["b"] })),
        ("dependentSchemas", json!({ "a": { "required": ["b"] } })),
        ("dependencies", json!({ "a": ["b"] })),
        ("not", json!({ "required": ["b"] })),
        ("propertyNames", json!({ "const": "a" })),
        ("const", json!({ "a": 1 })),
        ("enum", json!([{ "a": 1 }])),
    ] {
        for name in ["qwen3-coder", "llama4-pythonic", "function-gemma"] {
            let why = refused(name, with(keyword, value.clone()));
            assert!(
                why.as_ref().is_some_and(|why| why.contains(&format!("`{keyword}`"))),
                "{name}: {keyword}: {why:?}"
            );
        }
    }
    for kept in [("minProperties", json!(1)), ("maxProperties", json!(2))] {
        assert_eq!(refused("qwen3-coder", with(kept.0, kept.1)), None);
    }
    for (text, keyword) in [
        (json!({ "type": "string", "anyOf": [{ "const": "x" }, { "const": "y" }] }), "anyOf"),
        (json!({ "anyOf": [{ "type": "string", "pattern": "^q+$" }] }), "anyOf"),
        (json!({ "type": "string", "not": { "const": "x" } }), "not"),
        (json!({ "enum": ["ab"], "maxLength": 1 }), "maxLength"),
        (json!({ "type": "string", "$ref": "#/$defs/x" }), "$ref"),
    ] {
        let why = refused("qwen3-coder", json!({ "properties": { "a": text } })).expect("it cannot be kept");
        assert!(why.contains(&format!("`{keyword}`")), "{why}");
    }
    let plain = json!({ "anyOf": [{ "type": "string", "title": "A" }, { "type": "string" }] });
    assert_eq!(refused("qwen3-coder", json!({ "properties": { "a": plain } })), None);
    for (name, key) in
        [("qwen3-coder", "a>b"), ("qwen3-coder", "a\nb"), ("qwen3-coder", " a"), ("function-gemma", "a:b")]
    {
        let why = refused(name, json!({ "properties": { key: { "type": "integer" } } }));
        assert!(why.is_some_and(|why| why.contains(&format!("{key:?}"))), "{name}: {key}");
    }
    assert!(refused("deepseek-v3.2", json!({ "properties": { "a\">b": { "type": "integer" } } })).is_some());
    assert_eq!(
        refused("qwen3-coder", json!({ "type": "OBJECT", "properties": {} })),
        None,
        "as Gemini's clients write it"
    );
    for name in ["qwen3-coder", "llama4-pythonic", "function-gemma"] {
        assert!(refused(name, json!(false)).is_some(), "{name}");
    }
}

//! What grammars accept and refuse, over a small vocabulary: all single bytes, and some longer tokens.

use pelton_grammar::{
    Arguments, Body, Call, Calls, Constraint, Form, GrammarError, Part, Reasoning, Script, Spelling, State, Tag, Times,
    TokenText, Vocabulary,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const END: u32 = 256;
const OTHER_END: u32 = 257;
const THINK: u32 = 258;
const LONGER: [&str; 8] = ["{\"", "\":", "null", "true", "\", \"", "  ", "abc", "</think>"];

fn vocabulary() -> Vocabulary {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let single = bytes.iter().map(|byte| TokenText::Bytes(byte));
    let special = ["<end>", "<other>", "<think>"].map(TokenText::Special);
    let longer = LONGER.iter().map(|text| TokenText::Bytes(text.as_bytes()));
    Vocabulary::new(single.chain(special).chain([TokenText::Nothing]).chain(longer), &[END, OTHER_END]).unwrap()
}

fn allows(state: &mut State, token: u32) -> bool {
    state.mask().unwrap().allows(token)
}

/// Whether the text can be drawn and may end there: byte by byte; a `\u{1}` stands for the token THINK.
fn fits(state: &mut State, text: &str) -> bool {
    for byte in text.bytes() {
        let token = if byte == 1 { THINK } else { u32::from(byte) };
        if !allows(state, token) {
            return false;
        }
        state.take(&[token]).unwrap();
    }
    let may_end = allows(state, END);
    assert_eq!(may_end, allows(state, OTHER_END), "all ends are alike");
    may_end
}

fn check(script: &Script, right: &[&str], wrong: &[&str]) {
    let grammar = vocabulary().compile(script, Spelling::Usual).unwrap_or_else(|error| panic!("{script:?}: {error}"));
    for text in right {
        assert!(fits(&mut grammar.begin(), text), "{text:?} fits {script:?}");
    }
    for text in wrong {
        assert!(!fits(&mut grammar.begin(), text), "{text:?} does not fit {script:?}");
    }
}

fn schema(schema: Value) -> Script {
    Script::of(Constraint::JsonSchema(schema))
}

#[test]
fn schemas_constrain_json() {
    check(
        &Script::of(Constraint::JsonObject),
        &["{}", "{\"a\": [1, null, {\"b\": \"é\"}]}"],
        &["[]", "1", "{", "{}x", ""],
    );
    let person = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 5 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "sex": { "enum": ["f", "m", null] },
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    check(
        &schema(person),
        &[
            "{\"name\": \"Ada\", \"age\": 36}",
            "{\"name\":\"Ada\",\"age\":150,\"sex\":null}",
            "{\n  \"name\": \"A\",\n  \"age\": 0\n}",
        ],
        &[
            "{\"name\": \"Ada\"}",
            "{\"age\": 36, \"name\": \"Ada\"}", // in the order of the schema
            "{\"name\": \"\", \"age\": 1}",
            "{\"name\": \"Adalbert\", \"age\": 1}",
            "{\"name\": \"Ada\", \"age\": 151}",
            "{\"name\": \"Ada\", \"age\": -1}",
            "{\"name\": \"Ada\", \"age\": 36.5}",
            "{\"name\": \"Ada\", \"age\": 36, \"x\": 1}",
        ],
    );
    let tree = json!({
        "$ref": "#/$defs/node",
        "$defs": { "node": {
            "type": "object",
            "properties": { "kids": { "type": "array", "items": { "$ref": "#/$defs/node" }, "maxItems": 2 } },
            "required": ["kids"], "additionalProperties": false,
        } },
    });
    check(
        &schema(tree),
        &["{\"kids\": []}", "{\"kids\": [{\"kids\": [{\"kids\": []}]}, {\"kids\": []}]}"],
        &["{\"kids\": [1]}", "{\"kids\": [{}]}", "{\"kids\": [{\"kids\": []}, {\"kids\": []}, {\"kids\": []}]}"],
    );
    let either =
        json!({ "anyOf": [{ "type": "string", "pattern": "^[a-c]+$" }, { "type": "boolean" }, { "const": 7 }] });
    check(&schema(either), &["\"abc\"", "true", "7"], &["\"d\"", "\"\"", "8", "null"]);
    let day = json!({ "type": "string", "format": "date" });
    check(&schema(day), &["\"2026-02-28\""], &["\"2026-2-28\"", "\"today\""]);
    check(&schema(json!(true)), &["1", "{\"x\": []}"], &["x"]);
}

#[test]
fn spaces_have_a_bound() {
    let script = schema(json!({ "type": "array", "items": { "type": "null" } }));
    check(&script, &["[ \n\t null]"], &[&format!("[{}null]", " ".repeat(41))]);
}

#[test]
fn regexes_choices_and_grammars_constrain_text() {
    let regex = |regex: &str| Script::of(Constraint::Regex(regex.to_owned()));
    check(&regex("[ab]{2}|c/d"), &["ab", "c/d"], &["a", "abc", "xab"]);
    check(&regex("^a\\$$"), &["a$"], &["a", "a\\$"]);
    let choice = Script::of(Constraint::Choice(vec!["yes".into(), "no \"way\"\n".into(), "é".into()]));
    check(&choice, &["yes", "no \"way\"\n", "é"], &["y", "yesno", "maybe"]);
    let lark =
        Script::of(Constraint::Grammar("start: \"a\" inner* \"b\"\ninner: /[0-9]/ | \"(\" inner \")\"".to_owned()));
    check(&lark, &["ab", "a1((2))b"], &["a", "a(1b", "b"]);
    let gbnf = Script::of(Constraint::Grammar(
        "root ::= \"a\" in-ner* \"b\"\nin-ner ::= [0-9] | \"(\" in-ner \")\"".to_owned(),
    ));
    check(&gbnf, &["ab", "a1((2))b"], &["a", "a(1b", "b"]);
}

#[test]
fn thoughts_are_free_and_the_grammar_begins_behind_them() {
    let body = || Body::Text(Constraint::Regex("[0-9]+".to_owned()));
    let text = |text: &str| vec![Part::Text(text.to_owned())];
    let reasoning = |is_open, open, close| {
        Some(Reasoning { is_open, open, close, behind: Vec::new(), never: vec!["</other>".to_owned()] })
    };
    let open = Script { reasoning: reasoning(true, text("<think>"), text("</think>")), mark: Vec::new(), body: body() };
    check(&open, &["Hm, 1 < 2.</think>\n\n42", "</think>1"], &["42", "Hm.</think>x", "Hm.", "Hm.</other></think>42"]);
    let closed =
        Script { reasoning: reasoning(false, text("<think>"), text("</think>")), mark: Vec::new(), body: body() };
    check(&closed, &["<think>\nHm.</think>\n42", "42"], &["Hm.</think>42", "<think>42", " 42", "\n42"]);
    let special = Script {
        reasoning: reasoning(false, vec![Part::Token(THINK)], text("</think>")),
        mark: Vec::new(),
        body: body(),
    };
    check(&special, &["\u{1}Hm.</think>42", "42"], &["<think>Hm.</think>42"]);
    let both =
        Script { reasoning: reasoning(true, text("x"), vec![Part::Token(THINK)]), mark: Vec::new(), body: body() };
    check(&both, &["Hm.\u{1}42"], &["Hm.42", "</other>\u{1}42"]);
    let never = Vec::new();
    let behind = Some(Reasoning { is_open: false, open: text("<a>"), close: text("</a>"), behind: text("<s>"), never });
    let behind = Script { reasoning: behind, mark: text("<f>"), body: body() };
    check(
        &behind,
        &["<f>42", "<a>Hm.</a><s><f>42"],
        &["42", "<a>Hm.</a><f>42", "<s><f>42", "<a>Hm.</a>x<s><f>42", "\n<f>4"],
    );
}

#[test]
fn calls_are_written_as_their_format_says() {
    let call = |name: &str| Call {
        head: Vec::new(),
        arguments: Arguments::Json(json!({
            "type": "object",
            "properties": {
                "name": { "const": name },
                "arguments": { "type": "object", "properties": { "x": { "type": "integer" } }, "required": ["x"], "additionalProperties": false },
            },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })),
        tail: Vec::new(),
    };
    let mark = |text: &str| Some(vec![Part::Text(text.to_owned())]);
    let calls = |are_many| Script {
        reasoning: None,
        mark: Vec::new(),
        body: Body::Calls(Calls {
            open: None,
            close: None,
            each_open: mark("<tool_call>"),
            each_close: mark("</tool_call>"),
            between: Vec::new(),
            tools: vec![call("f"), call("g")],
            are_many,
        }),
    };
    let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    let other = "<tool_call>{\"name\": \"g\", \"arguments\": {\"x\": -2}}</tool_call>";
    let wrong = "<tool_call>{\"name\": \"h\", \"arguments\": {\"x\": 1}}</tool_call>";
    check(&calls(true), &[one, other, &format!("{one}\n{other}")], &["", "hello", wrong]);
    check(&calls(false), &[one], &[&format!("{one}\n{other}")]);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let vocabulary = vocabulary();
    let refused = |script: Script| {
        vocabulary.compile(&script, Spelling::Usual).map(drop).err().unwrap_or_else(|| panic!("{script:?} is wrong"))
    };
    for (wrong, place) in [
        (json!({ "type": "object", "properties": { "a": { "type": "text" } } }), "/properties/a/type"),
        (
            json!({ "$defs": { "x/y": { "items": { "anyOf": [{ "type": "null" }, { "type": "string", "pattern": "(" }] } } }, "$ref": "#/$defs/x~1y" }),
            "/$defs/x~1y/items/anyOf/1/pattern",
        ),
        (json!({ "type": "array", "items": { "$ref": "#/$defs/none" } }), "/items/$ref"),
        (json!({ "type": 5 }), "/type"),
        (json!(false), ""),
        (json!([]), ""),
    ] {
        let error = refused(schema(wrong.clone()));
        assert_eq!(error.place, place, "{wrong}: {error}");
        assert!(!error.reason.is_empty());
    }
    let mut deep = json!({});
    for _ in 0..70 {
        deep = json!({ "items": deep });
    }
    assert!(refused(schema(deep)).reason.contains("64 levels"));
    for script in [
        Script::of(Constraint::Regex("(".to_owned())),
        Script::of(Constraint::Choice(Vec::new())),
        Script::of(Constraint::Grammar("start: nothing".to_owned())),
        Script::of(Constraint::Grammar("root ::= \"a".to_owned())),
        Script::of(Constraint::Regex("a".repeat(2 << 20))),
    ] {
        assert_ne!(refused(script), GrammarError { place: String::new(), reason: String::new() });
    }
}

#[test]
fn what_gets_too_costly_in_the_midst_of_a_text_is_refused_before_one_begins() {
    let costly = "((a{1,50}){1,50}){1,50}";
    let place = |script: Script| {
        let error = vocabulary().compile(&script, Spelling::Usual).expect_err("it is too costly");
        assert!(error.reason.starts_with("it is too large, or takes too much"), "{error}");
        error.place
    };
    assert_eq!(place(Script::of(Constraint::Regex(costly.to_owned()))), "");
    let within = json!({ "type": "object", "properties": { "b": { "type": "string", "pattern": format!("^{costly}$") } }, "required": ["b"] });
    assert_eq!(place(schema(within)), "/properties/b/pattern");
}

#[test]
fn without_a_token_that_ends_a_text_there_is_no_grammar() {
    assert!(Vocabulary::new([TokenText::Bytes(b"a")].into_iter(), &[]).is_err());
    assert!(Vocabulary::new([TokenText::Bytes(b"a")].into_iter(), &[9]).is_err());
}

/// Schemas, some of them within others.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({ "type": "null" })),
        Just(json!({ "type": "boolean" })),
        (-50..50i64, 0..100i64)
            .prop_map(|(least, more)| json!({ "type": "integer", "minimum": least, "maximum": least + more })),
        (0..4u32, 0..4u32)
            .prop_map(|(least, more)| json!({ "type": "string", "minLength": least, "maxLength": least + more })),
        Just(json!({ "enum": ["a", 1, null, "é"] })),
        Just(json!({ "type": "string", "pattern": "^(ab|[x-z])+$", "maxLength": 12 })),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), 0..2u32, 0..3u32).prop_map(|(items, least, more)| {
                json!({ "type": "array", "items": items, "minItems": least, "maxItems": least + more })
            }),
            (prop::collection::vec(inner.clone(), 0..4), any::<u8>()).prop_map(|(members, required)| {
                let names: Vec<String> = (0..members.len()).map(|at| format!("m{at}")).collect();
                let needed: Vec<&String> =
                    names.iter().enumerate().filter(|(at, _)| required >> at & 1 == 1).map(|(_, name)| name).collect();
                json!({
                    "type": "object",
                    "required": needed,
                    "properties": names.iter().cloned().zip(members).collect::<serde_json::Map<_, _>>(),
                    "additionalProperties": false,
                })
            }),
            prop::collection::vec(inner, 1..3).prop_map(|options| json!({ "anyOf": options })),
        ]
    })
}

/// Whether a value is valid by a schema of `any_schema`: written anew, from the words of the standard.
fn is_valid(schema: &Value, value: &Value) -> bool {
    if let Some(options) = schema.get("anyOf") {
        return options.as_array().unwrap().iter().any(|option| is_valid(option, value));
    }
    if let Some(values) = schema.get("enum") {
        return values.as_array().unwrap().contains(value);
    }
    let bound = |name: &str| schema.get(name).and_then(Value::as_i64);
    let within = |got: i64, least: &str, most: &str| {
        bound(least).is_none_or(|least| got >= least) && bound(most).is_none_or(|most| got <= most)
    };
    match (schema["type"].as_str().unwrap(), value) {
        ("null", Value::Null) | ("boolean", Value::Bool(_)) => true,
        ("integer", Value::Number(number)) => {
            let minus_zero = (number.as_f64() == Some(0.0)).then_some(0); // `-0` is an integer, and read as a float
            number.as_i64().or(minus_zero).is_some_and(|got| within(got, "minimum", "maximum"))
        }
        ("string", Value::String(text)) => {
            let has_pattern = schema.get("pattern").is_some();
            let mut rest = text.as_str();
            while let Some(after) = rest.strip_prefix("ab").or_else(|| rest.strip_prefix(['x', 'y', 'z'])) {
                rest = after;
            }
            within(text.chars().count() as i64, "minLength", "maxLength")
                && (!has_pattern || (rest.is_empty() && !text.is_empty()))
        }
        ("array", Value::Array(items)) => {
            within(items.len() as i64, "minItems", "maxItems")
                && items.iter().all(|item| is_valid(&schema["items"], item))
        }
        ("object", Value::Object(members)) => {
            let has = |name: &Value| members.contains_key(name.as_str().unwrap());
            schema["required"].as_array().unwrap().iter().all(has)
                && members
                    .iter()
                    .all(|(name, value)| schema["properties"].get(name).is_some_and(|schema| is_valid(schema, value)))
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// B:SO2: whatever a model draws within the masks, a document that is complete is valid.
    #[test]
    fn every_document_that_is_drawn_is_valid(schema in any_schema(), seed: u64) {
        let vocabulary = vocabulary();
        let grammar = vocabulary.compile(&self::schema(schema.clone()), Spelling::Usual).unwrap();
        let (mut state, mut again) = (grammar.begin(), grammar.begin());
        let (mut text, mut drawn, mut random) = (Vec::new(), Vec::new(), seed | 1);
        loop {
            let mask = state.mask().unwrap();
            prop_assert_eq!(&mask, &again.mask().unwrap(), "the same tokens make the same mask");
            let allowed: Vec<u32> = (0..268).filter(|&id| mask.allows(id)).collect();
            prop_assert!(!allowed.is_empty());
            if allowed.contains(&END) {
                break;
            }
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let token = allowed[(random % allowed.len() as u64) as usize];
            match token {
                0..=255 => text.push(token as u8),
                260.. => text.extend(LONGER[token as usize - 260].as_bytes()),
                _ => prop_assert!(false, "no control token stands in JSON"),
            }
            drawn.push(token);
            state.take(&[token]).unwrap();
            again = grammar.begin(); // as after the death of whoever kept the state
            again.take(&drawn).unwrap();
            prop_assert!(drawn.len() < 5_000, "spaces and texts are bounded");
        }
        let value: Value = serde_json::from_slice(&text).unwrap();
        prop_assert!(is_valid(&schema, &value), "{} by {}", value, schema);
    }
}

fn tag(begin: &str, content: Form, end: &str) -> Tag {
    Tag { begin: begin.to_owned(), content: Box::new(content), end: end.to_owned() }
}

fn integer(place: &str) -> Form {
    Form::Schema { schema: json!({ "type": "integer" }), place: place.to_owned() }
}

fn tags(form: Form) -> Script {
    Script::of(Constraint::Tags(form))
}

fn functions(times: Times) -> Form {
    let letters = Form::Regex { regex: "[a-c/]+".to_owned(), place: String::new() };
    Form::Triggered {
        triggers: vec!["<f=".to_owned(), "[g".to_owned()],
        tags: vec![
            tag("<f=one>", integer(""), "</f>"),
            tag("<f=two>", letters, "</f>"),
            tag("[g", Form::Anything, "]"),
        ],
        times,
    }
}

#[test]
fn behind_a_trigger_a_tag_has_its_form_and_all_else_is_free() {
    check(
        &tags(functions(Times::default())),
        &[
            "",
            "hello < f = x",
            "<f=one>12</f>",
            "a <f=one>1</f> b <f=two>a/c</f>",
            "<f=two>abc</f><f=one>-3</f> end",
            "see [g <f=three> whatever] and more", // within a tag of any text a trigger is none
        ],
        &["<f=three>1</f>", "a <f=one>x</f>", "<f=one>1</f> then <f=", "<f=two>abd</f>", "<f=one>1", "[g not ended"],
    );
    let times = |at_least_one, stop_after_first| Times { at_least_one, stop_after_first };
    let one = "a <f=one>1</f>";
    let two = "<f=one>1</f><f=one>2</f>";
    for (times, right, wrong) in [
        (times(true, false), vec![one, two, "<f=one>1</f> b"], vec!["", "a"]),
        (times(false, true), vec!["", "a", one], vec![two, "<f=one>1</f> b"]),
        (times(true, true), vec![one], vec!["", "a", two, "<f=one>1</f> b"]),
    ] {
        check(&tags(functions(times)), &right, &wrong);
    }
}

#[test]
fn parts_follow_each_other_and_tags_stand_alone() {
    let exactly = |text: &str| Form::Exactly(text.to_owned());
    let sequence = Form::Sequence(vec![
        exactly("Think: "),
        Form::Anything,
        Form::Tag(tag("<a>", Form::Grammar { text: "root ::= [0-9]+ \"!\"".to_owned(), place: String::new() }, "</a>")),
        Form::Either(vec![exactly("."), Form::Sequence(vec![exactly("; "), Form::Anything])]),
    ]);
    check(
        &tags(sequence),
        &["Think: <a>1!</a>.", "Think: so, a <b> and then <a>22!</a>; and so on"],
        &["Think: so", "Think: <a>1</a>.", "Think: <a>1!</a>", "<a>1!</a>.", "Think: <a>1!</a>, "],
    );
    let separated = |at_least_one, stop_after_first| {
        tags(Form::Separated {
            tags: vec![tag("(", integer(""), ")"), tag("[", integer(""), "]")],
            separator: ", ".to_owned(),
            times: Times { at_least_one, stop_after_first },
        })
    };
    check(&separated(false, false), &["", "(1)", "(1), [2], (3)"], &["(1)(2)", "(1), ", "1", "(1) and"]);
    check(&separated(true, true), &["(1)", "[2]"], &["", "(1), (2)"]);
}

#[test]
fn a_mark_with_a_control_token_is_drawn_as_that_token() {
    let form = |begin| Form::Triggered {
        triggers: vec!["<think>".to_owned()],
        tags: vec![tag(begin, integer(""), "</x>")],
        times: Times::default(),
    };
    check(&tags(form("<think>f:")), &["a \u{1}f:1</x> b", "a <think> b, letter by letter"], &["a \u{1}g", "\u{1}f:x"]);
    check(&tags(Form::Tag(tag("<think>", integer(""), ""))), &["\u{1}7"], &["<think>7"]);
}

#[test]
fn what_is_wrong_with_tags_is_said() {
    let error = |form| vocabulary().compile(&tags(form), Spelling::Usual).expect_err("it is wrong");
    let triggered = |triggers: &[&str], begin: &str| Form::Triggered {
        triggers: triggers.iter().map(|&trigger| trigger.to_owned()).collect(),
        tags: vec![tag(begin, integer(""), "")],
        times: Times::default(),
    };
    for (form, why) in [
        (triggered(&["<g"], "<f"), "no tag begins with the trigger \"<g\""),
        (triggered(&["<f", "<"], "<f"), "begins with 2 of the triggers"),
        (triggered(&[""], "<f"), "a trigger has a character"),
        (triggered(&[], "<f"), "begins with 0 of the triggers"),
        (Form::Either(vec![]), "a choice among nothing"),
        (
            Form::Sequence(vec![Form::Anything, Form::Regex { regex: "a".into(), place: String::new() }]),
            "a text or a tag is allowed",
        ),
    ] {
        let error = error(form);
        assert!(error.reason.contains(why), "{error:?}: {why}");
    }
    let mut nested = Form::Anything;
    for _ in 0..100 {
        nested = Form::Sequence(vec![nested]);
    }
    assert!(error(nested).reason.contains("within each other"));
    assert!(error(Form::Sequence(vec![Form::Exactly("a".into()); 2_000])).reason.contains("more than 1000 parts"));
    let wrong = Form::Schema { schema: json!({ "items": { "type": "text" } }), place: "/structures/1/schema".into() };
    let form = Form::Either(vec![integer("/structures/0/schema"), wrong]);
    assert_eq!(error(form).place, "/structures/1/schema/items/type");
}

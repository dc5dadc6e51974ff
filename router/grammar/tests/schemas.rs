//! JSON schemas keyword by keyword: what is served is kept, and what is not is refused with its place. The public suite is in `bench/grammar`.

use pelton_grammar::{Constraint, Form, GrammarError, Script, Spaces, Spelling, TokenText, Vocabulary};
use serde_json::{Value, json};

const END: u32 = 256;

fn vocabulary() -> Vocabulary {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let single = bytes.iter().map(|byte| TokenText::Bytes(byte));
    Vocabulary::new(single.chain([TokenText::Special("<end>")]), &[END]).unwrap()
}

fn check(schema: Value, right: &[&str], wrong: &[&str]) {
    check_texts(Constraint::JsonSchema(schema), right, wrong);
}

fn check_texts(constraint: Constraint, right: &[&str], wrong: &[&str]) {
    let grammar = vocabulary()
        .compile(&Script::of(constraint.clone()), Spelling::Usual)
        .unwrap_or_else(|error| panic!("{constraint:?}: {} {error}", error.place));
    let fits = |text: &&str| {
        let mut state = grammar.begin();
        let drawn = text.bytes().all(|byte| {
            let allowed = state.mask().unwrap().allows(byte.into());
            allowed && state.take(&[byte.into()]).is_ok()
        });
        drawn && state.mask().unwrap().allows(END)
    };
    assert_eq!(right.iter().filter(|text| !fits(text)).collect::<Vec<_>>(), [&""; 0], "these fit {constraint:?}");
    assert_eq!(wrong.iter().filter(|text| fits(text)).collect::<Vec<_>>(), [&""; 0], "these do not fit {constraint:?}");
}

fn refused(schema: Value) -> GrammarError {
    let compiled = vocabulary().compile(&Script::of(Constraint::JsonSchema(schema.clone())), Spelling::Usual);
    compiled.map(drop).err().unwrap_or_else(|| panic!("{schema} is not served"))
}

#[test]
fn a_name_has_one_way_to_be_written() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    check(schema, &[r#"{"a":1}"#, r#"{"b":"x"}"#], &[r#"{"a":"x"}"#, r#"{"\u0061":"x"}"#, r#"{"a":1,"\u0061":"x"}"#]);
    check(json!({ "const": "a\n\"é" }), &[r#""a\n\"é""#], &[r#""a\"é""#, r#""\u0061\n\"é""#]);
}

#[test]
fn what_has_no_short_escape_is_refused_where_it_is_named() {
    assert_eq!(refused(json!({ "enum": ["a", "b\u{0}"] })).place, "/enum");
    assert_eq!(refused(json!({ "const": { "a": "\u{7f}" } })).place, "/const");
    assert_eq!(refused(json!({ "items": { "pattern": r"^\x01$" } })).place, "/items/pattern");
    check(json!({ "type": "string", "pattern": r"^[^\x00-\x1F]$" }), &["\"a\""], &[r#""\n""#]);
    for names in [json!({ "enum": ["a\u{1}"] }), json!({ "type": "string", "const": "a\u{1}" })] {
        let schema = json!({
            "type": "object", "propertyNames": names, "minProperties": 1, "maxProperties": 1, "additionalProperties": { "enum": [1] },
        });
        check(schema, &[r#"{"a\u0001":1}"#], &["{}", r#"{"a":1}"#, "{\"a\u{1}\":1}", r#"{"a\u0001":2}"#]);
    }
    assert_eq!(
        refused(json!({ "properties": { "propertyNames": { "enum": ["\u{1}"] } } })).place,
        "/properties/propertyNames/enum"
    );
}

#[test]
fn a_name_of_a_pattern_is_a_remark_and_what_a_format_says_needs_no_pattern() {
    let named = |format: &str, pattern: &str| json!({ "type": "string", "format": format, "pattern": pattern });
    check(named("starts_with", "^ab.*"), &[r#""abc""#], &[r#""bab""#]);
    check(named("e164", r"^\+[1-9]\d{6,14}$"), &[r#""+4915112345""#], &[r#""015112345""#]);
    // As Zod writes them, looking ahead.
    let duration = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$";
    check(named("duration", duration), &[r#""P3W""#, r#""P1Y2M""#], &[r#""3W""#, r#""P""#]);
    let hostname = r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$";
    check(named("hostname", hostname), &[r#""a-b.example""#], &[r#""a b""#]);
    assert_eq!(refused(named("hostname", "^(?=a)a$")).place, "/pattern");
    assert_eq!(refused(json!({ "type": "string", "format": "starts_with" })).place, "/format");
}

#[test]
fn one_option_and_no_other() {
    let pets = json!({
        "oneOf": [{ "$ref": "#/$defs/cat" }, { "$ref": "#/$defs/dog" }],
        "$defs": {
            "cat": { "type": "object", "properties": { "kind": { "const": "cat" }, "lives": { "type": "integer" } }, "required": ["kind"] },
            "dog": { "type": "object", "properties": { "kind": { "const": "dog" } }, "required": ["kind"] },
        },
    });
    check(pets, &[r#"{"kind":"cat","lives":9}"#, r#"{"kind":"dog"}"#], &[r#"{"kind":"cow"}"#, "{}"]);
    let ranges = json!({ "type": "number", "oneOf": [{ "maximum": 5 }, { "minimum": 3 }] });
    check(ranges, &["2", "6", "5.5"], &["4", "3", "5"]);
    let values = json!({ "oneOf": [{ "enum": ["a", "b", 1] }, { "enum": ["b", "c", 1.0, null] }] });
    check(values, &["\"a\"", "\"c\"", "null"], &["\"b\"", "1", "\"d\""]);
    let overlap =
        json!({ "items": { "oneOf": [{ "type": "string", "pattern": "^a" }, { "type": "string", "pattern": "b$" }] } });
    let error = refused(overlap);
    assert_eq!(error.place, "/items/oneOf");
    assert!(error.reason.contains("several options of its `oneOf`"), "{error}");
}

#[test]
fn what_does_not_fit_can_be_told_of_most() {
    check(json!({ "not": { "type": ["string", "null"] } }), &["1", "[]", "true"], &["null", "\"a\""]);
    check(
        json!({ "type": "string", "not": { "enum": ["", "ab", "ac"] } }),
        &["\"a\"", "\"abc\"", "\"é\""],
        &["\"\"", "\"ab\"", "\"ac\""],
    );
    check(json!({ "type": "number", "not": { "enum": [1, 3] } }), &["0", "1.5", "4"], &["1", "3"]);
    check(json!({ "type": "object", "not": { "required": ["a"] } }), &[r#"{"b":1}"#], &[r#"{"a":1}"#]);
    check(json!({ "type": "string", "not": { "minLength": 3 } }), &["\"ab\""], &["\"abc\""]);
    check(json!({ "type": "array", "not": { "prefixItems": [{ "const": 1 }] } }), &["[2]"], &["[1]", "[]"]);
    assert_eq!(refused(json!({ "properties": { "a": { "not": { "pattern": "x" } } } })).place, "/properties/a/not");
    assert_eq!(refused(json!({ "not": { "type": "integer" } })).place, "/not");
}

#[test]
fn conditions_and_names_that_need_others() {
    let schema = json!({
        "type": "object",
        "properties": { "kind": { "enum": ["a", "b"] }, "x": { "type": "integer" } },
        "required": ["kind"], "additionalProperties": false,
        "if": { "properties": { "kind": { "const": "a" } } },
        "then": { "required": ["x"] },
        "else": { "properties": { "x": false } },
    });
    check(schema, &[r#"{"kind":"a","x":1}"#, r#"{"kind":"b"}"#], &[r#"{"kind":"a"}"#, r#"{"kind":"b","x":1}"#]);
    let needs = [
        json!({ "dependentRequired": { "a": ["b"] } }),
        json!({ "dependencies": { "a": ["b"] } }),
        json!({ "dependentSchemas": { "a": { "required": ["b"] } } }),
    ];
    for needs in needs {
        let mut schema = json!({ "type": "object", "properties": { "a": {}, "b": {} }, "additionalProperties": false });
        schema.as_object_mut().unwrap().extend(needs.as_object().unwrap().clone());
        check(schema, &["{}", r#"{"b":1}"#, r#"{"a":1,"b":1}"#], &[r#"{"a":1}"#]);
    }
}

#[test]
fn names_are_kept() {
    let names =
        |names: Value| json!({ "type": "object", "additionalProperties": { "type": "null" }, "propertyNames": names });
    check(names(json!({ "pattern": "^x" })), &["{}", r#"{"x1":null}"#], &[r#"{"y":null}"#, r#"{"x1":1}"#]);
    check(names(json!({ "enum": ["a"] })), &["{}", r#"{"a":null}"#], &[r#"{"b":null}"#, r#"{"a":1}"#]);
    check(names(json!({ "maxLength": 2 })), &[r#"{"ab":null}"#], &[r#"{"abc":null}"#]);
    assert_eq!(refused(names(json!({ "format": "uri" }))).place, "/propertyNames");
    let base = json!({
        "allOf": [{ "$ref": "#/$defs/base" }], "properties": { "b": {} }, "unevaluatedProperties": false,
        "$defs": { "base": { "type": "object", "properties": { "a": {} } } },
    });
    check(base, &["{}", r#"{"a":1,"b":2}"#], &[r#"{"c":1}"#]);
}

#[test]
fn drafts_are_told_apart() {
    let tuple = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
        "items": [{ "type": "null" }], "anyOf": [{}, { "minItems": 1 }], "additionalItems": false,
    });
    check(tuple, &["[]", "[null]"], &["[1]", "[null,1]"]);
    let four = json!({
        "$schema": "http://json-schema.org/draft-04/schema#", "type": "number",
        "minimum": 1, "anyOf": [{}], "exclusiveMinimum": true,
    });
    check(four, &["1.5", "2"], &["1", "0"]);
    let beside = |schema: &str| json!({ "$schema": schema, "$ref": "#/definitions/a", "maximum": 3, "definitions": { "a": { "type": "integer" } } });
    check(beside("https://json-schema.org/draft/2020-12/schema"), &["3"], &["4", "\"a\""]);
    assert_eq!(refused(beside("http://json-schema.org/draft-07/schema#")).place, "/maximum");
}

#[test]
fn references_mean_what_the_standard_says() {
    let schema = json!({
        "$id": "http://x.org/root.json",
        "properties": {
            "a": { "$ref": "other.json#/$defs/y" }, "b": { "$ref": "#here" }, "c": { "$ref": "#/components/z" },
            "d": { "$dynamicRef": "#here" },
        },
        "additionalProperties": false, "type": "object",
        "components": { "z": { "type": "boolean" } },
        "$defs": { "x": { "$id": "other.json", "$defs": { "y": { "type": "null" } } }, "w": { "$anchor": "here", "const": 7 } },
    });
    check(schema, &[r#"{"a":null,"b":7,"c":true,"d":7}"#], &[r#"{"a":1}"#, r#"{"b":8}"#, r#"{"c":1}"#, r#"{"d":1}"#]);
    let unknown = refused(json!({ "properties": { "a": { "$ref": "http://x.org/far.json" } } }));
    assert_eq!(unknown.place, "/properties/a/$ref");
    assert!(unknown.reason.contains("nothing is fetched"), "{unknown}");
}

#[test]
fn what_refers_to_itself_without_end_is_refused() {
    for endless in [
        json!({ "$ref": "#" }),
        json!({ "allOf": [{ "$ref": "#/$defs/a" }], "$defs": { "a": { "anyOf": [{ "$ref": "#/$defs/b" }, {}] }, "b": { "$ref": "#/$defs/a" } } }),
        json!({ "type": "object", "oneOf": [{ "required": ["a"] }, { "$ref": "#", "maxProperties": 3 }, {}] }),
        json!({ "not": { "$ref": "#" } }),
        json!({ "if": { "$ref": "#" }, "then": {} }),
    ] {
        assert!(refused(endless.clone()).reason.contains("without end"), "{endless}");
    }
    // One option of each needs the next: every one of them is looked into.
    let mut definitions = serde_json::Map::new();
    for at in 0..2_000 {
        let next = format!("#/$defs/{}", at + 1);
        definitions.insert(
            at.to_string(),
            json!({ "oneOf": [{ "$ref": next, "minLength": 1 }, { "$ref": next, "maxLength": 9 }] }),
        );
    }
    definitions.insert("2000".to_owned(), json!({ "type": "string" }));
    let error = refused(json!({ "$ref": "#/$defs/0", "$defs": definitions }));
    assert!(!error.reason.is_empty());
}

#[test]
fn what_cannot_be_kept_is_refused_with_its_place() {
    for (schema, place) in [
        (json!({ "properties": { "s": { "type": "array", "uniqueItems": true } } }), "/properties/s/uniqueItems"),
        (json!({ "type": "array", "contains": { "type": "null" } }), "/contains"),
        (json!({ "type": "object", "minProperties": 2 }), "/minProperties"),
        (json!({ "items": { "type": "strin" } }), "/items/type"),
        (json!({ "properties": { "a": { "type": "string", "pattern": "a(b" } } }), "/properties/a/pattern"),
        (json!({ "properties": { "a": { "pattern": "[b-a]", "maxLength": 5 } } }), "/properties/a/pattern"),
        (json!({ "patternProperties": { "a{3,2}": {} } }), "/patternProperties/a{3,2}"),
        (json!({ "patternProperties": { "^a": {}, "b$": { "type": "null" } } }), "/patternProperties"),
        (json!({ "properties": { "a": { "$ref": "#/$defs/b" } } }), "/properties/a/$ref"),
        (json!({ "contains": {}, "minContains": "1" }), "/minContains"),
        (json!({ "items": { "type": "string", "format": "regex" } }), "/items/format"),
        (json!({ "maximum": 18_446_744_073_709_551_615_u64 }), "/maximum"),
        (json!({ "enum": [9_007_199_254_740_993_u64] }), "/enum"),
        (json!({ "multipleOf": 0 }), "/multipleOf"),
        (json!({ "multipleOf": 4_294_967_291_u64 }), "/multipleOf"),
        (json!({ "allOf": [{ "multipleOf": 65_537 }, { "multipleOf": 65_539 }] }), "/allOf/0/multipleOf"),
        (json!({ "allOf": [{ "multipleOf": 50_000 }, { "multipleOf": 0.001 }] }), "/allOf/1/multipleOf"),
        (json!({ "multipleOf": 0.07 }), "/multipleOf"),
        (json!({ "anyOf": [{ "oneOf": [] }] }), "/anyOf/0/oneOf"),
        (json!({ "required": true }), "/required"),
        (json!({ "minLength": -1 }), "/minLength"),
        (json!({ "type": "string", "pattern": "(?=a)" }), "/pattern"),
        (json!({ "type": "string", "pattern": r"\bword" }), "/pattern"),
        (json!({ "patternProperties": { "(?<!a)": {} } }), "/patternProperties/(?<!a)"),
        (json!({ "anyOf": [{}], "unevaluatedProperties": false }), "/unevaluatedProperties"),
        (json!({ "extends": {} }), "/extends"),
    ] {
        assert_eq!(refused(schema.clone()).place, place, "{schema}");
    }
    check(
        json!({ "type": "array", "items": { "const": 1 }, "uniqueItems": true, "maxItems": 1 }),
        &["[1]"],
        &["[1,1]"],
    );
    check(json!({ "allOf": [{ "multipleOf": 0.05 }, { "multipleOf": 0.3 }] }), &["0.6", "0.3"], &["0.05", "0.1"]);
    check(json!({ "type": "integer", "format": "int32" }), &["1"], &["1.5"]);
    check(json!({ "type": "object", "required": ["a"], "minProperties": 2 }), &[r#"{"a":1,"b":1}"#], &[r#"{"a":1}"#]);
}

#[test]
fn patterns_are_read_as_in_ecmascript() {
    let pattern = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    check(pattern("^.$"), &["\"a\""], &[r#""\n""#, r#""\r""#, "\"\u{2028}\""]);
    check(pattern(r"^[[&&a]$"), &["\"[\"", "\"&\"", "\"a\""], &["\"b\""]);
    check(pattern(r"^\s$"), &["\" \"", "\"\u{feff}\""], &["\"\u{85}\""]);
    check(pattern(r"^\uD83D\uDE00+$"), &["\"😀😀\""], &["\"a\""]);
    check(pattern("^a|b$"), &["\"ax\"", "\"xb\""], &["\"xa\"", "\"bx\""]);
}

#[test]
fn days_are_those_of_the_calendar() {
    let format = |format: &str| json!({ "type": "string", "format": format });
    let (days, no_days) = (
        ["\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""],
        ["\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"0000-01-01\""],
    );
    check(format("date"), &days, &no_days);
    check(
        format("date-time"),
        &["\"2024-02-29T23:59:60Z\"", "\"2024-01-01t01:02:03.5+01:30\""],
        &["\"2023-02-29T00:00:00Z\"", "\"2024-01-01T12:59:60Z\""],
    );
    check(format("time"), &["\"12:00:00Z\""], &["\"12:00:60Z\"", "\"24:00:00Z\"", "\"12:00:00\""]);
    check(format("json-pointer"), &["\"\"", "\"/a~0b/\""], &["\"a\"", "\"/~2\""]);
}

#[test]
fn how_many_members_there_are_is_kept_by_listing_which() {
    let of = |more: Value| {
        let mut schema = json!({ "type": "object", "properties": { "a": {}, "b": {}, "c": {} } });
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let (one, two) = (r#"{"b":1}"#, r#"{"a":1,"c":1}"#);
    let (all, other) = (r#"{"a":1,"b":1,"c":1}"#, r#"{"x":1}"#);
    let closed = |more: Value| {
        let mut schema = of(more);
        schema["additionalProperties"] = json!(false);
        schema
    };
    check(closed(json!({ "minProperties": 2 })), &[two, all], &["{}", one, other]);
    check(closed(json!({ "maxProperties": 2 })), &["{}", one, two], &[all, other]);
    check(closed(json!({ "minProperties": 2, "maxProperties": 9 })), &[two, all], &["{}", one, other]);
    check(closed(json!({ "minProperties": 2, "maxProperties": 2 })), &[two], &["{}", one, all]);
    check(closed(json!({ "required": ["b"], "minProperties": 3 })), &[all], &[one, two, r#"{"a":1,"b":1}"#]);
    check(of(json!({ "minProperties": 1 })), &[one, two, all, other, r#"{"a":1,"x":1}"#], &["{}"]);
    check(
        of(json!({ "maxProperties": 2 })),
        &["{}", one, two, other, r#"{"a":1,"x":1}"#],
        &[all, r#"{"a":1,"b":1,"x":1}"#],
    );
    check(
        of(json!({ "required": ["a"], "minProperties": 2, "maxProperties": 2 })),
        &[two, r#"{"a":1,"x":1}"#],
        &["{}", r#"{"a":1}"#, all, one],
    );
    let any = json!({ "properties": { "a": {}, "b": {} }, "maxProperties": 1 });
    check(any, &["{}", r#"{"a":1}"#, "5", "[]"], &[r#"{"a":1,"b":1}"#]);
    let none =
        json!({ "properties": { "a": {} }, "required": ["a", "b"], "additionalProperties": false, "maxProperties": 1 });
    check(none, &["5", "[]"], &["{}", r#"{"a":1}"#, r#"{"a":1,"b":1}"#]);
    check(json!({ "not": of(json!({ "minProperties": 1 })) }), &["{}", "1"], &[one, two, other]);
    for (schema, place) in [
        (of(json!({ "minProperties": 2 })), "/minProperties"),
        (closed(json!({ "minProperties": 4 })), "/minProperties"),
        (of(json!({ "minProperties": 1, "maxProperties": 0 })), "/minProperties"),
        (of(json!({ "required": ["a", "b"], "maxProperties": 1 })), "/maxProperties"),
    ] {
        assert_eq!(refused(schema.clone()).place, place, "{schema}");
    }
    let names: serde_json::Map<String, Value> = (0..30).map(|at| (format!("n{at}"), json!({}))).collect();
    let many = json!({ "type": "object", "properties": names, "additionalProperties": false, "maxProperties": 3 });
    let error = refused(json!({ "items": many }));
    assert_eq!(error.place, "/items/maxProperties");
    assert!(error.reason.contains("30 members"), "{error}");
}

#[test]
fn items_that_differ_are_kept_where_they_are_of_few_values() {
    let unique = |more: Value| {
        let mut schema = json!({ "type": "array", "uniqueItems": true });
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let days = unique(json!({ "items": { "enum": ["mo", "tu", "we", "th"] } }));
    check(
        days,
        &["[]", r#"["tu"]"#, r#"["we","mo","th","tu"]"#],
        &[r#"["mo","mo"]"#, r#"["mo","tu","mo"]"#, r#"["su"]"#],
    );
    let referred =
        unique(json!({ "items": { "$ref": "#/$defs/d" }, "minItems": 2, "$defs": { "d": { "enum": [1, 1.0, 2] } } }));
    check(referred, &["[1,2]", "[2,1]"], &["[1]", "[1,1]", "[1,1.0]", "[1,2,1]"]);
    let flags = unique(json!({ "prefixItems": [{ "type": "boolean" }, { "type": "boolean" }], "items": false }));
    check(flags, &["[]", "[true]", "[true,false]"], &["[true,true]", "[true,false,true]"]);
    check(json!({ "uniqueItems": true, "items": { "const": "a" } }), &["[]", r#"["a"]"#, "5"], &[r#"["a","a"]"#]);
    check(unique(json!({ "items": { "enum": [[1], [1.0], []] } })), &["[[1],[]]"], &["[[1],[1]]", "[[1],[1.0]]"]);
    check(json!({ "type": ["string", "null"], "uniqueItems": true }), &["\"a\"", "null"], &["[]"]);
    let twenty: Vec<usize> = (0..20).collect();
    check(unique(json!({ "items": { "enum": twenty }, "maxItems": 2 })), &["[19,0]", "[3]"], &["[3,3]", "[1,2,3]"]);
    for schema in [
        unique(json!({ "items": { "enum": twenty } })),
        unique(json!({ "items": { "type": ["boolean", "integer"] } })),
        unique(json!({ "items": { "enum": ["a", "b"] }, "minItems": 3 })),
        unique(json!({ "items": { "enum": twenty }, "minItems": 21 })), // most that is begun comes to nothing
        unique(json!({ "items": { "enum": ["x".repeat(600_000), "y"] } })),
        unique(json!({})),
    ] {
        assert_eq!(refused(schema.clone()).place, "/uniqueItems", "{schema}");
    }
}

#[test]
fn items_that_have_to_fit_are_kept_in_short_lists() {
    let has = |more: Value| {
        let mut schema = json!({ "type": "array", "items": { "type": ["integer", "null"] } });
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let one = has(json!({ "contains": { "type": "null" }, "maxItems": 4 }));
    check(one, &["[null]", "[1,2,3,null]", "[null,1,null]"], &["[]", "[1]", "[1,2,3,4]", "[1,2,3,4,null]"]);
    let two = has(json!({ "contains": { "type": "null" }, "minContains": 2, "maxItems": 3 }));
    check(two, &["[null,null]", "[null,1,null]"], &["[null]", "[1,null]", "[1,2,null]"]);
    let exact = has(json!({ "contains": { "type": "null" }, "maxContains": 1, "minItems": 2, "maxItems": 3 }));
    check(exact, &["[null,1]", "[1,2,null]"], &["[null]", "[null,null]", "[1,2]", "[null,1,null]"]);
    let none = has(json!({ "contains": { "type": "null" }, "minContains": 0, "maxContains": 0, "maxItems": 2 }));
    check(none, &["[]", "[1,2]"], &["[null]", "[1,null]"]);
    let first = json!({ "contains": { "const": "x" }, "prefixItems": [{ "type": "string" }, {}], "items": false });
    check(first, &[r#"["x"]"#, r#"["a","x"]"#, "5"], &["[]", r#"["a"]"#, r#"[1,"x"]"#, r#"["a","b"]"#]);
    for (schema, place) in [
        (has(json!({ "contains": { "type": "null" } })), "/contains"),
        (has(json!({ "contains": { "type": "null" }, "minContains": 5, "maxItems": 20 })), "/contains"),
        (has(json!({ "contains": { "type": "null" }, "minContains": 3, "maxItems": 2 })), "/contains"),
        (has(json!({ "contains": { "type": "null" }, "maxContains": 1, "maxItems": 1_000_000_000 })), "/contains"),
        (has(json!({ "contains": { "type": "null" }, "minContains": 900, "maxItems": 900 })), "/contains"),
        (has(json!({ "contains": { "enum": ["x".repeat(100_000)] }, "maxItems": 100 })), "/contains"),
    ] {
        assert_eq!(refused(schema.clone()).place, place, "{schema}");
    }
}

#[test]
fn patterns_that_say_the_same_may_fit_one_name() {
    let same = json!({ "type": "object", "patternProperties": { "^a": { "type": "null" }, "b$": { "type": "null" } }, "additionalProperties": false });
    check(
        same,
        &["{}", r#"{"ax":null}"#, r#"{"xb":null,"ab":null}"#],
        &[r#"{"ax":1}"#, r#"{"ab":1}"#, r#"{"x":null}"#],
    );
    let seen = json!({
        "type": "object", "unevaluatedProperties": false, "patternProperties": { "^a": {}, "b": {} },
    });
    check(seen, &[r#"{"a":1}"#, r#"{"xb":1}"#], &[r#"{"x":1}"#]);
}

#[test]
fn what_stands_between_tokens_is_what_was_asked_for() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "array" } }, "required": ["a"] });
    let fits = |spaces: Spaces, text: &str| {
        let script = Script::of(Constraint::Spaced(schema.clone(), spaces));
        let grammar = vocabulary().compile(&script, Spelling::Usual).unwrap_or_else(|error| panic!("{error}"));
        let mut state = grammar.begin();
        text.bytes().all(|byte| state.mask().unwrap().allows(byte.into()) && state.take(&[byte.into()]).is_ok())
            && state.mask().unwrap().allows(END)
    };
    let (none, one, lines) = (r#"{"a":[1,2]}"#, r#"{"a": [1, 2]}"#, "{\n\t\"a\": [1,\n2]}");
    let matching = |pattern: &str| Spaces::Matching(pattern.to_owned());
    for (spaces, fitting) in [
        (Spaces::None, [true, false, false]),
        (Spaces::Usual, [true, true, true]),
        (matching(""), [true, false, false]),
        (matching(" ?"), [true, true, false]),
        (matching(" "), [true, true, false]),
        (matching(r"[ \n\t]{0,2}"), [true, true, true]),
        (matching("[ \n\t]*"), [true, true, true]),
        (matching(r"\n|\t| |\n\t"), [true, true, true]),
    ] {
        assert_eq!([none, one, lines].map(|text| fits(spaces.clone(), text)), fitting, "{spaces:?}");
    }
    for wrong in ["a", "[ ", r"\s", "[ ]?[\n]?", "^ $", "."] {
        let script = Script::of(Constraint::Spaced(schema.clone(), matching(wrong)));
        assert!(vocabulary().compile(&script, Spelling::Usual).is_err(), "{wrong}");
    }
}

#[test]
fn members_of_certain_names_are_counted() {
    let names = json!({ "propertyNames": { "enum": ["a", "b", "c"] }, "type": "object" });
    let with = |more: Value| {
        let mut schema = names.clone();
        schema.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        schema
    };
    check(
        with(json!({ "maxProperties": 2 })),
        &["{}", r#"{"b":1}"#, r#"{"a":1,"c":null}"#],
        &[r#"{"a":1,"b":1,"c":1}"#, r#"{"d":1}"#, r#"{"a":1,"a":1}"#],
    );
    check(
        with(json!({ "minProperties": 2, "additionalProperties": { "type": "null" } })),
        &[r#"{"a":null,"c":null}"#, r#"{"a":null,"b":null,"c":null}"#],
        &[r#"{"a":null}"#, r#"{"a":1,"b":1}"#],
    );
    let listed = json!({ "properties": { "c": { "const": 1 }, "d": {} }, "maxProperties": 1 });
    check(with(listed), &[r#"{"c":1}"#, r#"{"a":2}"#, "{}"], &[r#"{"c":2}"#, r#"{"d":1}"#, r#"{"c":1,"a":2}"#]);
    let patterns = json!({ "patternProperties": { "^[ab]$": { "type": "null" } } });
    check(with(patterns.clone()), &[r#"{"a":null,"c":1}"#], &[r#"{"a":1}"#, r#"{"d":1}"#]);
    // Which schemas the others have, patterns say: these are not written out.
    let mut counted = patterns;
    counted["maxProperties"] = json!(2);
    let error = refused(json!({ "properties": { "x": with(counted) } }));
    assert_eq!(error.place, "/properties/x");
    assert!(error.reason.starts_with("how many members it has cannot be kept"), "{error}");
}

#[test]
fn ranges_of_whole_numbers_are_told_apart() {
    let one_of = |options: Value| json!({ "oneOf": options });
    check(
        one_of(json!([{ "type": "integer", "exclusiveMaximum": 6 }, { "type": "integer", "exclusiveMinimum": 5 }])),
        &["5", "6", "-1"],
        &["5.5", "null"],
    );
    check(
        one_of(json!([{ "type": "integer", "maximum": 5.5 }, { "type": "number", "exclusiveMinimum": 5 }])),
        &["5", "5.2", "6"],
        &["4.5", "null"],
    );
    let overlapping = json!([
        { "type": "integer", "minimum": 0, "maximum": 5 },
        { "type": ["integer", "null"], "minimum": 4 },
        { "type": ["string", "integer"], "maximum": -3 },
    ]);
    check(one_of(overlapping), &["0", "3", "6", "-3", "null", "\"a\""], &["4", "5", "-1", "3.5", "true"]);
}

#[test]
fn an_object_of_no_members_has_no_spaces() {
    for empty in [
        json!({ "type": "object", "additionalProperties": false }),
        json!({ "type": "object", "additionalProperties": false, "properties": {}, "required": [], "title": "Nothing" }),
    ] {
        check(empty.clone(), &["{}"], &["{ }", "{\n}", "{\"a\":1}", ""]);
        let part = Form::Schema { schema: empty, place: String::new() };
        let tag = Form::Sequence(vec![Form::Exactly("f".to_owned()), part]);
        check_texts(Constraint::Tags(tag), &["f{}"], &["f{ }", "f"]);
    }
    check(json!({ "type": "object" }), &["{}", "{ }", "{ \"a\": 1 }"], &["{\"a\"}"]);
}

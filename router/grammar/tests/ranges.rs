//! Numbers within bounds: what is drawn is within, and what is within can be drawn.

use pelton_grammar::{Constraint, Grammar, GrammarError, Script, Spelling, TokenText, Vocabulary};
use proptest::prelude::*;
use serde_json::{Value, json};

const END: u32 = 256;

fn compiled(schema: &Value) -> Result<Grammar, GrammarError> {
    compiled_of(Constraint::JsonSchema(schema.clone()))
}

fn compiled_of(constraint: Constraint) -> Result<Grammar, GrammarError> {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let single = bytes.iter().map(|byte| TokenText::Bytes(byte));
    let vocabulary = Vocabulary::new(single.chain([TokenText::Special("<end>")]), &[END]).unwrap();
    vocabulary.compile(&Script::of(constraint), Spelling::Usual)
}

fn draws(grammar: &Grammar, text: &str) -> bool {
    let mut state = grammar.begin();
    let drawn = text.bytes().all(|byte| {
        let allowed = state.mask().unwrap().allows(byte.into());
        allowed && state.take(&[byte.into()]).is_ok()
    });
    drawn && state.mask().unwrap().allows(END)
}

#[test]
fn a_whole_bound_that_is_excluded_is_not_drawn() {
    let below_a_half = json!({ "type": "number", "minimum": 0, "maximum": 0.5 });
    for (schema, right, wrong) in [
        (
            json!({ "exclusiveMinimum": 0, "maximum": 0.5 }),
            &["0.5", "0.25", "0.001"][..],
            &["0", "0.0", "-0", "0.6"][..],
        ),
        (json!({ "exclusiveMinimum": 1, "exclusiveMaximum": 1.5 }), &["1.4", "1.001"], &["1", "1.0", "1.5"]),
        (json!({ "exclusiveMinimum": 2, "maximum": 2.5 }), &["2.5", "2.1"], &["2", "2.00"]),
        (json!({ "exclusiveMinimum": 5, "exclusiveMaximum": 5.001 }), &["5.0001"], &["5", "5.0", "5.001"]),
        (json!({ "minimum": -0.5, "exclusiveMaximum": 0 }), &["-0.5", "-0.1"], &["-0", "0", "-0.0", "-0.6"]),
        (json!({ "minimum": -1.5, "exclusiveMaximum": -1 }), &["-1.5", "-1.01"], &["-1", "-1.0", "-2"]),
        (json!({ "exclusiveMinimum": 0, "maximum": 1e-20 }), &["0.00000000000000000001"], &["0", "0.0", "1"]),
        (json!({ "exclusiveMinimum": true, "minimum": 0, "maximum": 0.5 }), &["0.1"], &["0", "-0"]),
        (json!({ "allOf": [{ "exclusiveMinimum": 0 }, { "maximum": 0.5 }] }), &["0.1"], &["0", "-0"]),
        (json!({ "minimum": 0, "maximum": 0.5, "not": { "const": 0 } }), &["0.1"], &["0", "-0"]),
        (json!({ "oneOf": [below_a_half, { "const": 0 }] }), &["0.1"], &["0", "-0"]),
        (json!({ "exclusiveMinimum": 0, "multipleOf": 0.25, "maximum": 0.5 }), &["0.25"], &["0", "0.3"]),
        (
            json!({ "allOf": [{ "type": "integer" }, { "exclusiveMinimum": 3, "maximum": 5 }] }),
            &["4", "5"],
            &["3", "6"],
        ),
    ] {
        let mut schema = schema;
        schema["type"] = json!("number");
        for schema in [json!({ "type": "array", "items": schema }), schema] {
            let grammar = compiled(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
            let written = |text: &str| if schema["type"] == "array" { format!("[{text}]") } else { text.to_owned() };
            right.iter().for_each(|text| assert!(draws(&grammar, &written(text)), "{text} fits {schema}"));
            wrong.iter().for_each(|text| assert!(!draws(&grammar, &written(text)), "{text} does not fit {schema}"));
        }
    }
}

#[test]
fn nor_is_it_within_lark() {
    for schema in [
        "{\n \"type\": \"number\",\n \"exclusiveMinimum\": 0, \"maximum\": 0.5 }",
        "{ \"type\": \"number\", \"minimum\": 0, \"exclusiveMinimum\": true, \"maximum\": 0.5 }",
    ] {
        let text = format!("start: \"x\" %json {schema} | item\nitem: other");
        let grammar = |text: &str| compiled_of(Constraint::Grammar(text.to_owned()));
        let told = grammar(&text).map(drop).expect_err("it has a fault");
        let line = 2 + schema.matches('\n').count();
        assert_eq!(told.reason, format!("line {line}, column 7: `other` is not defined"));
        let grammar = grammar(&text.replace("other", "\"%json { }\"")).expect("it has none");
        for (text, fits) in [("x0.25", true), ("x0.5", true), ("%json { }", true), ("x0", false), ("x-0", false)] {
            assert_eq!(draws(&grammar, text), fits, "{text}, {schema}");
        }
    }
}

#[test]
fn what_is_next_to_an_excluded_bound_is_drawn_and_the_bound_is_not_within_lark_either() {
    for (schema, right, wrong) in [
        (json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 }), ["0.99", "0.9", "0"], ["1", "1.0"]),
        (
            json!({ "type": "number", "minimum": 0, "maximum": 1, "exclusiveMaximum": true }),
            ["0.99", "0.9", "0"],
            ["1", "1.0"],
        ),
        (
            json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1024 }),
            ["1023.9", "1", "0.5"],
            ["1024", "1024.0"],
        ),
        (
            json!({ "type": "number", "exclusiveMinimum": 100, "maximum": 100.5 }),
            ["100.25", "100.01", "100.5"],
            ["100", "100.0"],
        ),
        (
            json!({ "type": "number", "minimum": -1.5, "exclusiveMaximum": -1 }),
            ["-1.5", "-1.01", "-1.1"],
            ["-1", "-1.0"],
        ),
        (
            json!({ "type": "number", "exclusiveMinimum": -1000, "maximum": -999.5 }),
            ["-999.75", "-999.9", "-999.5"],
            ["-1000", "-1000.0"],
        ),
    ] {
        let within = compiled_of(Constraint::Grammar(format!("start: %json {schema}"))).expect("it has no fault");
        for grammar in [within, compiled(&schema).expect("it has none")] {
            right.iter().for_each(|text| assert!(draws(&grammar, text), "{text} fits {schema}"));
            wrong.iter().for_each(|text| assert!(!draws(&grammar, text), "{text} does not fit {schema}"));
        }
    }
}

/// So many hundredths, or thousandths and the like.
fn decimal(whole: i64, digits: u32) -> String {
    let (sign, scale) = (if whole < 0 { "-" } else { "" }, 10_u64.pow(digits));
    let (above, below) = (whole.unsigned_abs() / scale, whole.unsigned_abs() % scale);
    let text = format!("{sign}{above}.{below:0width$}", width = digits as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn numbers_are_drawn_as_their_bounds_say(
        low in -300_i64..300,
        length in prop_oneof![0_i64..12, 0_i64..400],
        digits in 0_u32..3,
        is_whole in any::<[bool; 2]>(),
        is_excluded in any::<[bool; 2]>(),
        is_open in prop::sample::select(&[[false, false], [false, false], [false, false], [true, false], [false, true]]),
        moved in prop::collection::vec((-40_i64..40, 0_u32..3), 40),
    ) {
        let scale = 10_i64.pow(digits);
        let ends = [low, low + length];
        let ends = [0, 1].map(|at| if is_whole[at] { ends[at].div_euclid(scale) * scale } else { ends[at] });
        let texts = ends.map(|end| decimal(end, digits));
        let values = texts.clone().map(|text| text.parse::<f64>().unwrap());
        let mut schema = json!({ "type": "number" });
        for (at, names) in [["minimum", "exclusiveMinimum"], ["maximum", "exclusiveMaximum"]].iter().enumerate() {
            if !is_open[at] {
                schema[names[usize::from(is_excluded[at])]] = texts[at].parse().unwrap();
            }
        }
        let fits = |text: &str| {
            let value: f64 = text.parse().unwrap();
            let is_above = value > values[0] || value == values[0] && !is_excluded[0];
            let is_below = value < values[1] || value == values[1] && !is_excluded[1];
            (is_open[0] || is_above) && (is_open[1] || is_below)
        };
        let Ok(grammar) = compiled(&schema) else {
            prop_assert!(values[0] > values[1] || values[0] == values[1] && (is_excluded[0] || is_excluded[1]), "{}", schema);
            return Ok(());
        };
        // Numbers near the bounds, by as many decimals and up to two more, and those that are the same as 0.
        let near = moved.iter().flat_map(|&(by, more)| {
            let near = |end: &i64| decimal(end * 10_i64.pow(more) + by, digits + more);
            ends.iter().map(near).collect::<Vec<_>>()
        });
        let all = near.chain(texts.clone()).chain(["0", "0.0", "1", "-1", "1.0", "-1.0", "250"].map(str::to_owned));
        for text in all.flat_map(|text| [text.replace("--", ""), format!("-{text}").replace("--", "")]) {
            let is_zero_below = text.starts_with("-0") && text.parse::<f64>() == Ok(0.0);
            let dot = if text.contains('.') { "" } else { "." };
            // A number may have one way to be written, with zeros behind it or without.
            let written = [text.clone(), format!("{text}{dot}0"), format!("{text}{dot}00")];
            let drawn = written.iter().any(|text| draws(&grammar, text));
            prop_assert!(fits(&text) || !drawn, "{} does not fit {}", text, schema);
            prop_assert!(!fits(&text) || drawn || is_zero_below || text.ends_with(".0"), "{} fits {}", text, schema);
        }
    }
}

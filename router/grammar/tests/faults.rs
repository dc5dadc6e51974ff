//! What clients are told of constraints that are wrong: in our words, with the places and names that they wrote.

use pelton_grammar::{Constraint, Form, GrammarError, Part, Reasoning, Script, Spelling, TokenText, Vocabulary};
use proptest::prelude::*;
use serde_json::json;

fn check<T: std::fmt::Display>(constraint: impl Fn(&T) -> Constraint, cases: &[(T, &str)]) {
    let wrong = cases.iter().map(|(case, expected)| (case, reason(constraint(case)), *expected));
    let wrong = wrong.filter(|(_, got, expected)| got != expected);
    let told: Vec<String> =
        wrong.map(|(case, got, expected)| format!("{case}\n  got {got}\n  not {expected}")).collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
}

fn reason(constraint: Constraint) -> String {
    fault(&Script::of(constraint))
}

fn vocabulary() -> Vocabulary {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let single = bytes.iter().map(|byte| TokenText::Bytes(byte));
    Vocabulary::new(single.chain([TokenText::Special("<end>")]), &[256]).expect("it has an end")
}

fn fault(script: &Script) -> String {
    let error = vocabulary().compile(script, Spelling::Usual).map(drop).expect_err(&format!("{script:?} is wrong"));
    error.reason
}

#[test]
fn regexes() {
    check(
        |regex: &&str| Constraint::Regex((*regex).to_owned()),
        &[
            (r"[^\s\S]", r#"no text matches "[^\\s\\S]"; allowed: one that some text matches"#),
            (r"x[^\d\D]+", r#"no text matches "x[^\\d\\D]+"; allowed: one that some text matches"#),
            ("a(b", r#"at character 2: the group `(` is not closed, in "a(b""#),
            ("\\", r#"at character 1: a `\` at the end escapes nothing, in "\\""#),
            (r"x\\\", r#"at character 4: a `\` at the end escapes nothing, in "x\\\\\\""#),
            (r"^\d(", r#"at character 4: the group `(` is not closed, in "^\\d(""#),
            (r"a\bc", r#"anchors within it and word boundaries are not served, in "a\\bc""#),
        ],
    );
}

#[test]
fn what_no_text_matches_is_refused_behind_thoughts_and_within_tags_too() {
    let text = |text: &str| vec![Part::Text(text.to_owned())];
    let reasoning = Reasoning {
        is_open: true,
        open: text("<think>"),
        close: text("</think>"),
        behind: Vec::new(),
        never: Vec::new(),
    };
    let nothing = Script::of(Constraint::Regex(r"[^\w\W]".to_owned()));
    assert!(fault(&Script { reasoning: Some(reasoning), ..nothing }).starts_with("no text matches"));
    let tagged = Form::Sequence(vec![
        Form::Exactly("a".to_owned()),
        Form::Regex { regex: r"[^\w\W]".to_owned(), place: String::new() },
    ]);
    assert!(fault(&Script::of(Constraint::Tags(tagged))).starts_with("no text matches"));
}

#[test]
fn a_branch_that_nothing_matches_leaves_the_others() {
    for regex in [r"foo+|a[^\s\S]", r"a[^\s\S]*b", r"(x[^\w\W])?y"] {
        let script = Script::of(Constraint::Regex(regex.to_owned()));
        assert!(vocabulary().compile(&script, Spelling::Usual).is_ok(), "{regex}");
    }
}

#[test]
fn grammars() {
    check(
        |grammar: &&str| Constraint::Grammar((*grammar).to_owned()),
        &[
            ("start: \"a\" other", "line 1, column 8: `other` is not defined"),
            ("begin: \"a\"", "there is no rule `start`, with which a text begins"),
            ("start: \"a\"\nstart: \"b\"", "line 2, column 8: `start` is defined twice"),
            ("start: A\nA: B\nB: A", "line 3, column 4: the terminal `A` refers to itself"),
            ("start: \"a\"\n$", "line 2, column 1: nothing that a grammar has begins here"),
            ("start: \"a\" )", "line 1, column 12: this cannot be read"),
            ("start: (\"a\"", "line 1, column 12: a rule cannot go on like this"),
            (
                "start: A & B\nA: \"a\"\nB: \"b\"",
                "line 1, column 8: `&` stands between the parts of a terminal alone, which is a name in capital letters",
            ),
            (
                "start: /a(/",
                "line 1, column 8: a regular expression is wrong, or has what is not served: looking around, word boundaries, back references",
            ),
            ("start: /[^\\s\\S]/", "no text fits it"),
            ("root ::= \"a\" root", "no text fits it"),
            ("root ::= item\nitem ::= [a-z] (item | root)", "no text fits it"),
            ("start: \"a\" start", "no text fits it"),
            ("start: /[a-z]/ item\nitem: start | \"b\" item", "no text fits it"),
            ("start: \"a\" start )", "line 1, column 18: this cannot be read"),
            ("start: start (", "line 1, column 15: a rule cannot go on like this"),
            ("start: %json {\"type\": 5}", "line 1, column 8: the schema behind `%json` cannot be kept"),
            (
                "start: \"a\"\n  | item\nitem: %json { \"properties\": {\n \"a\": { \"type\": \"string\", \"pattern\": \"b(\" } } }",
                "line 3, column 7: the schema behind `%json` cannot be kept, at /properties/a/pattern: its `pattern` cannot be read",
            ),
            (
                "start: %json { \"type\": \"string\", \"pattern\": \"a(\" }",
                "line 1, column 8: the schema behind `%json` cannot be kept, at /pattern: its `pattern` cannot be read",
            ),
            ("%import common.NOTHING\nstart: NOTHING", "line 1, column 1: `%import` knows no such name"),
            ("root ::= other", "line 1, column 10: `other` is not defined"),
            ("root ::= x\nx ::= \"b\"{3,1}", "line 2, column 10: a repetition ends before it begins"),
            ("root ::= \"a\" [z-a]", "line 1, column 15: a range of characters ends before it begins"),
        ],
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is wrong with a piece of a GBNF grammar has a place, as the library, which knows none, has nothing left to say.
    #[test]
    fn faults_of_gbnf_have_places(pieces in prop::collection::vec(prop::sample::select(GBNF), 0..12)) {
        let grammar = format!("root ::= x {}\nx ::= \"a\"", pieces.join(" "));
        let script = Script::of(Constraint::Grammar(grammar.clone()));
        if let Err(error) = vocabulary().compile(&script, Spelling::Usual) {
            let is_of_all = error.reason == "no text fits it" || error.reason.starts_with("it is too large");
            prop_assert!(error.reason.starts_with("line ") || is_of_all, "{}: {}", grammar, error);
        }
    }
}

const GBNF: &[&str] = &[
    "\"b\"",
    "\"\"",
    "\"\\n\"",
    "[a-c]",
    "[^\\d]",
    "[z-a]",
    "[]",
    ".",
    "x",
    "root",
    "other",
    "(",
    ")",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{2}",
    "{0}",
    "{0,3}",
    "{1,}",
    "{2147483646}",
    "{3,1}",
    "# a comment\n",
];

#[test]
fn parts_of_tags_are_told_with_their_places() {
    let grammar = |text: &str| Form::Grammar { text: text.to_owned(), place: "/g".to_owned() };
    let regex = |regex: &str| Form::Regex { regex: regex.to_owned(), place: "/r".to_owned() };
    for (part, place, reason) in [
        (grammar("start: \"a\" other"), "/g", "line 1, column 8: `other` is not defined"),
        (grammar("root ::= \"a\"\n )"), "/g", "line 2, column 2: a `)` closes nothing"),
        // Nothing closes the place where a grammar stands, or names what others are called.
        (grammar("start: \"a\"\n} \"b\" %lark {\nstart: \"c\""), "/g", "line 2, column 1: this cannot be read"),
        (
            grammar("start: \"a\" @part1"),
            "/g",
            "line 1, column 12: it refers to another grammar, of which there is none",
        ),
        (regex("a("), "/r", "at character 2: the group `(` is not closed, in \"a(\""),
        (regex(r"a\b"), "/r", r#"anchors within it and word boundaries are not served, in "a\\b""#),
    ] {
        let tags = Form::Sequence(vec![grammar("start: \"@x\""), regex("a"), part, Form::Exactly("b".to_owned())]);
        let error = vocabulary().compile(&Script::of(Constraint::Tags(tags)), Spelling::Usual).map(drop);
        assert_eq!(error, Err(GrammarError { place: place.to_owned(), reason: reason.to_owned() }));
    }
}

#[test]
fn schemas() {
    check(
        |schema: &serde_json::Value| Constraint::JsonSchema(schema.clone()),
        &[
            (
                json!({ "type": "string", "pattern": "^a$", "minLength": 2 }),
                "no text fits its `pattern`, `format` and lengths together",
            ),
            (json!({ "type": "string", "minLength": 3, "maxLength": 2 }), "its `minLength` is above its `maxLength`"),
            (json!({ "type": "array", "minItems": 3, "maxItems": 2 }), "its `minItems` is above its `maxItems`"),
            (json!({ "type": "integer", "minimum": 3, "maximum": 2 }), "no value fits it"),
            (
                json!({ "type": "string", "const": "a", "minLength": 2 }),
                "its `const` does not have the length that is asked for",
            ),
            (json!({ "allOf": [{ "type": "string" }, { "type": "null" }] }), "no value fits it"),
            (json!(false), "it is `false`, which nothing fits"),
        ],
    );
}

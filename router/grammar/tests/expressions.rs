//! Which texts fit regular expressions and plain texts, wherever they stand: alone, in GBNF, in tags.

use pelton_grammar::{Constraint, Form, Part, Reasoning, Script, Spelling, State, TokenText, Vocabulary};
use serde_json::json;

const END: u32 = 256;

/// All single bytes.
fn vocabulary() -> Vocabulary {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let single = bytes.iter().map(|byte| TokenText::Bytes(byte));
    Vocabulary::new(single.chain([TokenText::Special("<end>")]), &[END]).expect("it has an end")
}

fn fits(mut state: State, text: &str) -> bool {
    let allows = |state: &mut State, token| state.mask().expect("it goes on").allows(token);
    text.bytes().map(u32::from).all(|token| allows(&mut state, token) && state.take(&[token]).is_ok())
        && allows(&mut state, END)
}

fn check(constraint: Constraint, right: &[&str], wrong: &[&str]) {
    let script = Script::of(constraint);
    let grammar = vocabulary().compile(&script, Spelling::Usual).unwrap_or_else(|error| panic!("{script:?}: {error}"));
    for text in right {
        assert!(fits(grammar.begin(), text), "{text:?} fits {script:?}");
    }
    for text in wrong {
        assert!(!fits(grammar.begin(), text), "{text:?} does not fit {script:?}");
    }
}

#[test]
fn signs_of_rusts_in_a_class_are_characters_of_it() {
    for (class, right, wrong) in [
        ("[x~~y]", ["x", "~", "y"], ["a", ""]),
        ("[a-c--b]", ["b", "-", "7"], ["+", "d"]), // from `-` to `b`, too
        ("[a-c&&x]", ["b", "&", "x"], ["d", "-"]),
        (r"[^[\]]", ["a", "^", "/"], ["[", "]"]),
        ("[[]", ["[", "[", "["], ["]", "[["]),
        (r"[\d/_-]", ["7", "/", "-"], ["\u{664}", "\\"]),
        (r"[^\S\n]", [" ", "\t", "\r"], ["\n", "\u{a0}"]),
    ] {
        check(Constraint::Regex(class.to_owned()), &right, &wrong);
        check(Constraint::Grammar(format!("root ::= {class}")), &right, &wrong);
        let before = |text: &str| format!("x{text}");
        check(
            Constraint::Tags(Form::Sequence(vec![
                Form::Exactly("x".to_owned()),
                Form::Regex { regex: class.to_owned(), place: String::new() },
            ])),
            &right.map(before).each_ref().map(String::as_str),
            &wrong.map(before).each_ref().map(String::as_str),
        );
    }
}

#[test]
fn digits_and_letters_of_words_are_those_of_ascii() {
    for (regex, right, wrong) in
        [(r"\d+", "40", "\u{664}"), (r"\w+", "a_7", "é"), (r"\s", "\n", "\u{2003}"), (r"\D", "\u{664}", "4")]
    {
        check(Constraint::Regex(regex.to_owned()), &[right], &[wrong]);
    }
}

#[test]
fn texts_of_gbnf_are_written_as_llama_cpp_takes_them() {
    for (gbnf, right, wrong) in [
        (r#"root ::= "\U0001F600" [\U0001F600]"#, "😀😀", "\\U0001F600😀"),
        (r#"root ::= "\[a\]""#, "[a]", "a"),
        ("root ::= \"a\tb\nc\"", "a\tb\nc", "a b c"),
        (r#"root ::= "a"{0,0} ("b" | ) "c"{1}"#, "bc", "abc"),
        ("root ::= a-b a_d_b aB\na-b ::= \"1\"\na_d_b ::= \"2\"\naB ::= \"3\"", "123", "113"),
    ] {
        check(Constraint::Grammar(gbnf.to_owned()), &[right], &[wrong]);
    }
    let groups = format!("root ::= {}\"a\"{}", "(".repeat(28), ")".repeat(28));
    check(Constraint::Grammar(groups), &["a"], &[""]);
}

#[test]
fn an_expression_of_a_tag_is_read_as_one_that_stands_alone() {
    for (regex, right, wrong) in [
        (r"https?:\/\/a/", "https://a/", r"https:\/\/a/"),
        ("a\\\nb\n", "a\nb\n", "anbn"),
        ("", "", "/"),
        ("^a$", "a", "^a$"),
    ] {
        check(Constraint::Regex(regex.to_owned()), &[right], &[wrong]);
        let part = Form::Regex { regex: regex.to_owned(), place: String::new() };
        let tag = Form::Sequence(vec![part, Form::Exactly("!".to_owned())]);
        check(Constraint::Tags(tag), &[&format!("{right}!")], &[&format!("{wrong}!"), right]);
    }
}

#[test]
fn control_characters_stand_in_texts_and_in_names_that_are_listed() {
    let text = "a\u{7f}\u{1}\u{9f}\n";
    check(Constraint::Choice(vec![text.to_owned()]), &[text], &["a"]);
    check(Constraint::Tags(Form::Exactly(text.to_owned())), &[text], &["a"]);
    check(Constraint::Grammar(format!("root ::= \"{text}\"")), &[text], &["a"]);
    // JSON has DEL as it is, and a number alone for the others.
    let names = ["{\"a\u{7f}\\u0001\": 1}", "{\"a\u{7f}\u{1}\": 1}", "{\"a\\u007f\\u0001\": 1}"];
    let name = "a\u{7f}\u{1}";
    for schema in [
        json!({ "type": "object", "properties": { name: { "const": 1 } }, "required": [name], "additionalProperties": false }),
        json!({ "const": { name: 1 } }),
        json!({ "enum": [null, { name: 1 }] }),
    ] {
        check(Constraint::JsonSchema(schema), &names[..1], &names[1..]);
    }
}

#[test]
fn a_choice_may_be_to_say_nothing() {
    let choice = |texts: &[&str]| Constraint::Choice(texts.iter().map(|text| (*text).to_owned()).collect());
    check(choice(&["a", "", "ab"]), &["", "a", "ab"], &["b", "aa"]);
    check(choice(&[""]), &[""], &["a"]);
    let text = |text: &str| vec![Part::Text(text.to_owned())];
    let reasoning = Reasoning {
        is_open: true,
        open: text("<think>"),
        close: text("</think>"),
        behind: Vec::new(),
        never: Vec::new(),
    };
    let script = Script { reasoning: Some(reasoning), ..Script::of(choice(&["", "a"])) };
    let grammar = vocabulary().compile(&script, Spelling::Usual).expect("it is served");
    for (answer, is_right) in [("</think>", true), ("Hm.</think>\na", true), ("</think>b", false), ("", false)] {
        assert_eq!(fits(grammar.begin(), answer), is_right, "{answer:?}");
    }
}

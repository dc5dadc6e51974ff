//! Free text beside calls: what it may hold, over a vocabulary of all single bytes and a control token.

use pelton_grammar::{
    Arguments, BesideText, Body, Call, Calls, Mark, Never, Part, Script, Spelling, TokenText, Vocabulary,
};
use serde_json::json;

const END: u32 = 256;
/// Written `\u{1}` in texts.
const MARK: u32 = 257;

fn vocabulary() -> Vocabulary {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let single = bytes.iter().map(|byte| TokenText::Bytes(byte));
    let special = ["<end>", "<mark>"].map(TokenText::Special);
    Vocabulary::new(single.chain(special), &[END]).expect("it has an end")
}

fn text(text: &str) -> Mark {
    vec![Part::Text(text.to_owned())]
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// A call is `f1`, `f2`, ...
fn calls(open: Option<Mark>, close: Option<Mark>, each_open: Option<Mark>, between: Mark, are_many: bool) -> Calls {
    let arguments = Arguments::Json(json!({ "type": "integer", "minimum": 0 }));
    let tools = vec![Call { head: text("f"), arguments, tail: Mark::new() }];
    Calls { open, close, each_open, each_close: None, between, tools, are_many }
}

fn check(calls: Calls, beside: BesideText, right: &[&str], wrong: &[&str]) {
    let script = Script { reasoning: None, mark: Mark::new(), body: Body::Free(calls, beside) };
    let grammar = vocabulary().compile(&script, Spelling::Usual).unwrap_or_else(|error| panic!("{script:?}: {error}"));
    let fits = |text: &str| {
        let mut state = grammar.begin();
        for byte in text.bytes() {
            let token = if byte == 1 { MARK } else { u32::from(byte) };
            if !state.mask().expect("it goes on").allows(token) {
                return false;
            }
            state.take(&[token]).expect("it was allowed");
        }
        state.mask().expect("it goes on").allows(END)
    };
    for text in right {
        assert!(fits(text), "{text:?} fits {script:?}");
    }
    for text in wrong {
        assert!(!fits(text), "{text:?} does not fit {script:?}");
    }
}

#[test]
fn no_mark_but_the_one_before_the_calls_is_in_free_text() {
    let never = || Never { marks: texts(&["<a>", "word"]), before: Vec::new() };
    let marked = || BesideText::Marked { never: never() };
    check(
        calls(None, None, Some(text("<a>")), Mark::new(), true),
        marked(),
        &["", "hi <b", "hi <a>f1 and <a>f2<a>f3", "<a>f1 wor"],
        &["<a>g", "word", "a word f1", "<a>f1 and word", "<a>"],
    );
    check(
        calls(None, None, Some(text("<a>")), Mark::new(), false),
        marked(),
        &["hi <a>f1 and"],
        &["<a>f1 and <a>f2", "<a>f1 and <a>x"],
    );
    // A list without an end: what comes behind it might go on with it.
    check(
        calls(Some(text("<a>")), None, None, Mark::new(), true),
        marked(),
        &["hi", "hi <a>f1\nf2"],
        &["<a>f1 hi", "word <a>f1"],
    );
    check(
        calls(Some(text("<a>")), Some(text("</a>")), None, Mark::new(), true),
        marked(),
        &["hi <a>f1</a> and <a>f2</a>."],
        &["<a>f1", "<a>f1</a> word"],
    );
    let before = Never { marks: texts(&["<a>", "word"]), before: texts(&["{", "["]) };
    check(
        calls(None, None, Some(text("<a>")), Mark::new(), true),
        BesideText::Marked { never: before },
        &["a word", "word (", "word <a>f1 word"],
        &["word{", "a word \n[", "<a>{"],
    );
}

#[test]
fn a_control_tokens_name_cannot_be_spelled_in_its_place() {
    let never = Never { marks: texts(&["<mark>"]), before: Vec::new() };
    let mark = || Some(vec![Part::Token(MARK)]);
    check(
        calls(None, None, mark(), Mark::new(), true),
        BesideText::Marked { never: never.clone() },
        &["hi \u{1}f1 and \u{1}f2", "<mark"],
        &["<mark>", "<mark>f1", "\u{1}x", "hi \u{1}f1 <mark>"],
    );
}

#[test]
fn an_answer_that_begins_like_a_call_is_one() {
    let never = Never { marks: texts(&["<a>"]), before: Vec::new() };
    let begun = || BesideText::Begun { with: texts(&["[", "{", "<t>"]), never: never.clone() };
    let list = |are_many| calls(Some(text("[")), Some(text("]")), None, text(", "), are_many);
    check(
        list(true),
        begun(),
        &["", " \n", "hi [f0]", "see {}", "[f1]", " [f1, f2]\n", "(["],
        &["[f1] hi", "[", "[x]", "\n\n\n\n {", "{}", " <t>hi", "hi <a>", "[f1, ]", "[f1f2]"],
    );
    check(list(false), begun(), &["[f1]"], &["[f1, f2]"]);
}

#[test]
fn messages_are_free_but_for_those_that_are_calls() {
    let never = Never { marks: texts(&["<s>", "<e>"]), before: Vec::new() };
    let messages = |is_open| BesideText::Messages {
        is_open,
        headers: vec![text("<s>a:"), text("<s>b:")],
        between: text("<e>"),
        never: never.clone(),
    };
    let made = || calls(None, None, Some(text("<s>b to=")), Mark::new(), false);
    check(
        made(),
        messages(true),
        &["", "hi", "hi<e><s>a:x", "hi<e><s>b to=f1", "hi<e><s>a:x<e><s>b to=f1", "<e><s>b to=f1"],
        &["hi<s>a:x", "hi<s>b to=f1", "<s>b to=f1", "hi<e>", "hi<e>x", "hi<e><s>b to=g"],
    );
    check(
        made(),
        messages(false),
        &["<s>a:hi", "<s>a:hi<e><s>b:", "<s>b:x<e><s>a:y<e><s>b to=f1", "<s>b to=f1"],
        &["", "hi", "<s>b to=g", "<s>a:hi<s>b to=f1", "<s>a:hi<e>", "<s>b to=f1<e><s>a:hi", "<s>c:hi", "<s>a:hi<s>b:"],
    );
}

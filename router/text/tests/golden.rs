//! Chat templates against the answers of `transformers`, written by `golden/make.py`.

use std::collections::BTreeMap;
use std::path::Path;

use pelton_text::{ChatInput, ChatTemplate, LocalTime, TemplateError};
use serde::Deserialize;
use serde_json::{Map, Value};

/// What `make.py` wrote.
#[derive(Deserialize)]
struct Golden {
    special_tokens: Map<String, Value>,
    unix_seconds: i64,
    utc_offset_seconds: i32,
    directives: String,
    moments: Vec<(i64, String)>,
    expressions: BTreeMap<String, Answer>,
    /// By template and chat.
    templates: BTreeMap<String, BTreeMap<String, Answer>>,
}

/// The arguments of `apply_chat_template`; those that it does not know are variables of the template.
#[derive(Deserialize)]
struct Chat {
    conversation: Vec<Value>,
    tools: Option<Vec<Value>>,
    documents: Option<Value>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(flatten)]
    kwargs: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Text(String),
    Raised(String),
    /// The name of Python's error.
    Fails(String),
}

#[test]
fn every_template_renders_every_chat_as_transformers_does() {
    let (golden, chats) = (golden(), chats());
    let mut wrong = Vec::new();
    for (name, answers) in &golden.templates {
        let source = read(&format!("templates/{name}.jinja"));
        assert!(answers.keys().eq(chats.keys()), "make.py was not run after a change of chats.json");
        for (chat_name, expected) in answers {
            let rendered = render(&golden, &source, &chats[chat_name]);
            if !is_right(expected, &rendered) {
                wrong.push(format!("{name} of {chat_name}: {}", difference(expected, &rendered)));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Where we are content to differ, because no chat template does this: minijinja is laxer, or lacks it.
const DIFFERENT: [&str; 12] = [
    // Laxer.
    "{{ 'a' < 1 }}",
    "{% for x in none %}{% endfor %}",
    // Arguments beyond those that a macro names.
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, b=3) }}",
    // Places to search from; conversions and operators of `str` formatting.
    "{{ 'abc'.find('b', 2) }} {{ 'abcabc'.count('a', 1) }} {{ 'abc'.startswith('b', 1) }}",
    "{{ '{:>5}|{:.2f}|{!r}'.format('a', 1.234, 'x') }}",
    "{{ 'a=%(x)s' % {'x': 1} }}",
    "{{ '%s %s' % ('a', 1) }}",
    // For web pages.
    "{{ '<a>' | escape }} {{ '<a>' | safe }} {{ '<a>' | striptags }}",
    "{{ 'a b c' | wordcount }}",
    "{{ 'abc def ghi' | truncate(7, leeway=0) }}",
    "{{ loop is defined }} {{ self is defined }} {{ range is defined }} {{ strftime_now is defined }} {{ raise_exception is defined }}",
    "{{ lipsum is defined }} {{ namespace is defined }}",
];

#[test]
fn every_expression_prints_what_jinja_prints() {
    let (golden, chats) = (golden(), chats());
    let mut wrong = Vec::new();
    for (source, expected) in &golden.expressions {
        let rendered = render(&golden, source, &chats["user"]);
        if is_right(expected, &rendered) == DIFFERENT.contains(&source.as_str()) {
            wrong.push(format!("{source}: {}", difference(expected, &rendered)));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(DIFFERENT.iter().all(|source| golden.expressions.contains_key(*source)));
}

#[test]
fn dates_are_those_of_strftime() {
    let golden = golden();
    for (unix_seconds, expected) in &golden.moments {
        // The same moment, seen from zones whose clocks show the same once they are shifted.
        for utc_offset_seconds in [0, 5 * 3600 + 1800, -11 * 3600] {
            let now = LocalTime { unix_seconds: unix_seconds - i64::from(utc_offset_seconds), utc_offset_seconds };
            assert_eq!(now.strftime(&golden.directives), *expected, "{unix_seconds}");
        }
    }
}

fn golden() -> Golden {
    serde_json::from_str(&read("answers.json")).expect("made by make.py")
}

fn chats() -> BTreeMap<String, Chat> {
    serde_json::from_str(&read("chats.json")).expect("arguments of apply_chat_template, by name")
}

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn render(golden: &Golden, source: &str, chat: &Chat) -> Result<String, TemplateError> {
    let sources = BTreeMap::from([("default".to_owned(), source.to_owned())]);
    let template = ChatTemplate::from_sources(sources, golden.special_tokens.clone())?;
    template.render(&ChatInput {
        messages: chat.conversation.clone(),
        tools: chat.tools.clone(),
        documents: chat.documents.clone(),
        template: None,
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        kwargs: chat.kwargs.clone(),
        now: LocalTime { unix_seconds: golden.unix_seconds, utc_offset_seconds: golden.utc_offset_seconds },
    })
}

fn is_right(expected: &Answer, rendered: &Result<String, TemplateError>) -> bool {
    match (expected, rendered) {
        (Answer::Text(expected), Ok(text)) => expected == text,
        (Answer::Raised(expected), Err(TemplateError::Raised(message))) => expected == message,
        (Answer::Fails(_), Err(TemplateError::Failed(_) | TemplateError::Input { .. })) => true,
        // minijinja looks filters up when it runs, Jinja when it parses: either is an error before anything is shown.
        (Answer::Fails(why), Err(TemplateError::Invalid { .. })) => why == "TemplateAssertionError",
        _ => false,
    }
}

fn difference(expected: &Answer, rendered: &Result<String, TemplateError>) -> String {
    let (Answer::Text(expected), Ok(rendered)) = (expected, rendered) else {
        return format!("expected {expected:?}, got {rendered:?}");
    };
    let mut lines = expected.split('\n').zip(rendered.split('\n')).enumerate();
    match lines.find(|(_, (expected, rendered))| expected != rendered) {
        Some((line, (expected, rendered))) => format!("line {line}:\n  expected {expected:?}\n  got      {rendered:?}"),
        None => format!("{} bytes expected, {} got", expected.len(), rendered.len()),
    }
}

//! Chat templates against the answers of `transformers`, written by `golden/make.py`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use pelton_text::{ChatInput, ChatTemplate, LocalTime, TemplateError};
use proptest::prelude::*;
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

fn any_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        "role|content|tool_calls|function|name|arguments|text|type|reasoning_content|parameters|properties",
        "[a-z]{0,2}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "user|assistant|system|tool|\\PC{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_rendered_or_refused(
        messages in prop::collection::vec(any_json(), 0..4),
        tools in prop::option::of(prop::collection::vec(any_json(), 0..3)),
        kwargs in any_json(),
        flags: [bool; 2],
    ) {
        for template in TEMPLATES.iter() {
            let kwargs = kwargs.as_object().cloned().unwrap_or_default();
            let input = ChatInput {
                messages: template.adapt(messages.clone()),
                tools: tools.clone(),
                documents: messages.first().cloned(),
                template: None,
                own_template: None,
                add_generation_prompt: flags[0],
                continue_final_message: flags[1],
                kwargs,
                verbosity: None,
                wishes: Default::default(),
                now: LocalTime::default(),
            };
            // Whatever happens is a value: a text, or what is wrong with the chat.
            let rendered = template.render(&input);
            let is_operators = matches!(rendered, Err(TemplateError::Invalid { .. }));
            prop_assert!(!is_operators);
        }
    }

    #[test]
    fn any_text_is_a_template_or_refused(source in "([a-z'\"\\\\ .|()\\[\\]\n]|\\{\\{|\\}\\}|\\{%|%\\}|\\{#|#\\}|raw|generation|-|if|for|é){0,24}") {
        let sources = BTreeMap::from([("default".to_owned(), source)]);
        let opened = ChatTemplate::from_sources(sources, Map::new());
        let is_told = matches!(opened, Ok(_) | Err(TemplateError::Invalid { .. }));
        prop_assert!(is_told);
    }
}

static TEMPLATES: LazyLock<Vec<ChatTemplate>> = LazyLock::new(|| {
    let golden = golden();
    let open = |name| {
        let sources = BTreeMap::from([("default".to_owned(), read(&format!("templates/{name}.jinja")))]);
        ChatTemplate::from_sources(sources, golden.special_tokens.clone()).expect("it parses")
    };
    golden.templates.keys().map(open).collect()
});

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
        own_template: None,
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        kwargs: chat.kwargs.clone(),
        verbosity: None,
        wishes: Default::default(),
        now: LocalTime { unix_seconds: golden.unix_seconds, utc_offset_seconds: golden.utc_offset_seconds },
    })
}

fn is_right(expected: &Answer, rendered: &Result<String, TemplateError>) -> bool {
    match (expected, rendered) {
        (Answer::Text(expected), Ok(text)) => expected == text,
        (Answer::Raised(expected), Err(TemplateError::Raised(message))) => expected == message,
        (Answer::Fails(_), Err(TemplateError::Failed(_) | TemplateError::Broken(_) | TemplateError::Input { .. })) => {
            true
        }
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

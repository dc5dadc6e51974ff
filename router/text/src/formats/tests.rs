//! Every format against its table of examples (`examples/NAME.toml`), cut at every place and every pair of places; then what
//! holds for any text.

use std::path::Path;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;

use super::*;

mod cuts;
mod objects;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Examples {
    example: Vec<Example>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    says: String,
    text: String,
    #[serde(default)]
    starts_in_reasoning: bool,
    #[serde(default = "yes")]
    tools: bool,
    /// Marks that are special tokens, which are not shown.
    #[serde(default)]
    special: Vec<String>,
    #[serde(default)]
    reasoning: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    calls: Vec<Call>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    name: String,
    id: Option<String>,
    arguments: String,
    #[serde(default = "yes")]
    ended: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Answer {
    reasoning: String,
    content: String,
    calls: Vec<Call>,
}

impl Answer {
    fn add(&mut self, piece: Piece) {
        let count = self.calls.len();
        match piece {
            Piece::Reasoning(text) => self.reasoning.push_str(&text),
            Piece::Content(text) => self.content.push_str(&text),
            Piece::CallStart { index, id, name } => {
                assert_eq!(index, count);
                self.calls.push(Call { name, id, arguments: String::new(), ended: false });
            }
            Piece::CallArguments { index, delta } => {
                assert_eq!(index + 1, count);
                assert!(!delta.is_empty() && !self.calls[index].ended);
                self.calls[index].arguments.push_str(&delta);
            }
            Piece::CallEnd { index } => {
                assert_eq!(index + 1, count);
                self.calls[index].ended = true;
            }
        }
    }
}

/// The sum of what a parser makes of these texts, in one answer.
fn stream<'a>(mut parser: AnswerParser, texts: impl IntoIterator<Item = &'a str>) -> Answer {
    let mut answer = Answer::default();
    texts.into_iter().flat_map(|text| parser.push(text)).for_each(|piece| answer.add(piece));
    parser.finish().into_iter().for_each(|piece| answer.add(piece));
    assert_eq!(parser.finish(), [], "nothing is left");
    answer
}

/// Two tools with schemas and two without.
fn tools() -> Arc<Tools> {
    let tool = |name: &str, properties| json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object", "properties": properties } } });
    let weather = json!({ "city": { "type": "string" }, "days": { "type": "integer" } });
    Arc::new(Tools::new(&[
        tool("get_weather", weather),
        tool("get_time", json!({ "zone": { "type": "string" } })),
        tool("f", json!({})),
        tool("fA", json!({})),
        tool("g", json!({})),
    ]))
}

fn parser(name: &str) -> AnswerParser {
    let format = Format::bound(known::named(name).expect("it is known"), &[]);
    format.parser(Reading { tools: Some(tools()), ..Reading::default() })
}

fn boundaries(text: &str) -> Vec<usize> {
    (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect()
}

/// What every way to cut the text in three gives.
fn check(parser: &AnswerParser, text: &str, expected: &Answer, what: &str) {
    assert_eq!(&stream(parser.clone(), [text]), expected, "{what}");
    let at = boundaries(text);
    for (nth, first) in at.iter().enumerate() {
        let mut begun = parser.clone();
        let mut so_far = Answer::default();
        begun.push(&text[..*first]).into_iter().for_each(|piece| so_far.add(piece));
        for second in &at[nth..] {
            let (mut parser, mut answer) = (begun.clone(), so_far.clone());
            parser.push(&text[*first..*second]).into_iter().for_each(|piece| answer.add(piece));
            parser.push(&text[*second..]).into_iter().for_each(|piece| answer.add(piece));
            parser.finish().into_iter().for_each(|piece| answer.add(piece));
            assert_eq!(&answer, expected, "{what}, cut at {first} and {second}");
        }
    }
}

/// All examples, each with its format's name.
fn examples() -> impl Iterator<Item = (String, Example)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/formats/examples");
    known::names().into_iter().flat_map(move |name| {
        let file = std::fs::read_to_string(folder.join(format!("{name}.toml")))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let examples: Examples = toml::from_str(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        examples.example.into_iter().map(move |example| (name.to_owned(), example))
    })
}

#[test]
fn every_format_reads_its_examples_however_they_are_cut() {
    for (name, example) in examples() {
        let specials: Vec<(u32, String)> = (7..).zip(example.special).collect();
        let format = Format::bound(known::named(&name).expect("it is known"), &specials);
        let tools = example.tools.then(tools);
        let reading = Reading { starts_in_reasoning: example.starts_in_reasoning, tools, ..Reading::default() };
        let Example { says, text, reasoning, content, calls, .. } = example;
        check(&format.parser(reading), &text, &Answer { reasoning, content, calls }, &format!("{name}, {says}"));
    }
}

#[test]
fn calls_of_functions_that_nobody_offers_are_content_in_every_format() {
    let others = json!({ "type": "function", "function": { "name": "other", "parameters": { "type": "object" } } });
    let others = Arc::new(Tools::new(&[others]));
    for (name, example) in examples().filter(|(_, example)| !example.calls.is_empty()) {
        let reading = Reading {
            starts_in_reasoning: example.starts_in_reasoning,
            tools: Some(Arc::clone(&others)),
            ..Reading::default()
        };
        let specials: Vec<(u32, String)> = (7..).zip(example.special).collect();
        let format = Format::bound(known::named(&name).expect("it is known"), &specials);
        let answer = stream(format.parser(reading), [example.text.as_str()]);
        let what = format!("{name}, {}: {answer:?}", example.says);
        assert_eq!(answer.calls, [], "{what}");
        for call in example.calls {
            // The header of a channel is no text; what comes behind it is, if there is anything.
            let shown = if name == "harmony" { call.arguments.trim_matches(['{', '}']) } else { &call.name };
            assert!(answer.content.contains(shown), "{what}");
        }
    }
}

/// Texts made of a format's own marks and of what stands around them.
fn texts(name: &'static str) -> impl Strategy<Value = String> {
    let format = Format::bound(known::named(name).expect("it is known"), &[]);
    let marks: Vec<String> = format.table.marks.texts().map(str::to_owned).collect();
    let around =
        ["{\"name\": \"f\"", ", \"arguments\": ", "{\"ä\": [1, \"}\"]}", "}", "\n", "f", "(a='x')", "call:f{a:1}", "["];
    let words = around.into_iter().map(str::to_owned).chain(
        ["], ", "functions.f:0", ";", " ", "to=functions.f ", "null", "\"{\\\"a\\\": 1}\"", "\u{fffd}"]
            .map(str::to_owned),
    );
    let part = prop_oneof![
        3 => prop::sample::select(marks),
        3 => prop::sample::select(words.collect::<Vec<_>>()),
        1 => "[<>/tool_ca{}\":,é1 ]{0,4}",
    ];
    prop::collection::vec(part, 0..14).prop_map(|parts| parts.concat())
}

/// A format, a text for it, places to cut, and how it is read.
fn cases() -> impl Strategy<Value = (&'static str, String, Vec<prop::sample::Index>, bool, bool)> {
    prop::sample::select(known::names()).prop_flat_map(|name| {
        let cuts = prop::collection::vec(any::<prop::sample::Index>(), 0..6);
        (Just(name), texts(name), cuts, any::<bool>(), any::<bool>())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn where_the_stream_is_cut_makes_no_difference((name, text, cuts, starts_in_reasoning, has_tools) in cases()) {
        let format = Format::bound(known::named(name).expect("it is known"), &[]);
        let reading = Reading { starts_in_reasoning, tools: has_tools.then(tools), ..Reading::default() };
        let parser = format.parser(reading);
        let at = boundaries(&text);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| at[cut.index(at.len())]).collect();
        cuts.sort_unstable();
        let (mut pieces, mut from) = (Vec::new(), 0);
        for cut in cuts.into_iter().chain([text.len()]) {
            pieces.push(&text[from..cut]);
            from = cut;
        }
        let answer = stream(parser.clone(), pieces);
        prop_assert_eq!(&answer, &stream(parser, [text.as_str()]));
        for Call { name, arguments, ended, .. } in &answer.calls {
            let is_object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(arguments).is_ok();
            prop_assert!(!name.is_empty() && (is_object || !*ended), "{}", arguments);
        }
        prop_assert!(has_tools || answer.calls.is_empty());
    }

    #[test]
    fn what_comes_out_at_the_end_was_held_back((name, text, _, starts_in_reasoning, has_tools) in cases()) {
        let format = Format::bound(known::named(name).expect("it is known"), &[]);
        let reading = Reading { starts_in_reasoning, tools: has_tools.then(tools), ..Reading::default() };
        let mut parser = format.parser(reading);
        for c in text.chars() {
            parser.push(c.encode_utf8(&mut [0; 4]));
            let end = parser.clone().cut();
            prop_assert!(parser.is_holding() || end.is_empty(), "{:?}", end);
        }
    }

    #[test]
    fn a_text_without_marks_is_content_whole(name in prop::sample::select(known::names()), text in "[ -;=?-Z^-z|~éß€\\n]{0,40}") {
        // Neither `<` nor `[`, with which all marks begin, nor a word that is one.
        prop_assume!(!text.contains("functools") && !text.contains("Here"));
        let answer = stream(parser(name), [text.as_str()]);
        let is_channelled = name == "harmony";
        let expected = if is_channelled { text.trim_start() } else { text.as_str() };
        prop_assert_eq!((answer.content.as_str(), answer.reasoning.as_str()), (expected, ""));
    }

    /// What comes out of a text that has no call and no thoughts is the text, but for white space and what wraps it.
    #[test]
    fn what_is_no_call_is_not_lost(text in texts("qwen3-coder")) {
        let answer = stream(parser("qwen3-coder"), [text.as_str()]);
        if answer.calls.is_empty() && !text.contains("think>") {
            prop_assert_eq!(answer.content, text);
        }
    }
}

#[test]
fn a_checkpoint_is_known_by_its_template_and_its_tokens() {
    let name = |templates: &str, tokens: &[&str]| {
        let declaration = known::detect(templates, &|token| tokens.contains(&token))?;
        Some((declaration.name.clone(), declaration.reasoning.is_some()))
    };
    let found = |name: &str, has_reasoning| Some((name.to_owned(), has_reasoning));
    let hermes = "<tool_call>\n{\"name\": <n>, \"arguments\": <args-json>}\n</tool_call>";
    assert_eq!(name(hermes, &[]), found("hermes", false));
    assert_eq!(name(hermes, &["<think>"]), found("hermes", true));
    assert_eq!(name(&format!("{hermes}<think></think>"), &[]), found("hermes", true));
    assert_eq!(
        name("<tool_call>\n<function=name>\n<parameter=name>arguments</tool_call>", &[]),
        found("qwen3-coder", false)
    );
    assert_eq!(name("[TOOL_CALLS] [{\"name\": ...}]", &[]), found("mistral", false));
    assert_eq!(name("[TOOL_CALLS]name[ARGS]{}[THINK]", &[]), found("mistral-args", true));
    assert_eq!(name("<think>{{ content.split('</think>') }}", &[]), found("think", true));
    assert_eq!(name("", &["<|action_start|>", "<|plugin|>"]), found("internlm", false));
    assert_eq!(name("<|start|>assistant<|channel|>final<|message|>", &[]), found("harmony", false));
    assert_eq!(name("<tool_calls>[...]</tool_calls><|extra_0|>", &[]), found("hunyuan", false));
    assert_eq!(name("<tool_calls>[...]</tool_calls>", &[]), found("jamba", false));
    let llama3 = "{\"name\": function name, \"parameters\": dictionary of argument name and its value}";
    assert_eq!(name(llama3, &[]), found("llama3-json", false));
    assert_eq!(
        name("<|header_start|> [func_name1(param1=value1), func_name2(...)]", &[]),
        found("llama4-pythonic", false)
    );
    assert_eq!(name("{{ messages }}", &[]), None);
}

#[test]
fn the_prompt_says_where_an_answer_begins() {
    let hermes = Format::bound(known::named("hermes").expect("it is known"), &[]);
    assert!(hermes.starts_in_reasoning("<|im_start|>assistant\n<think>\n", None));
    assert!(!hermes.starts_in_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n", None));
    assert!(!hermes.starts_in_reasoning("what is <think>?<|im_start|>assistant\n", None));
    assert!(hermes.starts_in_reasoning("<think>\nHm, and", Some("<think>\nHm, and")));
    assert!(!hermes.starts_in_reasoning("<think>\nHm.</think>Y", Some("<think>\nHm.</think>Y")));
}

#[test]
fn a_declaration_says_what_is_wrong_with_it() {
    let wrong = |text: &str| Declaration::parse(text).map(|declaration| declaration.name).expect_err(text);
    assert!(wrong("nam = 'x'").contains("nam"));
    assert!(wrong("name = 'x'\n[calls]\nform = { syntax = 'object' }").contains("each_open"));
    assert!(wrong("name = 'x'\n[reasoning]\nopen = ['']\nclose = ['b']").contains("empty"));
    assert!(wrong("name = 'x'\n[calls]\nbare = true\nform = { syntax = 'yaml' }").contains("yaml"));
    assert!(wrong("name = 'x'\n[reasoning]\nopen = []\nclose = ['b']").contains("`open` and `close`"));
}

#[test]
fn special_tokens_in_marks_are_found() {
    let declaration = known::named("deepseek-v3").expect("it is known");
    let specials = [(3, "<｜tool▁sep｜>".to_owned()), (9, "<｜tool▁call▁begin｜>".to_owned()), (1, "<eos>".to_owned())];
    assert_eq!(**Format::bound(declaration, &specials).special_ids(), [3, 9]);
}

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Answer {
    content: String,
    /// Name, arguments, whether it ended.
    calls: Vec<(String, String, bool)>,
}

fn stream<'a>(pieces: impl IntoIterator<Item = &'a str>) -> Answer {
    let mut parser = ToolCallParser::new();
    let mut answer = Answer::default();
    let mut all: Vec<Piece> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    assert_eq!(parser.finish(), [], "nothing is left");
    for piece in all {
        match piece {
            Piece::Content(text) => answer.content.push_str(&text),
            Piece::CallStart { index, name } => {
                assert_eq!(index, answer.calls.len());
                answer.calls.push((name, String::new(), false));
            }
            Piece::CallArguments { index, delta } => {
                assert_eq!(index + 1, answer.calls.len());
                assert!(!delta.is_empty() && !answer.calls[index].2);
                answer.calls[index].1.push_str(&delta);
            }
            Piece::CallEnd { index } => {
                assert_eq!(index + 1, answer.calls.len());
                answer.calls[index].2 = true;
            }
        }
    }
    answer
}

#[track_caller]
fn check(text: &str, content: &str, calls: &[(&str, &str, bool)]) {
    let calls =
        calls.iter().map(|(name, arguments, ended)| (String::from(*name), String::from(*arguments), *ended)).collect();
    let expected = Answer { content: content.to_owned(), calls };
    assert_eq!(stream([text]), expected);
    // Every cut, every pair of cuts.
    let at: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
    for (nth, first) in at.iter().enumerate() {
        for second in &at[nth..] {
            let pieces = [&text[..*first], &text[*first..*second], &text[*second..]];
            assert_eq!(stream(pieces), expected, "cut at {first} and {second}");
        }
    }
}

#[test]
fn content_passes_through() {
    check("", "", &[]);
    check(" Hallo, Wörld \n", " Hallo, Wörld \n", &[]);
    check("a < b <tool <<tool_cal", "a < b <tool <<tool_cal", &[]);
    check("</tool_call> {\"name\":\"f\"}", "</tool_call> {\"name\":\"f\"}", &[]);
}

#[test]
fn a_call_is_taken_out_of_the_content() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"é\": [1, {\"b\": \"}\"}]}}\n</tool_call>";
    let arguments = "{\"é\": [1, {\"b\": \"}\"}]}";
    check(call, "", &[("f", arguments, true)]);
    check(&format!("Let me see. \n\n{call}"), "Let me see.", &[("f", arguments, true)]);
    check(
        &format!("<<tool_call>{{\"name\":\"g\"}}</tool_call>{call}\n"),
        "<",
        &[("g", "{}", true), ("f", arguments, true)],
    );
    check(&format!("{call}\n{call} bye\n"), " bye\n", &[("f", arguments, true), ("f", arguments, true)]);
}

#[test]
fn members_may_come_in_any_order_and_others_are_passed_over() {
    check(
        r#"<tool_call>{"arguments": {"a": 1}, "id": -1.5e3, "name": "f"}</tool_call>"#,
        "",
        &[("f", r#"{"a": 1}"#, true)],
    );
    check(r#"<tool_call> {"type":"function","name":"f\u0041","arguments":{},"x":[{}]}"#, "", &[("fA", "{}", true)]);
    check(
        r#"<tool_call>{"n\u0061me":"f","arguments":{"t":"</tool_call>"}}</tool_call>"#,
        "",
        &[("f", r#"{"t":"</tool_call>"}"#, true)],
    );
}

#[test]
fn arguments_stream_as_they_come() {
    let mut parser = ToolCallParser::new();
    assert_eq!(parser.push("Hm <tool_call>{\"name\": \"f"), [Piece::Content("Hm".into())]);
    assert_eq!(parser.push("\", \"argum"), [Piece::CallStart { index: 0, name: "f".into() }]);
    assert_eq!(parser.push("ents\": {\"a"), [Piece::CallArguments { index: 0, delta: "{\"a".into() }]);
    assert_eq!(
        parser.push("\": 1}}</tool"),
        [Piece::CallArguments { index: 0, delta: "\": 1}".into() }, Piece::CallEnd { index: 0 }]
    );
    assert_eq!(parser.push("_call>"), []);
    assert_eq!(parser.finish(), []);
}

#[test]
fn what_is_no_call_comes_back_as_content() {
    for text in [
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call>get_weather()</tool_call>",
        "\n<tool_call>{\"name\": 5}</tool_call>\n",
        "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call> so",
        "<tool_call>{\"arguments\": \"{}\", \"name\": \"f\"}</tool_call>",
        "<tool_call>{\"arguments\": {\"a\": 01}, \"name\": \"f\"}</tool_call>",
        "<tool_call>[{\"name\": \"f\"}]</tool_call>",
        "<tool_call>{\"name\": \"f",
        "<tool_call>{\"name\": \"\\ud800\"}</tool_call>",
        "  <tool_call>{'name': 'f'}</tool_call>",
    ] {
        check(text, text, &[]);
    }
    check("<tool_call> <tool_call>{\"name\":\"f\"}</tool_call>", "<tool_call> ", &[("f", "{}", true)]);
    check("<tool_call>{\"name\"<tool_call>{\"name\":\"f\"}", "<tool_call>{\"name\"", &[("f", "{}", true)]);
}

#[test]
fn a_call_that_breaks_off_after_it_began_does_not_end() {
    check("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", "", &[("f", "{\"a\": 1", false)]);
    check("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1} x", "x", &[("f", "{\"a\": 1}", false)]);
    check("<tool_call>{\"name\": \"f\", \"arguments\": {a}}\n</tool_call>", "a}}\n</tool_call>", &[("f", "{", false)]);
    check("<tool_call>{\"name\": \"f\", \"arguments\": [1]}", "[1]}", &[("f", "", false)]);
    check("<tool_call>{\"name\": \"f\", \"name\": \"g\"}", "\": \"g\"}", &[("f", "", false)].map(|call| call));
}

#[test]
fn a_missing_or_wrong_end_marker_loses_nothing() {
    check("<tool_call>{\"name\":\"f\"}\n<tool_call>{\"name\":\"g\"}", "", &[("f", "{}", true), ("g", "{}", true)]);
    check("<tool_call>{\"name\":\"f\"}}</tool_call>", "}</tool_call>", &[("f", "{}", true)]);
    check("<tool_call>{\"name\":\"f\"} </tool", " </tool", &[("f", "{}", true)]);
}

#[test]
fn the_form_is_known_by_the_template() {
    let hermes = "...within <tool_call></tool_call> tags:\n<tool_call>\n{\"name\": <n>, \"arguments\": <args-json>}\n</tool_call>";
    assert!(ToolCallParser::detect(hermes));
    assert!(!ToolCallParser::detect("<tool_call>\n<function=name>\n<parameter=arguments>...</tool_call>"));
    assert!(!ToolCallParser::detect("[TOOL_CALLS] {\"name\": ..., \"arguments\": ...}"));
}

proptest! {
    #[test]
    fn where_the_stream_is_cut_makes_no_difference(
        parts in prop::collection::vec(prop_oneof![
            Just("<tool_call>".to_owned()), Just("</tool_call>".to_owned()), Just("{\"name\": \"f\"".to_owned()),
            Just(", \"arguments\": ".to_owned()), Just("{\"ä\": [1, \"}\"]}".to_owned()), Just("}".to_owned()),
            Just("\n".to_owned()), "[<>/tool_ca{}\":,é1 ]{0,4}",
        ], 0..14),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let text = parts.concat();
        let boundaries: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| boundaries[cut.index(boundaries.len())]).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([text.len()]) {
            pieces.push(&text[from..cut]);
            from = cut;
        }
        let answer = stream(pieces);
        prop_assert_eq!(&answer, &stream([text.as_str()]));
        for (name, arguments, ended) in &answer.calls {
            let is_object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(arguments).is_ok();
            prop_assert!(!name.is_empty() && (is_object || !*ended));
        }
    }
}

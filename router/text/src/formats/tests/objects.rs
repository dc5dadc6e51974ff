//! Calls that are JSON objects: as they should be, and as models write them.

use super::*;

/// Of the Hermes form, without the other fields of a call.
#[track_caller]
fn hermes(text: &str, content: &str, calls: &[(&str, &str, bool)]) {
    let call = |(name, arguments, ended): &(&str, &str, bool)| Call {
        name: (*name).to_owned(),
        id: None,
        arguments: (*arguments).to_owned(),
        ended: *ended,
    };
    let calls = calls.iter().map(call).collect();
    check(&parser("hermes"), text, &Answer { content: content.to_owned(), calls, ..Answer::default() }, text);
}

#[test]
fn content_passes_through() {
    hermes("", "", &[]);
    hermes(" Hallo, Wörld \n", " Hallo, Wörld \n", &[]);
    hermes("a < b <tool <<tool_cal", "a < b <tool <<tool_cal", &[]);
    hermes("</tool_call> {\"name\":\"f\"}", "</tool_call> {\"name\":\"f\"}", &[]);
}

#[test]
fn a_call_is_taken_out_of_the_content() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"é\": [1, {\"b\": \"}\"}]}}\n</tool_call>";
    let arguments = "{\"é\": [1, {\"b\": \"}\"}]}";
    hermes(call, "", &[("f", arguments, true)]);
    hermes(&format!("Let me see. \n\n{call}"), "Let me see.", &[("f", arguments, true)]);
    hermes(
        &format!("<<tool_call>{{\"name\":\"g\"}}</tool_call>{call}\n"),
        "<",
        &[("g", "{}", true), ("f", arguments, true)],
    );
    hermes(&format!("{call}\n{call} bye\n"), "bye\n", &[("f", arguments, true), ("f", arguments, true)]);
}

#[test]
fn members_may_come_in_any_order_and_others_are_passed_over() {
    hermes(
        r#"<tool_call>{"arguments": {"a": 1}, "id": -1.5e3, "name": "f"}</tool_call>"#,
        "",
        &[("f", r#"{"a": 1}"#, true)],
    );
    hermes(r#"<tool_call> {"type":"function","name":"f\u0041","arguments":{},"x":[{}]}"#, "", &[("fA", "{}", true)]);
    hermes(
        r#"<tool_call>{"n\u0061me":"f","arguments":{"t":"</tool_call>"}}</tool_call>"#,
        "",
        &[("f", r#"{"t":"</tool_call>"}"#, true)],
    );
}

#[test]
fn arguments_stream_as_they_come() {
    let mut parser = parser("hermes");
    assert_eq!(parser.push("Hm <tool_call>{\"name\": \"f"), [Piece::Content("Hm".into())]);
    assert_eq!(parser.push("\", \"argum"), []);
    let (start, more) = (Piece::CallStart { index: 0, id: None, name: "f".into() }, |delta: &str| {
        Piece::CallArguments { index: 0, delta: delta.into() }
    });
    assert_eq!(parser.push("ents\": {\"a"), [start, more("{\"a")]);
    assert_eq!(parser.push("\": 1"), [more("\": 1")]);
    assert_eq!(parser.push("}"), [more("}"), Piece::CallEnd { index: 0 }]);
    assert_eq!(parser.push("}</tool_call>"), []);
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
        "<tool_call>{\"arguments\": {\"a\": 01}, \"name\": \"f\"}</tool_call>",
        "<tool_call>[{\"name\": 5}]</tool_call>",
        "<tool_call>{\"name\": \"f",
        "<tool_call>{\"name\": \"\\ud800\"}</tool_call>",
        "  <tool_call>{'name': 'f'}</tool_call>",
    ] {
        hermes(text, text, &[]);
    }
    hermes("<tool_call> <tool_call>{\"name\":\"f\"}</tool_call>", "<tool_call> ", &[("f", "{}", true)]);
    hermes("<tool_call>{\"name\"<tool_call>{\"name\":\"f\"}", "<tool_call>{\"name\"", &[("f", "{}", true)]);
}

#[test]
fn a_call_without_arguments_has_empty_ones() {
    for none in [
        r#"{"name": "f", "arguments": null}"#,
        r#"{"arguments": null, "name": "f"}"#,
        r#"{"name": "f"}"#,
        r#"{"name": "f", "arguments": ""}"#,
        r#"{"arguments": " \n", "name": "f"}"#,
        r#"{"name": "f", "arguments": "{}"}"#,
    ] {
        hermes(&format!("Sure. <tool_call>{none}</tool_call> Done"), "Sure.Done", &[("f", "{}", true)]);
    }
}

#[test]
fn arguments_within_a_text_are_read() {
    for (text, arguments) in [
        (r#""{\"a\":1}""#, r#"{"a":1}"#),
        (r#"" {\"a\": \"\\n\\\"\u00e9\ud83d\ude00\"}\n""#, r#"{"a": "\n\"é😀"}"#),
        (r#""{\n  \"a\": [{}]\n}""#, "{\n  \"a\": [{}]\n}"),
        (r#""{\"a\":1} and more""#, r#"{"a":1}"#),
    ] {
        let call = |object: String| format!("Sure. <tool_call>{object}</tool_call> Done");
        hermes(&call(format!(r#"{{"name": "f", "arguments": {text}}}"#)), "Sure.Done", &[("f", arguments, true)]);
        hermes(&call(format!(r#"{{"arguments": {text}, "name": "f"}}"#)), "Sure.Done", &[("f", arguments, true)]);
    }
    let mut parser = parser("hermes");
    let begun = parser.push(r#"<tool_call>{"name": "f", "arguments": "{\"a\": \"b"#);
    assert_eq!(begun[1], Piece::CallArguments { index: 0, delta: r#"{"a": "b"#.into() }, "as they come");
}

#[test]
fn an_object_that_is_no_call_is_text_as_it_was_written() {
    for object in [
        r#"{"name": "f", "arguments": 5}"#,
        r#"{"name": "f", "arguments": [1]}"#,
        r#"{"name": "f", "arguments": "so"}"#,
        r#"{"name": "f", "arguments": nil}"#,
        r#"{"name": "f", "name": "g", "arguments": {"a": 1}}"#,
        r#"{"name": "f", "name": "f"}"#,
        r#"{"name": "f", "arguments": null, "arguments": {"a": 1}}"#,
        r#"{"arguments": {"a": 1}, "arguments": {"a": 2}, "name": "f"}"#,
        r#"{"arguments": "{\"a\": x}", "name": "f"}"#,
        r#"{"arguments": "{\"a\": 1", "name": "f"}"#,
        r#"{"name": "f", "id": 1 "arguments": {}}"#,
        r#"{"name": "f""#,
        r#"{"name": "f", "argum"#,
    ] {
        let text = format!("Sure. \n<tool_call>{object}</tool_call> Done");
        hermes(&text, &text, &[]);
    }
}

#[test]
fn a_call_is_complete_with_its_arguments() {
    for object in [
        r#"{"name": "f", "arguments": {"a": 1}, "name": "g"}"#,
        r#"{"name": "f", "arguments": {"a": 1}, "arguments": {"a": 2}}"#,
        r#"{"arguments": {"a": 1}, "name": "f", "name": 5, "parameters": null}"#,
        // Without the last brace, as small models forget it.
        r#"{"name": "f", "arguments": {"a": 1}"#,
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}\n",
    ] {
        let call = [("f", r#"{"a": 1}"#, true)];
        hermes(&format!("Sure. <tool_call>{object}</tool_call> Done"), "Sure.Done", &call);
        hermes(&format!("<tool_call>{object}"), "", &call);
    }
    let call = [("f", r#"{"a": 1}"#, true)];
    hermes(r#"<tool_call>{"name": "f", "arguments": {"a": 1} x"#, "x", &call);
    hermes(r#"<tool_call>{"name": "f", "arguments": {"a": 1}, well"#, ", well", &call);
    hermes(r#"<tool_call>{"name": "f", "arguments": {"a": 1}, "b"#, "", &call);
}

#[test]
fn a_call_that_goes_wrong_within_its_arguments_is_a_text_too() {
    for (arguments, begun) in
        [("{a}", "{"), (r#""{\ud800}""#, "{"), (r#"{"a": 01}"#, r#"{"a": 0"#), (r#""{\"a\": x}""#, r#"{"a": "#)]
    {
        let text = format!("Sure. <tool_call>{{\"name\": \"f\", \"arguments\": {arguments}}}</tool_call> Done");
        hermes(&text, &text, &[("f", begun, false)]);
    }
    let list = r#"<tool_call>[{"name": "f", "arguments": {"a": ]</tool_call>"#;
    hermes(list, list, &[("f", r#"{"a": "#, false)]);
    let unended = r#"Sure. <tool_call>{"name": "f", "arguments": {"a": 1"#;
    hermes(unended, unended, &[("f", r#"{"a": 1"#, false)]);
}

#[test]
fn of_a_list_only_what_is_no_call_is_text() {
    let first = r#"<tool_call>[{"name": "f", "arguments": {}, "id": 1}"#;
    for second in [r#", {"name": "nobody's"}]</tool_call>"#, r#", {"na"#, ", {", ","] {
        hermes(&format!("{first} {second}"), second, &[("f", "{}", true)]);
    }
    let second = r#", {"name": "g", "arguments": {"a": "#;
    hermes(&format!("{first}{second}"), second, &[("f", "{}", true), ("g", r#"{"a": "#, false)]);
    hermes(first, "", &[("f", "{}", true)]);
    hermes(&format!("{first}\n"), "", &[("f", "{}", true)]);
}

#[test]
fn every_format_of_objects_reads_what_models_make_of_them() {
    for (name, open, close) in [
        ("hermes", "<tool_call>", "</tool_call>"),
        ("ernie-4.5", "<tool_call>", "</tool_call>"),
        ("cohere", "<|START_ACTION|>[", "]<|END_ACTION|>"),
        ("granite", "<|tool_call|>[", "]"),
        ("hunyuan", "<tool_calls>[", "]</tool_calls>"),
        ("jamba", "<tool_calls>[", "]</tool_calls>"),
        ("internlm", "<|action_start|><|plugin|>", "<|action_end|>"),
        ("llama3-json", "", ""),
        ("mistral", "[TOOL_CALLS][", "]"),
        ("phi-4-mini", "functools[", "]"),
        ("xlam", "[", "]"),
    ] {
        let key = if name == "cohere" { "tool_name" } else { "name" };
        let calls = |arguments: &str| {
            let arguments = arguments.to_owned();
            vec![Call { name: "f".to_owned(), id: None, arguments, ended: true }]
        };
        for said in ["arguments", "parameters"] {
            for (value, arguments) in [(r#"{"a":1}"#, r#"{"a":1}"#), ("null", "{}"), (r#""{\"a\":1}""#, r#"{"a":1}"#)] {
                let text = format!("{open}{{\"{key}\": \"f\", \"{said}\": {value}}}{close}");
                let expected = Answer { calls: calls(arguments), ..Answer::default() };
                check(&parser(name), &text, &expected, name);
            }
        }
        let last_brace_missing = format!("{open}{{\"{key}\": \"f\", \"arguments\": {{}}{close}");
        check(&parser(name), &last_brace_missing, &Answer { calls: calls("{}"), ..Answer::default() }, name);
        for wrong in [format!("\"{key}\": \"f\""), "\"arguments\": 5".to_owned()] {
            let text = format!("{open}{{\"{key}\": \"f\", {wrong}, \"arguments\": {{}}}}{close}");
            let expected = Answer { content: text.clone(), ..Answer::default() };
            check(&parser(name), &text, &expected, name);
        }
    }
}

#[test]
fn a_missing_or_wrong_end_marker_loses_nothing() {
    hermes("<tool_call>{\"name\":\"f\"}\n<tool_call>{\"name\":\"g\"}", "", &[("f", "{}", true), ("g", "{}", true)]);
    hermes("<tool_call>{\"name\":\"f\"}}</tool_call>", "}</tool_call>", &[("f", "{}", true)]);
    hermes("<tool_call>{\"name\":\"f\"} </tool x", "</tool x", &[("f", "{}", true)]);
}

#[test]
fn a_mark_behind_a_call_that_is_cut_with_the_answer_is_not_shown() {
    for cut in ["<", " </tool", "\n</tool_call", "</tool_call>\n<tool_"] {
        hermes(&format!("<tool_call>{{\"name\":\"f\"}}{cut}"), "", &[("f", "{}", true)]);
    }
    hermes("a <tool_", "a <tool_", &[]);
    hermes("<tool_call>{\"name\": \"f\", \"argum", "<tool_call>{\"name\": \"f\", \"argum", &[]);
    hermes("<tool_call>{\"na", "<tool_call>{\"na", &[]);
}

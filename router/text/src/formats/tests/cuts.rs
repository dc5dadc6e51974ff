//! Answers that end too early: what is told, what is held, and what is dropped.

use super::*;

/// All beginnings of a text, as a detokeniser shows them: a character that was cut is broken, as one or byte for byte.
fn cuts(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (at, c) in text.char_indices() {
        all.push(text[..at].to_owned());
        all.extend((1..c.len_utf8()).map(|count| text[..at].to_owned() + &"\u{fffd}".repeat(count)));
    }
    all.push(text.to_owned());
    all
}

#[test]
fn a_cut_answer_of_calls_alone_shows_none_of_their_marks_in_any_format() {
    let of_calls = |example: &Example| example.content.is_empty() && example.calls.iter().any(|call| call.ended);
    for (name, example) in examples().filter(|(_, example)| of_calls(example)) {
        let specials: Vec<(u32, String)> = (7..).zip(example.special).collect();
        let format = Format::bound(known::named(&name).expect("it is known"), &specials);
        let (starts_in_reasoning, tools) = (example.starts_in_reasoning, Some(tools()));
        let reading = Reading { starts_in_reasoning, tools, certain: Certain::All, ..Reading::default() };
        for begun in cuts(&example.text) {
            let (begun, what) = (&*begun, format!("{name}, {}", example.says));
            let cut = |texts: &[&str]| {
                let (mut parser, mut answer) = (format.parser(reading.clone()), Answer::default());
                texts.iter().flat_map(|text| parser.push(text)).for_each(|piece| answer.add(piece));
                parser.cut().into_iter().for_each(|piece| answer.add(piece));
                assert_eq!(parser.finish(), [], "nothing is left: {what}, cut to {begun:?}");
                answer
            };
            let answer = cut(&[begun]);
            let each: Vec<String> = begun.chars().map(String::from).collect();
            assert_eq!(cut(&each.iter().map(String::as_str).collect::<Vec<_>>()), answer, "{what}: {begun:?}");
            assert_eq!(answer.content, "", "{what}, cut to {begun:?}");
            for (call, whole) in answer.calls.iter().zip(&example.calls) {
                assert_eq!(call.name, whole.name, "{what}, cut to {begun:?}");
                assert!(!call.ended || call.arguments == whole.arguments, "{what}, cut to {begun:?}: {call:?}");
            }
        }
    }
}

#[test]
fn a_call_that_is_not_complete_when_the_model_ends_is_a_text_too_in_every_format() {
    let is_whole = |example: &Example| example.special.is_empty() && example.calls.iter().all(|call| call.ended);
    for (name, example) in examples().filter(|(_, example)| is_whole(example)) {
        let format = Format::bound(known::named(&name).expect("it is known"), &[]);
        let (starts_in_reasoning, tools) = (example.starts_in_reasoning, Some(tools()));
        let reading = Reading { starts_in_reasoning, tools, ..Reading::default() };
        for begun in boundaries(&example.text).into_iter().map(|at| &example.text[..at]) {
            let mut parser = format.parser(reading.clone());
            let (mut cut, mut whole) = (Answer::default(), Answer::default());
            parser.push(begun).into_iter().for_each(|piece| cut.add(piece));
            let mut other = parser.clone();
            whole.clone_from(&cut);
            parser.cut().into_iter().for_each(|piece| cut.add(piece));
            other.finish().into_iter().for_each(|piece| whole.add(piece));
            let Some(last) = cut.calls.last().filter(|call| !call.ended) else { continue };
            let what = format!("{name}, {}: {begun}", example.says);
            assert_eq!(whole.calls, cut.calls, "{what}");
            let text = whole.content.strip_prefix(&cut.content).expect("all of it");
            // The header of a channel is no text.
            let said = if name == "harmony" { &last.arguments } else { &last.name };
            assert!(text.contains(said.as_str()) && begun.ends_with(text.trim_start()), "{what}: {text}");
        }
    }
}

#[test]
fn white_space_behind_a_call_belongs_to_it_in_every_format() {
    let is_calls = |example: &Example| {
        example.content.is_empty() && !example.calls.is_empty() && example.calls.iter().all(|call| call.ended)
    };
    for (name, example) in examples().filter(|(name, example)| is_calls(example) && name != "harmony") {
        let specials: Vec<(u32, String)> = (7..).zip(example.special).collect();
        let format = Format::bound(known::named(&name).expect("it is known"), &specials);
        let tools = Some(tools());
        let parser =
            format.parser(Reading { starts_in_reasoning: example.starts_in_reasoning, tools, ..Reading::default() });
        let Example { reasoning, calls, .. } = example;
        let expected = Answer { reasoning, content: "Behind. \n it\n".to_owned(), calls };
        check(&parser, &format!("{} \n Behind. \n it\n", example.text), &expected, &name);
    }
}

#[test]
fn a_call_whose_end_is_misspelt_is_a_text_too() {
    let call = |name: &str, arguments: &str| {
        vec![Call { name: name.to_owned(), id: None, arguments: arguments.to_owned(), ended: false }]
    };
    let dsml = r#"I look.

<｜DSML｜function_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">5</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">[1, 2]</｜DS"L｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls> 

more text"#;
    let seed = "<seed:tool_call>\n<function=get_weather>\n<parameter=city>x</paramXter>\n</function>\n</seed:tool_call>\nMore.";
    let seed_calls = call("get_weather", r#"{"city": "x</paramXter>\n</function>\n</seed:tool_call>\nMore."#);
    let harmony = "<|channel|>commentary to=functions.f<|message|>{\"a\": [<|call|>";
    for (name, text, content, calls) in [
        ("deepseek-v3.2", dsml, dsml, call("get_weather", r#"{"city": "5""#)),
        ("seed-oss", seed, seed, seed_calls),
        ("harmony", harmony, "{\"a\": [", call("f", "{\"a\": [")),
    ] {
        check(&parser(name), text, &Answer { content: content.to_owned(), calls, ..Answer::default() }, name);
    }
}

#[test]
fn beside_a_text_the_beginning_of_a_call_is_dropped_where_it_can_be_nothing_else() {
    let shown = |name: &str, certain: Certain, text: &str| {
        let format = Format::bound(known::named(name).expect("it is known"), &[]);
        let mut parser = format.parser(Reading { tools: Some(tools()), certain, ..Reading::default() });
        let mut answer = Answer::default();
        parser.push(text).into_iter().chain(parser.cut()).for_each(|piece| answer.add(piece));
        answer.content
    };
    for (text, free, first, marked, all) in [
        ("<tool_call>\n{\"na", "<tool_call>\n{\"na", "", "", ""),
        ("Hm. <tool_call>\n{\"na", "Hm. <tool_call>\n{\"na", "Hm. <tool_call>\n{\"na", "Hm.", "Hm."),
        ("Hm. <tool_", "Hm. <tool_", "Hm. <tool_", "Hm. <tool_", "Hm."),
        ("Hm.", "Hm.", "Hm.", "Hm.", "Hm."),
        ("<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_", "", "", "", ""),
        ("<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>\n{\"na", "<tool_call>\n{\"na", "", "", ""),
    ] {
        let of = [Certain::Nothing, Certain::First, Certain::Marked, Certain::All].map(|c| shown("hermes", c, text));
        assert_eq!(of, [free, first, marked, all], "{text}");
    }
    assert_eq!(shown("llama3-json", Certain::Marked, "{\"na"), "");
    assert_eq!(shown("llama3-json", Certain::Nothing, "{\"na"), "{\"na");
    // A call is none before its arguments.
    let header = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>";
    for certain in [Certain::Nothing, Certain::All] {
        let format = Format::bound(known::named("harmony").expect("it is known"), &[]);
        let mut parser = format.parser(Reading { tools: Some(tools()), certain, ..Reading::default() });
        assert_eq!((parser.push(&format!("{header}\n")), parser.cut(), parser.finish()), (vec![], vec![], vec![]));
    }
    // Within a character of a mark.
    let call = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```\n";
    for broken in ["\u{fffd}", "\u{fffd}\u{fffd}"] {
        for certain in [Certain::Nothing, Certain::First, Certain::Marked, Certain::All] {
            assert_eq!(shown("deepseek-v3", certain, &format!("{call}<｜tool{broken}")), "");
        }
        let text = format!("Hm. <｜tool{broken}");
        assert_eq!(shown("deepseek-v3", Certain::Nothing, &text), text);
        assert_eq!(shown("deepseek-v3", Certain::All, &text), "Hm.");
        let text = format!("{call}<{broken}\u{fffd}\u{fffd}");
        assert_eq!(shown("deepseek-v3", Certain::Nothing, &text), text[call.len()..], "no character has so many");
    }
}

#[test]
fn the_beginning_of_a_mark_that_was_forced_is_no_thought() {
    let thought = |name: &str, text: &str| {
        let format = Format::bound(known::named(name).expect("it is known"), &[]);
        let mut parser = format.parser(Reading { starts_in_reasoning: true, ..Reading::default() });
        let mut answer = Answer::default();
        parser.push(text).into_iter().for_each(|piece| answer.add(piece));
        parser.drop_close();
        parser.cut().into_iter().for_each(|piece| answer.add(piece));
        (answer.reasoning, answer.content)
    };
    for (name, text, reasoning, content) in [
        ("hermes", "a < b\n</thin", "a < b", ""),
        ("hermes", "a <", "a", ""),
        ("hermes", "</thi", "", ""),
        ("hermes", "a\n<thin", "a\n<thin", ""),
        ("hermes", "a\n", "a\n", ""),
        ("hermes", "a</think>b </thin", "a", "b </thin"),
        ("gemma-4", "a<chan\u{fffd}", "a<chan\u{fffd}", ""),
        ("harmony", "<|channel|>analysis<|message|>a<|en", "a", ""),
        ("harmony", "<|channel|>final<|message|>a<|en", "", "a<|en"),
    ] {
        assert_eq!(thought(name, text), (reasoning.to_owned(), content.to_owned()), "{name}: {text}");
    }
    let declaration = Declaration::parse("name = 'x'\n[reasoning]\nopen = ['◁t▷']\nclose = ['◁/t▷']").expect("right");
    let mut parser =
        Format::bound(&declaration, &[]).parser(Reading { starts_in_reasoning: true, ..Reading::default() });
    assert_eq!(parser.push("a◁/t\u{fffd}"), [Piece::Reasoning("a".to_owned())]);
    parser.drop_close();
    assert_eq!(parser.cut(), []);
}

#[test]
fn what_is_held_back_is_known() {
    let dsml = "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"";
    for (name, text, is_holding) in [
        ("hermes", "", false),
        ("hermes", "a", false),
        ("hermes", "a ", true),
        ("hermes", "a <", true),
        ("hermes", "a\u{fffd}", true),
        ("hermes", "<think>", false),
        ("hermes", "<think>\n", false),
        ("hermes", "<think>a", false),
        ("hermes", "<think>a\n", true),
        ("hermes", "<think>a\n</think>\n", false),
        ("hermes", "<tool_call>", true),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": ", true),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a", false),
        ("hermes", "<tool_call>{\"arguments\": {}", true),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\", true),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"", false),
        ("hermes", "<tool_call>{\"name\": \"f\"}</tool_call>", false),
        ("hermes", "<tool_call>{\"name\": \"f\"}</tool_call>\n", false),
        ("hermes", "<tool_call>[{\"name\": \"f\"}\n", false),
        ("hermes", "<tool_call>[{\"name\": \"f\"}, {", true),
        // The first one never ends.
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {a}} <tool_call>{", true),
        ("llama3-json", "{\"name", true),
        ("llama3-json", "{\"name\": 5", false),
        ("deepseek-v3.2", &dsml[..dsml.len() - 20], true),
        ("deepseek-v3.2", &format!("{dsml}true\">a"), false),
        ("deepseek-v3.2", &format!("{dsml}true\">a\n"), true),
        ("deepseek-v3.2", &format!("{dsml}false\">1"), true),
        ("deepseek-v3.2", &format!("{dsml}false\">1</｜DSML｜parameter>\n"), false),
        ("olmo-3", "<function_calls>f(a", true),
        ("harmony", "<|channel|>analysis", false),
        ("harmony", "<|channel|>analysis<|message|>a", false),
        ("harmony", "<|channel|>commentary to=functions.f", true),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>", true),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>{\"a", false),
        ("harmony", "<|channel|>final<|message|>a<|", true),
    ] {
        let mut parser = parser(name);
        parser.push(text);
        assert_eq!(parser.is_holding(), is_holding, "{name}: {text}");
    }
}

#[test]
fn marks_within_a_text_that_a_grammar_draws_mean_nothing_in_any_format() {
    let marks = [
        "</response>",
        "<response>",
        "</answer>",
        "<|END_RESPONSE|>",
        "<|START_THINKING|>",
        "[THINK]",
        "<think>",
        "</think>",
        "<|channel>thought",
        "<|channel|>analysis",
        "<|start|>",
        "<|message|>",
        "<|end|>",
        "<tool_call>",
        "[TOOL_CALLS]",
    ];
    for name in known::names() {
        let declaration = known::named(name).expect("it is known");
        for specials in [vec![], marks.iter().zip(7..).map(|(mark, id)| (id, (*mark).to_owned())).collect()] {
            let format = Format::bound(declaration, &specials);
            for mark in marks {
                for has_tools in [false, true] {
                    let tools = has_tools.then(|| Arc::new(Tools::new(&[json!({ "function": { "name": "f" } })])));
                    let reading = Reading { tools, has_form: true, ..Reading::default() };
                    let document = format!("{{\"a\": \"x{mark}y\", \"b\": \"{mark}\"}}");
                    let thoughts = format.reasoning_marks().map(|(open, close)| format!("{open}Hm.{close}"));
                    let behind = format.mark_behind_reasoning().unwrap_or_default();
                    let header = format.content_mark().unwrap_or_default();
                    for thoughts in thoughts.into_iter().chain([String::new()]) {
                        let behind = if thoughts.is_empty() { "" } else { behind };
                        let answer =
                            stream(format.parser(reading.clone()), [&*format!("{thoughts}{behind}{header}{document}")]);
                        assert_eq!(
                            (answer.content.trim(), answer.calls.len()),
                            (document.as_str(), 0),
                            "{name}: {mark}"
                        );
                        assert_eq!(
                            answer.reasoning.trim(),
                            if thoughts.is_empty() { "" } else { "Hm." },
                            "{name}: {mark}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_text_without_an_end_in_a_parameter_takes_no_other_one_where_nothing_draws_it() {
    let properties = json!({ "list": { "type": "array" }, "n": { "type": "integer" } });
    let tool = json!({ "function": { "name": "f", "parameters": { "properties": properties } } });
    let reading = Reading { tools: Some(Arc::new(Tools::new(&[tool]))), ..Reading::default() };
    let format = Format::bound(known::named("glm-4.5").expect("it is known"), &[]);
    let text = "<tool_call>f\n<arg_key>list</arg_key>\n<arg_value>[\"a, b]</arg_value>\n\
                <arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>";
    let answer = stream(format.parser(reading), [text]);
    assert_eq!(answer.calls.len(), 1);
    let arguments: serde_json::Value = serde_json::from_str(&answer.calls[0].arguments).expect("JSON");
    assert_eq!(arguments, json!({ "list": "[\"a, b]", "n": 5 }));
}

#[test]
fn a_header_or_a_name_without_an_end_costs_no_more_than_its_length_and_names_nothing() {
    let text = |pieces: Vec<Piece>| {
        pieces.into_iter().map(|piece| match piece {
            Piece::Content(text) => text,
            other => panic!("{other:?}"),
        })
    };
    // Looked at from its beginning for each character, this would take hours.
    let long = "a ".repeat(1 << 20);
    let mut harmony = parser("harmony");
    let mut pieces = Vec::new();
    for piece in ["<|channel|>commentary to=functions.", &long, "<|message|>{}<|call|>"] {
        for c in piece.chars() {
            pieces.extend(harmony.push(&c.to_string()));
            let _ = (harmony.is_holding(), harmony.is_reasoning());
        }
    }
    pieces.extend(harmony.finish());
    assert_eq!(text(pieces).collect::<String>(), "{}");
    // A name that is cut is not the function of which it has the beginning.
    for before in 900..1100 {
        let mut harmony = parser("harmony");
        let pieces = harmony.push(&format!("<|channel|>{} to=functions.fa<|message|>{{}}", "x".repeat(before)));
        assert!(!pieces.iter().any(|piece| matches!(piece, Piece::CallStart { .. })), "{before}");
    }
    for (name, open) in [("mistral", "[TOOL_CALLS]"), ("kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>")] {
        let mut named = parser(name);
        let mut pieces = named.push(open);
        for c in ["f", &" ".repeat(1 << 20)].concat().chars() {
            pieces.extend(named.push(&c.to_string()));
        }
        pieces.extend(named.finish());
        assert!(text(pieces).collect::<String>().trim_end().ends_with('f'), "{name}");
    }
}

#[test]
fn a_message_that_is_continued_has_its_white_space() {
    let format = Format::bound(known::named("harmony").expect("it is known"), &[]);
    for (starts_in_reasoning, content, reasoning) in [(false, " 42\nyes", ""), (true, "yes", " 42")] {
        let reading = Reading { starts_in_reasoning, is_continued: true, ..Reading::default() };
        let text = " 42<|end|><|start|>assistant<|channel|>final<|message|>yes";
        let answer = stream(format.parser(reading), [text]);
        assert_eq!((answer.content.as_str(), answer.reasoning.as_str()), (content, reasoning));
    }
}

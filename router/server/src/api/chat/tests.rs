//! Chats: requests as clients send them, and streams against whole answers.

use bytes::BytesMut;
use pelton_engine::{TokenLogprobs, Usage as AnswerUsage};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    api::{
        StreamOptions,
        logprobs::ChatLogprobs,
        read_events,
        stream::{Events as _, Head},
    },
    generate::{
        CallPiece, Delta, Drawn, Ending, Finish, Part, PreparedPrompt, Said, StopCause, Sum, ThoughtLimit, TokenKind,
        testing::tokenizer,
    },
};

fn refused(fields: &str) -> String {
    let body = format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"hi\"}}]{fields}}}");
    match ChatRequest::read(body.as_bytes()) {
        Ok(_) => String::new(),
        Err(
            ApiError::Invalid { param, .. }
            | ApiError::Missing { param, .. }
            | ApiError::NotServed { param, .. }
            | ApiError::Conflict { param, .. }
            | ApiError::Unknown { param, .. },
        ) => param,
        Err(other) => other.to_string(),
    }
}

#[test]
fn a_needed_field_by_a_wrong_name_is_told_by_that_name() {
    for (body, expected) in [
        (r#"{"mesages": []}"#, "`mesages` is not a parameter of this request; did you mean `messages`?"),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "text", "txt": "a"}]}]}"#,
            "`messages[0].content[0].txt` is not a parameter of this request; did you mean `text`?",
        ),
        (r#"{"colour": 1}"#, "`messages` is missing; it must be a list of at least one message"),
    ] {
        let told = ChatRequest::read(body.as_bytes()).map(drop).expect_err("it is wrong").to_string();
        assert_eq!(told, expected, "{body}");
    }
}

#[test]
fn a_wrong_field_is_named() {
    for (fields, expected) in [
        (r#", "top_logprobs": 2"#, "top_logprobs"),
        (r#", "logprobs": 5"#, "logprobs"),
        (r#", "max_completion_tokens": "x""#, "max_completion_tokens"),
        (r#", "max_tokens": 5, "max_completion_tokens": 6"#, "max_tokens"),
        (r#", "reasoning_effort": "huge""#, "reasoning_effort"),
        (r#", "verbosity": "terse""#, "verbosity"),
        (r#", "chat_template_kwargs": []"#, "chat_template_kwargs"),
        (r#", "chat_template": ["{{ x }}"]"#, "chat_template"),
        (r#", "continue_final_message": true, "add_generation_prompt": true"#, "continue_final_message"),
        (r#", "continue_final_message": true"#, "continue_final_message"),
        (r#", "documents": ["a"]"#, "documents[0]"),
        (r#", "tool_choice": "always", "tools": [{"type": "function", "function": {"name": "f"}}]"#, "tool_choice"),
        (r#", "response_format": {"type": "json_schema"}"#, "response_format.json_schema"),
        (r#", "audio": {"voice": "x"}"#, "audio"),
        (r#", "service_tier": "turbo""#, "service_tier"),
        (r#", "stream": true, "stream_interval": 0"#, "stream_interval"),
        (r#", "stream": true, "stream_interval": 1.5"#, "stream_interval"),
        (r#", "stream_interval": 2"#, "stream_interval"),
        (r#", "return_weight_versions": true"#, "return_weight_versions"),
        (r#", "ec_transfer_params": {}"#, "ec_transfer_params"),
        (r#", "prompt": "hi""#, "prompt"),
        (r#", "temprature": 0"#, "temprature"),
    ] {
        assert_eq!(refused(fields), expected, "{fields}");
    }
}

#[test]
fn what_the_official_clients_send_passes() {
    for fields in [
        "",
        r#", "model": "demo", "stream": true, "stream_options": {"include_usage": true}"#,
        r#", "logprobs": true, "top_logprobs": 3, "n": 2, "seed": 1, "stop": ["a", "b"], "user": "me", "store": false"#,
        r#", "logprobs": false, "top_logprobs": 0, "parallel_tool_calls": true, "response_format": {"type": "text"}"#,
        r#", "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "strict": true}}]"#,
        r#", "response_format": {"type": "json_object"}"#,
        r#", "max_completion_tokens": 5, "max_tokens": 5"#,
        r#", "max_completion_tokens": 5, "metadata": {}, "service_tier": "auto", "reasoning_effort": "low""#,
    ] {
        assert_eq!(refused(fields), "", "{fields}");
    }
}

#[test]
fn reasoning_effort_is_a_variable_of_the_template() {
    // B:A3
    let body = json!({ "messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low",
                       "chat_template_kwargs": {"enable_thinking": false} });
    let read = ChatRequest::read(body.to_string().as_bytes()).expect("valid");
    let Prompt::Chat { input, .. } = &read.request.prompts[0] else { panic!("a chat") };
    assert_eq!(Value::Object(input.kwargs.clone()), json!({ "enable_thinking": false, "reasoning_effort": "low" }));
}

#[test]
fn reasoning_effort_switches_thinking_unless_the_request_does() {
    let kwargs = |fields: Value| {
        let mut body = json!({ "messages": [{"role": "user", "content": "hi"}] });
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let read = ChatRequest::read(body.to_string().as_bytes()).expect("valid");
        let Prompt::Chat { input, .. } = &read.request.prompts[0] else { panic!("a chat") };
        Value::Object(input.kwargs.clone())
    };
    let on = json!({ "reasoning_effort": "high", "enable_thinking": true, "thinking": true });
    assert_eq!(kwargs(json!({ "reasoning_effort": "high" })), on);
    let off = json!({ "reasoning_effort": "none", "enable_thinking": false, "thinking": false });
    assert_eq!(kwargs(json!({ "reasoning_effort": "none" })), off);
    let said = json!({ "reasoning_effort": "none", "chat_template_kwargs": { "thinking": true } });
    assert_eq!(kwargs(said), json!({ "reasoning_effort": "none", "thinking": true }));
    assert_eq!(kwargs(json!({})), json!({}));
}

#[test]
fn verbosity_is_told_to_the_template() {
    let read = |fields: &str| {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": "hi"}}]{fields}}}"#);
        let read = ChatRequest::read(body.as_bytes()).expect("valid");
        let Prompt::Chat { input, .. } = &read.request.prompts[0] else { panic!("a chat") };
        input.verbosity.clone()
    };
    assert_eq!(read(r#", "verbosity": "low""#).as_deref(), Some("low"));
    assert_eq!(read(r#", "verbosity": null"#), None);
}

#[test]
fn a_budget_of_thoughts_has_two_names() {
    let read = |fields: &str| {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": "hi"}}], {fields}}}"#);
        ChatRequest::read(body.as_bytes()).map(|read| read.request.options.thoughts).map_err(|error| error.to_string())
    };
    for (fields, tokens) in [
        (r#""thinking_token_budget": 7"#, Some((7, "thinking_token_budget"))),
        (r#""thinking_token_budget": 0"#, Some((0, "thinking_token_budget"))),
        (r#""thinking_budget": 7, "thinking_token_budget": null"#, Some((7, "thinking_budget"))),
        (r#""thinking_token_budget": -1"#, None),
    ] {
        let expected = tokens.map(|(tokens, param)| ThoughtLimit { tokens, param: param.to_owned() });
        assert_eq!(read(fields), Ok(expected), "{fields}");
    }
    for (fields, expected) in [
        (
            r#""thinking_token_budget": -2"#,
            "`thinking_token_budget` is -2; allowed: -1 (no limit), or an integer from 0 to 4294967295",
        ),
        (
            r#""thinking_budget": 4294967296"#,
            "`thinking_budget` is 4294967296; allowed: -1 (no limit), or an integer from 0 to 4294967295",
        ),
        (
            r#""thinking_token_budget": -1, "thinking_budget": 1"#,
            "`thinking_budget` cannot go together with `thinking_token_budget`, which says the same",
        ),
    ] {
        assert_eq!(read(fields), Err(expected.to_owned()), "{fields}");
    }
}

/// A token of thoughts, then one of the answer.
fn thoughtful() -> Vec<Delta> {
    let thought = Drawn { kind: TokenKind::Reasoning, ..drawn(66) };
    let mut deltas = answer(0, &["Hi".to_owned()], false);
    deltas.insert(
        0,
        Delta { said: Said::of([Part::Thought("Hm.".to_owned())]), tokens: vec![thought], ..Delta::default() },
    );
    let finish = deltas.last_mut().and_then(|delta| delta.finish.as_mut()).expect("an end");
    finish.reasoning_tokens = Some(1);
    deltas
}

#[test]
fn a_chunk_has_one_part_of_a_call_and_chunks_keep_the_order() {
    let start = |index: usize| Part::Call(CallPiece::Start { index, id: index.to_string(), name: "f".into() });
    let arguments = |index: usize| Part::Call(CallPiece::Arguments { index, delta: "{}".into() });
    let parts = [
        Part::Thought("Hm.".into()),
        Part::Text("a".into()),
        start(0),
        arguments(0),
        Part::Text("b".into()),
        start(1),
        arguments(1),
    ];
    let delta = Delta { said: Said::of(parts), tokens: vec![drawn(65)], ..Delta::default() };
    let (mut events, mut out) = (ChatEvents::new(form(true, 1), StreamOptions::default()), BytesMut::new());
    events.deltas(vec![delta], &mut out);
    let text = String::from_utf8(out.to_vec()).expect("UTF-8");
    let chunk =
        |line: &str| -> Value { serde_json::from_str(line.strip_prefix("data: ").expect("an event")).expect("JSON") };
    let told: Vec<(Value, Value, usize)> = text
        .split_terminator("\n\n")
        .skip(1) // the role
        .map(|line| {
            let choice = &chunk(line)["choices"][0];
            let delta = &choice["delta"];
            let calls = delta["tool_calls"].as_array().map_or(0, Vec::len);
            (delta["reasoning"].clone(), delta["content"].clone(), calls)
        })
        .collect();
    let of = |thought: Option<&str>, text: Option<&str>, calls| (json!(thought), json!(text), calls);
    let expected = [of(Some("Hm."), Some("a"), 1), of(None, None, 1), of(None, Some("\nb"), 1), of(None, None, 1)];
    assert_eq!(told, expected);
}

fn told_usage() -> StreamOptions {
    StreamOptions { include_usage: true, ..StreamOptions::default() }
}

fn whole_of(form: &ChatForm, deltas: Vec<Delta>) -> Value {
    let mut sum = Sum::default();
    deltas.into_iter().for_each(|delta| sum.add(delta));
    serde_json::to_value(form.whole(vec![sum.whole()])).expect("plain")
}

#[test]
fn reasoning_has_both_names_that_clients_read() {
    let shown = whole_of(&form(true, 1), thoughtful());
    let message = json!({ "role": "assistant", "content": "Hi", "reasoning": "Hm.", "reasoning_content": "Hm.", "refusal": null });
    assert_eq!(shown["choices"][0]["message"], message);
    assert_eq!(shown["choices"][0]["token_ids"], json!([66, 65]));
    assert_eq!(shown["usage"]["completion_tokens_details"], json!({ "reasoning_tokens": 1 }));
    let mut events = ChatEvents::new(form(false, 1), told_usage());
    let mut out = BytesMut::new();
    events.deltas(thoughtful(), &mut out);
    events.end(&mut out);
    let chunks = read_events(&out);
    assert_eq!(chunks[1]["choices"][0]["delta"], json!({ "reasoning": "Hm.", "reasoning_content": "Hm." }));
    assert_eq!(chunks[2]["choices"][0]["delta"], json!({ "content": "Hi" }));
    assert_eq!(chunks.last().expect("one")["usage"], shown["usage"]);
}

#[test]
fn the_chunk_that_tells_the_role_counts_no_token() {
    let options = StreamOptions { continuous_usage: true, ..StreamOptions::default() };
    let (mut events, mut out) = (ChatEvents::new(form(false, 1), options), BytesMut::new());
    events.deltas(thoughtful(), &mut out);
    events.end(&mut out);
    let counts: Vec<Value> =
        read_events(&out).iter().map(|chunk| chunk["usage"]["completion_tokens"].clone()).collect();
    assert_eq!(counts[0], 0, "{counts:?}");
    assert_ne!(counts[1], 0, "{counts:?}");
}

#[test]
fn reasoning_that_is_not_asked_for_is_left_out_with_its_tokens() {
    let silent = || ChatForm { include_reasoning: false, ..form(true, 1) };
    let shown = whole_of(&silent(), thoughtful());
    assert_eq!(shown["choices"][0]["message"], json!({ "role": "assistant", "content": "Hi", "refusal": null }));
    assert_eq!(shown["choices"][0]["token_ids"], json!([65]));
    assert_eq!(shown["choices"][0]["logprobs"]["content"].as_array().map(Vec::len), Some(1));
    assert_eq!(shown["usage"]["completion_tokens_details"], json!({ "reasoning_tokens": 1 }));
    let mut events = ChatEvents::new(silent(), StreamOptions::default());
    let mut out = BytesMut::new();
    events.deltas(thoughtful(), &mut out);
    events.end(&mut out);
    assert!(read_events(&out).iter().all(|chunk| chunk["choices"][0]["delta"].get("reasoning").is_none()));
    let body = json!({ "messages": [{"role": "user", "content": "hi"}], "include_reasoning": false });
    assert!(!ChatRequest::read(body.to_string().as_bytes()).expect("valid").include_reasoning);
}

#[test]
fn an_answer_that_never_stopped_thinking_has_no_content() {
    let mut deltas = thoughtful();
    deltas.remove(1);
    assert_eq!(whole_of(&form(false, 1), deltas)["choices"][0]["message"]["content"], Value::Null);
}

#[test]
fn a_call_of_the_function_that_was_named_ends_with_stop() {
    for (is_named, expected) in [(true, "stop"), (false, "tool_calls")] {
        let named = || ChatForm { is_named, ..form(false, 1) };
        let deltas = answer(0, &[], true);
        assert_eq!(whole_of(&named(), deltas.clone())["choices"][0]["finish_reason"], expected);
        let (mut events, mut out) = (ChatEvents::new(named(), StreamOptions::default()), BytesMut::new());
        events.deltas(deltas, &mut out);
        events.end(&mut out);
        assert_eq!(read_events(&out).last().expect("one")["choices"][0]["finish_reason"], expected);
    }
}

#[test]
fn a_tier_that_was_asked_for_is_told_as_it_was_served() {
    let read = |fields: &str| {
        let body = format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"hi\"}}]{fields}}}");
        ChatRequest::read(body.as_bytes()).expect("valid").tells_tier
    };
    assert!(!read("") && !read(r#", "service_tier": null"#));
    for word in ["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] {
        assert!(read(&format!(r#", "service_tier": "{word}""#)), "{word}");
    }
    let tiered = ChatForm { service_tier: Some("default"), ..form(false, 1) };
    assert_eq!(whole_of(&tiered, thoughtful())["service_tier"], "default");
    let (mut events, mut out) = (ChatEvents::new(tiered, told_usage()), BytesMut::new());
    events.deltas(thoughtful(), &mut out);
    events.end(&mut out);
    assert!(read_events(&out).iter().all(|chunk| chunk["service_tier"] == "default"));
}

#[test]
fn an_error_names_the_field_as_the_client_did() {
    let body = json!({ "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 0, "logprobs": true });
    let read = ChatRequest::read(body.to_string().as_bytes()).expect("the types are right");
    let renamed = |param: &str| match read.renamed(ApiError::invalid(param, "x", "y")) {
        ApiError::Invalid { param, .. } => param,
        other => panic!("{other}"),
    };
    assert_eq!(renamed("max_tokens"), "max_completion_tokens");
    assert_eq!(renamed("logprobs"), "top_logprobs");
    assert_eq!(renamed("top_p"), "top_p");
}

fn form(has_logprobs: bool, answers: usize) -> ChatForm {
    let head = Head {
        id: "chatcmpl-1".into(),
        object: "chat.completion",
        created: 1,
        model: "demo".into(),
        system_fingerprint: None,
    };
    let prompt = PreparedPrompt { ids: [1, 2, 3].into(), embeds: None, text: Some("asked".to_owned()), chat: None };
    ChatForm {
        head,
        tokenizer: tokenizer(),
        has_logprobs,
        prompt_logprobs: None,
        shown: ShownTokens { ids: true, ..ShownTokens::default() },
        echoed: String::new(),
        include_reasoning: true,
        service_tier: None,
        is_named: false,
        prompt,
        answers,
    }
}

fn drawn(token: u32) -> Drawn {
    let logprobs = TokenLogprobs { chosen: -0.5, top: vec![(token, -0.5), (0xC3, f32::NEG_INFINITY)] };
    Drawn { token, text_offset: 0, logprobs: Some(Box::new(logprobs)), kind: TokenKind::Text, said: 0 }
}

/// One answer's deltas: a token each, text that may be held back, a call, the end.
fn answer(choice: usize, texts: &[String], has_call: bool) -> Vec<Delta> {
    let mut deltas: Vec<Delta> = texts
        .iter()
        .map(|text| Delta { choice, said: Said::text(text), tokens: vec![drawn(65)], ..Delta::default() })
        .collect();
    if has_call {
        let start = CallPiece::Start { index: 0, id: "call_1".into(), name: "f".into() };
        let arguments = |delta: &str| CallPiece::Arguments { index: 0, delta: delta.into() };
        for calls in [vec![start, arguments("{\"a\"")], vec![arguments(": 1}")]] {
            let said = Said::of(calls.into_iter().map(Part::Call));
            deltas.push(Delta { choice, said, tokens: vec![drawn(66)], ..Delta::default() });
        }
    }
    let completion = u32::try_from(deltas.len()).expect("short");
    let usage = AnswerUsage { prompt: 3, cached: 2, completion };
    let finish = Some(Finish {
        ending: Ending::Stop(StopCause::EndOfText),
        has_calls: has_call,
        usage,
        reasoning_tokens: None,
        explanation: None,
    });
    deltas.push(Delta { choice, finish, ..Delta::default() });
    deltas
}

/// What a client puts together from a stream's chunks.
fn put_together(chunks: &[Value], choice: usize) -> Value {
    let (mut content, mut calls, mut tokens, mut logprobs) = (String::new(), Vec::<Value>::new(), vec![], vec![]);
    let mut reason = Value::Null;
    let of_choice = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("a list"));
    for part in of_choice.filter(|part| part["index"] == choice) {
        let delta = &part["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().unwrap_or(&vec![]) {
            if call["id"].is_string() {
                calls.push(call.clone());
                continue;
            }
            let index = usize::try_from(call["index"].as_u64().expect("an index")).expect("small");
            let more = call["function"]["arguments"].as_str().expect("a text");
            let whole = calls[index]["function"]["arguments"].as_str().expect("a text").to_owned() + more;
            calls[index]["function"]["arguments"] = whole.into();
        }
        tokens.extend(part["token_ids"].as_array().cloned().unwrap_or_default());
        logprobs.extend(part["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        if !part["finish_reason"].is_null() {
            assert!(reason.is_null(), "an answer ends once");
            reason = part["finish_reason"].clone();
        }
    }
    for call in &mut calls {
        call.as_object_mut().expect("an object").remove("index");
    }
    json!({ "content": content, "calls": calls, "tokens": tokens, "logprobs": logprobs, "reason": reason })
}

fn same_form(choice: &Value) -> Value {
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    json!({ "content": message["content"].as_str().unwrap_or_default(), "calls": calls, "tokens": choice["token_ids"],
            "logprobs": choice["logprobs"]["content"], "reason": choice["finish_reason"] })
}

proptest! {
    #[test]
    fn a_stream_adds_up_to_the_whole_answer_wherever_it_is_cut(
        texts in prop::collection::vec(prop::collection::vec("[a-é\"\n]{0,3}", 1..6), 1..4),
        has_call: bool,
        cuts in prop::collection::vec(1..5_usize, 40),
    ) {
        let answers: Vec<Vec<Delta>> =
            texts.iter().enumerate().map(|(choice, texts)| answer(choice, texts, has_call)).collect();
        let sums = answers.iter().map(|deltas| {
            let mut sum = Sum::default();
            deltas.iter().cloned().for_each(|delta| sum.add(delta));
            sum.whole()
        });
        let form_of_whole = form(true, answers.len());
        let whole = serde_json::to_value(form_of_whole.whole(sums.collect())).expect("plain");

        let mut events = ChatEvents::new(form(true, answers.len()), told_usage());
        let mut out = BytesMut::new();
        let mut all: std::collections::VecDeque<Delta> = answers.into_iter().flatten().collect();
        for cut in cuts {
            let taken = cut.min(all.len());
            events.deltas(all.drain(..taken).collect(), &mut out);
        }
        prop_assert!(all.is_empty());
        events.end(&mut out);

        let chunks = read_events(&out);
        for (index, choice) in whole["choices"].as_array().expect("a list").iter().enumerate() {
            prop_assert_eq!(put_together(&chunks, index), same_form(choice));
        }
        let (last, others) = chunks.split_last().expect("a last chunk");
        prop_assert_eq!(&last["usage"], &whole["usage"]);
        prop_assert_eq!(&last["choices"], &json!([]));
        prop_assert!(others.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
        prop_assert_eq!(&chunks[0]["choices"][0]["delta"], &json!({ "role": "assistant", "content": "" }));
        prop_assert_eq!(&chunks[0]["prompt_token_ids"], &json!([1, 2, 3]));
    }
}

#[test]
fn bytes_of_a_token_are_exact_and_its_text_is_never_broken() {
    let entry = serde_json::to_value(ChatLogprobs::new(&tokenizer(), &[drawn(0xA9)])).expect("plain");
    let expected = json!({ "content": [{
        "token": "\u{fffd}", "logprob": -0.5, "bytes": [0xA9],
        "top_logprobs": [
            { "token": "\u{fffd}", "logprob": -0.5, "bytes": [0xA9] },
            { "token": "\u{fffd}", "logprob": -9999.0, "bytes": [0xC3] },
        ],
    }], "refusal": null });
    assert_eq!(entry, expected);
}

#[test]
fn a_whole_answer_has_the_shape_that_clients_read() {
    let mut sum = Sum::default();
    answer(0, &["Hi".to_owned()], false).into_iter().for_each(|delta| sum.add(delta));
    let mut form = form(false, 1);
    form.shown.ids = false;
    let shown = serde_json::to_value(form.whole(vec![sum.whole()])).expect("plain");
    let expected = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "demo",
        "choices": [{
            "index": 0, "message": { "role": "assistant", "content": "Hi", "refusal": null },
            "logprobs": null, "finish_reason": "stop", "stop_reason": null,
        }],
        "usage": { "prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1,
                   "prompt_tokens_details": { "cached_tokens": 2 } },
    });
    assert_eq!(shown, expected);
}

#[test]
fn a_text_behind_a_call_begins_a_line_of_its_own_behind_an_echo_too() {
    let said = |parts: Vec<Part>| Delta { said: Said::of(parts), ..Delta::default() };
    let start = Part::Call(CallPiece::Start { index: 0, id: "call_1".into(), name: "f".into() });
    let mut deltas = vec![said(vec![start]), said(vec![Part::Text("b".into())]), said(vec![Part::Dropped])];
    deltas.push(said(vec![Part::Text("c".into())]));
    deltas.extend(answer(0, &[], false));
    let echoing = || ChatForm { echoed: "a".into(), ..form(false, 1) };
    assert_eq!(whole_of(&echoing(), deltas.clone())["choices"][0]["message"]["content"], "a\nb\nc");
    let (mut events, mut out) = (ChatEvents::new(echoing(), told_usage()), BytesMut::new());
    deltas.into_iter().for_each(|delta| events.deltas(vec![delta], &mut out));
    events.end(&mut out);
    assert_eq!(put_together(&read_events(&out), 0)["content"], "a\nb\nc");
}

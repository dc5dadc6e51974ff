//! Requests as clients send them, streams against whole responses, and what is kept.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use pelton_engine::Usage as AnswerUsage;
use pelton_text::GenerationDefaults;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::stream::Events as _,
    error::ApiError,
    generate::{Call, CallPiece, Delta, Ending, Finish, Prompt, Request, StopCause, Sum, Whole},
};

fn with(fields: Value) -> String {
    let mut body = json!({ "input": "hi" });
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body.to_string()
}

fn read(fields: Value) -> ResponsesRequest {
    ResponsesRequest::read(with(fields).as_bytes()).expect("right")
}

fn messages(request: &Request) -> Value {
    let Prompt::Chat { input, .. } = &request.prompts[0] else { panic!("a chat") };
    input.messages.clone().into()
}

fn refused(fields: Value) -> String {
    let read = ResponsesRequest::read(with(fields).as_bytes());
    match read.and_then(|mut asked| asked.request(&[])) {
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

fn kept(items: &[Item]) -> Vec<Value> {
    items.iter().map(|item| serde_json::from_str(item.get()).expect("JSON")).collect()
}

const CALL: &str = r#"{"type": "function_call", "id": null, "call_id": "1", "name": "add", "arguments": "{\"a\": 5}"}"#;

fn call() -> Value {
    serde_json::from_str(CALL).expect("JSON")
}

#[test]
fn a_conversation_becomes_a_chat() {
    let mut asked = read(json!({
        "instructions": "Be brief.",
        "input": [
            { "role": "user", "content": "What is 5 + 5?" },
            { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "Hm." }],
              "encrypted_content": null, "status": null },
            { "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
              "content": [{ "type": "output_text", "text": "Wait.", "annotations": [], "logprobs": [] }] },
            call(),
            { "type": "function_call_output", "call_id": "1", "output": "10" },
            { "role": "user", "content": [{ "type": "input_text", "text": "Well?" }] },
        ],
    }));
    let expected = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "What is 5 + 5?" },
        { "role": "assistant", "content": "Wait.", "reasoning_content": "Hm.", "tool_calls": [
            { "id": "1", "type": "function", "function": { "name": "add", "arguments": "{\"a\": 5}" } }] },
        { "role": "tool", "content": "10", "tool_call_id": "1" },
        { "role": "user", "content": "Well?" },
    ]);
    let request = asked.request(&[]).expect("right");
    assert_eq!(messages(&request), expected);
    // What is kept of it reads as the same.
    let mut again = read(json!({ "instructions": "Be brief.", "input": kept(&asked.items) }));
    assert_eq!(messages(&again.request(&[]).expect("right")), expected);
    let ids: Vec<Value> = kept(&asked.items).iter().map(|item| item["id"].clone()).collect();
    assert!(ids.iter().all(|id| id.as_str().is_some_and(|id| !id.is_empty())), "{ids:?}");
    assert_eq!(ids[2], "msg_1");
}

#[test]
fn a_call_has_any_id_or_none() {
    // B:A5
    for id in [Value::Null, "".into(), "fc_1".into(), "mcp_1".into(), "whatever".into()] {
        let mut item = call();
        item["id"] = id.clone();
        let output = json!({ "type": "function_call_output", "call_id": "1", "output": "10", "id": id });
        assert_eq!(refused(json!({ "input": [item, output] })), "", "{id}");
    }
}

#[test]
fn what_a_client_adds_to_answers_is_not_kept() {
    let mut called = call();
    called["parsed_arguments"] = json!({ "a": 5 });
    let text = json!({ "type": "output_text", "text": "{}", "parsed": {} });
    let output = json!({ "type": "function_call_output", "call_id": "1", "output": "10" });
    let asked = read(json!({ "input": [called, output, { "role": "assistant", "content": [text] }] }));
    let [called, _, said] = &kept(&asked.items)[..] else { panic!("three items") };
    assert_eq!(called.get("parsed_arguments"), None);
    assert_eq!(said["content"][0].get("parsed"), None);
}

#[test]
fn a_response_goes_on_with_what_was_kept() {
    let first = read(json!({ "input": [{ "role": "user", "content": "5 + 5?" }] }));
    let answer =
        Whole { calls: vec![Call { id: "1".into(), name: "add".into(), arguments: "{}".into() }], ..whole_text("") };
    let stored = stored(&first.items, form().whole(answer));
    let output = json!([{ "type": "function_call_output", "call_id": "1", "output": "10" }]);
    let mut second = read(json!({ "input": output, "instructions": "New.", "previous_response_id": "resp_1" }));
    assert_eq!(second.previous.as_deref(), Some("resp_1"));
    let request = second.request(&stored.conversation()).expect("right");
    let roles: Vec<Value> =
        messages(&request).as_array().expect("a list").iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
}

#[test]
fn what_is_wrong_is_named_by_its_path() {
    let tool = json!({ "type": "function", "name": "f", "parameters": {} });
    let said = |content: Value| json!({ "input": [{ "role": "user", "content": content }] });
    let some = |mode: &str, name: &str| json!({ "type": "allowed_tools", "mode": mode, "tools": [{ "type": "function", "name": name }] });
    for (fields, expected) in [
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": [{}] }), "input[0].type"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0].type"),
        (json!({ "input": [{ "role": "tool", "content": "x" }] }), "input[0].role"),
        (said(json!([{ "type": "input_image", "image_url": "x" }])), "input[0].content[0].type"),
        (said(json!([{ "type": "input_text" }])), "input[0].content[0].text"),
        (json!({ "input": [{ "role": "user", "content": "x", "contnt": 1 }] }), "input[0].contnt"),
        (json!({ "input": [{ "type": "function_call", "name": "f", "arguments": "{}" }] }), "input[0].call_id"),
        (
            json!({ "input": [{ "type": "function_call", "call_id": "1", "name": "f", "arguments": {} }] }),
            "input[0].arguments",
        ),
        (json!({ "input": [call()] }), "input"),
        (json!({ "input": [{ "type": "function_call_output", "call_id": "2", "output": "x" }] }), "input"),
        (json!({ "max_tokens": 5 }), "max_tokens"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "n": 2 }), "n"),
        (json!({ "response_format": { "type": "json_object" } }), "response_format"),
        (json!({ "truncation": "auto" }), "truncation"),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "prompt": { "id": "x" } }), "prompt"),
        (json!({ "include": ["file_search_call.results"] }), "include"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "background": true, "store": false }), "background"),
        (json!({ "background": true, "stream": true }), "stream"),
        (json!({ "text": { "format": { "type": "yaml" } } }), "text.format.type"),
        (json!({ "text": { "format": { "type": "json_schema", "name": "x" } } }), "text.format.schema"),
        (json!({ "text": { "verbosity": "low" } }), "text.verbosity"),
        (
            json!({ "text": { "format": { "type": "json_object" } }, "structured_outputs": { "regex": "a" } }),
            "structured_outputs.regex",
        ),
        (json!({ "reasoning": { "effort": "huge" } }), "reasoning.effort"),
        (json!({ "reasoning": { "summary": "detailed" } }), "reasoning.summary"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "tools": [tool, tool] }), "tools[1].name"),
        (json!({ "tools": [tool], "tool_choice": { "type": "function", "name": "g" } }), "tool_choice.name"),
        (json!({ "tools": [tool], "tool_choice": { "type": "custom" } }), "tool_choice.type"),
        (json!({ "tools": [tool], "tool_choice": { "type": "allowed_tools" } }), "tool_choice.mode"),
        (json!({ "tools": [tool], "tool_choice": some("none", "f") }), "tool_choice.mode"),
        (json!({ "tools": [tool], "tool_choice": some("auto", "g") }), "tool_choice.tools[0].name"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "metadata": { "a": 1 } }), "metadata"),
    ] {
        assert_eq!(refused(fields.clone()), expected, "{fields}");
    }
}

#[test]
fn what_the_official_client_sends_passes_and_is_repeated() {
    let schema = json!({ "type": "object" });
    let mut asked = read(json!({
        "model": "demo", "instructions": "Be brief.", "max_output_tokens": 5, "temperature": 0.7, "stream": true, "store": false,
        "parallel_tool_calls": false, "truncation": "disabled", "service_tier": "auto", "user": "me", "metadata": { "a": "b" },
        "reasoning": { "effort": "low", "summary": "auto" }, "include": ["reasoning.encrypted_content"],
        "text": { "format": { "type": "json_schema", "name": "x", "schema": schema, "strict": true }, "verbosity": "medium" },
        "tools": [{ "type": "function", "name": "f", "description": null, "parameters": schema, "strict": true }],
        "tool_choice": { "type": "function", "name": "f" }, "stream_options": { "include_obfuscation": false },
    }));
    asked.fill_in(false, &GenerationDefaults { top_p: Some(0.5), ..GenerationDefaults::default() });
    let shown = &asked.asked;
    assert_eq!((&shown["temperature"], &shown["top_p"], &shown["store"]), (&json!(0.7), &json!(0.5), &json!(false)));
    assert_eq!(shown["text"]["format"]["schema"], schema);
    assert_eq!(
        shown["tools"][0],
        json!({ "type": "function", "name": "f", "description": null, "parameters": schema, "strict": true })
    );
    assert_eq!(shown["tool_choice"], json!({ "type": "function", "name": "f" }));
    assert_eq!(shown["metadata"], json!({ "a": "b" }));
    let request = asked.request(&[]).expect("right");
    assert_eq!(request.options.max_tokens, Some(5));
    assert_eq!(request.options.constrained.map(|it| it.param).as_deref(), Some("text.format.schema"));
}

fn form() -> ResponseForm {
    let (id, model) = ("resp_1".to_owned(), "demo".to_owned());
    ResponseForm { id, created: 1, model, asked: Map::new(), shows_logprobs: None }
}

fn finish(ending: Ending, has_calls: bool) -> Finish {
    let usage = AnswerUsage { prompt: 3, cached: 2, completion: 5 };
    Finish { ending, has_calls, usage, reasoning_tokens: Some(1), explanation: None }
}

fn whole_text(text: &str) -> Whole {
    let finish = finish(Ending::Stop(StopCause::EndOfText), false);
    Whole { reasoning: String::new(), text: text.into(), calls: vec![], scores: vec![], tokens: vec![], finish }
}

/// A stream's events, each of which is called by its type and numbered.
fn events(deltas: Vec<Vec<Delta>>) -> Vec<Value> {
    let mut events = ResponseEvents::new(form(), |_| ());
    let mut out = BytesMut::new();
    deltas.into_iter().for_each(|deltas| events.deltas(deltas, &mut out));
    events.end(&mut out);
    parsed(&out)
}

fn parsed(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).expect("UTF-8");
    let event = |(number, event): (usize, &str)| {
        let (name, data) =
            event.strip_prefix("event: ").and_then(|event| event.split_once("\ndata: ")).expect("a name");
        let value: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!((&value["type"], &value["sequence_number"]), (&name.into(), &number.into()));
        value
    };
    text.split_terminator("\n\n").enumerate().map(event).collect()
}

/// The items that a client puts together from deltas alone; what events of the end say must be the same.
fn put_together(events: &[Value]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    for event in events {
        let kind = event["type"].as_str().expect("a type");
        if kind == "response.output_item.added" {
            assert_eq!(event["output_index"], items.len());
            items.push(event["item"].clone());
            continue;
        }
        let Some(item) = items.last_mut() else { continue };
        match kind {
            "response.content_part.added" => {
                item["content"].as_array_mut().expect("a list").push(event["part"].clone())
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                assert_eq!((&event["item_id"], &event["content_index"]), (&item["id"], &json!(0)));
                let text = &mut item["content"][0]["text"];
                *text = (text.as_str().expect("a text").to_owned() + event["delta"].as_str().expect("a text")).into();
            }
            "response.function_call_arguments.delta" => {
                let text = &mut item["arguments"];
                *text = (text.as_str().expect("a text").to_owned() + event["delta"].as_str().expect("a text")).into();
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], item["content"][0]["text"])
            }
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], item["arguments"]),
            "response.content_part.done" => assert_eq!(event["part"], item["content"][0]),
            "response.output_item.done" => {
                item["status"] = event["item"]["status"].clone();
                assert_eq!(&event["item"], item);
            }
            "response.completed" | "response.incomplete" => assert_eq!(event, events.last().expect("one")),
            other => panic!("{other}"),
        }
    }
    items
}

fn without_ids(items: &[Value]) -> Vec<Value> {
    let mut items = items.to_vec();
    items.iter_mut().for_each(|item| drop(item.as_object_mut().expect("an object").remove("id")));
    items
}

proptest! {
    #[test]
    fn a_stream_adds_up_to_the_whole_response_wherever_it_is_cut(
        thoughts in prop::collection::vec("[a-é\"\n]{0,3}", 0..4),
        texts in prop::collection::vec("[a-é\"\n]{0,3}", 0..4),
        has_calls: bool,
        is_cut: bool,
        cuts in prop::collection::vec(1..4_usize, 20),
    ) {
        let thought = |reasoning: String| Delta { reasoning, ..Delta::default() };
        let text = |text: String| Delta { text, ..Delta::default() };
        let mut all: Vec<Delta> = thoughts.into_iter().map(thought).chain(texts.into_iter().map(text)).collect();
        if has_calls {
            let start = |index: usize| CallPiece::Start { index, id: format!("call_{index}"), name: "f".into() };
            let more = |index, delta: &str| CallPiece::Arguments { index, delta: delta.into() };
            let pieces = [vec![start(0), more(0, "{\"a\"")], vec![more(0, ": 1}"), start(1)], vec![more(1, "{}")]];
            all.extend(pieces.map(|calls| Delta { calls, ..Delta::default() }));
        }
        let ending = if is_cut { Ending::Length } else { Ending::Stop(StopCause::EndOfText) };
        all.push(Delta { finish: Some(finish(ending, has_calls)), ..Delta::default() });
        let mut rest: std::collections::VecDeque<Delta> = all.clone().into();
        let cut = cuts.into_iter().map(|cut| rest.drain(..cut.min(rest.len())).collect()).collect();

        let mut sum = Sum::default();
        all.into_iter().for_each(|delta| sum.add(delta));
        let whole = form().whole(sum.whole());
        let shown = events(cut);
        prop_assert_eq!((&shown[0]["type"], &shown[1]["type"]), (&json!("response.created"), &json!("response.in_progress")));
        prop_assert_eq!(&shown[0]["response"]["status"], "in_progress");
        let last = &shown.last().expect("one")["response"];
        let items = put_together(&shown);
        prop_assert_eq!(last["output"].as_array().expect("a list"), &items);
        prop_assert_eq!(without_ids(&items), without_ids(&whole.output));
        prop_assert_eq!((&last["status"], &last["usage"]), (&whole.response["status"], &whole.response["usage"]));
    }
}

#[test]
fn a_whole_response_has_the_shape_that_clients_read() {
    let Done { mut response, output } = form().whole(whole_text("Hi"));
    assert!(output[0]["id"].as_str().is_some_and(|id| id.starts_with("msg_")));
    response["output"][0]["id"] = "msg_1".into();
    let part = json!({ "type": "output_text", "text": "Hi", "annotations": [], "logprobs": [] });
    let expected = json!({
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "error": null, "incomplete_details": null,
        "model": "demo",
        "output": [{ "id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part] }],
        "usage": { "input_tokens": 3, "input_tokens_details": { "cached_tokens": 2 }, "output_tokens": 5,
                   "output_tokens_details": { "reasoning_tokens": 1 }, "total_tokens": 8 },
    });
    assert_eq!(response, expected);
}

#[test]
fn a_failure_is_the_last_event_and_is_kept() {
    let (sender, kept) = std::sync::mpsc::channel();
    let mut events =
        ResponseEvents::new(form(), move |done: Done| sender.send(done.response).expect("somebody listens"));
    let mut out = BytesMut::new();
    events.deltas(vec![Delta { text: "H".into(), ..Delta::default() }], &mut out);
    events.error(&ApiError::Internal { log: "secret".into() }, &mut out);
    let shown = parsed(&out);
    let last = shown.last().expect("one");
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert!(!last.to_string().contains("secret"));
    assert_eq!(kept.try_recv().expect("it was kept"), last["response"]);
}

fn stored(input: &[Item], done: Done) -> Stored {
    let store = Store::new(StoreLimits { count: 1, bytes: 1 << 20, lifetime: Duration::from_secs(1) });
    let now = Instant::now();
    store.keep("x", 1, Stored::new(Value::Null, input.to_vec(), Vec::new()), done, now);
    store.get("x", 1, now).expect("it was kept")
}

fn store(count: usize, bytes: usize) -> Store {
    Store::new(StoreLimits { count, bytes, lifetime: Duration::from_secs(60) })
}

fn empty() -> Stored {
    Stored::new(form().in_progress(), Vec::new(), Vec::new())
}

#[test]
fn a_response_is_had_by_its_own_tenant_until_it_is_too_old() {
    let (store, now) = (store(10, 1 << 20), Instant::now());
    store.keep("a", 1, empty(), form().whole(whole_text("Hi")), now);
    assert_eq!(store.get("a", 1, now).map(|it| it.response["status"].clone()), Some("completed".into()));
    assert!(store.get("a", 2, now).is_none() && store.get("b", 1, now).is_none());
    assert!(!store.delete("a", 2, now));
    assert_eq!(store.cancel("a", 2, now), Cancelled::Unknown);
    assert_eq!(store.cancel("a", 1, now), Cancelled::NotBackground);
    assert!(store.get("a", 1, now + Duration::from_secs(59)).is_some());
    assert!(store.get("a", 1, now + Duration::from_secs(60)).is_none());
    assert_eq!(store.sweep(now + Duration::from_secs(60)), None);
}

#[test]
fn the_oldest_that_is_complete_makes_room() {
    let (store, now) = (store(2, 1 << 20), Instant::now());
    let keep = |id| store.keep(id, 1, empty(), form().whole(whole_text("Hi")), now);
    let is_there = |id| store.get(id, 1, now).is_some();
    assert!(store.begin("running", 1, empty(), CancellationToken::new(), now));
    keep("a");
    keep("b");
    assert_eq!(["running", "a", "b"].map(is_there), [true, false, true]);
    assert!(store.begin("second", 1, empty(), CancellationToken::new(), now));
    assert!(!store.begin("third", 1, empty(), CancellationToken::new(), now), "nothing complete is left to go");
    assert_eq!(["running", "b", "second", "third"].map(is_there), [true, false, true, false]);
}

#[test]
fn bytes_are_bounded_and_all_come_back() {
    let (store, now) = (store(100, 2000), Instant::now());
    let keep = |id, text: &str| store.keep(id, 1, empty(), form().whole(whole_text(text)), now);
    keep("large", &"x".repeat(2000));
    assert!(store.get("large", 1, now).is_none());
    for id in ["a", "b", "c", "d", "e"] {
        keep(id, "Hi");
    }
    assert!(store.get("a", 1, now).is_none() && store.get("e", 1, now).is_some());
    assert!(store.begin("f", 1, empty(), CancellationToken::new(), now));
    store.finish("f", form().whole(whole_text(&"x".repeat(2000))));
    assert!(store.get("f", 1, now).is_none(), "it has grown beyond all room");
    keep("g", "Hi");
    assert!(store.delete("g", 1, now));
    assert_eq!(store.sweep(now), None);
}

#[test]
fn a_response_of_the_background_ends_once() {
    let (store, now) = (store(10, 1 << 20), Instant::now());
    let [first, second, third] = [0; 3].map(|_| CancellationToken::new());
    for (id, token) in [("a", &first), ("b", &second), ("c", &third)] {
        assert!(store.begin(id, 1, empty(), token.clone(), now));
    }
    store.finish("a", form().whole(whole_text("Hi")));
    let Cancelled::Done(response) = store.cancel("a", 1, now) else { panic!("it is one of the background") };
    assert_eq!((&response["status"], first.is_cancelled()), (&json!("completed"), false));
    let Cancelled::Done(response) = store.cancel("b", 1, now) else { panic!("it is one of the background") };
    assert_eq!((&response["status"], second.is_cancelled()), (&json!("cancelled"), true));
    store.finish("b", form().whole(whole_text("Hi")));
    assert_eq!(store.get("b", 1, now).map(|it| it.response["status"].clone()), Some("cancelled".into()));
    assert!(store.delete("c", 1, now) && third.is_cancelled());
    store.finish("c", form().whole(whole_text("Hi")));
    assert!(store.get("c", 1, now).is_none());
}

#[test]
fn somebody_sweeps_while_there_is_something() {
    let (store, now) = (store(10, 1 << 20), Instant::now());
    assert!(!store.needs_sweeper());
    store.keep("a", 1, empty(), form().whole(whole_text("Hi")), now);
    assert!(store.needs_sweeper() && !store.needs_sweeper());
    assert_eq!(store.sweep(now), Some(now + Duration::from_secs(60)));
    assert_eq!(store.sweep(now + Duration::from_secs(60)), None);
    store.keep("b", 1, empty(), form().whole(whole_text("Hi")), now);
    assert!(store.needs_sweeper());
}

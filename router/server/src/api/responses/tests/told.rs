//! Streams against whole responses, and what clients make of both.

use bytes::BytesMut;
use pelton_engine::{TokenLogprobs, Usage as AnswerUsage};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::*;
use crate::{
    api::stream::Events as _,
    error::ApiError,
    generate::{
        CallPiece, Delta, Drawn, Ending, Finish, Part, Said, StopCause, Sum, TokenKind, Whole, testing::tokenizer,
    },
};

pub(in crate::api::responses) fn form() -> ResponseForm {
    let (id, model) = ("resp_1".to_owned(), "demo".to_owned());
    ResponseForm { id, created: 1, model, asked: Map::new(), shows_logprobs: None }
}

pub(in crate::api::responses) fn finish(ending: Ending, has_calls: bool) -> Finish {
    let usage = AnswerUsage { prompt: 3, cached: 2, completion: 5 };
    Finish { ending, has_calls, usage, reasoning_tokens: Some(1), explanation: None }
}

pub(in crate::api::responses) fn whole_text(text: &str) -> Whole {
    let finish = finish(Ending::Stop(StopCause::EndOfText), false);
    Whole { said: Said::text(text), scores: vec![], tokens: vec![], finish }
}

/// A stream's events, each of which is called by its type and numbered.
pub(in crate::api::responses) fn events(deltas: Vec<Vec<Delta>>) -> Vec<Value> {
    let mut events = ResponseEvents::new(form(), |_| ());
    let mut out = BytesMut::new();
    deltas.into_iter().for_each(|deltas| events.deltas(deltas, &mut out));
    events.end(&mut out);
    parsed(&out)
}

pub(in crate::api::responses) fn parsed(out: &[u8]) -> Vec<Value> {
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
        between in prop::collection::vec("[a\n]{0,2}", 0..3),
        has_calls: bool,
        is_cut: bool,
        cuts in prop::collection::vec(1..4_usize, 20),
    ) {
        let thought = |text: String| Delta { said: Said::of([Part::Thought(text)]), ..Delta::default() };
        let text = |text: String| Delta { said: Said::text(text), ..Delta::default() };
        let mut all: Vec<Delta> = thoughts.into_iter().map(thought).chain(texts.into_iter().map(text)).collect();
        if has_calls {
            let start = |index: usize| CallPiece::Start { index, id: format!("call_{index}"), name: "f".into() };
            let more = |index, delta: &str| CallPiece::Arguments { index, delta: delta.into() };
            let said = |calls: Vec<CallPiece>| {
                Delta { said: Said::of(calls.into_iter().map(Part::Call)), ..Delta::default() }
            };
            all.extend([said(vec![start(0), more(0, "{\"a\"")]), said(vec![more(0, ": 1}")])]);
            all.extend(between.into_iter().map(text));
            all.extend([said(vec![start(1)]), said(vec![more(1, "{}")])]);
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
        "usage": { "input_tokens": 3, "input_tokens_details": { "cached_tokens": 2, "cache_write_tokens": 0 }, "output_tokens": 5,
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
    events.deltas(vec![Delta { said: Said::text("H"), ..Delta::default() }], &mut out);
    events.error(&ApiError::Internal { log: "secret".into() }, &mut out);
    let shown = parsed(&out);
    let last = shown.last().expect("one");
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"]["code"], "server_error");
    let ended: Vec<&str> = shown[shown.len() - 4..].iter().filter_map(|event| event["type"].as_str()).collect();
    let expected =
        ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.failed"];
    assert_eq!(ended, expected, "what was begun is ended");
    let item = &last["response"]["output"][0];
    assert_eq!((&item["status"], &item["content"][0]["text"]), (&json!("incomplete"), &json!("H")));
    assert!(!last.to_string().contains("secret"));
    assert_eq!(kept.try_recv().expect("it was kept"), last["response"]);
}

#[test]
fn a_cancelled_response_ends_what_it_has_begun_and_shows_it() {
    let (mut events, mut out) = (NumberedEvents::new(form()), BytesMut::new());
    events.deltas(vec![Delta { said: Said::text("H"), ..Delta::default() }], &mut out);
    let done = events.cancelled(&mut out);
    let shown = parsed(&out);
    let ended: Vec<&str> = shown[shown.len() - 4..].iter().filter_map(|event| event["type"].as_str()).collect();
    let expected =
        ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"];
    assert_eq!(ended, expected);
    assert_eq!(shown.last().expect("one")["response"], done.response);
    assert_eq!(done.response["status"], "cancelled");
    assert_eq!(put_together(&shown), done.response["output"].as_array().expect("a list").as_slice());
    let item = &done.response["output"][0];
    assert_eq!((&item["status"], &item["content"][0]["text"]), (&json!("incomplete"), &json!("H")));
    assert!(done.output.is_empty(), "no conversation goes on with half an answer");
    // Before anything has come it is told as any other.
    let (mut events, mut out) = (NumberedEvents::new(form()), BytesMut::new());
    events.cancelled(&mut out);
    let types: Vec<Value> = parsed(&out).iter().map(|event| event["type"].clone()).collect();
    assert_eq!(types, ["response.created", "response.in_progress", "response.incomplete"]);
}

#[test]
fn a_stream_in_the_background_has_the_events_of_any_other() {
    let deltas = || vec![Delta { said: Said::text("Hi"), ..Delta::default() }];
    let last = || {
        let finish = Some(finish(Ending::Stop(StopCause::EndOfText), false));
        vec![Delta { finish, ..Delta::default() }]
    };
    let (mut events, mut out) = (NumberedEvents::new(form()), BytesMut::new());
    events.begin(&mut out);
    assert_eq!(parsed(&out).len(), 2, "a client knows the id before the first token");
    events.deltas(deltas(), &mut out);
    events.deltas(last(), &mut out);
    let done = events.end(&mut out);
    let types = |events: &[Value]| events.iter().map(|event| event["type"].clone()).collect::<Vec<_>>();
    assert_eq!(types(&parsed(&out)), types(&self::events(vec![deltas(), last()])));
    assert_eq!(parsed(&out).last().expect("one")["response"], done.response);
}

#[test]
fn log_probabilities_have_the_digits_that_chats_tell() {
    let drawn = |logprob| Drawn {
        token: 65,
        text_offset: 0,
        logprobs: Some(Box::new(TokenLogprobs { chosen: logprob, top: vec![(66, -0.1)] })),
        kind: TokenKind::Text,
        said: 1,
    };
    let whole = Whole { tokens: vec![drawn(-0.123)], ..whole_text("A") };
    let Done { output, .. } = ResponseForm { shows_logprobs: Some(tokenizer()), ..form() }.whole(whole);
    let told = output[0]["content"][0]["logprobs"].to_string();
    assert!(told.contains("\"logprob\":-0.123,") && told.contains("\"logprob\":-0.1,"), "{told}");
}

/// A text, a call with its marks, a text: a delta for each token.
fn told_around_a_call() -> Vec<Delta> {
    let start = Part::Call(CallPiece::Start { index: 0, id: "call_0".into(), name: "f".into() });
    let arguments = |delta: &str| Part::Call(CallPiece::Arguments { index: 0, delta: delta.into() });
    let mut said = 0;
    let mut delta = |letter: u8, kind, parts: Vec<Part>| {
        said += parts.iter().map(Part::size).sum::<usize>();
        let logprobs = Some(Box::new(TokenLogprobs { chosen: -1.0, top: vec![] }));
        let drawn = Drawn { token: letter.into(), text_offset: 0, logprobs, kind, said };
        Delta { said: Said::of(parts), tokens: vec![drawn], ..Delta::default() }
    };
    let mut deltas = vec![
        delta(b'H', TokenKind::Text, vec![]),
        delta(b'i', TokenKind::Text, vec![Part::Text("Hi".into())]),
        delta(b'<', TokenKind::Text, vec![]),
        delta(b'{', TokenKind::Beside, vec![start, arguments("{")]),
        delta(b'}', TokenKind::Beside, vec![arguments("}")]),
        delta(b'>', TokenKind::Beside, vec![]),
        delta(b'S', TokenKind::Text, vec![Part::Text("S".into())]),
        delta(b'o', TokenKind::Text, vec![Part::Text("o".into())]),
        delta(b'#', TokenKind::End, vec![]),
    ];
    deltas.push(Delta { finish: Some(finish(Ending::Stop(StopCause::EndOfText), true)), ..Delta::default() });
    deltas
}

#[test]
fn log_probabilities_are_those_of_the_texts_own_tokens_streamed_and_whole() {
    let form = || ResponseForm { shows_logprobs: Some(tokenizer()), ..form() };
    let tokens = |part: &Value| -> String {
        let told = part["logprobs"].as_array().expect("a list").iter();
        told.map(|each| each["token"].as_str().expect("a text")).collect()
    };
    let mut sum = Sum::default();
    told_around_a_call().into_iter().for_each(|delta| sum.add(delta));
    let whole = form().whole(sum.whole()).output;
    assert_eq!((tokens(&whole[0]["content"][0]), tokens(&whole[2]["content"][0])), ("Hi".into(), "So".into()));
    for at_once in 1..=10 {
        let (mut events, mut out) = (ResponseEvents::new(form(), |_| ()), BytesMut::new());
        for deltas in told_around_a_call().chunks(at_once) {
            let mut deltas = deltas.iter().cloned();
            let first = deltas.next().expect("one");
            // Tokens that come in one step are one delta.
            let joined = deltas.fold(first, |mut one, next| {
                one.said.append(next.said);
                one.tokens.extend(next.tokens);
                one.finish = next.finish;
                one
            });
            events.deltas(vec![joined], &mut out);
        }
        events.end(&mut out);
        let told = parsed(&out);
        let items = told.last().expect("one")["response"]["output"].as_array().expect("a list");
        assert_eq!(without_ids(items), without_ids(&whole), "{at_once}");
        let grown = told.iter().filter(|event| event["type"] == "response.output_text.delta");
        assert_eq!(grown.map(tokens).collect::<String>(), "HiSo", "{at_once}");
    }
}

/// The items of an answer with log-probabilities, which are the same streamed, delta by delta, and whole.
fn told_alike(all: &[Delta]) -> Vec<Value> {
    let form = || ResponseForm { shows_logprobs: Some(tokenizer()), ..form() };
    let (mut sum, mut events, mut out) = (Sum::default(), ResponseEvents::new(form(), |_| ()), BytesMut::new());
    for delta in all {
        sum.add(delta.clone());
        events.deltas(vec![delta.clone()], &mut out);
    }
    events.end(&mut out);
    let whole = form().whole(sum.whole()).output;
    let told = parsed(&out);
    let items = told.last().expect("one")["response"]["output"].as_array().expect("a list");
    assert_eq!(without_ids(items), without_ids(&whole));
    whole
}

#[test]
fn a_token_that_says_two_parts_takes_none_of_the_next() {
    let drawn = |letter: u8, kind, said| {
        let logprobs = Some(Box::new(TokenLogprobs { chosen: -1.0, top: vec![] }));
        Drawn { token: letter.into(), text_offset: 0, logprobs, kind, said }
    };
    let start = Part::Call(CallPiece::Start { index: 0, id: "call_0".into(), name: "f".into() });
    let brace = Part::Call(CallPiece::Arguments { index: 0, delta: "{".into() });
    let all = [
        Delta { said: Said::of([start, brace]), tokens: vec![drawn(b'{', TokenKind::Beside, 2)], ..Delta::default() },
        Delta { said: Said::text("S"), tokens: vec![drawn(b'S', TokenKind::Text, 3)], ..Delta::default() },
        Delta { said: Said::text("o"), tokens: vec![drawn(b'o', TokenKind::Text, 4)], ..Delta::default() },
        Delta { finish: Some(finish(Ending::Stop(StopCause::EndOfText), false)), ..Delta::default() },
    ];
    let whole = told_alike(&all);
    let shown = whole[1]["content"][0]["logprobs"].as_array().expect("a list").iter();
    assert_eq!(shown.map(|each| each["token"].as_str()).collect::<Option<String>>().as_deref(), Some("So"));
}

#[test]
fn of_a_dropped_call_nothing_is_told_but_that_it_parts_texts() {
    let delta = |letter: u8, kind, said: usize, parts: Vec<Part>| {
        let logprobs = Some(Box::new(TokenLogprobs { chosen: -1.0, top: vec![] }));
        let drawn = Drawn { token: letter.into(), text_offset: 0, logprobs, kind, said };
        Delta { said: Said::of(parts), tokens: vec![drawn], ..Delta::default() }
    };
    let text = |text: &str| vec![Part::Text(text.into())];
    let all = [
        delta(b'A', TokenKind::Text, 1, text("A")),
        delta(b'<', TokenKind::Text, 1, vec![]),
        delta(b'{', TokenKind::Beside, 2, vec![Part::Dropped]),
        delta(b'[', TokenKind::Held, 2, vec![]),
        delta(b'>', TokenKind::Beside, 2, vec![]),
        delta(b'(', TokenKind::Held, 2, vec![]),
        delta(b'B', TokenKind::Text, 4, text("(B")),
        Delta { finish: Some(finish(Ending::Stop(StopCause::EndOfText), true)), ..Delta::default() },
    ];
    let whole = told_alike(&all);
    assert_eq!(whole.len(), 1);
    let content = &whole[0]["content"][0];
    assert_eq!(content["text"], "A\n(B");
    let shown = content["logprobs"].as_array().expect("a list").iter().map(|each| each["token"].as_str());
    assert_eq!(shown.collect::<Option<String>>().as_deref(), Some("A(B"));
}

#[test]
fn a_call_that_went_wrong_is_incomplete() {
    let start = CallPiece::Start { index: 0, id: "1".into(), name: "f".into() };
    let broken = CallPiece::Arguments { index: 0, delta: "{\"a\": ".into() };
    let said = Said::of([Part::Call(start), Part::Call(broken), Part::Text("{\"a\": x}".into())]);
    let output = form().whole(Whole { said, ..whole_text("") }).output;
    assert_eq!((&output[0]["status"], &output[1]["status"]), (&json!("incomplete"), &json!("completed")));
}

#[test]
fn a_stream_that_cannot_go_on_says_why() {
    let out = broken_off(7, &ApiError::NotKept { what: "response", id: "resp_1".to_owned() });
    let text = std::str::from_utf8(&out).expect("UTF-8");
    let data = text.strip_prefix("event: error\ndata: ").expect("an event");
    let event: Value = serde_json::from_str(data).expect("JSON");
    let message = event["message"].as_str().expect("a text");
    assert!(message.contains("resp_1"), "{message}");
    let expected = json!({ "type": "error", "sequence_number": 7, "code": "response_not_found", "message": message, "param": null });
    assert_eq!(event, expected);
}

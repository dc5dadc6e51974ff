//! Every shape against the parser that reads it: bodies are made of the tables, one for each field and each of its kinds.

use std::{cell::RefCell, collections::BTreeSet};

use serde_json::{Map, Value, json};

use super::{Field, Kind, Shape};
use crate::{
    api::{
        anthropic::{self, CountRequest, MessagesRequest},
        batches::{self, BatchRequest, Item},
        chat::{self, ChatRequest},
        completion::{self, CompletionRequest},
        pooling::{
            classify::{self, ClassifyRequest},
            embeddings::{self, EmbeddingRequest},
            rerank::{self, RerankRequest},
            score::{self, ScoreRequest},
        },
        responses::{self, ResponsesRequest},
        scale_out::{self, TokensRequest},
        tokens::{self, DetokenizeRequest, TokenizeRequest},
    },
    error::ApiError,
};

thread_local! {
    static CHECKED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

/// A parser has read such an object to its end.
pub(super) fn note(shape: &Shape) {
    CHECKED.with_borrow_mut(|checked| checked.insert(shape.name));
}

/// Objects of a shape: with what they need alone, and with each other field in each of its kinds.
fn instances(shape: &'static Shape, is_within_itself: bool) -> Vec<Value> {
    let least = least(shape);
    let with = |name: &str, value: Value| {
        let mut members = least.clone();
        members.insert(name.to_owned(), value);
        Value::Object(members)
    };
    let mut all = vec![Value::Object(least.clone())];
    for field in shape.fields() {
        all.extend(samples(&field.kind, is_within_itself).into_iter().map(|sample| with(field.name, sample)));
    }
    for (name, without_effect, _) in shape.unserved() {
        let values = without_effect.iter().map(|text| serde_json::from_str(text).expect("JSON"));
        all.extend(values.chain([Value::Null]).map(|value| with(name, value)));
    }
    all
}

/// With what it needs alone.
fn least(shape: &'static Shape) -> Map<String, Value> {
    let first = |field: &'static Field| (field.name.to_owned(), first(&field.kind));
    // A chat's message has content or calls, which no table says: without, nothing behind the messages would be read.
    let is_least = |field: &&Field| field.is_needed || (shape.name, field.name) == ("ChatMessage", "content");
    shape.fields().filter(is_least).map(first).collect()
}

fn first(kind: &'static Kind) -> Value {
    match kind {
        Kind::Either(kinds) => first(&kinds[0]),
        Kind::List(item, ..) => json!([first(item)]),
        Kind::Object(shape) => Value::Object(least(shape)),
        other => samples(other, false).swap_remove(0),
    }
}

/// `is_within_itself`: what goes on in this way for ever is only there with what it needs.
fn samples(kind: &'static Kind, is_within_itself: bool) -> Vec<Value> {
    let samples = |kind| samples(kind, is_within_itself);
    match kind {
        Kind::Flag => vec![true.into(), false.into()],
        // A text that is a JSON object, too, as some must be.
        Kind::Text(_) | Kind::Id(_) => vec!["{}".into(), "24h".into()],
        Kind::FunctionName(_) => vec!["f".into()],
        Kind::Integer(least, _) => vec![(*least).into()],
        Kind::Number(range) => vec![json!(range.end().min(1.0))],
        Kind::Word(words) => words.iter().map(|word| (*word).into()).collect(),
        Kind::TokenIds(..) => vec![json!([1])],
        Kind::List(item, ..) => samples(item).into_iter().map(|item| json!([item])).collect(),
        Kind::Object(shape) if is_within_itself && holds_itself(shape) => vec![Value::Object(least(shape))],
        Kind::Object(shape) => instances(shape, is_within_itself || holds_itself(shape)),
        Kind::Map(value, ..) => samples(value).into_iter().map(|value| json!({ "a": value })).collect(),
        Kind::ByToken(range, _) => vec![json!({ "7": range.start() })],
        Kind::AnyObject | Kind::Schema => vec![json!({ "type": "object" })],
        Kind::Absent => vec![Value::Null],
        Kind::Anything => vec![json!([{ "any": 1 }])],
        Kind::Either(kinds) => kinds.iter().flat_map(samples).collect(),
    }
}

fn holds_itself(shape: &'static Shape) -> bool {
    let mut names = BTreeSet::new();
    shape.fields().for_each(|field| all_of(&field.kind, &mut names));
    names.contains(shape.name)
}

/// All shapes within a shape, by their names.
fn within(shape: &'static Shape, names: &mut BTreeSet<&'static str>) {
    if names.insert(shape.name) {
        shape.fields().for_each(|field| all_of(&field.kind, names));
    }
}

fn all_of(kind: &'static Kind, names: &mut BTreeSet<&'static str>) {
    match kind {
        Kind::Object(shape) => within(shape, names),
        Kind::List(kind, ..) | Kind::Map(kind, ..) => all_of(kind, names),
        Kind::Either(kinds) => kinds.iter().for_each(|kind| all_of(kind, names)),
        _ => {}
    }
}

type Read = fn(&[u8]) -> Result<(), ApiError>;

#[test]
fn what_is_described_is_parsed() {
    let bodies: Vec<(&'static Shape, Read)> = vec![
        (&completion::COMPLETION, |body| CompletionRequest::read(body).map(drop)),
        (&chat::CHAT, |body| ChatRequest::read(body).map(drop)),
        (&responses::RESPONSE, |body| ResponsesRequest::read(body).map(drop)),
        (&anthropic::MESSAGE, |body| MessagesRequest::read(body).map(drop)),
        (&anthropic::COUNT, |body| CountRequest::read(body).map(drop)),
        (&embeddings::EMBEDDING, |body| EmbeddingRequest::read(body).map(drop)),
        (&classify::CLASSIFY, |body| ClassifyRequest::read(body).map(drop)),
        (&score::SCORES[0], |body| ScoreRequest::read(body).map(drop)),
        (&score::SCORES[1], |body| ScoreRequest::read(body).map(drop)),
        (&score::SCORES[2], |body| ScoreRequest::read(body).map(drop)),
        (&score::SCORES[3], |body| ScoreRequest::read(body).map(drop)),
        (&rerank::RERANK, |body| RerankRequest::read(body).map(drop)),
        (&tokens::TOKENIZE_TEXT, |body| TokenizeRequest::read(body).map(drop)),
        (&tokens::TOKENIZE_CHAT, |body| TokenizeRequest::read(body).map(drop)),
        (&tokens::DETOKENIZE, |body| DetokenizeRequest::read(body).map(drop)),
        (&scale_out::GENERATE, |body| TokensRequest::read(body).map(drop)),
        (&batches::BATCH, |body| BatchRequest::read(body).map(drop)),
        (&batches::LINE, |body| Item::of(1, &body.to_vec().into(), None).map(drop)),
    ];
    let mut all = BTreeSet::new();
    for (shape, read) in bodies {
        within(shape, &mut all);
        for body in instances(shape, false) {
            let text = body.to_string();
            // Values of other fields may be missing; a name that is described is known.
            if let Err(error @ ApiError::Unknown { .. }) = read(text.as_bytes()) {
                panic!("{}: {error}: {text}", shape.name);
            }
        }
    }
    // Choices are read to their end where they name a tool, and a result is where its call stands before it.
    let named = json!({ "type": "function", "name": "f" });
    for choice in [named.clone(), json!({ "type": "allowed_tools", "mode": "auto", "tools": [named] })] {
        let body = json!({ "input": "a", "tools": [{ "type": "function", "name": "f" }], "tool_choice": choice });
        ResponsesRequest::read(body.to_string().as_bytes()).map(drop).expect("right");
    }
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let some = json!({ "mode": "auto", "tools": [named] });
    for choice in [named.clone(), json!({ "type": "allowed_tools", "allowed_tools": some })] {
        let user = json!({ "role": "user", "content": "a" });
        let body = json!({ "messages": [user], "tools": [named], "tool_choice": choice });
        ChatRequest::read(body.to_string().as_bytes()).map(drop).expect("right");
    }
    let refused = json!({ "role": "assistant", "content": [{ "type": "refusal", "refusal": "a" }] });
    ChatRequest::read(json!({ "messages": [refused] }).to_string().as_bytes()).map(drop).expect("right");
    let chosen = json!({
        "max_tokens": 1, "messages": [{ "role": "user", "content": "a" }],
        "tools": [{ "name": "f", "input_schema": {} }], "tool_choice": { "type": "tool", "name": "f" }
    });
    MessagesRequest::read(chosen.to_string().as_bytes()).expect("right");
    let call = json!({ "type": "tool_use", "id": "1", "name": "f", "input": {} });
    let result = json!({ "type": "tool_result", "tool_use_id": "1" });
    let of = |role: &str, block: Value| json!({ "role": role, "content": [block] });
    let body = json!({ "max_tokens": 1, "messages": [of("assistant", call), of("user", result)] });
    MessagesRequest::read(body.to_string().as_bytes()).expect("right");
    let unread: Vec<_> = CHECKED.with_borrow(|checked| all.difference(checked).copied().collect());
    assert_eq!(unread, Vec::<&str>::new(), "no body of these was read to its end");
}

//! The HTTP API's requests and responses, as plain values.
//!
//! Reading: a body becomes a typed request or an error that names the parameter; what Pelton does not serve is refused,
//! never ignored. Writing: deltas of an answer become chunks of a stream or add up to a whole response.
//! Never here: sockets, the engine, the model; ranges of sampling values are `generate`'s, which all doors share.

pub(crate) mod anthropic;
pub(crate) mod batches;
pub(crate) mod chat;
pub(crate) mod completion;
mod constrained;
pub(crate) mod explained;
mod fields;
mod json;
mod lists;
mod logprobs;
mod messages;
mod metadata;
pub(crate) mod models;
pub(crate) mod pace;
mod parameters;
pub(crate) mod pooling;
mod prompt_logprobs;
pub(crate) mod responses;
mod sampling;
pub(crate) mod scale_out;
pub(crate) mod shape;
pub(crate) mod stream;
mod tags;
mod thinking;
pub(crate) mod tokens;
mod tools;
mod turns;
pub(crate) mod twice;
pub(crate) mod unknown;
mod unserved;
mod usage;
mod verbosity;

pub(crate) use chat::chat_of_json;
pub(crate) use constrained::set_spaces;
pub(crate) use json::{value_of, why_no_json};
pub(crate) use sampling::{PLAIN_ID, StreamOptions, cut_of, is_plain_id};
pub(crate) use tags::read_text as structural_tag_of_json;

use crate::generate::{Ending, Finish, StopCause};

/// What a response says about how an answer ended, if its request named the function to call: OpenAI and the peer say `stop` there, since
/// nobody has to be told that it was called.
fn finish_reason_of_named(finish: &Finish) -> &'static str {
    match finish_reason(finish) {
        "tool_calls" => "stop",
        other => other,
    }
}

/// What a response says about how an answer ended.
fn finish_reason(finish: &Finish) -> &'static str {
    match finish.ending {
        Ending::Length => "length",
        Ending::Repetition => "repetition",
        Ending::Stop(_) if finish.has_calls => "tool_calls",
        Ending::Stop(_) => "stop",
    }
}

/// The stop text or stop token of the request that ended an answer, or `repetition_detected`; `null` for the model's own end.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(untagged)]
pub(crate) enum StopReason {
    Text(String),
    Token(u32),
}

fn stop_reason(finish: &Finish) -> Option<StopReason> {
    match &finish.ending {
        Ending::Stop(StopCause::Text(text)) => Some(StopReason::Text(text.clone())),
        Ending::Stop(StopCause::Token(token)) => Some(StopReason::Token(*token)),
        Ending::Repetition => Some(StopReason::Text("repetition_detected".to_owned())),
        Ending::Stop(StopCause::EndOfText) | Ending::Length => None,
    }
}

/// What a client sees of a stream: the values of its events, which end with `[DONE]`.
#[cfg(test)]
fn read_events(bytes: &[u8]) -> Vec<serde_json::Value> {
    let text = std::str::from_utf8(bytes).expect("events are UTF-8");
    let events = text.strip_suffix("data: [DONE]\n\n").expect("the last event");
    let data = events.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").expect("an event"));
    data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

//! OpenAI's `/v1/responses`: requests as chats, answers as items and events, and what is kept of them.
//!
//! What is read here becomes the request that a chat becomes, and the deltas that come back are those of any answer.
//! Never here: how an answer is made; clocks (`now` is an argument).

mod described;
mod events;
mod items;
mod object;
mod output;
mod replay;
mod request;
mod store;
#[cfg(test)]
mod tests;
mod text;
mod tools;
mod truncation;

pub use store::StoreLimits;
pub(crate) use {
    described::{ResponseEvent, ResponseObject},
    events::{NumberedEvents, ResponseEvents, broken_off},
    items::Item,
    object::{Done, ResponseForm},
    replay::{EventReader, Replayed, STARTING_AFTER},
    request::{LOGPROBS, RESPONSE, ResponsesRequest, SEALED, check_included, renamed},
    store::{Background, Cancelled, Following, Store, Stored},
};

use serde_json::{Value, json};

/// A new id of a kind of things, unique in the world.
pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", uuid::Uuid::new_v4().simple())
}

/// A part of a message's content, as a stream begins it and as it ends.
fn output_text(text: &str, logprobs: &[Value]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

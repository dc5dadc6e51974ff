//! Anthropic's `/v1/messages` and `/v1/messages/count_tokens`: their requests as chats, answers as their messages and events; and its `/v1/models`.
//!
//! What is read here becomes the request that a chat becomes, and the deltas that come back are those of any answer.
//! Never here: how an answer is made, and OpenAI's names.

mod blocks;
mod cut;
mod error;
mod events;
mod message;
mod models;
mod request;
#[cfg(test)]
mod tests;
mod tools;

pub(crate) use {
    error::ErrorBody,
    events::{Event, MessageEvents},
    message::{Message, MessageForm},
    models::{Model, ModelPage, Models},
    request::{COUNT, CountRequest, MESSAGE, MessagesRequest, renamed},
};

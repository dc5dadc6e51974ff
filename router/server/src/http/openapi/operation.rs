//! What is told of a route: the words that `operations` is written in.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::api::shape::Shape;

/// A method of a route.
pub(super) struct Operation {
    /// In small letters.
    pub(super) method: &'static str,
    /// As the router has it.
    pub(super) path: &'static str,
    /// By which generated clients call it.
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    pub(super) about: &'static str,
    pub(super) asks: Asks,
    pub(super) answer: Answer,
    /// Statuses of errors.
    pub(super) errors: &'static [u16],
    /// Of headers, those that count here.
    pub(super) headers: &'static [&'static str],
}

/// What a request carries beside headers.
pub(super) enum Asks {
    Nothing,
    /// A path's `{id}`, in words.
    Id(&'static str),
    /// The same, and a query: name, schema as JSON, in words.
    IdAndQuery(&'static str, Query),
    /// A query alone.
    Query(Query),
    /// A form of parts: name, schema as JSON, in words. The first is needed, and the second.
    Form(Query),
    /// A JSON object of one of these shapes, and examples of it: name and JSON.
    Body(&'static [&'static Shape], &'static [(&'static str, &'static str)]),
}

/// Names, schemas as JSON, in words.
pub(super) type Query = &'static [(&'static str, &'static str, &'static str)];

pub(super) type OfType = fn(&mut SchemaGenerator) -> Schema;

/// What an answer carries.
pub(super) enum Answer {
    /// A status alone.
    Nothing,
    Json(OfType),
    /// JSON, or server-sent events if `stream` is true: what is in one's data, as a type and in words.
    JsonOrEvents(OfType, OfType, &'static str),
    /// Text of this media type.
    Text(&'static str),
}

/// Schemas of a type.
pub(super) fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

pub(super) const PRIORITY: &str = "x-request-priority";
pub(super) const PEERS_PRIORITY: &str = "x-vllm-priority";
pub(super) const TIMEOUT: &str = "x-request-timeout-ms";
pub(super) const EXPLAIN: &str = "x-explain";

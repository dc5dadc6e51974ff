//! What all streams have in common: the head of each chunk, the form of an event, the end.

use bytes::{BufMut as _, BytesMut};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{error::ApiError, generate::Delta};

/// What every response and every chunk of one request begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// What answers depend on beside their requests; where OpenAI tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system_fingerprint: Option<String>,
}

/// Turns deltas into the events of one protocol. Pure: bytes go to whoever asks.
pub(crate) trait Events: Send + 'static {
    /// Writes what the deltas come to.
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut);

    /// Writes what follows the last delta.
    fn end(&mut self, out: &mut BytesMut);

    /// Shows that the answer is still under way.
    fn keep_alive(&mut self, out: &mut BytesMut) {
        keep_alive(out);
    }

    /// Writes an error in place of whatever would follow.
    fn error(&mut self, error: &ApiError, out: &mut BytesMut) {
        event(out, &error.envelope());
        done(out);
    }
}

/// A comment, which clients pass over.
pub(crate) fn keep_alive(out: &mut BytesMut) {
    out.put_slice(b": keep-alive\n\n");
}

/// One event.
pub(crate) fn event(out: &mut BytesMut, value: &impl Serialize) {
    out.put_slice(b"data: ");
    serde_json::to_writer(out.writer(), value).expect("our own types have text keys, and buffers grow");
    out.put_slice(b"\n\n");
}

/// One event of a protocol whose events have names.
pub(crate) fn named_event(out: &mut BytesMut, name: &str, value: &impl Serialize) {
    for piece in ["event: ", name, "\n"] {
        out.put_slice(piece.as_bytes());
    }
    event(out, value);
}

/// The last event of OpenAI's streams.
pub(crate) fn done(out: &mut BytesMut) {
    out.put_slice(b"data: [DONE]\n\n");
}

/// Serialises an `Option` in an `Option`: absent, `null`, or a value.
pub(crate) type Shown<T> = Option<Option<T>>;

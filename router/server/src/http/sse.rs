//! Server-sent events: what has come since the last write goes out in one piece.

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::{Bytes, BytesMut};
use http::header;

use crate::{
    api::stream::Events,
    error::ApiError,
    generate::{Delta, Generation, Serving, Writer, feed},
};

/// The response that streams an answer.
pub(super) fn respond(serving: &Serving, generation: Generation, events: impl Events) -> Response {
    let writer = EventWriter { events, buffer: BytesMut::new() };
    let body = Body::from_stream(feed(generation, writer, &serving.limits, &serving.metrics));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that buffer would hold tokens back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

struct EventWriter<E> {
    events: E,
    buffer: BytesMut,
}

impl<E> EventWriter<E> {
    fn written(&mut self) -> Option<Bytes> {
        (!self.buffer.is_empty()).then(|| self.buffer.split().freeze())
    }

    /// What a stream ends with, behind what was written before.
    fn last(&mut self, before: Option<Bytes>) -> Bytes {
        let end = self.buffer.split().freeze();
        match before {
            None => end,
            Some(before) => [before, end].concat().into(),
        }
    }
}

impl<E: Events> Writer for EventWriter<E> {
    type Item = Bytes;

    fn deltas(&mut self, deltas: Vec<Delta>) -> Option<Bytes> {
        self.events.deltas(deltas, &mut self.buffer);
        self.written()
    }

    fn end(&mut self, last: Option<Bytes>) -> Bytes {
        self.events.end(&mut self.buffer);
        self.last(last)
    }

    fn error(&mut self, error: ApiError) -> Bytes {
        error.report();
        self.events.error(&error, &mut self.buffer);
        self.last(None)
    }

    fn keep_alive(&mut self) -> Option<Bytes> {
        self.events.keep_alive(&mut self.buffer);
        self.written()
    }
}

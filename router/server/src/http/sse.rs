//! Server-sent events: what has come since the last write goes out in one piece.

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::{Bytes, BytesMut};
use http::header;

use crate::{
    api::{
        responses::{EventReader, Replayed, broken_off},
        stream::{Events, keep_alive},
    },
    error::ApiError,
    generate::{Delta, Generation, Serving, Source, Writer, feed},
};

/// The response that streams an answer.
pub(super) fn respond(serving: &Serving, generation: Generation, events: impl Events) -> Response {
    stream(serving, generation, EventWriter { events, buffer: BytesMut::new() })
}

/// The response that streams what is kept of an answer, and what comes of it.
pub(super) fn replay(serving: &Serving, reader: EventReader) -> Response {
    let next = reader.wanted();
    stream(serving, reader, Replay { next })
}

fn stream<S: Source>(serving: &Serving, source: S, writer: impl Writer<Given = S::Given, Item = Bytes>) -> Response {
    let body = Body::from_stream(feed(source, writer, &serving.limits, &serving.metrics));
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
    type Given = Vec<Delta>;
    type Item = Bytes;

    fn write(&mut self, deltas: Vec<Delta>) -> Option<Bytes> {
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

/// Hands on events as they were written when they came.
struct Replay {
    /// The number of the next.
    next: u64,
}

impl Writer for Replay {
    type Given = Replayed;
    type Item = Bytes;

    fn write(&mut self, Replayed { events, next }: Replayed) -> Option<Bytes> {
        self.next = next;
        (!events.is_empty()).then_some(events)
    }

    fn end(&mut self, last: Option<Bytes>) -> Bytes {
        last.unwrap_or_default()
    }

    fn error(&mut self, error: ApiError) -> Bytes {
        broken_off(self.next, &error).freeze()
    }

    fn keep_alive(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        keep_alive(&mut out);
        Some(out.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_handed_on_and_a_trouble_has_the_number_of_what_is_missing() {
        let mut replay = Replay { next: 3 };
        let piece = |events: &'static [u8], next| Replayed { events: Bytes::from_static(events), next };
        assert_eq!(replay.write(piece(b"event: a\ndata: 3\n\n", 4)).as_deref(), Some(&b"event: a\ndata: 3\n\n"[..]));
        assert_eq!(replay.write(piece(b"", 4)), None);
        assert_eq!(replay.end(None), Bytes::new());
        assert_eq!(replay.keep_alive().as_deref(), Some(&b": keep-alive\n\n"[..]));
        let told = replay.error(ApiError::TextQueueFull);
        assert!(told.starts_with(b"event: error\ndata: {\"type\":\"error\",\"sequence_number\":4,"), "{told:?}");
    }
}

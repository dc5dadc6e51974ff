//! A response's stream: numbered events with names, of which the last has the whole response.

use bytes::BytesMut;
use serde_json::{Value, json, to_value};

use super::{Done, ResponseForm, object::State, output::Output};
use crate::{
    api::stream::{Events, named_event},
    error::ApiError,
    generate::{Delta, Finish},
};

/// Keeps what a stream came to.
type Keep = Box<dyn FnOnce(Done) + Send>;

/// A response's stream that its client reads while it is made.
pub(crate) struct ResponseEvents {
    events: NumberedEvents,
    keep: Option<Keep>,
}

impl ResponseEvents {
    /// `keep` is told what it came to, unless nobody reads to the end.
    pub(crate) fn new(form: ResponseForm, keep: impl FnOnce(Done) + Send + 'static) -> Self {
        Self { events: NumberedEvents::new(form), keep: Some(Box::new(keep)) }
    }

    fn keep(&mut self, done: Done) {
        if let Some(keep) = self.keep.take() {
            keep(done);
        }
    }
}

impl Events for ResponseEvents {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        self.events.deltas(deltas, out);
    }

    fn end(&mut self, out: &mut BytesMut) {
        let done = self.events.end(out);
        self.keep(done);
    }

    fn error(&mut self, error: &ApiError, out: &mut BytesMut) {
        let done = self.events.error(error, out);
        self.keep(done);
    }
}

/// The events of a response, from 0 on.
pub(crate) struct NumberedEvents {
    form: ResponseForm,
    output: Output,
    /// Events so far.
    count: u64,
    finish: Option<Finish>,
}

impl NumberedEvents {
    pub(crate) fn new(form: ResponseForm) -> Self {
        let output = Output::new(form.shows_logprobs.clone());
        Self { form, output, count: 0, finish: None }
    }

    /// Writes the first events, by which a client learns the response's id. Does nothing if they have been written.
    pub(crate) fn begin(&mut self, out: &mut BytesMut) {
        if self.count == 0 {
            for kind in ["response.created", "response.in_progress"] {
                numbered(&mut self.count, kind, json!({ "response": self.form.in_progress() }), out);
            }
        }
    }

    pub(crate) fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        self.begin(out);
        for delta in deltas {
            if let Some(finish) = &delta.finish {
                self.finish = Some(finish.clone());
            }
            let count = &mut self.count;
            self.output.delta(delta, &mut |kind, fields| numbered(count, kind, fields, out));
        }
    }

    /// Writes the last event.
    pub(crate) fn end(&mut self, out: &mut BytesMut) -> Done {
        let finish = self.finish.take().expect("an answer without an end is an error, and was told as one");
        let output = std::mem::take(&mut self.output.items);
        let response = self.form.show(&State::Ended(&finish), &output);
        let kind = if response["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
        self.last(kind, Done { response, output }, out)
    }

    /// Writes the last events of a response that failed: what was begun is ended, too, and told as what there is.
    pub(crate) fn error(&mut self, error: &ApiError, out: &mut BytesMut) -> Done {
        self.begin(out);
        let count = &mut self.count;
        self.output.close("incomplete", &mut |kind, fields| numbered(count, kind, fields, out));
        let done = self.form.failed(error, &std::mem::take(&mut self.output.items));
        self.last("response.failed", done, out)
    }

    /// Writes the last events of a response that was cancelled: what was begun is ended. `response.incomplete` is the event that clients
    /// know of what came to no end of its own; the response in it says `cancelled`.
    pub(crate) fn cancelled(&mut self, out: &mut BytesMut) -> Done {
        self.begin(out);
        let count = &mut self.count;
        self.output.close("incomplete", &mut |kind, fields| numbered(count, kind, fields, out));
        let response = self.form.show(&State::Cancelled, &std::mem::take(&mut self.output.items));
        self.last("response.incomplete", Done { response, output: Vec::new() }, out)
    }

    fn last(&mut self, kind: &'static str, done: Done, out: &mut BytesMut) -> Done {
        numbered(&mut self.count, kind, json!({ "response": done.response }), out);
        done
    }
}

/// The last event of a stream that cannot go on, though its response may.
pub(crate) fn broken_off(number: u64, error: &ApiError) -> BytesMut {
    let told = to_value(error.envelope().error).expect("texts and numbers are JSON");
    let fields = json!({ "code": told["code_name"], "message": told["message"], "param": told["param"] });
    let mut out = BytesMut::new();
    write(number, "error", fields, &mut out);
    out
}

fn numbered(count: &mut u64, kind: &'static str, fields: Value, out: &mut BytesMut) {
    write(*count, kind, fields, out);
    *count += 1;
}

fn write(number: u64, kind: &'static str, fields: Value, out: &mut BytesMut) {
    let mut value = json!({ "type": kind, "sequence_number": number });
    if let (Some(members), Value::Object(fields)) = (value.as_object_mut(), fields) {
        members.extend(fields);
    }
    named_event(out, kind, &value);
}

//! A response's stream: numbered events with names, of which the last has the whole response.

use bytes::BytesMut;
use serde_json::{Value, json};

use super::{Done, ResponseForm, object::State, output::Output};
use crate::{
    api::stream::{Events, named_event},
    error::ApiError,
    generate::{Delta, Finish},
};

/// Keeps what a stream came to.
type Keep = Box<dyn FnOnce(Done) + Send>;

/// A response's stream.
pub(crate) struct ResponseEvents {
    form: ResponseForm,
    output: Output,
    /// Events so far.
    count: u64,
    finish: Option<Finish>,
    keep: Option<Keep>,
}

impl ResponseEvents {
    /// `keep` is told what it came to, unless nobody reads to the end.
    pub(crate) fn new(form: ResponseForm, keep: impl FnOnce(Done) + Send + 'static) -> Self {
        let output = Output::new(form.shows_logprobs.clone());
        Self { form, output, count: 0, finish: None, keep: Some(Box::new(keep)) }
    }

    fn begin(&mut self, out: &mut BytesMut) {
        if self.count == 0 {
            for kind in ["response.created", "response.in_progress"] {
                numbered(&mut self.count, kind, json!({ "response": self.form.in_progress() }), out);
            }
        }
    }

    fn last(&mut self, kind: &'static str, done: Done, out: &mut BytesMut) {
        numbered(&mut self.count, kind, json!({ "response": done.response }), out);
        if let Some(keep) = self.keep.take() {
            keep(done);
        }
    }
}

fn numbered(count: &mut u64, kind: &'static str, fields: Value, out: &mut BytesMut) {
    let mut value = json!({ "type": kind, "sequence_number": *count });
    if let (Some(members), Value::Object(fields)) = (value.as_object_mut(), fields) {
        members.extend(fields);
    }
    *count += 1;
    named_event(out, kind, &value);
}

impl Events for ResponseEvents {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        self.begin(out);
        for delta in deltas {
            if let Some(finish) = &delta.finish {
                self.finish = Some(finish.clone());
            }
            let count = &mut self.count;
            self.output.delta(delta, &mut |kind, fields| numbered(count, kind, fields, out));
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        let finish = self.finish.take().expect("an answer without an end is an error, and was told as one");
        let output = std::mem::take(&mut self.output.items);
        let response = self.form.show(&State::Ended(&finish), &output);
        let kind = if response["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
        self.last(kind, Done { response, output }, out);
    }

    fn error(&mut self, error: &ApiError, out: &mut BytesMut) {
        self.begin(out);
        let done = self.form.failed(error);
        self.last("response.failed", done, out);
    }
}

//! A message's stream: blocks that begin, grow and end, one after the other.

use bytes::BytesMut;
use serde_json::{Value, json};

use super::{
    ErrorBody, MessageForm,
    message::{End, MessageUsage, SIGNATURE, Thoughts},
};
use crate::{
    api::{
        parts::{Part, parts},
        stream::{Events, named_event},
    },
    error::ApiError,
    generate::{CallPiece, Delta, Finish},
};

/// The block that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    /// Of this number within the answer.
    Call(usize),
}

/// A message's stream.
pub(crate) struct MessageEvents {
    form: MessageForm,
    has_begun: bool,
    open: Option<Block>,
    /// Blocks that have ended, so the index of the open one.
    ended: usize,
}

impl MessageEvents {
    pub(crate) fn new(form: MessageForm) -> Self {
        Self { form, has_begun: false, open: None, ended: 0 }
    }

    fn begin(&mut self, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.has_begun, true) {
            named_event(out, "message_start", &json!({ "type": "message_start", "message": self.form.empty() }));
        }
    }

    /// Makes this block the open one; `content` is what it begins as.
    fn open(&mut self, block: Block, content: impl FnOnce() -> Value, out: &mut BytesMut) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        self.open = Some(block);
        let kind = "content_block_start";
        named_event(out, kind, &json!({ "type": kind, "index": self.ended, "content_block": content() }));
    }

    fn grow(&self, delta: &Value, out: &mut BytesMut) {
        let kind = "content_block_delta";
        named_event(out, kind, &json!({ "type": kind, "index": self.ended, "delta": delta }));
    }

    fn close(&mut self, out: &mut BytesMut) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            self.grow(&json!({ "type": "signature_delta", "signature": SIGNATURE }), out);
        }
        let kind = "content_block_stop";
        named_event(out, kind, &json!({ "type": kind, "index": self.ended }));
        self.ended += 1;
    }

    fn part(&mut self, part: Part, out: &mut BytesMut) {
        match part {
            Part::Thought(thought) => {
                self.open(Block::Thinking, || json!({ "type": "thinking", "thinking": "", "signature": "" }), out);
                if self.form.thoughts == Thoughts::Told {
                    self.grow(&json!({ "type": "thinking_delta", "thinking": thought }), out);
                }
            }
            Part::Text(text) => {
                self.open(Block::Text, || json!({ "type": "text", "text": "", "citations": null }), out);
                self.grow(&json!({ "type": "text_delta", "text": text }), out);
            }
            Part::Call(CallPiece::Start { index, id, name }) => {
                let content = || json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.open(Block::Call(index), content, out);
            }
            Part::Call(CallPiece::Arguments { index, delta }) => {
                assert_eq!(self.open, Some(Block::Call(index)), "arguments follow the beginning of their call");
                self.grow(&json!({ "type": "input_json_delta", "partial_json": delta }), out);
            }
        }
    }

    fn finish(&mut self, finish: &Finish, out: &mut BytesMut) {
        self.close(out);
        let usage = MessageUsage::from(finish.usage);
        let kind = "message_delta";
        named_event(out, kind, &json!({ "type": kind, "delta": End::from(finish), "usage": usage }));
    }
}

impl Events for MessageEvents {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        for delta in deltas {
            self.begin(out);
            let Delta { choice: _, reasoning, text, calls, scores: _, tokens: _, finish } = delta;
            let reasoning = if self.form.thoughts == Thoughts::Hidden { String::new() } else { reasoning };
            let open_call = self.open.and_then(|block| if let Block::Call(index) = block { Some(index) } else { None });
            for part in parts(reasoning, text, calls, open_call) {
                self.part(part, out);
            }
            if let Some(finish) = &finish {
                self.finish(finish, out);
            }
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        named_event(out, "message_stop", &json!({ "type": "message_stop" }));
    }

    fn keep_alive(&mut self, out: &mut BytesMut) {
        named_event(out, "ping", &json!({ "type": "ping" }));
    }

    fn error(&mut self, error: &ApiError, out: &mut BytesMut) {
        named_event(out, "error", &ErrorBody::new(error, &self.form.request_id));
    }
}

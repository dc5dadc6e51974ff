//! An answer as it becomes items: each begins, grows and ends, and each change is an event.
//!
//! A whole answer goes the same way as a streamed one, with nobody listening.

use pelton_text::Tokenizer;
use serde_json::{Value, json};

use super::{new_id, output_text};
use crate::{
    api::{json::value_of, logprobs::ChatLogprobs},
    generate::{CallPiece, Delta, Drawn, Ending, Part, TokenKind},
};

/// Takes an event's type and its fields.
pub(super) type Emit<'a> = &'a mut dyn FnMut(&'static str, Value);

/// The items of an answer.
pub(super) struct Output {
    /// Those that have ended.
    pub(super) items: Vec<Value>,
    open: Option<Open>,
    /// Log-probabilities of text that is held back still.
    pending: Vec<Value>,
    /// With which log-probabilities are shown, if they are wanted.
    shows_logprobs: Option<Tokenizer>,
}

/// The item that grows.
struct Open {
    id: String,
    kind: Kind,
}

enum Kind {
    Thought { text: String },
    Text { text: String, logprobs: Vec<Value> },
    Call { call_id: String, name: String, arguments: String },
}

impl Output {
    pub(super) fn new(shows_logprobs: Option<Tokenizer>) -> Self {
        Self { items: Vec::new(), open: None, pending: Vec::new(), shows_logprobs }
    }

    pub(super) fn delta(&mut self, delta: Delta, emit: Emit<'_>) {
        let Delta { choice: _, said, scores: _, tokens, finish } = delta;
        self.take_logprobs(&tokens);
        said.into_parts().for_each(|part| self.part(part, emit));
        if let Some(finish) = finish {
            let is_cut = matches!(finish.ending, Ending::Length | Ending::Repetition);
            self.close(if is_cut { "incomplete" } else { "completed" }, emit);
        }
    }

    fn take_logprobs(&mut self, tokens: &[Drawn]) {
        let Some(tokenizer) = &self.shows_logprobs else { return };
        let of_text: Vec<Drawn> = tokens.iter().filter(|drawn| drawn.kind == TokenKind::Text).cloned().collect();
        let shown = value_of(&ChatLogprobs::new(tokenizer, &of_text)).expect("numbers and texts are JSON");
        self.pending.extend(shown["content"].as_array().cloned().unwrap_or_default());
    }

    fn part(&mut self, part: Part, emit: Emit<'_>) {
        match part {
            Part::Thought(thought) => {
                if !matches!(&self.open, Some(Open { kind: Kind::Thought { .. }, .. })) {
                    self.begin("rs", Kind::Thought { text: String::new() }, emit);
                }
                self.grow(&thought, emit);
            }
            Part::Text(more) => {
                if !matches!(&self.open, Some(Open { kind: Kind::Text { .. }, .. })) {
                    self.begin("msg", Kind::Text { text: String::new(), logprobs: Vec::new() }, emit);
                }
                self.grow(&more, emit);
            }
            Part::Call(CallPiece::Start { id, name, .. }) => {
                self.begin("fc", Kind::Call { call_id: id, name, arguments: String::new() }, emit);
                self.pending.clear(); // what a call was written with is no text's
            }
            Part::Call(CallPiece::Arguments { delta, .. }) => self.grow(&delta, emit),
        }
    }

    fn begin(&mut self, prefix: &str, kind: Kind, emit: Emit<'_>) {
        self.close("completed", emit);
        let open = Open { id: new_id(prefix), kind };
        let at = self.items.len();
        let item = match &open.kind {
            Kind::Call { .. } => open.item("in_progress"),
            Kind::Thought { .. } | Kind::Text { .. } => open.item_with("in_progress", &[]),
        };
        emit("response.output_item.added", json!({ "output_index": at, "item": item }));
        if let Some(part) = open.part() {
            let fields = json!({ "item_id": open.id, "output_index": at, "content_index": 0, "part": part });
            emit("response.content_part.added", fields);
        }
        self.open = Some(open);
    }

    fn grow(&mut self, more: &str, emit: Emit<'_>) {
        let at = self.items.len();
        let Some(Open { id, kind }) = &mut self.open else { panic!("an item was begun before it grows") };
        match kind {
            Kind::Thought { text } => {
                text.push_str(more);
                let fields = json!({ "item_id": id, "output_index": at, "content_index": 0, "delta": more });
                emit("response.reasoning_text.delta", fields);
            }
            Kind::Text { text, logprobs } => {
                text.push_str(more);
                let fields = json!({ "item_id": id, "output_index": at, "content_index": 0, "delta": more,
                                     "logprobs": self.pending });
                emit("response.output_text.delta", fields);
                logprobs.append(&mut self.pending);
            }
            Kind::Call { arguments, .. } => {
                arguments.push_str(more);
                let fields = json!({ "item_id": id, "output_index": at, "delta": more });
                emit("response.function_call_arguments.delta", fields);
            }
        }
    }

    /// Ends the item that is open.
    pub(super) fn close(&mut self, status: &'static str, emit: Emit<'_>) {
        let Some(mut open) = self.open.take() else { return };
        let at = self.items.len();
        match &mut open.kind {
            Kind::Thought { text } => {
                let fields = json!({ "item_id": open.id, "output_index": at, "content_index": 0, "text": text });
                emit("response.reasoning_text.done", fields);
            }
            Kind::Text { text, logprobs } => {
                logprobs.append(&mut self.pending);
                let fields = json!({ "item_id": open.id, "output_index": at, "content_index": 0, "text": text,
                                     "logprobs": logprobs });
                emit("response.output_text.done", fields);
            }
            Kind::Call { name, arguments, .. } => {
                let fields = json!({ "item_id": open.id, "output_index": at, "name": name, "arguments": arguments });
                emit("response.function_call_arguments.done", fields);
            }
        }
        if let Some(part) = open.part() {
            let fields = json!({ "item_id": open.id, "output_index": at, "content_index": 0, "part": part });
            emit("response.content_part.done", fields);
        }
        let item = open.item(status);
        emit("response.output_item.done", json!({ "output_index": at, "item": item }));
        self.items.push(item);
    }
}

impl Open {
    /// The one part of its content; calls have none.
    fn part(&self) -> Option<Value> {
        match &self.kind {
            Kind::Thought { text } => Some(json!({ "type": "reasoning_text", "text": text })),
            Kind::Text { text, logprobs } => Some(output_text(text, logprobs)),
            Kind::Call { .. } => None,
        }
    }

    fn item(&self, status: &str) -> Value {
        self.item_with(status, &self.part().into_iter().collect::<Vec<_>>())
    }

    fn item_with(&self, status: &str, content: &[Value]) -> Value {
        let id = &self.id;
        match &self.kind {
            Kind::Thought { .. } => {
                json!({ "id": id, "type": "reasoning", "status": status, "summary": [], "content": content })
            }
            Kind::Text { .. } => {
                json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
            }
            Kind::Call { call_id, name, arguments, .. } => {
                json!({ "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                        "arguments": arguments })
            }
        }
    }
}

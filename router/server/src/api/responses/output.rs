//! An answer as it becomes items: each begins, grows and ends, and each change is an event.
//!
//! A whole answer goes the same way as a streamed one, with nobody listening.

use std::collections::VecDeque;

use pelton_text::Tokenizer;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::{new_id, output_text};
use crate::{
    api::{json::value_of, logprobs::ChatLogprobs},
    generate::{CallPiece, Delta, Drawn, Ending, OneText, Part, TokenKind},
};

/// Takes an event's type and its fields.
pub(super) type Emit<'a> = &'a mut dyn FnMut(&'static str, Value);

/// The items of an answer.
pub(super) struct Output {
    /// Those that have ended.
    pub(super) items: Vec<Value>,
    open: Option<Open>,
    /// Sizes of all parts so far.
    said: usize,
    /// Tokens that belong to no part so far.
    pending: VecDeque<Drawn>,
    /// How much had been said with the last token that belongs to one.
    told: usize,
    /// With which log-probabilities are shown, if they are wanted.
    shows_logprobs: Option<Tokenizer>,
    one: OneText,
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
        Self {
            items: Vec::new(),
            open: None,
            said: 0,
            pending: VecDeque::new(),
            told: 0,
            shows_logprobs,
            one: OneText::default(),
        }
    }

    pub(super) fn delta(&mut self, delta: Delta, emit: Emit<'_>) {
        let Delta { choice: _, said, scores: _, tokens, finish } = delta;
        if self.shows_logprobs.is_some() {
            self.pending.extend(tokens);
        }
        said.into_parts().for_each(|part| self.part(part, emit));
        if let Some(finish) = finish {
            let is_cut = matches!(finish.ending, Ending::Length | Ending::Repetition);
            self.close(if is_cut { "incomplete" } else { "completed" }, emit);
        }
    }

    /// The log-probabilities of the next part: of the tokens up to the one with which all of it had been said. What comes behind that and
    /// says nothing belongs to the part behind it.
    fn logprobs(&mut self, part: &Part) -> Vec<Value> {
        self.said += part.size();
        let Some(tokenizer) = &self.shows_logprobs else { return Vec::new() };
        let last = self.pending.iter().position(|drawn| drawn.said >= self.said);
        let count = match last {
            _ if self.told >= self.said => 0, // the token with which it was said has said the part before it, too
            Some(at) => at + 1,
            None => self.pending.len(),
        };
        self.told = count.checked_sub(1).map_or(self.told, |last| self.pending[last].said);
        let its_own = self.pending.drain(..count);
        if !matches!(part, Part::Text(_)) {
            return Vec::new();
        }
        let (mut of_text, mut certain) = (Vec::new(), 0);
        for drawn in its_own {
            match drawn.kind {
                TokenKind::Text => {
                    of_text.push(drawn);
                    certain = of_text.len();
                }
                TokenKind::Held => of_text.push(drawn),
                // What was held was a mark.
                TokenKind::Beside => of_text.truncate(certain),
                TokenKind::Reasoning | TokenKind::End => {}
            }
        }
        let shown = value_of(&ChatLogprobs::new(tokenizer, &of_text)).expect("numbers and texts are JSON");
        shown["content"].as_array().cloned().unwrap_or_default()
    }

    fn part(&mut self, part: Part, emit: Emit<'_>) {
        let own = self.logprobs(&part);
        let is_dropped = part == Part::Dropped;
        let Some(part) = self.one.join_block(part, is_dropped) else { return };
        match part {
            Part::Thought(thought) => {
                if !matches!(&self.open, Some(Open { kind: Kind::Thought { .. }, .. })) {
                    self.begin("rs", Kind::Thought { text: String::new() }, emit);
                }
                self.grow(&thought, own, emit);
            }
            Part::Text(more) => {
                if !matches!(&self.open, Some(Open { kind: Kind::Text { .. }, .. })) {
                    self.begin("msg", Kind::Text { text: String::new(), logprobs: Vec::new() }, emit);
                }
                self.grow(&more, own, emit);
            }
            Part::Call(CallPiece::Start { id, name, .. }) => {
                self.begin("fc", Kind::Call { call_id: id, name, arguments: String::new() }, emit);
            }
            Part::Call(CallPiece::Arguments { delta, .. }) => self.grow(&delta, own, emit),
            Part::Dropped => {}
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

    /// `own`: the log-probabilities of `more`, if it is text.
    fn grow(&mut self, more: &str, own: Vec<Value>, emit: Emit<'_>) {
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
                                     "logprobs": own });
                emit("response.output_text.delta", fields);
                logprobs.extend(own);
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
        // What goes wrong in a call's midst is text beside it, and no call to run.
        let is_whole = match &open.kind {
            Kind::Call { arguments, .. } => serde_json::from_str::<IgnoredAny>(arguments).is_ok(),
            Kind::Thought { .. } | Kind::Text { .. } => true,
        };
        let item = open.item(if is_whole { status } else { "incomplete" });
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

//! A message's stream: blocks that begin, grow and end, one after the other.

use bytes::BytesMut;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Map;

use super::{
    ErrorBody, MessageForm,
    message::{Block, End, Message, MessageUsage, SIGNATURE, Thoughts},
};
use crate::{
    api::stream::{Events, named_event},
    error::ApiError,
    generate::{CallPiece, Delta, Finish, OneText, Part},
};

/// What the data of an event is.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "MessageEvent")]
pub(crate) enum Event<'a> {
    Told(Told<'a>),
    /// In the place of whatever would follow.
    Error(ErrorBody<'a>),
}

/// An event of a message that is under way. Its name is its type.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageEventTold")]
pub(crate) enum Told<'a> {
    /// The first one; the message is empty.
    MessageStart { message: Message<'a> },
    /// A block begins, empty.
    ContentBlockStart { index: usize, content_block: Block },
    /// The block grows.
    ContentBlockDelta { index: usize, delta: BlockDelta },
    /// The block has ended.
    ContentBlockStop { index: usize },
    /// Why the message ended, and what it took.
    MessageDelta { delta: End, usage: MessageUsage },
    /// The last one.
    MessageStop {},
    /// Nothing has come for a while.
    Ping {},
}

/// What a block grows by.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "MessageBlockDelta")]
pub(crate) enum BlockDelta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

impl Told<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop {} => "message_stop",
            Self::Ping {} => "ping",
        }
    }

    fn write(self, out: &mut BytesMut) {
        let name = self.name();
        named_event(out, name, &Event::Told(self));
    }
}

/// The block that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growing {
    Thinking,
    Text,
    /// Of this number within the answer.
    Call(usize),
}

/// A message's stream.
pub(crate) struct MessageEvents {
    form: MessageForm,
    has_begun: bool,
    open: Option<Growing>,
    /// Blocks that have ended, so the index of the open one.
    ended: usize,
    one: OneText,
}

impl MessageEvents {
    pub(crate) fn new(form: MessageForm) -> Self {
        Self { form, has_begun: false, open: None, ended: 0, one: OneText::default() }
    }

    fn begin(&mut self, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.has_begun, true) {
            Told::MessageStart { message: self.form.empty() }.write(out);
        }
    }

    /// Makes this block the open one; `content` is what it begins as.
    fn open(&mut self, block: Growing, content_block: Block, out: &mut BytesMut) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        self.open = Some(block);
        Told::ContentBlockStart { index: self.ended, content_block }.write(out);
    }

    fn grow(&self, delta: BlockDelta, out: &mut BytesMut) {
        Told::ContentBlockDelta { index: self.ended, delta }.write(out);
    }

    fn close(&mut self, out: &mut BytesMut) {
        let Some(block) = self.open.take() else { return };
        if block == Growing::Thinking {
            self.grow(BlockDelta::Signature { signature: SIGNATURE }, out);
        }
        Told::ContentBlockStop { index: self.ended }.write(out);
        self.ended += 1;
    }

    fn part(&mut self, part: Part, out: &mut BytesMut) {
        let Some(part) = self.form.told(&mut self.one, part) else { return };
        match part {
            Part::Thought(thinking) => {
                self.open(Growing::Thinking, Block::Thinking { thinking: String::new(), signature: "" }, out);
                if self.form.thoughts == Thoughts::Told {
                    self.grow(BlockDelta::Thinking { thinking }, out);
                }
            }
            Part::Text(text) => {
                self.open(Growing::Text, Block::Text { text: String::new(), citations: None }, out);
                self.grow(BlockDelta::Text { text }, out);
            }
            Part::Call(CallPiece::Start { index, id, name }) => {
                self.open(Growing::Call(index), Block::ToolUse { id, name, input: Map::new() }, out);
            }
            Part::Call(CallPiece::Arguments { index, delta }) => {
                assert_eq!(self.open, Some(Growing::Call(index)), "arguments follow the beginning of their call");
                self.grow(BlockDelta::InputJson { partial_json: delta }, out);
            }
            Part::Dropped => {}
        }
    }

    fn finish(&mut self, finish: &Finish, out: &mut BytesMut) {
        self.close(out);
        Told::MessageDelta { delta: self.form.end(finish), usage: MessageUsage::from(finish.usage) }.write(out);
    }
}

impl Events for MessageEvents {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        for delta in deltas {
            self.begin(out);
            let Delta { choice: _, said, scores: _, tokens: _, finish } = delta;
            said.into_parts().for_each(|part| self.part(part, out));
            if let Some(finish) = &finish {
                self.finish(finish, out);
            }
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        Told::MessageStop {}.write(out);
    }

    fn keep_alive(&mut self, out: &mut BytesMut) {
        Told::Ping {}.write(out);
    }

    fn error(&mut self, error: &ApiError, out: &mut BytesMut) {
        named_event(out, "error", &Event::Error(ErrorBody::new(error, &self.form.request_id)));
    }
}

//! A whole message, and what streams share with it: blocks, the reason of the end, usage.

use pelton_engine::Usage as AnswerUsage;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::cut::input_of;
use crate::generate::{Block as SaidBlock, Call, Ending, Finish, OneText, Part, Said, StopCause, Whole};

/// Stands where Anthropic proves that a thought is its own. Clients drop thoughts that have nothing there.
pub(super) const SIGNATURE: &str = "unsigned";

/// What a message tells of the model's thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thoughts {
    /// Nothing: nobody asked for any.
    Hidden,
    /// That there were some, in a block without text.
    Omitted,
    /// All of them.
    Told,
}

/// How a message is shown, in streams and whole.
pub(crate) struct MessageForm {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) thoughts: Thoughts,
    /// Tokens of the answer that were asked for.
    pub(crate) max_tokens: u32,
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    pub(crate) request_id: String,
}

/// A message. In a stream's first event it is empty.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block>,
    #[serde(flatten)]
    end: End,
    usage: MessageUsage,
}

/// A part of a message.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageBlock")]
pub(crate) enum Block {
    /// What the model thought.
    Thinking { thinking: String, signature: &'static str },
    /// What it says; nothing is cited.
    Text { text: String, citations: Option<()> },
    /// What is to be called.
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

/// Why a message ended; `null` while it has not.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct End {
    #[schemars(extend("enum" = ["max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use", "end_turn", null]))]
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
}

/// Tokens that a message took. Those of the prompt are divided into read from the cache and others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct MessageUsage {
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
}

impl From<AnswerUsage> for MessageUsage {
    fn from(AnswerUsage { prompt, cached, completion }: AnswerUsage) -> Self {
        Self {
            input_tokens: prompt - cached,
            // Nobody pays for writing: what is new enters the cache anyway, and is among `input_tokens`.
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: completion,
        }
    }
}

impl MessageForm {
    pub(super) fn end(&self, finish: &Finish) -> End {
        let because = |stop_reason| End { stop_reason: Some(stop_reason), stop_sequence: None };
        match &finish.ending {
            Ending::Length if finish.usage.completion < self.max_tokens => because("model_context_window_exceeded"),
            Ending::Length => because("max_tokens"),
            Ending::Stop(StopCause::Text(text)) => {
                End { stop_sequence: Some(text.clone()), ..because("stop_sequence") }
            }
            Ending::Stop(_) if finish.has_calls => because("tool_use"),
            Ending::Stop(_) | Ending::Repetition => because("end_turn"),
        }
    }

    /// What a stream begins with: how much of the prompt is cached is known at its end.
    pub(super) fn empty(&self) -> Message<'_> {
        let prompt = u32::try_from(self.prompt).expect("prompts fit the context");
        self.message(Vec::new(), End::default(), AnswerUsage { prompt, ..AnswerUsage::default() })
    }

    pub(crate) fn whole(&self, answer: Whole) -> Message<'_> {
        let Whole { said, scores: _, tokens: _, finish } = answer;
        let mut one = OneText::default();
        let told = Said::of(said.into_parts().filter_map(|part| self.told(&mut one, part)));
        let content = told.blocks().into_iter().map(|block| match block {
            SaidBlock::Thought(thinking) => {
                let thinking = if self.thoughts == Thoughts::Told { thinking } else { String::new() };
                Block::Thinking { thinking, signature: SIGNATURE }
            }
            SaidBlock::Text(text) => Block::Text { text, citations: None },
            SaidBlock::Call(call) => tool_use(call),
        });
        let content = content.collect();
        self.message(content, self.end(&finish), finish.usage)
    }

    /// A part as it is told; `None`: it is not. `one`: the text so far.
    pub(super) fn told(&self, one: &mut OneText, part: Part) -> Option<Part> {
        let is_hidden = match part {
            Part::Thought(_) => self.thoughts == Thoughts::Hidden,
            Part::Dropped => true,
            Part::Text(_) | Part::Call(_) => false,
        };
        one.join_block(part, is_hidden)
    }

    fn message(&self, content: Vec<Block>, end: End, usage: AnswerUsage) -> Message<'_> {
        let (id, model, usage) = (&self.id, &self.model, usage.into());
        Message { id, kind: "message", role: "assistant", model, content, end, usage }
    }
}

fn tool_use(Call { id, name, arguments }: Call) -> Block {
    Block::ToolUse { id, name, input: input_of(&arguments) }
}

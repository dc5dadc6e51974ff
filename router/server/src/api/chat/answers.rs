//! What is answered to a chat, whole and as a stream.

use bytes::BytesMut;
use pelton_engine::{TokenId, TokenScore};
use pelton_text::Tokenizer;
use schemars::JsonSchema;
use serde::Serialize;

use super::{ChatRequest, ShownTokens};
use crate::{
    api::{
        StopReason, StreamOptions, finish_reason, finish_reason_of_named,
        logprobs::ChatLogprobs,
        prompt_logprobs::PromptLogprobs,
        stop_reason,
        stream::{Events, Head, Shown, done, event},
        unserved::TIER_USED,
        usage::{Usage, UsageSum},
    },
    generate::{
        Block, Call, CallPiece, Delta, Demand, Drawn, Finish, Generation, OneText, Part, PreparedPrompt, Said, Whole,
    },
};

/// A whole response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatResponse<'a> {
    #[serde(flatten)]
    head: &'a Head,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_tier: Option<&'static str>,
    choices: Vec<Choice<'a>>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatChoice")]
struct Choice<'a> {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs<'a>>,
    #[schemars(extend("enum" = ["stop", "length", "tool_calls", "repetition"]))]
    finish_reason: &'static str,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatAnswer")]
struct Message {
    role: &'static str,
    /// `null` if the answer is calls or reasoning alone.
    content: Option<String>,
    #[serde(flatten)]
    reasoning: Reasoning,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WholeCall>,
}

/// Under both names that clients read: vLLM's, and DeepSeek's, which was vLLM's before. Absent if there is none.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ChatReasoning")]
struct Reasoning {
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
}

impl Reasoning {
    fn of(text: String) -> Self {
        let text = (!text.is_empty()).then_some(text);
        Self { reasoning: text.clone(), reasoning_content: text }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatCall")]
struct WholeCall {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WholeFunction,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatCallFunction")]
struct WholeFunction {
    name: String,
    arguments: String,
}

impl From<Call> for WholeCall {
    fn from(Call { id, name, arguments }: Call) -> Self {
        Self { id, kind: "function", function: WholeFunction { name, arguments } }
    }
}

/// A piece of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatChunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_tier: Option<&'static str>,
    choices: Vec<ChunkChoice<'a>>,
    /// `null` on every chunk but the last, if usage is wanted at the end; OpenAI's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Shown<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatChunkChoice")]
struct ChunkChoice<'a> {
    index: usize,
    delta: MessageDelta,
    logprobs: Option<ChatLogprobs<'a>>,
    #[schemars(extend("enum" = ["stop", "length", "tool_calls", "repetition", null]))]
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Shown<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ChatDelta")]
struct MessageDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(flatten)]
    reasoning: Reasoning,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatCallDelta")]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatCallFunctionDelta")]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl From<CallPiece> for CallDelta {
    fn from(piece: CallPiece) -> Self {
        match piece {
            CallPiece::Start { index, id, name } => {
                let function = FunctionDelta { name: Some(name), arguments: String::new() };
                Self { index, id: Some(id), kind: Some("function"), function }
            }
            CallPiece::Arguments { index, delta } => {
                Self { index, id: None, kind: None, function: FunctionDelta { name: None, arguments: delta } }
            }
        }
    }
}

/// How choices are shown, in streams and whole.
pub(crate) struct ChatForm {
    pub(crate) head: Head,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) has_logprobs: bool,
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) shown: ShownTokens,
    pub(crate) echoed: String,
    /// If not, the tokens of it are left out, too.
    pub(crate) include_reasoning: bool,
    /// Told if it was asked for.
    pub(crate) service_tier: Option<&'static str>,
    /// Whether the request named the function to call.
    pub(crate) is_named: bool,
    pub(crate) prompt: PreparedPrompt,
    pub(crate) answers: usize,
}

impl ChatForm {
    pub(crate) fn new(head: Head, tokenizer: Tokenizer, request: &ChatRequest, generation: &Generation) -> Self {
        Self {
            head,
            tokenizer,
            has_logprobs: request.request.options.logprobs.is_some(),
            prompt_logprobs: request.request.options.prompt_logprobs,
            shown: request.shown,
            echoed: request.echoed.clone(),
            include_reasoning: request.include_reasoning,
            service_tier: request.tells_tier.then_some(TIER_USED),
            is_named: request.request.tools.as_ref().is_some_and(|tools| matches!(tools.demand, Demand::Named(_))),
            prompt: generation.prompts()[0].clone(),
            answers: generation.choices(),
        }
    }

    /// Leaves out what belongs to thoughts, unless they are told.
    fn without_hidden(&self, tokens: &mut Vec<Drawn>) {
        if !self.include_reasoning {
            tokens.retain(|drawn| !drawn.is_reasoning());
        }
    }

    /// Of what the model thought, that which is told.
    fn told(&self, reasoning: String, tokens: &mut Vec<Drawn>) -> Reasoning {
        self.without_hidden(tokens);
        if self.include_reasoning { Reasoning::of(reasoning) } else { Reasoning::default() }
    }

    fn logprobs(&self, tokens: &[Drawn]) -> Option<ChatLogprobs<'_>> {
        let told = if self.shown.names_by_id { ChatLogprobs::by_id } else { ChatLogprobs::new };
        (self.has_logprobs && !tokens.is_empty()).then(|| told(&self.tokenizer, tokens))
    }

    fn token_ids(&self, tokens: &[Drawn]) -> Option<Vec<TokenId>> {
        self.shown.ids.then(|| tokens.iter().map(|drawn| drawn.token).collect())
    }

    fn prompt_token_ids(&self) -> Option<&[TokenId]> {
        self.shown.ids.then_some(&*self.prompt.ids)
    }

    fn prompt_text(&self) -> Option<&str> {
        self.prompt.text.as_deref().filter(|_| self.shown.prompt_text)
    }

    fn prompt_logprobs(&self, scores: &[TokenScore]) -> Option<PromptLogprobs> {
        self.prompt_logprobs.map(|top| PromptLogprobs::new(&self.tokenizer, &self.prompt.ids, scores, top))
    }

    fn finish_reason(&self, finish: &Finish) -> &'static str {
        if self.is_named { finish_reason_of_named(finish) } else { finish_reason(finish) }
    }

    fn usage(&self) -> UsageSum {
        UsageSum::new([self.prompt.ids.len()], self.answers)
    }

    pub(crate) fn whole(&self, answers: Vec<Whole>) -> ChatResponse<'_> {
        let mut usage = self.usage();
        let mut choices = Vec::with_capacity(answers.len());
        let prompt_logprobs = self.prompt_logprobs(answers.first().map_or(&[], |answer| &answer.scores));
        for (index, mut answer) in answers.into_iter().enumerate() {
            usage.finished(index, &answer.finish);
            let (mut calls, mut reasoning, mut text) = (Vec::new(), String::new(), self.echoed.clone());
            let mut one = OneText::behind(&self.echoed);
            for block in Said::of(answer.said.into_parts().map(|part| one.join(part))).blocks() {
                match block {
                    Block::Thought(more) => reasoning.push_str(&more),
                    Block::Text(more) => text.push_str(&more),
                    Block::Call(call) => calls.push(WholeCall::from(call)),
                }
            }
            let has_more = !calls.is_empty() || !reasoning.is_empty();
            let has_content = !text.is_empty() || !has_more;
            let reasoning = self.told(reasoning, &mut answer.tokens);
            choices.push(Choice {
                index,
                logprobs: self.logprobs(&answer.tokens),
                finish_reason: self.finish_reason(&answer.finish),
                stop_reason: stop_reason(&answer.finish),
                token_ids: self.token_ids(&answer.tokens),
                message: Message {
                    role: "assistant",
                    content: has_content.then_some(text),
                    reasoning,
                    refusal: None,
                    tool_calls: calls,
                },
            });
        }
        let (usage, prompt_token_ids, prompt_text) = (usage.total(), self.prompt_token_ids(), self.prompt_text());
        let (head, service_tier) = (&self.head, self.service_tier);
        ChatResponse { head, service_tier, choices, usage, prompt_token_ids, prompt_text, prompt_logprobs }
    }
}

/// A chat's stream.
pub(crate) struct ChatEvents {
    form: ChatForm,
    options: StreamOptions,
    usage: UsageSum,
    has_begun: Vec<bool>,
    texts: Vec<OneText>,
    /// Whether the prompt's tokens were shown, on the first chunk of all.
    has_shown_prompt: bool,
}

impl ChatEvents {
    pub(crate) fn new(form: ChatForm, options: StreamOptions) -> Self {
        Self {
            usage: form.usage(),
            has_begun: vec![false; form.answers],
            texts: vec![OneText::behind(&form.echoed); form.answers],
            form,
            options,
            has_shown_prompt: false,
        }
    }

    fn chunk(
        &mut self,
        index: usize,
        delta: MessageDelta,
        scores: &[TokenScore],
        tokens: &[Drawn],
        finish: Option<&Finish>,
        out: &mut BytesMut,
    ) {
        let usage = match self.options {
            StreamOptions { continuous_usage: true, .. } => Some(Some(self.usage.of_choice(index))),
            StreamOptions { include_usage: true, .. } => Some(None),
            _ => None,
        };
        let is_first = !std::mem::replace(&mut self.has_shown_prompt, true);
        let choice = ChunkChoice {
            index,
            delta,
            logprobs: self.form.logprobs(tokens),
            finish_reason: finish.map(|finish| self.form.finish_reason(finish)),
            stop_reason: finish.map(stop_reason),
            token_ids: self.form.token_ids(tokens).filter(|ids| !ids.is_empty()),
        };
        let prompt_token_ids = self.form.prompt_token_ids().filter(|_| is_first);
        let prompt_text = self.form.prompt_text().filter(|_| is_first);
        let prompt_logprobs = self.form.prompt_logprobs(scores).filter(|_| is_first);
        let (head, service_tier, choices) = (&self.form.head, self.form.service_tier, vec![choice]);
        let chunk = ChatChunk { head, service_tier, choices, usage, prompt_token_ids, prompt_text, prompt_logprobs };
        event(out, &chunk);
    }
}

impl Events for ChatEvents {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        for delta in deltas {
            let Delta { choice: index, said, scores, mut tokens, finish } = delta;
            // The chunk that tells the role tells no token, and counts none.
            if !std::mem::replace(&mut self.has_begun[index], true) {
                let content = Some(self.form.echoed.clone());
                let role = MessageDelta { role: Some("assistant"), content, ..MessageDelta::default() };
                self.chunk(index, role, &scores, &[], None, out);
            }
            self.usage.drawn(index, tokens.len());
            if let Some(finish) = &finish {
                self.usage.finished(index, finish);
            }
            self.form.without_hidden(&mut tokens);
            let (thoughts_are_told, one) = (self.form.include_reasoning, &mut self.texts[index]);
            let told = said.into_parts().map(|part| one.join(part));
            let mut told = in_chunks(told.filter(|part| thoughts_are_told || !matches!(part, Part::Thought(_))));
            let shows_tokens = (self.form.has_logprobs || self.form.shown.ids) && !tokens.is_empty();
            // Text that is held back makes no chunk, unless its tokens are wanted.
            if told.is_empty() && finish.is_none() && !shows_tokens {
                continue;
            }
            let last = told.pop().unwrap_or_default();
            told.into_iter().for_each(|delta| self.chunk(index, delta, &[], &[], None, out));
            self.chunk(index, last, &[], &tokens, finish.as_ref(), out);
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        if self.options.include_usage {
            let usage = Some(Some(self.usage.total()));
            let chunk = ChatChunk {
                head: &self.form.head,
                service_tier: self.form.service_tier,
                choices: Vec::new(),
                usage,
                prompt_token_ids: None,
                prompt_text: None,
                prompt_logprobs: None,
            };
            event(out, &chunk);
        }
        done(out);
    }
}

/// What is said, in as many chunks as it takes to keep its order. A chunk has one part of a call at most, as OpenAI sends them: many
/// clients read the first alone.
fn in_chunks(parts: impl Iterator<Item = Part>) -> Vec<MessageDelta> {
    let mut chunks: Vec<MessageDelta> = Vec::new();
    for part in parts {
        let last = chunks.last_mut().filter(|last| last.tool_calls.is_empty());
        match (part, last) {
            (Part::Text(text), Some(last)) if last.content.is_none() => last.content = Some(text),
            (Part::Call(piece), Some(last)) => last.tool_calls.push(piece.into()),
            (Part::Text(text), _) => chunks.push(MessageDelta { content: Some(text), ..MessageDelta::default() }),
            (Part::Thought(text), _) => {
                chunks.push(MessageDelta { reasoning: Reasoning::of(text), ..MessageDelta::default() });
            }
            (Part::Call(piece), None) => {
                chunks.push(MessageDelta { tool_calls: vec![piece.into()], ..MessageDelta::default() });
            }
            (Part::Dropped, _) => {}
        }
    }
    chunks
}

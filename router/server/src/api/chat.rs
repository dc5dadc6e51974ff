//! `/v1/chat/completions`: its request, its response, its stream.

use std::sync::Arc;

use bytes::BytesMut;
use pelton_engine::{TokenId, TokenScore};
use pelton_text::{ChatInput, Tokenizer};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};

use super::{
    StopReason, StreamOptions,
    constrained::{FORMATS, STRUCTURED},
    fields::{Fields, check_nesting},
    finish_reason,
    logprobs::ChatLogprobs,
    messages::{MESSAGES, read_messages},
    models::{MODEL, read_model},
    prompt_logprobs::{PROMPT_LOGPROBS, PromptLogprobs},
    sampling::{N, REQUEST_ID, SAMPLING, STREAM, read_options, read_request_id, read_stream},
    shape::{Field, Kind, Most, Shape, optional, with_default},
    stop_reason,
    stream::{Events, Head, Shown, done, event},
    thinking::{EFFORT, read_effort, set_effort},
    tools::{TOOLS, read_tools},
    unserved::{self, BOOKS, refuse_in_chat},
    usage::{Usage, UsageSum},
};
use crate::{
    error::ApiError,
    generate::{Call, CallPiece, Delta, Drawn, Finish, Generation, Prompt, Request, ToolUse, Whole, now},
};

/// The body of a chat request.
pub(crate) const CHAT: Shape = Shape {
    name: "ChatRequest",
    about: "A conversation to be continued.",
    fields: &[
        &[
            MODEL,
            MESSAGES,
            optional("max_tokens", Kind::Integer(1, Most::Context), "The older name of `max_completion_tokens`."),
            optional(
                "max_completion_tokens",
                Kind::Integer(1, Most::Context),
                "Tokens of an answer at most; left out: all that the context leaves.",
            ),
            with_default("logprobs", Kind::Flag, "false", "Whether log-probabilities of the answer's tokens are told."),
            optional(
                "top_logprobs",
                Kind::Integer(0, Most::Logprobs),
                "How many likeliest tokens are told beside each drawn one; needs `logprobs`: true.",
            ),
            PROMPT_LOGPROBS,
            with_default(
                "add_special_tokens",
                Kind::Flag,
                "false",
                "Whether the tokenizer adds its special tokens to what the template made.",
            ),
            with_default("return_token_ids", Kind::Flag, "false", "Whether the tokens of prompt and answer are told."),
            with_default("include_reasoning", Kind::Flag, "true", "Whether what the model thought is told."),
            REQUEST_ID,
        ],
        TOOLS,
        TEMPLATE,
        N,
        SAMPLING,
        STREAM,
        STRUCTURED,
        FORMATS,
        BOOKS,
    ],
    unserved: &[unserved::BOTH, unserved::CHAT],
};

/// What the template is told beside messages and tools.
pub(super) const TEMPLATE: &[Field] = &[
    optional("documents", Kind::List(&Kind::AnyObject, 0, Most::ANY), "For templates that know documents."),
    with_default(
        "continue_final_message",
        Kind::Flag,
        "false",
        "Whether the last message, the assistant's, is continued.",
    ),
    optional(
        "add_generation_prompt",
        Kind::Flag,
        "Whether an answer is begun; the opposite of `continue_final_message` if left out.",
    ),
    optional("chat_template_kwargs", Kind::AnyObject, "The template's own variables."),
    optional("reasoning_effort", EFFORT, "How hard to think, for templates that know it."),
];

/// A chat within another protocol.
const INPUT: Shape = Shape::new("ChatInput", "A conversation.", &[&[MESSAGES], TOOLS, TEMPLATE]);

/// A chat request, its types checked.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) model: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) return_token_ids: bool,
    /// Whether what the model thought is told.
    pub(crate) include_reasoning: bool,
    pub(crate) request: Request,
    /// What this request calls `max_tokens`: OpenAI renamed it.
    pub(crate) max_tokens_name: &'static str,
}

impl ChatRequest {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        refuse_in_chat(&mut fields)?;
        let model = read_model(&mut fields)?;
        let mut options = read_options(&mut fields)?;
        let older = fields.count("max_tokens")?;
        let newer = fields.count("max_completion_tokens")?;
        if let (Some(older), Some(newer)) = (older, newer)
            && older != newer
        {
            let reason = format!("is {older} and `max_completion_tokens` {newer}; they mean the same");
            return Err(ApiError::Conflict { param: "max_tokens".to_owned(), reason });
        }
        options.max_tokens = newer.or(older);
        options.logprobs = read_logprobs(&mut fields)?;
        options.prompt_logprobs = fields.count("prompt_logprobs")?;
        let (input, reading) = read_input(&mut fields)?;
        let add_special = fields.flag("add_special_tokens")?.unwrap_or(false);
        let stream = read_stream(&mut fields)?;
        let return_token_ids = fields.flag("return_token_ids")?.unwrap_or(false);
        let include_reasoning = fields.flag("include_reasoning")?.unwrap_or(true);
        let request_id = read_request_id(&mut fields)?;
        fields.finish(&CHAT)?;
        let prompts = vec![Prompt::Chat { input: Box::new(input), add_special }];
        let request = Request { prompts, options, echo: false, tools: reading };
        let max_tokens_name = if newer.is_some() { "max_completion_tokens" } else { "max_tokens" };
        Ok(Self { model, request_id, stream, return_token_ids, include_reasoning, request, max_tokens_name })
    }

    /// An error of the shared checks, by the names that chats use.
    pub(crate) fn renamed(&self, error: ApiError) -> ApiError {
        error.renamed(|param| match param {
            "max_tokens" => Some(self.max_tokens_name),
            "logprobs" => Some("top_logprobs"),
            _ => None,
        })
    }
}

fn read_logprobs(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let is_wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs")?;
    if top.is_some_and(|top| top > 0) && !is_wanted {
        let reason = "is only allowed together with `logprobs`: true".to_owned();
        return Err(ApiError::Conflict { param: fields.at("top_logprobs"), reason });
    }
    Ok(is_wanted.then(|| top.unwrap_or(0)))
}

/// A chat in a protocol that has an object for it, at `path`.
pub(crate) fn chat_of_json(path: &str, raw: &RawValue) -> Result<(ChatInput, Option<ToolUse>), ApiError> {
    check_nesting(raw.get().as_bytes())?;
    let mut fields = Fields::of_value(path.to_owned(), raw)?;
    let read = read_input(&mut fields)?;
    fields.finish(&INPUT)?;
    Ok(read)
}

/// Everything that the template is told. Shared with `/tokenize`.
pub(super) fn read_input(fields: &mut Fields<'_>) -> Result<(ChatInput, Option<ToolUse>), ApiError> {
    let messages = read_messages(fields)?;
    let (tools, reading) = read_tools(fields)?.unzip();
    let documents = fields.objects("documents")?.map(|_| fields.need("documents", "a list of objects")).transpose()?;
    let continue_final_message = fields.flag("continue_final_message")?.unwrap_or(false);
    let add_generation_prompt = fields.flag("add_generation_prompt")?;
    if continue_final_message && add_generation_prompt == Some(true) {
        let reason = "cannot go together with `add_generation_prompt`: true".to_owned();
        return Err(ApiError::Conflict { param: fields.at("continue_final_message"), reason });
    }
    let is_assistants = messages.last().is_some_and(|message| message["role"] == "assistant");
    if continue_final_message && !is_assistants {
        let reason = "needs a last message of the role \"assistant\"".to_owned();
        return Err(ApiError::Conflict { param: fields.at("continue_final_message"), reason });
    }
    let input = ChatInput {
        messages,
        tools,
        documents,
        template: None,
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        kwargs: read_kwargs(fields)?,
        now: now(),
    };
    Ok((input, reading))
}

/// The template's own variables, and what `reasoning_effort` says to it.
fn read_kwargs(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs: Map<String, Value> = fields.read("chat_template_kwargs", "an object")?.unwrap_or_default();
    if let Some(effort) = read_effort(fields, "reasoning_effort")? {
        set_effort(&mut kwargs, effort);
    }
    Ok(kwargs)
}

/// A whole response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatResponse<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<Choice<'a>>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
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
    choices: Vec<ChunkChoice<'a>>,
    /// `null` on every chunk but the last, if usage is wanted at the end; OpenAI's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Shown<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
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
    pub(crate) return_token_ids: bool,
    /// If not, the tokens of it are left out, too.
    pub(crate) include_reasoning: bool,
    pub(crate) prompt: Arc<[TokenId]>,
    pub(crate) answers: usize,
}

impl ChatForm {
    pub(crate) fn new(head: Head, tokenizer: Tokenizer, request: &ChatRequest, generation: &Generation) -> Self {
        Self {
            head,
            tokenizer,
            has_logprobs: request.request.options.logprobs.is_some(),
            prompt_logprobs: request.request.options.prompt_logprobs,
            return_token_ids: request.return_token_ids,
            include_reasoning: request.include_reasoning,
            prompt: Arc::clone(&generation.prompts()[0].ids),
            answers: generation.choices(),
        }
    }

    /// Of what the model thought, that which is told.
    fn told(&self, reasoning: String, tokens: &mut Vec<Drawn>) -> Reasoning {
        if self.include_reasoning {
            return Reasoning::of(reasoning);
        }
        tokens.retain(|drawn| !drawn.is_reasoning);
        Reasoning::default()
    }

    fn logprobs(&self, tokens: &[Drawn]) -> Option<ChatLogprobs<'_>> {
        (self.has_logprobs && !tokens.is_empty()).then(|| ChatLogprobs::new(&self.tokenizer, tokens))
    }

    fn token_ids(&self, tokens: &[Drawn]) -> Option<Vec<TokenId>> {
        self.return_token_ids.then(|| tokens.iter().map(|drawn| drawn.token).collect())
    }

    fn prompt_token_ids(&self) -> Option<&[TokenId]> {
        self.return_token_ids.then_some(&*self.prompt)
    }

    fn prompt_logprobs(&self, scores: &[TokenScore]) -> Option<PromptLogprobs> {
        self.prompt_logprobs.map(|top| PromptLogprobs::new(&self.tokenizer, &self.prompt, scores, top))
    }

    fn usage(&self) -> UsageSum {
        UsageSum::new([self.prompt.len()], self.answers)
    }

    pub(crate) fn whole(&self, answers: Vec<Whole>) -> ChatResponse<'_> {
        let mut usage = self.usage();
        let mut choices = Vec::with_capacity(answers.len());
        let prompt_logprobs = self.prompt_logprobs(answers.first().map_or(&[], |answer| &answer.scores));
        for (index, mut answer) in answers.into_iter().enumerate() {
            usage.finished(index, &answer.finish);
            let has_more = !answer.calls.is_empty() || !answer.reasoning.is_empty();
            let has_content = !answer.text.is_empty() || !has_more;
            let reasoning = self.told(answer.reasoning, &mut answer.tokens);
            choices.push(Choice {
                index,
                logprobs: self.logprobs(&answer.tokens),
                finish_reason: finish_reason(&answer.finish),
                stop_reason: stop_reason(&answer.finish),
                token_ids: self.token_ids(&answer.tokens),
                message: Message {
                    role: "assistant",
                    content: has_content.then_some(answer.text),
                    reasoning,
                    refusal: None,
                    tool_calls: answer.calls.into_iter().map(WholeCall::from).collect(),
                },
            });
        }
        let (usage, prompt_token_ids) = (usage.total(), self.prompt_token_ids());
        ChatResponse { head: &self.head, choices, usage, prompt_token_ids, prompt_logprobs }
    }
}

/// A chat's stream.
pub(crate) struct ChatEvents {
    form: ChatForm,
    options: StreamOptions,
    usage: UsageSum,
    has_begun: Vec<bool>,
    /// Whether the prompt's tokens were shown, on the first chunk of all.
    has_shown_prompt: bool,
}

impl ChatEvents {
    pub(crate) fn new(form: ChatForm, options: StreamOptions) -> Self {
        Self { usage: form.usage(), has_begun: vec![false; form.answers], form, options, has_shown_prompt: false }
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
            finish_reason: finish.map(finish_reason),
            stop_reason: finish.map(stop_reason),
            token_ids: self.form.token_ids(tokens).filter(|ids| !ids.is_empty()),
        };
        let prompt_token_ids = self.form.prompt_token_ids().filter(|_| is_first);
        let prompt_logprobs = self.form.prompt_logprobs(scores).filter(|_| is_first);
        let head = &self.form.head;
        event(out, &ChatChunk { head, choices: vec![choice], usage, prompt_token_ids, prompt_logprobs });
    }
}

impl Events for ChatEvents {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        for delta in deltas {
            let Delta { choice: index, reasoning, text, calls, scores, mut tokens, finish } = delta;
            self.usage.drawn(index, tokens.len());
            if let Some(finish) = &finish {
                self.usage.finished(index, finish);
            }
            if !std::mem::replace(&mut self.has_begun[index], true) {
                let role =
                    MessageDelta { role: Some("assistant"), content: Some(String::new()), ..MessageDelta::default() };
                self.chunk(index, role, &scores, &[], None, out);
            }
            let reasoning = self.form.told(reasoning, &mut tokens);
            let shows_tokens = (self.form.has_logprobs || self.form.return_token_ids) && !tokens.is_empty();
            // Text that is held back makes no chunk, unless its tokens are wanted.
            let has_text = !text.is_empty() || reasoning.reasoning.is_some();
            if !has_text && calls.is_empty() && finish.is_none() && !shows_tokens {
                continue;
            }
            let content = (!text.is_empty()).then_some(text);
            let tool_calls = calls.into_iter().map(CallDelta::from).collect();
            let delta = MessageDelta { role: None, content, reasoning, tool_calls };
            self.chunk(index, delta, &[], &tokens, finish.as_ref(), out);
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        if self.options.include_usage {
            let usage = Some(Some(self.usage.total()));
            let (head, choices) = (&self.form.head, Vec::new());
            event(out, &ChatChunk { head, choices, usage, prompt_token_ids: None, prompt_logprobs: None });
        }
        done(out);
    }
}

#[cfg(test)]
mod tests;

//! `/v1/chat/completions`: its request. What is answered is in `chat/answers.rs`.

mod answers;

pub(crate) use answers::{ChatChunk, ChatEvents, ChatForm, ChatResponse};
use pelton_text::{ChatInput, Wishes};
use serde_json::{Map, Value, value::RawValue};

use super::{
    StreamOptions,
    constrained::{FORMATS, STRUCTURED},
    fields::Fields,
    messages::{MESSAGES, read_messages},
    models::{MODEL, read_model},
    prompt_logprobs::PROMPT_LOGPROBS,
    sampling::{
        CUT, N, REQUEST_ID, SAMPLING, SHOWN, STREAM, ShownTokens, read_cut, read_options, read_request_id, read_shown,
        read_stream,
    },
    shape::{Field, Kind, Most, Shape, optional, with_default},
    thinking::{EFFORT, read_effort, set_effort},
    tools::{TOOLS, read_tools},
    unknown::Given,
    unserved::{self, BOOKS, read_tier, refuse_in_chat},
    verbosity::{ABOUT, LENGTHS, VERBOSITY, read_verbosity},
};
use crate::{
    error::ApiError,
    generate::{Prompt, Request, ToolUse, now, told},
    json_size::check_size,
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
            with_default(
                "echo",
                Kind::Flag,
                "false",
                "Whether an answer begins with the last message, if that is the assistant's.",
            ),
            with_default("include_reasoning", Kind::Flag, "true", "Whether what the model thought is told."),
            REQUEST_ID,
        ],
        SHOWN,
        CUT,
        TOOLS,
        TEMPLATE,
        N,
        SAMPLING,
        STREAM,
        STRUCTURED,
        FORMATS,
        BOOKS,
    ],
    unserved: &[unserved::BOTH, unserved::MEDIA, unserved::CHAT],
};

/// What [`read_template_kwargs`] reads.
pub(super) const TEMPLATE_KWARGS: Field =
    optional("chat_template_kwargs", Kind::AnyObject, "The template's own variables.");

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
    optional(
        "chat_template",
        Kind::TEXT,
        "A Jinja template in place of the model's own; only where `--trust-request-chat-template` lets it in.",
    ),
    TEMPLATE_KWARGS,
    optional("reasoning_effort", EFFORT, "How hard to think, for templates that know it."),
    optional(VERBOSITY, LENGTHS, ABOUT),
];

/// A chat within another protocol.
const INPUT: Shape = Shape::new("ChatInput", "A conversation.", &[&[MESSAGES], TOOLS, TEMPLATE]);

/// A chat request, its types checked.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) model: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) shown: ShownTokens,
    /// Whether what the model thought is told.
    pub(crate) include_reasoning: bool,
    /// Whether the way of processing is told.
    pub(crate) tells_tier: bool,
    /// What each answer's text begins with.
    pub(crate) echoed: String,
    pub(crate) request: Request,
    /// What this request calls `max_tokens`: OpenAI renamed it.
    pub(crate) max_tokens_name: &'static str,
}

impl ChatRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?.spelled(&CHAT)?;
        refuse_in_chat(&mut fields)?;
        let tells_tier = read_tier(&mut fields)?;
        let model = read_model(&mut fields)?;
        let mut options = read_options(&mut fields)?;
        let older = fields.count("max_tokens", told::MAX_TOKENS)?;
        let newer = fields.count("max_completion_tokens", told::MAX_TOKENS)?;
        if let (Some(older), Some(newer)) = (older, newer)
            && older != newer
        {
            let reason = format!("is {older} and `max_completion_tokens` {newer}; they mean the same");
            return Err(ApiError::Conflict { param: "max_tokens".to_owned(), reason });
        }
        options.max_tokens = newer.or(older);
        options.logprobs = read_logprobs(&mut fields)?;
        options.prompt_logprobs = fields.count("prompt_logprobs", told::LOGPROBS)?;
        let (input, reading) = read_input(&mut fields)?;
        let add_special = fields.flag("add_special_tokens")?.unwrap_or(false);
        let stream = read_stream(&mut fields)?;
        let (shown, cut) = (read_shown(&mut fields)?, read_cut(&mut fields)?);
        let echo = fields.flag("echo")?.unwrap_or(false);
        let include_reasoning = fields.flag("include_reasoning")?.unwrap_or(true);
        let request_id = read_request_id(&mut fields)?;
        fields.finish(&CHAT)?;
        let echoed = if echo { last_answer(&input) } else { String::new() };
        let prompts = vec![Prompt::Chat { input: Box::new(input), add_special }];
        let (tools, shows_prompts, shows_ids) = (reading, shown.prompt_text, shown.ids);
        let request = Request { tools, cut, shows_prompts, shows_ids, ..Request::new(prompts, options) };
        let max_tokens_name = if newer.is_some() { "max_completion_tokens" } else { "max_tokens" };
        Ok(Self { model, request_id, stream, shown, include_reasoning, tells_tier, echoed, request, max_tokens_name })
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

/// The text of the last message, if an assistant has said it.
fn last_answer(input: &ChatInput) -> String {
    let last = input.messages.last().filter(|message| message["role"] == "assistant");
    match last.map(|message| &message["content"]) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

fn read_logprobs(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let is_wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", told::LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !is_wanted {
        let reason = "is only allowed together with `logprobs`: true".to_owned();
        return Err(ApiError::Conflict { param: fields.at("top_logprobs"), reason });
    }
    Ok(is_wanted.then(|| top.unwrap_or(0)))
}

/// A chat in a protocol that has an object for it, at `path`.
pub(crate) fn chat_of_json(path: &str, raw: &RawValue) -> Result<(ChatInput, Option<ToolUse>), ApiError> {
    check_size(path, raw.get())?;
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
    let (kwargs, effort) = read_kwargs(fields)?;
    let has_documents = documents.as_ref().and_then(Value::as_array).is_some_and(|documents| !documents.is_empty());
    let input = ChatInput {
        messages,
        tools,
        documents,
        template: None,
        own_template: fields.text("chat_template")?,
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        kwargs,
        verbosity: read_verbosity(fields)?.map(str::to_owned),
        wishes: Wishes { effort: effort.map(str::to_owned), documents: has_documents, ..Wishes::default() },
        now: now(),
    };
    Ok((input, reading))
}

/// The template's own variables, with what `reasoning_effort` says to it.
fn read_kwargs(fields: &mut Fields<'_>) -> Result<(Map<String, Value>, Option<&'static str>), ApiError> {
    let mut kwargs = read_template_kwargs(fields)?;
    let effort = read_effort(fields, "reasoning_effort")?;
    if let Some(effort) = effort {
        set_effort(&mut kwargs, effort);
    }
    Ok((kwargs, effort))
}

/// The template's own variables, which go before what else a request says to the template.
pub(super) fn read_template_kwargs(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    Ok(fields.read("chat_template_kwargs", "an object")?.unwrap_or_default())
}

#[cfg(test)]
mod tests;

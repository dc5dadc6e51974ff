//! From what a client sent to what the engine takes: the prompt is rendered and tokenised, the room is computed.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use pelton_engine::{CacheScope, Goal, Grammar, Party, StopRule, Submission, TokenId};
use pelton_text::{ChatInput, LocalTime, TemplateError};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{
    Cut, GivenEmbeds, Request, TRUNCATE, Terms,
    options::{ModelFacts, in_vocabulary},
    serving::Serving,
    shorten::Shortening,
    shown::{Shown, ShownPrompts},
};
use crate::{
    error::ApiError,
    json_size::{JsonSize, LEVELS_MAX, VALUES_MAX},
    renderer,
};

/// One prompt, in any of its forms.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Text to be continued.
    Text {
        /// The text.
        text: String,
        /// Whether the tokenizer adds its special tokens, such as one for the beginning.
        add_special: bool,
    },
    /// Two texts, between which something belongs.
    Between {
        /// The first text.
        text: String,
        /// The second one.
        suffix: String,
        /// Whether the tokenizer's special token for the beginning comes first.
        add_special: bool,
    },
    /// Tokens to be continued.
    Ids(Vec<TokenId>),
    /// What the model is given in the place of tokens' embeddings.
    Embeds {
        /// What the request calls it.
        param: String,
        /// A safetensors file in base64.
        base64: String,
    },
    /// A conversation, rendered by the model's template.
    Chat {
        /// What the template is given.
        input: Box<ChatInput>,
        /// Whether the tokenizer adds its special tokens to what the template wrote; most templates write them.
        add_special: bool,
    },
    /// The same, and its oldest messages are left out if it does not fit the context.
    LongChat {
        /// What the template is given.
        input: Box<ChatInput>,
        /// Which messages may be left out.
        shortening: Shortening,
    },
}

/// A prompt as the engine sees it.
#[derive(Debug, Clone)]
pub struct PreparedPrompt {
    /// Its tokens, or as many zeros as it has embeddings; at least one.
    pub ids: Arc<[TokenId]>,
    /// What it has in their place, if it does.
    pub embeds: Option<GivenEmbeds>,
    /// What to show where the prompt is echoed.
    pub text: Option<String>,
    /// How its answers begin, if it is a chat.
    pub chat: Option<ChatStart>,
}

/// How the answers to a chat begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatStart {
    /// The rendered chat ends within the reasoning.
    pub in_reasoning: bool,
    /// It ends within a message of the assistant's.
    pub is_continued: bool,
    /// Nothing is thought: the request has switched thoughts off, or the rendered chat ends behind them.
    pub is_sober: bool,
}

/// What a chat says of the beginning of its answer beside its text.
#[derive(Debug, Clone, Default)]
struct Beginning {
    /// What the answer goes on from.
    continued: Option<String>,
    /// The template is told that nothing is to be thought.
    is_sober: bool,
}

/// Bytes of text that are counted at once: as many as a rendered chat may have, some seconds of one thread.
pub(super) const COUNTED_BYTES_MAX: usize = 8 << 20;

/// How often a conversation that may be too long is gone through, about: what is short enough for a thread that has other work must
/// be so with all tries.
const TRIES: usize = 16;

/// What requests call the text behind what is to be filled in.
pub(crate) const SUFFIX: &str = "suffix";

/// What a prompt is tokenised for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// To be answered: it must fit the context, or be cut so that it does.
    Answer {
        /// What will be shown of it.
        shown: Shown,
        /// What becomes of one that is too long.
        cut: Option<Cut>,
    },
    /// To be shown to its sender.
    Count,
}

/// A prompt, after what comes from elsewhere has come.
enum Known {
    /// As it was sent.
    Prompt(Prompt),
    /// A chat whose own template has written it.
    Rendered { text: String, beginning: Beginning, add_special: bool },
}

impl Request {
    /// What its prompts are tokenised for.
    pub(crate) fn purpose(&self) -> Purpose {
        Purpose::Answer { shown: Shown::of(self), cut: self.cut }
    }
}

impl Purpose {
    fn shown(self) -> Shown {
        match self {
            Self::Answer { shown, .. } => shown,
            Self::Count => Shown::default(),
        }
    }
}

impl Known {
    /// Bytes of text that must be gone through.
    fn bytes(&self) -> usize {
        match self {
            Self::Prompt(prompt) => prompt.bytes(),
            Self::Rendered { text, .. } => text.len(),
        }
    }

    fn param(&self) -> &'static str {
        match self {
            Self::Prompt(prompt) => prompt.param(),
            Self::Rendered { .. } => "messages",
        }
    }
}

impl Prompt {
    fn param(&self) -> &'static str {
        if self.is_chat() { "messages" } else { "prompt" }
    }

    pub(crate) fn is_chat(&self) -> bool {
        matches!(self, Self::Chat { .. } | Self::LongChat { .. })
    }

    /// Bytes of text, or ids, that must be gone through.
    fn bytes(&self) -> usize {
        match self {
            Self::Text { text, .. } => text.len(),
            Self::Between { text, suffix, .. } => text.len() + suffix.len(),
            Self::Ids(ids) => ids.len(),
            Self::Embeds { base64, .. } => base64.len(),
            Self::Chat { input, .. } => chat_bytes(input),
            Self::LongChat { input, .. } => chat_bytes(input).saturating_mul(TRIES),
        }
    }
}

impl Serving {
    /// Renders and tokenises prompts where it delays nobody else.
    pub(crate) async fn tokenize(
        self: &Arc<Self>,
        prompts: Vec<Prompt>,
        purpose: Purpose,
    ) -> Result<Vec<PreparedPrompt>, ApiError> {
        let mut known = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            known.push(self.by_its_own_template(prompt).await?);
        }
        let bytes = known.iter().map(Known::bytes).sum();
        let serving = Arc::clone(self);
        let mut all = ShownPrompts::new(purpose.shown());
        let one = move |prompt| serving.tokenize_one(prompt, purpose).and_then(|prompt| all.add(prompt));
        self.on_text(bytes, move || known.into_iter().map(one).collect()).await
    }

    /// The same for a prompt that is only to be counted: it may be longer than the context, so that its sender learns by
    /// how much.
    pub(crate) async fn count(self: &Arc<Self>, prompt: Prompt) -> Result<PreparedPrompt, ApiError> {
        let known = self.by_its_own_template(prompt).await?;
        let bytes = known.bytes();
        let serving = Arc::clone(self);
        self.on_text(bytes, move || serving.tokenize_one(known, Purpose::Count)).await
    }

    /// A chat that brings its template is rendered by it, far from here.
    async fn by_its_own_template(&self, prompt: Prompt) -> Result<Known, ApiError> {
        match prompt {
            Prompt::Chat { mut input, add_special } if input.own_template.is_some() => {
                self.settle(&mut input);
                let renderer = self.renderer.as_ref().ok_or_else(renderer::not_allowed)?;
                let beginning = Beginning { continued: continued(&input), is_sober: input.is_sober() };
                let text = renderer.render(self.checkpoint.special_tokens.clone(), *input).await?;
                Ok(Known::Rendered { text, beginning, add_special })
            }
            prompt => Ok(Known::Prompt(prompt)),
        }
    }

    fn tokenize_one(&self, known: Known, purpose: Purpose) -> Result<PreparedPrompt, ApiError> {
        let shows_text = purpose.shown().has_text();
        let param = known.param();
        let (text, add_special, chat) = match known {
            Known::Rendered { text, beginning, add_special } => {
                let start = self.start(&text, &beginning);
                (text, add_special, Some(start))
            }
            Known::Prompt(Prompt::Ids(ids)) => {
                let ids = self.kept(param, ids, false, purpose)?;
                let text = shows_text.then(|| self.tokenizer.decode(&ids, true));
                return Ok(PreparedPrompt { ids: ids.into(), embeds: None, text, chat: None });
            }
            Known::Prompt(Prompt::Embeds { param, base64 }) => {
                let given = self.given_embeds(&param, &base64)?;
                let ids = vec![0; given.embeds.count() as usize].into();
                return Ok(PreparedPrompt { ids, embeds: Some(given), text: None, chat: None });
            }
            Known::Prompt(Prompt::Text { text, add_special }) => (text, add_special, None),
            Known::Prompt(Prompt::Between { text, suffix, add_special }) => {
                if let Purpose::Answer { cut: Some(_), .. } = purpose {
                    let reason = format!("cannot go together with `{SUFFIX}`");
                    return Err(ApiError::Conflict { param: TRUNCATE.to_owned(), reason });
                }
                return self.between(&text, &suffix, add_special);
            }
            Known::Prompt(Prompt::Chat { input, add_special }) => {
                let (text, start) = self.chat_text(*input)?.map_err(unrendered)?;
                (text, add_special, Some(start))
            }
            Known::Prompt(Prompt::LongChat { input, shortening }) => return self.shorten(*input, &shortening),
        };
        let ids = self.encode(param, &text, add_special, purpose)?;
        let length = ids.len();
        let ids = self.kept(param, ids, add_special, purpose)?;
        let shown = shows_text.then(|| if ids.len() == length { text } else { self.tokenizer.decode(&ids, true) });
        Ok(PreparedPrompt { ids: ids.into(), embeds: None, text: shown, chat })
    }

    /// The tokens of a text.
    pub(super) fn encode(
        &self,
        param: &'static str,
        text: &str,
        add_special: bool,
        purpose: Purpose,
    ) -> Result<Vec<TokenId>, ApiError> {
        match purpose {
            Purpose::Answer { cut: None, .. } => self.check_length(param, text)?,
            Purpose::Answer { cut: Some(_), .. } | Purpose::Count => check_countable(param, text)?,
        }
        let encoded = self.tokenizer.encode(text, add_special);
        let refused = |error| ApiError::Conflict { param: param.to_owned(), reason: format!("{error}") };
        encoded.map_err(refused)
    }

    /// The tokens of a prompt that stay. `add_special`: the tokenizer has added its own.
    fn kept(
        &self,
        param: &str,
        ids: Vec<TokenId>,
        add_special: bool,
        purpose: Purpose,
    ) -> Result<Vec<TokenId>, ApiError> {
        let Purpose::Answer { cut, .. } = purpose else { return Ok(ids) };
        let context = self.max_model_len().unwrap_or(u32::MAX);
        let Some(cut) = cut else { return fitting(param, ids, context) };
        let before = if add_special { self.tokenizer.encode("", true).unwrap_or_default() } else { Vec::new() };
        cut.apply(ids, &before, context)
    }

    /// How answers to a rendered chat begin.
    fn start(&self, text: &str, beginning: &Beginning) -> ChatStart {
        let (format, continued) = (self.format.as_ref(), beginning.continued.as_deref());
        let in_reasoning = format.is_some_and(|format| format.starts_in_reasoning(text, continued));
        // Messages on channels are written as ever: their templates know efforts, and no switch.
        let is_behind = || format.is_some_and(|format| format.ends_behind_reasoning(text));
        let is_sober =
            !in_reasoning && (beginning.is_sober || is_behind()) && format.is_none_or(|it| !it.is_on_channels());
        ChatStart { in_reasoning, is_continued: continued.is_some(), is_sober }
    }

    fn between(&self, text: &str, suffix: &str, add_special: bool) -> Result<PreparedPrompt, ApiError> {
        let Some(marks) = self.fill else {
            let reason = "cannot be used: the model's vocabulary has no marks for filling in that are known here";
            return Err(ApiError::Conflict { param: SUFFIX.to_owned(), reason: reason.to_owned() });
        };
        self.check_length("prompt", text)?;
        self.check_length(SUFFIX, suffix)?;
        let ids = marks
            .prompt(&self.tokenizer, [text, suffix], add_special)
            .map_err(|error| ApiError::Conflict { param: "prompt".to_owned(), reason: error.to_string() })?;
        let ids = fitting("prompt", ids, self.max_model_len().unwrap_or(u32::MAX))?;
        Ok(PreparedPrompt { ids: ids.into(), embeds: None, text: None, chat: None })
    }

    /// A chat as the text that the model is given, and how its answer begins; or what the template says instead.
    pub(super) fn chat_text(
        &self,
        mut input: ChatInput,
    ) -> Result<Result<(String, ChatStart), TemplateError>, ApiError> {
        let Some(template) = &self.template else {
            return Err(ApiError::Conflict {
                param: "messages".to_owned(),
                reason: format!("cannot be used: the model has no chat template; {}", self.instead_of_chats()),
            });
        };
        check_arguments(&input.messages)?;
        self.settle(&mut input);
        let beginning = Beginning { continued: continued(&input), is_sober: input.is_sober() };
        if let Err(error) = template.arrange(&mut input) {
            return Ok(Err(error));
        }
        input.messages = template.adapt(input.messages);
        Ok(template.render(&input).map(|text| {
            let start = self.start(&text, &beginning);
            (text, start)
        }))
    }

    /// What a model without a chat template does take.
    fn instead_of_chats(&self) -> &'static str {
        let gives_vectors = self.status.borrow().model.as_ref().is_some_and(|model| model.pooling.is_some());
        if gives_vectors { "send its text alone, as `prompt` to /tokenize" } else { "use /v1/completions" }
    }

    /// Of the wishes of a chat, those are left that are not so anyway: a model that thinks by itself is not asked to, and one that does not
    /// needs no `none`.
    fn settle(&self, input: &mut ChatInput) {
        let wishes = &mut input.wishes;
        wishes.thoughts &= !self.thinks;
        if !self.thinks && wishes.effort.as_deref() == Some("none") {
            wishes.effort = None;
        }
    }

    /// Refuses a text that no tokenisation could fit into the context, before going through megabytes of it.
    pub(super) fn check_length(&self, param: &str, text: &str) -> Result<(), ApiError> {
        let Some(context) = self.max_model_len() else { return Ok(()) };
        // Normalisers may drop some text (spaces, accents), so that the bound is taken twice as wide.
        let most = (context as usize).saturating_mul(self.longest_token_bytes).saturating_mul(2);
        if text.len() <= most {
            return Ok(());
        }
        Err(ApiError::TextTooLong { param: param.to_owned(), bytes: text.len(), limit: context })
    }

    /// Everything the engine needs for the answers to one prompt; they differ in their seeds alone.
    pub(crate) fn submission(
        &self,
        request: &Request,
        terms: &Terms,
        prompt: &PreparedPrompt,
        is_chat: bool,
        grammar: Option<Grammar>,
        facts: &ModelFacts<'_>,
    ) -> Result<Submission, ApiError> {
        let options = &request.options;
        let param = if is_chat { "messages" } else { "prompt" };
        if prompt.ids.is_empty() {
            return Err(ApiError::invalid(param, "empty", "a prompt of at least one token"));
        }
        prompt.ids.iter().try_for_each(|&token| in_vocabulary(param, token, facts))?;
        let seed = match options.seed {
            Some(seed) if seed != -1 => seed.cast_unsigned(),
            _ => drawn_seed()?,
        };
        let mut scope = prompt.embeds.as_ref().map_or_else(CacheScope::default, |given| given.scope.clone());
        scope.salt = self.cache_salt(options.cache_salt.as_deref());
        Ok(Submission {
            prompt: Arc::clone(&prompt.ids),
            embeds: prompt.embeds.as_ref().map(|given| Arc::clone(&given.embeds)),
            goal: Goal::Tokens,
            sampling: options.sampling(facts, seed)?,
            stop: StopRule {
                max_tokens: options.max_tokens(prompt.ids.len(), is_chat, request.echo, facts)?,
                min_tokens: options.min_tokens,
                stop_ids: options.stop_ids(grammar.as_ref().is_some_and(Grammar::has_form), facts)?,
            },
            grammar,
            scope,
            keep: options.keep,
            priority: options.priority.unwrap_or(terms.priority),
            party: Party { tenant: terms.tenant, user: self.user(options.user.as_deref()) },
            timeout: terms.left(),
        })
    }
}

/// Whose fault it is that a chat has no text.
pub(super) fn unrendered(error: TemplateError) -> ApiError {
    match error {
        TemplateError::Input { param, reason } => ApiError::Conflict { param: param.to_owned(), reason },
        TemplateError::Misplaced { at, reason } => ApiError::Conflict { param: format!("messages[{at}].role"), reason },
        TemplateError::Raised(reason) => {
            let reason = format!("do not suit the model's chat template, which says: {reason}");
            ApiError::Conflict { param: "messages".to_owned(), reason }
        }
        TemplateError::Broken(reason) => ApiError::BrokenTemplate { reason },
        other => ApiError::Conflict { param: "messages".to_owned(), reason: format!("cannot be rendered: {other}") },
    }
}

/// The text of the last message, if it is continued.
fn continued(input: &ChatInput) -> Option<String> {
    if !input.continue_final_message {
        return None;
    }
    let content = input.messages.last()?.get("content")?;
    let text = content.as_array().map_or(Some(content), |parts| parts.last()?.get("text"));
    text?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Refuses more tokens than the context has, before anything is made of them. `Options::max_tokens` refuses those that leave no room.
fn fitting(param: &str, ids: Vec<TokenId>, context: u32) -> Result<Vec<TokenId>, ApiError> {
    if ids.len() <= context as usize {
        return Ok(ids);
    }
    let (prompt, limit) = (ids.len() as u64, u64::from(context));
    Err(ApiError::PromptTooLong { param: param.to_owned(), prompt, limit })
}

/// A text that may be longer than the context.
pub(super) fn check_countable(param: &str, text: &str) -> Result<(), ApiError> {
    if text.len() <= COUNTED_BYTES_MAX {
        return Ok(());
    }
    let allowed = format!("at most {COUNTED_BYTES_MAX} bytes of text at once");
    Err(ApiError::invalid(param, format_args!("{} bytes of text", text.len()), allowed))
}

/// Calls bring their arguments as texts, of whose values the template is told: those of all of them have the bounds of a request's own.
fn check_arguments(messages: &[Value]) -> Result<(), ApiError> {
    let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
    let texts = calls.filter_map(|call| call["function"]["arguments"].as_str());
    let mut values = 0;
    for text in texts {
        let size = JsonSize::of(text.as_bytes());
        // What is no JSON is a text for templates, too.
        if size.levels > LEVELS_MAX && serde_json::from_str::<IgnoredAny>(text).is_ok() {
            let got = format_args!("a chat with a call whose arguments are {} levels deep", size.levels);
            return Err(ApiError::invalid("messages", got, format!("at most {LEVELS_MAX} levels")));
        }
        values += size.values;
    }
    if values <= VALUES_MAX {
        return Ok(());
    }
    let got = format_args!("a chat whose calls have {values} values in their arguments");
    Err(ApiError::invalid("messages", got, format!("at most {VALUES_MAX} of them")))
}

/// A seed from the operating system.
fn drawn_seed() -> Result<u64, ApiError> {
    getrandom::u64().map_err(|error| ApiError::Internal { log: format!("no random numbers: {error}") })
}

/// Bytes of text in what a template is given.
fn chat_bytes(input: &ChatInput) -> usize {
    input.messages.iter().chain(input.tools.iter().flatten()).map(text_bytes).sum()
}

/// Bytes of text in a value.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(members) => members.iter().map(|(name, value)| name.len() + text_bytes(value)).sum(),
        _ => 8,
    }
}

/// The time that templates may print, as clocks show it in UTC: a server's clients live anywhere.
pub(crate) fn now() -> LocalTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    LocalTime { unix_seconds: since.as_secs().cast_signed(), utc_offset_seconds: 0 }
}

#[cfg(test)]
mod tests;

//! `/v1/completions`: its request, its response, its stream.

mod best;

use best::{BEST_OF, best, read_best_of};
use bytes::BytesMut;
use pelton_engine::{TokenId, TokenScore};
use pelton_text::Tokenizer;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    StopReason, StreamOptions,
    constrained::{FORMATS, STRUCTURED},
    fields::{Fields, ids, shown},
    finish_reason,
    lists::{Items, shown_item},
    logprobs::CompletionLogprobs,
    models::{MODEL, read_model},
    prompt_logprobs::{PROMPT_LOGPROBS, PromptLogprobs},
    sampling::{
        CUT, N, PROMPT_TEXT, REQUEST_ID, SAMPLING, SHOWN, STREAM, ShownTokens, one_or_many, read_cut, read_options,
        read_request_id, read_shown, read_stream,
    },
    shape::{Kind, Most, Shape, optional, with_default},
    stop_reason,
    stream::{Events, Head, Shown, done, event},
    unknown::Given,
    unserved::{self, BOOKS, read_tier, refuse_in_completion},
    usage::{Usage, UsageSum},
};
use crate::{
    error::ApiError,
    generate::{
        Delta, Drawn, Finish, Generation, PROMPT_EMBEDS, PreparedPrompt, Prompt, Request, SUFFIX, TRUNCATE, Whole, told,
    },
};

/// The body of a completion request.
pub(crate) const COMPLETION: Shape = Shape {
    name: "CompletionRequest",
    about: "Prompts to be continued.",
    fields: &[
        &[
            MODEL,
            optional(
                "prompt",
                PROMPTS,
                "One prompt or several, each as text or as token ids. Needed unless `prompt_embeds` is there.",
            ),
            optional(
                PROMPT_EMBEDS,
                EMBEDS,
                "Prompts that come as embeddings: each is base64 of a safetensors file with one tensor of shape [tokens, width] in F32, BF16 or \
                 F16. Their answers come before those to `prompt`. Needs `--enable-prompt-embeds`.",
            ),
            optional(
                SUFFIX,
                Kind::TEXT,
                "What comes behind the answer: it is filled in between, by models whose vocabulary has marks for that.",
            ),
            with_default(
                "max_tokens",
                Kind::Integer(0, Most::Context),
                "16",
                "Tokens of an answer at most; 0 only together with `echo`: true.",
            ),
            optional(
                "logprobs",
                Kind::Integer(0, Most::Logprobs),
                "How many likeliest tokens are told beside each drawn one.",
            ),
            PROMPT_LOGPROBS,
            BEST_OF,
            with_default(
                "echo",
                Kind::Flag,
                "false",
                "Whether each answer begins with its prompt; with `logprobs`, so do they.",
            ),
            with_default(
                "add_special_tokens",
                Kind::Flag,
                "true",
                "Whether the tokenizer adds its special tokens to texts.",
            ),
            REQUEST_ID,
        ],
        SHOWN,
        CUT,
        N,
        SAMPLING,
        STREAM,
        STRUCTURED,
        FORMATS,
        BOOKS,
    ],
    unserved: &[unserved::BOTH],
};

const SOME_TEXT: Kind = Kind::Text(1..=u64::MAX);
const SOME_IDS: Kind = Kind::TokenIds(1, Most::ANY);
const EMBEDS: Kind = Kind::Either(&[SOME_TEXT, Kind::List(&SOME_TEXT, 1, Most::ANY)]);
/// What [`parse_prompts`] reads.
pub(super) const PROMPTS: Kind =
    Kind::Either(&[SOME_TEXT, Kind::List(&SOME_TEXT, 1, Most::ANY), SOME_IDS, Kind::List(&SOME_IDS, 1, Most::ANY)]);

/// A completion request, its types checked.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) model: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) shown: ShownTokens,
    /// As it was asked for: the engine tells as many as `echo` needs.
    pub(crate) prompt_logprobs: Option<u32>,
    /// As it was asked for: `best_of` needs some.
    logprobs: Option<u32>,
    /// Answers to each prompt that are told; `request` says how many are drawn.
    told: u32,
    pub(crate) request: Request,
}

impl CompletionRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?.spelled(&COMPLETION)?;
        refuse_in_completion(&mut fields)?;
        read_tier(&mut fields)?; // OpenAI tells it of chats and responses alone
        let model = read_model(&mut fields)?;
        let add_special = fields.flag("add_special_tokens")?.unwrap_or(true);
        let suffix = fields.text(SUFFIX)?.filter(|suffix| !suffix.is_empty());
        let mut prompts = read_embeds(&mut fields)?;
        let has_embeds = !prompts.is_empty();
        prompts.extend(read_prompts(&mut fields, add_special, suffix.is_some(), has_embeds)?);
        let mut options = read_options(&mut fields)?;
        options.max_tokens = fields.count("max_tokens", told::MAX_TOKENS_OR_0)?;
        options.logprobs = fields.count("logprobs", told::LOGPROBS)?;
        let echo = fields.flag("echo")?.unwrap_or(false);
        let prompts = match suffix {
            Some(_) if echo => {
                let reason = "cannot go together with `echo`: true".to_owned();
                return Err(ApiError::Conflict { param: fields.at(SUFFIX), reason });
            }
            Some(suffix) => filled(prompts, &suffix, &fields)?,
            None => prompts,
        };
        let prompt_logprobs = fields.count("prompt_logprobs", told::LOGPROBS)?;
        options.prompt_logprobs = prompt_logprobs.max(options.logprobs.filter(|_| echo));
        let stream = read_stream(&mut fields)?;
        let logprobs = options.logprobs;
        let told = read_best_of(&mut fields, &mut options, stream)?;
        let (shown, cut) = (read_shown(&mut fields)?, read_cut(&mut fields)?);
        let of_tokens = [
            ("echo", echo),
            (PROMPT_LOGPROBS.name, prompt_logprobs.is_some()),
            (PROMPT_TEXT, shown.prompt_text),
            (TRUNCATE, cut.is_some()),
        ];
        if let Some((name, _)) = of_tokens.into_iter().find(|(_, is_asked)| has_embeds && *is_asked) {
            let reason = format!("cannot go together with `{PROMPT_EMBEDS}`, which have no tokens");
            return Err(ApiError::Conflict { param: fields.at(name), reason });
        }
        let request_id = read_request_id(&mut fields)?;
        fields.finish(&COMPLETION)?;
        let (shows_prompts, shows_ids) = (shown.prompt_text, shown.ids);
        let request = Request { echo, cut, shows_prompts, shows_ids, ..Request::new(prompts, options) };
        Ok(Self { model, request_id, stream, shown, prompt_logprobs, logprobs, told, request })
    }

    /// An error of the shared checks, by the names that this request uses.
    pub(crate) fn renamed(&self, error: ApiError) -> ApiError {
        error.renamed(|param| (param == "n" && self.request.options.n > self.told).then_some(BEST_OF.name))
    }
}

const PROMPT: &str =
    "a text, a list of texts, a list of token ids, or a list of lists of token ids; none of them empty";

const EMBEDS_PROMPTS: &str = "base64 of a safetensors file, or a list of such texts; none of them empty";

/// Prompts that come as embeddings; none: there are none.
fn read_embeds(fields: &mut Fields<'_>) -> Result<Vec<Prompt>, ApiError> {
    let Some(raw) = fields.raw(PROMPT_EMBEDS) else { return Ok(Vec::new()) };
    let wrong = |got: String| ApiError::invalid(PROMPT_EMBEDS, got, EMBEDS_PROMPTS);
    let texts = one_or_many(raw).ok_or_else(|| wrong(shown_item::<String>(raw).unwrap_or_else(|| shown(raw))))?;
    let is_list = !raw.get().starts_with('"');
    match texts.iter().position(String::is_empty) {
        Some(index) if is_list => return Err(wrong(empty_item(index))),
        None if !texts.is_empty() => {}
        _ => return Err(wrong(shown(raw))),
    }
    let name = |index: usize| if is_list { format!("{PROMPT_EMBEDS}[{index}]") } else { PROMPT_EMBEDS.to_owned() };
    Ok(texts.into_iter().enumerate().map(|(index, base64)| Prompt::Embeds { param: name(index), base64 }).collect())
}

/// `may_be_empty`: there is a suffix, before which anything can be filled in. `may_be_none`: there are prompts of another form.
fn read_prompts(
    fields: &mut Fields<'_>,
    add_special: bool,
    may_be_empty: bool,
    may_be_none: bool,
) -> Result<Vec<Prompt>, ApiError> {
    let Some(raw) = fields.raw("prompt").filter(|raw| !(may_be_none && raw.get() == "\"\"")) else {
        if may_be_none {
            return Ok(Vec::new()); // clients for which it must be there send an empty one
        }
        return Err(ApiError::Missing { param: fields.at("prompt"), allowed: PROMPT });
    };
    let wrong = |got: String| ApiError::invalid(fields.at("prompt"), got, PROMPT);
    let prompts = parse_prompts(raw, add_special).map_err(wrong)?;
    let is_empty = |prompt: &Prompt| match prompt {
        Prompt::Text { text, .. } => text.is_empty() && !may_be_empty,
        Prompt::Ids(ids) => ids.is_empty(),
        Prompt::Between { .. } | Prompt::Embeds { .. } | Prompt::Chat { .. } | Prompt::LongChat { .. } => false,
    };
    match prompts.iter().position(is_empty) {
        None if !prompts.is_empty() => Ok(prompts),
        Some(index) if !raw.get().starts_with('"') => Err(wrong(empty_item(index))),
        _ => Err(wrong(shown(raw))),
    }
}

fn empty_item(index: usize) -> String {
    format!("a list whose item {index} is empty")
}

/// Prompts behind which a text comes.
fn filled(prompts: Vec<Prompt>, suffix: &str, fields: &Fields<'_>) -> Result<Vec<Prompt>, ApiError> {
    let one = |prompt| match prompt {
        Prompt::Text { text, add_special } => Ok(Prompt::Between { text, suffix: suffix.to_owned(), add_special }),
        _ => {
            let reason = "is only allowed together with a `prompt` of text".to_owned();
            Err(ApiError::Conflict { param: fields.at(SUFFIX), reason })
        }
    };
    prompts.into_iter().map(one).collect()
}

/// The error says what is there instead.
pub(super) fn parse_prompts(raw: &RawValue, add_special: bool) -> Result<Vec<Prompt>, String> {
    let text = raw.get();
    // What the list's first item is says what all of them must be.
    let first = text.strip_prefix('[').map_or("", str::trim_start);
    if first.starts_with('[') {
        let wrong = || shown_item::<Vec<TokenId>>(raw).unwrap_or_else(|| shown(raw));
        let Items(lists) = serde_json::from_str(raw.get()).map_err(|_| wrong())?;
        return lists.into_iter().map(|list| ids(list).map(Prompt::Ids).ok_or_else(wrong)).collect();
    }
    if first.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        let wrong = || shown_item::<TokenId>(raw).unwrap_or_else(|| shown(raw));
        return ids(raw).map(|ids| vec![Prompt::Ids(ids)]).ok_or_else(wrong);
    }
    let texts = one_or_many(raw).ok_or_else(|| shown_item::<String>(raw).unwrap_or_else(|| shown(raw)))?;
    Ok(texts.into_iter().map(|text| Prompt::Text { text, add_special }).collect())
}

/// A whole response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CompletionResponse<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<Choice<'a>>,
    usage: Usage,
}

/// A choice, whole or a piece of one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CompletionChoice")]
struct Choice<'a> {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    #[schemars(extend("enum" = ["stop", "length", "tool_calls", "repetition", null]))]
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
}

/// A piece of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CompletionChunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<Choice<'a>>,
    /// `null` on every chunk but the last, if usage is wanted at the end; OpenAI's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Shown<Usage>,
}

/// How choices are shown, in streams and whole.
pub(crate) struct CompletionForm {
    pub(crate) head: Head,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) logprobs: Option<u32>,
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) shown: ShownTokens,
    /// Whether answers begin with their prompts.
    pub(crate) echo: bool,
    pub(crate) prompts: Vec<PreparedPrompt>,
    /// Answers that were asked of the engine.
    pub(crate) drawn_per_prompt: usize,
    /// Those that are told.
    pub(crate) answers_per_prompt: usize,
}

impl CompletionForm {
    pub(crate) fn new(head: Head, tokenizer: Tokenizer, request: &CompletionRequest, generation: &Generation) -> Self {
        Self {
            head,
            tokenizer,
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            shown: request.shown,
            echo: request.request.echo,
            prompts: generation.prompts().to_vec(),
            drawn_per_prompt: request.request.options.n as usize,
            answers_per_prompt: request.told as usize,
        }
    }

    fn prompt_of(&self, choice: usize) -> &PreparedPrompt {
        &self.prompts[choice / self.answers_per_prompt]
    }

    fn usage(&self) -> UsageSum {
        UsageSum::new(self.prompts.iter().map(|prompt| prompt.ids.len()), self.drawn_per_prompt)
    }

    /// `is_first`: nothing of the choice was shown before.
    fn choice(
        &self,
        index: usize,
        is_first: bool,
        text: String,
        scores: &[TokenScore],
        tokens: &[Drawn],
        finish: Option<&Finish>,
    ) -> Choice<'_> {
        let prompt = self.prompt_of(index);
        let echo = self.echo(prompt).filter(|_| is_first).unwrap_or_default();
        let prompt_logprobs = self.prompt_logprobs.filter(|_| is_first);
        Choice {
            index,
            text: if echo.is_empty() { text } else { format!("{echo}{text}") },
            logprobs: self.logprobs.map(|top| self.choice_logprobs(prompt, is_first, top, scores, tokens)),
            finish_reason: finish.map(finish_reason),
            stop_reason: finish.and_then(stop_reason),
            token_ids: self.shown.ids.then(|| tokens.iter().map(|drawn| drawn.token).collect()),
            prompt_token_ids: (self.shown.ids && is_first && prompt.embeds.is_none()).then_some(&*prompt.ids),
            prompt_text: prompt.text.as_deref().filter(|_| self.shown.prompt_text && is_first),
            prompt_logprobs: prompt_logprobs.map(|top| PromptLogprobs::new(&self.tokenizer, &prompt.ids, scores, top)),
        }
    }

    fn choice_logprobs(
        &self,
        prompt: &PreparedPrompt,
        is_first: bool,
        top: u32,
        scores: &[TokenScore],
        tokens: &[Drawn],
    ) -> CompletionLogprobs {
        let mut shown = CompletionLogprobs::named(self.shown.names_by_id);
        if let Some(echoed) = self.echo(prompt).filter(|_| is_first) {
            shown.echo(&self.tokenizer, echoed, &prompt.ids, scores, top);
        }
        let echoed = self.echo(prompt).map_or(0, |text| text.chars().count());
        shown.add(&self.tokenizer, tokens, echoed);
        shown
    }

    /// What its answers begin with.
    fn echo<'a>(&self, prompt: &'a PreparedPrompt) -> Option<&'a str> {
        prompt.text.as_deref().filter(|_| self.echo)
    }

    pub(crate) fn whole(&self, answers: Vec<Whole>) -> CompletionResponse<'_> {
        let mut usage = self.usage();
        answers.iter().enumerate().for_each(|(index, answer)| usage.finished(index, &answer.finish));
        let mut choices = Vec::with_capacity(answers.len());
        for (index, answer) in best(answers, self.drawn_per_prompt, self.answers_per_prompt).into_iter().enumerate() {
            let Whole { said, scores, tokens, finish } = answer;
            let text = said.apart().text;
            choices.push(self.choice(index, true, text, &scores, &tokens, Some(&finish)));
        }
        CompletionResponse { head: &self.head, choices, usage: usage.total() }
    }
}

/// A completion's stream.
pub(crate) struct CompletionEvents {
    form: CompletionForm,
    options: StreamOptions,
    usage: UsageSum,
    has_begun: Vec<bool>,
}

impl CompletionEvents {
    pub(crate) fn new(form: CompletionForm, options: StreamOptions) -> Self {
        let has_begun = vec![false; form.prompts.len() * form.answers_per_prompt];
        Self { usage: form.usage(), form, options, has_begun }
    }
}

impl Events for CompletionEvents {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        for delta in deltas {
            let Delta { choice: index, said, scores, tokens, finish } = delta;
            let text = said.apart().text;
            self.usage.drawn(index, tokens.len());
            if let Some(finish) = &finish {
                self.usage.finished(index, finish);
            }
            let shows_tokens = (self.form.logprobs.is_some() || self.form.shown.ids) && !tokens.is_empty();
            // Text that is held back makes no chunk, unless its tokens are wanted.
            if text.is_empty() && finish.is_none() && !shows_tokens && scores.is_empty() {
                continue;
            }
            let is_first = !std::mem::replace(&mut self.has_begun[index], true);
            let usage = match self.options {
                StreamOptions { continuous_usage: true, .. } => Some(Some(self.usage.of_choice(index))),
                StreamOptions { include_usage: true, .. } => Some(None),
                _ => None,
            };
            let choices = vec![self.form.choice(index, is_first, text, &scores, &tokens, finish.as_ref())];
            event(out, &CompletionChunk { head: &self.form.head, choices, usage });
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        if self.options.include_usage {
            event(
                out,
                &CompletionChunk { head: &self.form.head, choices: Vec::new(), usage: Some(Some(self.usage.total())) },
            );
        }
        done(out);
    }
}

#[cfg(test)]
mod tests;

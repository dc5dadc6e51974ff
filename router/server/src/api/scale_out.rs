//! For routers of several servers and for trainers, who do the text themselves: prompts as token ids (`.../render`), and token ids
//! in, token ids out (`/inference/v1/generate`). The peer's form.

use std::sync::Arc;

use bytes::BytesMut;
use pelton_engine::{TokenId, TokenScore};
use pelton_text::Tokenizer;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    StopReason, StreamOptions,
    constrained::{FORMATS, STRUCTURED},
    fields::{Fields, MEASURED_APART, TOKEN_IDS},
    finish_reason,
    logprobs::ChatLogprobs,
    models::{MODEL, read_model},
    prompt_logprobs::{PROMPT_LOGPROBS, PromptLogprobs},
    sampling::{
        CUT, N, PRIORITY, REQUEST_ID, SALT, SAMPLING, STREAM, read_cut, read_options, read_request_id, read_stream,
    },
    shape::{Kind, Most, Shape, needed, optional, with_default},
    stop_reason,
    stream::{Events, Head, Shown, done, event},
    unknown::Given,
    unserved::{self, Unserved, refuse_all, refuse_sampling},
    usage::{Usage, UsageSum},
};
use crate::{
    error::ApiError,
    generate::{Delta, Drawn, Finish, PreparedPrompt, Prompt, Request, Whole, told},
};

/// A prompt, rendered and tokenised.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RenderedPrompt")]
pub(crate) struct Rendered {
    token_ids: Vec<TokenId>,
    /// Where media stand in it: nowhere, since none are served.
    features: Option<()>,
}

impl Rendered {
    pub(crate) fn new(prompt: &PreparedPrompt) -> Self {
        Self { token_ids: prompt.ids.to_vec(), features: None }
    }
}

/// Beside what no request can have.
const UNSERVED: &[Unserved] = &[
    ("features", &["{}"], "media"),
    ("kv_transfer_params", &[], "moving KV between servers"),
    ("ec_transfer_params", &[], "moving encodings between servers"),
];

/// Of sampling parameters, those that say how an answer is told.
const UNSERVED_IN_SAMPLING: &[Unserved] = &[("output_kind", &["0", "1", "2"], "this form of answers")];

/// The body of a request of tokens for tokens.
pub(crate) const GENERATE: Shape = Shape {
    name: "TokensRequest",
    about: "Tokens to be continued.",
    fields: &[
        &[
            MODEL,
            needed("token_ids", Kind::TokenIds(1, Most::ANY), "The prompt."),
            optional(MEASURED_APART, Kind::Object(&SAMPLING_PARAMS), "How tokens are drawn, and what ends the answer."),
            optional("priority", PRIORITY, "Smaller first; goes before that of `sampling_params`."),
            optional("cache_salt", SALT, "Requests with different salts share no cached blocks."),
            REQUEST_ID,
        ],
        STREAM,
    ],
    unserved: &[UNSERVED],
};
const SAMPLING_PARAMS: Shape = Shape {
    name: "SamplingParams",
    about: "How tokens are drawn, and what ends the answer.",
    fields: &[
        &[
            with_default("max_tokens", Kind::Integer(1, Most::Context), "16", "Tokens of an answer at most."),
            optional(
                "logprobs",
                Kind::Integer(0, Most::Logprobs),
                "How many likeliest tokens are told beside each drawn one.",
            ),
            PROMPT_LOGPROBS,
            optional("detokenize", Kind::Flag, "No text is told in any case."),
        ],
        CUT,
        N,
        SAMPLING,
        STRUCTURED,
        FORMATS,
    ],
    unserved: &[unserved::BOTH, UNSERVED_IN_SAMPLING],
};

/// Tokens to be continued.
#[derive(Debug)]
pub(crate) struct TokensRequest {
    pub(crate) model: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) request: Request,
}

impl TokensRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        refuse_all(&mut fields, UNSERVED)?;
        let model = read_model(&mut fields)?;
        let missing = || ApiError::Missing { param: "token_ids".to_owned(), allowed: TOKEN_IDS };
        let ids = fields.token_ids("token_ids")?.ok_or_else(missing)?;
        let mut sampling = match fields.object(MEASURED_APART)? {
            Some(sampling) => sampling,
            None => Fields::of_body(b"{}")?,
        };
        sampling.check_sizes()?;
        refuse_sampling(&mut sampling)?;
        refuse_all(&mut sampling, UNSERVED_IN_SAMPLING)?;
        let mut options = read_options(&mut sampling)?;
        options.max_tokens = sampling.count("max_tokens", told::MAX_TOKENS)?;
        options.logprobs = sampling.count("logprobs", told::LOGPROBS)?;
        options.prompt_logprobs = sampling.count("prompt_logprobs", told::LOGPROBS)?;
        sampling.flag("detokenize")?; // no text is told in any case
        let cut = read_cut(&mut sampling)?;
        sampling.finish(&SAMPLING_PARAMS)?;
        options.priority = fields.integer("priority", told::SIGNED)?.or(options.priority);
        options.cache_salt = fields.text("cache_salt")?.or(options.cache_salt);
        let stream = read_stream(&mut fields)?;
        let request_id = read_request_id(&mut fields)?;
        fields.finish(&GENERATE)?;
        let request = Request { cut, ..Request::new(vec![Prompt::Ids(ids)], options) };
        Ok(Self { model, request_id, stream, request })
    }

    /// An error of what all doors share, in the words of this one.
    pub(crate) fn renamed(error: ApiError) -> ApiError {
        error.renamed(|param| match param {
            "prompt" => Some("token_ids".to_owned()),
            "cache_salt" | "priority" => None,
            sampling => Some(format!("sampling_params.{sampling}")),
        })
    }
}

/// A whole answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokensResponse<'a> {
    request_id: &'a str,
    model: &'a str,
    created: u64,
    choices: Vec<Choice<'a>>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
}

/// A choice, whole or a piece of one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TokensChoice")]
struct Choice<'a> {
    index: usize,
    token_ids: Vec<TokenId>,
    logprobs: Option<ChatLogprobs<'a>>,
    #[schemars(extend("enum" = ["stop", "length", "tool_calls", "repetition", null]))]
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
}

/// A piece of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokensChunk<'a> {
    request_id: &'a str,
    choices: Vec<Choice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Shown<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
}

/// How choices are shown, in streams and whole.
pub(crate) struct TokensForm {
    pub(crate) head: Head,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) has_logprobs: bool,
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) prompt: Arc<[TokenId]>,
    pub(crate) answers: usize,
}

impl TokensForm {
    fn usage(&self) -> UsageSum {
        UsageSum::new([self.prompt.len()], self.answers)
    }

    fn prompt_logprobs(&self, scores: &[TokenScore]) -> Option<PromptLogprobs> {
        self.prompt_logprobs.map(|top| PromptLogprobs::new(&self.tokenizer, &self.prompt, scores, top))
    }

    fn choice(&self, index: usize, tokens: &[Drawn], finish: Option<&Finish>) -> Choice<'_> {
        Choice {
            index,
            token_ids: tokens.iter().map(|drawn| drawn.token).collect(),
            logprobs: self.has_logprobs.then(|| ChatLogprobs::by_id(&self.tokenizer, tokens)),
            finish_reason: finish.map(finish_reason),
            stop_reason: finish.and_then(stop_reason),
        }
    }

    pub(crate) fn whole(&self, answers: &[Whole]) -> TokensResponse<'_> {
        let mut usage = self.usage();
        let mut choices = Vec::with_capacity(answers.len());
        for (index, answer) in answers.iter().enumerate() {
            usage.finished(index, &answer.finish);
            choices.push(self.choice(index, &answer.tokens, Some(&answer.finish)));
        }
        let Head { id, created, model, .. } = &self.head;
        let prompt_logprobs = self.prompt_logprobs(answers.first().map_or(&[], |answer| &answer.scores));
        TokensResponse { request_id: id, model, created: *created, choices, usage: usage.total(), prompt_logprobs }
    }
}

/// The stream of an answer.
pub(crate) struct TokensEvents {
    form: TokensForm,
    options: StreamOptions,
    usage: UsageSum,
    /// Whether the prompt was shown, on the first chunk of all.
    has_shown_prompt: bool,
}

impl TokensEvents {
    pub(crate) fn new(form: TokensForm, options: StreamOptions) -> Self {
        Self { usage: form.usage(), form, options, has_shown_prompt: false }
    }

    fn write(
        &self,
        choices: Vec<Choice<'_>>,
        usage: Shown<Usage>,
        prompt_logprobs: Option<PromptLogprobs>,
        out: &mut BytesMut,
    ) {
        event(out, &TokensChunk { request_id: &self.form.head.id, choices, usage, prompt_logprobs });
    }
}

impl Events for TokensEvents {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        for Delta { choice, scores, tokens, finish, .. } in deltas {
            self.usage.drawn(choice, tokens.len());
            if let Some(finish) = &finish {
                self.usage.finished(choice, finish);
            }
            if tokens.is_empty() && finish.is_none() && scores.is_empty() {
                continue;
            }
            let usage = match self.options {
                StreamOptions { continuous_usage: true, .. } => Some(Some(self.usage.of_choice(choice))),
                StreamOptions { include_usage: true, .. } => Some(None),
                _ => None,
            };
            let is_first = !std::mem::replace(&mut self.has_shown_prompt, true);
            let prompt_logprobs = self.form.prompt_logprobs(&scores).filter(|_| is_first);
            self.write(vec![self.form.choice(choice, &tokens, finish.as_ref())], usage, prompt_logprobs, out);
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        if self.options.include_usage {
            self.write(Vec::new(), Some(Some(self.usage.total())), None, out);
        }
        done(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> String {
        match TokensRequest::read(body.as_bytes()) {
            Ok(_) => String::new(),
            Err(error) => error.to_string().split('`').nth(1).unwrap_or_default().to_owned(),
        }
    }

    #[test]
    fn allowed_tokens_may_be_many_and_other_values_not() {
        let many = |item: &str| vec![item; 200_000].join(",");
        let of = |sampling: &str| refused(&format!(r#"{{"token_ids": [1], "sampling_params": {{{sampling}}}}}"#));
        assert_eq!(of(&format!(r#""allowed_token_ids": [{}]"#, many("1"))), "");
        assert_eq!(of(&format!(r#""stop": [{}]"#, many(r#""a""#))), "sampling_params.stop");
    }

    #[test]
    fn tokens_and_sampling_are_read_and_errors_name_the_place() {
        for (body, param) in [
            (r#"{"token_ids": [1, 2]}"#, ""),
            (
                r#"{"token_ids": [1], "sampling_params": {"max_tokens": 3, "logprobs": 0, "detokenize": false}, "features": null}"#,
                "",
            ),
            (r#"{"sampling_params": {}}"#, "token_ids"),
            (r#"{"token_ids": "a"}"#, "token_ids"),
            (r#"{"token_ids": [1], "prompt": "a"}"#, "prompt"),
            (r#"{"token_ids": [1], "features": {"mm_hashes": {}}}"#, "features"),
            (r#"{"token_ids": [1], "kv_transfer_params": {}}"#, "kv_transfer_params"),
            (r#"{"token_ids": [1], "sampling_params": {"temperature": "hot"}}"#, "sampling_params.temperature"),
            (r#"{"token_ids": [1], "sampling_params": {"prompt_logprobs": -1}}"#, "sampling_params.prompt_logprobs"),
            (r#"{"token_ids": [1], "sampling_params": {"stream": true}}"#, "sampling_params.stream"),
        ] {
            assert_eq!(refused(body), param, "{body}");
        }
    }
}

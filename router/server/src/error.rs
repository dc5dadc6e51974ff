//! Everything that can go wrong between a client and us, and what it looks like over HTTP and over gRPC.
//!
//! Handlers return an [`ApiError`]; here, and nowhere else, it becomes a status, an envelope or a gRPC status.
//! What the client reads is the error's text. What only the log keeps is `log` of [`ApiError::Internal`].

mod facts;

use std::{borrow::Cow, fmt::Display, time::Duration};

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use pelton_engine::Failure;
use schemars::JsonSchema;
use serde::Serialize;

/// Characters of a client's text that an error repeats.
const SHOWN_MAX: usize = 60;

/// Expected trouble: whose fault it is, which parameter, what it got, what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The body is no JSON object that we read.
    #[error("the body is not a JSON object that can be read: {reason}")]
    BadBody {
        /// Where and why.
        reason: String,
    },
    /// A parameter has a wrong type or value.
    #[error("`{param}` is {got}; allowed: {allowed}")]
    Invalid {
        /// Its path in the request.
        param: String,
        /// What the client sent, shortened.
        got: String,
        /// What it may be.
        allowed: Cow<'static, str>,
    },
    /// A parameter that must be there is not.
    #[error("`{param}` is missing; it must be {allowed}")]
    Missing {
        /// Its path in the request.
        param: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// Nobody knows this parameter.
    #[error("`{param}` is not a parameter of this request{}", did_you_mean(.nearest.as_deref()))]
    Unknown {
        /// Its path in the request.
        param: String,
        /// The known one that it resembles.
        nearest: Option<String>,
    },
    /// A parameter of the protocol that Pelton does not serve yet: refused, since ignoring it would be a lie.
    #[error("`{param}` is {got}; allowed: {allowed}; not served yet: {what}")]
    NotServed {
        /// Its path in the request.
        param: String,
        /// What the client sent, shortened.
        got: String,
        /// What asks for nothing of the kind.
        allowed: Cow<'static, str>,
        /// What was asked for.
        what: Cow<'static, str>,
    },
    /// Two parameters that exclude each other, or one that needs another.
    #[error("`{param}` {reason}")]
    Conflict {
        /// The one to change.
        param: String,
        /// Why, as the rest of the sentence.
        reason: String,
    },
    /// A chat template of the request's own that is none, or that cannot write this chat.
    #[error("`chat_template` {reason}")]
    WrongTemplate {
        /// Why, as the rest of the sentence.
        reason: String,
    },
    /// What an answer is to be constrained by is wrong, or costs too much.
    #[error("`{param}` cannot be used: {reason}")]
    WrongGrammar {
        /// Its path in the request, down to the part of a schema that is wrong.
        param: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What an answer is constrained by is too costly in the midst of it.
    #[error("`{param}`: {reason}")]
    CostlyGrammar {
        /// Its path in the request.
        param: String,
        /// What the engine says of it.
        reason: String,
    },
    /// The prompt leaves no room for an answer. Clients know this refusal by Anthropic's words ("prompt is too long") or OpenAI's
    /// ("this model's maximum context length is").
    #[error(
        "`{param}`: the prompt is too long: it has {prompt} tokens, and this model's maximum context length is {limit}, prompt and answer together; shorten it by at least {}",
        .prompt + 1 - .limit
    )]
    PromptTooLong {
        /// Where the prompt stood in the request.
        param: String,
        /// Its tokens.
        prompt: u64,
        /// The context.
        limit: u64,
    },
    /// The same, seen before the prompt was tokenised.
    #[error(
        "`{param}`: the prompt is too long: it has {bytes} bytes of text, more than {limit} tokens can hold, and this model's maximum context length is {limit}; shorten it"
    )]
    TextTooLong {
        /// Where the prompt stood in the request.
        param: String,
        /// Its length.
        bytes: usize,
        /// The context.
        limit: u32,
    },
    /// What becomes a vector has more tokens than the model takes.
    #[error(
        "`{param}` has {tokens} tokens, and the model takes {limit}: shorten it, or ask for the first ones alone by `truncate_prompt_tokens`"
    )]
    InputTooLong {
        /// Where it stood in the request.
        param: String,
        /// Its tokens.
        tokens: usize,
        /// The context.
        limit: u32,
    },
    /// The model gives something else than is asked for.
    #[error("the model gives {gives}: {refused} is not for it; use {instead}")]
    WrongModelKind {
        /// What the model gives, and what it does not.
        gives: &'static str,
        /// Which route, or what of it.
        refused: String,
        /// What to use.
        instead: String,
    },
    /// The model is not one of ours.
    #[error("the model `{asked}` is not served here; served: {served}")]
    UnknownModel {
        /// What was asked for.
        asked: String,
        /// The names that exist.
        served: String,
    },
    /// Nothing is kept under this id, for this key.
    #[error("there is no {what} `{id}`: it was not kept, is too old, or was deleted")]
    NotKept {
        /// response, file or batch.
        what: &'static str,
        /// What was asked for, shortened.
        id: String,
    },
    /// A file of more bytes than we take.
    #[error("the file has more than {limit} bytes, the most this server takes; cut it into several")]
    FileTooLarge {
        /// The bound.
        limit: u64,
    },
    /// What is kept leaves no room for more.
    #[error("there is no room: {reason}")]
    NoRoom {
        /// Which bound is reached, and what helps.
        reason: String,
    },
    /// The body is no form of the parts that it should have.
    #[error("the body cannot be read as multipart/form-data: {reason}")]
    BadForm {
        /// Why.
        reason: String,
    },
    /// No key, or a wrong one.
    #[error("a valid API key is needed: send `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    Unauthorized,
    /// No such path.
    #[error("there is nothing at `{path}`{}", did_you_mean(.nearest.as_deref()))]
    UnknownRoute {
        /// What was asked for.
        path: String,
        /// The path that it resembles.
        nearest: Option<String>,
    },
    /// The path exists, the method does not.
    #[error("`{method}` is not answered here; allowed: {allowed}")]
    WrongMethod {
        /// What was asked for.
        method: String,
        /// As in the `Allow` header.
        allowed: String,
    },
    /// The request's head is none, or too large. hyper refuses it, `http::unparsed` gives it this body.
    #[error("the request's head cannot be read: {reason}")]
    BadHead {
        /// 400, 414 or 431.
        status: StatusCode,
        /// Why.
        reason: &'static str,
    },
    /// HTTP/1.1 asks for it.
    #[error("the header `host` is missing, empty or given twice; HTTP/1.1 needs it once")]
    NoHost,
    /// More bytes than we take.
    #[error("the body has more than {limit} bytes, the most this server takes")]
    BodyTooLarge {
        /// The bound.
        limit: usize,
    },
    /// The bodies of others take the memory that there is for bodies.
    #[error("the bodies of other requests take all of the {limit} bytes that this server has for them; try again")]
    BodiesFull {
        /// The bound.
        limit: usize,
    },
    /// The client's body did not arrive whole.
    #[error("the body ended early: {reason}")]
    BodyBroken {
        /// How.
        reason: String,
    },
    /// A gRPC message that is none, or not of this call.
    #[error("the message cannot be read: {reason}")]
    BadMessage {
        /// What the decoder said.
        reason: String,
    },
    /// The body is compressed.
    #[error("the content encoding is `{got}`; allowed: identity")]
    WrongEncoding {
        /// What was declared.
        got: String,
    },
    /// The body is declared as something else than what is read here.
    #[error("the content type is `{got}`; allowed: {allowed}")]
    WrongMediaType {
        /// What was declared.
        got: String,
        /// What is read.
        allowed: &'static str,
    },
    /// The engine does not take the request, or could not end it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Not now: the model loads, or the server drains.
    #[error("{reason}")]
    Unavailable {
        /// Why.
        reason: String,
        /// When to try again.
        retry_after_s: u32,
    },
    /// Too much text waits to be tokenised.
    #[error("too many long prompts are being tokenised; try again")]
    TextQueueFull,
    /// The request's time is over.
    #[error("the request was not finished within {} s", .allowed.as_secs_f64())]
    DeadlineExceeded {
        /// The bound.
        allowed: Duration,
    },
    /// The model's files are at fault: whoever runs the server has to mend them.
    #[error("the model's chat template fails on any chat: {reason}")]
    BrokenTemplate {
        /// What the template engine said.
        reason: String,
    },
    /// Our fault.
    #[error("the server had an error while processing the request; its log says more")]
    Internal {
        /// For the log alone.
        log: String,
    },
}

/// [`Failure`] with the equality and the source that [`ApiError`] needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub Failure);

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unavailable(reason) => Self::Unavailable { reason, retry_after_s: 1 },
            other => Self::Engine(EngineError(other)),
        }
    }
}

impl ApiError {
    /// A parameter with a wrong value.
    pub(crate) fn invalid(param: impl Into<String>, got: impl Display, allowed: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid { param: param.into(), got: got.to_string(), allowed: allowed.into() }
    }

    /// A parameter that asks for what is not served yet. `what` is a noun, `allowed` what the parameter may be meanwhile.
    pub(crate) fn not_served(
        param: impl Into<String>,
        got: impl Display,
        allowed: impl Into<Cow<'static, str>>,
        what: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::NotServed { param: param.into(), got: got.to_string(), allowed: allowed.into(), what: what.into() }
    }

    /// The same error by the names of a protocol that calls a parameter otherwise: `name` gives the new one, if any.
    pub(crate) fn renamed<N: Into<String>>(mut self, name: impl FnOnce(&str) -> Option<N>) -> Self {
        match &mut self {
            Self::Invalid { param, .. }
            | Self::Missing { param, .. }
            | Self::Unknown { param, .. }
            | Self::NotServed { param, .. }
            | Self::Conflict { param, .. }
            | Self::WrongGrammar { param, .. }
            | Self::CostlyGrammar { param, .. }
            | Self::PromptTooLong { param, .. }
            | Self::TextTooLong { param, .. }
            | Self::InputTooLong { param, .. } => {
                if let Some(new) = name(param) {
                    *param = new.into();
                }
            }
            _ => {}
        }
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.facts().status
    }

    /// The one body that every error has, on every route and inside streams.
    pub fn envelope(&self) -> Envelope<'_> {
        let facts = self.facts();
        let error = EnvelopeError {
            message: self.to_string(),
            kind: facts.kind,
            param: facts.param,
            code: facts.status.as_u16(),
            code_name: facts.code_name,
        };
        Envelope { error }
    }

    /// Writes to the log what concerns whoever runs the server.
    pub(crate) fn report(&self) {
        match self {
            Self::Internal { log } => tracing::error!(error = %log, "internal error"),
            Self::BrokenTemplate { reason } => tracing::error!(error = %reason, "the chat template cannot be used"),
            Self::Engine(EngineError(Failure::Internal(reason))) => {
                tracing::error!(error = %reason, "the engine failed a request")
            }
            _ => {}
        }
    }
}

/// `{"error": {...}}`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct Envelope<'a> {
    pub(crate) error: EnvelopeError<'a>,
}

/// What is in it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ErrorInner")]
pub struct EnvelopeError<'a> {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: u16,
    code_name: &'static str,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.report();
        let facts = self.facts();
        let mut response = (facts.status, axum::Json(self.envelope())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = facts.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        match &self {
            Self::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::WrongMethod { allowed, .. } => {
                if let Ok(allowed) = HeaderValue::from_str(allowed) {
                    headers.insert(header::ALLOW, allowed);
                }
            }
            _ => {}
        }
        // For routes that tell errors in another protocol's form.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ApiError> for tonic::Status {
    fn from(error: ApiError) -> Self {
        error.report();
        let facts = error.facts();
        let mut metadata = tonic::metadata::MetadataMap::new();
        metadata.insert("pelton-code-name", tonic::metadata::MetadataValue::from_static(facts.code_name));
        if let Some(seconds) = facts.retry_after_s {
            metadata.insert("retry-after", tonic::metadata::MetadataValue::from(seconds));
        }
        Self::with_metadata(facts.grpc, error.to_string(), metadata)
    }
}

/// What a client sent, as far as an error repeats it.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests;

//! Errors in Anthropic's form.

use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use super::request::THREAD;
use crate::error::ApiError;

/// `{"type": "error", "error": {"type": ..., "message": ...}, "request_id": ...}`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicError")]
pub(crate) struct ErrorBody<'a> {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "error"))]
    kind: &'static str,
    error: Inner,
    request_id: &'a str,
    /// Over HTTP.
    #[serde(skip)]
    pub(crate) status: StatusCode,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorInner")]
struct Inner {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
    /// Where Anthropic's client goes on by itself once it is told so.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

/// `{"error_code": ..., "unsupported": [...]}`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorDetails")]
struct Details {
    error_code: &'static str,
    unsupported: &'static [&'static str],
}

/// Its client's tool runner asks for a thread, and sends whole conversations to a server that says this.
const NO_THREADS: Details = Details { error_code: "thread_unsupported_request", unsupported: &[THREAD] };

impl<'a> ErrorBody<'a> {
    /// What Anthropic's clients take for "come back later".
    pub(crate) const OVERLOADED: u16 = 529;

    pub(crate) fn new(error: &ApiError, request_id: &'a str) -> Self {
        let ours = error.status();
        let status = match ours {
            StatusCode::SERVICE_UNAVAILABLE => StatusCode::from_u16(Self::OVERLOADED).expect("three digits"),
            other => other,
        };
        let kind = match ours {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            other if other.is_client_error() => "invalid_request_error",
            _ => "api_error",
        };
        let details = matches!(error, ApiError::NotServed { param, .. } if param == THREAD).then_some(NO_THREADS);
        Self { kind: "error", error: Inner { kind, message: error.to_string(), details }, request_id, status }
    }
}

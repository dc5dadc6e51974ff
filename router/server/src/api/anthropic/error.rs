//! Errors in Anthropic's form.

use http::StatusCode;
use serde::Serialize;

use crate::error::ApiError;

/// What Anthropic's clients take for "come back later".
const OVERLOADED: u16 = 529;

/// `{"type": "error", "error": {"type": ..., "message": ...}, "request_id": ...}`.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: Inner,
    request_id: &'a str,
    /// Over HTTP.
    #[serde(skip)]
    pub(crate) status: StatusCode,
}

#[derive(Debug, Serialize)]
struct Inner {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
}

impl<'a> ErrorBody<'a> {
    pub(crate) fn new(error: &ApiError, request_id: &'a str) -> Self {
        let ours = error.status();
        let status = match ours {
            StatusCode::SERVICE_UNAVAILABLE => StatusCode::from_u16(OVERLOADED).expect("three digits"),
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
        Self { kind: "error", error: Inner { kind, message: error.to_string() }, request_id, status }
    }
}

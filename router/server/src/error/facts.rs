//! What each error is to the protocols: its status over HTTP and over gRPC, its names, and when to try again.

use http::StatusCode;
use pelton_engine::Failure;

use super::{ApiError, EngineError};

/// A server that ends does not come back; whoever stands in front of several needs a moment to leave it out.
const SHUTDOWN_RETRY_AFTER_S: u32 = 1;

/// What protocols need to know of an error beside its text.
pub(super) struct Facts<'a> {
    pub(super) status: StatusCode,
    /// The peer's class-like name, which clients may depend on.
    pub(super) kind: &'static str,
    /// Stable and ours: texts may change, this does not.
    pub(super) code_name: &'static str,
    pub(super) param: Option<&'a str>,
    pub(super) grpc: tonic::Code,
    pub(super) retry_after_s: Option<u32>,
}

impl ApiError {
    /// What this error is to each of them.
    pub(super) fn facts(&self) -> Facts<'_> {
        use tonic::Code;
        let bad = |code_name, param| Facts {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            code_name,
            param,
            grpc: Code::InvalidArgument,
            retry_after_s: None,
        };
        let of =
            |status, kind, code_name, grpc| Facts { status, kind, code_name, param: None, grpc, retry_after_s: None };
        let later = |seconds: u32, facts| Facts { retry_after_s: Some(seconds), ..facts };
        match self {
            Self::BadBody { .. } => bad("invalid_json", None),
            Self::BadMessage { .. } => bad("invalid_message", None),
            Self::NoHost => bad("missing_host", None),
            Self::BadHead { status, .. } => {
                let code_name = match *status {
                    StatusCode::URI_TOO_LONG => "uri_too_long",
                    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "headers_too_large",
                    _ => "bad_request_head",
                };
                of(*status, "BadRequestError", code_name, Code::InvalidArgument)
            }
            Self::BodyBroken { .. } => bad("incomplete_body", None),
            Self::Invalid { param, .. } => bad("invalid_value", Some(param)),
            Self::Missing { param, .. } => bad("missing_parameter", Some(param)),
            Self::Unknown { param, .. } => bad("unknown_parameter", Some(param)),
            Self::NotServed { param, .. } => bad("not_served_yet", Some(param)),
            Self::Conflict { param, .. } => bad("conflicting_parameters", Some(param)),
            Self::WrongTemplate { .. } => bad("invalid_chat_template", Some("chat_template")),
            Self::WrongGrammar { param, .. } => bad("invalid_grammar", Some(param)),
            Self::CostlyGrammar { param, .. } => bad("grammar_too_complex", Some(param)),
            Self::WrongModelKind { .. } => bad("wrong_model_kind", None),
            Self::PromptTooLong { param, .. } | Self::TextTooLong { param, .. } | Self::InputTooLong { param, .. } => {
                bad("context_length_exceeded", Some(param))
            }
            Self::UnknownModel { .. } => Facts {
                param: Some("model"),
                ..of(StatusCode::NOT_FOUND, "NotFoundError", "model_not_found", Code::NotFound)
            },
            Self::NotKept { what, .. } => {
                let code_name = match *what {
                    "file" => "file_not_found",
                    "batch" => "batch_not_found",
                    _ => "response_not_found",
                };
                of(StatusCode::NOT_FOUND, "NotFoundError", code_name, Code::NotFound)
            }
            Self::FileTooLarge { .. } => {
                of(StatusCode::PAYLOAD_TOO_LARGE, "PayloadTooLargeError", "file_too_large", Code::ResourceExhausted)
            }
            Self::NoRoom { .. } => {
                of(StatusCode::TOO_MANY_REQUESTS, "RateLimitError", "no_room", Code::ResourceExhausted)
            }
            Self::BadForm { .. } => bad("invalid_form", None),
            Self::Unauthorized => {
                of(StatusCode::UNAUTHORIZED, "AuthenticationError", "invalid_api_key", Code::Unauthenticated)
            }
            Self::UnknownRoute { .. } => {
                of(StatusCode::NOT_FOUND, "NotFoundError", "unknown_route", Code::Unimplemented)
            }
            Self::WrongMethod { .. } => {
                of(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowedError", "method_not_allowed", Code::Unimplemented)
            }
            Self::BodyTooLarge { .. } => {
                of(StatusCode::PAYLOAD_TOO_LARGE, "PayloadTooLargeError", "body_too_large", Code::ResourceExhausted)
            }
            Self::WrongMediaType { .. } => of(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UnsupportedMediaTypeError",
                "wrong_content_type",
                Code::InvalidArgument,
            ),
            Self::WrongEncoding { .. } => of(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UnsupportedMediaTypeError",
                "wrong_content_encoding",
                Code::InvalidArgument,
            ),
            Self::Engine(EngineError(failure)) => match failure {
                Failure::NeverFits { .. } => bad("never_fits", None),
                Failure::Grammar(_) => bad("grammar_too_complex", None),
                // Who submits words knows their names.
                Failure::NoWord => bad("conflicting_parameters", None),
                Failure::QueueFull { retry_after_s, .. } => later(
                    *retry_after_s,
                    of(StatusCode::TOO_MANY_REQUESTS, "RateLimitError", "queue_full", Code::ResourceExhausted),
                ),
                Failure::Unavailable(_) => later(
                    1,
                    of(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", "unavailable", Code::Unavailable),
                ),
                Failure::ShuttingDown => later(
                    SHUTDOWN_RETRY_AFTER_S,
                    of(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", "shutting_down", Code::Unavailable),
                ),
                Failure::Expired { .. } => {
                    of(StatusCode::GATEWAY_TIMEOUT, "TimeoutError", "deadline_exceeded", Code::DeadlineExceeded)
                }
                Failure::Internal(_) => {
                    of(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", "engine_failed", Code::Internal)
                }
            },
            Self::Unavailable { retry_after_s, .. } => later(
                *retry_after_s,
                of(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", "unavailable", Code::Unavailable),
            ),
            Self::TextQueueFull => later(
                1,
                of(StatusCode::TOO_MANY_REQUESTS, "RateLimitError", "text_queue_full", Code::ResourceExhausted),
            ),
            Self::BodiesFull { .. } => {
                later(1, of(StatusCode::TOO_MANY_REQUESTS, "RateLimitError", "bodies_full", Code::ResourceExhausted))
            }
            Self::DeadlineExceeded { .. } => {
                of(StatusCode::GATEWAY_TIMEOUT, "TimeoutError", "deadline_exceeded", Code::DeadlineExceeded)
            }
            Self::BrokenTemplate { .. } => {
                of(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", "broken_chat_template", Code::Internal)
            }
            Self::Internal { .. } => {
                of(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", "internal_error", Code::Internal)
            }
        }
    }
}

//! What clients see of errors.

use pelton_engine::QueueBound;

use super::*;

fn check(error: ApiError, status: u16, code_name: &str, grpc: tonic::Code) {
    let shown = serde_json::to_value(error.envelope()).expect("envelopes are plain");
    let keys: Vec<&String> = shown["error"].as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["message", "type", "param", "code", "code_name"]);
    assert_eq!(shown["error"]["code"], status);
    assert_eq!(shown["error"]["code_name"], code_name);
    assert_eq!(tonic::Status::from(error).code(), grpc);
}

fn full(retry_after_s: u32) -> Failure {
    Failure::QueueFull { bound: QueueBound::Requests { waiting: 9, asked: 1, limit: 9 }, retry_after_s }
}

#[test]
fn every_protocol_is_told_whose_fault_it_is() {
    use tonic::Code;
    check(ApiError::invalid("n", "0", "1 to 128"), 400, "invalid_value", Code::InvalidArgument);
    check(ApiError::UnknownModel { asked: "x".into(), served: "demo".into() }, 404, "model_not_found", Code::NotFound);
    check(ApiError::Unauthorized, 401, "invalid_api_key", Code::Unauthenticated);
    check(full(3).into(), 429, "queue_full", Code::ResourceExhausted);
    check(Failure::NeverFits { needed: 9, blocks: 8, block_size: 32 }.into(), 400, "never_fits", Code::InvalidArgument);
    check(Failure::Unavailable("loading".into()).into(), 503, "unavailable", Code::Unavailable);
    check(Failure::ShuttingDown.into(), 503, "shutting_down", Code::Unavailable);
    check(Failure::Internal("broken".into()).into(), 500, "engine_failed", Code::Internal);
    check(
        ApiError::DeadlineExceeded { allowed: Duration::from_secs(2) },
        504,
        "deadline_exceeded",
        Code::DeadlineExceeded,
    );
    check(ApiError::BrokenTemplate { reason: "no".into() }, 500, "broken_chat_template", Code::Internal);
    check(ApiError::Internal { log: "secret".into() }, 500, "internal_error", Code::Internal);
}

#[test]
fn what_only_the_log_keeps_is_not_shown() {
    let shown = serde_json::to_string(&ApiError::Internal { log: "/home/secret".into() }.envelope()).expect("plain");
    assert!(!shown.contains("secret"), "{shown}");
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let response = ApiError::from(full(7)).into_response();
    assert_eq!(response.headers()["retry-after"], "7");
}

#[test]
fn a_bound_on_time_is_told_in_seconds() {
    for (allowed, expected) in [(Duration::from_secs(90), "90 s"), (Duration::from_millis(5), "0.005 s")] {
        let error = ApiError::DeadlineExceeded { allowed };
        assert_eq!(error.to_string(), format!("the request was not finished within {expected}"));
    }
}

#[test]
fn a_long_prompt_is_told_by_how_much() {
    let error = ApiError::PromptTooLong { param: "prompt".into(), prompt: 100, limit: 100 };
    assert!(error.to_string().ends_with("shorten it by at least 1"), "{error}");
}

//! `/openapi.json` and `/docs`: what this server answers, for programs and for people.
//!
//! Requests are described by the tables that parse them (`api::shape`), answers by their types (schemars). The page is one file
//! without any other: its script and its style are in it, and its policy lets nothing else run or load.

mod document;
mod examples;
mod operation;
mod operations;
mod page;

use axum::{
    Json,
    extract::State,
    response::{Html, IntoResponse as _, Response},
};
use http::header;
use serde_json::Value;

use self::document::Facts;
use super::App;
use crate::api::shape::Bounds;

pub(super) async fn describe(State(App { serving, keys, .. }): State<App>) -> Json<Value> {
    let loaded = serving.status.borrow().model.as_ref().map(|model| model.vocab_size);
    let limits = &serving.limits;
    let bounds = Bounds {
        answers: limits.max_n,
        logprobs: limits.max_logprobs,
        stop_texts: limits.max_stop_strings,
        context: serving.max_model_len(),
        vocabulary: loaded.or(serving.checkpoint.vocab_size),
        passes_unknown: limits.passes_unknown,
    };
    Json(document::document(&Facts { bounds, has_keys: keys.are_there() }))
}

pub(super) async fn docs() -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, page::POLICY.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(page::PAGE.as_str())).into_response()
}

/// Methods and paths that are described.
#[cfg(test)]
pub(super) fn described() -> impl Iterator<Item = (&'static str, &'static str)> {
    operations::OPERATIONS.iter().map(|operation| (operation.method, operation.path))
}

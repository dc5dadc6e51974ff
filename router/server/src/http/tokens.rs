//! `/tokenize` and `/detokenize`. Answered also while the model loads: the tokenizer is ours.

use axum::{Json, extract::State};
use serde_json::Value;

use super::{App, body::JsonBody};
use crate::{
    api::tokens::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse},
    error::ApiError,
};

pub(super) async fn tokenize(
    State(App { serving, .. }): State<App>,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let request = serving.on_text(body.len(), move || TokenizeRequest::read(&body)).await?;
    serving.check_model(request.model.as_deref())?;
    let prepared = serving.count(request.prompt).await?;
    let tokens = &*prepared.ids;
    let text =
        |&token: &u32| String::from_utf8_lossy(serving.tokenizer.token_bytes(token).unwrap_or_default()).into_owned();
    let response = TokenizeResponse {
        count: tokens.len(),
        max_model_len: serving.max_model_len(),
        tokens,
        token_strs: request.return_token_strs.then(|| tokens.iter().map(text).collect()),
    };
    Ok(Json(serde_json::to_value(response).expect("numbers and texts are JSON")))
}

pub(super) async fn detokenize(
    State(App { serving, .. }): State<App>,
    JsonBody(body): JsonBody,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    let request = serving.on_text(body.len(), move || DetokenizeRequest::read(&body)).await?;
    serving.check_model(request.model.as_deref())?;
    let prompt = serving.detokenize("tokens", request.tokens).await?;
    Ok(Json(DetokenizeResponse { prompt }))
}

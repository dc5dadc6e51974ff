//! `/tokenize` and `/detokenize`. Answered also while the model loads: the tokenizer is ours.

use axum::{
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::header;
use serde::Serialize;

use super::{App, body::JsonBody};
use crate::{
    api::tokens::{DetokenizeRequest, DetokenizeResponse, TokenTexts, TokenizeRequest, TokenizeResponse},
    error::ApiError,
    generate::Serving,
};

pub(super) async fn tokenize(
    State(App { serving, .. }): State<App>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let request = serving.on_text(body.len(), move || TokenizeRequest::read(&body)).await?;
    serving.check_model(request.model.as_deref())?;
    let tokens = serving.count(request.prompt).await?.ids;
    let (count, max_model_len, tokenizer) = (tokens.len(), serving.max_model_len(), serving.tokenizer.clone());
    let write = move || {
        let texts = TokenTexts { tokens: &tokens, tokenizer: &tokenizer };
        let token_strs = request.return_token_strs.then_some(texts);
        json(&TokenizeResponse { count, max_model_len, tokens: &tokens, token_strs })
    };
    written(&serving, count, write).await
}

pub(super) async fn detokenize(
    State(App { serving, .. }): State<App>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let request = serving.on_text(body.len(), move || DetokenizeRequest::read(&body)).await?;
    serving.check_model(request.model.as_deref())?;
    let prompt = serving.detokenize("tokens", request.tokens).await?;
    written(&serving, prompt.len(), move || json(&DetokenizeResponse { prompt })).await
}

/// Millions of tokens are a hundred megabytes of JSON: such an answer is written where that delays nobody else. `size`: its tokens, or the
/// bytes of its text.
async fn written(
    serving: &Serving,
    size: usize,
    write: impl FnOnce() -> Vec<u8> + Send + 'static,
) -> Result<Response, ApiError> {
    let body = serving.on_text(size, move || Ok(write())).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

fn json(response: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(response).expect("numbers and texts are JSON")
}

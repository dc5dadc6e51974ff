//! `.../render` and `/inference/v1/generate`. Prompts are rendered also while the model loads: the tokenizer is ours.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse as _, Response},
};

use super::{App, around::RequestId, body::JsonBody, explain::Explains, sse};
use crate::{
    api::{
        chat::ChatRequest,
        completion::CompletionRequest,
        pace::Paced,
        scale_out::{Rendered, TokensEvents, TokensForm, TokensRequest},
        stream::Head,
    },
    error::ApiError,
    generate::{Terms, seconds_since_1970},
};

pub(super) async fn render_completions(
    State(App { serving, .. }): State<App>,
    JsonBody(body): JsonBody,
) -> Result<Json<Vec<Rendered>>, ApiError> {
    let asked = serving.on_text(body.len(), move || CompletionRequest::read(&body)).await?;
    serving.check_model(asked.model.as_deref())?;
    let rendered = serving.render(asked.request.clone()).await;
    let prompts = rendered.map_err(|error| asked.renamed(error))?;
    Ok(Json(prompts.iter().map(Rendered::new).collect()))
}

pub(super) async fn render_chat(
    State(App { serving, .. }): State<App>,
    JsonBody(body): JsonBody,
) -> Result<Json<Rendered>, ApiError> {
    let asked = serving.on_text(body.len(), move || ChatRequest::read(&body)).await?;
    serving.check_model(asked.model.as_deref())?;
    let rendered = serving.render(asked.request.clone()).await;
    let prompts = rendered.map_err(|error| asked.renamed(error))?;
    let prompt = prompts.first().expect("a chat is one prompt");
    Ok(Json(Rendered::new(prompt)))
}

pub(super) async fn generate(
    State(App { serving, .. }): State<App>,
    Extension(id): Extension<RequestId>,
    terms: Terms,
    explains: Explains,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    explains.refuse()?;
    let asked = serving.on_text(body.len(), move || TokensRequest::read(&body)).await?;
    serving.check_model(asked.model.as_deref())?;
    let options = &asked.request.options;
    let (has_logprobs, prompt_logprobs) = (options.logprobs.is_some(), options.prompt_logprobs);
    let answers = options.n as usize;
    let generation = serving.generate(asked.request, terms).await.map_err(TokensRequest::renamed)?;
    let head = Head {
        id: asked.request_id.unwrap_or(id.0),
        object: "",
        created: seconds_since_1970(),
        model: serving.model_name().to_owned(),
        system_fingerprint: None,
    };
    let prompt = Arc::clone(&generation.prompts()[0].ids);
    let tokenizer = serving.tokenizer.clone();
    let form = TokensForm { head, tokenizer, has_logprobs, prompt_logprobs, prompt, answers };
    Ok(match asked.stream {
        Some(options) => {
            let events = Paced::new(TokensEvents::new(form, options), options.interval);
            sse::respond(&serving, generation, events)
        }
        None => Json(form.whole(&generation.whole().await?)).into_response(),
    })
}

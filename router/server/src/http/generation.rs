//! `/v1/completions` and `/v1/chat/completions`.

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse as _, Response},
};

use super::{App, around::RequestId, body::JsonBody, explain::Explains, sse};
use crate::{
    api::{
        chat::{ChatEvents, ChatForm, ChatRequest},
        completion::{CompletionEvents, CompletionForm, CompletionRequest},
        explained::{Explained, ExplainedEvents},
        pace::Paced,
        stream::Head,
    },
    error::ApiError,
    generate::{Serving, Terms, seconds_since_1970},
};

pub(super) async fn completions(
    State(App { serving, .. }): State<App>,
    Extension(id): Extension<RequestId>,
    terms: Terms,
    explains: Explains,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let mut request = serving.on_text(body.len(), move || CompletionRequest::read(&body)).await?;
    serving.check_model(request.model.as_deref())?;
    let stream = request.stream;
    let head = head(&serving, "cmpl", "text_completion", request.request_id.take(), id);
    let generation = serving.generate(request.request.clone(), terms).await;
    let mut generation = generation.map_err(|error| request.renamed(error))?;
    if explains.0 {
        generation.explain();
    }
    let form = CompletionForm::new(head, serving.tokenizer.clone(), &request, &generation);
    Ok(match stream {
        Some(options) if explains.0 => {
            let events = ExplainedEvents::new(form.head.clone(), CompletionEvents::new(form, options));
            sse::respond(&serving, generation, Paced::new(events, options.interval))
        }
        Some(options) => {
            let events = Paced::new(CompletionEvents::new(form, options), options.interval);
            sse::respond(&serving, generation, events)
        }
        None => {
            let answers = generation.whole().await?;
            Json(Explained::of(answers, explains.0, |answers| form.whole(answers))).into_response()
        }
    })
}

pub(super) async fn chat_completions(
    State(App { serving, .. }): State<App>,
    Extension(id): Extension<RequestId>,
    terms: Terms,
    explains: Explains,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let mut request = serving.on_text(body.len(), move || ChatRequest::read(&body)).await?;
    serving.check_model(request.model.as_deref())?;
    let object = if request.stream.is_some() { "chat.completion.chunk" } else { "chat.completion" };
    let head = head(&serving, "chatcmpl", object, request.request_id.take(), id);
    let mut generation =
        serving.generate(request.request.clone(), terms).await.map_err(|error| request.renamed(error))?;
    if explains.0 {
        generation.explain();
    }
    let form = ChatForm::new(head, serving.tokenizer.clone(), &request, &generation);
    Ok(match request.stream {
        Some(options) if explains.0 => {
            let events = ExplainedEvents::new(form.head.clone(), ChatEvents::new(form, options));
            sse::respond(&serving, generation, Paced::new(events, options.interval))
        }
        Some(options) => {
            let events = Paced::new(ChatEvents::new(form, options), options.interval);
            sse::respond(&serving, generation, events)
        }
        None => {
            let answers = generation.whole().await?;
            Json(Explained::of(answers, explains.0, |answers| form.whole(answers))).into_response()
        }
    })
}

/// The response's id names the request: by the body's `request_id`, else by the header's, else by ours.
fn head(serving: &Serving, prefix: &str, object: &'static str, given: Option<String>, id: RequestId) -> Head {
    let id = given.unwrap_or(id.0);
    let (created, model) = (seconds_since_1970(), serving.model_name().to_owned());
    Head { id: format!("{prefix}-{id}"), object, created, model, system_fingerprint: serving.fingerprint() }
}

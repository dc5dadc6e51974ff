//! `/v1/embeddings`, `/pooling`, `/classify`, `/score` and `/rerank`: for models that give vectors.

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::{Uri, header};
use pelton_engine::Gives;

use super::{App, around::RequestId, body::JsonBody, explain::Explains};
use crate::{
    api::{
        pooling::{
            classify::ClassifyRequest, embeddings::EmbeddingRequest, rerank::RerankRequest, score::ScoreRequest,
        },
        stream::Head,
    },
    error::ApiError,
    generate::{Serving, Terms, seconds_since_1970},
};

type Parts = (State<App>, Extension<RequestId>, Terms, Explains, JsonBody);

pub(super) async fn embeddings(
    (State(app), Extension(id), terms, explains, JsonBody(body)): Parts,
) -> Result<Response, ApiError> {
    explains.refuse()?;
    let serving = app.serving;
    let mut request = serving.on_text(body.len(), move || EmbeddingRequest::read(&body)).await?;
    serving.check_model(request.model())?;
    let pooling = serving.pooling("/v1/embeddings")?;
    if let Gives::Classes { .. } = pooling.gives {
        return Err(gives_classes("/v1/embeddings", "/classify or /score"));
    }
    request.check(&pooling)?;
    let head = head(&serving, "embd", request.take_request_id(), id);
    let pooled = serving.pool(request.pool_request(), terms).await?;
    written(&serving, move || request.respond(&head, "embedding", &pooled, &pooling)).await
}

pub(super) async fn pooling(
    (State(app), Extension(id), terms, explains, JsonBody(body)): Parts,
) -> Result<Response, ApiError> {
    explains.refuse()?;
    let serving = app.serving;
    let mut request = serving.on_text(body.len(), move || EmbeddingRequest::read(&body)).await?;
    serving.check_model(request.model())?;
    let pooling = serving.pooling("/pooling")?;
    request.check(&pooling)?;
    let head = head(&serving, "pool", request.take_request_id(), id);
    let pooled = serving.pool(request.pool_request(), terms).await?;
    written(&serving, move || request.respond(&head, "pooling", &pooled, &pooling)).await
}

pub(super) async fn classify(
    (State(app), Extension(id), terms, explains, JsonBody(body)): Parts,
) -> Result<Response, ApiError> {
    explains.refuse()?;
    let serving = app.serving;
    let mut request = serving.on_text(body.len(), move || ClassifyRequest::read(&body)).await?;
    serving.check_model(request.model())?;
    let pooling = serving.pooling("/classify")?;
    if let Gives::Embedding { .. } = pooling.gives {
        return Err(ApiError::WrongModelKind {
            gives: "embeddings, and no classes",
            refused: "/classify".to_owned(),
            instead: "/v1/embeddings, /score or /rerank".to_owned(),
        });
    }
    let head = head(&serving, "classify", request.take_request_id(), id);
    let pooled = serving.pool(request.pool_request(), terms).await?;
    written(&serving, move || request.respond(&head, &pooled, &pooling)).await
}

pub(super) async fn score(
    route: Uri,
    (State(app), Extension(id), terms, explains, JsonBody(body)): Parts,
) -> Result<Response, ApiError> {
    explains.refuse()?;
    let serving = app.serving;
    let mut request = serving.on_text(body.len(), move || ScoreRequest::read(&body)).await?;
    serving.check_model(request.model())?;
    let pooling = serving.pooling(route.path())?;
    let head = head(&serving, "score", request.take_request_id(), id);
    let pooled = serving.pool(request.pool_request(&pooling, route.path())?, terms).await?;
    written(&serving, move || request.respond(&head, &pooled, &pooling)).await
}

pub(super) async fn rerank(
    route: Uri,
    (State(app), Extension(id), terms, explains, JsonBody(body)): Parts,
) -> Result<Response, ApiError> {
    explains.refuse()?;
    let serving = app.serving;
    let mut request = serving.on_text(body.len(), move || RerankRequest::read(&body)).await?;
    serving.check_model(request.model())?;
    let pooling = serving.pooling(route.path())?;
    let head = head(&serving, "rerank", request.take_request_id(), id);
    let pooled = serving.pool(request.pool_request(&pooling, route.path())?, terms).await?;
    written(&serving, move || request.respond(&head, &pooled, &pooling)).await
}

fn gives_classes(route: &str, instead: &str) -> ApiError {
    ApiError::WrongModelKind {
        gives: "classes, and no embeddings",
        refused: route.to_owned(),
        instead: instead.to_owned(),
    }
}

/// Thousands of vectors are megabytes of JSON: they are written where that delays nobody else.
async fn written(serving: &Serving, write: impl FnOnce() -> Vec<u8> + Send + 'static) -> Result<Response, ApiError> {
    let body = serving.on_pool(move || Ok(write())).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

fn head(serving: &Serving, prefix: &str, given: Option<String>, id: RequestId) -> Head {
    let (id, model) = (given.unwrap_or(id.0), serving.model_name().to_owned());
    Head {
        id: format!("{prefix}-{id}"),
        object: "list",
        created: seconds_since_1970(),
        model,
        system_fingerprint: None,
    }
}

//! `/v1/batches`.

use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::Value;

use super::{
    App,
    body::JsonBody,
    pages::{Asked, Lengths, Page},
};
use crate::{api::batches::BatchRequest, batches::Batch, error::ApiError, generate::Terms};

const PAGE: Lengths = Lengths { usual: 20, most: 100 };

pub(super) async fn create(
    State(app): State<App>,
    terms: Terms,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let asked = BatchRequest::read(&body)?;
    Ok(Json(app.batches()?.create(asked, terms.tenant).await?.object()))
}

pub(super) async fn list(State(app): State<App>, terms: Terms, query: Asked) -> Result<Json<Value>, ApiError> {
    let page = Page::read(query, PAGE, |_, _| Ok(false))?;
    let batches = app.batches()?.list(terms.tenant);
    page.of(batches.iter().map(Batch::object).collect()).map(Json)
}

pub(super) async fn retrieve(
    State(app): State<App>,
    Path(id): Path<String>,
    terms: Terms,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(app.batches()?.get(&id, terms.tenant)?.object()))
}

pub(super) async fn cancel(
    State(app): State<App>,
    Path(id): Path<String>,
    terms: Terms,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(app.batches()?.cancel(&id, terms.tenant).await?.object()))
}

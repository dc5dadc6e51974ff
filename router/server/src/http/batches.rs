//! `/v1/batches`.

use axum::{Json, extract::State};

use super::{
    App,
    body::JsonBody,
    id::Id,
    pages::{Asked, Lengths, Listed, Page, json_of},
};
use crate::{api::batches::BatchRequest, batches::BatchObject, error::ApiError, generate::Terms};

const PAGE: Lengths = Lengths { usual: 20, most: 100 };

pub(super) async fn create(
    State(app): State<App>,
    terms: Terms,
    JsonBody(body): JsonBody,
) -> Result<Json<BatchObject>, ApiError> {
    let asked = BatchRequest::read(&body)?;
    Ok(Json(app.batches()?.create(asked, terms.tenant).await?.object()))
}

pub(super) async fn list(State(app): State<App>, terms: Terms, query: Asked) -> Result<Json<Listed>, ApiError> {
    let page = Page::read(query, PAGE, |_, _| Ok(false))?;
    let batches = app.batches()?.list(terms.tenant);
    page.of(batches.iter().map(|batch| json_of(&batch.object())).collect()).map(Json)
}

pub(super) async fn retrieve(State(app): State<App>, Id(id): Id, terms: Terms) -> Result<Json<BatchObject>, ApiError> {
    Ok(Json(app.batches()?.get(&id, terms.tenant)?.object()))
}

pub(super) async fn cancel(State(app): State<App>, Id(id): Id, terms: Terms) -> Result<Json<BatchObject>, ApiError> {
    Ok(Json(app.batches()?.cancel(&id, terms.tenant).await?.object()))
}

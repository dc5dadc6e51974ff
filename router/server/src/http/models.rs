//! `/v1/models`, `/v1/models/{id}` and `/version`.

use axum::{
    Json,
    extract::{Path, State},
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::App;
use crate::{
    api::models::{ModelCard, ModelList},
    error::ApiError,
    generate::Serving,
};

fn card<'a>(serving: &'a Serving, name: &'a str) -> ModelCard<'a> {
    ModelCard::new(name, &serving.checkpoint.name, serving.created, serving.max_model_len())
}

pub(super) async fn list(State(App { serving, .. }): State<App>) -> Response {
    let cards = serving.served_names.iter().map(|name| card(&serving, name)).collect();
    Json(ModelList::new(cards)).into_response()
}

/// Names may have slashes.
pub(super) async fn one(
    State(App { serving, .. }): State<App>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    serving.check_model(Some(&name))?;
    Ok(Json(card(&serving, &name)).into_response())
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

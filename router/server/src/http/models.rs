//! `/v1/models`, `/v1/models/{id}` and `/version`.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{App, id::Id};
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
pub(super) async fn one(State(App { serving, .. }): State<App>, Id(name): Id) -> Result<Response, ApiError> {
    serving.check_model(Some(&name))?;
    Ok(Json(card(&serving, &name)).into_response())
}

/// The program's version.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Version {
    version: &'static str,
}

pub(super) async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}

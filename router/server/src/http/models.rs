//! `/v1/models`, `/v1/models/{id}` and `/version`. Who sends the header `anthropic-version` is told of models in Anthropic's form.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::HeaderMap;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    App,
    anthropic::speaks,
    id::Id,
    pages::{Asked, pairs},
};
use crate::{
    api::{
        anthropic::{Model, ModelPage, Models},
        models::{ModelCard, ModelList},
    },
    error::ApiError,
    generate::Serving,
};

/// What a client is told, in its protocol's form.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum EitherModels<'a> {
    OpenAi(ModelList<'a>),
    Anthropic(Models<'a>),
}

/// The same of one name.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum EitherModel<'a> {
    OpenAi(ModelCard<'a>),
    Anthropic(Model<'a>),
}

fn model<'a>(serving: &'a Serving, name: &'a str) -> Model<'a> {
    Model::new(name, serving.created, serving.max_model_len())
}

fn card<'a>(serving: &'a Serving, name: &'a str) -> ModelCard<'a> {
    ModelCard::new(name, &serving.checkpoint.name, serving.created, serving.max_model_len())
}

pub(super) async fn list(
    State(App { serving, .. }): State<App>,
    headers: HeaderMap,
    query: Asked,
) -> Result<Response, ApiError> {
    let names = &serving.served_names;
    let told = if speaks(&headers) {
        let page = ModelPage::read(pairs(query)?)?;
        EitherModels::Anthropic(page.of(names.iter().map(|name| model(&serving, name)).collect())?)
    } else {
        EitherModels::OpenAi(ModelList::new(names.iter().map(|name| card(&serving, name)).collect()))
    };
    Ok(Json(told).into_response())
}

/// Names may have slashes.
pub(super) async fn one(
    State(App { serving, .. }): State<App>,
    headers: HeaderMap,
    Id(name): Id,
) -> Result<Response, ApiError> {
    serving.check_model(Some(&name))?;
    let told = if speaks(&headers) {
        EitherModel::Anthropic(model(&serving, &name))
    } else {
        EitherModel::OpenAi(card(&serving, &name))
    };
    Ok(Json(told).into_response())
}

/// The program's version.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Version {
    version: &'static str,
}

pub(super) async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}

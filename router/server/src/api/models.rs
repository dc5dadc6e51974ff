//! `/v1/models`: what can be asked for, by which names.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    fields::Fields,
    shape::{Field, Kind, optional},
};
use crate::error::ApiError;

/// What [`read_model`] reads.
pub(super) const MODEL: Field =
    optional("model", Kind::TEXT, "One of the names under `/v1/models`; left out or empty: the served model.");

/// The name that a request calls the model by; `None`: the served model, whatever its name.
pub(crate) fn read_model(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    Ok(fields.text("model")?.filter(|model| !model.is_empty()))
}

/// One name of a model.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelCard<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// What the name stands for: the checkpoint's own name.
    root: &'a str,
    parent: Option<&'a str>,
    max_model_len: Option<u32>,
    permission: [(); 0],
}

/// All names.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelList<'a> {
    object: &'static str,
    data: Vec<ModelCard<'a>>,
}

impl<'a> ModelCard<'a> {
    pub(crate) fn new(name: &'a str, checkpoint: &'a str, created: u64, max_model_len: Option<u32>) -> Self {
        let owned_by = "pelton";
        Self {
            id: name,
            object: "model",
            created,
            owned_by,
            root: checkpoint,
            parent: None,
            max_model_len,
            permission: [],
        }
    }
}

impl<'a> ModelList<'a> {
    pub(crate) fn new(data: Vec<ModelCard<'a>>) -> Self {
        Self { object: "list", data }
    }
}

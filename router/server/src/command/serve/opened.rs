//! A model from its name to an engine that loads it: what a server and `offline` both begin with.

use std::sync::Arc;

use pelton_engine::Engine;

use super::{model, parts, weights};
use crate::command::Trouble;
use crate::config::{Config, Surroundings};
use crate::generate::{Serving, ServingParts, fingerprint};
use crate::hub::Progress;

/// A model that is being loaded.
pub(crate) struct Opened {
    pub(crate) engine: Engine,
    pub(crate) serving: Arc<Serving>,
    /// The name that answers carry.
    pub(crate) name: String,
    /// Whether the model has a chat template.
    pub(crate) chats: bool,
}

/// Finds the model, reads its text side and starts its engine. Blocks: it may be downloaded.
pub(crate) fn open(config: &Config, around: &Surroundings, progress: Progress<'_>) -> Result<Opened, Trouble> {
    let folder = model::find(config, around, progress)?;
    // A worker elsewhere has the weights on its own disk.
    if !config.has_worker_elsewhere() {
        let allowed =
            weights::Allowed { backend: config.model.model_backend, foreign_code: config.model.trust_remote_code };
        weights::check(&folder, allowed).map_err(Trouble::Failed)?;
    }
    let text = parts::TextSide::open(&folder, config)?;
    let format = text.format(&config.model.format)?;
    let names = model::names(config, &folder);
    let (name, chats) = (names[0].clone(), text.template.is_some());
    let pool = parts::pool()?;
    let engine = Engine::start(parts::engine_config(config, &folder)?)
        .map_err(|failure| Trouble::Failed(failure.to_string()))?;
    let serving = Serving::new(ServingParts {
        engine: engine.clone(),
        checkpoint: text.checkpoint,
        tokenizer: text.tokenizer,
        template: text.template,
        format,
        served_names: names,
        limits: parts::limits(config),
        pool,
        renderer: parts::renderer(config, around)?,
        sampled: fingerprint::sample(&folder),
    });
    Ok(Opened { engine, serving, name, chats })
}

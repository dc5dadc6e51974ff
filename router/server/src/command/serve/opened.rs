//! A model from its name to an engine that loads it: what a server and `offline` both begin with.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use pelton_engine::Engine;

use super::text_side::TextSide;
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

/// Finds the model, starts its engine and reads its text side. Blocks: it may be downloaded. `started` has the engine as soon as it runs, for
/// whoever stops waiting: it is ended if there is no result.
pub(crate) fn open(
    config: &Config,
    around: &Surroundings,
    progress: Progress<'_>,
    started: &OnceLock<Engine>,
) -> Result<Opened, Trouble> {
    let folder = model::find(config, around, progress)?;
    // A worker elsewhere has the weights on its own disk.
    if !config.has_worker_elsewhere() {
        let allowed =
            weights::Allowed { backend: config.model.model_backend, foreign_code: config.model.trust_remote_code };
        weights::check(&folder, allowed).map_err(Trouble::Failed)?;
    }
    // First, so that its worker starts while the vocabulary is read, which may take a second.
    let engine = Engine::start(parts::engine_config(config, &folder)?)
        .map_err(|failure| Trouble::Failed(failure.to_string()))?;
    _ = started.set(engine.clone());
    let opened = open_text(config, around, &folder, engine.clone());
    if opened.is_err() {
        engine.blocking_shutdown();
    }
    opened
}

/// What serves the model of this engine as text.
fn open_text(config: &Config, around: &Surroundings, folder: &Path, engine: Engine) -> Result<Opened, Trouble> {
    let text = TextSide::open(folder, config)?;
    let format = text.format(&config.model.format)?;
    let names = model::names(config, folder);
    let (name, chats) = (names[0].clone(), text.template.is_some());
    let serving = Serving::new(ServingParts {
        engine: engine.clone(),
        checkpoint: text.checkpoint,
        tokenizer: text.tokenizer,
        template: text.template,
        format,
        served_names: names,
        limits: parts::limits(config),
        pool: parts::pool()?,
        renderer: parts::renderer(config, around)?,
        sampled: fingerprint::sample(folder),
    });
    Ok(Opened { engine, serving, name, chats })
}

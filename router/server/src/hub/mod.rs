//! Models by name: ORG/NAME becomes a folder, from the hub's cache or by download.
//!
//! Knows the hub's API and the cache's layout, which is that of the hub's own tools, so that both share their files. Takes only
//! weights in safetensors, tokenizers, templates and JSON: never pickles, never Python code. Never here: what the files mean.

mod cache;
mod download;
mod listing;
mod name;

use std::path::{Path, PathBuf};

pub use name::ModelName;

use crate::config;

/// Why a model's folder cannot be had; each message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither a folder nor a name that the hub could have.
    #[error(
        "there is no folder `{0}`, and it is no ORG/NAME of the hub; give a folder with config.json, a tokenizer and *.safetensors"
    )]
    NoModel(String),
    /// Not in the cache, and downloads are off.
    #[error("{name} ({revision}) is not in {}, and `offline` is set; unset it, or give a folder: pelton serve ./FOLDER", cache.display())]
    Offline {
        /// Which.
        name: ModelName,
        /// Which of it.
        revision: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// The hub cannot be reached.
    #[error(
        "{name} is not in the cache, and the hub cannot be reached ({reason}); without a network, give a folder instead: pelton serve ./FOLDER"
    )]
    Unreachable {
        /// Which.
        name: ModelName,
        /// In the network's words.
        reason: String,
    },
    /// The hub wants to know who asks.
    #[error(
        "the hub refuses {name} (status {status}): it does not exist, or it needs an access token of somebody who may read it; {advice}"
    )]
    Denied {
        /// Which.
        name: ModelName,
        /// 401 or 403.
        status: u16,
        /// Depends on whether a token was sent.
        advice: &'static str,
    },
    /// The hub has no such model or revision.
    #[error("the hub has no model {name} with revision `{revision}`; check the spelling of both")]
    NotFound {
        /// Which.
        name: ModelName,
        /// Which of it.
        revision: String,
    },
    /// The model has no weights that Pelton takes.
    #[error("{name} has no {missing}; Pelton takes only models in Hugging Face layout with safetensors weights")]
    Unusable {
        /// Which.
        name: ModelName,
        /// What it lacks.
        missing: String,
    },
    /// What came is not what the hub announced.
    #[error("{file} of {name} came damaged ({what}) and was thrown away; start again to fetch it anew")]
    Damaged {
        /// Which model.
        name: ModelName,
        /// Which of its files.
        file: String,
        /// What differs.
        what: String,
    },
    /// The download broke off more often than is worth trying.
    #[error("the download of {file} broke off ({reason}); what came is kept, start again to go on from there")]
    Broken {
        /// Which file.
        file: String,
        /// In the network's words.
        reason: String,
    },
    /// The hub is not well.
    #[error("the hub failed for {what} (status {status}); try again later")]
    Failing {
        /// Which question.
        what: String,
        /// As HTTP has it.
        status: u16,
    },
    /// The hub answered something else.
    #[error("the hub's answer for {what} makes no sense: {reason}")]
    Answer {
        /// Which question.
        what: String,
        /// What was wrong.
        reason: String,
    },
    /// There is no room for it.
    #[error("{name} needs {} more in {}, which has {} free; make room or set `hub-cache` elsewhere",
        crate::display::bytes(*needed), folder.display(), crate::display::bytes(*free))]
    DiskFull {
        /// Which.
        name: ModelName,
        /// Bytes still to come.
        needed: u64,
        /// Bytes there are.
        free: u64,
        /// Where.
        folder: PathBuf,
    },
    /// A file of ours cannot be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// In the system's words.
        reason: String,
    },
}

impl HubError {
    fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |error| Self::File { path: path.to_owned(), reason: error.to_string() }
    }
}

/// How far a download is: what is being done, bytes done, bytes in all.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// The folder of `model`: itself if it is one, else from the cache, else downloaded into it. Blocks; not for a thread that
/// runs async tasks.
pub fn locate(model: &str, settings: &config::Hub, progress: Progress<'_>) -> Result<PathBuf, HubError> {
    let folder = Path::new(model);
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let name: ModelName = model.parse().map_err(|()| HubError::NoModel(model.to_owned()))?;
    let cache = cache::Cache::new(&settings.hub_cache, &name);
    if let Some(folder) = cache.find(&settings.revision) {
        return Ok(folder);
    }
    if settings.offline {
        return Err(HubError::Offline { name, revision: settings.revision.clone(), cache: settings.hub_cache.clone() });
    }
    let token = settings.hub_token_file.as_deref().map(read_token).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(HubError::file(&settings.hub_cache))?;
    runtime.block_on(download::download(&name, settings, &cache, token, progress))
}

fn read_token(path: &Path) -> Result<config::Secret, HubError> {
    let text = std::fs::read_to_string(path).map_err(HubError::file(path))?;
    Ok(config::Secret::new(text.trim()))
}

#[cfg(test)]
mod tests;

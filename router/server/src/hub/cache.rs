//! The hub's cache on disk, in the layout of the hub's own tools:
//!
//! ```text
//! models--ORG--NAME/refs/main                     the commit that a branch was at
//!                   blobs/HASH                    contents, named by their hash
//!                   blobs/HASH.incomplete         as far as it came
//!                   snapshots/COMMIT/config.json  -> ../../blobs/HASH
//! .locks/models--ORG--NAME/HASH.lock              held by who downloads
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::listing::{files_of_modules, weights_in_index};
use super::{HubError, ModelName};

/// One model's part of the cache.
#[derive(Debug)]
pub(super) struct Cache {
    model: PathBuf,
    locks: PathBuf,
}

impl Cache {
    pub(super) fn new(root: &Path, name: &ModelName) -> Self {
        Self { model: root.join(name.folder()), locks: root.join(".locks").join(name.folder()) }
    }

    /// Where it is kept, for questions about the disk.
    pub(super) fn folder(&self) -> &Path {
        &self.model
    }

    /// The snapshot of a branch, tag or commit, if all that Pelton needs is in it.
    pub(super) fn find(&self, revision: &str) -> Option<PathBuf> {
        if !is_revision(revision) {
            return None;
        }
        let commit = fs::read_to_string(self.model.join("refs").join(revision)).unwrap_or_else(|_| revision.to_owned());
        let commit = commit.trim();
        if !is_hash(commit) {
            return None;
        }
        let snapshot = self.snapshot(commit);
        is_complete(&snapshot).then_some(snapshot)
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.model.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, hash: &str) -> PathBuf {
        self.model.join("blobs").join(hash)
    }

    pub(super) fn incomplete(&self, hash: &str) -> PathBuf {
        self.model.join("blobs").join(format!("{hash}.incomplete"))
    }

    /// Keeps others from downloading the same contents; gives way when dropped. `waiting` is called if somebody else is at it.
    pub(super) fn lock(&self, hash: &str, waiting: impl FnOnce()) -> Result<File, HubError> {
        let path = self.locks.join(format!("{hash}.lock"));
        make_parent(&path)?;
        let lock =
            File::options().create(true).truncate(false).write(true).open(&path).map_err(HubError::file(&path))?;
        if lock.try_lock().is_err() {
            waiting();
            lock.lock().map_err(HubError::file(&path))?;
        }
        Ok(lock)
    }

    /// Makes `file` of the snapshot a link to the contents `hash`.
    pub(super) fn link(&self, commit: &str, file: &str, hash: &str) -> Result<(), HubError> {
        let link = self.snapshot(commit).join(file);
        make_parent(&link)?;
        let up = "../".repeat(2 + file.matches('/').count());
        let fresh = beside(&link);
        std::os::unix::fs::symlink(format!("{up}blobs/{hash}"), &fresh).map_err(HubError::file(&fresh))?;
        fs::rename(&fresh, &link).map_err(HubError::file(&link))
    }

    /// Notes at which commit a branch or tag was, once its snapshot is whole.
    pub(super) fn note(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.model.join("refs").join(revision);
        make_parent(&path)?;
        let fresh = beside(&path);
        fs::write(&fresh, commit).map_err(HubError::file(&fresh))?;
        fs::rename(&fresh, &path).map_err(HubError::file(&path))
    }
}

/// Whether a text may stand in an address and a path as a branch, tag or commit.
pub(super) fn is_revision(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
    };
    text.split('/').all(is_part)
}

/// A hash of git (40 digits) or SHA-256 (64): safe as the name of a file.
pub(super) fn is_hash(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Other tools may have fetched only some of a snapshot's files: all weights must be there, and what is read of modules.
fn is_complete(snapshot: &Path) -> bool {
    let has = |file: &str| snapshot.join(file).is_file();
    let modules = fs::read_to_string(snapshot.join("modules.json")).unwrap_or_default();
    if !has("config.json") || !files_of_modules(&modules).iter().all(|file| has(file)) {
        return false;
    }
    match fs::read_to_string(snapshot.join("model.safetensors.index.json")) {
        Ok(index) => weights_in_index(&index).is_some_and(|files| files.iter().all(|file| has(file))),
        Err(_) => fs::read_dir(snapshot).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|entry| {
                    entry.path().extension().is_some_and(|kind| kind == "safetensors") && entry.path().is_file()
                })
            })
        }),
    }
}

/// A name that no other process or thread takes, for what is renamed to `path` when it is whole.
fn beside(path: &Path) -> PathBuf {
    path.with_extension(format!("{}.new", uuid::Uuid::new_v4()))
}

pub(super) fn make_parent(path: &Path) -> Result<(), HubError> {
    let parent = path.parent().expect("below the cache");
    fs::create_dir_all(parent).map_err(HubError::file(parent))
}

//! Where files lie: a folder that its operator has named, or one of the server's own that goes with it.
//!
//! A folder has one server at a time, which holds its lock. A server that was killed leaves its own folder behind; the next one of
//! the same user finds that nobody holds the lock any more, and removes it.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use pelton_kv_store::{Folder, FolderError};

/// Of folders that go with their server.
const PREFIX: &str = "pelton-files-";

/// A folder that is ours alone.
#[derive(Debug)]
pub(crate) struct Place {
    folder: Folder,
    /// It goes with the server.
    is_private: bool,
}

impl Place {
    /// The folder at `path`, which stays.
    pub(crate) fn named(path: &Path) -> Result<Self, FolderError> {
        Self::prepared(Folder::claim(path)?, false)
    }

    /// A folder of the server's own in `parent`, as for temporary files.
    pub(crate) fn private(parent: &Path) -> Result<Self, FolderError> {
        sweep(parent);
        let path = parent.join(format!("{PREFIX}{}", uuid::Uuid::new_v4().simple()));
        Self::prepared(Folder::claim(&path)?, true)
    }

    fn prepared(folder: Folder, is_private: bool) -> Result<Self, FolderError> {
        let place = Self { folder, is_private };
        for part in [place.files(), place.batches()] {
            let made = fs::create_dir(&part).or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(()),
                _ => Err(error),
            });
            made.map_err(|error| FolderError::System { path: part, call: "making it", error })?;
        }
        Ok(place)
    }

    /// Files and what is known of them.
    pub(crate) fn files(&self) -> PathBuf {
        self.folder.path().join("files")
    }

    /// What is known of batches.
    pub(crate) fn batches(&self) -> PathBuf {
        self.folder.path().join("batches")
    }

    /// Whether what lies here outlives the server.
    pub(crate) fn is_kept(&self) -> bool {
        !self.is_private
    }

    /// Random, and the same as long as the folder is there.
    pub(crate) fn secret(&self) -> [u8; 16] {
        self.folder.hash_key()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_private
            && let Err(error) = fs::remove_dir_all(self.folder.path())
        {
            tracing::warn!(%error, folder = %self.folder.path().display(), "the folder of files cannot be removed");
        }
    }
}

/// Removes folders of servers that were killed. Nothing is said of what cannot be looked at: it is somebody else's.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let user = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let is_named_so = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Of the entry itself: a link is no folder.
        let is_ours = entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user);
        // A folder without a lock is being made, or was never used.
        if is_named_so
            && is_ours
            && entry.path().join("lock").exists()
            && let Ok(_held) = Folder::claim(&entry.path())
        {
            _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_folder_goes_with_its_server_and_that_of_a_killed_one_with_the_next() {
        let parent = tempfile::tempdir().expect("a folder");
        let names = || fs::read_dir(parent.path()).expect("it is there").count();
        let living = Place::private(parent.path()).expect("made");
        let killed = parent.path().join(format!("{PREFIX}killed"));
        drop(Folder::claim(&killed).expect("made"));
        fs::write(parent.path().join("pelton-files"), "of somebody else").expect("written");
        assert_eq!(names(), 3);
        drop(Place::private(parent.path()).expect("made"));
        assert!(!killed.exists() && living.files().is_dir());
        drop(living);
        assert_eq!(names(), 1);
    }

    #[test]
    fn a_named_folder_stays_and_has_one_server_at_a_time() {
        let parent = tempfile::tempdir().expect("a folder");
        let path = parent.path().join("mine");
        let first = Place::named(&path).expect("free");
        let secret = first.secret();
        assert!(matches!(Place::named(&path), Err(FolderError::InUse { .. })));
        drop(first);
        assert_eq!(Place::named(&path).expect("free again").secret(), secret);
    }
}

//! A fresh folder for a worker's sockets, that nobody else can enter. Removed as soon as both connections stand, so that
//! nothing is left even if every process is killed. A router that is killed before leaves it behind, and the next one of the same user, who
//! finds that nobody holds its lock any more, removes it.

use std::{
    env,
    fs::{self, File},
    io::{self, Error},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;

/// The kernel takes 108 bytes for a socket's path, its end included; the longest name in the folder has 19.
const PATH_BYTES_MAX: usize = 108 - 20;

/// Before a number of sixteen digits.
const PREFIX: &str = "pelton-";
/// Held as long as the folder is in use.
const LOCK: &str = "lock";

pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    pub(crate) fn create() -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(Error::other)?;
        let name = format!("{PREFIX}{:016x}", u64::from_le_bytes(random));
        let parent = parent();
        sweep(&parent);
        // Under another name until its lock is held, so that nobody who sweeps takes it for one that was left.
        let begun = parent.join(format!(".{name}"));
        fs::DirBuilder::new().mode(0o700).create(&begun)?; // fails if it exists: then it is not ours
        let lock = File::create(begun.join(LOCK))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let path = parent.join(name);
        fs::rename(&begun, &path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Where the worker listens for control.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("worker.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Removes what routers of this user have left behind that were killed.
fn sweep(parent: &Path) {
    let me = rustix::process::geteuid().as_raw();
    let is_ours = |path: &Path| {
        let digits = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX));
        let is_named = digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|c| c.is_ascii_hexdigit()));
        is_named && fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == me)
    };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        // One without a lock is of an earlier version.
        let Some(lock) = is_ours(&path).then(|| File::open(path.join(LOCK)).ok()).flatten() else { continue };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir_all(&path); // another router may be faster
        }
    }
}

/// The user's run-time folder, or the temporary one.
fn parent() -> PathBuf {
    let fits = |path: &Path| {
        path.is_dir() && path.as_os_str().as_bytes().len() + "/pelton-0123456789abcdef".len() <= PATH_BYTES_MAX
    };
    let candidates = [env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), Some(env::temp_dir())];
    candidates.into_iter().flatten().find(|path| fits(path)).unwrap_or_else(|| PathBuf::from("/tmp"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_nobody_holds_any_more_is_removed_and_nothing_else() {
        let parent = env::temp_dir().join(format!("sweep-{}", std::process::id()));
        let dirs = ["pelton-0000000000000001", "pelton-0000000000000002", "pelton-0000000000000003", "pelton-files-1"];
        dirs.iter().for_each(|name| fs::create_dir_all(parent.join(name)).unwrap());
        let [left, held] = [0, 1].map(|at| File::create(parent.join(dirs[at]).join(LOCK)).unwrap());
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(left);
        File::create(parent.join("pelton-files-1").join(LOCK)).unwrap();
        sweep(&parent);
        let there: Vec<bool> = dirs.iter().map(|name| parent.join(name).exists()).collect();
        assert_eq!(there, [false, true, true, true], "left, held, without a lock, of somebody else");
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn a_folder_is_ours_alone_and_goes_with_all_that_is_in_it() {
        let folder = Folder::create().unwrap();
        assert_eq!(fs::metadata(&folder.path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(folder.socket().as_os_str().as_bytes().len() + ".memory".len() < 108);
        fs::write(folder.socket(), "").unwrap();
        let path = folder.path.clone();
        drop(folder);
        assert!(!path.exists());
    }
}

//! A fresh folder for a worker's sockets, that nobody else can enter. Removed as soon as both connections stand, so that
//! nothing is left even if every process is killed. A router that is killed before leaves it behind, and the next one of the same user, who
//! finds that nobody holds its lock any more, removes it; and so one that was never finished, a minute later.

use std::{
    env,
    fs::{self, File},
    io::{self, Error},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::FlockOperation;

/// The kernel takes 108 bytes for a socket's path, its end included; the longest name in the folder has 19.
const PATH_BYTES_MAX: usize = 108 - 20;

/// Before a number of sixteen digits.
const PREFIX: &str = "pelton-";
/// Before that while the folder has no lock yet, which takes microseconds.
const BEGUN: &str = ".";
/// One that is begun for so long was left.
const BEGUN_FOR: Duration = Duration::from_secs(60);
/// Held as long as the folder is in use.
const LOCK: &str = "lock";

pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// In the first of the usual places where one can be made.
    pub(crate) fn create() -> io::Result<Self> {
        Self::within(places([env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), Some(env::temp_dir())]))
    }

    fn within(places: Vec<PathBuf>) -> io::Result<Self> {
        let mut failed = None;
        for place in places {
            match Self::create_in(&place) {
                Ok(folder) => return Ok(folder),
                Err(error) => {
                    let told = format!("{}: {error}; set TMPDIR to a folder that can be written", place.display());
                    failed.get_or_insert(Error::new(error.kind(), told));
                }
            }
        }
        Err(failed
            .unwrap_or_else(|| Error::other("there is no place for it; set TMPDIR to a folder that can be written")))
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(Error::other)?;
        let name = format!("{PREFIX}{:016x}", u64::from_le_bytes(random));
        sweep(parent);
        // Under another name until its lock is held, so that nobody who sweeps takes it for one that was left.
        let begun = parent.join(format!("{BEGUN}{name}"));
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
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let (name, is_begun) = name.strip_prefix(BEGUN).map_or((name, false), |name| (name, true));
        let digits = name.strip_prefix(PREFIX).unwrap_or_default();
        let is_named = digits.len() == 16 && digits.bytes().all(|c| c.is_ascii_hexdigit());
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        if !is_named || !found.is_dir() || found.uid() != me {
            continue;
        }
        let is_left = if is_begun {
            found.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > BEGUN_FOR))
        } else {
            // One without a lock is of an earlier version.
            let lock = File::open(path.join(LOCK));
            lock.is_ok_and(|lock| rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
        };
        if is_left {
            let _ = fs::remove_dir_all(&path); // another router may be faster
        }
    }
}

/// The user's run-time folder and the temporary one, where a socket's path fits; and what each system has. Some may not be ours to write:
/// the run-time folder is another user's behind `su`, and in a container all but memory may be read-only.
fn places(named: [Option<PathBuf>; 2]) -> Vec<PathBuf> {
    let fits = |path: &PathBuf| {
        path.is_absolute() && path.as_os_str().as_bytes().len() + "/pelton-0123456789abcdef".len() <= PATH_BYTES_MAX
    };
    named.into_iter().flatten().chain(["/tmp", "/dev/shm"].map(PathBuf::from)).filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_nobody_holds_any_more_is_removed_and_nothing_else() {
        let parent = env::temp_dir().join(format!("sweep-{}", std::process::id()));
        let dirs = [
            "pelton-0000000000000001",
            "pelton-0000000000000002",
            "pelton-0000000000000003",
            "pelton-files-1",
            ".pelton-0000000000000004",
            ".pelton-0000000000000005",
        ];
        dirs.iter().for_each(|name| fs::create_dir_all(parent.join(name)).unwrap());
        let [left, held] = [0, 1].map(|at| File::create(parent.join(dirs[at]).join(LOCK)).unwrap());
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(left);
        File::create(parent.join("pelton-files-1").join(LOCK)).unwrap();
        let long_ago = std::time::SystemTime::now() - 2 * BEGUN_FOR;
        File::open(parent.join(dirs[4])).unwrap().set_modified(long_ago).unwrap();
        sweep(&parent);
        let there: Vec<bool> = dirs.iter().map(|name| parent.join(name).exists()).collect();
        assert_eq!(
            there,
            [false, true, true, true, false, true],
            "left, held, without a lock, of others, begun long ago, begun"
        );
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn a_place_that_cannot_be_written_is_passed_over_and_named_if_there_is_no_other() {
        let usual = [PathBuf::from("/tmp"), PathBuf::from("/dev/shm")];
        let long = PathBuf::from(format!("/{}", "x".repeat(PATH_BYTES_MAX)));
        assert_eq!(places([Some(PathBuf::new()), Some(long)]), usual, "set to nothing, and too long for a socket");
        let there = env::temp_dir();
        let nowhere = PathBuf::from("/proc/self/fdinfo");
        let folder = Folder::within(vec!["/nowhere".into(), nowhere.clone(), there.clone()]).unwrap();
        assert_eq!(folder.path.parent(), Some(there.as_path()));
        let error = Folder::within(vec![nowhere]).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with("/proc/self/fdinfo: ") && error.ends_with("set TMPDIR to a folder that can be written")
        );
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

//! A fresh folder for a worker's sockets, that nobody else can enter. Removed as soon as both connections stand, so that
//! nothing is left even if every process is killed.

use std::{
    env, fs,
    io::{self, Error},
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

/// The kernel takes 108 bytes for a socket's path, its end included; the longest name in the folder has 19.
const PATH_BYTES_MAX: usize = 108 - 20;

pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn create() -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(Error::other)?;
        let name = format!("pelton-{:016x}", u64::from_le_bytes(random));
        let path = parent().join(name);
        fs::DirBuilder::new().mode(0o700).create(&path)?; // fails if it exists: then it is not ours
        Ok(Self { path })
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

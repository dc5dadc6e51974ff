//! The folder of a server: who holds it, and the key by which its blocks are named.

use std::{
    fs::{DirBuilder, File},
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags},
    io::Errno,
};

use crate::FolderError;

pub(crate) const LOCK: &str = "lock";
pub(crate) const HASH_KEY: &str = "hash-key";
/// Of files that only their owner reads.
pub(crate) const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// A folder that is ours alone until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Folder {
    pub(crate) path: PathBuf,
    /// What is done in the folder is done by this descriptor: if somebody moves or removes the folder, our files go with it,
    /// and none lands in a folder that another server holds.
    pub(crate) dir: OwnedFd,
    hash_key: [u8; 16],
    lock: File,
}

impl Folder {
    /// Takes the folder, and makes it if it is not there.
    pub fn claim(path: &Path) -> Result<Self, FolderError> {
        let system = |call| move |error: io::Error| FolderError::System { path: path.to_owned(), call, error };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(system("making it"))?;
        let dir = open_dir(path).map_err(system("opening it"))?;
        // On a disk that is mounted to be read alone what is there can be used.
        let lock = match open(&dir, LOCK, OFlags::RDWR | OFlags::CREATE) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => open(&dir, LOCK, OFlags::RDONLY),
            opened => opened,
        };
        let lock = lock.map_err(system("opening its lock"))?;
        let mut lock = File::from(lock);
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(FolderError::InUse { path: path.to_owned(), pid: holder(&mut lock) }),
            Err(error) => return Err(system("locking it")(error.into())),
        }
        if let Err(error) = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())) {
            tracing::warn!("who holds {} cannot be written there: {error}", path.display());
        }
        let hash_key = hash_key(&dir).map_err(system("its hash key"))?;
        Ok(Self { path: path.to_owned(), dir, hash_key, lock })
    }

    /// Secret, random, and the same at every start: who knows it could make blocks of different tokens look equal.
    pub fn hash_key(&self) -> [u8; 16] {
        self.hash_key
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Said aloud, because closing is not enough while a process that was just forked still has all our files.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

/// The process that holds the lock, as it has written it down.
fn holder(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn hash_key(dir: &OwnedFd) -> io::Result<[u8; 16]> {
    match open(dir, HASH_KEY, OFlags::RDONLY) {
        Ok(file) => {
            let mut bytes = Vec::new();
            File::from(file).take(17).read_to_end(&mut bytes)?;
            if let Ok(key) = bytes.try_into() {
                return Ok(key);
            }
            tracing::warn!("the hash key of the folder is damaged: what was named by it is of no more use");
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut key = [0; 16];
    getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
    replace(dir, HASH_KEY, &[&key])?;
    Ok(key)
}

/// A descriptor of the folder itself.
pub(crate) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A file of a folder; never what a link points at.
pub(crate) fn open(dir: &OwnedFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, OWNER)?)
}

/// Writes a file of this name beside the old one, and then puts it in its place: whoever reads finds all of it or nothing.
pub(crate) fn replace(dir: &OwnedFd, name: &str, parts: &[&[u8]]) -> io::Result<()> {
    let temporary = format!("{name}.tmp");
    remove(dir, &temporary)?; // of a life that ended in the middle
    let written = open(dir, &temporary, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).and_then(|file| {
        let mut file = File::from(file);
        parts.iter().try_for_each(|part| file.write_all(part))?;
        Ok(rustix::fs::renameat(dir, &temporary, dir, name)?)
    });
    if written.is_err() {
        let _ = remove(dir, &temporary); // what failed is told; a rest is removed at the next start
    }
    written
}

/// Removes a file. One that is not there is removed.
pub(crate) fn remove(dir: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The names in a folder.
pub(crate) fn names(dir: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        if let Ok(name) = entry?.file_name().to_str() // ours are all ASCII
            && name != "."
            && name != ".."
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_folder_has_one_server_at_a_time_and_keeps_its_key() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("deep/kv");
        let first = Folder::claim(&path).unwrap();
        let error = Folder::claim(&path).unwrap_err();
        assert!(matches!(error, FolderError::InUse { pid: Some(pid), .. } if pid == std::process::id()), "{error}");
        let key = first.hash_key();
        drop(first);
        assert_eq!(Folder::claim(&path).unwrap().hash_key(), key);
        for (name, mode) in [("", 0o700), (LOCK, 0o600), (HASH_KEY, 0o600)] {
            assert_eq!(fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
        }
    }

    #[test]
    fn a_damaged_key_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        for damage in [&[][..], &[1; 15], &[1; 17]] {
            fs::write(home.path().join(HASH_KEY), damage).unwrap();
            let key = Folder::claim(home.path()).unwrap().hash_key();
            assert_eq!(fs::read(home.path().join(HASH_KEY)).unwrap(), key);
        }
    }

    #[test]
    fn what_is_no_folder_is_refused_with_its_path() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        fs::write(&path, "").unwrap();
        assert!(Folder::claim(&path).unwrap_err().to_string().contains("file cannot be used: making it"));
    }
}

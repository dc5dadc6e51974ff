//! What is in a folder, model by model: to show it, to make room in it, to empty it.

use std::{
    io,
    os::fd::OwnedFd,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{AtFlags, OFlags};

use crate::{
    Folder, FolderError,
    folder::{HASH_KEY, LOCK, names, open, open_dir, remove},
    store::KIND,
};

pub(crate) const ABOUT: &str = "about";
/// Hexadecimal digits of a model's folder.
const NAME_LEN: usize = 32;

/// The blocks of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Of its folder.
    pub name: String,
    /// For people: whose blocks they are.
    pub about: String,
    /// How many.
    pub blocks: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// When one was written or read last. None: there is none.
    pub last_used: Option<SystemTime>,
}

/// What is there, the latest used first. Disturbs no server that uses the folder.
pub fn list(path: &Path) -> io::Result<Vec<Kept>> {
    let dir = open_dir(path)?;
    let mut kept = models(&dir)?.iter().map(|name| look(&dir, name)).collect::<io::Result<Vec<_>>>()?;
    kept.sort_by_key(|kept| std::cmp::Reverse(kept.last_used));
    Ok(kept)
}

/// Removes all blocks and the hash key; returns what there was. What others have put into the folder stays.
pub fn purge(path: &Path) -> Result<Vec<Kept>, FolderError> {
    let system = |error| FolderError::System { path: path.to_owned(), call: "emptying it", error };
    open_dir(path).map_err(system)?; // claiming a folder would make it
    let folder = Folder::claim(path)?;
    let kept = list(path).map_err(system)?;
    for kept in &kept {
        remove_model(&folder.dir, &kept.name).map_err(system)?;
    }
    for name in [HASH_KEY, LOCK] {
        remove(&folder.dir, name).map_err(system)?;
    }
    Ok(kept)
}

/// Removes models other than `ours`, the longest unused first, until the rest takes `limit_bytes` at most; returns what it takes.
pub(crate) fn make_room(dir: &OwnedFd, ours: &str, limit_bytes: u64) -> io::Result<u64> {
    let mut others = Vec::new();
    for name in models(dir)?.iter().filter(|name| *name != ours) {
        others.push(look(dir, name)?);
    }
    others.sort_by_key(|kept| kept.last_used);
    let mut total = others.iter().map(|kept| kept.bytes).sum();
    for kept in others {
        if total <= limit_bytes {
            break;
        }
        tracing::info!("the KV folder is too small for all models in it; removed: {}", kept.about.trim());
        remove_model(dir, &kept.name)?;
        total -= kept.bytes;
    }
    Ok(total)
}

fn models(dir: &OwnedFd) -> io::Result<Vec<String>> {
    let is_model = |name: &String| name.len() == NAME_LEN && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(names(dir)?.into_iter().filter(is_model).collect())
}

fn look(dir: &OwnedFd, name: &str) -> io::Result<Kept> {
    let dir = open(dir, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let about = open(&dir, ABOUT, OFlags::RDONLY).and_then(|file| io::read_to_string(std::fs::File::from(file)));
    let mut kept = Kept {
        name: name.to_owned(),
        about: about.unwrap_or_else(|_| "of an unknown model".to_owned()).trim().to_owned(),
        blocks: 0,
        bytes: 0,
        last_used: None,
    };
    for name in names(&dir)?.iter().filter(|name| name.ends_with(KIND)) {
        // A server may have removed it meanwhile.
        let Ok(status) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        kept.blocks += 1;
        kept.bytes += u64::try_from(status.st_size).unwrap_or_default();
        let modified = Duration::new(
            u64::try_from(status.st_mtime).unwrap_or_default(),
            u32::try_from(status.st_mtime_nsec).unwrap_or_default(),
        );
        kept.last_used = kept.last_used.max(Some(UNIX_EPOCH + modified));
    }
    Ok(kept)
}

fn remove_model(parent: &OwnedFd, name: &str) -> io::Result<()> {
    let dir = open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
    for file in names(&dir)? {
        if file == ABOUT || file.ends_with(KIND) || file.ends_with(".tmp") {
            remove(&dir, &file)?;
        }
    }
    // What others have put there stays, and the folder with it.
    let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
    Ok(())
}

//! Files that clients upload, and those that batches write: in a folder, within bounds of their number and their bytes.
//!
//! `files/ID` holds a file's bytes, `files/ID.json` what is known of it. A file is there when both are: the record is written last and
//! removed first, so a server that is killed in between leaves no half file. Nothing waits for the disk to have written (no
//! fsync): a loss of power may cost the latest files. All are for their owner only (0600): they hold what users wrote.
//!
//! Who has another API key sees none of them. Names that clients give are shown and are never part of a path; ids are random, and one that
//! is asked for is looked up before it names anything.
//! Never here: what is in a file (`batches`), HTTP.

mod draft;
mod error;
mod place;
mod record;

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

pub(crate) use self::{
    draft::{About, Draft, end_of_lines},
    error::FileError,
    place::Place,
    record::{FileObject, FileRecord, Purpose},
};

/// Files at most, of all keys together: what is known of them is held in memory, at about half a kilobyte each.
const FILES_MAX: usize = 10_000;

/// How long a file is kept if nobody says otherwise, and at most: 30 days, as OpenAI keeps files of batches.
pub(crate) const LIFETIME_S: u64 = 30 * 24 * 3600;

/// Bounds of what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileLimits {
    /// Bytes of one file.
    pub(crate) file_bytes: u64,
    /// Bytes of all.
    pub(crate) all_bytes: u64,
}

/// Kept files.
#[derive(Debug)]
pub(crate) struct Files {
    limits: FileLimits,
    folder: PathBuf,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    records: HashMap<String, FileRecord>,
    /// Files that are read, and by how many.
    readers: HashMap<String, u32>,
    /// Of files and of drafts.
    bytes: u64,
}

/// As long as it lives, its file stays.
#[derive(Debug)]
pub(crate) struct Reader {
    files: Arc<Files>,
    id: String,
}

impl Files {
    /// What is in the folder, but for files that are too old. Bytes that are no file go too, except those of `drafts`: they are still being
    /// written.
    pub(crate) fn open(place: &Place, limits: FileLimits, drafts: &HashSet<String>) -> io::Result<Arc<Self>> {
        let files = Self { limits, folder: place.files(), kept: Mutex::default() };
        let now = now_us() / 1_000_000;
        let names: Vec<String> = names(&files.folder)?;
        for id in names.iter().filter_map(|name| name.strip_suffix(".json")) {
            let record = read_json::<FileRecord>(&files.record_path(id)).filter(|record| record.id == id);
            let bytes = fs::metadata(files.path(id)).map_or(0, |about| about.len());
            match record.filter(|record| record.expires_at > now && record.bytes == bytes && !drafts.contains(id)) {
                Some(record) => files.kept().insert(record),
                None => remove(&files.record_path(id))?,
            }
        }
        for id in names.iter().filter(|name| !name.ends_with(".json")) {
            if !files.kept().records.contains_key(id) && !drafts.contains(id) {
                remove(&files.folder.join(id))?;
            }
        }
        Ok(Arc::new(files))
    }

    /// A tenant's file.
    pub(crate) fn get(&self, id: &str, tenant: u64) -> Result<FileRecord, FileError> {
        self.sweep();
        self.kept().of(id, tenant).cloned().ok_or_else(|| FileError::Unknown { id: id.to_owned() })
    }

    /// All of a tenant's files, the oldest first.
    pub(crate) fn list(&self, tenant: u64, purpose: Option<Purpose>) -> Vec<FileRecord> {
        self.sweep();
        let kept = self.kept();
        let is_asked = |record: &&FileRecord| record.tenant == tenant && purpose.is_none_or(|it| it == record.purpose);
        let mut records: Vec<FileRecord> = kept.records.values().filter(is_asked).cloned().collect();
        records.sort_by(|one, other| (one.created_us, &one.id).cmp(&(other.created_us, &other.id)));
        records
    }

    /// Keeps a tenant's file from being removed, to read it.
    pub(crate) fn read(self: &Arc<Self>, id: &str, tenant: u64) -> Result<Reader, FileError> {
        self.sweep();
        let mut kept = self.kept();
        if kept.of(id, tenant).is_none() {
            return Err(FileError::Unknown { id: id.to_owned() });
        }
        *kept.readers.entry(id.to_owned()).or_default() += 1;
        Ok(Reader { files: Arc::clone(self), id: id.to_owned() })
    }

    /// Removes a tenant's file.
    pub(crate) fn delete(&self, id: &str, tenant: u64) -> Result<(), FileError> {
        let mut kept = self.kept();
        if kept.of(id, tenant).is_none() {
            return Err(FileError::Unknown { id: id.to_owned() });
        }
        if kept.readers.contains_key(id) {
            return Err(FileError::InUse);
        }
        self.forget(&mut kept, id);
        Ok(())
    }

    /// Refuses a file that would have more bytes than it may, before any of them is here.
    pub(crate) fn refuse_too_large(&self, bytes: u64) -> Result<(), FileError> {
        let limit = self.limits.file_bytes;
        if bytes > limit { Err(FileError::TooLarge { limit }) } else { Ok(()) }
    }

    /// A file to be, as yet without a byte: only [`Draft::keep`] makes it one.
    pub(crate) async fn draft(self: &Arc<Self>) -> Result<Draft, FileError> {
        if self.kept().records.len() >= FILES_MAX {
            return Err(FileError::TooMany { limit: FILES_MAX });
        }
        Draft::create(Arc::clone(self), format!("file-{}", uuid::Uuid::new_v4().simple())).await
    }

    /// A draft that an earlier server left, or a new one of this id.
    pub(crate) async fn reopen(self: &Arc<Self>, id: &str) -> Result<Draft, FileError> {
        Draft::reopen(Arc::clone(self), id.to_owned()).await
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(id)
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }

    /// Room for so many more bytes.
    fn reserve(&self, bytes: u64) -> Result<(), FileError> {
        let mut kept = self.kept();
        if kept.bytes + bytes > self.limits.all_bytes {
            self.expire(&mut kept);
        }
        if kept.bytes + bytes > self.limits.all_bytes {
            return Err(FileError::Full { limit: self.limits.all_bytes });
        }
        kept.bytes += bytes;
        Ok(())
    }

    fn release(&self, bytes: u64) {
        self.kept().bytes -= bytes;
    }

    /// Removes what is too old and not read.
    pub(crate) fn sweep(&self) {
        self.expire(&mut self.kept());
    }

    fn expire(&self, kept: &mut Kept) {
        let now = now_us() / 1_000_000;
        let is_over = |record: &&FileRecord| record.expires_at <= now && !kept.readers.contains_key(&record.id);
        let over: Vec<String> = kept.records.values().filter(is_over).map(|record| record.id.clone()).collect();
        for id in over {
            self.forget(kept, &id);
        }
    }

    fn forget(&self, kept: &mut Kept, id: &str) {
        let Some(record) = kept.records.remove(id) else { return };
        kept.bytes -= record.bytes;
        // The record first: bytes without one are removed at the next start, if not now.
        for path in [self.record_path(id), self.path(id)] {
            if let Err(error) = remove(&path) {
                tracing::warn!(%error, path = %path.display(), "a file cannot be removed");
            }
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No operation panics halfway: each changes the maps and the sum one after the other.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn of(&self, id: &str, tenant: u64) -> Option<&FileRecord> {
        self.records.get(id).filter(|record| record.tenant == tenant)
    }

    fn insert(&mut self, record: FileRecord) {
        self.bytes += record.bytes;
        self.records.insert(record.id.clone(), record);
    }
}

impl Reader {
    /// Where its bytes are.
    pub(crate) fn path(&self) -> PathBuf {
        self.files.path(&self.id)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut kept = self.files.kept();
        if let Some(readers) = kept.readers.get_mut(&self.id) {
            *readers -= 1;
            if *readers == 0 {
                kept.readers.remove(&self.id);
            }
        }
    }
}

/// The wall clock in microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Writes a value beside the old one, and then puts it in its place: whoever reads finds all of it or nothing.
pub(crate) fn write_json(path: &Path, value: &impl serde::Serialize) -> io::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let beside = path.with_extension("tmp");
    remove(&beside)?; // of a life that ended in the middle
    let text = serde_json::to_vec(value)?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(&text)?;
    fs::rename(&beside, path)
}

/// What [`write_json`] wrote. `None`: nothing that can be read.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let value = fs::read(path).map_err(|error| error.to_string());
    let value = value.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
    value.inspect_err(|error| tracing::warn!(%error, path = %path.display(), "passed over")).ok()
}

/// The names in a folder, in order.
pub(crate) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string()); // ours are all ASCII
    }
    names.sort();
    Ok(names)
}

/// Removes a file. One that is not there is removed.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;

//! A file that is being written: its bytes go to the disk as they come, and are counted before they do.

use std::{os::unix::fs::OpenOptionsExt as _, sync::Arc};

use tokio::{
    fs::{File, OpenOptions},
    io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _},
};

use super::{FileError, FileRecord, Files, Purpose, now_us, remove, write_json};

/// What is known of a file beside its bytes.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub(crate) tenant: u64,
    pub(crate) filename: String,
    pub(crate) purpose: Purpose,
    /// From now on.
    pub(crate) lifetime_s: u64,
}

/// Dropped, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Draft {
    files: Arc<Files>,
    id: String,
    file: File,
    bytes: u64,
    /// What is done with it when it is dropped.
    end: End,
}

#[derive(Debug, PartialEq)]
enum End {
    /// Its bytes are removed.
    Removed,
    /// Somebody will go on with them.
    Left,
    /// They are a file's now, which counts them.
    Kept,
}

impl Draft {
    pub(super) async fn create(files: Arc<Files>, id: String) -> Result<Self, FileError> {
        let path = files.path(&id);
        let file = std::fs::OpenOptions::new().append(true).read(true).create_new(true).mode(0o600).clone();
        let file = OpenOptions::from(file).open(path).await?;
        Ok(Self { files, id, file, bytes: 0, end: End::Removed })
    }

    /// Takes up a draft that was left. A last line without its end is cut off: its writer was killed in the middle.
    pub(super) async fn reopen(files: Arc<Files>, id: String) -> Result<Self, FileError> {
        let path = files.path(&id);
        let file = std::fs::OpenOptions::new().append(true).read(true).create(true).mode(0o600).clone();
        let mut file = OpenOptions::from(file).open(path).await?;
        let bytes = end_of_lines(&mut file).await?;
        file.set_len(bytes).await?;
        files.reserve(bytes)?;
        Ok(Self { files, id, file, bytes, end: End::Removed })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where its bytes are.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.files.path(&self.id)
    }

    /// The next bytes. An error leaves the draft as it was, but for what the disk has taken.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let count = bytes.len() as u64;
        self.files.reserve(count)?;
        self.bytes += count;
        self.file.write_all(bytes).await?;
        Ok(self.file.flush().await?)
    }

    /// The same for a file whose size has a bound of its own.
    pub(crate) async fn write_bounded(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.files.refuse_too_large(self.bytes + bytes.len() as u64)?;
        self.write(bytes).await
    }

    /// Makes it a file.
    pub(crate) async fn keep(mut self, about: About) -> Result<FileRecord, FileError> {
        let created_us = now_us();
        let record = FileRecord {
            id: self.id.clone(),
            tenant: about.tenant,
            filename: about.filename,
            purpose: about.purpose,
            bytes: self.bytes,
            created_us,
            expires_at: created_us / 1_000_000 + about.lifetime_s,
        };
        let (path, written) = (self.files.record_path(&self.id), record.clone());
        tokio::task::spawn_blocking(move || write_json(&path, &written)).await.expect("writing does not panic")?;
        self.files.release(self.bytes);
        self.files.kept().insert(record.clone());
        self.end = End::Kept;
        Ok(record)
    }

    /// Leaves its bytes for a server that goes on with them.
    pub(crate) fn leave(mut self) {
        self.end = End::Left;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.end != End::Kept {
            self.files.release(self.bytes);
        }
        if self.end == End::Removed
            && let Err(error) = remove(&self.path())
        {
            tracing::warn!(%error, "an unfinished file cannot be removed");
        }
    }
}

/// Where the last whole line ends: what stands behind it was written by somebody who was killed in the middle.
pub(crate) async fn end_of_lines(file: &mut File) -> std::io::Result<u64> {
    const PIECE: u64 = 64 << 10;
    let mut end = file.metadata().await?.len();
    while end > 0 {
        let begin = end.saturating_sub(PIECE);
        let mut piece = vec![0; usize::try_from(end - begin).expect("a piece")];
        file.seek(std::io::SeekFrom::Start(begin)).await?;
        file.read_exact(&mut piece).await?;
        if let Some(at) = memchr::memrchr(b'\n', &piece) {
            return Ok(begin + at as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

//! Writing a file of its own name at once: beside it first, then renamed.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::{BLOBS_MAX, CHUNK_BYTES, HEADER_BYTES_MAX, MAGIC, PAGE_BYTES};

/// Writes header and blobs to `path`, for this user alone; returns how many bytes the file has. `part` is the name that it has
/// until it is whole: in the same folder, and nobody else's. It is locked meanwhile, so that others see that it is still written.
pub fn write(path: &Path, part: &Path, header: &[u8], blobs: &[&[u8]]) -> io::Result<u64> {
    if header.len() as u64 > HEADER_BYTES_MAX || blobs.len() as u64 > BLOBS_MAX {
        let why = format!(
            "{} bytes of header and {} blobs; at most {HEADER_BYTES_MAX} and {BLOBS_MAX} are read again",
            header.len(),
            blobs.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(CWD, part, flags, Mode::RUSR | Mode::WUSR)?);
    let written = lock(&file).and_then(|()| fill(&mut file, header, blobs));
    let written = written.and_then(|bytes| std::fs::rename(part, path).map(|()| bytes));
    if written.is_err() {
        let _ = std::fs::remove_file(part); // the error that is told is the first one
    }
    written
}

/// Until the file is closed. Somebody else may have taken it for left over before that.
fn lock(file: &File) -> io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(Errno::NOSYS | Errno::NOLCK | Errno::OPNOTSUPP) => {} // not all file systems have locks
        Err(error) => return Err(error.into()),
    }
    if file.metadata()?.nlink() == 0 {
        return Err(io::Error::other("it was deleted as soon as it was made"));
    }
    Ok(())
}

fn fill(file: &mut File, header: &[u8], blobs: &[&[u8]]) -> io::Result<u64> {
    let mut front = header.to_vec();
    front.extend(blobs.iter().flat_map(|blob| (blob.len() as u64).to_le_bytes()));
    for chunk in blobs.iter().flat_map(|blob| blob.chunks(CHUNK_BYTES)) {
        front.extend(xxh3_64(chunk).to_le_bytes());
    }
    for number in [MAGIC, header.len() as u64, blobs.len() as u64, xxh3_64(&front)] {
        file.write_all(&number.to_le_bytes())?;
    }
    file.write_all(&front)?;
    // So that others see at once how much room it will take.
    let end = blobs
        .iter()
        .fold(file.stream_position()?, |at, blob| at.next_multiple_of(PAGE_BYTES as u64) + blob.len() as u64);
    file.set_len(end)?;
    for blob in blobs {
        let at = file.stream_position()?.next_multiple_of(PAGE_BYTES as u64);
        file.seek(SeekFrom::Start(at))?;
        file.write_all(blob)?;
    }
    Ok(end)
}

//! The files of a recording: `FILE.000001`, `FILE.000002`, ..., one per segment, each of which can be replayed alone.
//!
//! Numbers go on after those that an earlier process left: what it recorded is there until its room is needed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::format::NAME;

/// A segment's file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentFile {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

/// The segments of a recording, oldest first. Files that only have a name like theirs are none.
pub(crate) fn list(recording: &Path) -> io::Result<Vec<SegmentFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder(recording))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let Some(number) = number(recording, &name) else { continue };
        if is_recording(&path) {
            files.push(SegmentFile { number, path, bytes: entry.metadata()?.len() });
        }
    }
    files.sort();
    Ok(files)
}

/// A new file behind all others, for its owner only.
pub(crate) fn create(recording: &Path, number: u64) -> io::Result<(SegmentFile, File)> {
    let mut name = recording.as_os_str().to_owned();
    name.push(format!(".{number:06}"));
    let path = PathBuf::from(name);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    Ok((SegmentFile { number, path, bytes: 0 }, file))
}

fn folder(recording: &Path) -> &Path {
    recording.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn number(recording: &Path, name: &OsString) -> Option<u64> {
    let base = recording.file_name()?.to_str()?;
    let digits = name.to_str()?.strip_prefix(base)?.strip_prefix('.')?;
    let is_number = digits.len() >= 6 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

fn is_recording(path: &Path) -> bool {
    let mut begin = [0; NAME.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut begin)).is_ok() && begin == NAME
}

//! Reads recordings, up to where they are damaged. A file is foreign: every length is checked before it is believed.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use pelton_core::{SOURCES, Snapshot};
use serde::de::DeserializeOwned;

use crate::call::Call;
use crate::files;
use crate::format::{Damage, FIRST_LINE, FRAME, Header, Kind, NAME, sum};

/// The files of a recording, oldest first: of `FILE` those with a number behind it, or the one file that was named.
pub fn segments(recording: &Path) -> io::Result<Vec<PathBuf>> {
    if recording.is_file() {
        return Ok(vec![recording.to_owned()]);
    }
    let files: Vec<PathBuf> = files::list(recording)?.into_iter().map(|file| file.path).collect();
    if files.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no such recording"));
    }
    Ok(files)
}

/// A segment whose calls are about to be read.
pub struct Segment {
    /// Where it comes from.
    pub header: Header,
    /// The core before the first call.
    pub snapshot: Snapshot,
    /// What it was told.
    pub calls: Calls,
}

/// The calls of a segment. After damage nothing more comes.
pub struct Calls {
    records: Records,
    bytes: Vec<u8>,
    at: usize, // in `bytes`
    record_at: u64,
    is_over: bool,
    has_end: bool,
}

struct Records {
    file: BufReader<File>,
    at: u64,
    length: u64,
}

impl Segment {
    /// Reads header and snapshot.
    pub fn open(path: &Path) -> Result<Self, Damage> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut records = Records { file: BufReader::new(file), at: 0, length };
        records.first_line()?;
        let header: Header = records.expect(Kind::Header)?;
        if header.sources != SOURCES {
            return Err(Damage::OtherSources(Box::new(header)));
        }
        let snapshot = records.expect(Kind::Snapshot)?;
        let calls = Calls { records, bytes: Vec::new(), at: 0, record_at: 0, is_over: false, has_end: false };
        Ok(Self { header, snapshot, calls })
    }
}

impl Calls {
    /// Whether the segment was ended, and not cut off. To be asked when nothing more comes.
    pub fn has_end(&self) -> bool {
        self.has_end
    }

    fn read(&mut self) -> Result<Option<Call>, Damage> {
        while self.at == self.bytes.len() {
            self.record_at = self.records.at;
            match self.records.next()? {
                Some((Kind::Calls, bytes)) => (self.bytes, self.at) = (bytes, 0),
                Some((Kind::End, _)) => {
                    self.has_end = true;
                    return Ok(None);
                }
                Some((kind, _)) => return Err(damaged(self.record_at, format!("{kind:?} between calls"))),
                None => return Ok(None),
            }
        }
        let rest = &self.bytes[self.at..];
        let (call, left) = postcard::take_from_bytes(rest).map_err(|error| damaged(self.record_at, error))?;
        self.at = self.bytes.len() - left.len();
        Ok(Some(call))
    }
}

impl Iterator for Calls {
    type Item = Result<Call, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let read = self.read().transpose();
        self.is_over = !matches!(read, Some(Ok(_)));
        read
    }
}

impl Records {
    fn first_line(&mut self) -> Result<(), Damage> {
        let mut line = Vec::new();
        (&mut self.file).take(FIRST_LINE.len() as u64).read_to_end(&mut line)?;
        self.at = line.len() as u64;
        match line.strip_prefix(NAME) {
            None => Err(Damage::NotARecording),
            Some(_) if line == FIRST_LINE => Ok(()),
            Some(version) => Err(Damage::OtherFormat { got: String::from_utf8_lossy(version).trim().to_owned() }),
        }
    }

    /// The next record must be of this kind.
    fn expect<T: DeserializeOwned>(&mut self, kind: Kind) -> Result<T, Damage> {
        let at = self.at;
        let (got, payload) = self.next()?.ok_or(Damage::Cut { at })?;
        if got != kind {
            return Err(damaged(at, format!("{got:?} where {kind:?} should be")));
        }
        postcard::from_bytes(&payload).map_err(|error| damaged(at, error))
    }

    /// None: the file ends here.
    fn next(&mut self) -> Result<Option<(Kind, Vec<u8>)>, Damage> {
        let (at, left) = (self.at, self.length.saturating_sub(self.at));
        if left == 0 {
            return Ok(None);
        }
        if left < FRAME as u64 {
            return Err(Damage::Cut { at });
        }
        let mut frame = [0; FRAME];
        self.read_exact(&mut frame)?;
        let [byte, l0, l1, l2, l3, checksum @ ..] = frame;
        let kind = Kind::from_byte(byte).ok_or_else(|| damaged(at, format!("kind {byte}")))?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if length > kind.length_max() {
            return Err(damaged(at, format!("{length} bytes; allowed: {}", kind.length_max())));
        }
        if u64::from(length) > left - FRAME as u64 {
            return Err(Damage::Cut { at });
        }
        let mut payload = vec![0; length as usize];
        self.read_exact(&mut payload)?;
        if sum(byte, length, &payload) != u64::from_le_bytes(checksum) {
            return Err(damaged(at, "its checksum does not fit"));
        }
        Ok(Some((kind, payload)))
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> Result<(), Damage> {
        let at = self.at;
        self.file.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Damage::Cut { at }, // it was cut while we read
            _ => Damage::Io(error),
        })?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

fn damaged(at: u64, what: impl ToString) -> Damage {
    Damage::Record { at, what: what.to_string() }
}

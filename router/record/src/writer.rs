//! The thread that writes: it alone waits for the disk.
//!
//! All files together stay below the bound: an eighth of it is for the calls of one segment, and the oldest segments go.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Receiver;
use pelton_core::{Plan, SOURCES, Snapshot};

use crate::call::{Call, Digest};
use crate::files::{self, SegmentFile};
use crate::format::{self, FIRST_LINE, FRAME, Header, Kind};

/// Calls are written when nothing more has come, or at so many bytes.
const RECORD_BYTES: usize = 16 << 10;
/// Segments of which the calls alone would fill the bound.
const SEGMENTS: u64 = 8;

/// What the engine thread hands over.
pub(crate) enum Entry {
    /// A new segment begins.
    Begin { snapshot: Snapshot, is_continued: bool, lost: u64 },
    /// A call.
    Call(Call),
    /// What came of `plan`. Its digest is made here.
    Planned(Plan),
}

/// See the top of the file.
pub(crate) struct Writer {
    recording: PathBuf,
    limit: u64,
    run: u64,
    began: u64,
    begun: u64, // segments
    older: Vec<SegmentFile>,
    segment: SegmentFile,
    file: File,
    calls: Vec<u8>,
    call_bytes: u64, // of this segment
    /// Set when the segment is full: the engine thread then begins another one.
    wants_segment: Arc<AtomicBool>,
}

impl Writer {
    /// Makes the first file, so that a folder that does not exist is told of at once.
    pub(crate) fn open(
        recording: PathBuf,
        limit: u64,
        run: u64,
        began: u64,
        wants_segment: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let older = files::list(&recording)?;
        let (segment, file) = files::create(&recording, older.last().map_or(0, |file| file.number) + 1)?;
        let (calls, call_bytes, begun) = (Vec::new(), 0, 0);
        Ok(Self { recording, limit, run, began, begun, older, segment, file, calls, call_bytes, wants_segment })
    }

    /// Writes until nobody is left who could send.
    pub(crate) fn run(mut self, entries: &Receiver<Entry>) {
        if let Err(error) = self.write_all(entries) {
            let file = self.segment.path.display();
            tracing::error!(%file, "the recording ends here: {error}; requests are served as before");
        }
    }

    fn write_all(&mut self, entries: &Receiver<Entry>) -> io::Result<()> {
        while let Ok(first) = entries.recv() {
            let mut next = Some(first);
            while let Some(entry) = next {
                self.take(entry)?;
                next = entries.try_recv().ok();
            }
            self.write_calls()?;
        }
        self.write(Kind::End, &[])
    }

    fn take(&mut self, entry: Entry) -> io::Result<()> {
        let call = match entry {
            Entry::Begin { snapshot, is_continued, lost } => return self.begin(&snapshot, is_continued, lost),
            Entry::Call(call) => call,
            Entry::Planned(plan) => Call::Planned(Some(Digest::of(&plan))),
        };
        postcard::to_io(&call, &mut self.calls).map_err(io::Error::other)?;
        if self.calls.len() >= RECORD_BYTES { self.write_calls() } else { Ok(()) }
    }

    fn begin(&mut self, snapshot: &Snapshot, is_continued: bool, lost: u64) -> io::Result<()> {
        let snapshot = postcard::to_stdvec(snapshot).map_err(io::Error::other)?;
        let needed = snapshot.len() as u64 + self.limit / SEGMENTS;
        if needed > self.limit {
            let (limit, least) = (self.limit, snapshot.len() as u64 / (SEGMENTS - 1) * SEGMENTS);
            return Err(io::Error::other(format!(
                "a snapshot has {} bytes and `record-limit` is {limit}; allowed: {least} or more",
                snapshot.len()
            )));
        }
        if self.begun > 0 {
            self.write_calls()?;
            self.write(Kind::End, &[])?;
            let (segment, file) = files::create(&self.recording, self.segment.number + 1)?;
            self.older.push(std::mem::replace(&mut self.segment, segment));
            self.file = file;
        }
        self.make_room(needed)?;
        let header = Header {
            pelton: env!("CARGO_PKG_VERSION").to_owned(),
            sources: SOURCES.to_owned(),
            run: self.run,
            began: self.began,
            number: self.begun,
            is_continued,
            lost,
        };
        self.begun += 1;
        self.call_bytes = 0;
        self.file.write_all(FIRST_LINE)?;
        self.segment.bytes += FIRST_LINE.len() as u64;
        self.write(Kind::Header, &postcard::to_stdvec(&header).map_err(io::Error::other)?)?;
        self.write(Kind::Snapshot, &snapshot)
    }

    fn write_calls(&mut self) -> io::Result<()> {
        if self.calls.is_empty() {
            return Ok(());
        }
        let mut calls = std::mem::take(&mut self.calls);
        self.make_room((FRAME + calls.len()) as u64)?;
        self.write(Kind::Calls, &calls)?;
        let (before, full) = (self.call_bytes, self.limit / SEGMENTS);
        self.call_bytes += calls.len() as u64;
        if before < full && self.call_bytes >= full {
            self.wants_segment.store(true, Ordering::Relaxed); // once a segment; nothing else hangs on it
        }
        calls.clear();
        self.calls = calls;
        Ok(())
    }

    fn write(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let frame = format::frame(kind, payload)
            .ok_or_else(|| io::Error::other(format!("a record of {} bytes is too long", payload.len())))?;
        self.file.write_all(&frame)?;
        self.file.write_all(payload)?;
        self.segment.bytes += (FRAME + payload.len()) as u64;
        Ok(())
    }

    /// Removes the oldest files until so many more bytes fit.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        let mut all = self.segment.bytes + self.older.iter().map(|file| file.bytes).sum::<u64>();
        while all + bytes > self.limit && !self.older.is_empty() {
            let oldest = self.older.remove(0);
            match std::fs::remove_file(&oldest.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => all -= oldest.bytes,
            }
        }
        if all + bytes > self.limit {
            return Err(io::Error::other("`record-limit` is too small for what comes at once"));
        }
        Ok(())
    }
}

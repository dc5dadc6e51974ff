//! The engine thread's end of a recording: hands calls over and never waits.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use pelton_core::Snapshot;

use crate::writer::{Entry, Writer};

/// So many calls may wait for the disk: some seconds of a busy engine, a few MiB.
const BACKLOG: usize = 8_192;
/// How long the end waits for the disk.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Where to record, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordOptions {
    /// Files are named after it: `FILE.000001` and so on.
    pub file: PathBuf,
    /// All files together.
    pub limit_bytes: u64,
}

/// A recording under way. Clones are handles to the same one; when the last one goes, everything is written.
#[derive(Clone)]
pub struct Recorder(Arc<Shared>);

struct Shared {
    entries: Option<Sender<Entry>>, // taken when it ends
    wants_segment: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What became of a call that was handed over.
pub(crate) enum Handed {
    Over,
    /// The disk is too slow: this call and those after it are lost, until another segment begins.
    Lost,
    /// The writer has ended; it has said why.
    Ended,
}

impl Recorder {
    /// Makes the first file and starts the thread that writes.
    pub fn start(options: RecordOptions) -> io::Result<Self> {
        let (mut recorder, writer, entries) = Self::without_thread(options, BACKLOG)?;
        let thread = thread::Builder::new().name("pelton-record".to_owned()).spawn(move || writer.run(&entries))?;
        Arc::get_mut(&mut recorder.0).expect("made above").thread = Some(thread);
        Ok(recorder)
    }

    /// Both ends, and nobody who writes yet.
    pub(crate) fn without_thread(
        options: RecordOptions,
        backlog: usize,
    ) -> io::Result<(Self, Writer, Receiver<Entry>)> {
        let wants_segment = Arc::new(AtomicBool::new(false));
        let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let run = RandomState::new().hash_one(began);
        let writer = Writer::open(options.file, options.limit_bytes, run, began, Arc::clone(&wants_segment))?;
        let (sender, entries) = bounded(backlog);
        let recorder = Self(Arc::new(Shared { entries: Some(sender), wants_segment, thread: None }));
        Ok((recorder, writer, entries))
    }

    /// Whether the segment is full. Asked before every call: one load.
    pub(crate) fn wants_segment(&self) -> bool {
        self.0.wants_segment.load(Ordering::Relaxed)
    }

    /// Whether the writer keeps up: a snapshot costs a copy of the core, which nobody should make in vain.
    pub fn has_room(&self) -> bool {
        self.sender().len() * 2 <= self.sender().capacity().expect("made with a bound")
    }

    /// Begins another segment. The caller saw that there is room.
    pub(crate) fn begin(&self, snapshot: Snapshot, is_continued: bool, lost: u64) -> Handed {
        self.0.wants_segment.store(false, Ordering::Relaxed);
        self.hand_over(Entry::Begin { snapshot, is_continued, lost })
    }

    pub(crate) fn hand_over(&self, entry: Entry) -> Handed {
        match self.sender().try_send(entry) {
            Ok(()) => Handed::Over,
            Err(TrySendError::Full(_)) => Handed::Lost,
            Err(TrySendError::Disconnected(_)) => Handed::Ended,
        }
    }

    fn sender(&self) -> &Sender<Entry> {
        self.0.entries.as_ref().expect("taken by `drop` alone")
    }
}

impl Drop for Shared {
    /// Waits until what was handed over is written, but not for ever: a disk may hang.
    fn drop(&mut self) {
        self.entries = None;
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + ENDS_WITHIN;
        while !thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            let _ = thread.join(); // a panic there has been reported there
        } else {
            tracing::warn!(
                "the recording is left behind as it is: what was to be written was not within {ENDS_WITHIN:?}"
            );
        }
    }
}

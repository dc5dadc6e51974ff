//! One memory: preamble, counters, frames. Made by the router, mapped by both sides.
//!
//! Words of the preamble after its first two lines, each on a line of its own, with the side that writes them:
//!
//! ```text
//!   submitted  router  frames published since attach, wrapping; the worker sleeps on it (and one more by `detach`)
//!   detached   either  1: no more frames will come, or none will be taken
//!   completed  worker  results published since attach, wrapping
//!   heartbeat  worker  bumped twice a second while it waits, and when a step begins and ends
//!   sleepers   worker  threads asleep on `submitted`
//! ```

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use crate::{
    Capacities, FRAME_VERSION, Layout, MemoryError, PREAMBLE_BYTES, Preamble, RECORDS_CHECKSUM, Region,
    checksum::{halves, whole},
    futex::Signal,
    map::{Mapping, sealed_file},
    records::MAGIC,
};

const SUBMITTED: usize = 32;
const DETACHED: usize = 48;
const COMPLETED: usize = 64;
const HEARTBEAT: usize = 80;
const SLEEPERS: usize = 96;
const RAISED_ON: usize = SLEEPERS + 1; // beside what its writer looks at anyway
const _: () = assert!(Preamble::WORDS <= SUBMITTED);

/// A mapping and what lies where in it. Cheap to clone; unmapped with the last clone.
#[derive(Clone)]
pub struct Memory {
    mapping: Arc<Mapping>,
    file: Option<Arc<OwnedFd>>, // none: of this process alone
    layout: Arc<Layout>,
    epoch: u32,
}

/// The counters at one moment, for whoever watches a worker. Claims of the peer: good for noticing that nothing moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// Frames published.
    pub submitted: u32,
    /// Results published.
    pub completed: u32,
    /// Bumped while the worker waits, and when a step begins and ends.
    pub heartbeat: u32,
}

impl Memory {
    /// Memory to be handed over to a worker.
    pub fn create(layout: &Layout, epoch: u32) -> Result<Self, MemoryError> {
        let file = sealed_file("pelton-frames", layout.total_bytes())?;
        let memory = Self {
            mapping: Arc::new(Mapping::shared(&file)?),
            file: Some(Arc::new(file)),
            layout: Arc::new(layout.clone()),
            epoch,
        };
        memory.write_preamble();
        Ok(memory)
    }

    /// Memory of this process alone, for frames that travel inline.
    pub fn local(layout: &Layout, epoch: u32) -> Result<Self, MemoryError> {
        let mapping = Arc::new(Mapping::private(layout.total_bytes())?);
        let memory = Self { mapping, file: None, layout: Arc::new(layout.clone()), epoch };
        memory.write_preamble();
        Ok(memory)
    }

    /// Memory that was handed over: nothing in it is believed before it is checked.
    pub fn from_fd(file: OwnedFd) -> Result<Self, MemoryError> {
        let mapping = Mapping::shared(&file)?;
        let bytes = 4 * mapping.words().len();
        if bytes < PREAMBLE_BYTES {
            return Err(MemoryError::Size { got: bytes as u64, expected: PREAMBLE_BYTES as u64 });
        }
        let mut words = [0; Preamble::WORDS];
        load(&mapping.words()[..Preamble::WORDS], &mut words);
        let preamble: Preamble = bytemuck::cast(words);
        let layout = check(&preamble)?;
        if bytes != layout.total_bytes() {
            return Err(MemoryError::Size { got: bytes as u64, expected: layout.total_bytes() as u64 });
        }
        Ok(Self {
            mapping: Arc::new(mapping),
            file: Some(Arc::new(file)),
            layout: Arc::new(layout),
            epoch: preamble.epoch,
        })
    }

    /// The file, for the hand-over. None: this memory is local.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_deref().map(AsFd::as_fd)
    }

    /// Where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Which life of the worker it serves.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// First byte of the mapping, valid while a clone of this memory lives. For Python's tensors.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// The counters.
    pub fn pulse(&self) -> Pulse {
        // Completed first: steps in flight are never counted as fewer than they are.
        let (completed, heartbeat) = (self.completed(), self.word(HEARTBEAT).load(Relaxed));
        Pulse { submitted: self.submitted(), completed, heartbeat }
    }

    /// Says that no more frames will come, or that none will be taken, and wakes whoever sleeps on submissions.
    pub fn detach(&self) {
        // One submission that is none: the kernel compares this word alone before it lets anybody sleep. Whoever reads
        // `submitted` first and `detached` then cannot take it for a frame.
        if self.word(DETACHED).swap(1, Release) == 0 {
            self.submissions().raise(); // pairs with the loads in `WorkerEnd::take` and `Inline::next_plan`
        }
    }

    /// Whether `detach` was called.
    pub fn is_detached(&self) -> bool {
        self.word(DETACHED).load(Acquire) != 0 // pairs with `detach`
    }

    pub(crate) fn submitted(&self) -> u32 {
        self.word(SUBMITTED).load(Acquire) // pairs with `Signal::raise` of the router's end
    }

    /// What the worker sleeps on.
    pub(crate) fn submissions(&self) -> Signal<'_> {
        Signal { word: self.word(SUBMITTED), sleepers: self.word(SLEEPERS), raised_on: self.word(RAISED_ON) }
    }

    pub(crate) fn completed(&self) -> u32 {
        self.word(COMPLETED).load(Acquire) // pairs with `complete`
    }

    pub(crate) fn complete(&self) {
        self.word(COMPLETED).fetch_add(1, Release); // pairs with `completed`
    }

    pub(crate) fn beat(&self) {
        self.word(HEARTBEAT).fetch_add(1, Relaxed); // orders nothing: only its movement counts
    }

    /// Copies the first `count` words of a region out, behind what `into` holds. They mean something while the frame is
    /// this side's to read.
    pub fn read(&self, frame: u32, region: Region, count: usize, into: &mut Vec<u32>) {
        let begin = into.len();
        into.resize(begin + count, 0);
        load(self.region(frame, region, count), &mut into[begin..]);
    }

    /// Copies `words` to the begin of a region, while the frame is this side's to write.
    pub fn write(&self, frame: u32, region: Region, words: &[u32]) {
        for (to, from) in self.region(frame, region, words.len()).iter().zip(words) {
            to.store(*from, Relaxed); // published by `submitted` or `completed`
        }
    }

    fn region(&self, frame: u32, region: Region, count: usize) -> &[AtomicU32] {
        assert!(frame < self.layout.capacities().frames);
        let place = self.layout.place(region);
        assert!(4 * count <= place.bytes(), "{count} words of {region} were checked against its capacity");
        let begin = (PREAMBLE_BYTES + frame as usize * self.layout.frame_stride() + place.offset) / 4;
        &self.mapping.words()[begin..begin + count]
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        &self.mapping.words()[index]
    }

    fn write_preamble(&self) {
        let Capacities {
            frames,
            slots,
            tokens,
            appends,
            copies,
            biases,
            suppressed,
            history,
            top_logprobs,
            saves,
            loads,
            pooled_width,
            scores,
            embeds,
            embed_width,
        } = *self.layout.capacities();
        let (records_checksum_lo, records_checksum_hi) = halves(RECORDS_CHECKSUM);
        let (layout_checksum_lo, layout_checksum_hi) = halves(self.layout.checksum());
        let preamble = Preamble {
            magic: MAGIC,
            version: FRAME_VERSION,
            records_checksum_lo,
            records_checksum_hi,
            layout_checksum_lo,
            layout_checksum_hi,
            epoch: self.epoch,
            frames,
            slots,
            tokens,
            appends,
            copies,
            biases,
            suppressed,
            history,
            top_logprobs,
            saves,
            loads,
            pooled_width,
            scores,
            embeds,
            embed_width,
        };
        let words: [u32; Preamble::WORDS] = bytemuck::cast(preamble);
        for (to, from) in self.mapping.words().iter().zip(words) {
            to.store(from, Relaxed); // nobody else has this memory yet
        }
    }
}

fn check(preamble: &Preamble) -> Result<Layout, MemoryError> {
    let records = whole(preamble.records_checksum_lo, preamble.records_checksum_hi);
    same("magic", preamble.magic.into(), MAGIC.into())?;
    same("version", preamble.version.into(), FRAME_VERSION.into())?;
    same("records checksum", records, RECORDS_CHECKSUM)?;
    let layout = Layout::new(Capacities {
        frames: preamble.frames,
        slots: preamble.slots,
        tokens: preamble.tokens,
        appends: preamble.appends,
        copies: preamble.copies,
        biases: preamble.biases,
        suppressed: preamble.suppressed,
        history: preamble.history,
        top_logprobs: preamble.top_logprobs,
        saves: preamble.saves,
        loads: preamble.loads,
        pooled_width: preamble.pooled_width,
        scores: preamble.scores,
        embeds: preamble.embeds,
        embed_width: preamble.embed_width,
    })?;
    let claimed = whole(preamble.layout_checksum_lo, preamble.layout_checksum_hi);
    same("layout checksum", claimed, layout.checksum())?;
    Ok(layout)
}

fn same(field: &'static str, got: u64, expected: u64) -> Result<(), MemoryError> {
    if got == expected { Ok(()) } else { Err(MemoryError::Mismatch { field, got, expected }) }
}

fn load(from: &[AtomicU32], into: &mut [u32]) {
    for (to, from) in into.iter_mut().zip(from) {
        *to = from.load(Relaxed); // ordered by the counter that published them
    }
}

/// Tests damage memory as a peer could: through words that this crate's doors do not show.
#[cfg(test)]
pub(crate) fn flip(memory: &Memory, byte: usize, change: u32) {
    memory.mapping.words()[byte / 4].fetch_xor(change, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::small;

    fn handed_over(damage: impl Fn(&Memory)) -> Result<Memory, MemoryError> {
        let memory = Memory::create(&Layout::new(small()).unwrap(), 7).unwrap();
        damage(&memory);
        Memory::from_fd(memory.fd().unwrap().try_clone_to_owned().unwrap())
    }

    #[test]
    fn a_memory_says_what_it_is() {
        let memory = handed_over(|_| {}).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((memory.layout().capacities(), memory.epoch()), (&small(), 7));
    }

    #[test]
    fn damage_of_any_word_of_the_preamble_is_noticed() {
        for word in (0..Preamble::WORDS).filter(|word| *word != 6) {
            assert!(handed_over(|memory| flip(memory, 4 * word, 1 << 9)).is_err(), "word {word}");
        }
        // The epoch may have any value here: the handshake has named it, and whoever attaches compares.
        let other = handed_over(|memory| flip(memory, 4 * 6, 1 << 9)).unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(other.epoch(), 7);
    }

    #[test]
    fn a_memory_of_another_size_than_its_layout_is_refused() {
        let layout = Layout::new(small()).unwrap();
        let file = sealed_file("long", layout.total_bytes() + 4096).unwrap();
        let long = Memory {
            mapping: Arc::new(Mapping::shared(&file).unwrap()),
            file: None,
            layout: Arc::new(layout),
            epoch: 1,
        };
        long.write_preamble();
        assert!(matches!(Memory::from_fd(file), Err(MemoryError::Size { .. })));
    }

    #[test]
    fn a_file_without_a_preamble_is_refused() {
        assert!(matches!(Memory::from_fd(sealed_file("short", 64).unwrap()), Err(MemoryError::Size { .. })));
        assert!(matches!(Memory::from_fd(sealed_file("empty", 4096).unwrap()), Err(MemoryError::Mismatch { .. })));
    }
}

//! Masks: which tokens a row may draw, in a memory of their own beside the frames.
//!
//! A step is submitted before the tokens are known that its masks depend on. So a mask is *late*: it is written while the
//! step's forward pass runs, and the worker takes it just before it draws. A row whose mask does not come in time is not drawn.
//!
//! ```text
//!   preamble (4096 bytes)   what the memory is; counters `written`, `sleepers`, each on a line of its own
//!   place 0, place 1 ...    one per slot: a line with two words, then a bit per token, lowest first
//!     sequence   the step that the place is for, as `sequence` says; 0: it is being written
//!     kind       1: draw within the mask; 0: do not draw, whoever asked for the mask has gone
//! ```
//!
//! The life of a place, for each step that has a masked row of its slot:
//!   1. `MaskWriter` closes it (sequence 0), writes kind and words, opens it with the step's number and wakes the worker.
//!   2. The worker sees the number it waits for, copies the words, and looks at the number again.
//!
//! The router writes for the next step of a slot when the one before has come back, so a reader meets a writer only if it has
//! given up waiting; then the second look tells. A mask only takes tokens away: whatever stands there, it does no other harm.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
            fence,
        },
    },
    time::{Duration, Instant},
};

use crate::{
    FrameError, LayoutError, MemoryError,
    checksum::{halves, whole},
    futex::Signal,
    map::{Mapping, sealed_file},
};

/// How long a step waits for its masks once its logits are there. Most masks take microseconds and have had the whole forward
/// pass; a row that misses is drawn a step later, and its neighbours have waited no longer than this.
pub const MASK_WAIT: Duration = Duration::from_millis(5);

/// Bytes before the first place.
const HEAD_BYTES: usize = 4096;
/// First word of a mask memory: "PLTM" in bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"PLTM");
const VERSION: u32 = 1;
/// Words of the preamble: magic, version, epoch, slots, tokens.
const HEAD_WORDS: usize = 5;
const WRITTEN: usize = 32;
const SLEEPERS: usize = 48;
const RAISED_ON: usize = SLEEPERS + 1; // beside what its writer looks at anyway
/// Words of a cache line: places and masks begin on one.
const LINE: usize = 16;
const SEQUENCE: usize = 0;
const KIND: usize = 1;
/// `kind`: nothing is to be drawn.
const NOTHING: u32 = 0;
/// `kind`: the mask counts.
const MASK: u32 = 1;
/// The most tokens of a vocabulary, and slots: what a peer claims cannot make us map more than 8 GiB of address space.
const TOKENS_MAX: u32 = 1 << 20;
const SLOTS_MAX: u32 = 1 << 16;
/// Words before the mask in its inline form: step (both halves), slot, kind.
const INLINE_HEAD: usize = 4;

/// A mapping of the whole memory. Cheap to clone; unmapped with the last clone.
#[derive(Clone)]
pub struct MaskMemory {
    mapping: Arc<Mapping>,
    file: Option<Arc<OwnedFd>>, // none: of this process alone
    epoch: u32,
    slots: u32,
    tokens: u32,
}

/// What a row that was looked for has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskState {
    /// Its mask, the one after those of the rows before it.
    Here,
    /// Nothing: it is not drawn.
    Missing,
}

impl MaskMemory {
    /// Memory for the masks of so many slots over a vocabulary, to be handed over to a worker.
    pub fn create(slots: u32, tokens: u32, epoch: u32) -> Result<Self, MemoryError> {
        check_size(slots, tokens)?;
        let file = sealed_file("pelton-masks", total_bytes(slots, tokens))?;
        let mapping = Arc::new(Mapping::shared(&file)?);
        Ok(Self { mapping, file: Some(Arc::new(file)), epoch, slots, tokens }.begun())
    }

    /// Memory of this process alone, for masks that travel inline.
    pub fn local(slots: u32, tokens: u32, epoch: u32) -> Result<Self, MemoryError> {
        check_size(slots, tokens)?;
        let mapping = Arc::new(Mapping::private(total_bytes(slots, tokens))?);
        Ok(Self { mapping, file: None, epoch, slots, tokens }.begun())
    }

    /// Memory that was handed over: nothing in it is believed before it is checked.
    pub fn from_fd(file: OwnedFd) -> Result<Self, MemoryError> {
        let mapping = Mapping::shared(&file)?;
        let got = 4 * mapping.words().len();
        if got < HEAD_BYTES {
            return Err(MemoryError::Size { got: got as u64, expected: HEAD_BYTES as u64 });
        }
        let head: [u32; HEAD_WORDS] = std::array::from_fn(|at| mapping.words()[at].load(Relaxed));
        let [magic, version, epoch, slots, tokens] = head;
        for (field, got, expected) in [("magic", magic, MAGIC), ("version", version, VERSION)] {
            if got != expected {
                return Err(MemoryError::Mismatch { field, got: got.into(), expected: expected.into() });
            }
        }
        check_size(slots, tokens)?;
        if got != total_bytes(slots, tokens) {
            return Err(MemoryError::Size { got: got as u64, expected: total_bytes(slots, tokens) as u64 });
        }
        Ok(Self { mapping: Arc::new(mapping), file: Some(Arc::new(file)), epoch, slots, tokens })
    }

    /// The file, for the hand-over. None: this memory is local.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_deref().map(AsFd::as_fd)
    }

    /// Which life of the worker it serves.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// How many places there are.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bits of a mask.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Words of a mask.
    pub fn words(&self) -> usize {
        words(self.tokens)
    }

    /// Takes the masks of these slots for a step, waiting at most `timeout` for the last one. `masks` gets the words of those
    /// that are here, one after the other; `states` has an entry per slot.
    pub fn take(
        &self,
        step: u64,
        slots: impl Iterator<Item = u32> + Clone,
        timeout: Duration,
        masks: &mut Vec<u32>,
        states: &mut Vec<MaskState>,
    ) {
        let begin = Instant::now();
        loop {
            let seen = self.signal().word.load(Acquire); // pairs with `Signal::raise` in `put`
            let are_all_answered = slots.clone().all(|slot| self.answer(step, slot).is_some());
            let left = timeout.saturating_sub(begin.elapsed());
            if are_all_answered || left.is_zero() {
                break;
            }
            self.signal().wait(seen, left);
        }
        masks.clear();
        states.clear();
        for slot in slots {
            states.push(if self.copy(step, slot, masks) { MaskState::Here } else { MaskState::Missing });
        }
    }

    /// Puts an answer that came inline where `take` finds it.
    pub fn accept(&self, bytes: &[u8]) -> Result<(), FrameError> {
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let got: Vec<u32> = bytes.chunks_exact(4).map(word).collect();
        let (least, most) = (4 * INLINE_HEAD, 4 * (INLINE_HEAD + self.words()));
        if bytes.len() != least && bytes.len() != most {
            return Err(FrameError::Length { part: "mask", got: bytes.len(), expected: most });
        }
        let (head, mask) = got.split_at(INLINE_HEAD);
        let [low, high, slot, kind] = [head[0], head[1], head[2], head[3]];
        for (field, got, most) in [("slot", slot, self.slots - 1), ("kind", kind, MASK)] {
            if got > most {
                return Err(FrameError::Header { part: "mask", field, got: got.into(), expected: most.into() });
            }
        }
        if (kind == MASK) != (mask.len() == self.words()) {
            return Err(FrameError::Length { part: "mask", got: bytes.len(), expected: most });
        }
        self.put(whole(low, high), slot, (kind == MASK).then_some(mask));
        Ok(())
    }

    fn put(&self, step: u64, slot: u32, mask: Option<&[u32]>) {
        let place = self.place(slot);
        place[SEQUENCE].store(0, Relaxed);
        fence(Release); // pairs with the fence in `copy`: who reads a word of this mask sees that the place was closed
        if let Some(mask) = mask {
            assert_eq!(mask.len(), self.words(), "masks are written whole");
            for (to, from) in place[LINE..].iter().zip(mask) {
                to.store(*from, Relaxed);
            }
        }
        place[KIND].store(if mask.is_some() { MASK } else { NOTHING }, Relaxed);
        place[SEQUENCE].store(sequence(step), Release); // pairs with the load in `answer`
        self.signal().raise();
    }

    fn answer(&self, step: u64, slot: u32) -> Option<u32> {
        let place = self.place(slot);
        (place[SEQUENCE].load(Acquire) == sequence(step)).then(|| place[KIND].load(Relaxed)) // pairs with `put`
    }

    /// Copies a mask out, behind what `masks` holds. False: there is none, and nothing was added.
    fn copy(&self, step: u64, slot: u32, masks: &mut Vec<u32>) -> bool {
        if self.answer(step, slot) != Some(MASK) {
            return false;
        }
        let (place, begin) = (self.place(slot), masks.len());
        masks.extend(place[LINE..].iter().take(self.words()).map(|word| word.load(Relaxed)));
        fence(Acquire); // pairs with the fence in `put`
        if place[SEQUENCE].load(Relaxed) != sequence(step) {
            masks.truncate(begin);
            return false;
        }
        true
    }

    fn place(&self, slot: u32) -> &[AtomicU32] {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        let stride = stride_words(self.tokens);
        &self.mapping.words()[HEAD_BYTES / 4 + slot as usize * stride..][..stride]
    }

    fn signal(&self) -> Signal<'_> {
        let words = self.mapping.words();
        Signal { word: &words[WRITTEN], sleepers: &words[SLEEPERS], raised_on: &words[RAISED_ON] }
    }

    fn begun(self) -> Self {
        let head = [MAGIC, VERSION, self.epoch, self.slots, self.tokens];
        for (to, from) in self.mapping.words().iter().zip(head) {
            to.store(from, Relaxed); // nobody else has this memory yet
        }
        self
    }
}

/// Where the router's masks go. Threads that compute masks share it, and none is written over by an older one.
pub struct MaskWriter {
    outlet: Outlet,
    latest: Vec<Mutex<u64>>, // by slot: the step of what was written last
    words: usize,
}

/// Takes an answer in its inline form away.
pub type Carrier = Box<dyn Fn(Vec<u8>) + Send + Sync>;

enum Outlet {
    Shared(MaskMemory),
    Inline(Carrier),
}

impl MaskWriter {
    /// Into memory that the worker maps.
    pub fn shared(memory: MaskMemory) -> Self {
        let (slots, words) = (memory.slots(), memory.words());
        Self::new(Outlet::Shared(memory), slots, words)
    }

    /// For a worker that shares no memory.
    pub fn inline(slots: u32, tokens: u32, carrier: Carrier) -> Self {
        Self::new(Outlet::Inline(carrier), slots, words(tokens))
    }

    fn new(outlet: Outlet, slots: u32, words: usize) -> Self {
        Self { outlet, latest: (0..slots).map(|_| Mutex::new(0)).collect(), words }
    }

    /// Words of a mask.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Lets a row be drawn within this mask. Nothing happens if its slot has been answered for a later step.
    pub fn allow(&self, step: u64, slot: u32, mask: &[u32]) {
        self.write(step, slot, Some(mask));
    }

    /// Lets a row be passed over: nobody wants its token any more.
    pub fn pass_over(&self, step: u64, slot: u32) {
        self.write(step, slot, None);
    }

    fn write(&self, step: u64, slot: u32, mask: Option<&[u32]>) {
        // Held while a few kilobytes are copied, so that nobody waits for longer than that.
        let mut latest = self.latest[slot as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if *latest >= step {
            return;
        }
        *latest = step;
        match &self.outlet {
            Outlet::Shared(memory) => memory.put(step, slot, mask),
            Outlet::Inline(carrier) => carrier(inline(step, slot, mask)),
        }
    }
}

fn inline(step: u64, slot: u32, mask: Option<&[u32]>) -> Vec<u8> {
    let (low, high) = halves(step);
    let head = [low, high, slot, if mask.is_some() { MASK } else { NOTHING }];
    head.iter().chain(mask.unwrap_or_default()).flat_map(|word| word.to_le_bytes()).collect()
}

/// A step as the word of a place. Never 0.
fn sequence(step: u64) -> u32 {
    u32::try_from(step % u64::from(u32::MAX)).expect("a remainder is smaller") + 1
}

const fn words(tokens: u32) -> usize {
    tokens.div_ceil(32) as usize
}

const fn stride_words(tokens: u32) -> usize {
    LINE + words(tokens).next_multiple_of(LINE)
}

fn check_size(slots: u32, tokens: u32) -> Result<(), MemoryError> {
    let bounds = [("slots", slots, SLOTS_MAX), ("tokens", tokens, TOKENS_MAX)];
    match bounds.into_iter().find(|&(_, got, most)| !(1..=most).contains(&got)) {
        Some((name, got, most)) => Err(LayoutError::Capacity { name, got, least: 1, most }.into()),
        None => Ok(()),
    }
}

const fn total_bytes(slots: u32, tokens: u32) -> usize {
    HEAD_BYTES + 4 * slots as usize * stride_words(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(slots: u32, tokens: u32) -> (MaskWriter, MaskMemory) {
        let ours = MaskMemory::create(slots, tokens, 7).unwrap();
        let theirs = MaskMemory::from_fd(ours.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((theirs.slots(), theirs.tokens(), theirs.epoch()), (slots, tokens, 7));
        (MaskWriter::shared(ours), theirs)
    }

    fn inline_pair(slots: u32, tokens: u32) -> (MaskWriter, MaskMemory) {
        let theirs = MaskMemory::local(slots, tokens, 7).unwrap();
        let memory = theirs.clone();
        let carrier = Box::new(move |bytes: Vec<u8>| memory.accept(&bytes).unwrap());
        (MaskWriter::inline(slots, tokens, carrier), theirs)
    }

    fn taken(memory: &MaskMemory, step: u64, slots: &[u32]) -> (Vec<u32>, Vec<MaskState>) {
        let (mut masks, mut states) = (vec![9], Vec::new());
        memory.take(step, slots.iter().copied(), Duration::ZERO, &mut masks, &mut states);
        (masks, states)
    }

    use MaskState::{Here, Missing};

    proptest! {
        #[test]
        fn each_slot_gets_its_own_mask_of_its_own_step(tokens in 1..200u32, seed in any::<u32>(), is_inline in any::<bool>()) {
            let (writer, reader) = if is_inline { inline_pair(3, tokens) } else { pair(3, tokens) };
            let mask = |slot: u32| -> Vec<u32> {
                (0..writer.words() as u32).map(|at| seed.rotate_left(slot).wrapping_mul(at + 1)).collect()
            };
            writer.allow(5, 2, &mask(2));
            writer.allow(5, 0, &mask(0));
            let (masks, states) = taken(&reader, 5, &[2, 1, 0]);
            prop_assert_eq!(states, [Here, Missing, Here]);
            prop_assert_eq!(masks, [mask(2), mask(0)].concat());
            prop_assert_eq!(taken(&reader, 6, &[0]), (vec![], vec![Missing]), "a mask is of one step");
        }
    }

    #[test]
    fn a_row_that_is_passed_over_is_answered_and_not_drawn() {
        for (writer, reader) in [pair(2, 40), inline_pair(2, 40)] {
            writer.pass_over(3, 1);
            assert_eq!(reader.answer(3, 1), Some(NOTHING));
            assert_eq!(taken(&reader, 3, &[1]), (vec![], vec![Missing]));
        }
    }

    #[test]
    fn an_older_mask_never_follows_a_newer_one() {
        let (writer, reader) = pair(1, 32);
        writer.allow(9, 0, &[1]);
        writer.allow(8, 0, &[2]);
        writer.pass_over(9, 0);
        assert_eq!(taken(&reader, 9, &[0]), (vec![1], vec![Here]));
    }

    #[test]
    fn a_mask_that_comes_while_it_is_waited_for_is_taken() {
        let (writer, reader) = pair(2, 64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for step in 1..2_000 {
                    let (mut masks, mut states) = (Vec::new(), Vec::new());
                    reader.take(step, [0, 1].into_iter(), Duration::from_secs(60), &mut masks, &mut states);
                    let word = u32::try_from(step).unwrap();
                    assert_eq!((&masks[..], &states[..]), (&[word, 1, word, 2][..], &[Here, Here][..]));
                    writer.allow(step + 1, 0, &[word + 1, 1]);
                    writer.allow(step + 1, 1, &[word + 1, 2]);
                }
            });
            writer.allow(1, 1, &[1, 2]);
            writer.allow(1, 0, &[1, 1]);
        });
    }

    #[test]
    fn what_comes_inline_is_checked() {
        let memory = MaskMemory::local(2, 33, 1).unwrap();
        let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        assert!(memory.accept(&bytes(&[1, 0, 1, MASK, 5, 1])).is_ok());
        assert!(memory.accept(&bytes(&[2, 0, 1, NOTHING])).is_ok());
        for wrong in
            [&[1, 0, 2, MASK, 5, 1][..], &[1, 0, 1, 2, 5, 1], &[1, 0, 1, MASK, 5], &[1, 0, 1, MASK], &[1, 0], &[]]
        {
            assert!(memory.accept(&bytes(wrong)).is_err(), "{wrong:?}");
        }
        assert!(memory.accept(&bytes(&[1, 0, 1, NOTHING, 5, 1])).is_err());
    }

    #[test]
    fn claims_that_do_not_fit_are_refused() {
        for (slots, tokens) in [(0, 1), (1, 0), (SLOTS_MAX + 1, 1), (1, TOKENS_MAX + 1)] {
            assert!(MaskMemory::create(slots, tokens, 1).is_err());
        }
        for word in [0, 1, 3, 4] {
            let memory = MaskMemory::create(3, 100, 1).unwrap();
            memory.mapping.words()[word].fetch_xor(1 << 15, Relaxed);
            assert!(MaskMemory::from_fd(memory.fd().unwrap().try_clone_to_owned().unwrap()).is_err(), "word {word}");
        }
        assert!(MaskMemory::from_fd(sealed_file("short", 64).unwrap()).is_err());
    }
}

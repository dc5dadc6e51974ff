//! Memory that is larger than what is needed of it at once: zeros, of which a little is taken from the machine before anything runs, more
//! behind the first step, more still while nothing runs, and as far ahead of what steps reach.
//!
//! A virtual machine may need seconds for a gigabyte that it has never touched. Taken when they are met, a step would wait for pages. Taken
//! beside steps, however low the priority, it slows them: the machine below gives pages while it holds the processor (two cores, a model of
//! 1.2 GB: 35 tokens per second, and 55 without). Taken to the last one, a server that nobody asks costs its neighbours a third of what the machine
//! reads, for minutes, and memory that it may never use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::{Buffer, nodes};

/// What is taken at once, about, and then is there ahead of what steps reach; a piece of each part at least. What first requests need: whoever
/// starts a server waits for it.
const AT_ONCE: usize = 128 << 20;
/// What is no larger is taken whole: a small model's steps take as long as a page does that has to be given first.
const SMALL: usize = 640 << 20;
/// What is taken ahead of what steps have reached while nothing runs: what comes until it is quiet again.
const WHILE_QUIET: usize = 2 << 30;
/// Taken in one call: whoever maps memory meanwhile waits for as long, a few milliseconds.
const PIECE: usize = 2 << 20;
/// Without a step for as long, nothing runs; between two steps of a request there is much less.
const QUIET: Duration = Duration::from_millis(200);
/// How often it is looked whether that is so. A step that begins waits for one piece at most.
const LOOK: Duration = Duration::from_millis(20);

/// Zeros of equal parts, all of which are used from their beginnings on: so they are taken side by side.
pub struct Arena {
    memory: Arc<Buffer>,
    steps: Arc<Steps>,
    part: usize,
    /// Who takes what was not taken at once; it sleeps while enough is there.
    taker: Option<Thread>,
}

/// How much of each part is there ahead of what steps have reached.
#[derive(Clone, Copy)]
struct Ahead {
    always: usize,
    while_quiet: usize,
}

/// What the thread that takes pieces knows of steps. All of it relaxed: nothing is published by it, and a piece more or less makes no
/// difference.
#[derive(Default)]
struct Steps {
    is_over: AtomicBool,
    begun: AtomicU64,
    ended: AtomicU64,
    /// How much of each part steps have reached.
    reached: AtomicUsize,
}

/// A step that runs, until it is dropped.
pub struct ArenaStep(Arc<Steps>);

impl Drop for ArenaStep {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl Arena {
    /// `bytes` in so many parts, of which `threads` take the first megabytes now.
    pub fn new(bytes: usize, parts: usize, threads: usize) -> Self {
        let is_small = bytes <= SMALL;
        let at_once = if is_small { bytes.next_multiple_of(PIECE * parts.max(1)) } else { AT_ONCE };
        Self::taken(bytes, parts, threads, at_once, WHILE_QUIET)
    }

    fn taken(bytes: usize, parts: usize, threads: usize, at_once: usize, while_quiet: usize) -> Self {
        let mut memory = Buffer::zeroed(bytes);
        memory.spread(&nodes());
        let pieces = pieces(bytes, parts);
        let parts = parts.max(1);
        let always = (at_once / parts / PIECE).max(1) * PIECE;
        let now = (always / PIECE * parts).min(pieces.len());
        let is_taken = in_shares(&pieces[..now], threads, |&(start, len)| memory.take_soon(start, len));
        if !is_taken {
            write(memory.as_mut_slice(), &pieces[..now], threads);
        }
        let part = bytes.div_ceil(parts).max(1);
        let mut arena = Self { memory: Arc::new(memory), steps: Arc::default(), part, taker: None };
        if is_taken && now < pieces.len() {
            let ahead = Ahead { always, while_quiet: while_quiet / parts };
            arena.taker = arena.take_later(pieces[now..].to_vec(), ahead);
        }
        arena
    }

    /// As far ahead of what steps have reached of the parts. If no thread can be had, pages are taken as they are met.
    fn take_later(&self, pieces: Vec<(usize, usize)>, ahead: Ahead) -> Option<Thread> {
        let (memory, steps, part) = (Arc::clone(&self.memory), Arc::clone(&self.steps), self.part);
        let work = move || {
            only_when_idle();
            let mut lull = Lull::begins(&steps);
            // Memory that cannot be had is asked for no more: whoever meets its absence tells.
            pieces.iter().all(|&(start, len)| lull.wait(start % part, ahead) && memory.take(start, len));
        };
        let taker = thread::Builder::new().name("pelton-arena".to_owned()).spawn(work);
        taker.ok().map(|taker| taker.thread().clone())
    }

    /// A step begins, which touches nothing behind the first `reached` of so many equal pieces of each part.
    pub fn step(&self, reached: usize, pieces: usize) -> ArenaStep {
        let bytes = (self.part as u128 * reached as u128 / pieces.max(1) as u128) as usize;
        self.steps.begun.fetch_add(1, Ordering::Relaxed); // before it is woken: it must see that a step runs
        if self.steps.reached.fetch_max(bytes, Ordering::Relaxed) < bytes {
            self.wake_taker();
        }
        ArenaStep(Arc::clone(&self.steps))
    }

    fn wake_taker(&self) {
        if let Some(taker) = &self.taker {
            taker.unpark();
        }
    }

    /// Where it lies, and how long it is. Kernels write there through addresses of their own.
    pub fn span(&self) -> (usize, usize) {
        (self.memory.as_slice::<u8>().as_ptr() as usize, self.memory.len())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.steps.is_over.store(true, Ordering::Relaxed);
        self.wake_taker();
    }
}

/// The time since the last step.
struct Lull<'a> {
    steps: &'a Steps,
    begun: u64,
    since: Instant,
}

impl<'a> Lull<'a> {
    fn begins(steps: &'a Steps) -> Self {
        Self { steps, begun: 0, since: Instant::now() }
    }

    /// Returns once what lies at this place of a part is wanted. False: nothing is any more. Nothing is beside the first step: a
    /// start tries the model in it, which maps memory, and would wait for each piece.
    fn wait(&mut self, within: usize, ahead: Ahead) -> bool {
        while !self.steps.is_over.load(Ordering::Relaxed) {
            let reached = self.steps.reached.load(Ordering::Relaxed);
            let is_near = within < reached + ahead.always && self.steps.ended.load(Ordering::Relaxed) > 0;
            if within >= reached + ahead.while_quiet.max(ahead.always) {
                thread::park(); // until steps reach further
            } else if is_near || self.is_long() {
                return true;
            } else {
                thread::sleep(LOOK);
            }
        }
        false
    }

    fn is_long(&mut self) -> bool {
        let ended = self.steps.ended.load(Ordering::Relaxed);
        let begun = self.steps.begun.load(Ordering::Relaxed);
        if begun != self.begun || begun != ended {
            (self.begun, self.since) = (begun, Instant::now());
        }
        self.since.elapsed() >= QUIET
    }
}

/// Start and length of pieces: the first of each part, the second of each part, and so on.
fn pieces(bytes: usize, parts: usize) -> Vec<(usize, usize)> {
    let part = bytes.div_ceil(parts.max(1)).max(1);
    let mut pieces = Vec::new();
    for within in (0..part).step_by(PIECE) {
        let starts = (0..bytes).step_by(part).map(|start| (start + within, (start + part).min(bytes)));
        pieces.extend(starts.filter(|(start, end)| start < end).map(|(start, end)| (start, PIECE.min(end - start))));
    }
    pieces
}

/// Takes pieces of zeros as a kernel does that gives memory only as it is written (Linux before 5.14).
fn write(mut memory: &mut [u8], pieces: &[(usize, usize)], threads: usize) {
    let mut pieces = pieces.to_vec();
    pieces.sort_unstable();
    let mut end = 0;
    let mut parts: Vec<&mut [u8]> = Vec::with_capacity(pieces.len());
    for (start, len) in pieces {
        let (part, rest) = std::mem::take(&mut memory)[start - end..].split_at_mut(len);
        parts.push(part);
        (memory, end) = (rest, start + len);
    }
    let share = parts.len().div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        for share in parts.chunks_mut(share) {
            scope.spawn(|| share.iter_mut().for_each(|part| part.fill(0)));
        }
    });
}

/// Whether `job` went well with all of them.
fn in_shares<T: Sync>(all: &[T], threads: usize, job: impl Fn(&T) -> bool + Sync) -> bool {
    let share = all.len().div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        let running: Vec<_> = all.chunks(share).map(|share| scope.spawn(|| share.iter().all(&job))).collect();
        running.into_iter().all(|share| share.join().expect("taking memory does not panic"))
    })
}

/// Of this thread: it runs where nobody else wants to. A low priority alone is not enough: the system would take its processor for a busy one, and
/// put both threads of a step on the other.
fn only_when_idle() {
    #[cfg(target_os = "linux")]
    {
        const SCHED_IDLE: i32 = 5;
        const THIS_THREAD: i32 = 0;
        // SAFETY: the parameter, a priority that has to be 0 here, is read during the call alone.
        // A refusal costs speed for some seconds.
        _ = unsafe { sched_setscheduler(THIS_THREAD, SCHED_IDLE, &0) };
    }
}

#[cfg(target_os = "linux")]
unsafe extern "C" {
    /// `parameter`: a `struct sched_param`, which is one `int`.
    fn sched_setscheduler(thread: i32, policy: i32, parameter: &i32) -> i32;
}

#[cfg(test)]
mod tests {
    use super::{Arena, PIECE, pieces};

    #[test]
    fn pieces_cover_all_once_and_begin_with_the_first_of_each_part() {
        for (bytes, parts) in [(0, 1), (1, 3), (PIECE, 1), (10 * PIECE + 5, 3), (7 * PIECE, 56), (5, 0)] {
            let mut all = pieces(bytes, parts);
            let part = bytes.div_ceil(parts.max(1));
            assert!(all.iter().take(parts).all(|(start, _)| start % part == 0), "{bytes} {parts}: {all:?}");
            all.sort_unstable();
            let end = all.iter().fold(0, |end, (start, len)| {
                assert_eq!(*start, end, "{bytes} {parts}");
                start + len
            });
            assert_eq!(end, bytes, "{parts}");
        }
    }

    #[test]
    fn what_is_written_while_the_rest_is_taken_stays() {
        for round in 0..20 {
            let arena = Arena::taken(24 * PIECE, 6, 2, 2 * PIECE, 24 * PIECE);
            let (start, len) = arena.span();
            // SAFETY: the arena's own memory, which lives beyond the loop; nobody else has its address, and taking pages writes nothing.
            let memory = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) };
            for place in (0..len).step_by(4096) {
                assert_eq!(memory[place], 0, "{round}");
                memory[place] = 7;
            }
            assert!((0..len).step_by(4096).all(|place| memory[place] == 7), "{round}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_taken_meanwhile_is_taken_by_a_thread_that_runs_when_nobody_else_does() {
        // Word by word as in proc_pid_stat(5), behind the name: the policy is the 41st of all.
        let policy = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(38).unwrap().to_owned()
        };
        let idle = std::thread::spawn(move || {
            super::only_when_idle();
            policy()
        });
        assert_eq!(idle.join().unwrap(), "5");
        assert_ne!(policy(), "5", "no other thread");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_old_kernel_gives_the_first_of_each_part_and_no_more() {
        let mut memory = crate::Buffer::zeroed(16 * PIECE);
        super::write(memory.as_mut_slice(), &pieces(16 * PIECE, 4)[..4], 3);
        let start = memory.as_slice::<u8>().as_ptr() as usize;
        for part in 0..4 {
            assert_eq!(pages_in(start + part * 4 * PIECE, PIECE), PIECE / PAGE);
            assert_eq!(pages_in(start + (part * 4 + 1) * PIECE, 3 * PIECE), 0);
        }
    }

    /// How many of its pages are there.
    #[cfg(target_os = "linux")]
    fn pages(arena: &Arena) -> usize {
        let (start, len) = arena.span();
        pages_in(start, len)
    }

    #[cfg(target_os = "linux")]
    fn pages_in(start: usize, len: usize) -> usize {
        let mut present = vec![0_u8; len / PAGE];
        // SAFETY: the range is a mapping that lives beyond the call, and `present` has a byte for each of its pages.
        let said = unsafe { mincore(start as *mut _, len, present.as_mut_ptr()) };
        assert_eq!(said, 0);
        present.iter().filter(|&page| page & 1 == 1).count()
    }

    #[cfg(target_os = "linux")]
    fn wait_for_pages(arena: &Arena, count: usize) {
        let began = std::time::Instant::now();
        while pages(arena) < count {
            assert!(began.elapsed().as_secs() < 120, "they are taken within two minutes");
            std::thread::yield_now();
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn while_nothing_runs_as_much_as_is_wanted_ahead_is_taken_and_no_more() {
        // Four parts of four pieces.
        let arena = Arena::taken(16 * PIECE, 4, 2, PIECE, 8 * PIECE);
        for (reached, pieces) in [(0, 8), (1, 12), (1, 12), (4, 16)] {
            drop(arena.step(reached, 4));
            wait_for_pages(&arena, pieces * PIECE / PAGE);
            std::thread::sleep(3 * super::QUIET);
            assert_eq!(pages(&arena), pieces * PIECE / PAGE, "{reached}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_small_is_taken_whole_before_anything_runs() {
        let arena = Arena::new(7 * PIECE + PAGE, 3, 2);
        assert_eq!(pages(&arena), 7 * PIECE / PAGE + 1);
        assert!(arena.taker.is_none(), "nothing is left to take");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn who_takes_memory_ends_with_it_while_enough_is_there() {
        let arena = Arena::taken(16 * PIECE, 4, 2, PIECE, 8 * PIECE);
        wait_for_pages(&arena, 8 * PIECE / PAGE);
        let steps = std::sync::Arc::downgrade(&arena.steps);
        drop(arena);
        let began = std::time::Instant::now();
        while steps.strong_count() > 0 {
            assert!(began.elapsed().as_secs() < 120, "its thread ends");
            std::thread::yield_now();
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn while_a_step_runs_only_what_steps_come_near_is_taken() {
        // Two parts of eight pieces, and one piece of each ahead. Pieces are huge pages.
        let arena = Arena::taken(16 * PIECE, 2, 2, 2 * PIECE, 16 * PIECE);
        let first = arena.step(1, 8);
        std::thread::sleep(3 * super::QUIET);
        assert_eq!(pages(&arena), 2 * PIECE / PAGE, "the first step runs");
        let step = arena.step(1, 8);
        drop(first);
        wait_for_pages(&arena, 4 * PIECE / PAGE);
        std::thread::sleep(3 * super::QUIET);
        assert_eq!(pages(&arena), 4 * PIECE / PAGE, "a step runs, and needs no more");
        let further = arena.step(3, 8);
        wait_for_pages(&arena, 8 * PIECE / PAGE);
        std::thread::sleep(3 * super::QUIET);
        assert_eq!(pages(&arena), 8 * PIECE / PAGE, "four pieces of each part");
        drop((step, further));
        wait_for_pages(&arena, 16 * PIECE / PAGE);
    }

    #[cfg(target_os = "linux")]
    const PAGE: usize = 4096;

    #[cfg(target_os = "linux")]
    unsafe extern "C" {
        fn mincore(start: *mut std::ffi::c_void, len: usize, present: *mut u8) -> i32;
    }
}

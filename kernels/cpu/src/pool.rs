//! The threads that share an op. They last as long as the pool; between ops they spin for at most 20 µs and then sleep.
//!
//! The life of a job: (1) the caller puts a pointer to it into each worker's mailbox and wakes those that sleep; (2) it does
//! part 0 itself; (3) each worker does its part, empties its mailbox, then counts itself off; (4) the caller, having seen the
//! count reach zero, returns. The job lies on the caller's stack, so (4) must never be left out, not even by a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{JoinHandle, Thread, park};
use std::time::{Duration, Instant};

use crate::apart::{self, ThreadId};
use crate::nodes::{Home, Node, Stay, nodes};

/// Longer than the gap between two ops of a step, far shorter than the gap between two steps. On a machine with as many
/// workers as cores, a thread that spins longer takes a core from the one that has work.
const SPIN: Duration = Duration::from_micros(20);

/// A fixed number of threads, the caller's being the first.
pub struct Pool {
    workers: Vec<Worker>,
    /// Whether there were two processors when it was made.
    are_two: bool,
    /// Where the caller stays while it does its part; none: anywhere.
    home: Option<Home>,
}

struct Worker {
    mailbox: Arc<Mailbox>,
    handle: Option<JoinHandle<()>>,
}

/// One worker's own cache lines (two, since processors fetch them in pairs), so that spinning disturbs no other worker.
#[repr(align(128))]
struct Mailbox {
    job: AtomicPtr<Job<'static>>,
    closed: AtomicBool,
    /// Known once the worker runs.
    thread: OnceLock<ThreadId>,
    /// A hint: it may wake meanwhile, or be about to sleep.
    sleeps: AtomicBool,
}

struct Job<'a> {
    work: &'a (dyn Fn(usize) + Sync),
    unfinished: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
}

impl Pool {
    /// # Panics
    /// When `threads` is 0, or the system refuses a thread.
    pub fn new(threads: usize) -> Self {
        Self::on(&nodes(), threads)
    }

    /// Of a machine with these nodes.
    fn on(nodes: &[Node], threads: usize) -> Self {
        assert!(threads > 0, "a pool has at least the caller's thread");
        let home = |thread| Home::of(thread, threads, nodes);
        let workers = (1..threads).map(|thread| Worker::start(thread, home(thread))).collect();
        Self { workers, are_two: apart::are_two(), home: home(0) }
    }

    /// Whether each thread stays in a memory node of several.
    pub(crate) fn has_homes(&self) -> bool {
        self.home.is_some()
    }

    /// The calling thread stays where its parts are until the result goes, where there are several nodes: it need not come for each job.
    pub fn stay(&self) -> Option<Stay> {
        self.home.as_ref().and_then(Home::stay)
    }

    /// How many threads, the caller's among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(part)` for each part in `0..parts`, each on a thread of its own; returns when all are done.
    ///
    /// # Panics
    /// When there are more parts than threads, or a part panicked (after all others are done).
    pub(crate) fn run(&mut self, parts: usize, work: impl Fn(usize) + Sync) {
        assert!(parts <= self.threads(), "{parts} parts on {} threads", self.threads());
        if parts <= 1 {
            return (0..parts).for_each(work);
        }
        let _stay = self.stay();
        let job = Job {
            work: &work,
            unfinished: AtomicUsize::new(parts - 1),
            panic: Mutex::new(None),
            caller: std::thread::current(),
        };
        for worker in &self.workers[..parts - 1] {
            worker.post(&job, self.are_two);
        }
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        job.wait();
        let theirs = job.panic.into_inner().expect("held only to store a value");
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.mailbox.closed.store(true, Ordering::Release); // pairs with Mailbox::next
            worker.thread().unpark();
        }
        for worker in &mut self.workers {
            let handle = worker.handle.take().expect("taken only here");
            handle.join().expect("a worker catches the panics of its parts");
        }
    }
}

impl Worker {
    fn start(part: usize, home: Option<Home>) -> Self {
        let job = AtomicPtr::new(null_mut());
        let mailbox = Arc::new(Mailbox {
            job,
            closed: AtomicBool::new(false),
            thread: OnceLock::new(),
            sleeps: AtomicBool::new(false),
        });
        let own = mailbox.clone();
        let thread = std::thread::Builder::new().name(format!("pelton-cpu-{part}"));
        let handle = thread.spawn(move || own.serve(part, home)).expect("the system has room for one more thread");
        Self { mailbox, handle: Some(handle) }
    }

    fn thread(&self) -> &Thread {
        self.handle.as_ref().expect("there until the pool is dropped").thread()
    }

    fn post(&self, job: &Job<'_>, are_two: bool) {
        let Self { mailbox, .. } = self;
        let address: *const Job<'_> = job;
        mailbox.job.store(address.cast_mut().cast(), Ordering::Release); // pairs with Mailbox::next
        let wake = || self.thread().unpark(); // a system call only if it sleeps
        match mailbox.thread.get() {
            Some(&thread) if are_two && mailbox.sleeps.load(Ordering::Relaxed) => {
                apart::wake_elsewhere(thread, apart::processor(), wake);
            }
            _ => wake(),
        }
    }
}

impl Mailbox {
    fn serve(&self, part: usize, home: Option<Home>) {
        let _stay = home.as_ref().map(Home::stay);
        self.thread.get_or_init(apart::this_thread);
        while let Some(job) = self.next() {
            // SAFETY: the caller of `Pool::run` does not return before `unfinished` is zero, and this worker counts itself
            // off below, as the last thing it does with the job.
            let job = unsafe { &*job };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (job.work)(part))) {
                *job.panic.lock().expect("held only to store a value") = Some(panic);
            }
            let caller = job.caller.clone();
            self.job.store(null_mut(), Ordering::Relaxed); // before the count: the caller posts again only after it
            if job.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
                caller.unpark(); // pairs, like the count, with Job::wait
            }
        }
    }

    /// The next job, or `None` once the pool is dropped. Spins first, then sleeps.
    fn next(&self) -> Option<*const Job<'static>> {
        let sleep = || {
            self.sleeps.store(true, Ordering::Relaxed);
            park();
            self.sleeps.store(false, Ordering::Relaxed);
        };
        let ready = || {
            let job = self.job.load(Ordering::Acquire); // pairs with Worker::post
            if !job.is_null() {
                return Some(Some(job.cast_const()));
            }
            self.closed.load(Ordering::Acquire).then_some(None) // pairs with Pool::drop
        };
        wait_until(ready, sleep)
    }
}

impl Job<'_> {
    fn wait(&self) {
        wait_until(|| (self.unfinished.load(Ordering::Acquire) == 0).then_some(()), park); // pairs with Mailbox::serve
    }
}

/// What `ready` gives at last. Each `unpark` that follows a change makes `park` return at least once, so none is missed.
fn wait_until<T>(ready: impl Fn() -> Option<T>, sleep: impl Fn()) -> T {
    let mut spinning_since = None;
    loop {
        for _ in 0..64 {
            if let Some(value) = ready() {
                return value;
            }
            std::hint::spin_loop();
        }
        if spinning_since.get_or_insert_with(Instant::now).elapsed() > SPIN {
            sleep();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::Pool;
    use crate::nodes::{Node, nodes};

    #[test]
    fn every_part_is_done_once_before_run_returns() {
        for threads in 1..5 {
            let mut pool = Pool::new(threads);
            let counts: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for round in 0..2_000 {
                let parts = round % (threads + 1);
                pool.run(parts, |part| {
                    counts[part].fetch_add(1, Ordering::Relaxed);
                });
                let expected = (0..=round).filter(|earlier| earlier % (threads + 1) > 0).count();
                assert_eq!(counts[0].load(Ordering::Relaxed), expected);
            }
            // Part p runs in each round of more than p parts.
            for (part, count) in counts.iter().enumerate() {
                let expected = (0..2_000).filter(|round| round % (threads + 1) > part).count();
                assert_eq!(count.load(Ordering::Relaxed), expected);
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn each_part_runs_in_its_node_and_the_caller_goes_back() {
        use rustix::thread::sched_getaffinity;

        let machine = sched_getaffinity(None).expect("said to everybody");
        let all: Vec<_> = nodes().into_iter().flat_map(|node| node.processors).collect();
        let (Some(&first), Some(&last)) = (all.first(), all.last()) else { return }; // a system without nodes
        let two = [first, last].map(|processor| Node { number: processor, processors: vec![processor] });
        let mut pool = Pool::on(&two, 4);
        for round in 0..50 {
            let stay = (round % 2 == 0).then(|| pool.stay());
            pool.run(4, |part| {
                let allowed = sched_getaffinity(None).expect("said to everybody");
                assert!(allowed.count() == 1 && allowed.is_set([first, last][part / 2]), "part {part}");
            });
            drop(stay);
            assert_eq!(sched_getaffinity(None).expect("said to everybody"), machine);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn no_thread_stays_bound_to_where_it_was_woken() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

        let machine = sched_getaffinity(None).expect("said to everybody");
        let mut pair = CpuSet::new();
        (0..CpuSet::MAX_CPU).filter(|&at| machine.is_set(at)).take(2).for_each(|at| pair.set(at));
        let mut pool = Pool::new(3);
        pool.are_two = true;
        pool.run(3, |part| {
            if part > 0 {
                sched_setaffinity(None, &pair).expect("a part of what is allowed");
            }
        });
        for round in 0..100 {
            let job = || {
                pool.run(3, |part| {
                    std::thread::sleep(std::time::Duration::from_micros(50)); // longer than workers spin
                    assert!(part < 2 || round % 10 > 0, "on purpose");
                });
            };
            assert_eq!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err(), round % 10 == 0);
        }
        for worker in &pool.workers {
            let id = worker.mailbox.thread.get().expect("it runs");
            let allowed = sched_getaffinity(Some(*id)).expect("it runs");
            assert!(allowed == pair || allowed == machine);
        }
    }

    #[test]
    fn a_part_that_panics_panics_the_caller_and_leaves_the_pool_usable() {
        let mut pool = Pool::new(3);
        for culprit in 0..3 {
            let finished = AtomicUsize::new(0);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.run(3, |part| {
                    assert_ne!(part, culprit, "on purpose");
                    finished.fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert!(outcome.is_err());
            assert_eq!(finished.load(Ordering::Relaxed), 2);
        }
    }
}

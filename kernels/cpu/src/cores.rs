//! Where threads that share an op may run: each on processors of its own, so that the system never puts two of them on one
//! while another rests. Woken side by side, on two cores they met on one for whole steps, which then took twice as long.
//!
//! A thread may move among its processors, and other programs may use them too: nothing is reserved.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::split::part;

/// Processors that each thread of a pool keeps to.
pub(crate) struct Shares {
    /// Those of the process, neighbours on one core beside each other; none: every thread goes where it likes.
    processors: Vec<usize>,
    threads: usize,
}

impl Shares {
    /// Of `threads` threads, of what the calling one may use. Where there are more threads than processors, or only one, nobody is kept.
    pub(crate) fn of(threads: usize) -> Self {
        let mut processors = if threads > 1 { system::allowed() } else { Vec::new() };
        if processors.len() < threads {
            processors.clear();
        }
        processors.sort_by_cached_key(|&processor| (system::core(processor), processor));
        Self { processors, threads }
    }

    fn share(&self, thread: usize) -> &[usize] {
        &self.processors[part(self.processors.len(), self.threads, thread)]
    }

    /// Keeps the calling thread to the processors of `thread`. A refusal costs speed alone.
    pub(crate) fn keep(&self, thread: usize) {
        if !self.processors.is_empty() {
            system::keep_to(self.share(thread));
        }
    }

    /// The same until the guard is dropped; then the thread may use all processors again. Nothing, if it is kept already.
    pub(crate) fn keep_for_now(self: &Arc<Self>, thread: usize) -> Kept {
        if self.processors.is_empty() || IS_KEPT.replace(true) {
            return Kept { shares: None, here: PhantomData };
        }
        self.keep(thread);
        Kept { shares: Some(Arc::clone(self)), here: PhantomData }
    }
}

thread_local! {
    static IS_KEPT: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, the thread that asked for it is kept to its processors.
pub struct Kept {
    shares: Option<Arc<Shares>>,
    here: PhantomData<*const ()>, // it is this thread that is let go
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(shares) = &self.shares {
            system::keep_to(&shares.processors);
            IS_KEPT.set(false);
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// Processors that the calling thread may use; none if that cannot be told.
    pub(super) fn allowed() -> Vec<usize> {
        let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
        (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
    }

    /// Package and core of a processor, where the system tells.
    pub(super) fn core(processor: usize) -> [usize; 2] {
        ["physical_package_id", "core_id"].map(|name| {
            let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/{name}");
            std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        })
    }

    pub(super) fn keep_to(processors: &[usize]) {
        let mut set = CpuSet::new();
        processors.iter().for_each(|&processor| set.set(processor));
        _ = sched_setaffinity(None, &set);
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn allowed() -> Vec<usize> {
        Vec::new()
    }

    pub(super) fn core(_: usize) -> [usize; 2] {
        [0, 0]
    }

    pub(super) fn keep_to(_: &[usize]) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::{Shares, system};

    fn sorted(mut processors: Vec<usize>) -> Vec<usize> {
        processors.sort_unstable();
        processors
    }

    #[test]
    fn shares_are_apart_and_all_are_given_out() {
        for (processors, threads) in [(2, 2), (7, 3), (64, 64), (64, 5)] {
            let shares = Shares { processors: (0..processors).collect(), threads };
            let all: Vec<_> = (0..threads).flat_map(|thread| shares.share(thread).to_vec()).collect();
            assert_eq!(all, (0..processors).collect::<Vec<_>>());
            assert!((0..threads).all(|thread| !shares.share(thread).is_empty()));
        }
    }

    #[test]
    fn a_thread_is_kept_and_let_go_again() {
        std::thread::spawn(|| {
            let before = system::allowed();
            let shares = Arc::new(Shares::of(before.len()));
            if before.len() > 1 {
                let kept = shares.keep_for_now(1);
                assert_eq!(system::allowed(), shares.share(1));
                drop(shares.keep_for_now(0));
                assert_eq!(system::allowed(), shares.share(1), "the first guard holds");
                drop(kept);
            }
            assert_eq!(system::allowed(), before);
        })
        .join()
        .expect("it does not panic");
    }

    #[test]
    fn workers_of_a_pool_keep_to_processors_that_no_other_has() {
        let allowed = system::allowed();
        let threads = allowed.len();
        let mut pool = crate::Pool::new(threads);
        let places: Vec<_> = (0..threads).map(|_| std::sync::Mutex::new(Vec::new())).collect();
        pool.run(threads, |part| *places[part].lock().unwrap() = system::allowed());
        assert_eq!(system::allowed(), allowed, "the caller is let go");
        let places: Vec<_> = places.into_iter().map(|place| place.into_inner().unwrap()).collect();
        let apart: BTreeSet<_> = places.iter().flatten().copied().collect();
        assert_eq!(apart.len(), places.iter().map(Vec::len).sum::<usize>(), "{places:?}");
        assert_eq!(sorted(places.concat()), allowed);
    }

    #[test]
    fn more_threads_than_processors_go_where_they_like() {
        let allowed = system::allowed();
        let shares = Arc::new(Shares::of(allowed.len() + 1));
        let kept = shares.keep_for_now(0);
        assert_eq!(system::allowed(), allowed);
        drop(kept);
    }
}

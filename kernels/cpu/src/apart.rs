//! A thread that was woken on its waker's processor moves to another.
//!
//! The system may take all other processors for busy when a job is posted, and put the worker on the caller's: then the two take turns, for
//! milliseconds, while the others idle again. Threads are not kept to processors of their own for that (`docs/decisions/processors.md`): the
//! worker forbids itself the caller's processor and allows it again at once, and the system is as free as before. For long jobs it is woken elsewhere.
//!
//! Only where there is one other processor: among several the system would choose without a look at who runs there, and on which node.

use std::time::{Duration, Instant};

/// How long both are together before it counts: others may want the other processors for less.
const PATIENCE: Duration = Duration::from_micros(100);

/// What was seen longer ago than this is forgotten: steps come faster, and so do the longest jobs.
const STALE: Duration = Duration::from_millis(100);

/// The rest behind a move, and the longest one, where moves do not help since others want the processors: each that is needed again soon
/// doubles it.
const RESTS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// A worker's moves.
#[derive(Default)]
pub(crate) struct Apart {
    /// Since when, and when it was seen last.
    together: Option<(Instant, Instant)>,
    /// The last one, and the rest behind it.
    moved: Option<(Instant, Duration)>,
}

impl Apart {
    /// Leaves `processor`, where the caller of this worker's job runs, if this thread has been put there too.
    pub(crate) fn leave(&mut self, processor: usize) {
        if system::processor() != processor {
            self.together = None;
        } else if self.is_time(Instant::now())
            && let Some(allowed) = system::forbid(None, processor)
        {
            system::allow(None, allowed);
        }
    }

    /// Both are together `now`: whether this thread moves.
    fn is_time(&mut self, now: Instant) -> bool {
        let since = self.together.filter(|&(_, seen)| now - seen < STALE).map_or(now, |(since, _)| since);
        self.together = Some((since, now));
        if now - since < PATIENCE {
            return false;
        }
        let mut rest = RESTS.0;
        if let Some((moved, before)) = self.moved {
            let since = now - moved;
            if since < before {
                return false;
            }
            if since < 4 * before {
                rest = (2 * before).min(RESTS.1);
            }
        }
        (self.moved, self.together) = (Some((now, rest)), None);
        true
    }
}

/// Wakes a thread that sleeps, on another processor than that one, where it would get its turn when whoever runs there rests. As soon as it is
/// awake it is as free as before.
pub(crate) fn wake_elsewhere(thread: ThreadId, processor: usize, wake: impl FnOnce()) {
    let allowed = system::forbid(Some(thread), processor);
    wake();
    if let Some(allowed) = allowed {
        system::allow(Some(thread), allowed);
    }
}

pub(crate) use system::{ThreadId, this_thread};

/// The number of the processor on which this runs.
pub(crate) fn processor() -> usize {
    system::processor()
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

    pub(crate) type ThreadId = rustix::thread::Pid;

    pub(crate) fn this_thread() -> ThreadId {
        gettid()
    }

    pub(super) fn processor() -> usize {
        sched_getcpu()
    }

    /// Leaves a thread (None: this one) the other of two processors, and says which it had; None, with nothing done, where there are more or fewer.
    pub(super) fn forbid(thread: Option<ThreadId>, processor: usize) -> Option<CpuSet> {
        let allowed = sched_getaffinity(thread).ok()?;
        let mut others = allowed;
        others.unset(processor);
        (others.count() == 1 && sched_setaffinity(thread, &others).is_ok()).then_some(allowed)
    }

    /// Takes that back. The system keeps what a thread asked for, and would hold it to two processors when its container gets more: so all
    /// are asked for, unless that is more than it had.
    pub(super) fn allow(thread: Option<ThreadId>, allowed: CpuSet) {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
        if sched_setaffinity(thread, &all).is_err() || sched_getaffinity(thread).ok() != Some(allowed) {
            _ = sched_setaffinity(thread, &allowed);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    #[derive(Clone, Copy)]
    pub(crate) struct ThreadId;

    pub(crate) fn this_thread() -> ThreadId {
        ThreadId
    }

    /// Unknown, and no matter: nothing is left here.
    pub(super) fn processor() -> usize {
        0
    }

    pub(super) fn forbid(_: Option<ThreadId>, _: usize) -> Option<()> {
        None
    }

    pub(super) fn allow(_: Option<ThreadId>, (): ()) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// When it moves within a second of being put back at once, in milliseconds, looked at ten times in each.
    fn moves() -> Vec<u128> {
        let (mut apart, began) = (Apart::default(), Instant::now());
        let times = (0..10_000).map(|at| began + at * (MS / 10));
        times.filter(|&now| apart.is_time(now)).map(|now| (now - began).as_millis()).collect()
    }

    #[test]
    fn a_thread_that_is_put_back_at_once_rests_longer_and_longer() {
        let moves = moves();
        assert!(moves.len() >= 8, "{moves:?}");
        let rests: Vec<_> = moves.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(rests.windows(2).all(|pair| pair[1] + 1 >= 2 * pair[0] || pair[1] >= 999), "{rests:?}");
    }

    #[test]
    fn one_that_was_left_alone_for_long_moves_as_at_first() {
        let (mut apart, began) = (Apart::default(), Instant::now());
        let mut is_time = |at: Duration| apart.is_time(began + at);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|at| is_time(at * MS)), [false, true, false, true, false, true]);
        assert_eq!([500, 501, 502, 503].map(|at| is_time(at * MS)), [false, true, false, true]);
    }

    #[test]
    fn what_was_seen_long_ago_is_forgotten() {
        let (mut apart, began) = (Apart::default(), Instant::now());
        let mut is_time = |at: u32| apart.is_time(began + at * MS);
        assert_eq!([0, 500, 560].map(&mut is_time), [false, false, true]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_is_kept_off_a_processor_while_it_is_woken() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

        let machine = sched_getaffinity(None).expect("said to everybody");
        let mut pair = CpuSet::new();
        let processors: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&at| machine.is_set(at)).take(2).collect();
        processors.iter().for_each(|&at| pair.set(at));
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(this_thread()).expect("awaited");
            _ = ended.recv();
        });
        let id = told.recv().expect("sent at once");
        let allowed = || sched_getaffinity(Some(id)).expect("it runs");
        sched_setaffinity(Some(id), &pair).expect("a part of what is allowed");
        for &here in &processors {
            let mut seen = None;
            wake_elsewhere(id, here, || seen = Some(allowed().is_set(here)));
            assert_eq!(seen, Some(processors.len() < 2));
            assert_eq!(allowed(), pair);
        }
        drop(end);
        thread.join().expect("it only waits");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_leaves_the_one_of_two_processors_and_may_come_back() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

        let allowed = || sched_getaffinity(None).expect("said to everybody");
        let machine = allowed();
        let mut pair = CpuSet::new();
        for processor in (0..CpuSet::MAX_CPU).filter(|&processor| machine.is_set(processor)).take(2) {
            pair.set(processor);
        }
        sched_setaffinity(None, &pair).expect("a part of what is allowed");
        for _ in 0..100 {
            let here = processor();
            let Some(before) = system::forbid(None, here) else {
                assert_eq!(pair.count(), 1, "there is no other");
                break;
            };
            assert_ne!(processor(), here);
            assert_eq!(allowed().count(), 1);
            system::allow(None, before);
            assert_eq!(allowed(), pair);
        }
        if machine.count() > 2 {
            sched_setaffinity(None, &machine).expect("allowed");
            assert!(system::forbid(None, processor()).is_none(), "the system would choose among several");
            assert_eq!(allowed(), machine);
        }
    }
}

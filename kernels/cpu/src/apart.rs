//! A thread that was woken on its waker's processor moves to another.
//!
//! The system may take all other processors for busy when a job is posted, and put the worker on the caller's: then the two take turns, for
//! milliseconds, while the others idle again. Threads are not kept to processors of their own for that (`docs/decisions/processors.md`): the
//! worker forbids itself the caller's processor and allows it again at once, and the system is as free as before.

use std::time::{Duration, Instant};

/// How long both are together before it counts: others may want the other processors for less.
const PATIENCE: Duration = Duration::from_micros(100);

/// The rest behind a move, and the longest one, where moves do not help since others want the processors: each that is needed again soon
/// doubles it.
const RESTS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// A worker's moves.
#[derive(Default)]
pub(crate) struct Apart {
    together_since: Option<Instant>,
    /// The last one, and the rest behind it.
    moved: Option<(Instant, Duration)>,
}

impl Apart {
    /// Leaves `processor`, where the caller of this worker's job runs, if this thread has been put there too.
    pub(crate) fn leave(&mut self, processor: usize) {
        if system::processor() != processor {
            self.together_since = None;
        } else if self.is_time(Instant::now()) {
            system::leave(processor);
        }
    }

    /// Both are together `now`: whether this thread moves.
    fn is_time(&mut self, now: Instant) -> bool {
        if now - *self.together_since.get_or_insert(now) < PATIENCE {
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
        (self.moved, self.together_since) = (Some((now, rest)), None);
        true
    }
}

/// The number of the processor on which this runs.
pub(crate) fn processor() -> usize {
    system::processor()
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};

    pub(super) fn processor() -> usize {
        sched_getcpu()
    }

    /// Whatever is refused leaves this thread where it is.
    pub(super) fn leave(processor: usize) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut others = allowed;
        others.unset(processor);
        if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
            _ = sched_setaffinity(None, &allowed);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Unknown, and no matter: nothing is left here.
    pub(super) fn processor() -> usize {
        0
    }

    pub(super) fn leave(_: usize) {}
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
    #[cfg(target_os = "linux")]
    fn a_thread_leaves_and_may_come_back() {
        use rustix::thread::{sched_getaffinity, sched_setaffinity};

        let allowed = sched_getaffinity(None).expect("said to everybody");
        for _ in 0..100 {
            let here = processor();
            system::leave(here);
            assert_eq!(sched_getaffinity(None).expect("said to everybody"), allowed);
            if allowed.count() == 1 {
                assert_eq!(processor(), here, "there is no other");
            }
        }
        let mut alone = allowed;
        alone.clear();
        alone.set(processor());
        sched_setaffinity(None, &alone).expect("allowed");
        let here = processor();
        system::leave(here);
        assert_eq!((processor(), sched_getaffinity(None).expect("said to everybody")), (here, alone));
    }
}

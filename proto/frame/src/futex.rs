//! Sleeping until a word changes, between processes: a short spin, then a plain shared futex.
//!
//! No wake-up is lost: the sleeper counts itself in `sleepers` before the kernel compares the word, the waker changes the
//! word before it reads `sleepers`, and both are sequentially consistent. So either the waker sees the sleeper and
//! wakes it, or the kernel sees the new word and does not put it to sleep. A waker with nobody asleep makes no system call.
//! A sleeper that is killed leaves its count behind, which costs its waker superfluous calls and nothing else.
//!
//! Nobody spins for a peer that was last seen on the own processor, as on a busy machine: it could not run meanwhile.

use std::{
    hint::spin_loop,
    sync::{
        OnceLock,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, SeqCst},
        },
    },
    thread::available_parallelism,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    thread::{
        futex::{self, Flags, Timespec},
        sched_getcpu,
    },
};

/// A hand-over between two running cores takes a few microseconds, a wake-up from the kernel about 50.
const SPIN: Duration = Duration::from_micros(20);

/// A word to sleep on.
#[derive(Clone, Copy)]
pub(crate) struct Signal<'a> {
    pub(crate) word: &'a AtomicU32,
    pub(crate) sleepers: &'a AtomicU32,
    /// One more than the number of the processor on which it was last raised; 0: it was not.
    pub(crate) raised_on: &'a AtomicU32,
}

impl Signal<'_> {
    /// Adds one to the word and wakes whoever sleeps on it. What was written before is visible to those that it wakes.
    pub(crate) fn raise(self) {
        let here = this_processor();
        if self.raised_on.load(Relaxed) != here {
            self.raised_on.store(here, Relaxed); // a hint; it seldom changes, and then its line stays shared
        }
        self.word.fetch_add(1, SeqCst); // pairs with the loads in `wait` and `Memory::submitted`
        if self.sleepers.load(SeqCst) != 0 {
            // pairs with the count in `sleep`
            wake(self.word);
        }
    }

    /// Waits until the word is not `seen`. False: `timeout` has passed, and it still is.
    pub(crate) fn wait(self, seen: u32, timeout: Duration) -> bool {
        if self.changed(seen) || self.spin(seen, timeout) {
            return true;
        }
        let begin = Instant::now();
        loop {
            let Some(left) = timeout.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else {
                return self.changed(seen);
            };
            self.sleep(seen, left);
            if self.changed(seen) {
                return true;
            }
        }
    }

    fn changed(self, seen: u32) -> bool {
        self.word.load(Acquire) != seen // pairs with `raise`
    }

    fn spin(self, seen: u32, timeout: Duration) -> bool {
        if !has_several_processors() || self.raised_on.load(Relaxed) == this_processor() {
            return false; // the peer cannot run while we spin
        }
        let begin = Instant::now();
        let most = SPIN.min(timeout);
        while begin.elapsed() < most {
            for _ in 0..16 {
                spin_loop();
            }
            if self.changed(seen) {
                return true;
            }
        }
        false
    }

    /// Returns when woken, when `timeout` has passed, when a signal came, or at once if the word is not `seen`.
    fn sleep(self, seen: u32, timeout: Duration) {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        self.sleepers.fetch_add(1, SeqCst); // pairs with the load in `raise`
        let woken = futex::wait(self.word, Flags::empty(), seen, Some(&timeout));
        self.sleepers.fetch_sub(1, SeqCst);
        match woken {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            Err(error) => panic!("futex wait on a mapped, aligned word cannot fail: {error}"),
        }
    }
}

/// One more than its number.
fn this_processor() -> u32 {
    u32::try_from(sched_getcpu()).map_or(0, |number| number.wrapping_add(1))
}

/// Asked once: the answer is read from the cgroup's files, which takes longer than a spin.
fn has_several_processors() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| available_parallelism().is_ok_and(|processors| processors.get() > 1))
}

fn wake(word: &AtomicU32) {
    let woken = futex::wake(word, Flags::empty(), i32::MAX as u32);
    assert!(woken.is_ok(), "futex wake on a mapped, aligned word cannot fail: {woken:?}");
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    fn signal([word, sleepers, raised_on]: &[AtomicU32; 3]) -> Signal<'_> {
        Signal { word, sleepers, raised_on }
    }

    #[test]
    fn a_word_that_has_changed_already_is_not_waited_for() {
        let words = [1, 0, 0].map(AtomicU32::new);
        assert!(signal(&words).wait(0, Duration::ZERO));
    }

    #[test]
    fn a_wait_that_nobody_ends_times_out_and_leaves_no_sleeper() {
        let words = [0, 0, 0].map(AtomicU32::new);
        assert!(!signal(&words).wait(0, Duration::from_millis(1)));
        assert_eq!(words[1].load(Relaxed), 0);
    }

    #[test]
    fn nobody_spins_for_a_peer_on_the_own_processor() {
        // In a thread of its own, which is bound to one processor and so the same one twice.
        let spins = || {
            let allowed = sched_getaffinity(None).expect("Linux tells");
            let first = (0..CpuSet::MAX_CPU).find(|&number| allowed.is_set(number)).expect("this one at least");
            let mut only = CpuSet::new();
            only.set(first);
            sched_setaffinity(None, &only).expect("it is allowed");
            let words = [0, 0, 0].map(AtomicU32::new);
            signal(&words).raise();
            assert_eq!(words[2].load(Relaxed), first as u32 + 1);
            // It would see the change if it looked.
            signal(&words).spin(0, Duration::from_secs(1))
        };
        assert!(!std::thread::spawn(spins).join().expect("no panic"));
    }

    #[test]
    fn two_threads_answer_each_other_without_a_lost_wake_up() {
        // Each round sleeps or spins by chance. A lost wake-up would show as a wait that ran into its minute.
        const ROUNDS: u32 = 100_000;
        let words: [[AtomicU32; 3]; 2] = Default::default();
        let [ping, pong] = words.each_ref().map(signal);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    assert!(ping.wait(round, Duration::from_secs(60)), "ping {round} was lost");
                    pong.raise();
                }
            });
            for round in 0..ROUNDS {
                ping.raise();
                assert!(pong.wait(round, Duration::from_secs(60)), "pong {round} was lost");
            }
        });
        assert_eq!(words[0][1].load(Relaxed) + words[1][1].load(Relaxed), 0);
    }
}

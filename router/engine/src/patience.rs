//! How long a step may take before its worker is lost: by what steps have taken.
//!
//! Pure: the time is an argument.

use std::time::{Duration, Instant};

use crate::Deadlines;

/// A step may take so many times what the slowest token of late has taken, and a first step what first steps took.
const FACTOR: u32 = 20;
/// A step of fewer tokens takes about as long: what it takes says that much less of each token.
const TOKENS_MIN: u32 = 64;
/// With each step the slowest token so far counts by one in so many less: one that was slow once is forgotten.
const FORGETS: u32 = 256;

/// See the top of the file.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// The longest time per token of late; 0: the worker has done no step.
    slowest_token: Duration,
    /// The longest first step of any worker so far.
    slowest_first: Option<Duration>,
    /// When the latest step was done: the one behind it has not been computed for longer.
    done_at: Option<Instant>,
}

/// When the oldest step in flight has to be done, and which bound says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    pub(crate) at: Instant,
    pub(crate) wait: &'static str,
    pub(crate) allowed: Duration,
}

impl Patience {
    /// Another worker comes.
    pub(crate) fn begin_anew(&mut self) {
        (self.slowest_token, self.done_at) = (Duration::ZERO, None);
    }

    /// A step took so long, and is done now. One of no tokens only moves blocks: it compiles nothing, and says nothing of what a token takes.
    pub(crate) fn learn(&mut self, took: Duration, tokens: u32, now: Instant) {
        self.done_at = Some(now);
        if tokens == 0 {
            return;
        }
        if self.slowest_token.is_zero() {
            self.slowest_first = self.slowest_first.max(Some(took));
        }
        let remembered = self.slowest_token - self.slowest_token / FORGETS;
        self.slowest_token = remembered.max(took / tokens.max(TOKENS_MIN)).max(Duration::from_nanos(1));
    }

    /// When a step is overdue that was handed over at this time, of all the tokens that are in flight.
    pub(crate) fn due(&self, submitted: Instant, tokens: u32, deadlines: &Deadlines) -> Due {
        let (wait, allowed) = self.allows(tokens, deadlines);
        Due { at: self.begun(submitted) + allowed, wait, allowed }
    }

    /// Since when the worker has been at a step that was handed over at this time.
    pub(crate) fn begun(&self, submitted: Instant) -> Instant {
        self.done_at.map_or(submitted, |done_at| done_at.max(submitted))
    }

    /// How long the steps in flight may take, and which bound says so.
    fn allows(&self, tokens: u32, deadlines: &Deadlines) -> (&'static str, Duration) {
        if self.slowest_token.is_zero() {
            // What one worker has compiled another need not, or does no slower.
            let usual = self.slowest_first.map(|first| (first * FACTOR).max(deadlines.step));
            return ("first-step", usual.unwrap_or(deadlines.first_step).min(deadlines.first_step));
        }
        let usual = self.slowest_token.saturating_mul(tokens.max(TOKENS_MIN).saturating_mul(FACTOR));
        ("step", usual.max(deadlines.step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadlines() -> Deadlines {
        let (first_step, step) = (Duration::from_secs(600), Duration::from_secs(60));
        Deadlines { first_step, step, link: pelton_link::Deadlines::default() }
    }

    #[test]
    fn a_first_step_has_long_until_it_is_known_what_first_steps_take() {
        let mut patience = Patience::default();
        assert_eq!(patience.allows(1, &deadlines()), ("first-step", Duration::from_secs(600)));
        patience.learn(Duration::from_secs(10), 1, Instant::now());
        patience.begin_anew();
        assert_eq!(patience.allows(1, &deadlines()), ("first-step", Duration::from_secs(200)));
        patience.learn(Duration::from_secs(100), 1, Instant::now());
        patience.begin_anew();
        assert_eq!(patience.allows(1, &deadlines()), ("first-step", Duration::from_secs(600)), "never longer");
    }

    #[test]
    fn a_step_may_take_twenty_times_what_its_tokens_took_and_a_minute_at_least() {
        let mut patience = Patience::default();
        patience.learn(Duration::from_secs(4), 1_000, Instant::now());
        assert_eq!(patience.allows(2_000, &deadlines()), ("step", Duration::from_secs(160)));
        assert_eq!(patience.allows(1, &deadlines()), ("step", Duration::from_secs(60)));
        patience.learn(Duration::from_secs(64), 1, Instant::now());
        assert_eq!(patience.allows(1, &deadlines()).1, Duration::from_secs(20 * 64), "few tokens are as slow as 64");
    }

    #[test]
    fn a_step_that_was_slow_once_is_forgotten_and_one_that_only_moves_blocks_says_nothing() {
        let mut patience = Patience::default();
        patience.learn(Duration::from_secs(300), 0, Instant::now());
        assert_eq!(patience.allows(1, &deadlines()).0, "first-step");
        patience.learn(Duration::from_secs(300), 64, Instant::now());
        for _ in 0..2_000 {
            patience.learn(Duration::from_millis(10), 64, Instant::now());
        }
        assert_eq!(patience.allows(64, &deadlines()).1, Duration::from_secs(60));
        for _ in 0..100_000 {
            patience.learn(Duration::ZERO, 64, Instant::now());
        }
        assert_eq!(patience.allows(64, &deadlines()).0, "step", "it has done steps all the same");
    }

    #[test]
    fn a_step_that_waited_behind_a_slow_one_has_its_own_time() {
        let (mut patience, begin) = (Patience::default(), Instant::now());
        let slow = Duration::from_secs(100);
        assert_eq!(patience.due(begin, 2_048, &deadlines()).at, begin + Duration::from_secs(600));
        patience.learn(slow, 2_048, begin + slow);
        // Both were handed over at once.
        let due = patience.due(begin, 1, &deadlines());
        assert_eq!(due.at, begin + slow + due.allowed);
        let later = begin + slow * 2;
        assert_eq!(patience.due(later, 1, &deadlines()).at, later + due.allowed, "nothing was before it");
        patience.begin_anew();
        assert_eq!(patience.due(begin, 1, &deadlines()).at, begin + Duration::from_secs(600), "of another worker");
    }
}

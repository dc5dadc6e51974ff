//! What surrounds a request and is not in it: who asks, since when, until when, how urgently.

use std::time::{Duration, Instant};

/// See the top of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// When it came.
    pub arrival: Instant,
    /// Who pays, as a number; 0: everybody together.
    pub tenant: u64,
    /// For a request that names none itself: smaller first.
    pub priority: i32,
    /// The longest that it may take from its arrival to its last token; `None`: as long as it takes.
    pub timeout: Option<Duration>,
}

impl Terms {
    /// Of a request that comes now, from nobody in particular.
    pub fn now() -> Self {
        Self { arrival: Instant::now(), tenant: 0, priority: 0, timeout: None }
    }

    /// The same, with one bound more: the smallest counts.
    pub(crate) fn within(self, bound: Option<Duration>) -> Self {
        Self { timeout: self.timeout.into_iter().chain(bound).min(), ..self }
    }

    /// What is left of the timeout.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(self.arrival.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_bound_counts() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (one, other, expected) in [
            (None, None, None),
            (seconds(3), None, seconds(3)),
            (None, seconds(3), seconds(3)),
            (seconds(3), seconds(2), seconds(2)),
        ] {
            assert_eq!(Terms::now().within(one).within(other).timeout, expected);
        }
    }

    #[test]
    fn what_was_spent_before_the_engine_is_taken_off() {
        let begun = Instant::now().checked_sub(Duration::from_secs(5)).expect("this machine runs for more than 5 s");
        let terms = Terms { arrival: begun, ..Terms::now() };
        assert_eq!(terms.left(), None);
        assert_eq!(terms.within(Some(Duration::from_secs(2))).left(), Some(Duration::ZERO));
        assert!(terms.within(Some(Duration::from_secs(65))).left() <= Some(Duration::from_secs(60)));
    }
}

//! What becomes of a worker's time while it has requests: it computes, or it waits for its next step. Both counts only grow; what it waited is
//! their difference.
//!
//! Pure: the time is an argument.

use std::time::{Duration, Instant};

/// See the top of the file. Kept over a worker's end: the counts are of its place.
#[derive(Debug, Default)]
pub(crate) struct WorkTime {
    /// When the latest step was done, or the first one was handed over. None: there are no requests.
    since: Option<Instant>,
    /// All steps, as their worker says.
    computing: Duration,
    /// From the first step's beginning, or one step's results, to the next one's results.
    occupied: Duration,
}

impl WorkTime {
    /// A step is handed over now.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// The results of a step that took so long are read now.
    pub(crate) fn done(&mut self, took: Duration, now: Instant) {
        self.computing += took;
        if let Some(since) = self.since.replace(now) {
            self.occupied += now.saturating_duration_since(since);
        }
    }

    /// There are no requests, or no worker: until the next step nobody waits.
    pub(crate) fn pause(&mut self) {
        self.since = None;
    }

    /// Microseconds of steps.
    pub(crate) fn computing_us(&self) -> u64 {
        self.computing.as_micros() as u64
    }

    /// Microseconds in which there were requests.
    pub(crate) fn occupied_us(&self) -> u64 {
        self.occupied.as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    #[test]
    fn only_time_without_requests_does_not_count() {
        let (mut time, begin) = (WorkTime::default(), Instant::now());
        time.begin(begin);
        time.begin(begin + STEP / 2); // queued behind the first one
        time.done(STEP, begin + STEP);
        assert_eq!((time.computing_us(), time.occupied_us()), (10_000, 10_000));
        time.done(STEP, begin + 2 * STEP);
        assert_eq!((time.computing_us(), time.occupied_us()), (20_000, 20_000), "the next one lay there");
        time.begin(begin + 3 * STEP);
        time.done(STEP, begin + 4 * STEP);
        assert_eq!((time.computing_us(), time.occupied_us()), (30_000, 40_000), "it came late");
        time.pause();
        time.begin(begin + 100 * STEP);
        time.done(STEP, begin + 101 * STEP);
        assert_eq!((time.computing_us(), time.occupied_us()), (40_000, 50_000), "nobody had waited");
    }
}

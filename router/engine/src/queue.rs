//! The queue as submitters see it: what waits, who is one too many, and how long it will take.
//!
//! A request waits from its submission to its first admission to a batch, or to its end. The [`Place`] that it holds counts
//! it, so that none is forgotten however it leaves.
//! Never here: order. Shares, priorities and deadlines let one wait longer and another shorter than the mean that is
//! foreseen here.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{Failure, QueueBound, pace::Pace};

/// What may wait. Whoever finds nobody waiting may always wait, with any number of answers to any prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Requests.
    pub requests: usize,
    /// Prompt tokens of them all.
    pub tokens: Option<u64>,
    /// How long a new request may be foreseen to wait.
    pub wait: Option<Duration>,
}

/// What waits now, and what was refused since the start.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct QueueStats {
    /// Requests that were never admitted to a batch.
    pub requests: u64,
    /// Their prompt tokens.
    pub tokens: u64,
    /// How long a request that came now would wait.
    pub wait: Duration,
    /// Requests refused because of [`QueueLimits::requests`].
    pub refused_by_requests: u64,
    /// Because of [`QueueLimits::tokens`].
    pub refused_by_tokens: u64,
    /// Because of [`QueueLimits::wait`].
    pub refused_by_wait: u64,
}

/// See the top of the file.
#[derive(Debug)]
pub(crate) struct Queue {
    limits: QueueLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stats: QueueStats, // its `wait` stays 0: `stats()` asks the pace
    pace: Pace,
}

/// What a waiting request holds. Dropped, it is free for another one.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    tokens: u64,
}

impl Queue {
    pub(crate) fn new(limits: QueueLimits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// A place for each of these requests, named by its prompt tokens, or why there is none for all of them together.
    pub(crate) fn enter(self: &Arc<Self>, requests: &[u64], now: Instant) -> Result<Vec<Place>, Failure> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let (count, tokens) = (requests.len() as u64, requests.iter().sum());
        let mut state = self.lock();
        let wait = state.pace.wait(state.stats.tokens, now);
        if let Some(bound) = self.limits.exceeded_by(count, tokens, &state.stats, wait) {
            *match bound {
                QueueBound::Requests { .. } => &mut state.stats.refused_by_requests,
                QueueBound::Tokens { .. } => &mut state.stats.refused_by_tokens,
                QueueBound::Wait { .. } => &mut state.stats.refused_by_wait,
            } += 1;
            return Err(Failure::QueueFull { bound, retry_after_s: retry_after_s(wait) });
        }
        if state.stats.requests == 0 {
            state.pace.begin(now);
        }
        state.stats.requests += count;
        state.stats.tokens += tokens;
        drop(state);
        Ok(requests.iter().map(|&tokens| Place { queue: Arc::clone(self), tokens }).collect())
    }

    pub(crate) fn stats(&self, now: Instant) -> QueueStats {
        let state = self.lock();
        QueueStats { wait: state.pace.wait(state.stats.tokens, now), ..state.stats }
    }

    /// A panic elsewhere leaves no half-done state: no statement here can panic between two that belong together.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueLimits {
    fn exceeded_by(&self, requests: u64, tokens: u64, waiting: &QueueStats, wait: Duration) -> Option<QueueBound> {
        if waiting.requests == 0 {
            return None;
        }
        if waiting.requests + requests > self.requests as u64 {
            return Some(QueueBound::Requests { waiting: waiting.requests, asked: requests, limit: self.requests });
        }
        if let Some(limit) = self.tokens
            && waiting.tokens + tokens > limit
        {
            return Some(QueueBound::Tokens { waiting: waiting.tokens, asked: tokens, limit });
        }
        let limit = self.wait.filter(|limit| wait > *limit)?;
        Some(QueueBound::Wait { foreseen: wait, limit })
    }
}

/// When those who wait now will have been let in.
fn retry_after_s(wait: Duration) -> u32 {
    /// Who comes again only after this has missed many chances.
    const LONGEST_S: u128 = 3600;
    u32::try_from(wait.as_millis().div_ceil(1000).clamp(1, LONGEST_S)).expect("clamped")
}

impl Place {
    /// The request has entered a batch. Requests that were admitted together have the same `now`.
    pub(crate) fn admitted(self, now: Instant) {
        self.queue.lock().pace.admitted(self.tokens, now);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.stats.requests -= 1;
        state.stats.tokens -= self.tokens;
        if state.stats.requests == 0 {
            state.pace.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: QueueLimits = QueueLimits { requests: 1_000, tokens: None, wait: None };

    fn at(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    /// 100 requests of 100 tokens wait; every 100 ms two of them are let in, from the third time on for 3 s.
    fn busy(limits: QueueLimits, begin: Instant) -> (Arc<Queue>, Vec<Place>) {
        let queue = Queue::new(limits);
        let mut places = queue.enter(&[100; 100], begin).expect("nobody is before them");
        for turn in 1..=30 {
            for place in places.drain(..2) {
                place.admitted(at(begin, turn * 100));
            }
        }
        (queue, places)
    }

    fn refusal(queue: &Arc<Queue>, tokens: u64, now: Instant) -> (QueueBound, u32) {
        match queue.enter(&[tokens], now) {
            Err(Failure::QueueFull { bound, retry_after_s }) => (bound, retry_after_s),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_bound_is_named_with_what_it_got_and_what_it_allows() {
        let begin = Instant::now();
        let now = at(begin, 3_000);
        let (queue, places) = busy(QueueLimits { requests: 100, ..FREE }, begin);
        let more = queue.enter(&[100; 60], now).expect("room");
        // 100 requests with 10,000 tokens, of which 2,000 are let in a second.
        assert_eq!(refusal(&queue, 1, now), (QueueBound::Requests { waiting: 100, asked: 1, limit: 100 }, 5));
        drop((places, more));

        let (queue, _places) = busy(QueueLimits { tokens: Some(10_000), ..FREE }, begin);
        assert_eq!(
            refusal(&queue, 6_001, now),
            (QueueBound::Tokens { waiting: 4_000, asked: 6_001, limit: 10_000 }, 2)
        );
        assert!(queue.enter(&[3_000, 3_000], now).is_ok());

        let limit = Duration::from_millis(1_500);
        let (queue, _places) = busy(QueueLimits { wait: Some(limit), ..FREE }, begin);
        let (QueueBound::Wait { foreseen, limit: told }, after) = refusal(&queue, 1, now) else { panic!("bounded") };
        assert_eq!((foreseen.as_secs_f64().round(), told, after), (2.0, limit, 2));
        let stats = queue.stats(now);
        assert_eq!((stats.refused_by_requests, stats.refused_by_tokens, stats.refused_by_wait), (0, 0, 1));
    }

    #[test]
    fn whoever_finds_nobody_waiting_may_wait_whatever_it_asks() {
        let now = Instant::now();
        for limits in [QueueLimits { tokens: Some(10), ..FREE }, QueueLimits { requests: 2, ..FREE }] {
            let queue = Queue::new(limits);
            let places = queue.enter(&[1_000; 3], now).expect("nobody is before them");
            refusal(&queue, 1, now);
            drop(places);
            assert!(queue.enter(&[1_000; 3], now).is_ok());
        }
    }

    #[test]
    fn those_who_come_together_are_let_in_together_or_not_at_all() {
        let queue = Queue::new(QueueLimits { requests: 4, ..FREE });
        let now = Instant::now();
        let _place = queue.enter(&[1], now).expect("room");
        assert!(matches!(
            queue.enter(&[1; 4], now),
            Err(Failure::QueueFull { bound: QueueBound::Requests { waiting: 1, asked: 4, limit: 4 }, .. })
        ));
        assert_eq!(queue.stats(now).requests, 1);
        assert_eq!(queue.enter(&[1; 3], now).map(|places| places.len()).ok(), Some(3));
    }

    #[test]
    fn however_a_request_leaves_its_place_comes_back() {
        let queue = Queue::new(FREE);
        let now = Instant::now();
        let places: [Place; 2] = queue.enter(&[7, 9], now).expect("room").try_into().expect("two");
        let [admitted, left] = places;
        assert_eq!((queue.stats(now).requests, queue.stats(now).tokens), (2, 16));
        admitted.admitted(now);
        assert_eq!((queue.stats(now).requests, queue.stats(now).tokens), (1, 9));
        drop(left);
        assert_eq!(queue.stats(now), QueueStats::default());
    }

    #[test]
    fn an_empty_queue_foresees_no_wait_even_after_a_busy_time() {
        let begin = Instant::now();
        let (queue, places) = busy(FREE, begin);
        drop(places);
        assert_eq!(queue.stats(at(begin, 60_000)).wait, Duration::ZERO);
    }
}

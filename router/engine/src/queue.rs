//! The queue as submitters see it: what waits, who is one too many, and how long it will take.
//!
//! A request waits from its submission to its first admission to a batch, or to its end. The [`Place`] that it holds counts
//! it, so that none is forgotten however it leaves.
//!
//! A full queue is shared by the tenants (API keys) in it: one that has fewer places takes those that came last from the one that has
//! most, as long as it has no more of them afterwards. So one alone may fill the queue, and nobody can shut others out with it. Those
//! that came together leave together, and none of them once one has been let in.
//! Never here: order. Priorities and deadlines let one wait longer and another shorter than what is foreseen here, which only looks
//! at shares: before a request stand those of its own tenant, and of each other one as many tokens as of that.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use pelton_core::RequestId;

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
    /// Requests that had waited, and lost their places in a full queue to those of a tenant that had fewer.
    pub displaced: u64,
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
    tenants: BTreeMap<u64, Waiting>,
    displaced: BTreeMap<RequestId, Displaced>, // they still hold what was their places
}

/// What waits of a tenant.
#[derive(Debug, Clone, Default)]
struct Waiting {
    size: Size,
    batches: BTreeMap<RequestId, Batch>, // by the first one, the latest one last
}

/// Those that came together, and still wait.
#[derive(Debug, Clone)]
struct Batch {
    came: u64,
    waiting: Size,
    last: RequestId,
}

/// One that has lost its place.
#[derive(Debug, Clone)]
struct Displaced {
    tenant: u64,
    waiting: u64, // requests of its tenant, with it
}

/// What a waiting request holds. Dropped, it is free for another one.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    request: RequestId,
    first: RequestId, // of those that came with it
    tenant: u64,
    tokens: u64,
}

impl Queue {
    pub(crate) fn new(limits: QueueLimits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// A place for each of these requests of a tenant, whose ids follow each other, with their prompt tokens; or why there is none for
    /// all of them together.
    pub(crate) fn enter(
        self: &Arc<Self>,
        tenant: u64,
        requests: &[(RequestId, u64)],
        now: Instant,
    ) -> Result<Vec<Place>, Failure> {
        let (Some(&(first, _)), Some(&(last, _))) = (requests.first(), requests.last()) else { return Ok(Vec::new()) };
        let asked = Size { requests: requests.len() as u64, tokens: requests.iter().map(|&(_, tokens)| tokens).sum() };
        let mut state = self.lock();
        let wait = state.pace.wait(state.tokens_before(tenant, asked.tokens), now);
        if let Some(bound) = self.limits.exceeded_by(asked, &state.stats, wait) {
            let is_too_long = self.limits.wait.is_some_and(|limit| wait > limit);
            let victims = if is_too_long { Vec::new() } else { state.victims(tenant, asked, &self.limits) };
            if victims.is_empty() {
                *match bound {
                    QueueBound::Requests { .. } => &mut state.stats.refused_by_requests,
                    QueueBound::Tokens { .. } => &mut state.stats.refused_by_tokens,
                    QueueBound::Wait { .. } | QueueBound::Share { .. } => &mut state.stats.refused_by_wait,
                } += 1;
                return Err(Failure::QueueFull { bound, retry_after_s: retry_after_s(wait) });
            }
            victims.into_iter().for_each(|(tenant, first)| state.displace(tenant, first));
        }
        if state.stats.requests == 0 {
            state.pace.begin(now);
        }
        state.stats.requests += asked.requests;
        state.stats.tokens += asked.tokens;
        let its = state.tenants.entry(tenant).or_default();
        its.size = its.size.and(asked);
        its.batches.insert(first, Batch { came: asked.requests, waiting: asked, last });
        drop(state);
        let place = |&(request, tokens)| Place { queue: Arc::clone(self), request, first, tenant, tokens };
        Ok(requests.iter().map(place).collect())
    }

    /// Those that have lost their places and not been told so. Each is told of again as long as it holds what was its place.
    pub(crate) fn displaced(&self, now: Instant) -> Vec<(RequestId, Failure)> {
        let state = self.lock();
        let failure = |displaced: &Displaced| {
            let wait = state.pace.wait(state.tokens_before(displaced.tenant, 0), now);
            let bound = QueueBound::Share { waiting: displaced.waiting };
            Failure::QueueFull { bound, retry_after_s: retry_after_s(wait) }
        };
        state.displaced.iter().map(|(&request, displaced)| (request, failure(displaced))).collect()
    }

    /// One of these has been told.
    pub(crate) fn told_displaced(&self) {
        self.lock().stats.displaced += 1;
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

/// Of some requests.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    requests: u64,
    tokens: u64,
}

impl Size {
    fn and(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, tokens: self.tokens + other.tokens }
    }

    fn without(self, other: Self) -> Self {
        Self { requests: self.requests - other.requests, tokens: self.tokens - other.tokens }
    }
}

impl State {
    /// So many tokens are let in before the last one of this tenant that asks for so many, if it has its share.
    fn tokens_before(&self, tenant: u64, asked: u64) -> u64 {
        let its = self.tenants.get(&tenant).map_or(0, |waiting| waiting.size.tokens);
        let others = self.tenants.iter().filter(|&(&other, _)| other != tenant);
        its + others.map(|(_, waiting)| waiting.size.tokens.min(its + asked)).sum::<u64>()
    }

    /// Who has to leave for `asked` to come in: tenants, and the first ones of their batches. None: nobody has to, or nobody has more
    /// than its share.
    fn victims(&self, tenant: u64, asked: Size, limits: &QueueLimits) -> Vec<(u64, RequestId)> {
        let its = self.tenants.get(&tenant).map(|waiting| waiting.size).unwrap_or_default().and(asked);
        let others = self.tenants.iter().filter(|&(&other, _)| other != tenant);
        let whole = |(_, batch): &(&RequestId, &Batch)| batch.waiting.requests == batch.came;
        let mut others: Vec<_> =
            others.map(|(&other, waiting)| (other, waiting.size, waiting.batches.iter().rev().filter(whole))).collect();
        let (mut stats, mut victims) = (self.stats, Vec::new());
        while let Some(bound) = limits.exceeded_by(asked, &stats, Duration::ZERO) {
            let counted = |size: Size| match bound {
                QueueBound::Tokens { .. } => size.tokens,
                _ => size.requests,
            };
            let most = others.iter_mut().max_by_key(|(_, has, _)| counted(*has));
            let Some((other, has, latest)) = most else { return Vec::new() };
            let Some((&first, batch)) = latest.next() else { return Vec::new() };
            *has = has.without(batch.waiting);
            if counted(*has) < counted(its) {
                return Vec::new();
            }
            stats.requests -= batch.waiting.requests;
            stats.tokens -= batch.waiting.tokens;
            victims.push((*other, first));
        }
        victims
    }

    /// Takes the places of those that came together.
    fn displace(&mut self, tenant: u64, first: RequestId) {
        let its = self.tenants.get_mut(&tenant).expect("it has these places");
        let waiting = its.size.requests;
        let batch = its.batches.remove(&first).expect("it was seen there");
        self.left(tenant, batch.waiting);
        let requests = (first.0..=batch.last.0).map(|request| (RequestId(request), Displaced { tenant, waiting }));
        self.displaced.extend(requests);
    }

    /// A place is given back.
    fn leave(&mut self, place: &Place) {
        let its = self.tenants.get_mut(&place.tenant).and_then(|its| its.batches.get_mut(&place.first));
        let Some(batch) = its else {
            self.displaced.remove(&place.request);
            return;
        };
        let size = Size { requests: 1, tokens: place.tokens };
        batch.waiting = batch.waiting.without(size);
        if batch.waiting.requests == 0 {
            self.tenants.get_mut(&place.tenant).expect("it is there").batches.remove(&place.first);
        }
        self.left(place.tenant, size);
    }

    /// So much of a tenant waits no more.
    fn left(&mut self, tenant: u64, size: Size) {
        let its = self.tenants.get_mut(&tenant).expect("it waited");
        its.size = its.size.without(size);
        if its.batches.is_empty() {
            self.tenants.remove(&tenant);
        }
        self.stats.requests -= size.requests;
        self.stats.tokens -= size.tokens;
    }
}

impl QueueLimits {
    fn exceeded_by(&self, asked: Size, waiting: &QueueStats, wait: Duration) -> Option<QueueBound> {
        let Size { requests, tokens } = asked;
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
    /// Whose it is.
    pub(crate) fn request(&self) -> RequestId {
        self.request
    }

    /// The request has entered a batch. Requests that were admitted together have the same `now`.
    pub(crate) fn admitted(self, now: Instant) {
        self.queue.lock().pace.admitted(self.tokens, now);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.leave(self);
        if state.stats.requests == 0 {
            state.pace.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const FREE: QueueLimits = QueueLimits { requests: 1_000, tokens: None, wait: None };

    fn at(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    /// 100 requests of 100 tokens wait; every 100 ms two of them are let in, from the third time on for 3 s.
    fn busy(limits: QueueLimits, begin: Instant) -> (Arc<Queue>, Vec<Place>) {
        let queue = Queue::new(limits);
        let mut places = enter(&queue, 0, &[100; 100], begin).expect("nobody is before them");
        for turn in 1..=30 {
            for place in places.drain(..2) {
                place.admitted(at(begin, turn * 100));
            }
        }
        (queue, places)
    }

    /// Of requests that no other call has named.
    fn enter(queue: &Arc<Queue>, tenant: u64, tokens: &[u64], now: Instant) -> Result<Vec<Place>, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let first = NEXT.fetch_add(tokens.len() as u64, Ordering::Relaxed);
        let requests: Vec<_> = (first..).map(RequestId).zip(tokens.iter().copied()).collect();
        queue.enter(tenant, &requests, now)
    }

    fn refusal(queue: &Arc<Queue>, tokens: u64, now: Instant) -> (QueueBound, u32) {
        match enter(queue, 0, &[tokens], now) {
            Err(Failure::QueueFull { bound, retry_after_s }) => (bound, retry_after_s),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_bound_is_named_with_what_it_got_and_what_it_allows() {
        let begin = Instant::now();
        let now = at(begin, 3_000);
        let (queue, places) = busy(QueueLimits { requests: 100, ..FREE }, begin);
        let more = enter(&queue, 0, &[100; 60], now).expect("room");
        // 100 requests with 10,000 tokens, of which 2,000 are let in a second.
        assert_eq!(refusal(&queue, 1, now), (QueueBound::Requests { waiting: 100, asked: 1, limit: 100 }, 5));
        drop((places, more));

        let (queue, _places) = busy(QueueLimits { tokens: Some(10_000), ..FREE }, begin);
        assert_eq!(
            refusal(&queue, 6_001, now),
            (QueueBound::Tokens { waiting: 4_000, asked: 6_001, limit: 10_000 }, 2)
        );
        assert!(enter(&queue, 0, &[3_000, 3_000], now).is_ok());

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
            let places = enter(&queue, 0, &[1_000; 3], now).expect("nobody is before them");
            refusal(&queue, 1, now);
            drop(places);
            assert!(enter(&queue, 0, &[1_000; 3], now).is_ok());
        }
    }

    #[test]
    fn those_who_come_together_are_let_in_together_or_not_at_all() {
        let queue = Queue::new(QueueLimits { requests: 4, ..FREE });
        let now = Instant::now();
        let _place = enter(&queue, 0, &[1], now).expect("room");
        assert!(matches!(
            enter(&queue, 0, &[1; 4], now),
            Err(Failure::QueueFull { bound: QueueBound::Requests { waiting: 1, asked: 4, limit: 4 }, .. })
        ));
        assert_eq!(queue.stats(now).requests, 1);
        assert_eq!(enter(&queue, 0, &[1; 3], now).map(|places| places.len()).ok(), Some(3));
    }

    #[test]
    fn however_a_request_leaves_its_place_comes_back() {
        let queue = Queue::new(FREE);
        let now = Instant::now();
        let places: [Place; 2] = enter(&queue, 0, &[7, 9], now).expect("room").try_into().expect("two");
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

    fn waiting(places: &[Place]) -> Vec<u64> {
        places.iter().map(|place| place.request.0).collect()
    }

    fn displaced(queue: &Arc<Queue>, now: Instant) -> Vec<u64> {
        queue.displaced(now).iter().map(|(request, _)| request.0).collect()
    }

    #[test]
    fn one_alone_may_fill_the_queue_and_has_to_share_it_with_whoever_comes_then() {
        let now = Instant::now();
        for limits in [QueueLimits { requests: 8, ..FREE }, QueueLimits { tokens: Some(80), ..FREE }] {
            let queue = Queue::new(limits);
            let first: Vec<Place> =
                (0..8).flat_map(|_| enter(&queue, 1, &[10], now).expect("nobody else is there")).collect();
            assert!(enter(&queue, 1, &[10], now).is_err(), "its own are not pushed out by its own");
            let second = enter(&queue, 2, &[10; 3], now).expect("it has its share");
            assert_eq!(displaced(&queue, now), waiting(&first)[5..], "the latest ones");
            let (_, Failure::QueueFull { bound: QueueBound::Share { waiting }, .. }) = &queue.displaced(now)[0] else {
                panic!("it is told why");
            };
            assert_eq!(*waiting, 6, "as many as there were when it was its turn");
            assert!(enter(&queue, 2, &[10; 2], now).is_err(), "it would have more than the other one");
            let more = enter(&queue, 2, &[10], now).expect("as many");
            assert!(enter(&queue, 2, &[10], now).is_err() && enter(&queue, 1, &[10], now).is_err());
            let third = enter(&queue, 3, &[10; 2], now).expect("it has its share");
            assert_eq!(queue.stats(now).requests, 8);
            assert_eq!(displaced(&queue, now).len(), 6);
            drop((first, second, more, third));
            assert_eq!((displaced(&queue, now), queue.stats(now).requests, queue.stats(now).tokens), (vec![], 0, 0));
            assert!(queue.lock().tenants.is_empty());
        }
    }

    #[test]
    fn one_that_is_let_in_before_it_hears_that_it_is_displaced_is_not() {
        let (queue, now) = (Queue::new(QueueLimits { requests: 2, ..FREE }), Instant::now());
        let _before = enter(&queue, 1, &[10], now).expect("room");
        let mut first = enter(&queue, 1, &[10], now).expect("room");
        let _second = enter(&queue, 2, &[10], now).expect("its share");
        assert_eq!(displaced(&queue, now).len(), 1);
        first.pop().expect("one").admitted(now);
        assert_eq!((displaced(&queue, now).len(), queue.stats(now).requests), (0, 2));
    }

    #[test]
    fn who_comes_to_a_backlog_of_others_waits_for_its_share_of_it() {
        let begin = Instant::now();
        let limit = Duration::from_millis(2_500);
        let (queue, places) = busy(QueueLimits { wait: Some(limit), ..FREE }, begin);
        let now = at(begin, 3_000);
        let more = enter(&queue, 0, &[100; 40], now).expect("2 s are foreseen");
        let (QueueBound::Wait { foreseen, .. }, _) = refusal(&queue, 100, now) else { panic!("bounded") };
        assert_eq!(foreseen.as_secs_f64().round(), 4.0, "80 requests, 20 of which are let in a second");
        assert_eq!(enter(&queue, 1, &[100; 10], now).map(|places| places.len()).ok(), Some(10));
        drop((places, more));
    }

    #[test]
    fn those_who_came_together_leave_together_and_none_once_one_was_let_in() {
        let (queue, now) = (Queue::new(QueueLimits { requests: 8, ..FREE }), Instant::now());
        let mut pair = enter(&queue, 1, &[10; 2], now).expect("room");
        let six = enter(&queue, 1, &[10; 6], now).expect("room");
        assert!(enter(&queue, 2, &[10], now).is_ok_and(|places| places.len() == 1), "two stay, and one comes");
        assert_eq!(displaced(&queue, now), waiting(&six));
        drop(six);
        let _five = enter(&queue, 1, &[10; 5], now).expect("room");
        pair.pop().expect("two").admitted(now);
        let _one = enter(&queue, 3, &[10; 2], now).expect("there is room");
        assert_eq!(queue.stats(now).requests, 8);
        assert!(enter(&queue, 2, &[10; 2], now).is_err(), "it would leave the first one with less");
        assert!(displaced(&queue, now).is_empty());
    }

    #[test]
    fn who_would_wait_for_too_long_pushes_nobody_out() {
        let begin = Instant::now();
        let limits = QueueLimits { requests: 40, wait: Some(Duration::from_millis(500)), ..FREE };
        let queue = Queue::new(limits);
        let mut places = enter(&queue, 0, &[100; 100], begin).expect("nobody is before them");
        for turn in 1..=30 {
            for place in places.drain(..2) {
                place.admitted(at(begin, turn * 100));
            }
        }
        let now = at(begin, 3_000);
        assert!(enter(&queue, 1, &[2_000], now).is_err(), "2 s are foreseen for it");
        assert!(displaced(&queue, now).is_empty());
    }
}

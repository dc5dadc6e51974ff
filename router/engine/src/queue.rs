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
    is_counted: bool,
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
                    // Shares are no bound of their own: only those hear of them that have lost their places.
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
        if let (Some(&(first, _)), Some(&(last, _))) = (requests.first(), requests.last()) {
            its.batches.insert(first, Batch { came: asked.requests, waiting: asked, last });
        }
        drop(state);
        Ok(self.places(tenant, requests, true))
    }

    /// Places for requests that go on with what is being answered already: they are in nobody's way, and nobody takes them away.
    pub(crate) fn enter_to_go_on(self: &Arc<Self>, tenant: u64, requests: &[(RequestId, u64)]) -> Vec<Place> {
        self.places(tenant, requests, false)
    }

    fn places(self: &Arc<Self>, tenant: u64, requests: &[(RequestId, u64)], is_counted: bool) -> Vec<Place> {
        let Some(&(first, _)) = requests.first() else { return Vec::new() };
        let place = |&(request, tokens)| Place { queue: Arc::clone(self), request, first, tenant, tokens, is_counted };
        requests.iter().map(place).collect()
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
        if self.is_counted {
            self.queue.lock().pace.admitted(self.tokens, now);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_counted {
            return;
        }
        let mut state = self.queue.lock();
        state.leave(self);
        if state.stats.requests == 0 {
            state.pace.end();
        }
    }
}

#[cfg(test)]
mod tests;

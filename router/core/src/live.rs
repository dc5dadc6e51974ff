//! The requests that have not ended: their tokens, where each one is, and the queue of those that wait.
//!
//! Never here: blocks, slots, steps. A request lives from `submit` to its end, through any number of
//! preemptions and workers; what it has drawn and committed is in `tokens` and is never lost.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::prefix::KeyChain;
use crate::request::{NewRequest, Sampling, StopRule};
use crate::{FinishReason, GroupId, Micros, RequestId, SlotId, TokenId};

/// Where a request stands among others: the smaller place is served first. It never changes, so a request that was
/// skipped or preempted comes before all that came after it. B:SC1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) priority: i32,
    pub(crate) arrival: Micros,
    pub(crate) id: RequestId,
}

/// A live request, as an index into [`Requests`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestKey(usize);

/// Where a live request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// It waits.
    Queue,
    /// It holds a slot.
    Slot(GroupId, SlotId),
}

/// A request and what it has drawn so far.
#[derive(Debug)]
pub(crate) struct LiveRequest {
    pub(crate) place: Place,
    pub(crate) home: Home,
    pub(crate) tokens: Vec<TokenId>, // prompt, then output: all that is committed
    pub(crate) prompt_len: u32,
    pub(crate) known_max: u32, // with so many tokens it ends, if nothing ends it before
    pub(crate) sampling: Sampling,
    pub(crate) stop: StopRule,
    pub(crate) keys: KeyChain,
    pub(crate) was_admitted: bool,
}

impl LiveRequest {
    pub(crate) fn new(new: NewRequest, max_model_len: u32) -> Self {
        let prompt_len = u32::try_from(new.prompt.len()).expect("a prompt fits the context");
        let mut tokens = Vec::with_capacity(new.prompt.len() + new.generated.len());
        tokens.extend_from_slice(&new.prompt);
        tokens.extend_from_slice(&new.generated);
        Self {
            place: Place { priority: new.priority, arrival: new.arrival, id: new.id },
            home: Home::Queue,
            tokens,
            prompt_len,
            known_max: max_model_len.min(prompt_len.saturating_add(new.stop.max_tokens)),
            sampling: new.sampling,
            stop: new.stop,
            keys: KeyChain::new(new.cache_salt),
            was_admitted: false,
        }
    }

    pub(crate) fn known(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("bounded by known_max")
    }

    /// Blocks for the KV of all tokens it can have but the last one, which nothing follows.
    pub(crate) fn blocks_max(&self, block_size: u32) -> u32 {
        (self.known_max - 1).div_ceil(block_size)
    }

    /// Below so many known tokens no stop token is drawn.
    pub(crate) fn suppress_until(&self) -> u32 {
        self.prompt_len.saturating_add(self.stop.min_tokens)
    }

    /// Takes a drawn token, and says whether it was the last one.
    pub(crate) fn push(&mut self, token: TokenId) -> Option<FinishReason> {
        self.tokens.push(token);
        if self.stop.stop_ids.contains(&token) {
            Some(FinishReason::StopToken(token))
        } else {
            (self.known() >= self.known_max).then_some(FinishReason::Length)
        }
    }
}

/// All live requests.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    live: Vec<Option<LiveRequest>>, // by RequestKey
    free: Vec<RequestKey>,
    by_id: BTreeMap<RequestId, RequestKey>,
    waiting: BTreeMap<Place, RequestKey>, // those whose home is the queue
}

impl Requests {
    /// Takes a new request into the queue.
    pub(crate) fn insert(&mut self, request: LiveRequest) -> RequestKey {
        let id = request.place.id;
        let key = self.free.pop().unwrap_or_else(|| {
            self.live.push(None);
            RequestKey(self.live.len() - 1)
        });
        self.live[key.0] = Some(request);
        assert!(self.by_id.insert(id, key).is_none(), "{id:?} is used once");
        self.return_to_queue(key);
        key
    }

    /// Puts a request into the queue, at the place it has always had.
    pub(crate) fn return_to_queue(&mut self, key: RequestKey) {
        let request = self.get_mut(key);
        request.home = Home::Queue;
        let place = request.place;
        assert!(self.waiting.insert(place, key).is_none(), "{place:?} waits once");
    }

    /// Takes a request out of the queue and into a slot.
    pub(crate) fn move_to_slot(&mut self, key: RequestKey, group: GroupId, slot: SlotId) {
        let request = self.get_mut(key);
        request.home = Home::Slot(group, slot);
        let place = request.place;
        assert_eq!(self.waiting.remove(&place), Some(key), "{place:?} waited");
    }

    /// Forgets a request that has ended.
    pub(crate) fn remove(&mut self, key: RequestKey) {
        let request = self.live[key.0].take().expect("keys name live requests");
        self.by_id.remove(&request.place.id);
        self.waiting.remove(&request.place);
        self.free.push(key);
    }

    /// The first that waits, or the first after `after`.
    pub(crate) fn next_waiting(&self, after: Option<Place>) -> Option<(Place, RequestKey)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((start, Bound::Unbounded)).next().map(|(&place, &key)| (place, key))
    }

    pub(crate) fn waiting(&self) -> impl ExactSizeIterator<Item = (Place, RequestKey)> {
        self.waiting.iter().map(|(&place, &key)| (place, key))
    }

    pub(crate) fn find(&self, id: RequestId) -> Option<RequestKey> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn get(&self, key: RequestKey) -> &LiveRequest {
        self.live[key.0].as_ref().expect("keys name live requests")
    }

    pub(crate) fn get_mut(&mut self, key: RequestKey) -> &mut LiveRequest {
        self.live[key.0].as_mut().expect("keys name live requests")
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// In the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestKey, &LiveRequest)> {
        self.by_id.values().map(|&key| (key, self.get(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt: usize, stop: StopRule) -> LiveRequest {
        let new = NewRequest {
            id: RequestId(1),
            prompt: vec![9; prompt].into(),
            generated: Vec::new(),
            sampling: Sampling::greedy(),
            stop,
            cache_salt: 0,
            priority: 0,
            arrival: Micros(0),
        };
        LiveRequest::new(new, 10)
    }

    fn rule(max_tokens: u32, stop_ids: &[TokenId]) -> StopRule {
        StopRule { max_tokens, min_tokens: 0, stop_ids: stop_ids.into() }
    }

    #[test]
    fn a_request_ends_with_its_stop_token_its_last_token_or_the_context() {
        use FinishReason::{Length, StopToken};
        for (prompt, stop, drawn, expected) in [
            (3, rule(5, &[7]), vec![1, 2, 7], vec![None, None, Some(StopToken(7))]),
            (3, rule(2, &[7]), vec![1, 7], vec![None, Some(StopToken(7))]), // the stop token is the last one too
            (3, rule(2, &[]), vec![1, 2], vec![None, Some(Length)]),
            (8, rule(u32::MAX, &[]), vec![1, 2], vec![None, Some(Length)]),
            (9, rule(5, &[]), vec![1], vec![Some(Length)]),
        ] {
            let mut request = request(prompt, stop);
            let ends: Vec<_> = drawn.iter().map(|&token| request.push(token)).collect();
            assert_eq!(ends, expected, "{prompt} tokens, then {drawn:?}");
        }
    }

    #[test]
    fn the_queue_goes_by_priority_then_arrival_then_id() {
        let place = |priority, arrival, id| Place { priority, arrival: Micros(arrival), id: RequestId(id) };
        let mut places = [place(1, 0, 0), place(0, 5, 1), place(0, 5, 2), place(-1, 9, 3), place(0, 4, 4)];
        places.sort();
        assert_eq!(places.map(|place| place.id.0), [3, 4, 1, 2, 0]);
    }

    #[test]
    fn keys_of_ended_requests_are_used_again() {
        let mut requests = Requests::default();
        let first = requests.insert(request(1, rule(1, &[])));
        requests.remove(first);
        assert_eq!(requests.find(RequestId(1)), None);
        assert_eq!(requests.insert(request(1, rule(1, &[]))), first);
        assert_eq!(requests.find(RequestId(1)), Some(first));
    }
}

//! The requests that have not ended: their tokens, where each one is, and the queue of those that wait.
//!
//! Never here: blocks, slots, steps. A request lives from `submit` to its end, through any number of
//! preemptions and workers; what it has drawn and committed is in `tokens` and is never lost.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::drafts::Drafter;
use crate::explanation::{Account, Looks};
use crate::forced::Forced;
use crate::keys::KeyChain;
use crate::kinds::Kinds;
use crate::lengths::{AnswerLengths, Growth};
use crate::queue::{Queue, Ticket};
use crate::request::{Goal, NewRequest, Sampling, StopRule};
use crate::shares::{Party, Shares};
use crate::{DiskPlace, Explanation, FinishReason, GroupId, Micros, RequestId, SlotId, TokenId, Wait};

/// Where a request stands among others: the smaller place is served first. It never changes, so a request that was
/// skipped or preempted comes before all that came after it. B:SC1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) priority: i32,
    pub(crate) arrival: Micros,
    pub(crate) id: RequestId,
}

/// A live request, as an index into [`Requests`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestKey(usize);

/// Where a live request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Home {
    /// It waits.
    Queue,
    /// Somebody keeps it back: it waits, and nobody admits it.
    Held,
    /// It holds a slot.
    Slot(GroupId, SlotId),
}

/// A request and what it has drawn so far.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LiveRequest {
    pub(crate) place: Place,
    pub(crate) home: Home,
    pub(crate) tokens: Vec<TokenId>, // prompt, then output: all that is committed
    pub(crate) prompt_len: u32,
    pub(crate) scored: u32, // tokens whose next one was scored, all from the first on; all but the last of the prompt if none is to be
    pub(crate) embedded: u32, // its first tokens, which only hold the places of embeddings
    pub(crate) known_max: u32, // with so many tokens it ends, if nothing ends it before; for a vector one more than it has
    pub(crate) goal: Goal,
    pub(crate) sampling: Sampling,
    pub(crate) stop: StopRule,
    pub(crate) masked: bool, // its tokens are drawn within masks
    pub(crate) keys: KeyChain,
    pub(crate) party: Party,
    pub(crate) deadline: Option<Micros>,
    pub(crate) was_admitted: bool,
    pub(crate) left_by: Vec<GroupId>, // since it was let in last: those who left it to others are not given it back
    pub(crate) turn_ended: Option<Micros>, // when it gave its slot to another tenant's request
    pub(crate) uncached: u32,         // prompt tokens to compute, as of its first admission
    pub(crate) drafter: Option<Drafter>, // none: it has no drafts
    pub(crate) forced: Option<Forced>, // what follows some of its tokens, if that is certain
    pub(crate) account: Account,
    pub(crate) awaited_reads: Vec<DiskPlace>, // for which it waits in the queue
    charged: u64,                             // tokens that its party was charged
}

impl LiveRequest {
    /// Where `drafts` are made at all, it has some unless what it draws depends on more than the tokens before: a mask comes for
    /// one token at a time, and penalties count what was drawn.
    pub(crate) fn new(new: NewRequest, max_model_len: u32, drafts: bool) -> Self {
        let has_drafts = drafts && !new.masked && !new.sampling.has_penalties();
        let prompt_len = u32::try_from(new.prompt.len()).expect("a prompt fits the context");
        let known_max = match new.goal {
            Goal::Tokens => max_model_len.min(prompt_len.saturating_add(new.stop.max_tokens)),
            Goal::VectorOfLast | Goal::VectorOfAll => prompt_len + 1,
        };
        let scored = if new.sampling.prompt_logprobs.is_some() { new.scored } else { prompt_len - 1 };
        let embedded = new.scope.embedded();
        assert!(embedded <= prompt_len, "what stands for something else stands in the prompt");
        let mut tokens = Vec::with_capacity(new.prompt.len() + new.generated.len());
        tokens.extend_from_slice(&new.prompt);
        tokens.extend_from_slice(&new.generated);
        Self {
            place: Place { priority: new.priority, arrival: new.arrival, id: new.id },
            home: Home::Queue,
            tokens,
            prompt_len,
            scored,
            embedded,
            known_max,
            goal: new.goal,
            sampling: new.sampling,
            stop: new.stop,
            masked: new.masked,
            keys: KeyChain::new(new.scope.shared()),
            party: new.party,
            deadline: new.deadline,
            was_admitted: false,
            left_by: Vec::new(),
            turn_ended: None,
            uncached: 0,
            account: Account::new(Explanation::new(new.id, new.arrival, new.deadline, prompt_len)),
            drafter: has_drafts.then(Drafter::new),
            forced: None,
            awaited_reads: Vec::new(),
            charged: 0,
        }
    }

    pub(crate) fn known(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("bounded by known_max")
    }

    /// How many tokens at the end of a row are scored, without the one that it draws behind: those of the prompt that were not
    /// before. None of a row that begins behind them.
    pub(crate) fn scores_in(&self, start: u32, end: u32) -> u32 {
        end.min(self.prompt_len - 1).saturating_sub(start.max(self.scored))
    }

    /// How many tokens of a row only hold the places of embeddings: its first ones.
    pub(crate) fn embeds_in(&self, start: u32, end: u32) -> u32 {
        end.min(self.embedded).saturating_sub(start)
    }

    /// The longest row behind `start` others, of at most `most` tokens, that scores no more than `scores` and has no more than
    /// `embeds` embeddings.
    pub(crate) fn row_max(&self, start: u32, most: u32, scores: u32, embeds: u32) -> u32 {
        let most = if self.embeds_in(start, start + most) > embeds { embeds } else { most };
        let excess = self.scores_in(start, start + most).saturating_sub(scores);
        // What ends the prompt is not scored: it goes with the last one that is.
        if excess == 0 { most } else { (self.prompt_len - 1).min(start + most) - excess - start }
    }

    /// Whether tokens of its prompt are still to be scored.
    pub(crate) fn is_to_be_scored(&self) -> bool {
        self.scored < self.prompt_len - 1
    }

    /// Whether its rows are short, however much is ahead of it: what is scored or given as embeddings comes in small numbers.
    pub(crate) fn has_short_rows(&self) -> bool {
        self.embedded > 0 || self.is_to_be_scored()
    }

    /// Its first tokens, whose KV others may have computed: not the last one, nor what is still to be scored.
    pub(crate) fn shareable(&self) -> usize {
        let is_scored = !self.is_to_be_scored();
        if is_scored { self.tokens.len() - 1 } else { self.scored as usize }
    }

    pub(crate) fn drawn(&self) -> u32 {
        self.known() - self.prompt_len
    }

    /// The most blocks that it can come to need: for the KV of all tokens but the last one, which nothing follows.
    pub(crate) fn blocks_max(&self, kinds: &Kinds) -> u32 {
        kinds.blocks_at(self.known_max - 1)
    }

    /// What it holds and will hold, once it has so many tokens.
    pub(crate) fn growth(&self, tokens: u32, held: u32, shared: u32, lengths: &AnswerLengths) -> Growth {
        let drawn = tokens - self.prompt_len;
        let coming = lengths.expect(drawn, self.known_max - self.prompt_len).saturating_sub(drawn);
        // The last token that it draws has no KV.
        Growth { tokens, coming: coming.saturating_sub(1), held, shared }
    }

    /// Below so many known tokens no stop token is drawn.
    pub(crate) fn suppress_until(&self) -> u32 {
        self.prompt_len.saturating_add(self.stop.min_tokens)
    }

    /// Lets its drafter see what is known by now.
    pub(crate) fn take_in(&mut self) {
        if let Some(drafter) = &mut self.drafter {
            drafter.take_in(&self.tokens);
        }
    }

    /// What probably comes next, by its drafter, which has said that it is worth it.
    pub(crate) fn draft(&self, count: u32, drafts: &mut Vec<TokenId>) {
        if let Some(drafter) = self.drafter.as_ref().filter(|_| count > 0) {
            drafter.drafts(&self.tokens, count, drafts);
        }
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
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Requests {
    live: Vec<Option<LiveRequest>>, // by RequestKey
    free: Vec<RequestKey>,
    by_id: BTreeMap<RequestId, RequestKey>,
    queue: Queue, // those whose home it is, but for those that admission looks at just now
    aside: Queue, // and for those that wait behind a long prompt and need no look until it has gone
    shares: Shares,
    line: u64, // the last number in the line of those that are due
    held: usize,
    deadlines: BTreeSet<(Micros, RequestId)>,
    pub(crate) looks: Looks,
}

impl Requests {
    /// Takes a new request into the queue.
    pub(crate) fn insert(&mut self, request: LiveRequest) -> RequestKey {
        let id = request.place.id;
        self.shares.enter(request.party);
        self.deadlines.extend(request.deadline.map(|deadline| (deadline, id)));
        let key = self.free.pop().unwrap_or_else(|| {
            self.live.push(None);
            RequestKey(self.live.len() - 1)
        });
        self.live[key.0] = Some(request);
        assert!(self.by_id.insert(id, key).is_none(), "{id:?} is used once");
        self.enter_queue(key);
        key
    }

    /// Puts a request that waited no more into the queue again, at the place it has always had.
    pub(crate) fn return_to_queue(&mut self, key: RequestKey) {
        self.shares.wait(self.get(key).party);
        self.enter_queue(key);
    }

    fn enter_queue(&mut self, key: RequestKey) {
        let looks = self.looks;
        let request = self.get_mut(key);
        request.home = Home::Queue;
        request.account.begin_to_wait(&looks);
        let has_run = request.was_admitted && request.turn_ended.is_none();
        let mut ticket = Ticket::new(key, request.place, request.party, request.deadline, has_run);
        ticket.since = request.turn_ended.unwrap_or(ticket.since);
        self.queue.insert(ticket, &self.shares);
    }

    /// Keeps back a request that waits. False: it does not wait.
    pub(crate) fn hold(&mut self, key: RequestKey) -> bool {
        let (looks, request) = (self.looks, self.get_mut(key));
        if request.home != Home::Queue {
            return false;
        }
        request.home = Home::Held;
        request.account.hold(&looks);
        self.take_out_of_queue(key);
        self.held += 1;
        true
    }

    /// Lets a request that was kept back wait for its turn again. False: it was not kept back.
    pub(crate) fn release(&mut self, key: RequestKey) -> bool {
        let (looks, request) = (self.looks, self.get_mut(key));
        if request.home != Home::Held {
            return false;
        }
        request.account.release(&looks);
        self.held -= 1;
        self.return_to_queue(key);
        true
    }

    /// Keeps back a request whose slot was taken away.
    pub(crate) fn withdraw(&mut self, key: RequestKey) {
        let (looks, request) = (self.looks, self.get_mut(key));
        assert!(matches!(request.home, Home::Slot(..)), "{:?} ran", request.place);
        request.home = Home::Held;
        request.account.begin_to_wait(&looks);
        request.account.hold(&looks);
        self.held += 1;
    }

    /// How many are kept back.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Takes a request, whose turn it was, into a slot.
    pub(crate) fn move_to_slot(&mut self, ticket: &Ticket, group: GroupId, slot: SlotId) {
        self.queue.served(ticket.class);
        self.aside.served(ticket.class);
        let looks = self.looks;
        let request = self.get_mut(ticket.key);
        assert_eq!(request.home, Home::Queue, "{:?} waited", request.place);
        request.home = Home::Slot(group, slot);
        request.turn_ended = None;
        request.account.admit(&looks);
        self.shares.wait_no_more(ticket.party);
    }

    /// Notes what one waits for that was looked at.
    pub(crate) fn wait_for(&mut self, key: RequestKey, reason: Wait) {
        let looks = self.looks;
        self.get_mut(key).account.wait_for(reason, &looks);
    }

    /// Notes what the one waits for whose turn it is.
    pub(crate) fn first_waits_for(&mut self, reason: Wait) {
        if let Some(key) = self.queue.first() {
            self.wait_for(key, reason);
        }
    }

    /// What a request went through so far.
    pub(crate) fn explain(&self, key: RequestKey) -> Explanation {
        let request = self.get(key);
        request.account.explain(request.drawn(), !matches!(request.home, Home::Slot(..)), &self.looks)
    }

    /// Whether anybody has waited for so long that another one may have to give up its slot.
    pub(crate) fn may_call(&self) -> bool {
        self.queue.may_call() || self.aside.may_call()
    }

    /// The one that was called; else, of those that are due and fit, the first of the tenant that has fewest slots. And how many
    /// it has.
    pub(crate) fn due_with_fewest(
        &self,
        slots: impl Fn(u64) -> usize,
        fits: impl Fn(&LiveRequest) -> bool,
    ) -> Option<(usize, RequestKey)> {
        let of = |queue: &Queue| queue.due_with_fewest(self.looks.now, &slots, |key| fits(self.get(key)));
        let first =
            [&self.queue, &self.aside].into_iter().filter_map(of).min_by_key(|&(slots, number, _)| (slots, number));
        first.map(|(slots, _, key)| (slots, key))
    }

    /// The next place of all is for this one, which waits.
    pub(crate) fn call(&mut self, key: RequestKey) {
        let place = self.get(key).place;
        let ticket = self.queue.take_for_call(place, &self.shares);
        let ticket = ticket.or_else(|| self.aside.take_for_call(place, &self.shares)).expect("it waits");
        self.queue.insert(ticket, &self.shares);
    }

    /// Takes the one whose turn it is out of the queue, into a slot or to be passed over.
    pub(crate) fn pop_waiting(&mut self) -> Option<Ticket> {
        self.queue.pop_first(&self.shares)
    }

    /// Puts one back that was passed over.
    pub(crate) fn put_back(&mut self, ticket: Ticket) {
        self.queue.insert(ticket, &self.shares);
    }

    /// Puts one aside that was passed over: until it is brought back nobody looks at it.
    pub(crate) fn set_aside(&mut self, ticket: Ticket) {
        self.aside.insert(ticket, &self.shares);
    }

    /// Lets the first ones of those that were set aside be looked at again.
    pub(crate) fn bring_back(&mut self, count: usize) -> Vec<Place> {
        let mut back = Vec::new();
        while back.len() < count
            && let Some(ticket) = self.aside.pop_first(&self.shares)
        {
            back.push(ticket.place);
            self.queue.insert(ticket, &self.shares);
        }
        back
    }

    /// Sets one aside again that was brought back, if it still waits.
    pub(crate) fn set_aside_again(&mut self, place: Place) {
        if let Some(ticket) = self.queue.remove(place, &self.shares) {
            self.aside.insert(ticket, &self.shares);
        }
    }

    /// Lets those come forward that have waited for long.
    pub(crate) fn age(&mut self, now: Micros) {
        self.queue.age(now, &mut self.line, &self.shares);
        self.aside.age(now, &mut self.line, &self.shares);
    }

    /// The request that has to end first.
    pub(crate) fn first_deadline(&self) -> Option<(Micros, RequestId)> {
        self.deadlines.first().copied()
    }

    /// Charges a request's party for so many tokens in all, whatever it was charged before.
    pub(crate) fn charge(&mut self, key: RequestKey, tokens: u64) {
        let request = self.get_mut(key);
        let (party, was) = (request.party, std::mem::replace(&mut request.charged, tokens));
        let signed = |tokens: u64| i64::try_from(tokens).expect("bounded by prompt and output");
        self.shares.charge(party, signed(tokens) - signed(was));
        self.queue.reorder(party, &self.shares);
        self.aside.reorder(party, &self.shares);
    }

    /// Charges for what a request really had, when it ends.
    pub(crate) fn settle_account(&mut self, key: RequestKey) {
        let request = self.get(key);
        if request.was_admitted {
            self.charge(key, u64::from(request.uncached) + u64::from(request.drawn()));
        }
    }

    /// Forgets a request that has ended.
    pub(crate) fn remove(&mut self, key: RequestKey) {
        let request = self.get(key);
        let (place, party, deadline) = (request.place, request.party, request.deadline);
        match request.home {
            Home::Queue => self.take_out_of_queue(key),
            Home::Held => self.held -= 1,
            Home::Slot(..) => {}
        }
        self.live[key.0] = None;
        self.by_id.remove(&place.id);
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, place.id));
        }
        self.shares.leave(party);
        self.free.push(key);
    }

    fn take_out_of_queue(&mut self, key: RequestKey) {
        let LiveRequest { place, party, .. } = *self.get(key);
        let waited = self.queue.remove(place, &self.shares).or_else(|| self.aside.remove(place, &self.shares));
        assert!(waited.is_some(), "{place:?} waited");
        self.shares.wait_no_more(party);
    }

    /// Asserts that the queue is in order.
    pub(crate) fn check(&self) {
        self.queue.check(&self.shares);
        self.aside.check(&self.shares);
    }

    /// All that wait, by place, those that were set aside last.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Ticket> {
        self.queue.tickets().chain(self.aside.tickets())
    }

    /// How many wait.
    pub(crate) fn waiting_count(&self) -> usize {
        self.queue.tickets().len() + self.aside.tickets().len()
    }

    #[cfg(test)]
    pub(crate) fn key_for_tests(id: u64) -> RequestKey {
        RequestKey(usize::try_from(id).expect("small"))
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
mod tests;

//! One worker's life, as the core sees it: its slots, its blocks, its steps in flight. When the worker is lost all of
//! this is void, and only the requests remain.
//!
//! The life of a slot:
//!   1. free;
//!   2. it serves a request (`Owner::Serves`): planned in every step that has room;
//!   3. the request leaves while steps in flight still name the slot: preempted (`Owner::Yields`), it takes in what is
//!      in flight and may even end by it; ended or aborted (`Owner::Nobody`), what is in flight is dropped;
//!   4. the last step that names it has committed: its blocks are given back, and it is free. The next plan drops it.
//!
//! Never here: which request is served next, limits of a step, results.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::blocks::Blocks;
use crate::cost::{Prices, Work};
use crate::hit::Hit;
use crate::keys::Key;
use crate::lengths::{AnswerLengths, Growth};
use crate::live::{LiveRequest, Place, RequestKey, Requests};
use crate::outlook::Outlook;
use crate::table::Table;
use crate::tiers::Transfers;
use crate::{BlockId, CoreConfig, HostBlockId, Micros, SlotId, StepId, TokenId};

/// One step runs, one waits behind it: the worker never waits for the router. More would only add tokens past a stop.
pub(crate) const STEPS_IN_FLIGHT: usize = 2;

/// What a slot is there for. Its life stands at the top of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Owner {
    Serves(RequestKey),
    Yields(RequestKey),
    Nobody,
}

/// A slot in use. Always `committed <= planned <= known + draws`, and the table holds what is planned.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) owner: Owner,
    pub(crate) standing: Place, // see `Ticket::standing`
    pub(crate) tenant: u64,     // of its request
    pub(crate) since: Micros,   // when it was let in
    pub(crate) table: Table,
    pub(crate) appended: usize,       // places of the table that the worker was told of
    pub(crate) planned: u32,          // tokens with KV when all steps in flight are done
    pub(crate) committed: u32,        // tokens with KV by steps that are done
    pub(crate) draws: u32,            // tokens that steps in flight will draw, at most
    pub(crate) drafts: u32,           // of a row in flight: until it is known which count, nothing is planned behind it
    pub(crate) shared: u32,           // blocks of the full kinds that were a hit on the device
    pub(crate) found: u32,            // places of the table that were a hit in any tier
    pub(crate) loading: u32,          // blocks of these whose load no step holds yet: until then it has no row
    pub(crate) indexed: usize,        // places of the table that the index has seen
    pub(crate) hidden: usize, // so many places of it are not made findable: what they hold is not trusted any more
    pub(crate) tail_indexed: bool, // the end of the prompt, too short for a block, was made findable
    pub(crate) frontier: Option<Key>, // see `Epoch::frontiers`
    pub(crate) last_row: StepId, // the last one with a row of it
    pub(crate) last_step: StepId, // the last one that names the slot
}

impl Running {
    /// Tokens that could be computed now, those not known yet included. None while loads are to be planned or drafts are in
    /// flight, or draws before a run of tokens that are certain, and once the draws in flight end the request.
    pub(crate) fn ahead(&self, request: &LiveRequest) -> u32 {
        if self.loading > 0 || self.drafts > 0 {
            return 0;
        }
        let expected = request.known() + self.draws;
        if self.draws > 0 && request.is_worth_a_pause(expected) {
            return 0;
        }
        if expected < request.known_max { expected - self.planned } else { 0 }
    }

    /// A row has come back whose drafts count up to here. The KV of the others is void: the next row writes over it, and
    /// nobody reads it before.
    pub(crate) fn take_back_drafts(&mut self, end: u32) {
        assert!(self.draws == 0 && end <= self.planned, "nothing is planned behind drafts");
        (self.planned, self.drafts) = (end, 0);
    }
}

/// A step that the worker has and that has not committed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) step: StepId,
    pub(crate) rows: Vec<SentRow>,
    pub(crate) drafts: Vec<TokenId>,    // of all rows, one row after the other
    pub(crate) named: Vec<SlotId>,      // slots that it names and that have no row in it
    pub(crate) sources: Vec<BlockId>,   // held until its copies are done
    pub(crate) saves: Vec<HostBlockId>, // what it saves to
    pub(crate) loads: Vec<HostBlockId>, // what it loads from: held until then
    pub(crate) work: Work,
}

/// A row of such a step.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct SentRow {
    pub(crate) slot: SlotId,
    pub(crate) end: u32,    // so many tokens have KV after it
    pub(crate) drafts: u32, // the last of these tokens
    pub(crate) samples: bool,
    pub(crate) masked: bool, // its token may be missing
    pub(crate) pools: bool,
    pub(crate) scores: u32,
    pub(crate) is_void: bool, // the row before it drew no token, so this one computes with a wrong one: nothing of it counts
}

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Epoch {
    pub(crate) blocks: Blocks,
    pub(crate) slots: Vec<Option<Running>>, // by SlotId
    pub(crate) free: Vec<SlotId>,           // the next one last
    pub(crate) drops: Vec<SlotId>,          // freed since the last plan
    pub(crate) order: Vec<(Place, SlotId)>, // those that serve, by their standing
    pub(crate) in_flight: VecDeque<Sent>,   // oldest first
    /// What those that serve are about to make findable: the next block of known tokens, or the end of a prompt. Who
    /// needs the same waits for it instead of computing it too.
    frontiers: HashMap<Key, SlotId>,
    pub(crate) transfers: Transfers,
    /// None: nobody has looked since something has changed.
    pub(crate) outlook: Option<Outlook>,
    /// In the plan before, one that serves found no room. Long prompts come after admission, which must not take it away
    /// from them again and again.
    pub(crate) lacked_blocks: bool,
    /// When it was planned last, there was no slot, or no memory, for the one whose turn it was.
    pub(crate) has_no_room: bool,
    pub(crate) last_sent: StepId, // 0 before the first
    pub(crate) last_committed: StepId,
    /// When the last step committed, or one was sent while none was in flight.
    pub(crate) moved_at: Micros,
}

/// How much longer than foreseen: so many times, and as much more as a hiccup of the machine takes.
const STALL_FACTOR: u64 = 8;
const STALL_US: u64 = 500_000;

impl Epoch {
    pub(crate) fn new(blocks: u32, reaches_host: bool, config: &CoreConfig) -> Self {
        Self {
            blocks: Blocks::new(blocks, reaches_host && config.has_host_tier(), config),
            slots: (0..config.max_running).map(|_| None).collect(),
            free: (0..config.max_running).rev().map(SlotId).collect(),
            drops: Vec::new(),
            order: Vec::new(),
            in_flight: VecDeque::with_capacity(STEPS_IN_FLIGHT),
            frontiers: HashMap::new(),
            transfers: Transfers::default(),
            outlook: None,
            lacked_blocks: false,
            has_no_room: false,
            last_sent: StepId(0),
            last_committed: StepId(0),
            moved_at: Micros(0),
        }
    }

    pub(crate) fn running(&self, slot: SlotId) -> &Running {
        self.slots[slot.index()].as_ref().expect("named slots are in use")
    }

    pub(crate) fn running_mut(&mut self, slot: SlotId) -> &mut Running {
        self.slots[slot.index()].as_mut().expect("named slots are in use")
    }

    /// Whether a step takes far longer than was foreseen. Nobody waits for such a group then who finds room in another one;
    /// the caller's deadline decides whether it is lost.
    pub(crate) fn is_stalled(&self, prices: Prices, now: Micros) -> bool {
        self.in_flight.front().is_some_and(|oldest| {
            let patience = STALL_US.saturating_add(STALL_FACTOR.saturating_mul(prices.micros(oldest.work)));
            now.0.saturating_sub(self.moved_at.0) > patience
        })
    }

    /// The caller has looked out.
    pub(crate) fn outlook(&self) -> &Outlook {
        self.outlook.as_ref().expect("every group with a worker has one while requests are admitted")
    }

    pub(crate) fn has_free_slot(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether one of those that wait may be let in now, or as soon as what is in flight has committed.
    pub(crate) fn may_take_more(&self) -> bool {
        !self.has_no_room || self.awaits_blocks()
    }

    /// How many tokens a request that serves would have to compute again if it gave up its slot. What others hold too is not lost.
    pub(crate) fn lost_by_preempting(&self, slot: SlotId) -> u32 {
        let running = self.running(slot);
        running.planned.saturating_sub(self.blocks.shared_tokens(&running.table))
    }

    /// All requests that hold a slot, when the worker is lost.
    pub(crate) fn into_requests(self) -> impl Iterator<Item = RequestKey> {
        self.slots.into_iter().flatten().filter_map(|running| match running.owner {
            Owner::Serves(key) | Owner::Yields(key) => Some(key),
            Owner::Nobody => None,
        })
    }

    /// The request of a slot that serves.
    pub(crate) fn served(&self, slot: SlotId) -> RequestKey {
        match self.running(slot).owner {
            Owner::Serves(key) => key,
            owner => panic!("{slot:?} stands in the order, so it serves; it is {owner:?}"),
        }
    }

    /// Known tokens that are still to be computed here or are being computed. What was found is not computed, wherever it was. What is being
    /// drawn does not count: groups are planned at different times, and whoever compares them has just planned one step more.
    pub(crate) fn load(&self, requests: &Requests) -> u64 {
        let tokens = |running: &Running, key| {
            let found = self.blocks.tokens_in_places(running.found as usize);
            u64::from(requests.get(key).known().saturating_sub(running.committed.max(found)))
        };
        self.order.iter().map(|&(_, slot)| tokens(self.running(slot), self.served(slot))).sum()
    }

    /// Whether a commit will bring blocks back, perhaps.
    pub(crate) fn awaits_blocks(&self) -> bool {
        let leaving = self.slots.len() - self.free.len() - self.order.len();
        leaving > 0 || self.in_flight.iter().any(|sent| !sent.sources.is_empty())
    }

    /// Whether a commit will give back blocks of this slot, perhaps: those that a window has passed.
    pub(crate) fn awaits_own_blocks(&self, slot: SlotId) -> bool {
        self.blocks.kinds().has_bounded() && self.running(slot).last_step > self.last_committed
    }

    /// Puts a request into a free slot.
    pub(crate) fn occupy(&mut self, running: Running) -> SlotId {
        let slot = self.free.pop().expect("the caller saw a free slot");
        assert!(self.slots[slot.index()].is_none(), "{slot:?} is free");
        let at = self.order.partition_point(|&(other, _)| other < running.standing);
        self.order.insert(at, (running.standing, slot));
        self.slots[slot.index()] = Some(running);
        slot
    }

    /// Sends a request back to the queue, once the steps in flight that name it have committed.
    pub(crate) fn preempt(&mut self, slot: SlotId, requests: &mut Requests) {
        let key = self.served(slot);
        self.take_out_of_order(slot);
        self.running_mut(slot).owner = Owner::Yields(key);
        self.drop_loads(slot);
        self.move_frontier(slot, requests.get_mut(key));
        self.settle(slot, requests);
    }

    /// Parts a slot from its request, which has ended. What was computed stays findable.
    pub(crate) fn leave(&mut self, slot: SlotId, requests: &mut Requests) {
        let key = match self.running(slot).owner {
            Owner::Serves(key) | Owner::Yields(key) => key,
            Owner::Nobody => panic!("{slot:?} was parted from its request before"),
        };
        self.index_tail(slot, requests.get_mut(key));
        self.part(slot, key, requests);
    }

    /// The same of one that serves or yields to `key`, which makes nothing findable.
    pub(crate) fn part(&mut self, slot: SlotId, key: RequestKey, requests: &mut Requests) {
        if matches!(self.running(slot).owner, Owner::Serves(_)) {
            self.take_out_of_order(slot);
        }
        self.running_mut(slot).owner = Owner::Nobody;
        self.outlook = None;
        self.drop_loads(slot);
        self.move_frontier(slot, requests.get_mut(key));
        self.settle(slot, requests);
    }

    fn drop_loads(&mut self, slot: SlotId) {
        if std::mem::take(&mut self.running_mut(slot).loading) > 0 {
            self.transfers.drop_loads(slot);
        }
    }

    /// Frees a slot whose request has left, if no step in flight names it any more.
    pub(crate) fn settle(&mut self, slot: SlotId, requests: &mut Requests) {
        if self.running(slot).last_step > self.last_committed {
            return;
        }
        match self.running(slot).owner {
            Owner::Serves(_) => return,
            Owner::Yields(key) => {
                self.index_tail(slot, requests.get_mut(key));
                requests.return_to_queue(key);
            }
            Owner::Nobody => {}
        }
        let running = self.slots[slot.index()].take().expect("looked at above");
        for block in running.table.blocks().rev() {
            self.blocks.give(block, running.tenant); // leaf before root
        }
        self.free.push(slot);
        self.drops.push(slot);
        self.outlook = None;
    }

    /// Makes what a row has computed findable.
    pub(crate) fn index_computed(&mut self, slot: SlotId, request: &mut LiveRequest) {
        let running = self.slots[slot.index()].as_mut().expect("named slots are in use");
        self.blocks.index_full(request, &running.table, &mut running.indexed, running.committed, running.hidden);
        if !running.tail_indexed && running.committed >= request.prompt_len {
            running.tail_indexed = true;
            self.blocks.index_prompt_end(request, &running.table, running.indexed);
        }
        self.move_frontier(slot, request);
    }

    /// A row has come back without its token. The KV of its last token counts no more, and no row after it: the slot goes on
    /// as if its row had ended there, and the next one computes that token again, to draw behind it. What such rows have
    /// written lies behind all that counts, where nobody reads before it is written again.
    pub(crate) fn take_back(&mut self, row: SentRow) {
        assert!(self.blocks.kinds().states() == 0, "a state cannot be taken back by a token");
        for sent in &mut self.in_flight {
            sent.rows.iter_mut().filter(|later| later.slot == row.slot).for_each(|later| later.is_void = true);
        }
        let running = self.running_mut(row.slot);
        (running.planned, running.draws) = (row.end - 1, 0);
    }

    /// Gives back what no row of this slot reads any more, now that more than `before` tokens are committed.
    pub(crate) fn pass(&mut self, slot: SlotId, before: u32) {
        if !self.blocks.kinds().has_bounded() {
            return;
        }
        let running = self.slots[slot.index()].as_mut().expect("named slots are in use");
        self.blocks.pass(&mut running.table, running.tenant, before, running.committed);
    }

    /// Notes what a slot will make findable next.
    pub(crate) fn move_frontier(&mut self, slot: SlotId, request: &mut LiveRequest) {
        let running = self.slots[slot.index()].as_mut().expect("named slots are in use");
        let serves = matches!(running.owner, Owner::Serves(_));
        // What is scored gets on slowly: nobody waits for it.
        let is_in_prompt = running.committed < request.prompt_len && !request.is_to_be_scored();
        let next = if serves && is_in_prompt { self.blocks.key_behind(request, running.indexed) } else { None };
        if let Some(left) = running.frontier.take()
            && self.frontiers.get(&left) == Some(&slot)
        {
            self.frontiers.remove(&left);
        }
        if let Some(next) = next
            && !self.frontiers.contains_key(&next)
        {
            self.frontiers.insert(next, slot);
            running.frontier = Some(next);
        }
    }

    /// Asserts that slots and frontiers tell the same story.
    pub(crate) fn check_frontiers(&self) {
        let frontiers = self.slots.iter().flatten().filter_map(|running| running.frontier);
        assert_eq!(frontiers.count(), self.frontiers.len());
        for (&key, &slot) in &self.frontiers {
            let running = self.running(slot);
            assert!(running.frontier == Some(key) && matches!(running.owner, Owner::Serves(_)), "{slot:?} gets there");
        }
    }

    /// Whether what follows a request's hit is being computed for another one.
    pub(crate) fn is_computing(&self, request: &mut LiveRequest, hit: &Hit) -> bool {
        if request.is_to_be_scored() {
            return false; // it computes all of it itself
        }
        let mut is_computed = |blocks| {
            let key = self.blocks.key_behind(request, blocks);
            key.is_some_and(|key| self.frontiers.contains_key(&key))
        };
        // Behind the unbroken run on the device another one may be bringing back the same.
        is_computed(hit.unbroken()) || (!hit.loads.is_empty() && is_computed(hit.places))
    }

    /// Whether a prompt is under way that more than one step has to compute.
    pub(crate) fn has_long_prompt(&self, requests: &Requests, step_tokens: u32) -> bool {
        let is_long = |request: &LiveRequest, running: &Running| {
            running.ahead(request) > step_tokens && !request.has_short_rows()
        };
        self.order.iter().any(|&(_, slot)| is_long(requests.get(self.served(slot)), self.running(slot)))
    }

    /// What those that serve hold and will hold.
    pub(crate) fn growths(&self, requests: &Requests, lengths: &AnswerLengths) -> Vec<Growth> {
        self.order.iter().map(|&(_, slot)| self.growth(slot, requests, lengths)).collect()
    }

    /// The same of one of them.
    pub(crate) fn growth(&self, slot: SlotId, requests: &Requests, lengths: &AnswerLengths) -> Growth {
        let (running, request) = (self.running(slot), requests.get(self.served(slot)));
        request.growth(request.known() + running.draws, running.table.held(), running.shared, lengths)
    }

    fn index_tail(&mut self, slot: SlotId, request: &mut LiveRequest) {
        let running = self.slots[slot.index()].as_ref().expect("named slots are in use");
        self.blocks.index_tail(request, &running.table, running.committed);
    }

    fn take_out_of_order(&mut self, slot: SlotId) {
        let standing = self.running(slot).standing;
        let at = self.order.binary_search_by_key(&standing, |&(standing, _)| standing).expect("it served");
        self.order.remove(at);
    }
}

//! The door: requests come in, plans go out, results come in, events go out.
//!
//! A call per file behind it: `plan` is in `schedule.rs` (those that run) and `admission.rs` (those that wait), `commit`
//! in `commit.rs`. Everything is kept in vectors by id or in ordered maps, so that the same calls give the same answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::epoch::{Epoch, STEPS_IN_FLIGHT};
use crate::group::Group;
use crate::kinds::Kinds;
use crate::lengths::AnswerLengths;
use crate::live::{Home, LiveRequest, RequestKey, Requests};
use crate::next_step::NextStep;
use crate::pins::Pins;
use crate::tiers::Tiers;
use crate::{
    CacheChange, Event, Explanation, Goal, GroupId, Kind, Limits, Micros, NewRequest, Plan, Refusal, RequestId, Waited,
};

/// What the core is told once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CoreConfig {
    /// Tokens in a KV block.
    pub block_size: u32,
    /// What the model's layers keep of the past, by their numbers: `[Kind::Full]` for most models.
    pub kinds: Vec<Kind>,
    /// Prompt and output together.
    pub max_model_len: u32,
    /// What one step may hold. At least the blocks of one request of `max_model_len` tokens, for each kind that has a
    /// table, its history, and a move for each kind that has a state.
    pub limits: Limits,
    /// Requests that run in one group at the same time; at most `limits.slots`.
    pub max_running: u32,
    /// Requests that wait; those that were preempted or whose worker was lost come on top.
    pub max_waiting: usize,
    /// Tokens of one step.
    pub token_budget: u32,
    /// How long a step that draws tokens should take, in microseconds: prompts are cut so that it does.
    pub itl_target_us: Option<u32>,
    /// Secret: who knows it could make blocks of different tokens look equal.
    pub hash_key: [u64; 2],
    /// Blocks in the host's memory, below those of the devices; 0: no such tier.
    pub host_blocks: u32,
    /// Blocks on disk, below those; 0: no such tier. It needs the one above it.
    pub disk_places: u32,
    /// Whether requests share the blocks of a common prefix.
    pub prefix_caching: bool,
    /// So many tokens of a row may be drafts, taken from where its request's text has come by before; 0: none ever is. All drafts of a
    /// step are at most the slots that are not running: `limits.slots` has to be more than `max_running` for the last one to
    /// have any.
    pub drafts_max: u32,
    /// How many percent of a worker's blocks pins may name together; 0: there are no pins.
    pub pin_share: u32,
    /// How many percent of a worker's blocks a tenant's requests may leave behind to be found later, and of what pins may
    /// name its pins; 100: no bound.
    pub tenant_cache_share: u32,
    /// Whether `cache_changes` tells anything. Who asks for it drains it.
    pub tells_cache_changes: bool,
}

impl CoreConfig {
    /// For a model of full attention only: all that a step may hold, no tiers, no pins, no bounds of the queue and the cache.
    pub fn new(limits: Limits, block_size: u32, max_model_len: u32, hash_key: [u64; 2]) -> Self {
        Self {
            block_size,
            kinds: vec![Kind::Full],
            max_model_len,
            limits,
            max_running: limits.slots,
            max_waiting: usize::MAX,
            token_budget: limits.tokens,
            itl_target_us: None,
            hash_key,
            host_blocks: 0,
            disk_places: 0,
            prefix_caching: true,
            drafts_max: 0,
            pin_share: 0,
            tenant_cache_share: 100,
            tells_cache_changes: false,
        }
    }

    /// Whether blocks are kept in the host's memory: there are some, and steps may hold the copies.
    pub(crate) fn has_host_tier(&self) -> bool {
        self.host_blocks > 0 && self.limits.saves > 0 && self.limits.loads > 0
    }
}

/// How much there is of everything now, and what has happened since the core was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Now: requests in a slot.
    pub running: usize,
    /// Now: requests in the queue.
    pub waiting: usize,
    /// Now: requests that are kept back.
    pub held: usize,
    /// Now: KV blocks that are held, of all groups whose worker lives.
    pub blocks_held: usize,
    /// Now: KV blocks in all, of the same groups.
    pub blocks: usize,
    /// Now: blocks in the host's memory that a step or the disk is about to read or write.
    pub host_blocks_held: usize,
    /// Now: blocks in the host's memory that can be found.
    pub host_blocks_findable: usize,
    /// Blocks in the host's memory in all.
    pub host_blocks: usize,
    /// Now: blocks on disk that can be found.
    pub disk_blocks: usize,
    /// Places for blocks on disk in all.
    pub disk_places: usize,
    /// Steps committed.
    pub steps: u64,
    /// Prompt tokens of requests, counted at their first admission.
    pub prompt_tokens: u64,
    /// Of those, found in the prefix cache then.
    pub cached_tokens: u64,
    /// Of these, brought back from the host's memory, where they had stayed.
    pub host_hits: u64,
    /// Of these, brought back from disk.
    pub disk_hits: u64,
    /// Blocks copied to the host's memory, by steps that have committed.
    pub saves: u64,
    /// Blocks copied back from there, by steps that have committed.
    pub loads: u64,
    /// Tokens committed.
    pub generated_tokens: u64,
    /// Drafts computed, in steps that have committed.
    pub drafted_tokens: u64,
    /// Of these, those that were drawn too: each saved its request a step.
    pub accepted_tokens: u64,
    /// Tokens that were certain before they were drawn, so that nobody drew them. They are generated tokens, too.
    pub forced_tokens: u64,
    /// Rows whose mask did not come in time: each was computed a second time.
    pub unsampled: u64,
    /// Times a request lost its blocks to another one.
    pub preemptions: u64,
    /// Of these, those to another tenant's that was due, of a request that had had its turn.
    pub turns_ended: u64,
    /// Tokens whose KV was lost by that, as far as nobody else held it.
    pub preempted_tokens: u64,
    /// Tokens that were computed once more because their request had been preempted.
    pub again_preempted: u64,
    /// The same because its worker, or what it was loading, was lost.
    pub again_lost: u64,
    /// Now: pins that have not ended.
    pub pins: usize,
    /// Now: blocks that they name, in each group.
    pub blocks_pinned: usize,
    /// Pinned blocks that were given up, because nothing else was idle.
    pub pinned_given_up: u64,
    /// Requests whose deadline passed.
    pub expired: u64,
    /// Requests that `abort` ended.
    pub aborted: u64,
    /// Times a running request was put back because its worker was lost, or what it was loading, or it was withdrawn.
    pub replayed: u64,
    /// Prompt tokens that were computed again because the prefix cache had given them up.
    pub evicted_tokens: u64,
    /// Those that no cache would have held.
    pub too_short_tokens: u64,
    /// How long those that have ended waited, and what for.
    pub waited: Waited,
}

/// All requests and all worker groups of a host. See the top of the crate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Core {
    pub(crate) config: CoreConfig,
    pub(crate) kinds: Kinds,
    pub(crate) requests: Requests,
    pub(crate) lengths: AnswerLengths,
    pub(crate) pins: Pins,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    pub(crate) tiers: Tiers,
    pub(crate) events: Vec<Event>,
    pub(crate) totals: Counts, // its gauges stay 0: `counts()` reads them off
}

impl Core {
    /// A core without groups: requests wait until there is one.
    pub fn new(config: CoreConfig) -> Self {
        let CoreConfig { block_size, max_model_len, limits, max_running, token_budget, .. } = config;
        let kinds = Kinds::new(&config.kinds, block_size);
        assert!(block_size > 0 && max_model_len > 1 && token_budget > 0 && limits.tokens > 0);
        assert!((1..=limits.slots).contains(&max_running), "a frame has a row for each running request");
        assert!(
            limits.appends >= max_model_len.div_ceil(block_size) * kinds.tables(),
            "a frame names all blocks of the longest request"
        );
        assert!(config.pin_share <= 100 && config.tenant_cache_share <= 100, "shares are in percent");
        assert!(limits.states >= kinds.states(), "a frame names all states of a request");
        assert!(limits.history >= max_model_len, "a frame holds the history of the longest request");
        let tiers = Tiers::new(&config);
        Self {
            config,
            kinds,
            requests: Requests::default(),
            lengths: AnswerLengths::default(),
            pins: Pins::default(),
            groups: BTreeMap::new(),
            tiers,
            events: Vec::new(),
            totals: Counts::default(),
        }
    }

    /// A worker is there for the first time. One that does not reach the host's memory, because it runs on another host or
    /// computes otherwise, neither saves nor loads.
    pub fn add_group(&mut self, group: GroupId, blocks: u32, reaches_host: bool) {
        let before = self.groups.insert(group, Group::new(blocks, reaches_host, &self.config));
        assert!(before.is_none(), "{group:?} is added once");
        self.pin_anew(group);
        self.tell_of_tiers(group);
        self.prefetch_first();
        self.note_outage();
    }

    /// Whether the group was added, be its worker there or lost.
    pub fn has_group(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// A new request, or one from an earlier life of the engine. Its stop rule leaves room for at least one more token.
    pub fn submit(&mut self, new: NewRequest) -> Result<(), Refusal> {
        assert!(!new.prompt.is_empty(), "a prompt has a token");
        match new.goal {
            Goal::Tokens => {
                let drawn = new.generated.len();
                assert!(drawn < new.stop.max_tokens as usize, "a request that has ended does not come again");
                if new.sampling.prompt_logprobs.is_some() {
                    let behind_first = new.prompt.len() - 1;
                    assert!(self.config.limits.scores > 0, "steps that score nothing serve none that asks for it");
                    assert!(new.scored as usize <= behind_first, "the prompt has {behind_first} tokens to be scored");
                    assert!(drawn == 0 || new.scored as usize == behind_first, "all are scored before one is drawn");
                }
            }
            Goal::VectorOfLast => assert!(new.generated.is_empty() && !new.masked, "nothing is drawn for a vector"),
            Goal::VectorOfAll => {
                assert!(new.generated.is_empty() && !new.masked, "nothing is drawn for a vector");
                assert!(!self.config.prefix_caching, "KV of tokens that see those behind them serves nobody else");
                assert_eq!(self.kinds.fulls() as usize, self.kinds.count(), "one row has the blocks of all its tokens");
            }
        }
        let waiting = self.requests.waiting_count();
        if waiting >= self.config.max_waiting {
            return Err(Refusal::QueueFull { waiting, limit: self.config.max_waiting });
        }
        assert!(!new.masked || self.kinds.states() == 0, "a state cannot be taken back by a token");
        check_bounds(&new, &self.config)?;
        let drafts = self.config.drafts_max > 0 && self.kinds.states() == 0;
        let request = LiveRequest::new(new, self.config.max_model_len, drafts);
        self.check_fits(&request)?;
        let key = self.requests.insert(request);
        self.prefetch(key);
        Ok(())
    }

    /// Ends a request that nobody waits for any more. Nothing happens if it has ended already.
    pub fn abort(&mut self, request: RequestId) {
        if let Some(key) = self.requests.find(request) {
            self.remove(key);
            self.totals.aborted += 1;
        }
    }

    /// Ends a request that is complete by something the core cannot see: a stop string. Nothing happens if it has ended
    /// already.
    pub fn finish(&mut self, request: RequestId) {
        if let Some(key) = self.requests.find(request) {
            if self.requests.get(key).goal == Goal::Tokens {
                self.lengths.learn(self.requests.get(key).drawn());
            }
            self.remove(key);
        }
    }

    /// Keeps a request back: it waits, no plan admits it, and its deadline passes as ever. Nothing happens if it has ended
    /// or runs.
    pub fn hold(&mut self, request: RequestId) {
        if let Some(key) = self.requests.find(request) {
            self.requests.hold(key);
        }
    }

    /// Lets a request wait for its turn again that was kept back. It may be refused, as by `worker_back`. Nothing happens
    /// if it was not kept back.
    pub fn release(&mut self, request: RequestId) {
        if let Some(key) = self.requests.find(request)
            && self.requests.release(key)
        {
            self.refuse_if_too_large(key);
        }
    }

    /// Time goes on: requests whose deadline has passed end, and pins, and those come forward that have waited for long.
    pub fn tick(&mut self, now: Micros) {
        self.requests.looks.now = now;
        self.end_pins(now);
        while let Some((deadline, request)) = self.requests.first_deadline()
            && deadline <= now
        {
            let key = self.requests.find(request).expect("deadlines are of live requests");
            let explanation = Box::new(self.requests.explain(key));
            self.remove(key);
            self.totals.expired += 1;
            self.events.push(Event::Expired { request, explanation });
        }
        self.end_waits_for_disk();
        self.requests.age(now);
    }

    /// It is so late. Nothing ends by it, unlike by `tick`: results that come next count, even past a deadline. Whoever does not
    /// tell the time has what comes happen when it was told last.
    pub fn clock(&mut self, now: Micros) {
        self.requests.looks.now = now;
    }

    /// When `tick` will have a request or a pin to end, or a request that has waited for the disk for long enough.
    pub fn next_deadline(&self) -> Option<Micros> {
        let deadline = self.requests.first_deadline().map(|(deadline, _)| deadline);
        deadline.into_iter().chain(self.pins.first_end()).chain(self.tiers.first_wait()).min()
    }

    /// The next step of a group. None: there is nothing to do, two steps are in flight, or the worker is lost.
    ///
    /// To be asked of every group after anything has changed: a request may have been left for another group.
    pub fn plan(&mut self, group: GroupId, now: Micros) -> Option<Plan> {
        self.tick(now);
        let group_state = &self.groups[&group];
        let epoch = group_state.epoch.as_ref()?;
        if epoch.in_flight.len() == STEPS_IN_FLIGHT {
            return None;
        }
        let mut next = NextStep::new(epoch.last_sent.next(), &self.config, self.kinds, group_state);
        self.plan_transfers(group, &mut next);
        let prompts = self.plan_running(group, &mut next);
        let turns_ended = self.totals.turns_ended;
        self.admit_waiting(group, &mut next);
        self.plan_long_prompts(group, prompts, &mut next);
        // Whoever gave up a slot that no step names is gone: no commit will say so.
        let has_made_room = self.totals.turns_ended > turns_ended && self.epoch(group).in_flight.is_empty();
        let epoch = self.epoch_mut(group);
        let lacked_blocks = std::mem::replace(&mut epoch.lacked_blocks, next.lacks_blocks);
        if (lacked_blocks && !next.lacks_blocks) || has_made_room {
            self.admit_waiting(group, &mut next); // those that wait need not wait for the next plan
        }
        let now = self.requests.looks.now;
        let epoch = self.epoch_mut(group);
        let (plan, sent) = next.finish(&mut epoch.drops)?;
        epoch.last_sent = plan.step;
        if epoch.in_flight.is_empty() {
            epoch.moved_at = now;
        }
        epoch.in_flight.push_back(sent);
        Some(plan)
    }

    /// Steps that were planned and have not committed.
    pub fn in_flight(&self, group: GroupId) -> usize {
        self.groups[&group].epoch.as_ref().map_or(0, |epoch| epoch.in_flight.len())
    }

    /// What the group's oldest step in flight is foreseen to take, in microseconds; 0 if there is none or nothing is known.
    pub fn foreseen_us(&self, group: GroupId) -> u64 {
        let group = &self.groups[&group];
        let oldest = group.epoch.as_ref().and_then(|epoch| epoch.in_flight.front());
        oldest.map_or(0, |oldest| group.cost.prices().micros(oldest.work))
    }

    /// The group's worker is dead: its steps in flight are void, and its requests wait with what they have committed.
    /// Nothing happens if the worker was lost before.
    pub fn worker_lost(&mut self, group: GroupId) {
        let Some(mut epoch) = self.group_mut(group).epoch.take() else { return };
        self.totals.pinned_given_up += epoch.blocks.pinned_given_up();
        self.tiers.lost(group, &mut epoch);
        for key in epoch.into_requests() {
            self.requests.get_mut(key).account.replayed();
            self.requests.return_to_queue(key);
            self.totals.replayed += 1;
        }
        self.note_outage();
    }

    /// A lost group has a new worker, which counts its steps from 1. If it has fewer blocks than the one before, those
    /// that wait and fit no group any more are refused.
    pub fn worker_back(&mut self, group: GroupId, blocks: u32, reaches_host: bool) {
        let Self { groups, config, .. } = self;
        groups.get_mut(&group).expect("the caller has added the group").revive(blocks, reaches_host, config);
        self.pin_anew(group);
        self.tell_of_tiers(group);
        self.prefetch_first();
        self.note_outage();
        self.refuse_those_too_large();
    }

    /// A lost group gets no worker any more. Those that wait and fit no other group are refused.
    pub fn remove_group(&mut self, group: GroupId) {
        let removed = self.groups.remove(&group).expect("the caller has added the group");
        assert!(removed.epoch.is_none(), "{group:?} had lost its worker");
        self.refuse_those_too_large();
    }

    /// What has happened since the last call.
    pub fn events(&mut self) -> impl Iterator<Item = Event> + '_ {
        self.events.drain(..)
    }

    /// What can be found in a group's prefix cache since the last call, and what no more. A lost worker's blocks are lost
    /// without a word here: the caller knows.
    pub fn cache_changes(&mut self, group: GroupId) -> Vec<CacheChange> {
        let epoch = self.group_mut(group).epoch.as_mut();
        let mut changes = epoch.map(|epoch| epoch.blocks.take_changes()).unwrap_or_default();
        changes.extend(self.tiers.take_changes(group));
        changes
    }

    /// What a request went through so far, what it waits for and what it cost others. None: it has ended.
    pub fn explain(&self, request: RequestId) -> Option<Explanation> {
        self.requests.find(request).map(|key| self.requests.explain(key))
    }

    /// The groups that were added.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.keys().copied()
    }

    /// The requests that have not ended, in the order of their ids.
    pub fn live(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.requests.iter().map(|(_, request)| request.place.id)
    }

    /// What there is now, and what has happened.
    pub fn counts(&self) -> Counts {
        let mut counts = self.totals;
        counts.waiting = self.requests.waiting_count();
        (counts.pins, counts.blocks_pinned) = (self.pins.len(), self.pins.blocks());
        counts.held = self.requests.held();
        counts.running = self.requests.len() - counts.waiting - counts.held;
        for epoch in self.groups.values().filter_map(|group| group.epoch.as_ref()) {
            counts.blocks_held += epoch.blocks.pool().held();
            counts.blocks += epoch.blocks.pool().capacity();
            counts.pinned_given_up += epoch.blocks.pinned_given_up();
        }
        self.tiers.count(&mut counts);
        counts
    }

    /// Takes a request out, wherever it is.
    fn remove(&mut self, key: RequestKey) {
        if let Home::Slot(group, slot) = self.requests.get(key).home {
            let Self { requests, groups, tiers, .. } = self;
            let epoch = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()).expect("a slot has a worker");
            epoch.leave(slot, requests);
            tiers.release(epoch);
        }
        self.requests.settle_account(key);
        self.totals.waited.add(&self.requests.explain(key).waited);
        self.requests.remove(key);
    }

    fn refuse_those_too_large(&mut self) {
        let waiting: Vec<RequestKey> = self.requests.waiting().map(|ticket| ticket.key).collect();
        for key in waiting {
            self.refuse_if_too_large(key);
        }
    }

    fn refuse_if_too_large(&mut self, key: RequestKey) {
        let request = self.requests.get(key);
        if let Err(refusal) = self.check_fits(request) {
            self.events.push(Event::Refused { request: request.place.id, refusal });
            self.remove(key);
        }
    }

    fn tell_of_tiers(&mut self, group: GroupId) {
        let Self { groups, tiers, config, .. } = self;
        tiers.gained(group, groups[&group].epoch.as_ref().expect("it has a worker now"), config);
    }

    fn note_outage(&mut self) {
        let is_served = self.groups.values().any(|group| group.epoch.is_some());
        self.requests.looks.set_served(is_served);
    }

    fn check_fits(&self, request: &LiveRequest) -> Result<(), Refusal> {
        let Some(blocks) = self.groups.values().map(|group| group.blocks).max() else { return Ok(()) };
        let needed = request.blocks_max(&self.kinds);
        if needed > blocks {
            return Err(Refusal::NeverFits { needed: needed as usize, blocks: blocks as usize });
        }
        Ok(())
    }

    pub(crate) fn group_mut(&mut self, group: GroupId) -> &mut Group {
        self.groups.get_mut(&group).expect("the caller has added the group")
    }

    pub(crate) fn epoch(&self, group: GroupId) -> &Epoch {
        self.groups[&group].epoch.as_ref().expect("the caller saw that the worker lives")
    }

    pub(crate) fn epoch_mut(&mut self, group: GroupId) -> &mut Epoch {
        self.group_mut(group).epoch.as_mut().expect("the caller saw that the worker lives")
    }
}

fn fits_a_vector(tokens: usize, limit: u32) -> Result<(), Refusal> {
    if tokens > limit as usize { Err(Refusal::TooLongToPool { tokens, limit }) } else { Ok(()) }
}

fn check_bounds(new: &NewRequest, config: &CoreConfig) -> Result<(), Refusal> {
    let tokens = new.prompt.len() + new.generated.len();
    let limit = config.max_model_len;
    match new.goal {
        Goal::Tokens if tokens >= limit as usize => return Err(Refusal::TooLong { tokens, limit }),
        Goal::Tokens => {}
        Goal::VectorOfLast => fits_a_vector(tokens, limit)?,
        Goal::VectorOfAll => fits_a_vector(tokens, limit.min(config.token_budget).min(config.limits.tokens))?,
    }
    for (param, got, limit) in [
        ("logit_bias", new.sampling.logit_bias.len(), config.limits.biases),
        ("stop_token_ids", new.stop.stop_ids.len() + new.sampling.told.len(), config.limits.suppressed),
    ] {
        if got > limit as usize {
            return Err(Refusal::TooMany { param, got, limit });
        }
    }
    Ok(())
}

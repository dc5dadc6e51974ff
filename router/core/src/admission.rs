//! Which of the waiting requests enter a slot, and in which group.
//!
//! They come in the queue's order, and one that finds no room holds up those behind it: else the large ones would wait for
//! ever. Room means: blocks for all its known tokens now, and for what all that run will probably grow to before others
//! leave. Passed over, to be looked at again in the next step, are only those
//!   * that another group will take,
//!   * that wait for blocks from disk,
//!   * that are to be scored, while the step scores no more,
//!   * whose next tokens are being computed for another request: they are shared as soon as they are there,
//!   * that no single step could compute, while another such prompt is under way: short ones pass, and long ones come one
//!     by one, each with at least half of every step. These are set aside, so that thousands of them cost those behind them no look;
//!     the first of them are brought back when a group has no long prompt under way.

use crate::blocks::Blocks;
use crate::core::Core;
use crate::epoch::{Owner, Running};
use crate::hit::{Hit, LowerBlock};
use crate::kinds::Kinds;
use crate::lengths::Growth;
use crate::live::{Place, RequestKey};
use crate::next_step::NextStep;
use crate::outlook::Outlook;
use crate::queue::Ticket;
use crate::table::Table;
use crate::tiers::{Below, plan_loads};
use crate::{Copy, Event, Goal, GroupId, Load, Missed, StepId, Wait};

/// How many requests are looked at in vain in one step, so that its cost has a bound.
const PASSED_OVER_MAX: usize = 64;
/// How many of those that stand aside are brought back when a group could begin with one of them.
const BROUGHT_BACK_MAX: usize = 8;
/// And where a look is thorough, whether one could or not: what they find in a cache may have grown.
const LOOKED_AT_AGAIN_MAX: usize = 16;

enum Choice {
    /// This group, now.
    Here(Hit),
    /// Not now, and others may pass.
    PassOver(Wait),
    /// The same, and many may wait for the same: it is looked at again with a few of them.
    SetAside(Wait),
    /// No group has room now; this one will.
    NoRoom(Wait),
}

impl Core {
    /// Admits waiting requests as long as the step and the group have room.
    pub(crate) fn admit_waiting(&mut self, group: GroupId, next: &mut NextStep) {
        let epoch = self.epoch_mut(group);
        (epoch.outlook, epoch.has_no_room) = (None, !epoch.has_free_slot());
        if self.requests.waiting_count() == 0 {
            return;
        }
        self.requests.looks.next(self.groups.len());
        let hindrance = match () {
            () if next.is_full() => Some(Wait::Step),
            () if next.lacks_blocks || self.epoch(group).lacked_blocks => Some(Wait::Blocks),
            () if !self.epoch(group).has_free_slot() => Some(Wait::Slot),
            () => None,
        };
        if let Some(hindrance) = hindrance {
            self.epoch_mut(group).has_no_room |= hindrance == Wait::Blocks;
            self.requests.first_waits_for(hindrance);
            self.end_turns(group);
            return;
        }
        self.look_out();
        let brought_back = self.bring_back(next);
        let mut passed_over: Vec<(Ticket, bool)> = Vec::new();
        while !next.is_full()
            && passed_over.len() < PASSED_OVER_MAX
            && let Some(mut ticket) = self.requests.pop_waiting()
        {
            let request = self.requests.get(ticket.key);
            let choice = match () {
                () if next.has_no_room_for_short_row(request) => Choice::SetAside(Wait::Step),
                () if next.takes_admit(request) => self.choose(group, ticket.key),
                () => Choice::NoRoom(Wait::Step),
            };
            let (reason, others_pass, stands_aside) = match choice {
                Choice::Here(hit) => {
                    if self.admit(group, ticket, hit, next) {
                        continue;
                    }
                    (Wait::Step, false, false)
                }
                Choice::PassOver(reason) => (reason, true, false),
                Choice::SetAside(reason) => (reason, true, true),
                Choice::NoRoom(reason) => (reason, false, false),
            };
            self.requests.wait_for(ticket.key, reason);
            if !others_pass && reason != Wait::Step && !self.epoch(group).awaits_blocks() {
                ticket.call_off();
            }
            passed_over.push((ticket, stands_aside));
            if !others_pass {
                self.epoch_mut(group).has_no_room = reason != Wait::Step;
                break;
            }
        }
        if next.is_full() && passed_over.is_empty() {
            self.requests.first_waits_for(Wait::Step);
        }
        for (ticket, stands_aside) in passed_over {
            match stands_aside {
                true => self.requests.set_aside(ticket),
                false => self.requests.put_back(ticket),
            }
        }
        brought_back.into_iter().for_each(|place| self.requests.set_aside_again(place));
        self.end_turns(group);
    }

    /// Lets some of those be looked at that stand aside.
    fn bring_back(&mut self, next: &NextStep) -> Vec<Place> {
        let outlooks = self.groups.values().filter_map(|group| group.epoch.as_ref()?.outlook.as_ref());
        let may_begin = next.takes_short_rows() || outlooks.into_iter().any(|outlook| !outlook.has_long_prompt());
        self.requests.bring_back(match () {
            () if self.requests.looks.is_thorough() => LOOKED_AT_AGAIN_MAX,
            () if may_begin => BROUGHT_BACK_MAX,
            () => 0,
        })
    }

    /// Every group with a worker has an outlook then.
    fn look_out(&mut self) {
        let Self { groups, requests, lengths, config, .. } = self;
        for group in groups.values_mut() {
            let step_tokens = group.step_tokens(config);
            let Some(epoch) = &mut group.epoch else { continue };
            match &mut epoch.outlook {
                Some(outlook) => outlook.forget_what_was_left(),
                None => epoch.outlook = Some(Outlook::new(epoch, requests, lengths, step_tokens)),
            }
        }
    }

    /// Of the groups that can take the request now, the one with the least to compute, the request included. Groups are planned at
    /// different times, and each may find the other better off by then: so nobody gives a request back to who left it.
    fn choose(&mut self, here: GroupId, key: RequestKey) -> Choice {
        let Self { requests, groups, tiers, lengths, kinds, .. } = self;
        let now = requests.looks.now;
        let request = requests.get_mut(key);
        if tiers.is_awaited(request) {
            return Choice::PassOver(Wait::Disk);
        }
        let mut candidates: Vec<(u64, GroupId, Hit)> = Vec::new();
        let mut lacking = Wait::Slot; // here
        for (&id, group) in groups.iter() {
            let Some(epoch) = group.epoch.as_ref().filter(|epoch| epoch.has_free_slot()) else { continue };
            let prices = group.cost.prices();
            let is_out = id != here && (epoch.is_stalled(prices, now) || request.left_by.contains(&id));
            if is_out || !group.ever_fits(request) {
                continue;
            }
            let found = tiers.find(&epoch.blocks, request, prices);
            let Some(hit) = epoch.blocks.fit(found, request.known()) else {
                lacking = if id == here { Wait::Blocks } else { lacking };
                continue;
            };
            let to_compute = u64::from(request.known() - epoch.blocks.tokens_in(&hit));
            let cost = epoch.outlook().load() + to_compute + tiers.cost_of_loads(&hit, prices);
            candidates.push((cost, id, hit));
        }
        candidates.sort_unstable_by_key(|&(cost, id, _)| (cost, id));
        for (_, id, hit) in candidates {
            let epoch = groups.get_mut(&id).and_then(|group| group.epoch.as_mut()).expect("seen above");
            let growth = growth_of(request, &hit, kinds, lengths);
            if !epoch.outlook().has_room(growth, kinds, epoch.blocks.pool().capacity() as u64) {
                lacking = if id == here { Wait::Growth } else { lacking };
                continue;
            }
            let to_compute = request.known() - epoch.blocks.tokens_in(&hit);
            let outlook = epoch.outlook.as_mut().expect("looked at above");
            let is_long = outlook.is_long(request, to_compute);
            return if id != here {
                // It counts there from now on: else all that wait would leave everything to the same group.
                outlook.leave(growth, to_compute, is_long, kinds);
                if !request.left_by.contains(&here) {
                    request.left_by.push(here);
                }
                Choice::PassOver(Wait::Group)
            } else if is_long && outlook.has_long_prompt() {
                Choice::SetAside(Wait::LongPrompt)
            } else if epoch.is_computing(request, &hit) {
                Choice::PassOver(Wait::Shared)
            } else {
                Choice::Here(hit)
            };
        }
        if groups[&here].ever_fits(request) { Choice::NoRoom(lacking) } else { Choice::PassOver(Wait::Group) }
    }

    /// Lets a request in and gives it its first row. False: the step has no room for it.
    fn admit(&mut self, id: GroupId, ticket: Ticket, mut hit: Hit, next: &mut NextStep) -> bool {
        let (key, now) = (ticket.key, self.requests.looks.now);
        let group = self.groups.get_mut(&id).expect("plan() looked");
        let (prices, epoch) = (group.cost.prices(), group.epoch.as_mut().expect("plan() looked"));
        let request = self.requests.get_mut(key);
        let waits_for_loads = !next.takes_loads(&hit);
        // Who waits takes the blocks of its first row when that comes: how long it may be then nobody knows now.
        hit.partial = hit.partial.filter(|partial| !waits_for_loads && next.takes_copies(partial.sources.len()));
        let blocks = &mut epoch.blocks;
        let (known, cached) = (request.known(), blocks.tokens_in(&hit));
        let count = next.row_max(request, known - cached, cached, 0);
        if count == 0 && !waits_for_loads {
            return false;
        }
        if request.goal == Goal::VectorOfAll && count < known {
            return false; // the next step begins empty, and holds it
        }

        request.left_by.clear();
        let growth = growth_of(request, &hit, &self.kinds, &self.lengths);
        let outlook = epoch.outlook.as_mut().expect("looked at to choose it");
        outlook.admit(growth, known - cached, outlook.is_long(request, known - cached), &self.kinds);
        let expected = growth.coming + 1;

        let sources = hit.partial.iter().flat_map(|partial| &partial.sources).copied();
        for block in hit.table.blocks().chain(sources) {
            blocks.hold(block);
        }
        self.tiers.hold_sources(&hit);
        let missed = if request.was_admitted { Missed::default() } else { blocks.missed(request, &hit) };
        let below = self.tiers.used(blocks, request, &hit, prices);
        let (shared, indexed) = (shared_blocks(&hit, &self.kinds), hit.unbroken());
        let Hit { places, mut table, loads, partial } = hit;
        let loads = take_for_loads(&loads, blocks, &mut table);
        blocks.take_full(known, &mut table);
        let count = blocks.row_max(&table, cached, count.max(1));
        if !waits_for_loads {
            blocks.take_for_row(&mut table, cached, cached + count);
        }
        for (kind, &from) in partial.iter().flat_map(|partial| partial.sources.iter().enumerate()) {
            let to = table.get(kind, places).expect("the row writes behind the copied tokens");
            next.copy(Copy { from, to, tokens: partial.as_ref().map_or(0, |partial| partial.tokens) });
        }
        let counted = |blocks: usize| u32::try_from(blocks).expect("blocks are counted by u32");
        let running = Running {
            owner: Owner::Serves(key),
            standing: ticket.standing(),
            tenant: request.party.tenant,
            since: now,
            table,
            appended: 0,
            planned: cached,
            // What is copied or brought back, and what stands behind that, counts when the first row is done.
            committed: counted(indexed) * self.config.block_size,
            draws: 0,
            drafts: 0,
            shared,
            found: counted(places),
            indexed,
            hidden: 0,
            loading: counted(loads.len()),
            tail_indexed: false,
            frontier: None,
            last_row: StepId(0),
            last_step: StepId(0),
        };
        let slot = epoch.occupy(running);
        next.admit(slot, epoch.running_mut(slot), request);
        epoch.transfers.load(slot, loads);
        plan_loads(epoch, next);
        let running = epoch.running_mut(slot);
        assert_eq!(running.loading > 0, waits_for_loads, "the step takes loads in their order");
        if !waits_for_loads {
            next.row(slot, running, request, count, &[]);
        }
        epoch.move_frontier(slot, self.requests.get_mut(key));
        self.requests.move_to_slot(&ticket, id, slot);
        self.tell_admitted(key, cached, below, missed, expected);
        true
    }

    /// Only the first admission counts: a preempted request that finds its own blocks has saved nobody anything, and
    /// pays no second time.
    fn tell_admitted(&mut self, key: RequestKey, cached: u32, below: Below, missed: Missed, expected: u32) {
        let request = self.requests.get_mut(key);
        if request.was_admitted {
            let (again, was_lost) = request.account.comes_back(cached);
            let totals = &mut self.totals;
            *(if was_lost { &mut totals.again_lost } else { &mut totals.again_preempted }) += u64::from(again);
        } else {
            request.was_admitted = true;
            let cached = cached.min(request.prompt_len);
            request.account.cached(cached, below, missed);
            request.uncached = request.prompt_len - cached;
            let cost = u64::from(request.uncached) + u64::from(expected);
            self.totals.prompt_tokens += u64::from(request.prompt_len);
            self.totals.cached_tokens += u64::from(cached);
            self.totals.evicted_tokens += u64::from(missed.evicted);
            self.totals.too_short_tokens += u64::from(missed.too_short);
            self.totals.host_hits += u64::from(below.host);
            self.totals.disk_hits += u64::from(below.disk);
            self.events.push(Event::Admitted { request: request.place.id, cached });
            self.requests.charge(key, cost);
        }
    }
}

/// Takes fresh blocks for those that are loaded.
fn take_for_loads(below: &[LowerBlock], blocks: &mut Blocks, table: &mut Table) -> Vec<Load> {
    let mut load = |below: &LowerBlock| {
        blocks.fill(below.kind, below.at, table);
        Load { from: below.from, to: table.get(below.kind, below.at).expect("just taken") }
    };
    below.iter().map(&mut load).collect()
}

/// Blocks of a hit that others hold too, of the kinds that keep all.
fn shared_blocks(hit: &Hit, kinds: &Kinds) -> u32 {
    let on_device = |kind| (0..hit.places).filter(|&at| hit.table.get(kind, at).is_some()).count();
    let shared: usize = kinds.full().map(on_device).sum();
    u32::try_from(shared).expect("blocks are counted by u32")
}

fn growth_of(
    request: &crate::live::LiveRequest,
    hit: &Hit,
    kinds: &Kinds,
    lengths: &crate::lengths::AnswerLengths,
) -> Growth {
    let held = kinds.blocks_at(request.known());
    let shared = shared_blocks(hit, kinds);
    request.growth(request.known(), held, shared, lengths)
}

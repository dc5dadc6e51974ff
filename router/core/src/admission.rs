//! Which of the waiting requests enter a slot, and in which group.
//!
//! They come in the queue's order, and one that finds no room holds up those behind it: else the large ones would wait for
//! ever. Room means: blocks for all its known tokens now, and for what all that run will probably grow to before others
//! leave. Passed over, to be looked at again in the next step, are only those
//!   * that another group will take,
//!   * whose next tokens are being computed for another request: they are shared as soon as they are there,
//!   * that no single step could compute, while another such prompt is under way: short ones pass, and long ones come one
//!     by one, each with at least half of every step.

use std::collections::BTreeMap;

use crate::core::Core;
use crate::epoch::{Owner, Running};
use crate::hit::Hit;
use crate::kinds::Kinds;
use crate::lengths::{Growth, peak};
use crate::live::RequestKey;
use crate::next_step::NextStep;
use crate::queue::Ticket;
use crate::{Copy, Event, GroupId, Missed, StepId, Wait};

/// How many requests are passed over in one step, so that its cost has a bound.
const PASSED_OVER_MAX: usize = 64;

enum Choice {
    /// This group, now.
    Here(Hit),
    /// Not now, and others may pass.
    PassOver(Wait),
    /// No group has room now; this one will.
    NoRoom(Wait),
}

/// What a group has before it.
struct Outlook {
    load: u64, // tokens to compute
    running: Vec<Growth>,
    held: u64, // blocks
    has_long_prompt: bool,
}

impl Core {
    /// Admits waiting requests as long as the step and the group have room.
    pub(crate) fn admit_waiting(&mut self, group: GroupId, next: &mut NextStep) {
        if self.requests.waiting().len() == 0 {
            return;
        }
        self.requests.looks.next(self.groups.len());
        let hindrance = match () {
            () if next.is_full() => Some(Wait::Step),
            () if next.lacks_blocks => Some(Wait::Blocks),
            () if !self.epoch(group).has_free_slot() => Some(Wait::Slot),
            () => None,
        };
        if let Some(hindrance) = hindrance {
            self.requests.first_waits_for(hindrance);
            return;
        }
        let mut outlooks = self.outlooks();
        let mut passed_over: Vec<Ticket> = Vec::new();
        while !next.is_full()
            && passed_over.len() < PASSED_OVER_MAX
            && let Some(ticket) = self.requests.pop_waiting()
        {
            let choice = if next.takes_admit(self.requests.get(ticket.key)) {
                self.choose(group, ticket.key, &mut outlooks)
            } else {
                Choice::NoRoom(Wait::Step)
            };
            let (reason, others_pass) = match choice {
                Choice::Here(hit) => {
                    if self.admit(group, ticket, hit, next, &mut outlooks) {
                        continue;
                    }
                    (Wait::Step, false)
                }
                Choice::PassOver(reason) => (reason, true),
                Choice::NoRoom(reason) => (reason, false),
            };
            self.requests.wait_for(ticket.key, reason);
            passed_over.push(ticket);
            if !others_pass {
                break;
            }
        }
        if next.is_full() && passed_over.is_empty() {
            self.requests.first_waits_for(Wait::Step);
        }
        for ticket in passed_over {
            self.requests.put_back(ticket);
        }
    }

    fn outlooks(&self) -> BTreeMap<GroupId, Outlook> {
        let epochs = self.groups.iter().filter_map(|(&id, group)| Some((id, group.epoch.as_ref()?)));
        epochs
            .map(|(id, epoch)| {
                let outlook = Outlook {
                    load: epoch.load(&self.requests),
                    running: epoch.growths(&self.requests, &self.lengths),
                    held: epoch.blocks.pool().held() as u64,
                    has_long_prompt: epoch.has_long_prompt(&self.requests, self.config.token_budget),
                };
                (id, outlook)
            })
            .collect()
    }

    /// Of the groups that can take the request now, the one with the least to compute, the request included.
    fn choose(&mut self, here: GroupId, key: RequestKey, outlooks: &mut BTreeMap<GroupId, Outlook>) -> Choice {
        let Self { requests, groups, lengths, config, kinds, .. } = self;
        let request = requests.get_mut(key);
        let mut best: Option<(u64, GroupId, Hit)> = None;
        let mut lacking = Wait::Slot; // here
        for (&id, group) in groups.iter() {
            let Some(epoch) = group.epoch.as_ref().filter(|epoch| epoch.has_free_slot()) else { continue };
            if !group.ever_fits(request) {
                continue;
            }
            let Some(hit) = epoch.blocks.fit(epoch.blocks.find(request), request.known()) else {
                lacking = if id == here { Wait::Blocks } else { lacking };
                continue;
            };
            let outlook = outlooks.get_mut(&id).expect("each live group has an outlook");
            let growth = growth_of(request, &hit, kinds, lengths);
            if !outlook.has_room(growth, kinds, epoch.blocks.pool().capacity() as u64) {
                lacking = if id == here { Wait::Growth } else { lacking };
                continue;
            }
            let cost = outlook.load + u64::from(request.known() - epoch.blocks.tokens_in(&hit));
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, id, hit));
            }
        }
        match best {
            Some((_, id, _)) if id != here => Choice::PassOver(Wait::Group),
            Some((_, _, hit)) => {
                let epoch = groups[&here].epoch.as_ref().expect("it was chosen");
                let to_compute = request.known() - epoch.blocks.tokens_in(&hit);
                let is_second_long = to_compute > config.token_budget && outlooks[&here].has_long_prompt;
                if is_second_long {
                    Choice::PassOver(Wait::LongPrompt)
                } else if epoch.is_computing(request, &hit) {
                    Choice::PassOver(Wait::Shared)
                } else {
                    Choice::Here(hit)
                }
            }
            None if groups[&here].ever_fits(request) => Choice::NoRoom(lacking),
            None => Choice::PassOver(Wait::Group),
        }
    }

    /// Lets a request in and gives it its first row. False: the step has no room for it.
    fn admit(
        &mut self,
        id: GroupId,
        ticket: Ticket,
        hit: Hit,
        next: &mut NextStep,
        outlooks: &mut BTreeMap<GroupId, Outlook>,
    ) -> bool {
        let key = ticket.key;
        let epoch = self.groups.get_mut(&id).and_then(|group| group.epoch.as_mut()).expect("plan() looked");
        let request = self.requests.get_mut(key);
        let Hit { places, table, partial } = hit;
        let partial = partial.filter(|partial| next.takes_copies(partial.sources.len()));
        let hit = Hit { places, table, partial };
        let blocks = &mut epoch.blocks;
        let (known, cached) = (request.known(), blocks.tokens_in(&hit));
        let count = next.row_max(known - cached, cached, 0);
        if count == 0 {
            return false;
        }

        let outlook = outlooks.get_mut(&id).expect("each live group has an outlook");
        let growth = growth_of(request, &hit, &self.kinds, &self.lengths);
        outlook.load += u64::from(known - cached);
        outlook.held += u64::from(growth.held - growth.shared);
        outlook.has_long_prompt |= known - cached > self.config.token_budget;
        let expected = growth.coming + 1;
        outlook.running.push(growth);

        let committed = blocks.tokens_in_full(&hit); // a copied part counts when its step is done
        let sources = hit.partial.iter().flat_map(|partial| &partial.sources).copied();
        for block in hit.table.blocks().chain(sources) {
            blocks.hold(block);
        }
        let missed = if request.was_admitted { Missed::default() } else { blocks.missed(request, &hit) };
        let Hit { places, mut table, partial } = hit;
        blocks.take_full(known, &mut table);
        let count = blocks.row_max(&table, cached, count);
        blocks.take_for_row(&mut table, cached, cached + count);
        for (kind, &from) in partial.iter().flat_map(|partial| partial.sources.iter().enumerate()) {
            let to = table.get(kind, places).expect("the row writes behind the copied tokens");
            next.copy(Copy { from, to, tokens: cached - committed });
        }
        let running = Running {
            owner: Owner::Serves(key),
            tenant: request.party.tenant,
            table,
            appended: 0,
            planned: cached,
            committed,
            draws: 0,
            shared: places,
            indexed: places,
            tail_indexed: false,
            frontier: None,
            last_step: StepId(0),
        };
        let slot = epoch.occupy(ticket.place, running);
        next.admit(slot, request);
        next.row(slot, epoch.running_mut(slot), request, count);
        epoch.move_frontier(slot, self.requests.get_mut(key));
        self.requests.move_to_slot(key, id, slot);
        self.tell_admitted(key, cached, missed, expected);
        true
    }

    /// Only the first admission counts: a preempted request that finds its own blocks has saved nobody anything, and
    /// pays no second time.
    fn tell_admitted(&mut self, key: RequestKey, cached: u32, missed: Missed, expected: u32) {
        let request = self.requests.get_mut(key);
        if !request.was_admitted {
            request.was_admitted = true;
            let cached = cached.min(request.prompt_len);
            request.account.cached(cached, missed);
            request.uncached = request.prompt_len - cached;
            let cost = u64::from(request.uncached) + u64::from(expected);
            self.totals.prompt_tokens += u64::from(request.prompt_len);
            self.totals.cached_tokens += u64::from(cached);
            self.events.push(Event::Admitted { request: request.place.id, cached });
            self.requests.charge(key, cost);
        }
    }
}

impl Outlook {
    /// Whether one more request will probably fit until the others leave. Alone it always may try: nobody is in its way.
    fn has_room(&mut self, request: Growth, kinds: &Kinds, capacity: u64) -> bool {
        if self.running.is_empty() {
            return true;
        }
        self.running.push(request);
        let held = self.held + u64::from(request.held - request.shared);
        let peak = peak(&mut self.running, held, kinds, capacity);
        let at = self.running.iter().position(|growth| *growth == request).expect("pushed above");
        self.running.swap_remove(at);
        peak <= capacity
    }
}

fn growth_of(
    request: &crate::live::LiveRequest,
    hit: &Hit,
    kinds: &Kinds,
    lengths: &crate::lengths::AnswerLengths,
) -> Growth {
    let held = kinds.blocks_at(request.known());
    let shared = u32::try_from(hit.places).expect("blocks are counted by u32") * kinds.fulls();
    request.growth(request.known(), held, shared, lengths)
}

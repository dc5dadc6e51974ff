//! Which of the waiting requests enter a slot, and in which group.
//!
//! They come by their place, and one that finds no room holds up those behind it: else the long ones would wait for ever.
//! Passed over is only one that another group will take. A request enters with blocks for all its known tokens.

use std::collections::BTreeMap;

use crate::blocks::Hit;
use crate::core::Core;
use crate::epoch::{Owner, Running};
use crate::live::{Place, RequestKey};
use crate::next_step::NextStep;
use crate::{Copy, Event, GroupId, StepId};

/// How many requests that another group will take are passed over in one step, so that its cost has a bound.
const PASSED_OVER_MAX: usize = 64;

enum Choice {
    /// This group, now.
    Here(Hit),
    /// Another group: it can take the request sooner, or this one never can.
    Elsewhere,
    /// No group has room now; this one will.
    NoRoom,
}

impl Core {
    /// Admits waiting requests as long as the step and the group have room.
    pub(crate) fn admit_waiting(&mut self, group: GroupId, next: &mut NextStep) {
        let mut candidate = self.requests.next_waiting(None);
        if candidate.is_none() || !self.epoch(group).has_free_slot() {
            return;
        }
        let mut loads = self.loads();
        let mut passed_over = 0;
        while let Some((place, key)) = candidate
            && !next.is_full()
            && next.takes_admit(self.requests.get(key))
        {
            match self.choose(group, key, &loads) {
                Choice::Here(hit) => match self.admit(group, (place, key), hit, next) {
                    Some(load) => *loads.get_mut(&group).expect("each live group has a load") += load,
                    None => return,
                },
                Choice::Elsewhere if passed_over < PASSED_OVER_MAX => passed_over += 1,
                Choice::Elsewhere | Choice::NoRoom => return,
            }
            candidate = self.requests.next_waiting(Some(place));
        }
    }

    fn loads(&self) -> BTreeMap<GroupId, u64> {
        let epochs = self.groups.iter().filter_map(|(&id, group)| Some((id, group.epoch.as_ref()?)));
        epochs.map(|(id, epoch)| (id, epoch.load(&self.requests))).collect()
    }

    /// Of the groups that can take the request now, the one with the least to compute, the request included.
    fn choose(&mut self, here: GroupId, key: RequestKey, loads: &BTreeMap<GroupId, u64>) -> Choice {
        let Self { requests, groups, .. } = self;
        let request = requests.get_mut(key);
        let mut best: Option<(u64, GroupId, Hit)> = None;
        for (&id, group) in groups.iter() {
            let Some(epoch) = group.epoch.as_ref().filter(|epoch| epoch.has_free_slot()) else { continue };
            if !group.ever_fits(request) {
                continue;
            }
            let Some(hit) = epoch.blocks.fit(epoch.blocks.find(request), request.known()) else { continue };
            let cost = loads[&id] + u64::from(request.known() - epoch.blocks.tokens_in(&hit));
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, id, hit));
            }
        }
        match best {
            Some((_, id, hit)) if id == here => Choice::Here(hit),
            Some(_) => Choice::Elsewhere,
            None if groups[&here].ever_fits(request) => Choice::NoRoom,
            None => Choice::Elsewhere,
        }
    }

    /// Lets a request in and gives it its first row. Returns what it adds to the group's load, or nothing if the step
    /// has no room for it.
    fn admit(&mut self, id: GroupId, (place, key): (Place, RequestKey), hit: Hit, next: &mut NextStep) -> Option<u64> {
        let epoch = self.groups.get_mut(&id).and_then(|group| group.epoch.as_mut()).expect("plan() looked");
        let request = self.requests.get(key);
        let partial = hit.partial.filter(|_| next.takes_copy());
        let hit = Hit { partial, ..hit };
        let blocks = &mut epoch.blocks;
        let (known, cached) = (request.known(), blocks.tokens_in(&hit));
        let count = next.row_max(known - cached, cached, 0, 0);
        if count == 0 {
            return None;
        }

        let committed = blocks.tokens_in_full(&hit); // a copied part counts when its step is done
        let indexed = hit.full.len();
        for block in hit.full.iter().copied().chain(partial.map(|partial| partial.source)) {
            blocks.hold(block);
        }
        let mut table = hit.full;
        blocks.take(blocks.count_for(known) - table.len(), &mut table);
        if let Some(partial) = partial {
            next.copy(Copy { from: partial.source, to: table[indexed], tokens: partial.tokens });
        }
        let running = Running {
            owner: Owner::Serves(key),
            table,
            appended: 0,
            planned: cached,
            committed,
            draws: 0,
            indexed,
            last_step: StepId(0),
        };
        let slot = epoch.occupy(place, running);
        next.admit(slot, request);
        next.row(slot, epoch.running_mut(slot), request, count);
        self.requests.move_to_slot(key, id, slot);
        self.tell_admitted(key, cached);
        Some(u64::from(known - committed))
    }

    /// Only the first admission counts: a preempted request that finds its own blocks has saved nobody anything.
    fn tell_admitted(&mut self, key: RequestKey, cached: u32) {
        let request = self.requests.get_mut(key);
        if !request.was_admitted {
            request.was_admitted = true;
            let cached = cached.min(request.prompt_len);
            self.totals.prompt_tokens += u64::from(request.prompt_len);
            self.totals.cached_tokens += u64::from(cached);
            self.events.push(Event::Admitted { request: request.place.id, cached });
        }
    }
}

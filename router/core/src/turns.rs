//! Turns of tenants, where answers are so long that all slots, or all memory, are taken for minutes.
//!
//! Shares decide who comes next, but not when there is room. So one that runs gives up its slot for one that is due if
//!   * no group has room for any more, or will have as soon as what is in flight has committed;
//!   * its tenant has more slots than that of the one that is due;
//!   * it has had its turn: for `TURN_US`, and so long that computing it again takes a small part of that;
//!   * there will be room then for the one that is due. Where memory is short several may have to go for it.
//!
//! It goes back to the queue with all that it has drawn, and its patience begins anew. So each of several tenants runs for a turn
//! and waits for one, and nobody is put back again and again after a moment. The requests of one tenant wait for each other.
//! Never here: in which order those wait that are due (`queue.rs`).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::core::Core;
use crate::epoch::{Epoch, Running};
use crate::group::Group;
use crate::lengths::peak;
use crate::live::{LiveRequest, RequestKey};
use crate::queue::PATIENCE;
use crate::{GroupId, SlotId};

/// How long a turn is at least, in microseconds.
const TURN_US: u64 = PATIENCE.0;
/// And so many times what it would take to compute the request again.
const TURN_FACTOR: u64 = 8;

impl Core {
    /// Ends turns in a group, if the conditions hold for those that run there.
    pub(crate) fn end_turns(&mut self, group: GroupId) {
        let epoch = self.epoch(group);
        if epoch.may_take_more() || !self.requests.may_call() {
            return;
        }
        let (now, prices) = (self.requests.looks.now.0, self.groups[&group].cost.prices());
        let has_had_turn = |running: &Running| {
            let took = now.saturating_sub(running.since.0);
            took >= TURN_US && took >= prices.computing(0, running.planned).saturating_mul(TURN_FACTOR)
        };
        let candidates = epoch.order.iter().map(|&(_, slot)| (slot, epoch.running(slot)));
        let candidates: Vec<_> = candidates.filter(|(_, running)| has_had_turn(running)).collect();
        if candidates.is_empty() {
            return;
        }
        let mut slots: BTreeMap<u64, usize> = BTreeMap::new();
        let epochs = self.groups.values().filter_map(|group| group.epoch.as_ref());
        for running in epochs.flat_map(|epoch| epoch.slots.iter().flatten()) {
            *slots.entry(running.tenant).or_default() += 1;
        }
        let (its_slots, here) = (|tenant| slots.get(&tenant).copied().unwrap_or(0), &self.groups[&group]);
        let Some((has, due)) = self.requests.due_with_fewest(its_slots, |request| here.ever_fits(request)) else {
            return;
        };
        let request = self.requests.get(due);
        let takes = |group: &Group| group.ever_fits(request) && group.epoch.as_ref().is_some_and(Epoch::may_take_more);
        if self.groups.values().any(takes) {
            return;
        }
        let victims = self.victims(group, candidates, slots, has, request);
        if !victims.is_empty() {
            self.requests.call(due);
            victims.into_iter().for_each(|slot| self.take_turn_from(group, slot, due));
        }
    }

    /// Those that give up their slots for a request whose tenant has `has` of them: of the tenant with most slots the one whose turn is
    /// the longest, and so on, as many as it takes. None: there would be no room even without all of them.
    fn victims(
        &self,
        group: GroupId,
        mut candidates: Vec<(SlotId, &Running)>,
        mut slots: BTreeMap<u64, usize>,
        has: usize,
        request: &LiveRequest,
    ) -> Vec<SlotId> {
        let mut victims = Vec::new();
        loop {
            candidates.retain(|(_, running)| slots[&running.tenant] > has);
            let next =
                candidates.iter().min_by_key(|(slot, running)| (Reverse(slots[&running.tenant]), running.since, *slot));
            let Some(&(slot, running)) = next else { break };
            *slots.get_mut(&running.tenant).expect("it has this one") -= 1;
            candidates.retain(|&(other, _)| other != slot);
            victims.push(slot);
        }
        if !self.has_room_without(group, &victims, request) {
            return Vec::new();
        }
        // The more leave, the more room there is: halving finds how many have to.
        let (mut too_few, mut enough) = (0, victims.len());
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            let is_enough = self.has_room_without(group, &victims[..middle], request);
            *(if is_enough { &mut enough } else { &mut too_few }) = middle;
        }
        victims.truncate(enough);
        victims
    }

    /// Whether a group has the blocks for a request, and room to grow, once these have given up their slots.
    fn has_room_without(&self, group: GroupId, victims: &[SlotId], request: &LiveRequest) -> bool {
        let (epoch, kinds) = (self.epoch(group), self.kinds);
        let tables = victims.iter().map(|&slot| &epoch.running(slot).table);
        let freed = epoch.blocks.held_by_these_alone(tables);
        let (known, pool) = (request.known(), epoch.blocks.pool());
        let needed = kinds.blocks_at(known);
        let mut growths = vec![request.growth(known, needed, 0, &self.lengths)];
        let stay = epoch.order.iter().filter(|(_, slot)| !victims.contains(slot));
        growths.extend(stay.map(|&(_, slot)| epoch.growth(slot, &self.requests, &self.lengths)));
        let held = (pool.held().saturating_sub(freed) + needed as usize) as u64;
        // Alone it always has room; what else is held then is about to come home.
        growths.len() == 1 || peak(&mut growths, held, &kinds) <= pool.capacity() as u64
    }

    fn take_turn_from(&mut self, group: GroupId, slot: SlotId, due: RequestKey) {
        let Self { requests, groups, totals, .. } = self;
        let epoch = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()).expect("plan() looked");
        let lost = epoch.lost_by_preempting(slot);
        let now = requests.looks.now;
        let request = requests.get_mut(epoch.served(slot));
        request.turn_ended = Some(now);
        request.account.preempted(lost);
        requests.get_mut(due).account.preempts(lost);
        epoch.preempt(slot, requests);
        totals.turns_ended += 1;
        totals.preemptions += 1;
        totals.preempted_tokens += u64::from(lost);
    }
}

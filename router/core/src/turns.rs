//! Turns of tenants, where answers are so long that all slots are taken for minutes.
//!
//! Shares decide who comes next, but not when a slot is free. So one that runs gives up its slot for one that is due if
//!   * no group has a free slot, or will have one as soon as what is in flight has committed;
//!   * its tenant has more slots than that of the one that is due;
//!   * it has had its turn: for `TURN_US`, and so long that computing it again takes a small part of that.
//! It goes back to the queue with all that it has drawn, and its patience begins anew. So each of several tenants runs for a turn
//! and waits for one, and nobody is put back again and again after a moment. The requests of one tenant wait for each other.
//! Never here: in which order those wait that are due (`queue.rs`).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::core::Core;
use crate::epoch::{Epoch, Running};
use crate::queue::PATIENCE;
use crate::{GroupId, SlotId};

/// How long a turn is at least, in microseconds.
const TURN_US: u64 = PATIENCE.0;
/// And so many times what it would take to compute the request again.
const TURN_FACTOR: u64 = 8;

impl Core {
    /// Ends a turn in a group, if the conditions hold for one that runs there.
    pub(crate) fn end_a_turn(&mut self, group: GroupId) {
        let epochs = || self.groups.values().filter_map(|group| group.epoch.as_ref());
        if epochs().any(Epoch::has_or_awaits_slot) {
            return;
        }
        let mut slots: BTreeMap<u64, usize> = BTreeMap::new();
        for running in epochs().flat_map(|epoch| epoch.slots.iter().flatten()) {
            *slots.entry(running.tenant).or_default() += 1;
        }
        let (now, prices, epoch) = (self.requests.looks.now.0, self.groups[&group].cost.prices(), self.epoch(group));
        let has_had_turn = |running: &Running| {
            let took = now.saturating_sub(running.since.0);
            took >= TURN_US && took >= prices.computing(0, running.planned).saturating_mul(TURN_FACTOR)
        };
        let candidates = epoch.order.iter().map(|&(_, slot)| (slot, epoch.running(slot)));
        let candidates = candidates.filter(|(_, running)| has_had_turn(running));
        // Of the tenant with most slots, the one whose turn is the longest.
        let first = candidates.map(|(slot, running)| (Reverse(slots[&running.tenant]), running.since, slot)).min();
        let Some((Reverse(most), _, slot)) = first else { return };
        if self.requests.call_due(most, |tenant| slots.get(&tenant).copied().unwrap_or(0)) {
            self.take_turn_from(group, slot);
        }
    }

    fn take_turn_from(&mut self, group: GroupId, slot: SlotId) {
        let Self { requests, groups, totals, .. } = self;
        let epoch = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()).expect("plan() looked");
        let lost = epoch.lost_by_preempting(slot);
        let now = requests.looks.now;
        let request = requests.get_mut(epoch.served(slot));
        request.turn_ended = Some(now);
        request.account.preempted(lost);
        epoch.preempt(slot, requests);
        totals.turns_ended += 1;
        totals.preemptions += 1;
        totals.preempted_tokens += u64::from(lost);
    }
}

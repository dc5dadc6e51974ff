//! Turns of tenants, where answers are so long that all slots are taken for minutes.
//!
//! Shares decide who comes next, but not when there is room. So one that runs gives up its slot for one that is due if
//!   * no group has room for any more, or will have as soon as what is in flight has committed;
//!   * its tenant has more slots than that of the one that is due;
//!   * it has had its turn: for `TURN_US`, and so long that computing it again takes a small part of that.
//!
//! It goes back to the queue with all that it has drawn, and its patience begins anew. So each of several tenants runs for a turn
//! and waits for one, and nobody is put back again and again after a moment. The requests of one tenant wait for each other.
//! Never here: in which order those wait that are due (`queue.rs`).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::core::Core;
use crate::epoch::{Epoch, Running};
use crate::group::Group;
use crate::queue::PATIENCE;
use crate::{GroupId, SlotId};

/// How long a turn is at least, in microseconds.
const TURN_US: u64 = PATIENCE.0;
/// And so many times what it would take to compute the request again.
const TURN_FACTOR: u64 = 8;

impl Core {
    /// Ends a turn in a group, if the conditions hold for one that runs there.
    pub(crate) fn end_a_turn(&mut self, group: GroupId) {
        let epoch = self.epoch(group);
        if epoch.may_take_more() {
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
        // Of the tenant with most slots, the one whose turn is the longest.
        let first =
            candidates.iter().map(|(slot, running)| (Reverse(slots[&running.tenant]), running.since, *slot)).min();
        let (Reverse(most), _, slot) = first.expect("there are candidates");
        let (its_slots, here) = (|tenant| slots.get(&tenant).copied().unwrap_or(0), &self.groups[&group]);
        let due = self.requests.due_with_fewest(its_slots, |request| here.ever_fits(request));
        let Some((_, due)) = due.filter(|&(slots, _)| slots < most) else { return };
        let request = self.requests.get(due);
        let takes = |group: &Group| group.ever_fits(request) && group.epoch.as_ref().is_some_and(Epoch::may_take_more);
        if !self.groups.values().any(takes) {
            self.requests.call(due);
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

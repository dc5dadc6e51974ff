//! Who gets how much of the next step. One rule for all: a request has known tokens and computed ones, and a step
//! computes some of the difference. Prompts, decoding, cached prefixes, replay are not told apart. B:SC2.
//!
//! First the running requests, by their place, then those that wait, by theirs. One step ahead: a token that a step in
//! flight will draw counts as known, and the worker fills it in.
//!
//! When blocks run out, a request may take them from requests behind it. The first of all is never preempted and so
//! always gets on: everything ends. One that has nobody behind it waits, and keeps what it has.

use crate::core::Core;
use crate::epoch::Epoch;
use crate::live::Requests;
use crate::next_step::NextStep;
use crate::{GroupId, SlotId};

impl Core {
    /// Plans rows for the requests that run. If one of them goes without the block it wants, none is idle, and so
    /// nobody is admitted into this step either.
    pub(crate) fn plan_running(&mut self, group: GroupId, next: &mut NextStep) {
        let Self { requests, groups, totals, .. } = self;
        let epoch = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()).expect("plan() looked");
        let mut at = 0;
        while !next.is_full()
            && let Some(&(_, slot)) = epoch.order.get(at)
        {
            at += 1;
            let behind = epoch.order.len() - at;
            let key = epoch.served(slot);
            let running = epoch.running(slot);
            let ahead = running.ahead(requests.get(key));
            let count = next.row_max(ahead, running.planned, running.appended, behind);
            if count == 0 {
                continue; // its last token is being drawn, or the step has no appends left
            }
            let wanted = epoch.blocks.count_for(running.planned + count).saturating_sub(running.table.len());
            if !make_room(epoch, requests, at, wanted, &mut totals.preemptions) {
                continue;
            }
            let Epoch { blocks, slots, .. } = epoch;
            let running = slots[slot.index()].as_mut().expect("it serves");
            blocks.take(wanted, &mut running.table);
            next.row(slot, running, requests.get(key), count);
        }
    }
}

/// Sees to it that `wanted` blocks are idle, by preempting requests that stand at `behind` or later. Says whether it worked.
///
/// A victim that a step in flight names gives its blocks only when that step commits; then this step goes without the
/// row that wanted them. Nobody else is preempted while blocks are on their way.
fn make_room(epoch: &mut Epoch, requests: &mut Requests, behind: usize, wanted: usize, preemptions: &mut u64) -> bool {
    while epoch.blocks.pool().idle() < wanted {
        if epoch.awaits_blocks() {
            return false;
        }
        let Some(victim) = victim(epoch, behind) else {
            assert!(epoch.order.len() > 1, "a request that runs alone has all the blocks it may need");
            return false;
        };
        epoch.preempt(victim, requests);
        *preemptions += 1;
    }
    true
}

/// Of the requests at `behind` or later: of the least important priority, the one that loses least work.
fn victim(epoch: &Epoch, behind: usize) -> Option<SlotId> {
    let candidates = &epoch.order[behind..];
    let least_important = candidates.last()?.0.priority;
    candidates
        .iter()
        .rev() // of equals the latest
        .take_while(|(place, _)| place.priority == least_important)
        .map(|&(_, slot)| slot)
        .min_by_key(|&slot| epoch.running(slot).planned)
}

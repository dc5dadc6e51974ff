//! Copies between a worker's device and the host's memory: which are to be made, and what comes of them.
//!
//! A save needs no hold on its source: within a step saves come before anything that writes, and a block that was taken for
//! something else in an earlier step is not saved any more. A load holds its source until its step has committed, and the
//! request that waits for it has its first row when the last of its loads is planned: in a step, loads come before rows.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Label, Saving, Tiers};
use crate::core::Core;
use crate::cost::Prices;
use crate::epoch::{Epoch, Owner, Sent};
use crate::next_step::NextStep;
use crate::{BlockId, GroupId, HostBlockId, Load, Save, SlotId};

/// The copies of one worker that no step holds yet.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Transfers {
    wanted: VecDeque<(BlockId, Label)>, // to be saved, oldest first
    loads: VecDeque<(SlotId, Load)>,    // oldest first
    freed: Vec<HostBlockId>,            // sources of loads that nobody wants any more
}

impl Transfers {
    /// A request waits for these.
    pub(crate) fn load(&mut self, slot: SlotId, loads: Vec<Load>) {
        self.loads.extend(loads.into_iter().map(|load| (slot, load)));
    }

    /// The request has left its slot.
    pub(crate) fn drop_loads(&mut self, slot: SlotId) {
        let Self { loads, freed, .. } = self;
        loads.retain(|(of, load)| {
            if *of == slot {
                freed.push(load.from);
            }
            *of != slot
        });
    }

    /// How many of a slot's loads no step holds yet.
    pub(crate) fn loads_of(&self, slot: SlotId) -> usize {
        self.loads.iter().filter(|(of, _)| *of == slot).count()
    }

    /// The worker is gone. What is held for it.
    pub(crate) fn end(&mut self) -> Vec<HostBlockId> {
        let held = self.held().collect();
        *self = Self::default();
        held
    }

    /// The blocks of the host's memory that are held for these.
    pub(crate) fn held(&self) -> impl Iterator<Item = HostBlockId> {
        self.loads.iter().map(|(_, load)| load.from).chain(self.freed.iter().copied())
    }
}

impl Core {
    /// Plans the copies that wait. Nothing of the step writes a block before this.
    pub(crate) fn plan_transfers(&mut self, group: GroupId, next: &mut NextStep) {
        let Self { groups, tiers, .. } = self;
        let group = groups.get_mut(&group).expect("the caller has added the group");
        let prices = group.cost.prices();
        let Some(epoch) = group.epoch.as_mut() else { return };
        if epoch.blocks.are_saved() {
            tiers.release(epoch);
            plan_saves(tiers, epoch, prices, next);
            plan_loads(epoch, next);
        }
    }

    /// A step has committed.
    pub(crate) fn land(&mut self, group: GroupId, sent: &Sent) {
        for &to in &sent.saves {
            self.totals.saves += u64::from(self.tiers.saved(to));
        }
        for &from in &sent.loads {
            self.tiers.give(from);
        }
        self.totals.loads += sent.loads.len() as u64;
        let Self { requests, groups, .. } = self;
        let epoch = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()).expect("commit() looked");
        for &slot in &sent.named {
            epoch.settle(slot, requests);
        }
    }

    /// All that is kept below the devices is void: it is of another model, or computed otherwise. Requests that wait for
    /// loads go back to the queue.
    pub fn clear_tiers(&mut self) {
        let Self { requests, groups, tiers, totals, .. } = self;
        for epoch in groups.values_mut().filter_map(|group| group.epoch.as_mut()) {
            let waits = |slot: &SlotId| epoch.running(*slot).loading > 0;
            let waiting: Vec<SlotId> = epoch.order.iter().map(|&(_, slot)| slot).filter(waits).collect();
            for slot in waiting {
                requests.get_mut(epoch.served(slot)).account.replayed();
                totals.replayed += 1;
                epoch.preempt(slot, requests);
            }
            tiers.release(epoch);
        }
        tiers.clear();
    }
}

impl Tiers {
    /// Gives back what was held for loads that nobody wants any more.
    pub(crate) fn release(&mut self, epoch: &mut Epoch) {
        for from in epoch.transfers.freed.drain(..) {
            self.give(from);
        }
    }
}

fn plan_saves(tiers: &mut Tiers, epoch: &mut Epoch, prices: Prices, next: &mut NextStep) {
    let Epoch { blocks, transfers, .. } = epoch;
    transfers.wanted.extend(blocks.take_filled());
    let excess = transfers.wanted.len().saturating_sub(blocks.pool().capacity());
    transfers.wanted.drain(..excess); // more than there are blocks: some stand there twice
    while next.takes_save()
        && let Some((from, label)) = transfers.wanted.pop_front()
    {
        let Some(tokens) = blocks.tokens_of(from, label.key) else { continue }; // given up before its turn
        match tiers.save(&label, tokens, prices) {
            Saving::To(to) => next.save(Save { from, to }),
            Saving::Needless => {}
            Saving::Later => {
                transfers.wanted.push_front((from, label));
                break;
            }
        }
    }
}

/// Plans loads as far as the step has room, those of earlier requests first.
pub(crate) fn plan_loads(epoch: &mut Epoch, next: &mut NextStep) {
    while next.takes_load()
        && let Some((slot, load)) = epoch.transfers.loads.pop_front()
    {
        let running = epoch.running_mut(slot);
        assert!(matches!(running.owner, Owner::Serves(_)), "who leaves waits for nothing");
        running.loading -= 1;
        next.load(slot, running, load);
    }
}

//! A request is taken away from its worker, which lives on and computes the others.
//!
//! Never here: why, and when it may run again. The caller knows, and says `release`.

use serde::{Deserialize, Serialize};

use crate::core::Core;
use crate::epoch::{Epoch, Owner, Running};
use crate::live::{Home, RequestKey};
use crate::{GroupId, RequestId, SlotId};

/// What is thought of the KV that a request has left and found so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trust {
    /// It is as good as any.
    Full,
    /// It may be what is wrong: nobody finds it any more. From here on the request finds nothing that others have left, and leaves
    /// nothing to them.
    None,
}

impl Core {
    /// Whether a request still has this slot.
    pub fn has_slot(&self, request: RequestId, group: GroupId, slot: SlotId) -> bool {
        self.requests.find(request).is_some_and(|key| self.requests.get(key).home == Home::Slot(group, slot))
    }

    /// The requests that have a slot of a group.
    pub fn in_slots(&self, group: GroupId) -> Vec<RequestId> {
        let Some(epoch) = &self.groups[&group].epoch else { return Vec::new() };
        let key = |running: &Running| match running.owner {
            Owner::Serves(key) | Owner::Yields(key) => Some(key),
            Owner::Nobody => None,
        };
        epoch.slots.iter().flatten().filter_map(key).map(|key| self.requests.get(key).place.id).collect()
    }

    /// Keeps a request back as `hold` does, and takes its slot away if it has one: rows of it in flight count for nothing, and it goes on
    /// from its committed tokens when it is released. Nothing happens if it has ended.
    pub fn withdraw(&mut self, request: RequestId, trust: Trust) {
        let Some(key) = self.requests.find(request) else { return };
        if trust == Trust::None {
            self.forget_chain(key);
        }
        if let Home::Slot(group, slot) = self.requests.get(key).home {
            let Self { requests, groups, tiers, .. } = self;
            let epoch = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()).expect("a slot has a worker");
            match trust {
                Trust::Full => epoch.leave(slot, requests),
                Trust::None => epoch.part(slot, key, requests),
            }
            tiers.release(epoch);
            requests.withdraw(key);
            requests.get_mut(key).account.replayed();
            self.totals.replayed += 1;
        } else {
            self.requests.hold(key);
        }
        if trust == Trust::None {
            self.requests.get_mut(key).keys.begin_apart(request.0 + 1); // of live requests each has its own
        }
    }

    /// What a request has found and left is found no more, in any group and any tier. What others have behind it stays: whoever comes
    /// by there again computes what was before it.
    fn forget_chain(&mut self, key: RequestKey) {
        if self.requests.get(key).keys.is_apart() {
            return; // nothing is known under its keys
        }
        self.forget_what_is_loaded(key);
        let Self { requests, groups, tiers, kinds, .. } = self;
        let request = requests.get_mut(key);
        for (&id, group) in groups.iter_mut() {
            let Some(epoch) = &mut group.epoch else { continue };
            let found = match request.home {
                Home::Slot(its, slot) if its == id => Some(epoch.running(slot).found as usize),
                _ => None,
            };
            epoch.blocks.forget_chain(request, found);
        }
        tiers.forget_chain(request, kinds.count());
    }

    /// Blocks of its chain that others are bringing back just now are not made findable when they are there.
    fn forget_what_is_loaded(&mut self, key: RequestKey) {
        let Self { requests, groups, .. } = self;
        for epoch in groups.values_mut().filter_map(|group| group.epoch.as_mut()) {
            let Epoch { blocks, slots, .. } = epoch;
            for running in slots.iter_mut().flatten() {
                let (Owner::Serves(other) | Owner::Yields(other)) = running.owner else { continue };
                let (first, found) = (running.indexed, running.found as usize);
                if first < found
                    && let Some(name) = blocks.name_of(requests.get_mut(key), first)
                    && blocks.name_of(requests.get_mut(other), first) == Some(name)
                {
                    running.hidden = found;
                }
            }
        }
    }
}

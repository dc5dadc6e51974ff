//! The invariants of everything, for tests: what each part asserts of itself, and that the parts agree.

use crate::core::Core;
use crate::epoch::{Epoch, Owner, STEPS_IN_FLIGHT};
use crate::live::{Home, RequestKey, Requests};
use crate::{BlockId, CoreConfig, GroupId, SlotId};

impl Core {
    /// Asserts every invariant, in time that grows with all there is.
    pub fn check(&self) {
        for (&id, group) in &self.groups {
            if let Some(epoch) = &group.epoch {
                check_epoch(id, epoch, &self.requests, &self.config);
            }
        }
        for (key, request) in self.requests.iter() {
            assert!(request.known() < request.known_max, "{:?} has not ended", request.place);
            match request.home {
                Home::Queue => assert!(self.requests.waiting().any(|waiting| waiting == (request.place, key))),
                Home::Slot(group, slot) => assert!(
                    matches!(self.epoch(group).running(slot).owner, Owner::Serves(owner) | Owner::Yields(owner) if owner == key)
                ),
            }
        }
        for (_, key) in self.requests.waiting() {
            assert_eq!(self.requests.get(key).home, Home::Queue);
        }
    }
}

fn check_epoch(id: GroupId, epoch: &Epoch, requests: &Requests, config: &CoreConfig) {
    let running = epoch.slots.iter().flatten();
    let tables = running.clone().flat_map(|running| &running.table);
    let sources = epoch.in_flight.iter().flat_map(|sent| &sent.sources);
    epoch.blocks.check(tables.chain(sources).copied());

    assert!(epoch.in_flight.len() <= STEPS_IN_FLIGHT);
    assert_eq!(epoch.last_sent.0 - epoch.last_committed.0, epoch.in_flight.len() as u64);
    assert_eq!(running.count() + epoch.free.len(), epoch.slots.len());
    assert!(epoch.order.is_sorted_by(|(one, _), (next, _)| one < next));
    for &slot in epoch.free.iter().chain(&epoch.drops) {
        assert!(slot.index() < epoch.slots.len());
    }
    let serving = epoch.slots.iter().flatten().filter(|running| matches!(running.owner, Owner::Serves(_))).count();
    assert_eq!(serving, epoch.order.len(), "the order holds all that serve");
    for (slot, running) in (0..).map(SlotId).zip(&epoch.slots) {
        let Some(running) = running else {
            assert!(epoch.free.contains(&slot));
            continue;
        };
        let rows = epoch.in_flight.iter().flat_map(|sent| sent.rows.iter().map(move |row| (sent.step, row)));
        let rows: Vec<_> = rows.filter(|(_, row)| row.slot == slot).collect();
        let told = running.planned.div_ceil(config.block_size) as usize;
        assert_eq!(running.appended, told, "{slot:?}: the worker knows the blocks that are filled");
        assert!(running.table.len() >= told);
        assert!(running.committed <= running.planned);
        assert!(
            running.indexed * config.block_size as usize <= running.committed as usize,
            "{slot:?}: the index sees committed tokens"
        );
        match running.owner {
            Owner::Serves(key) | Owner::Yields(key) => {
                check_home(requests, key, id, slot);
                let draws = rows.iter().filter(|(_, row)| row.samples).count();
                assert_eq!(running.draws as usize, draws, "{slot:?}: draws in flight");
                assert!(running.planned <= requests.get(key).known() + running.draws);
                if let Some(&(step, row)) = rows.last() {
                    assert_eq!((step, row.end), (running.last_step, running.planned));
                }
            }
            Owner::Nobody => {}
        }
        if !matches!(running.owner, Owner::Serves(_)) {
            assert!(!rows.is_empty(), "{slot:?} is kept only for steps in flight");
        }
    }
    for &(place, slot) in &epoch.order {
        assert_eq!(requests.get(epoch.served(slot)).place, place);
    }
    check_private_tails(epoch);
}

fn check_home(requests: &Requests, key: RequestKey, group: GroupId, slot: SlotId) {
    assert_eq!(requests.get(key).home, Home::Slot(group, slot));
}

/// What a row may still write must belong to one table alone. Its block may be the source of a copy, though: copies
/// read the tokens that were committed.
fn check_private_tails(epoch: &Epoch) {
    for running in epoch.slots.iter().flatten() {
        let written: &[BlockId] = &running.table[running.indexed.min(running.table.len())..];
        for block in written {
            let tables = epoch.slots.iter().flatten().filter(|other| other.table.contains(block)).count();
            assert_eq!(tables, 1, "{block:?} is still written and stands in one table");
        }
    }
}

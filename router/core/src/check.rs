//! The invariants of everything, for tests: what each part asserts of itself, and that the parts agree.

use crate::core::Core;
use crate::epoch::{Epoch, Owner, Running, STEPS_IN_FLIGHT, SentRow};
use crate::live::{Home, Requests};
use crate::{CoreConfig, GroupId, SlotId, StepId};

impl Core {
    /// Asserts every invariant, in time that grows with all there is.
    pub fn check(&self) {
        for (&id, group) in &self.groups {
            if let Some(epoch) = &group.epoch {
                check_epoch(id, epoch, &self.requests, &self.config);
            }
        }
        let mut held = 0;
        for (key, request) in self.requests.iter() {
            assert!(request.known() < request.known_max, "{:?} has not ended", request.place);
            if let Some(drafter) = &request.drafter {
                drafter.check(&request.tokens);
            }
            match request.home {
                Home::Queue => {
                    assert!(self.requests.waiting().any(|ticket| ticket.key == key && ticket.place == request.place))
                }
                Home::Held => held += 1,
                Home::Slot(group, slot) => assert!(
                    matches!(self.epoch(group).running(slot).owner, Owner::Serves(owner) | Owner::Yields(owner) if owner == key)
                ),
            }
        }
        assert_eq!(self.requests.held(), held);
        for ticket in self.requests.waiting() {
            assert_eq!(self.requests.get(ticket.key).home, Home::Queue);
        }
        let at_home = self.requests.iter().filter(|(_, request)| request.home == Home::Queue).count();
        assert_eq!(self.requests.waiting_count(), at_home, "each waits once");
        self.requests.check();
        let epochs = self.groups.values().filter_map(|group| group.epoch.as_ref());
        self.tiers.check(epochs.flat_map(|epoch| {
            let in_flight = epoch.in_flight.iter().flat_map(|sent| sent.saves.iter().chain(&sent.loads).copied());
            in_flight.chain(epoch.transfers.held())
        }));
    }
}

fn check_epoch(id: GroupId, epoch: &Epoch, requests: &Requests, config: &CoreConfig) {
    let in_use = || epoch.slots.iter().flatten();
    let tables = in_use().flat_map(|running| running.table.blocks());
    let sources = epoch.in_flight.iter().flat_map(|sent| sent.sources.iter().copied());
    epoch.blocks.check(tables.chain(sources));

    assert!(epoch.in_flight.len() <= STEPS_IN_FLIGHT);
    assert_eq!(epoch.last_sent.0 - epoch.last_committed.0, epoch.in_flight.len() as u64);
    assert_eq!(in_use().count() + epoch.free.len(), epoch.slots.len());
    assert!(epoch.free.iter().all(|slot| epoch.slots[slot.index()].is_none()));
    assert!(epoch.order.is_sorted_by(|(one, _), (next, _)| one < next));
    epoch.check_frontiers();
    let serving = in_use().filter(|running| matches!(running.owner, Owner::Serves(_))).count();
    assert_eq!(serving, epoch.order.len(), "the order holds all that serve");
    for &(standing, slot) in &epoch.order {
        assert_eq!(epoch.running(slot).standing, standing);
        assert_eq!(requests.get(epoch.served(slot)).place.id, standing.id);
    }
    for (slot, running) in (0..).map(SlotId).zip(&epoch.slots) {
        if let Some(running) = running {
            check_tokens(slot, running, config);
            check_needed(slot, running, epoch);
            check_owner(id, slot, running, epoch, requests);
            check_written(running, epoch);
        }
    }
}

fn check_tokens(slot: SlotId, running: &Running, config: &CoreConfig) {
    let block_size = config.block_size as usize;
    assert!(running.committed <= running.planned);
    assert!(running.shared <= running.table.held(), "{slot:?}: full kinds keep what they found");
    assert!(running.indexed * block_size <= running.committed as usize, "{slot:?}: the index sees committed tokens");
    let told = if running.last_row == StepId(0) { 0 } else { (running.planned as usize).div_ceil(block_size) };
    assert!(running.appended >= told, "{slot:?}: what is filled was told");
}

/// Whatever a step in flight or the next one reads is there.
fn check_needed(slot: SlotId, running: &Running, epoch: &Epoch) {
    let kinds = epoch.blocks.kinds();
    let found = epoch.blocks.tokens_in_places(running.found as usize);
    for kind in 0..kinds.count() {
        // A step in flight that computes the tokens behind `committed` may have written places that are not read by all.
        if let Some((_, mode)) = kinds.with_state().find(|&(number, _)| number == kind) {
            let latest = kinds.written(kind, running.planned - 1, running.planned).start;
            assert!(running.table.get(kind, latest).is_some(), "{slot:?}: the latest state of kind {kind}, {mode:?}");
            continue;
        }
        for at in kinds.first_needed(kind, running.committed.max(found))..running.appended {
            assert!(running.table.get(kind, at).is_some(), "{slot:?}: place {at} of kind {kind}");
        }
    }
}

fn check_owner(id: GroupId, slot: SlotId, running: &Running, epoch: &Epoch, requests: &Requests) {
    let rows = epoch.in_flight.iter().flat_map(|sent| sent.rows.iter().map(move |row| (sent.step, row)));
    let rows: Vec<_> = rows.filter(|(_, row)| row.slot == slot).collect();
    if let Owner::Serves(key) | Owner::Yields(key) = running.owner {
        let request = requests.get(key);
        assert_eq!(request.home, Home::Slot(id, slot));
        assert!(running.planned <= request.known() + running.draws);
        let draws = |row: &SentRow| if row.samples && !row.is_void { 1 + row.drafts } else { 0 };
        assert_eq!(running.draws, rows.iter().map(|(_, row)| draws(row)).sum::<u32>(), "{slot:?}: draws in flight");
        let drafts: u32 = rows.iter().map(|(_, row)| row.drafts).sum();
        assert_eq!(running.drafts, drafts, "{slot:?}: drafts in flight");
        assert!(drafts == 0 || rows.len() == 1, "{slot:?}: nothing is planned behind drafts or before them");
    }
    if let Some(&(step, row)) = rows.last() {
        assert_eq!(step, running.last_row);
        assert!(row.end == running.planned || row.is_void, "{slot:?}: planned as far as its last row that counts");
    }
    let named = epoch.in_flight.iter().filter(|sent| sent.named.contains(&slot)).map(|sent| sent.step);
    match named.chain(rows.last().map(|&(step, _)| step)).max() {
        Some(step) => assert_eq!(step, running.last_step),
        None => assert!(matches!(running.owner, Owner::Serves(_)), "{slot:?} is kept only for steps in flight"),
    }
    assert_eq!(running.loading as usize, epoch.transfers.loads_of(slot), "{slot:?}: loads that no step holds");
    assert!(running.loading == 0 || matches!(running.owner, Owner::Serves(_)) && running.last_row == StepId(0));
}

/// What a row may still write belongs to one table alone. It may be the source of a copy, though: a copy reads only
/// what was committed.
fn check_written(running: &Running, epoch: &Epoch) {
    for block in running.table.blocks_from(running.indexed.max(running.found as usize)) {
        let tables =
            epoch.slots.iter().flatten().filter(|other| other.table.blocks().any(|held| held == block)).count();
        assert_eq!(tables, 1, "{block:?} is still written and stands in one table");
    }
}

//! A virtual disk: keeps what it is told to keep, loses some of it, and answers when it likes.

use std::collections::{BTreeMap, VecDeque};

use pelton_core::{BlockKey, DiskEntry, DiskFault, DiskOrder, DiskPlace, TokenId};

use super::random::Random;
use super::worker::HostMemory;

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Disk {
    kept: BTreeMap<DiskPlace, Kept>,
    orders: VecDeque<DiskOrder>,
    answers: VecDeque<(DiskPlace, Result<(), DiskFault>)>,
    uses: u64,
}

struct Kept {
    entry: DiskEntry,
    kv: Vec<Option<u64>>,
}

/// What the disk has done.
pub(crate) enum Done {
    Written,
    Read,
    Fault,
    Erased,
}

impl Disk {
    /// Orders come. What a read goes to is nobody's until it is answered.
    pub(crate) fn take(&mut self, orders: Vec<DiskOrder>, host: &mut HostMemory) {
        for order in orders {
            if let DiskOrder::Read { to, .. } = &order {
                host[to.index()].fill(None);
            }
            if let DiskOrder::Write { place, .. } | DiskOrder::Read { place, .. } = &order {
                let has_place = |other: &DiskOrder| matches!(other, DiskOrder::Write { place: of, .. } | DiskOrder::Read { place: of, .. } if of == place);
                assert!(!self.orders.iter().any(has_place), "{place:?} has one order");
                assert!(!self.answers.iter().any(|(of, _)| of == place), "{place:?} was answered before");
            }
            self.orders.push_back(order);
        }
    }

    /// Carries out the oldest order, or fails to.
    pub(crate) fn work(&mut self, random: &mut Random, has_faults: bool, host: &mut HostMemory) -> Option<Done> {
        let order = self.orders.pop_front()?;
        self.uses += 1;
        let fault = if random.once_in(2) { DiskFault::Damaged } else { DiskFault::Failed };
        let fault = (has_faults && random.once_in(5)).then_some(fault);
        let (place, done) = match order {
            DiskOrder::Erase { place } => {
                self.kept.remove(&place);
                return Some(Done::Erased);
            }
            DiskOrder::Write { place, from, key, parent, tokens, salt } => {
                let kv = host[from.index()].clone();
                let entry = DiskEntry { place, key, parent, tokens, salt, last_used: self.uses };
                self.kept.insert(place, Kept { entry, kv });
                (place, Done::Written)
            }
            DiskOrder::Read { place, to, key } => {
                let kept = self.kept.get_mut(&place).expect("what is read was written");
                assert_eq!(kept.entry.key, key, "{place:?} holds what is asked for");
                kept.entry.last_used = self.uses;
                host[to.index()] = kept.kv.clone();
                (place, Done::Read)
            }
        };
        match fault {
            Some(fault) => {
                self.kept.remove(&place);
                self.answers.push_back((place, Err(fault)));
                Some(Done::Fault)
            }
            None => {
                self.answers.push_back((place, Ok(())));
                Some(done)
            }
        }
    }

    /// An answer that the core has not heard yet: not always the oldest.
    pub(crate) fn answer(&mut self, random: &mut Random) -> Option<(DiskPlace, Result<(), DiskFault>)> {
        let last = u32::try_from(self.answers.len()).expect("few").checked_sub(1)?;
        self.answers.remove(random.within(0..=last) as usize)
    }

    /// What is found on it at the next start; some of it is not what it says it is.
    pub(crate) fn entries(&self, random: &mut Random, has_faults: bool) -> Vec<DiskEntry> {
        let mut entries: Vec<DiskEntry> = self.kept.values().map(|kept| kept.entry.clone()).collect();
        for entry in &mut entries {
            match random.within(0..=19) {
                0 if has_faults => entry.tokens[0] ^= 1,
                1 if has_faults => entry.key = BlockKey([7; 16]),
                2 if has_faults => entry.parent = Some(BlockKey([7; 16])),
                3 if has_faults => entry.tokens = Box::<[TokenId]>::default(),
                _ => {}
            }
        }
        random.shuffle(&mut entries);
        entries
    }

    /// How many blocks it keeps.
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }
}

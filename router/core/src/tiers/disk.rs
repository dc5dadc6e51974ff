//! The disk as the core sees it: which block is kept where, and the orders that are under way.
//!
//! An order is *given* when `disk_orders` hands it out, and *under way* from when it is made until it is answered. As long
//! as it is, the place and the block of the host's memory that it names are held.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::shelf::{At, Reserved, Shelf};
use super::{Label, Tiers, Told, key_of};
use crate::core::Core;
use crate::keys::Key;
use crate::{
    BlockKey, CacheScope, DiskEntry, DiskFault, DiskOrder, DiskPlace, HostBlockId, Medium, Micros, RequestId, TokenId,
};

/// So many writes are under way at most: each holds a block of the host's memory.
const WRITES_MAX: usize = 16;
/// The learned price of a read follows the latest reads by an eighth each.
const MEMORY_BITS: u32 = 3;
/// With each request that it keeps from reading it falls by a 32nd: else one read that was slow would be the last.
const HOPE_BITS: u32 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum UnderWay {
    Write { from: HostBlockId },
    Read { to: HostBlockId, since: Micros },
}

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Disk {
    shelf: Shelf, // by DiskPlace
    under_way: BTreeMap<DiskPlace, UnderWay>,
    reads: usize,                         // of those under way
    orders: Vec<DiskOrder>,               // reads and erasures, to be given
    wanted: VecDeque<(HostBlockId, Key)>, // to be written, oldest first
    waits: BTreeSet<(Micros, RequestId)>, // until when requests wait for reads, at most
    done: Micros,                         // when the last order was
    read_us: Option<u64>,
}

impl Disk {
    pub(crate) fn new(places: u32, block_size: u32) -> Self {
        Self {
            shelf: Shelf::new(places, block_size),
            under_way: BTreeMap::new(),
            reads: 0,
            orders: Vec::new(),
            wanted: VecDeque::new(),
            waits: BTreeSet::new(),
            done: Micros(0),
            read_us: None,
        }
    }

    pub(crate) fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    pub(crate) fn capacity(&self) -> usize {
        self.shelf.capacity()
    }

    pub(crate) fn findable(&self) -> usize {
        self.shelf.findable()
    }

    /// A request reads nothing because it takes too long: perhaps it does no more.
    pub(crate) fn hope(&mut self) {
        if let Some(read_us) = &mut self.read_us {
            *read_us -= *read_us >> HOPE_BITS;
        }
    }

    /// What a read takes, as the latest ones say.
    pub(crate) fn read_us(&self) -> Option<u64> {
        self.read_us
    }

    /// How many reads are under way: each holds a block of the host's memory.
    pub(crate) fn reads(&self) -> usize {
        self.reads
    }

    pub(crate) fn is_reading(&self, place: DiskPlace) -> bool {
        self.read_since(place).is_some()
    }

    /// When what is at a place was ordered to be read, if that is under way.
    pub(crate) fn read_since(&self, place: DiskPlace) -> Option<Micros> {
        match self.under_way.get(&place)? {
            UnderWay::Read { since, .. } => Some(*since),
            UnderWay::Write { .. } => None,
        }
    }

    /// A block of the host's memory, which has so many, is to be written.
    pub(crate) fn want(&mut self, from: HostBlockId, key: Key, host_blocks: usize) {
        if self.capacity() > 0 {
            self.wanted.push_back((from, key));
            if self.wanted.len() > host_blocks {
                self.wanted.pop_front(); // the disk hangs, and that block was given up since
            }
        }
    }

    /// What it costs to have a block again from here; none if it is not here, or nobody knows.
    pub(crate) fn cost(&self, key: Key) -> Option<u64> {
        self.shelf.find(key).and(self.read_us)
    }

    /// A block was asked for.
    pub(crate) fn touch(&mut self, key: Key) {
        self.shelf.touch(key, 0);
    }

    /// Orders a block to be read, to a place that expects it.
    pub(crate) fn read(&mut self, at: At, to: HostBlockId, since: Micros) {
        let (place, key) = (DiskPlace(at), self.shelf.label(at).key.bytes());
        self.shelf.hold(at);
        let before = self.under_way.insert(place, UnderWay::Read { to, since });
        assert!(before.is_none(), "{place:?} has one order");
        self.reads += 1;
        self.orders.push(DiskOrder::Read { place, to, key });
    }

    /// A request waits for reads until then.
    pub(crate) fn wait(&mut self, until: Micros, request: RequestId) {
        self.waits.insert((until, request));
    }

    /// A block can be found here no more, nor is it once it has been written.
    pub(super) fn forget(&mut self, key: Key, told: &mut Told) {
        if let Some(at) = self.shelf.find(key) {
            told.tell(|| self.shelf.label(at).removed(Medium::Disk));
            if !self.under_way.contains_key(&DiskPlace(at)) {
                self.orders.push(DiskOrder::Erase { place: DiskPlace(at) });
            }
        }
        self.shelf.forget_key(key);
    }

    /// Who has waited long enough.
    pub(crate) fn take_overdue(&mut self, now: Micros) -> Option<RequestId> {
        self.first_wait().filter(|&until| until <= now)?;
        self.waits.pop_first().map(|(_, request)| request)
    }

    /// When the first one has.
    pub(crate) fn first_wait(&self) -> Option<Micros> {
        self.waits.first().map(|&(until, _)| until)
    }

    /// The blocks of the host's memory that orders name.
    pub(crate) fn host_blocks(&self) -> impl Iterator<Item = HostBlockId> {
        self.under_way.values().map(|&under_way| match under_way {
            UnderWay::Write { from } => from,
            UnderWay::Read { to, .. } => to,
        })
    }

    fn writes(&self) -> usize {
        self.under_way.len() - self.reads
    }

    /// The order of a place is under way no more.
    fn end(&mut self, place: DiskPlace) -> Option<UnderWay> {
        let ended = self.under_way.remove(&place)?;
        self.reads -= usize::from(matches!(ended, UnderWay::Read { .. }));
        Some(ended)
    }

    pub(crate) fn check(&self) {
        self.shelf.check(self.under_way.keys().map(|place| place.0));
        let reads = self.under_way.values().filter(|under_way| matches!(under_way, UnderWay::Read { .. }));
        assert_eq!(reads.count(), self.reads);
        for order in &self.orders {
            if let DiskOrder::Read { place, to, .. } = order {
                assert!(matches!(self.under_way[place], UnderWay::Read { to: under_way, .. } if under_way == *to));
            }
        }
    }
}

impl Core {
    /// Whether `disk_orders` may have any.
    pub fn has_disk_orders(&self) -> bool {
        let disk = &self.tiers.disk;
        !disk.orders.is_empty() || (!disk.wanted.is_empty() && disk.writes() < WRITES_MAX)
    }

    /// What the disk is to do next, in this order. To be asked after anything has changed.
    pub fn disk_orders(&mut self) -> Vec<DiskOrder> {
        let mut orders = std::mem::take(&mut self.tiers.disk.orders);
        self.tiers.order_writes(&mut orders);
        orders
    }

    /// An order was carried out, or could not be. Nothing happens if the place has none.
    pub fn disk_done(&mut self, place: DiskPlace, result: Result<(), DiskFault>) {
        self.tiers.disk_done(place, result, self.requests.looks.now);
    }

    /// What an earlier life of the engine has left on disk. Before the first request, once. What is not what it says it is,
    /// has no place, or stands there twice is erased.
    pub fn restore_disk(&mut self, entries: Vec<DiskEntry>) {
        self.tiers.restore_disk(entries);
    }
}

impl Tiers {
    fn order_writes(&mut self, orders: &mut Vec<DiskOrder>) {
        let Self { block_size, host, disk, told, .. } = self;
        let mut writes = disk.writes();
        while writes < WRITES_MAX
            && let Some((from, key)) = disk.wanted.pop_front()
        {
            if host.find(key) != Some(from.0) {
                continue; // given up before its turn
            }
            if disk.shelf.expects(key) {
                disk.shelf.touch(key, 0);
                continue;
            }
            let (label, tokens) = (host.label(from.0), host.tokens(from.0));
            let Some(salt) = label.salt_alone(*block_size) else { continue };
            let (at, given_up) = match disk.shelf.offer(label.clone(), tokens, 0) {
                Reserved::At(at, given_up) => (at, given_up),
                Reserved::Dearer => continue,
                Reserved::NoneIdle => {
                    disk.wanted.push_front((from, key));
                    return;
                }
            };
            if let Some(given_up) = given_up {
                told.tell(|| given_up.removed(Medium::Disk));
            }
            let place = DiskPlace(at);
            orders.push(DiskOrder::Write {
                place,
                from,
                key: key.bytes(),
                parent: label.parent().map(Key::bytes),
                tokens: tokens.into(),
                salt,
            });
            disk.under_way.insert(place, UnderWay::Write { from });
            host.hold(from.0);
            writes += 1;
        }
    }

    fn disk_done(&mut self, place: DiskPlace, result: Result<(), DiskFault>, now: Micros) {
        let Self { host, disk, told, .. } = self;
        let Some(under_way) = disk.end(place) else { return };
        let at = place.0;
        let last = std::mem::replace(&mut disk.done, now);
        match (under_way, result) {
            (UnderWay::Write { from }, Ok(())) => {
                host.give(from.0);
                if disk.shelf.arrive(at) {
                    told.tell(|| disk.shelf.label(at).stored(disk.shelf.tokens(at), Medium::Disk));
                } else {
                    disk.orders.push(DiskOrder::Erase { place });
                }
            }
            (UnderWay::Write { from }, Err(_)) => {
                host.give(from.0);
                disk.shelf.fail(at);
            }
            (UnderWay::Read { to, since }, Ok(())) => {
                let took = now.0.saturating_sub(since.max(last).0); // they are carried out one by one
                let read_us = disk.read_us.get_or_insert(took);
                *read_us = *read_us - (*read_us >> MEMORY_BITS) + (took >> MEMORY_BITS);
                if !disk.shelf.is_here(at) {
                    disk.orders.push(DiskOrder::Erase { place });
                }
                disk.shelf.give(at);
                if host.arrive(to.0) {
                    self.from_disk[to.index()] = true;
                    told.tell(|| host.label(to.0).stored(host.tokens(to.0), Medium::Host));
                }
            }
            (UnderWay::Read { to, .. }, Err(_)) => {
                host.fail(to.0);
                if disk.shelf.is_here(at) {
                    told.tell(|| disk.shelf.label(at).removed(Medium::Disk));
                }
                disk.shelf.fail(at);
            }
        }
    }

    fn restore_disk(&mut self, mut entries: Vec<DiskEntry>) {
        entries.sort_by_key(|entry| (entry.last_used, entry.place));
        let (mut places, mut known, mut refused) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        entries.retain(|entry| {
            let key = key_of(&self.keys, entry.parent, &entry.tokens, entry.salt);
            let is_whole = entry.tokens.len() == self.block_size as usize && key.bytes() == entry.key;
            let has_place = entry.place.index() < self.disk.capacity() && !places.contains(&entry.place);
            let is_good = is_whole && has_place && !known.contains_key(&entry.key);
            if is_good {
                places.insert(entry.place);
                known.insert(entry.key, entry.parent);
            } else {
                refused.insert(entry.place);
            }
            is_good
        });
        let erased = refused.difference(&places).map(|&place| DiskOrder::Erase { place });
        self.disk.orders.extend(erased);
        let depths = depths(&known);
        let entry = |entry: DiskEntry| {
            let DiskEntry { place, key, parent, tokens, salt, .. } = entry;
            let (before, key) = (depths[&key], Key::claimed(key));
            let scope = CacheScope::salted(salt).shared();
            let parent = parent.map_or_else(|| self.keys.root(scope.as_deref()), Key::claimed);
            (place.0, Label { key, parent, scope, before, is_told: true }, tokens)
        };
        let restored: Vec<(At, Label, Box<[TokenId]>)> = entries.into_iter().map(entry).collect();
        for (_, label, tokens) in &restored {
            self.told.tell(|| label.stored(tokens, Medium::Disk));
        }
        self.disk.shelf.restore(restored);
    }

    /// Nothing below the devices can be found any more.
    pub(crate) fn clear(&mut self) {
        let Self { host, disk, told, .. } = self;
        for order in std::mem::take(&mut disk.orders) {
            match order {
                DiskOrder::Read { place, to, .. } => {
                    disk.end(place);
                    if !disk.shelf.is_here(place.0) {
                        disk.orders.push(DiskOrder::Erase { place }); // it was forgotten before
                    }
                    disk.shelf.give(place.0);
                    host.fail(to.0);
                }
                other => disk.orders.push(other),
            }
        }
        for at in disk.shelf.all() {
            told.tell(|| disk.shelf.label(at).removed(Medium::Disk));
            if !disk.under_way.contains_key(&DiskPlace(at)) {
                disk.orders.push(DiskOrder::Erase { place: DiskPlace(at) });
            }
        }
        for at in host.all() {
            told.tell(|| host.label(at).removed(Medium::Host));
        }
        host.forget_all();
        disk.shelf.forget_all();
        disk.wanted.clear();
    }
}

/// How many blocks come before each one, as far as they are known: one that is not counts as a first one.
fn depths(parents: &BTreeMap<BlockKey, Option<BlockKey>>) -> BTreeMap<BlockKey, u32> {
    let mut depths = BTreeMap::new();
    for &key in parents.keys() {
        let mut chain = Vec::new();
        let mut next = Some(key);
        while let Some(at) = next
            && !depths.contains_key(&at)
        {
            chain.push(at);
            next = parents.get(&at).copied().flatten();
        }
        let first = next.map_or(0, |known| depths[&known] + 1);
        depths.extend(chain.into_iter().rev().zip(first..));
    }
    depths
}

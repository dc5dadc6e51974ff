//! The tiers below the device: what is kept in the host's memory and on disk, and how it comes back.
//!
//! The life of a full block:
//!   1. a row fills it, and its step commits: it can be found on the device, and is to be *saved*;
//!   2. a save in a coming step copies it to the host's memory, so that giving it up on the device costs nothing;
//!   3. when that step has committed it can be found there, and is to be *written* to disk;
//!   4. a request that finds it *loads* it back to the device (`find.rs`, `transfers.rs`); one that finds it on disk only
//!      has it *read* to the host's memory while it waits in the queue (`prefetch.rs`).
//!
//! Host's memory and disk are shared by all groups and outlive their workers. Ends of prompts that fill no block stay on
//! the device. Of a model whose layers are of several kinds, each kind's blocks go to the host's memory and none to disk: a
//! chain on disk would have to be read in part, for the kinds that need it. Whatever goes wrong below costs nothing but computing again.
//! Never here: what a block's bytes are, files, which request is served next.

mod disk;
mod find;
mod orders;
mod prefetch;
mod shelf;
mod told;
mod transfers;

pub use orders::{DiskEntry, DiskFault, DiskOrder};

pub(crate) use find::{Below, Found};
pub(crate) use shelf::Label;
pub(crate) use transfers::{Transfers, plan_loads};

use serde::{Deserialize, Serialize};

use crate::core::Counts;
use crate::cost::Prices;
use crate::epoch::Epoch;
use crate::hit::Hit;
use crate::keys::KeyMaker;
use crate::kinds::Kinds;
use crate::live::LiveRequest;
use crate::{BlockKey, CacheScope, CoreConfig, GroupId, HostBlockId, Medium, Micros, TokenId};
use disk::Disk;
use shelf::{Reserved, Shelf};
use told::Told;

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Tiers {
    block_size: u32,
    keys: KeyMaker,
    host: Shelf,          // by HostBlockId
    from_disk: Vec<bool>, // by HostBlockId: read for somebody who has not taken it yet
    disk: Disk,
    told: Told,
}

/// What came of a wish to save a block.
enum Saving {
    To(HostBlockId),
    /// It is there, or what is there is worth more.
    Needless,
    /// There is no place just now.
    Later,
}

impl Tiers {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let has_disk = config.has_host_tier() && Kinds::new(&config.kinds, config.block_size).is_plain();
        Self {
            block_size: config.block_size,
            keys: KeyMaker::new(config.hash_key, config.block_size as usize),
            host: Shelf::new(config.host_blocks, config.block_size),
            from_disk: vec![false; config.host_blocks as usize],
            disk: Disk::new(if has_disk { config.disk_places } else { 0 }, config.block_size),
            told: Told::default(),
        }
    }

    /// When the first request has waited for the disk for long enough.
    pub(crate) fn first_wait(&self) -> Option<Micros> {
        self.disk.first_wait()
    }

    /// Reads off the gauges.
    pub(crate) fn count(&self, counts: &mut Counts) {
        counts.host_blocks = self.host.capacity();
        counts.host_blocks_held = self.host.held();
        counts.host_blocks_findable = self.host.findable();
        counts.disk_places = self.disk.capacity();
        counts.disk_blocks = self.disk.findable();
    }

    /// What it would cost to have a block again that is given up, computed or read from disk, beyond what it costs to bring
    /// it back from here.
    fn cost(&self, label: &Label, prices: Prices) -> u64 {
        if !prices.knows_prompts {
            return 0;
        }
        let start = label.before * self.block_size;
        let computing = prices.computing(start, start + self.block_size);
        let again = self.disk.cost(label.key).map_or(computing, |reading| reading.min(computing));
        again.saturating_sub(prices.copying(1))
    }

    fn save(&mut self, label: &Label, tokens: &[TokenId], prices: Prices) -> Saving {
        let cost = self.cost(label, prices);
        if self.host.expects(label.key) {
            self.host.touch(label.key, cost);
            return Saving::Needless;
        }
        match self.host.offer(label.clone(), tokens, cost) {
            Reserved::At(at, given_up) => {
                self.gave_up(given_up);
                self.from_disk[at as usize] = false;
                Saving::To(HostBlockId(at))
            }
            Reserved::Dearer => Saving::Needless,
            Reserved::NoneIdle => Saving::Later,
        }
    }

    fn gave_up(&mut self, given_up: Option<Label>) {
        if let Some(label) = given_up {
            self.told.tell(|| label.removed(Medium::Host));
        }
    }

    /// The blocks of a request's tokens cannot be found any more. Who is about to load one does so.
    pub(crate) fn forget_chain(&mut self, request: &mut LiveRequest, kinds: usize) {
        let Self { host, disk, told, .. } = self;
        for places in (1..=request.tokens.len() / self.block_size as usize).rev() {
            let key = request.keys.key(&self.keys, &request.tokens, places);
            for kind in 0..kinds {
                let key = key.of_kind(kind);
                if let Some(at) = host.find(key) {
                    told.tell(|| host.label(at).removed(Medium::Host));
                }
                host.forget_key(key);
                disk.forget(key, told);
            }
        }
    }

    /// A step that saved a block has committed. Says whether somebody can find it now.
    fn saved(&mut self, HostBlockId(at): HostBlockId) -> bool {
        let is_wanted = self.host.arrive(at);
        if is_wanted {
            let (host, label) = (&self.host, self.host.label(at));
            self.told.tell(|| label.stored(host.tokens(at), Medium::Host));
            self.disk.want(HostBlockId(at), label.key, host.capacity());
        }
        is_wanted
    }

    /// A request will load these.
    pub(crate) fn hold_sources(&mut self, hit: &Hit) {
        hit.loads.iter().for_each(|load| self.host.hold(load.from.0));
    }

    fn give(&mut self, HostBlockId(at): HostBlockId) {
        self.host.give(at);
    }

    /// A group's worker is gone: what it was saving has not come, what it was loading is held no more.
    pub(crate) fn lost(&mut self, group: GroupId, epoch: &mut Epoch) {
        for sent in &epoch.in_flight {
            sent.saves.iter().for_each(|to| self.host.fail(to.0));
            sent.loads.iter().for_each(|&from| self.give(from));
        }
        for from in epoch.transfers.end() {
            self.give(from);
        }
        self.told.end(group);
    }

    /// A group has a worker: whoever is told of it is told of what all groups share.
    pub(crate) fn gained(&mut self, group: GroupId, epoch: &Epoch, config: &CoreConfig) {
        if epoch.blocks.are_saved() && config.tells_cache_changes {
            let stored = |shelf: &Shelf, medium| {
                let stored = |at| shelf.label(at).stored(shelf.tokens(at), medium);
                shelf.all().into_iter().filter_map(stored).collect::<Vec<_>>()
            };
            let mut known = stored(&self.host, Medium::Host);
            known.extend(stored(self.disk.shelf(), Medium::Disk));
            self.told.begin(group, known);
        }
    }

    pub(crate) fn take_changes(&mut self, group: GroupId) -> Vec<crate::CacheChange> {
        self.told.take(group)
    }

    /// Asserts the invariants of the tiers, and that these blocks of the host's memory are held by steps.
    pub(crate) fn check(&self, held: impl Iterator<Item = HostBlockId>) {
        self.host.check(held.chain(self.disk.host_blocks()).map(|block| block.0));
        self.disk.check();
    }
}

/// The key that a block must have.
fn key_of(keys: &KeyMaker, parent: Option<BlockKey>, tokens: &[TokenId], salt: u64) -> crate::keys::Key {
    let parent = parent.map_or_else(|| keys.root(Some(&CacheScope::salted(salt))), crate::keys::Key::claimed);
    keys.child(parent, tokens)
}

//! Prefixes that somebody has asked to keep for a while.
//!
//! A pin names a prefix, not blocks: whatever holds its KV in any group is pinned, now, and again when it was lost and is
//! computed anew. A pinned block that nobody holds is given up after all that are not pinned, but before anybody is
//! preempted or has to wait: a pin may cost others their place in the cache and never their turn.
//!
//! Pinned are the full blocks that a hit on the whole prefix needs: all of them, of a window those before the prefix's end,
//! of a state the one after it. Of a model with `StateMode::Align` that state is there when a row has ended with it, as
//! that of a request does whose prompt is the prefix and no more than a block besides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::core::Core;
use crate::keys::{Key, KeyChain, KeyMaker};
use crate::quota::share;
use crate::{CacheScope, GroupId, Micros, Party, PinId, TokenId};

/// A prefix that is to be kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewPin {
    /// Chosen by the caller. That of a pin that has not ended takes its place: so a lifetime is extended.
    pub id: PinId,
    /// The prefix. What is left of it behind its last full block is not kept.
    #[serde(with = "crate::snapshot::shared")]
    pub tokens: Arc<[TokenId]>,
    /// Of the requests that are to find it.
    pub scope: CacheScope,
    /// Who asks for it.
    pub party: Party,
    /// When it ends by itself.
    pub until: Micros,
}

/// Why a prefix is not pinned. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinRefusal {
    /// There is no prefix cache: it is off, or the model's layers do not allow it.
    #[error("nothing is kept of this model's prompts: there is no prefix cache")]
    NoCache,
    /// It has ended already.
    #[error("the pin would end {ago} us ago")]
    TooLate {
        /// Microseconds since its end.
        ago: u64,
    },
    /// Only full blocks are kept.
    #[error("a prefix of {tokens} tokens fills no block; a block has {block_size}")]
    TooShort {
        /// Tokens of the prefix.
        tokens: usize,
        /// Tokens of a block.
        block_size: u32,
    },
    /// All pins together may name only so many blocks (`CoreConfig::pin_share`), and a tenant's only its share of them
    /// (`CoreConfig::tenant_cache_share`).
    #[error("the prefix needs {needed} KV blocks more; {left} may still be pinned")]
    TooMany {
        /// Blocks that no other pin names; for the tenant's share, and where too many pins name the same, all of its blocks.
        needed: u32,
        /// What is left.
        left: u32,
    },
}

/// Pins may name the same blocks, as those of a common beginning: on average each so often, since every name takes memory.
const NAMES_PER_BLOCK_MAX: u32 = 8;

/// A block that a pin names: the last one of a chain, of a kind of layers.
pub(crate) type PinnedBlock = (usize, Key);

/// The pins that have not ended.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Pins {
    list: BTreeMap<PinId, Pin>,
    ends: BTreeSet<(Micros, PinId)>,
    named: Named,
    names: u32,                   // of blocks, in all pins
    names_of: BTreeMap<u64, u32>, // of these, in those of each tenant that has some
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Pin {
    blocks: Vec<PinnedBlock>,
    tenant: u64,
    until: Micros,
}

impl Pins {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Blocks that pins name, in each group.
    pub(crate) fn blocks(&self) -> usize {
        self.named.len()
    }

    /// When the first one ends.
    pub(crate) fn first_end(&self) -> Option<Micros> {
        self.ends.first().map(|&(until, _)| until)
    }

    fn insert(&mut self, id: PinId, pin: Pin) {
        self.ends.insert((pin.until, id));
        self.names += count(&pin.blocks);
        *self.names_of.entry(pin.tenant).or_default() += count(&pin.blocks);
        for &block in &pin.blocks {
            self.named.add(block);
        }
        self.list.insert(id, pin);
    }

    fn remove(&mut self, id: PinId) -> Option<Pin> {
        let pin = self.list.remove(&id)?;
        self.ends.remove(&(pin.until, id));
        self.names -= count(&pin.blocks);
        // A pin may name nothing, where a model keeps nothing of such a prefix.
        if let Some(of_tenant) = self.names_of.get_mut(&pin.tenant) {
            *of_tenant -= count(&pin.blocks);
            if *of_tenant == 0 {
                self.names_of.remove(&pin.tenant);
            }
        }
        for &block in &pin.blocks {
            self.named.remove(block);
        }
        Some(pin)
    }

    /// Whether a pin may be entered that takes the place of one with the same id, if there is any.
    fn check_bounds(&self, id: PinId, pin: &Pin, blocks_max: u32, of_tenant_max: u32) -> Result<(), PinRefusal> {
        let needed = pin.blocks.iter().filter(|&&block| !self.named.contains(block)).count();
        let needed = u32::try_from(needed).expect("blocks are counted by u32");
        let left = blocks_max.saturating_sub(u32::try_from(self.named.len()).expect("within the bound"));
        if needed > left {
            return Err(PinRefusal::TooMany { needed, left });
        }
        let replaced = self.list.get(&id).map_or(0, |replaced| count(&replaced.blocks));
        let names_max = blocks_max.saturating_mul(NAMES_PER_BLOCK_MAX);
        let (needed, left) = (count(&pin.blocks), names_max.saturating_add(replaced).saturating_sub(self.names));
        if needed > left {
            return Err(PinRefusal::TooMany { needed, left });
        }
        let own =
            self.list.get(&id).filter(|replaced| replaced.tenant == pin.tenant).map_or(0, |own| count(&own.blocks));
        let of_tenant = self.names_of.get(&pin.tenant).map_or(0, |&names| names - own);
        let (needed, left) = (count(&pin.blocks), of_tenant_max.saturating_sub(of_tenant));
        if needed > left { Err(PinRefusal::TooMany { needed, left }) } else { Ok(()) }
    }
}

fn count(blocks: &[PinnedBlock]) -> u32 {
    u32::try_from(blocks.len()).expect("blocks are counted by u32")
}

/// Blocks that pins name, and by how many pins each.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Named(HashMap<PinnedBlock, u32>);

impl Named {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, block: PinnedBlock) -> bool {
        self.0.contains_key(&block)
    }

    /// One more pin names the block. Says whether it is the first.
    pub(crate) fn add(&mut self, block: PinnedBlock) -> bool {
        let pins = self.0.entry(block).or_default();
        *pins += 1;
        *pins == 1
    }

    /// One pin less names the block. Says whether it was the last.
    pub(crate) fn remove(&mut self, block: PinnedBlock) -> bool {
        let pins = self.0.get_mut(&block).expect("a pin names it");
        *pins -= 1;
        let was_last = *pins == 0;
        if was_last {
            self.0.remove(&block);
        }
        was_last
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// In no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PinnedBlock> {
        self.0.keys().copied()
    }
}

impl Core {
    /// Keeps a prefix until the pin ends. See the top of the file.
    pub fn pin(&mut self, new: NewPin) -> Result<(), PinRefusal> {
        let pin = self.named_by(&new)?;
        let smallest = self.groups.values().map(|group| group.blocks).min().unwrap_or(0);
        let blocks_max = share(smallest, self.config.pin_share);
        let of_tenant_max = match self.config.tenant_cache_share {
            100 => u32::MAX,
            percent => share(blocks_max, percent),
        };
        self.pins.check_bounds(new.id, &pin, blocks_max, of_tenant_max)?;
        for epoch in self.groups.values_mut().filter_map(|group| group.epoch.as_mut()) {
            pin.blocks.iter().for_each(|&block| epoch.blocks.pin(block));
        }
        self.unpin(new.id); // what both name stays pinned
        self.pins.insert(new.id, pin);
        Ok(())
    }

    /// Ends a pin. Nothing happens if it has ended already.
    pub fn unpin(&mut self, id: PinId) {
        let Some(pin) = self.pins.remove(id) else { return };
        for epoch in self.groups.values_mut().filter_map(|group| group.epoch.as_mut()) {
            pin.blocks.iter().for_each(|&block| epoch.blocks.unpin(block));
        }
    }

    /// Ends the pins whose time has come.
    pub(crate) fn end_pins(&mut self, now: Micros) {
        while let Some(&(until, id)) = self.pins.ends.first()
            && until <= now
        {
            self.unpin(id);
        }
    }

    /// Tells a new worker's blocks of all pins.
    pub(crate) fn pin_anew(&mut self, group: GroupId) {
        let Self { groups, pins, .. } = self;
        if let Some(epoch) = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()) {
            for pin in pins.list.values() {
                pin.blocks.iter().for_each(|&block| epoch.blocks.pin(block));
            }
        }
    }

    fn named_by(&self, new: &NewPin) -> Result<Pin, PinRefusal> {
        let (kinds, block_size, now) = (&self.kinds, self.config.block_size, self.requests.looks.now);
        if !self.config.prefix_caching || !kinds.can_be_found() {
            return Err(PinRefusal::NoCache);
        }
        if new.until <= now {
            return Err(PinRefusal::TooLate { ago: now.0 - new.until.0 });
        }
        let places = new.tokens.len() / block_size as usize;
        if places == 0 {
            return Err(PinRefusal::TooShort { tokens: new.tokens.len(), block_size });
        }
        let end = u32::try_from(places * block_size as usize).unwrap_or(u32::MAX);
        let (maker, mut chain) =
            (KeyMaker::new(self.config.hash_key, block_size as usize), KeyChain::new(new.scope.clone().shared()));
        let mut blocks = Vec::new();
        for kind in 0..kinds.count() {
            for at in kinds.first_needed(kind, end)..places {
                blocks.push((kind, chain.key(&maker, &new.tokens, at + 1)));
            }
        }
        Ok(Pin { blocks, tenant: new.party.tenant, until: new.until })
    }
}

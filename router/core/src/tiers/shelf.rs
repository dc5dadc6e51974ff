//! The places of a tier: which block stands where, who holds it, and in which order blocks are given up.
//!
//! The life of a place:
//!   1. blank;
//!   2. coming: a block is on its way and holds the place, nobody finds it yet, and it does not come a second time;
//!   3. here: findable, and held by whoever reads it just now, or idle;
//!   4. void: given up while it was coming or held. Nobody finds it, and with its last holder it is blank again.
//!
//! Given up is an idle block that has no child here (leaf before root), of these the one with the least worth, of those the
//! least recently used. A worth is what it would cost to have the block again, on top of the worth of what was given up
//! last: so what was dear and is asked for no more goes in the end (GreedyDual, Young 1994). Where costs are not known all
//! cost the same, and this is plain LRU.
//!
//! Invariant: held + idle + blank = capacity. Never here: what a place is, and how blocks get there. O(log n) each.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::keys::{ByKey, Key};
use crate::kinds::Kinds;
use crate::{CacheChange, CacheScope, Medium, TokenId};

/// What a full block holds, but for its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Label {
    pub(crate) key: Key,
    /// The key of the block before it, or the root's.
    pub(crate) parent: Key,
    /// Of the requests that can find it.
    #[serde(with = "crate::scope::shared")]
    pub(crate) scope: Option<Arc<CacheScope>>,
    /// Blocks before it in its chain.
    pub(crate) before: u32,
    /// Whether those outside hear of it: of the kinds of a model one speaks for all.
    pub(crate) is_told: bool,
}

impl Label {
    /// Of a kind's block, by the keys of its chain.
    pub(crate) fn new(
        kinds: &Kinds,
        kind: usize,
        parent: Key,
        key: Key,
        scope: Option<Arc<CacheScope>>,
        before: usize,
    ) -> Self {
        let before = u32::try_from(before).expect("blocks are counted by u32");
        Self { key: key.of_kind(kind), parent: parent.of_kind(kind), scope, before, is_told: kind == kinds.leading() }
    }

    /// The salt, if its key is made of that and of tokens alone, from the first block of its chain on.
    pub(crate) fn salt_alone(&self, block_size: u32) -> Option<u64> {
        let Some(scope) = &self.scope else { return Some(0) };
        let is_alone = scope.adapter == 0 && scope.within(0..(self.before + 1) * block_size).next().is_none();
        is_alone.then_some(scope.salt)
    }

    /// The block before it, if it is not the first.
    pub(crate) fn parent(&self) -> Option<Key> {
        (self.before > 0).then_some(self.parent)
    }

    /// That it can be found there, if anybody is to hear of it.
    pub(crate) fn stored(&self, tokens: &[TokenId], medium: Medium) -> Option<CacheChange> {
        let (block, parent) = (self.key.name(), self.parent().map(Key::name));
        self.is_told.then(|| CacheChange::Stored {
            block,
            parent,
            tokens: tokens.into(),
            before: self.before,
            scope: self.scope.clone(),
            medium,
        })
    }

    /// That it cannot be found there any more, if anybody is to hear of it.
    pub(crate) fn removed(&self, medium: Medium) -> Option<CacheChange> {
        self.is_told.then(|| CacheChange::Removed { block: self.key.name(), medium })
    }
}

/// Where a block stands in its tier.
pub(crate) type At = u32;

/// What came of asking for a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// The block may come here; this one was given up for it.
    At(At, Option<Label>),
    /// What would have to be given up is worth more, or comes before it in its chain.
    Dearer,
    /// All places are held just now, or their children are.
    NoneIdle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Coming,
    Here,
    Void,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    label: Label,
    state: State,
    holders: u32,
    worth: u64,
    used: u64,
}

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Shelf {
    block_size: usize,
    entries: Vec<Option<Entry>>,      // none: blank
    tokens: Vec<TokenId>,             // block_size of them per place
    blank: Vec<At>,                   // the next one last
    by_key: ByKey<At>,                // those that come or are here
    children: ByKey<u32>,             // how many of those have this parent
    leaves: BTreeSet<(u64, u64, At)>, // here, idle and without children: worth, last use
    held: usize,
    here: usize,
    uses: u64,
    floor: u64, // the worth of what was given up last
}

impl Shelf {
    pub(crate) fn new(capacity: u32, block_size: u32) -> Self {
        let block_size = block_size as usize;
        Self {
            block_size,
            entries: vec![None; capacity as usize],
            tokens: vec![0; capacity as usize * block_size],
            blank: (0..capacity).rev().collect(),
            by_key: ByKey::default(),
            children: ByKey::default(),
            leaves: BTreeSet::new(),
            held: 0,
            here: 0,
            uses: 0,
            floor: 0,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Places that are held.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Blocks that can be found.
    pub(crate) fn findable(&self) -> usize {
        self.here
    }

    /// Where a block is.
    pub(crate) fn find(&self, key: Key) -> Option<At> {
        let at = *self.by_key.get(&key)?;
        (self.entry(at).state == State::Here).then_some(at)
    }

    /// Whether a block is here or on its way.
    pub(crate) fn expects(&self, key: Key) -> bool {
        self.by_key.contains_key(&key)
    }

    pub(crate) fn label(&self, at: At) -> &Label {
        &self.entry(at).label
    }

    pub(crate) fn tokens(&self, at: At) -> &[TokenId] {
        &self.tokens[at as usize * self.block_size..][..self.block_size]
    }

    /// All that can be found, each after its parent.
    pub(crate) fn all(&self) -> Vec<At> {
        let is_here = |at: &At| self.entries[*at as usize].as_ref().is_some_and(|entry| entry.state == State::Here);
        let mut all: Vec<At> = (0..).take(self.capacity()).filter(is_here).collect();
        all.sort_by_key(|&at| (self.entry(at).label.before, at));
        all
    }

    /// Whether what stands there can be found.
    pub(crate) fn is_here(&self, at: At) -> bool {
        self.entry(at).state == State::Here
    }

    /// Puts blocks that are there already to their places, the one used last at the end. Nothing else was put here before.
    pub(crate) fn restore(&mut self, blocks: Vec<(At, Label, Box<[TokenId]>)>) {
        for (at, label, tokens) in &blocks {
            self.uses += 1;
            let entry =
                Entry { label: label.clone(), state: State::Here, holders: 0, worth: self.floor, used: self.uses };
            assert!(self.entries[*at as usize].replace(entry).is_none(), "place {at} was blank");
            assert!(self.by_key.insert(label.key, *at).is_none(), "a block stands here once");
            *self.children.entry(label.parent).or_default() += 1;
            self.tokens[*at as usize * self.block_size..][..self.block_size].copy_from_slice(tokens);
            self.here += 1;
        }
        self.blank.retain(|&at| self.entries[at as usize].is_none());
        blocks.iter().for_each(|&(at, ..)| self.list(at));
    }

    /// Nobody can find anything any more.
    pub(crate) fn forget_all(&mut self) {
        for at in (0..).take(self.capacity()) {
            self.forget(at);
        }
    }

    /// A place for a block that is not expected yet, if none must be given up for it that is worth more. It is coming then.
    pub(crate) fn offer(&mut self, label: Label, tokens: &[TokenId], cost: u64) -> Reserved {
        self.reserve(label, tokens, cost, Some(self.floor.saturating_add(cost)))
    }

    /// The same, whatever must be given up for it: somebody waits for the block.
    pub(crate) fn demand(&mut self, label: Label, tokens: &[TokenId], cost: u64) -> Reserved {
        self.reserve(label, tokens, cost, None)
    }

    fn reserve(&mut self, label: Label, tokens: &[TokenId], cost: u64, worth_max: Option<u64>) -> Reserved {
        assert!(!self.expects(label.key), "a block comes once");
        self.add_child(label.parent); // its parent is not given up for it
        let given_up = match (self.blank.is_empty(), self.leaves.first().copied()) {
            (false, _) => None,
            (true, None) => {
                self.remove_child(label.parent);
                // Where nothing is held either, all there is are blocks before it.
                return if self.held > 0 { Reserved::NoneIdle } else { Reserved::Dearer };
            }
            (true, Some((worth, ..))) if worth_max.is_some_and(|most| worth > most) => {
                self.floor = worth_max.expect("compared above"); // as if it had come and gone
                self.remove_child(label.parent);
                return Reserved::Dearer;
            }
            (true, Some((worth, _, at))) => {
                self.floor = self.floor.max(worth);
                let given_up = self.label(at).clone();
                self.forget(at);
                Some(given_up)
            }
        };
        let at = self.blank.pop().expect("one was blank or was made so");
        self.by_key.insert(label.key, at);
        self.tokens[at as usize * self.block_size..][..self.block_size].copy_from_slice(tokens);
        self.uses += 1;
        let worth = self.floor.saturating_add(cost);
        let entry = Entry { label, state: State::Coming, holders: 1, worth, used: self.uses };
        assert!(self.entries[at as usize].replace(entry).is_none(), "place {at} was blank");
        self.held += 1;
        Reserved::At(at, given_up)
    }

    /// What was coming is here. False: it was given up meanwhile.
    pub(crate) fn arrive(&mut self, at: At) -> bool {
        let entry = self.entry_mut(at);
        let is_wanted = entry.state == State::Coming;
        assert!(is_wanted || entry.state == State::Void, "place {at} was waited for");
        if is_wanted {
            entry.state = State::Here;
            self.here += 1;
        }
        self.give(at);
        is_wanted
    }

    /// What was coming does not come.
    pub(crate) fn fail(&mut self, at: At) {
        self.forget(at);
        self.give(at);
    }

    pub(crate) fn hold(&mut self, at: At) {
        self.unlist(at);
        let entry = self.entry_mut(at);
        assert_eq!(entry.state, State::Here, "place {at} is read by those who found it");
        entry.holders += 1;
        self.held += usize::from(self.entry(at).holders == 1);
    }

    pub(crate) fn give(&mut self, at: At) {
        let entry = self.entry_mut(at);
        assert!(entry.holders > 0, "place {at} is given by a holder");
        entry.holders -= 1;
        if entry.holders > 0 {
            return;
        }
        self.held -= 1;
        if self.entry(at).state == State::Void {
            self.entries[at as usize] = None;
            self.blank.push(at);
        } else {
            self.list(at);
        }
    }

    /// A block was asked for: it is given up later.
    pub(crate) fn touch(&mut self, key: Key, cost: u64) {
        let Some(&at) = self.by_key.get(&key) else { return };
        self.unlist(at);
        self.uses += 1;
        let (worth, used) = (self.floor.saturating_add(cost), self.uses);
        let entry = self.entry_mut(at);
        (entry.worth, entry.used) = (worth, used);
        self.list(at);
    }

    /// The same by its key, be it here or coming. Nothing happens if it is neither.
    pub(crate) fn forget_key(&mut self, key: Key) {
        if let Some(&at) = self.by_key.get(&key) {
            self.forget(at);
        }
    }

    /// Nobody can find the block any more. Nothing happens if nobody could.
    pub(crate) fn forget(&mut self, at: At) {
        self.unlist(at);
        let Some(Entry { label, state, holders, .. }) = self.entries[at as usize].clone() else { return };
        if state == State::Void {
            return;
        }
        self.here -= usize::from(state == State::Here);
        self.by_key.remove(&label.key);
        if holders > 0 {
            self.entry_mut(at).state = State::Void;
        } else {
            self.entries[at as usize] = None;
            self.blank.push(at);
        }
        self.remove_child(label.parent);
    }

    fn add_child(&mut self, parent: Key) {
        if let Some(&at) = self.by_key.get(&parent) {
            self.unlist(at);
        }
        *self.children.entry(parent).or_default() += 1;
    }

    fn remove_child(&mut self, parent: Key) {
        let count = self.children.get_mut(&parent).expect("counted when it came");
        *count -= 1;
        if *count == 0 {
            self.children.remove(&parent);
            if let Some(&at) = self.by_key.get(&parent) {
                self.list(at);
            }
        }
    }

    /// Lets a place be given up, if it may be.
    fn list(&mut self, at: At) {
        let entry = self.entry(at);
        if entry.state == State::Here && entry.holders == 0 && !self.children.contains_key(&entry.label.key) {
            self.leaves.insert((entry.worth, entry.used, at));
        }
    }

    fn unlist(&mut self, at: At) {
        if let Some(entry) = &self.entries[at as usize] {
            self.leaves.remove(&(entry.worth, entry.used, at));
        }
    }

    fn entry(&self, at: At) -> &Entry {
        self.entries[at as usize].as_ref().expect("named places are not blank")
    }

    fn entry_mut(&mut self, at: At) -> &mut Entry {
        self.entries[at as usize].as_mut().expect("named places are not blank")
    }

    /// Asserts the invariants, and that exactly these hold the places.
    pub(crate) fn check(&self, holders: impl Iterator<Item = At>) {
        let mut counted = vec![0; self.capacity()];
        holders.for_each(|at| counted[at as usize] += 1);
        let mut blank = self.blank.clone();
        blank.sort_unstable();
        let (mut held, mut idle, mut here) = (0, 0, 0);
        let mut children: ByKey<u32> = ByKey::default();
        for (at, entry) in (0..).zip(&self.entries) {
            let Some(entry) = entry else {
                assert!(blank.binary_search(&at).is_ok() && counted[at as usize] == 0, "place {at} is blank");
                continue;
            };
            assert_eq!(entry.holders, counted[at as usize], "place {at}: holders as in steps and orders");
            *(if entry.holders > 0 { &mut held } else { &mut idle }) += 1;
            here += usize::from(entry.state == State::Here);
            assert!(entry.holders > 0 || entry.state == State::Here, "place {at}: what is idle can be found");
            assert_eq!(self.by_key.get(&entry.label.key) == Some(&at), entry.state != State::Void);
            if entry.state != State::Void {
                *children.entry(entry.label.parent).or_default() += 1;
            }
            let is_leaf = entry.holders == 0 && !self.children.contains_key(&entry.label.key);
            assert_eq!(self.leaves.contains(&(entry.worth, entry.used, at)), is_leaf, "place {at} may be given up");
        }
        assert_eq!((held, here), (self.held, self.here));
        assert_eq!(held + idle + blank.len(), self.capacity());
        assert_eq!(children, self.children);
        assert!(self.by_key.len() <= held + idle && self.leaves.len() <= idle);
    }
}

#[cfg(test)]
mod tests;

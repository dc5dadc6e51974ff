//! Responses that are kept for a while, within bounds of their number and their bytes.
//!
//! In memory: they end with the server. Who has another API key sees none of them. Where there is no room the oldest that is
//! complete goes; one that is under way stays.
//! Invariant: `order` has each id of `entries` once, the oldest first.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Done, Item, items::item};

/// Bounds of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Responses; 0: nothing is kept.
    pub(crate) count: usize,
    /// Bytes of JSON. What conversations share counts in each of their responses.
    pub(crate) bytes: usize,
    /// From a response's creation on.
    pub(crate) lifetime: Duration,
}

/// Kept responses.
pub(crate) struct Store {
    limits: StoreLimits,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    entries: HashMap<String, Entry>,
    order: VecDeque<String>,
    bytes: usize,
    /// Somebody looks after what is too old.
    is_swept: bool,
}

struct Entry {
    tenant: u64,
    created: Instant,
    stored: Stored,
    bytes: usize,
    /// Of a response that was asked for in the background.
    background: Option<CancellationToken>,
    is_done: bool,
}

/// A response and what it was an answer to.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) response: Value,
    /// Its request's own items.
    pub(crate) input: Vec<Item>,
    /// What came before them.
    pub(crate) before: Vec<Item>,
    /// Its own items, once it is complete.
    pub(crate) output: Vec<Item>,
}

/// What became of a wish to end a response.
#[derive(Debug, PartialEq)]
pub(crate) enum Cancelled {
    /// The response as it is now, whether it had ended before or not.
    Done(Value),
    /// It is not one of the background.
    NotBackground,
    /// It is not here.
    Unknown,
}

impl Stored {
    pub(crate) fn new(response: Value, input: Vec<Item>, before: Vec<Item>) -> Self {
        Self { response, input, before, output: Vec::new() }
    }

    /// The conversation up to its end.
    pub(crate) fn conversation(&self) -> Vec<Item> {
        self.before.iter().chain(&self.input).chain(&self.output).cloned().collect()
    }

    fn complete(&mut self, done: Done) {
        self.response = done.response;
        self.output = done.output.iter().map(item).collect();
    }

    fn bytes(&self) -> usize {
        let items = self.before.iter().chain(&self.input).chain(&self.output);
        self.response.to_string().len() + items.map(|item| item.get().len()).sum::<usize>()
    }
}

impl Store {
    pub(crate) fn new(limits: StoreLimits) -> Self {
        Self { limits, kept: Mutex::default() }
    }

    /// Whether anything is kept at all.
    pub(crate) fn is_open(&self) -> bool {
        self.limits.count > 0
    }

    /// Keeps a complete response, if it is not larger than all the room there is.
    pub(crate) fn keep(&self, id: &str, tenant: u64, mut stored: Stored, done: Done, now: Instant) {
        stored.complete(done);
        let entry = |bytes| Entry { tenant, created: now, stored, bytes, background: None, is_done: true };
        self.insert(id, entry);
    }

    /// Keeps a response that is under way in the background, until the token is cancelled. False: there is no room.
    pub(crate) fn begin(&self, id: &str, tenant: u64, stored: Stored, token: CancellationToken, now: Instant) -> bool {
        let entry = |bytes| Entry { tenant, created: now, stored, bytes, background: Some(token), is_done: false };
        self.insert(id, entry)
    }

    fn insert(&self, id: &str, entry: impl FnOnce(usize) -> Entry) -> bool {
        let mut entry = entry(0);
        entry.bytes = entry.stored.bytes();
        let mut kept = self.kept();
        if entry.bytes > self.limits.bytes || !kept.make_room(&self.limits, 1, entry.bytes) {
            return false;
        }
        kept.bytes += entry.bytes;
        kept.order.push_back(id.to_owned());
        let before = kept.entries.insert(id.to_owned(), entry);
        assert!(before.is_none(), "ids are unique in the world");
        true
    }

    /// A response of the background has come to its end. Nothing is done if it was cancelled or deleted meanwhile.
    pub(crate) fn finish(&self, id: &str, done: Done) {
        let mut kept = self.kept();
        let Some(entry) = kept.entries.get_mut(id).filter(|entry| !entry.is_done) else { return };
        entry.stored.complete(done);
        entry.is_done = true;
        let (before, after) = (entry.bytes, entry.stored.bytes());
        entry.bytes = after;
        kept.bytes = kept.bytes - before + after;
        kept.make_room(&self.limits, 0, 0);
    }

    /// A tenant's response.
    pub(crate) fn get(&self, id: &str, tenant: u64, now: Instant) -> Option<Stored> {
        let mut kept = self.kept();
        kept.expire(self.limits.lifetime, now);
        kept.of(id, tenant).map(|entry| entry.stored.clone())
    }

    /// Ends a response of the background.
    pub(crate) fn cancel(&self, id: &str, tenant: u64, now: Instant) -> Cancelled {
        let mut kept = self.kept();
        kept.expire(self.limits.lifetime, now);
        let Some(entry) = kept.of(id, tenant) else { return Cancelled::Unknown };
        let Some(token) = &entry.background else { return Cancelled::NotBackground };
        if !entry.is_done {
            token.cancel();
            entry.is_done = true;
            entry.stored.response["status"] = "cancelled".into();
        }
        Cancelled::Done(entry.stored.response.clone())
    }

    /// Forgets a response, and ends it if it is under way. False: there is none.
    pub(crate) fn delete(&self, id: &str, tenant: u64, now: Instant) -> bool {
        let mut kept = self.kept();
        kept.expire(self.limits.lifetime, now);
        if kept.of(id, tenant).is_none() {
            return false;
        }
        kept.remove(id);
        true
    }

    /// Whether the caller is to call `sweep` from now on, as nobody does.
    pub(crate) fn needs_sweeper(&self) -> bool {
        let mut kept = self.kept();
        let is_needed = !kept.is_swept && !kept.order.is_empty();
        kept.is_swept |= is_needed;
        is_needed
    }

    /// Forgets what is too old. When to come again; `None`: nothing is left.
    pub(crate) fn sweep(&self, now: Instant) -> Option<Instant> {
        let mut kept = self.kept();
        kept.expire(self.limits.lifetime, now);
        let oldest = kept.order.front().map(|id| kept.entries[id].created + self.limits.lifetime);
        kept.is_swept = oldest.is_some();
        oldest
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No operation panics halfway but by an assertion, before anything is changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn of(&mut self, id: &str, tenant: u64) -> Option<&mut Entry> {
        self.entries.get_mut(id).filter(|entry| entry.tenant == tenant)
    }

    fn expire(&mut self, lifetime: Duration, now: Instant) {
        while let Some(id) = self.order.front()
            && now.duration_since(self.entries[id].created) >= lifetime
        {
            let id = id.clone();
            self.remove(&id);
        }
    }

    /// Makes room for so many more. False: what is under way leaves none.
    fn make_room(&mut self, limits: &StoreLimits, count: usize, bytes: usize) -> bool {
        while self.order.len() + count > limits.count || self.bytes + bytes > limits.bytes {
            let Some(id) = self.order.iter().find(|id| self.entries[*id].is_done).cloned() else { return false };
            self.remove(&id);
        }
        true
    }

    fn remove(&mut self, id: &str) {
        let Some(entry) = self.entries.remove(id) else { return };
        self.bytes -= entry.bytes;
        match self.order.front() {
            Some(first) if first == id => drop(self.order.pop_front()),
            _ => self.order.retain(|other| other != id),
        }
        if let Some(token) = entry.background {
            token.cancel();
        }
    }
}

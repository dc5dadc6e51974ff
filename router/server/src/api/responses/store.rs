//! Responses that are kept for a while, within bounds of their number and their bytes.
//!
//! In memory: they end with the server. Who has another API key sees none of them. Where there is no room, something of the tenant goes who
//! has most of what is short: the oldest that is complete, the events of its stream before itself; one that is under way stays.
//! JSON is written outside the lock, so that nobody waits for another's long answer, and told as it was written.
//! Invariants: each id of `entries` stands once in the `order` of its tenant, the oldest first; `bytes` is what all entries take, and never
//! above the bound; a tenant's `bytes` are those of its entries.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    Done, Item,
    items::item,
    replay::{EventLog, EventReader},
};
use crate::error::ApiError;

/// The events of one response take at most this part of all the room, so that a long answer does not drive out all others.
const EVENTS_SHARE: usize = 4;

/// Bounds of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Responses; 0: nothing is kept.
    pub(crate) count: usize,
    /// Bytes of JSON, and of events. What conversations share counts in each of their responses.
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
    /// By number; none that has nothing.
    tenants: BTreeMap<u64, Held>,
    bytes: usize,
    /// Somebody looks after what is too old.
    is_swept: bool,
}

/// What a tenant has.
#[derive(Default)]
struct Held {
    order: VecDeque<String>,
    bytes: usize,
}

/// What a tenant is to have in addition.
#[derive(Default)]
struct Coming {
    tenant: u64,
    count: usize,
    bytes: usize,
}

struct Entry {
    tenant: u64,
    created: Instant,
    packed: Arc<Packed>,
    /// Of what is packed.
    bytes: usize,
    /// Of a response that was asked for in the background.
    background: Option<Background>,
    /// If it is streamed as well.
    events: Option<EventLog>,
}

/// A response that is to be kept, and what it is an answer to.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) response: Value,
    /// Its request's own items.
    input: Vec<Item>,
    /// What came before them.
    before: Vec<Item>,
}

/// The same as it is kept: as text, of which a tree of values takes several times as much.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    pub(crate) response: Item,
    /// Its request's own items.
    pub(crate) input: Vec<Item>,
    before: Vec<Item>,
    /// Its own items, once it is complete.
    output: Vec<Item>,
    /// Nothing comes any more.
    pub(crate) is_done: bool,
}

/// Between who makes a response of the background and who wants it no longer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Background {
    /// It is to end.
    pub(crate) cancel: CancellationToken,
    /// Nobody makes it any more: what there is of it is kept.
    pub(crate) over: CancellationToken,
}

/// What became of a wish to end a response.
#[derive(Debug)]
pub(crate) enum Cancelled {
    /// It had ended before, and is this.
    Done(Item),
    /// Who makes it ends it now, and says when that is done.
    Ending(CancellationToken),
    /// It is not one of the background.
    NotBackground,
    /// It is not here.
    Unknown,
}

/// Who wants to read a response's events.
#[derive(Debug)]
pub(crate) enum Following {
    Reader(EventReader),
    /// It is not one that was asked for in the background and as a stream.
    NotStreamed,
    /// It is not here.
    Unknown,
}

impl Stored {
    pub(crate) fn new(response: Value, input: Vec<Item>, before: Vec<Item>) -> Self {
        Self { response, input, before }
    }
}

impl Packed {
    fn under_way(Stored { response, input, before }: Stored) -> Self {
        Self { response: item(&response), input, before, output: Vec::new(), is_done: false }
    }

    /// Of a response that is complete by now.
    fn complete(Stored { input, before, .. }: Stored, done: &Done) -> Self {
        let output = done.output.iter().map(item).collect();
        Self { response: item(&done.response), input, before, output, is_done: true }
    }

    /// The conversation up to its end.
    pub(crate) fn conversation(&self) -> Vec<Item> {
        self.before.iter().chain(&self.input).chain(&self.output).cloned().collect()
    }

    fn bytes(&self) -> usize {
        let items = self.before.iter().chain(&self.input).chain(&self.output);
        items.chain([&self.response]).map(|item| item.get().len()).sum()
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
    pub(crate) fn keep(&self, id: &str, tenant: u64, stored: Stored, done: Done, now: Instant) {
        let packed = Arc::new(Packed::complete(stored, &done));
        let bytes = packed.bytes();
        self.insert(id, Entry { tenant, created: now, packed, bytes, background: None, events: None });
    }

    /// Keeps a response that is under way in the background. False: there is no room.
    pub(crate) fn begin(&self, id: &str, tenant: u64, stored: Stored, background: Background, now: Instant) -> bool {
        self.insert(id, Entry::under_way(tenant, stored, background, None, now))
    }

    /// The same with the first events of its stream, for which there must be room, too.
    pub(crate) fn begin_stream(
        &self,
        id: &str,
        tenant: u64,
        stored: Stored,
        background: Background,
        events: &[u8],
        now: Instant,
    ) -> bool {
        let log = EventLog::new();
        log.append(events, self.events_max());
        log.read(id, None).is_ok() && self.insert(id, Entry::under_way(tenant, stored, background, Some(log), now))
    }

    fn insert(&self, id: &str, entry: Entry) -> bool {
        let mut kept = self.kept();
        let (tenant, bytes) = (entry.tenant, entry.all_bytes());
        if bytes > self.limits.bytes || !kept.make_room(&self.limits, &Coming { tenant, count: 1, bytes }) {
            return false;
        }
        kept.tenants.entry(tenant).or_default().order.push_back(id.to_owned());
        kept.resize(tenant, 0, bytes);
        let before = kept.entries.insert(id.to_owned(), entry);
        assert!(before.is_none(), "ids are unique in the world");
        true
    }

    /// More has come of a response. Nothing is done if it was deleted meanwhile, or nobody streams it.
    pub(crate) fn append(&self, id: &str, events: &[u8]) {
        let mut kept = self.kept();
        let Some(Entry { events: Some(log), packed, tenant, .. }) = kept.entries.get(id) else { return };
        if packed.is_done {
            return;
        }
        let (tenant, before) = (*tenant, log.bytes());
        log.append(events, self.events_max());
        let after = log.bytes();
        kept.resize(tenant, before, after);
        if !kept.make_room(&self.limits, &Coming::default()) {
            // Nothing complete is left to go: what is oldest of this stream does. That is at most what it has grown by.
            let above = kept.bytes - self.limits.bytes;
            kept.shorten(id, above);
        }
    }

    /// A response of the background has come to its end, with the last events of its stream, if it has one. Nothing is done if it was
    /// deleted meanwhile.
    pub(crate) fn finish(&self, id: &str, done: Done, events: &[u8]) {
        let (response, output) = (item(&done.response), done.output.iter().map(item).collect());
        let mut kept = self.kept();
        let Some(entry) = kept.entries.get_mut(id).filter(|entry| !entry.packed.is_done) else { return };
        let (tenant, before) = (entry.tenant, entry.all_bytes());
        let packed = Arc::make_mut(&mut entry.packed);
        (packed.response, packed.output, packed.is_done) = (response, output, true);
        entry.bytes = entry.packed.bytes();
        if let Some(log) = &entry.events {
            log.complete(events, self.events_max());
        }
        let after = entry.all_bytes();
        kept.resize(tenant, before, after);
        kept.make_room(&self.limits, &Coming::default());
    }

    /// The events of a tenant's response, behind one of them or from the first one on. Refused if they are kept no longer.
    pub(crate) fn follow(
        &self,
        id: &str,
        tenant: u64,
        after: Option<u64>,
        now: Instant,
    ) -> Result<Following, ApiError> {
        let mut kept = self.kept();
        kept.expire(self.limits.lifetime, now);
        Ok(match kept.of(id, tenant) {
            None => Following::Unknown,
            Some(Entry { events: None, .. }) => Following::NotStreamed,
            Some(Entry { events: Some(log), .. }) => Following::Reader(log.read(id, after)?),
        })
    }

    /// A tenant's response.
    pub(crate) fn get(&self, id: &str, tenant: u64, now: Instant) -> Option<Arc<Packed>> {
        let mut kept = self.kept();
        kept.expire(self.limits.lifetime, now);
        Some(Arc::clone(&kept.of(id, tenant)?.packed))
    }

    /// Ends a response of the background.
    pub(crate) fn cancel(&self, id: &str, tenant: u64, now: Instant) -> Cancelled {
        let mut kept = self.kept();
        kept.expire(self.limits.lifetime, now);
        let Some(entry) = kept.of(id, tenant) else { return Cancelled::Unknown };
        let Some(background) = &entry.background else { return Cancelled::NotBackground };
        if entry.packed.is_done {
            return Cancelled::Done(Arc::clone(&entry.packed.response));
        }
        background.cancel.cancel();
        Cancelled::Ending(background.over.clone())
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
        let is_needed = !kept.is_swept && !kept.entries.is_empty();
        kept.is_swept |= is_needed;
        is_needed
    }

    /// Forgets what is too old. When to come again; `None`: nothing is left.
    pub(crate) fn sweep(&self, now: Instant) -> Option<Instant> {
        let mut kept = self.kept();
        kept.expire(self.limits.lifetime, now);
        let oldest =
            kept.tenants.values().filter_map(|held| held.order.front()).map(|id| kept.entries[id].created).min();
        kept.is_swept = oldest.is_some();
        oldest.map(|created| created + self.limits.lifetime)
    }

    fn events_max(&self) -> usize {
        self.limits.bytes / EVENTS_SHARE
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No operation panics halfway but by an assertion, before anything is changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn under_way(
        tenant: u64,
        stored: Stored,
        background: Background,
        events: Option<EventLog>,
        created: Instant,
    ) -> Self {
        let packed = Arc::new(Packed::under_way(stored));
        let bytes = packed.bytes();
        Self { tenant, created, packed, bytes, background: Some(background), events }
    }

    fn event_bytes(&self) -> usize {
        self.events.as_ref().map_or(0, EventLog::bytes)
    }

    fn all_bytes(&self) -> usize {
        self.bytes + self.event_bytes()
    }
}

impl Kept {
    fn of(&mut self, id: &str, tenant: u64) -> Option<&mut Entry> {
        self.entries.get_mut(id).filter(|entry| entry.tenant == tenant)
    }

    /// A part of what a tenant has takes as much now.
    fn resize(&mut self, tenant: u64, before: usize, after: usize) {
        self.bytes = self.bytes - before + after;
        let held = self.tenants.get_mut(&tenant).expect("who has something is here");
        held.bytes = held.bytes - before + after;
    }

    fn expire(&mut self, lifetime: Duration, now: Instant) {
        let is_old = |id: &&String| now.duration_since(self.entries[*id].created) >= lifetime;
        let old = self.tenants.values().flat_map(|held| held.order.iter().take_while(is_old));
        let old: Vec<String> = old.cloned().collect();
        old.iter().for_each(|id| self.remove(id));
    }

    /// Makes room for what is to come. False: what is under way leaves none.
    fn make_room(&mut self, limits: &StoreLimits, coming: &Coming) -> bool {
        loop {
            let is_over_count = self.entries.len() + coming.count > limits.count;
            if !is_over_count && self.bytes + coming.bytes <= limits.bytes {
                return true;
            }
            let Some(id) = self.next_to_go(coming, is_over_count) else { return false };
            match self.entries[&id].event_bytes() {
                events if events > 0 && !is_over_count => self.shorten(&id, events),
                _ => self.remove(&id),
            }
        }
    }

    /// The oldest that is complete of the tenant who has most, with what is to come, so that nobody drives out what others keep. By their
    /// number if it is that which is too large, else by bytes.
    fn next_to_go(&self, coming: &Coming, is_over_count: bool) -> Option<String> {
        let share = |tenant: u64, held: &Held| {
            let (count, bytes) = if tenant == coming.tenant { (coming.count, coming.bytes) } else { (0, 0) };
            if is_over_count { held.order.len() + count } else { held.bytes + bytes }
        };
        let oldest = |held: &Held| held.order.iter().find(|id| self.entries[*id].packed.is_done).cloned();
        let all = self.tenants.iter().filter_map(|(&tenant, held)| Some((share(tenant, held), oldest(held)?)));
        all.max_by_key(|(share, _)| *share).map(|(_, id)| id)
    }

    /// Forgets the oldest events of a response, at least so many bytes of them.
    fn shorten(&mut self, id: &str, bytes: usize) {
        let Some(Entry { events: Some(log), tenant, .. }) = self.entries.get(id) else { return };
        let (tenant, before) = (*tenant, log.bytes());
        log.trim(before.saturating_sub(bytes));
        let after = log.bytes();
        self.resize(tenant, before, after);
    }

    fn remove(&mut self, id: &str) {
        let Some(entry) = self.entries.remove(id) else { return };
        self.resize(entry.tenant, entry.all_bytes(), 0);
        let held = self.tenants.get_mut(&entry.tenant).expect("it had this one");
        match held.order.front() {
            Some(first) if first == id => drop(held.order.pop_front()),
            _ => held.order.retain(|other| other != id),
        }
        if held.order.is_empty() {
            self.tenants.remove(&entry.tenant);
        }
        if let Some(background) = entry.background {
            background.cancel.cancel();
        }
    }
}

#[cfg(test)]
mod tests;

//! Reading ahead: when a request comes in, what of its prompt is on disk alone is ordered to the host's memory, and it waits
//! in the queue until that is there while others pass. It never waits for longer than computing it would take. What would be
//! beyond the bound of all reads together is computed.

use super::shelf::{At, Reserved};
use super::{Label, Tiers};
use crate::core::Core;
use crate::cost::Prices;
use crate::epoch::Epoch;
use crate::live::{LiveRequest, RequestKey};
use crate::{DiskPlace, HostBlockId, Micros};

/// Nobody waits for the disk for longer, in microseconds.
const WAIT_MAX_US: u64 = 1_000_000;
/// Nor is anybody so impatient that the first read could not end.
const WAIT_MIN_US: u64 = 10_000;
/// Of the host's memory one part in so many is held by reads that are under way, at most: a disk that hangs never gives its
/// part back, and the others save to what is left. More would be of no use: half of 16 GiB takes a disk of 4 GB/s two
/// seconds, and nobody waits for two.
const READS_SHARE: usize = 2;

impl Core {
    /// Orders to be read what a new request will find on disk.
    pub(crate) fn prefetch(&mut self, key: RequestKey) {
        if self.tiers.disk.capacity() == 0 {
            return;
        }
        let Self { requests, groups, tiers, .. } = self;
        let now = requests.looks.now;
        let request = requests.get_mut(key);
        let live = groups.values().filter_map(|group| Some((group.epoch.as_ref()?, group.cost.prices())));
        let live: Vec<(&Epoch, Prices)> = live.filter(|(epoch, _)| epoch.blocks.are_saved()).collect();
        let Some(&(_, prices)) = live.first() else { return };
        let now = now.max(request.place.arrival);
        let (places, wait_us) = tiers.read_ahead(request, &live, prices, now);
        if !places.is_empty() {
            tiers.disk.wait(Micros(now.0 + wait_us), request.place.id);
            request.awaited_reads = places;
        }
    }

    /// The same for those that a worker that has come back will serve first: what they knew is lost with the one before, or
    /// they came when nobody knew what there was.
    pub(crate) fn prefetch_first(&mut self) {
        if self.tiers.disk.capacity() == 0 {
            return;
        }
        let first = self.config.max_running as usize;
        let keys: Vec<RequestKey> = self.requests.waiting().take(first).map(|ticket| ticket.key).collect();
        keys.into_iter().for_each(|key| self.prefetch(key));
    }

    /// Those go on that have waited for the disk for long enough.
    pub(crate) fn end_waits_for_disk(&mut self) {
        while let Some(request) = self.tiers.disk.take_overdue(self.requests.looks.now) {
            if let Some(key) = self.requests.find(request) {
                self.requests.get_mut(key).awaited_reads.clear();
            }
        }
    }
}

impl Tiers {
    /// Whether a request still waits for the disk.
    pub(crate) fn is_awaited(&self, request: &mut LiveRequest) -> bool {
        while let Some(&last) = request.awaited_reads.last() {
            if self.disk.is_reading(last) {
                return true;
            }
            request.awaited_reads.pop();
        }
        false
    }

    /// The places whose reads the request is to wait for, and for how long.
    fn read_ahead(
        &mut self,
        request: &mut LiveRequest,
        live: &[(&Epoch, Prices)],
        prices: Prices,
        now: Micros,
    ) -> (Vec<DiskPlace>, u64) {
        let blocks = &live[0].0.blocks;
        let usable = request.shareable() / self.block_size as usize;
        let mut found: Vec<(At, Label)> = Vec::new();
        for before in 0..usable {
            let label = blocks.label(request, 0, before);
            if let Some(at) = self.only_on_disk(&label, request, live) {
                if found.len() == self.reads_max() {
                    break;
                }
                found.push((at, label));
            } else if !self.is_above_disk(&label, request, live) {
                break;
            }
        }
        let computing = found.iter().map(|(_, label)| {
            let start = label.before * self.block_size;
            prices.computing(start, start + self.block_size)
        });
        let computing: u64 = computing.sum();
        let reading = self.disk.read_us().unwrap_or(0) * found.len() as u64 + prices.copying(found.len() as u64);
        if prices.knows_prompts && reading >= computing {
            if !found.is_empty() {
                self.disk.hope();
            }
            return (Vec::new(), 0);
        }
        let wait_us = if prices.knows_prompts { computing.clamp(WAIT_MIN_US, WAIT_MAX_US) } else { WAIT_MAX_US };
        let mut places = Vec::new();
        for (at, label) in found {
            let place = DiskPlace(at);
            let is_coming = match self.disk.read_since(place) {
                Some(since) => now.0.saturating_sub(since.0) < WAIT_MAX_US, // else others have waited in vain
                None => self.order_read(at, label, prices, now),
            };
            if !is_coming {
                break;
            }
            places.push(place);
        }
        (places, wait_us)
    }

    fn reads_max(&self) -> usize {
        (self.host.capacity() / READS_SHARE).max(1)
    }

    fn order_read(&mut self, at: At, label: Label, prices: Prices, now: Micros) -> bool {
        if self.disk.reads() >= self.reads_max() {
            return false;
        }
        let cost = self.cost(&label, prices);
        let Reserved::At(to, given_up) = self.host.demand(label, self.disk.shelf().tokens(at), cost) else {
            return false;
        };
        self.gave_up(given_up);
        self.disk.read(at, HostBlockId(to), now);
        true
    }

    /// Where a block is that is on disk, or being read from there, and nowhere above it.
    fn only_on_disk(&self, label: &Label, request: &mut LiveRequest, live: &[(&Epoch, Prices)]) -> Option<At> {
        let at = self.disk.shelf().find(label.key)?;
        let is_found = self.host.find(label.key).is_some() || is_on_device(label, request, live);
        (!is_found && (self.disk.is_reading(DiskPlace(at)) || !self.host.expects(label.key))).then_some(at)
    }

    fn is_above_disk(&self, label: &Label, request: &mut LiveRequest, live: &[(&Epoch, Prices)]) -> bool {
        self.host.expects(label.key) || is_on_device(label, request, live)
    }
}

fn is_on_device(label: &Label, request: &mut LiveRequest, live: &[(&Epoch, Prices)]) -> bool {
    live.iter().any(|(epoch, _)| epoch.blocks.find_one(request, label.before as usize).is_some())
}

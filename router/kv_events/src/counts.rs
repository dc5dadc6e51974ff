//! What has happened on the sockets so far, counted where it happens and read by whoever serves metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What has happened so far. Gauges are marked as such; all else only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Batches that were given a sequence.
    pub published: u64,
    /// Of these: dropped because the queue was full. No replay has them.
    pub dropped: u64,
    /// Batches that a subscriber did not get because it was too slow, summed over subscribers. A replay may have them.
    pub skipped: u64,
    /// Replays that were asked for.
    pub replays: u64,
    /// Connections refused because there were too many.
    pub refused: u64,
    /// Connections ended by us: not ZeroMQ, not a reader, or taking nothing for too long.
    pub faults: u64,
    /// Gauge: batches that wait for the publisher's thread.
    pub queued: u64,
    /// Gauge: connected readers, of both sockets.
    pub connections: u64,
    /// Gauge: batches kept for replay.
    pub kept: u64,
    /// Gauge: their bytes.
    pub kept_bytes: u64,
}

/// The same, where it is counted; what is queued, the queue knows. Each is a number of its own, so no order between them is promised.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) published: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) replays: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) faults: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) kept: AtomicU64,
    pub(crate) kept_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self, queued: u64) -> Counts {
        Counts {
            queued,
            published: self.published.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            skipped: self.skipped.load(Relaxed),
            replays: self.replays.load(Relaxed),
            refused: self.refused.load(Relaxed),
            faults: self.faults.load(Relaxed),
            connections: self.connections.load(Relaxed),
            kept: self.kept.load(Relaxed),
            kept_bytes: self.kept_bytes.load(Relaxed),
        }
    }
}

/// Counts one more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

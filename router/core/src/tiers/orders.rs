//! What the core asks of the disk, and what it hears from it. Plain values: the engine has them carried out, in order, on a
//! thread of its own.

use serde::{Deserialize, Serialize};

use crate::{BlockKey, DiskPlace, HostBlockId, TokenId};

/// Something for the disk to do. The orders of one place come one by one: a `Write` or a `Read` is answered by one
/// [`crate::Core::disk_done`] before the next order of its place is given. An `Erase` is not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskOrder {
    /// Copy a block of the host's memory to this place, and all that says what it is. What was there before is replaced.
    Write {
        /// Where to.
        place: DiskPlace,
        /// The block; it does not change until the answer.
        from: HostBlockId,
        /// Its name.
        key: BlockKey,
        /// The name of the block before it; none before the first.
        parent: Option<BlockKey>,
        /// Its tokens.
        tokens: Box<[TokenId]>,
        /// The salt of the requests that can find it.
        salt: u64,
    },
    /// Copy what is at this place to a block of the host's memory.
    Read {
        /// Where from.
        place: DiskPlace,
        /// The block; nobody reads it until the answer.
        to: HostBlockId,
        /// The name that must stand there.
        key: BlockKey,
    },
    /// Remove what is at this place.
    Erase {
        /// Which.
        place: DiskPlace,
    },
}

/// Why an order was not carried out. Whatever it was, the place is empty now: what stood there is computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskFault {
    /// What stands there is not what was written.
    Damaged,
    /// The disk is full, gone, or too slow to take the order.
    Failed,
}

/// A block that an earlier life of the engine has left on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskEntry {
    /// Where.
    pub place: DiskPlace,
    /// Its name.
    pub key: BlockKey,
    /// The name of the block before it; none before the first.
    pub parent: Option<BlockKey>,
    /// Its tokens.
    pub tokens: Box<[TokenId]>,
    /// The salt of the requests that can find it.
    pub salt: u64,
    /// When it was written or read last, on a clock that all entries share.
    pub last_used: u64,
}

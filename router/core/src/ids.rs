//! Ids as types: what is counted, what is indexed and what is named cannot be mixed up.

use serde::{Deserialize, Serialize};

/// A token of the model's vocabulary.
pub type TokenId = u32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl $name {
            /// The id as an index.
            pub fn index(self) -> usize {
                usize::try_from(self.0).expect("ids fit the address space of a 64-bit platform")
            }
        }
    };
}

id!(/// A request, as the engine names it. Never used twice.
    RequestId(u64));
id!(/// A worker group: one model replica.
    GroupId(u16));
id!(/// A place in a worker's persistent batch.
    SlotId(u32));
id!(/// A block of KV on a worker group's device.
    BlockId(u32));
id!(/// A block of KV in the host's memory, which all worker groups of the host share.
    HostBlockId(u32));
id!(/// Where a block of KV is kept on disk.
    DiskPlace(u32));
id!(/// A step of one worker group, counted from 1 within an epoch.
    StepId(u64));

impl StepId {
    /// The step after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The name of a block's contents: a keyed hash of its tokens and of all before them. The same for ever under one hash key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockKey(pub [u8; 16]);

/// Microseconds since the engine started, on a monotonic clock that the caller reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Micros(pub u64);

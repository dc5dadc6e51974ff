//! The core as a value: taken between two calls, kept anywhere, brought back in another process, it gives the same plans
//! and events for ever.
//!
//! A snapshot is what the core's own types serialise to, so it belongs to the sources that made it: [`SOURCES`] names
//! them. It holds prompts and the hash key; where it is kept, others must not read it.

use serde::{Deserialize, Serialize};

use crate::core::Core;

/// A number that changes with every change of this crate's sources. Other sources may read a snapshot wrongly, and may plan
/// otherwise.
pub const SOURCES: &str = env!("PELTON_CORE_SOURCES");

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Snapshot(Box<Core>);

impl Core {
    /// All that the core knows now. Costs a copy of it: some milliseconds with 64k blocks.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(Box::new(self.clone()))
    }

    /// The core as it was. Asserts every invariant: whoever reads snapshots from a file has to see by a checksum that they
    /// are as they were written, and by [`SOURCES`] that they are of these sources.
    pub fn restore(snapshot: Snapshot) -> Self {
        snapshot.0.check();
        *snapshot.0
    }
}

/// Slices behind an `Arc`, as lists.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(items: &Arc<[T]>, to: S) -> Result<S::Ok, S::Error> {
        items.as_ref().serialize(to)
    }

    pub(crate) fn deserialize<'a, T: Deserialize<'a>, D: Deserializer<'a>>(from: D) -> Result<Arc<[T]>, D::Error> {
        Vec::deserialize(from).map(Into::into)
    }
}

/// Arrays that are longer than serde's own, as lists.
pub(crate) mod long {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    pub(crate) fn serialize<T: Serialize, S: Serializer, const N: usize>(
        items: &[T; N],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        items.as_slice().serialize(to)
    }

    pub(crate) fn deserialize<'a, T: Deserialize<'a>, D: Deserializer<'a>, const N: usize>(
        from: D,
    ) -> Result<Box<[T; N]>, D::Error> {
        let items = Vec::deserialize(from)?.into_boxed_slice();
        let got = items.len();
        items.try_into().map_err(|_| D::Error::custom(format_args!("{got} items; allowed: {N}")))
    }
}

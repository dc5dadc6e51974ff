//! Memory that all requests share. Who finds none left is refused at once: a wait would hold what has been taken already.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What room is counted in.
const UNIT_BYTES: usize = 1024;

/// So many bytes at once.
#[derive(Debug)]
pub(crate) struct Room {
    free: Arc<Semaphore>,
    units: usize,
}

/// A part of a room, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(OwnedSemaphorePermit);

/// Bodies of up to so many bytes are small.
pub(crate) const SMALL_BODY: usize = 64 << 10;

/// Room for bodies of requests until they are understood. Small ones have a room of their own, so that large ones keep nobody from an
/// ordinary chat.
#[derive(Debug)]
pub(crate) struct BodyRooms {
    pub(crate) small: Room,
    pub(crate) large: Room,
}

impl Place {
    /// For crates that know no rooms.
    pub(crate) fn into_permit(self) -> OwnedSemaphorePermit {
        self.0
    }
}

impl Room {
    pub(crate) fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT_BYTES).clamp(1, u32::MAX as usize / 2);
        Self { free: Arc::new(Semaphore::new(units)), units }
    }

    /// Room for so many bytes; `None`: less is left.
    pub(crate) fn take(&self, bytes: usize) -> Option<Place> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.free).try_acquire_many_owned(units).ok().map(Place)
    }

    /// Makes a place as large as so many bytes need; false: too little is left, and the place stays as it is.
    pub(crate) fn widen(&self, place: &mut Place, bytes: usize) -> bool {
        let missing = bytes.div_ceil(UNIT_BYTES).saturating_sub(place.0.num_permits());
        match self.take(missing.saturating_mul(UNIT_BYTES)) {
            Some(more) => place.0.merge(more.0),
            None => return false,
        }
        true
    }

    /// Bytes that nobody has.
    pub(crate) fn free(&self) -> usize {
        self.free.available_permits() * UNIT_BYTES
    }

    /// Bytes in all.
    pub(crate) fn all(&self) -> usize {
        self.units * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_gone_until_it_is_dropped() {
        let room = Room::new(10 << 10);
        let mut place = room.take(1).expect("all is free");
        assert_eq!(room.free(), 9 << 10);
        assert!(room.widen(&mut place, 1024), "it has that much");
        assert!(room.widen(&mut place, 5 << 10));
        let other = room.take(4 << 10).expect("five are free");
        assert!(!room.widen(&mut place, 7 << 10), "one is free");
        assert_eq!(room.free(), 1 << 10, "nothing is lost by asking for too much");
        drop(place);
        assert_eq!(room.free(), 6 << 10);
        assert!(room.take(usize::MAX).is_none());
        drop(other);
        assert_eq!(room.free(), room.all());
    }
}

//! How many clients may be connected, and who goes first when there are too many.
//!
//! A connection is *silent* until its first request is here. When all slots are taken, a new connection gets that of the
//! oldest silent one: sockets that are opened and left alone, by accident or in bad faith, keep nobody out. If none is silent,
//! accepting waits: those who are served now are served to their end, and the kernel's queue holds the next ones.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// All slots of a server, shared by its listeners.
pub(super) struct Slots {
    free: Arc<Semaphore>,
    silent: Mutex<Silent>,
}

#[derive(Default)]
struct Silent {
    /// By the order in which they came.
    connections: BTreeMap<u64, CancellationToken>,
    next: u64,
}

/// One connection's place; it is free again when this is dropped.
pub(super) struct Slot {
    slots: Arc<Slots>,
    number: u64,
    given_up: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl Slots {
    pub(super) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { free: Arc::new(Semaphore::new(count)), silent: Mutex::default() })
    }

    /// A slot for a connection that is here.
    pub(super) async fn take(self: &Arc<Self>) -> Slot {
        let permit = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.give_up_oldest();
                Arc::clone(&self.free).acquire_owned().await.expect("never closed")
            }
        };
        let given_up = CancellationToken::new();
        let number = self.silent(|silent| {
            silent.next += 1;
            silent.connections.insert(silent.next, given_up.clone());
            silent.next
        });
        Slot { slots: Arc::clone(self), number, given_up, _permit: permit }
    }

    /// Gives up the oldest silent connection, if there is one.
    pub(super) fn give_up_oldest(&self) {
        if let Some((_, given_up)) = self.silent(|silent| silent.connections.pop_first()) {
            given_up.cancel();
        }
    }

    /// No code can panic while it holds the lock.
    fn silent<T>(&self, act: impl FnOnce(&mut Silent) -> T) -> T {
        act(&mut self.silent.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Slot {
    /// A request is here: the slot is no longer given to others.
    pub(super) fn speaks(&self) {
        self.slots.silent(|silent| silent.connections.remove(&self.number));
    }

    /// Cancelled when the slot is given to another connection.
    pub(super) fn given_up(&self) -> CancellationToken {
        self.given_up.clone()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.speaks();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn taken(slots: &Arc<Slots>) -> Slot {
        match now(slots.take()) {
            Poll::Ready(slot) => slot,
            Poll::Pending => panic!("a slot is free"),
        }
    }

    #[test]
    fn the_oldest_silent_connection_makes_room() {
        let slots = Slots::new(3);
        let [first, second, third] = [taken(&slots), taken(&slots), taken(&slots)];
        first.speaks();
        assert!(now(slots.take()).is_pending(), "the slot is free only once its connection has ended");
        let given_up = [&first, &second, &third].map(|slot| slot.given_up().is_cancelled());
        assert_eq!(given_up, [false, true, false]);
        drop(second);
        taken(&slots).speaks();
        assert!(!third.given_up().is_cancelled());
    }

    #[test]
    fn who_is_served_is_waited_for() {
        let slots = Slots::new(1);
        let served = taken(&slots);
        served.speaks();
        assert!(now(slots.take()).is_pending());
        assert!(!served.given_up().is_cancelled());
        drop(served);
        assert!(now(slots.take()).is_ready());
    }

    #[test]
    fn nothing_is_kept_of_a_connection_that_has_ended() {
        let slots = Slots::new(2);
        drop([taken(&slots), taken(&slots)]);
        assert_eq!(slots.silent(|silent| silent.connections.len()), 0);
        assert_eq!(slots.free.available_permits(), 2);
    }
}

//! How many clients may be connected, and who goes first when there are too many.
//!
//! A connection is *idle* while no request of its is under way: from its beginning on, and again from the end of its last answer on. When
//! all slots are taken, a new connection gets that of an idle one. First go those that have never sent a request, the oldest of them before
//! the others: sockets that are opened and left alone, by accident or in bad faith, keep nobody out. Then goes who has been idle for
//! longest. If none is idle, accepting waits for the first that will be: those who are served are served to their end, and the kernel's queue
//! holds the next ones.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// All slots of a server, shared by its listeners.
pub(super) struct Slots {
    free: Arc<Semaphore>,
    count: u32,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// The first goes first.
    connections: BTreeMap<Rank, CancellationToken>,
    next: u64,
    /// New connections without a slot.
    waiting: usize,
    /// Connections that were given up and are about to end: as many of these will have one.
    leaving: usize,
}

/// Whether it has ever sent a request, and when it fell idle.
type Rank = (bool, u64);

/// One connection's place; it is free again when this is dropped.
pub(super) struct Slot {
    slots: Arc<Slots>,
    given_up: CancellationToken,
    /// Locked before those who are idle.
    turn: Mutex<Turn>,
    _permit: OwnedSemaphorePermit,
}

struct Turn {
    requests_under_way: usize,
    has_spoken: bool,
    /// Its last one among those who are idle.
    rank: Rank,
    /// It was given up, and has a request to answer first.
    is_late: bool,
}

/// A request that is under way, until this is dropped.
pub(super) struct UnderWay(Arc<Slot>);

impl Slots {
    pub(super) fn new(count: usize) -> Arc<Self> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Arc::new(Self { free: Arc::new(Semaphore::new(count as usize)), count, idle: Mutex::default() })
    }

    /// A slot for a connection that is here.
    pub(super) async fn take(self: &Arc<Self>) -> Slot {
        let permit = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                // Before it looks for an idle one: who falls idle behind that look sees it wait.
                let _waiting = Waiting::among(self);
                self.make_room();
                Arc::clone(&self.free).acquire_owned().await.expect("never closed")
            }
        };
        let given_up = CancellationToken::new();
        let rank = self.idle().insert(false, &given_up);
        let turn = Mutex::new(Turn { requests_under_way: 0, has_spoken: false, rank, is_late: false });
        Slot { slots: Arc::clone(self), given_up, turn, _permit: permit }
    }

    /// Gives up the idle connection that goes first, if there is one.
    pub(super) fn give_up_first(&self) {
        self.idle().give_up_first();
    }

    /// The same, if more wait than leave.
    fn make_room(&self) {
        let mut idle = self.idle();
        if idle.waiting > idle.leaving {
            idle.give_up_first();
        }
    }

    /// Resolves when no connection has a slot.
    pub(super) async fn all_free(&self) {
        _ = self.free.acquire_many(self.count).await.expect("never closed");
    }

    /// No code can panic while it holds the lock.
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idle {
    fn give_up_first(&mut self) {
        if let Some((_, given_up)) = self.connections.pop_first() {
            given_up.cancel();
            self.leaving += 1;
        }
    }

    fn insert(&mut self, has_spoken: bool, given_up: &CancellationToken) -> Rank {
        self.next += 1;
        let rank = (has_spoken, self.next);
        self.connections.insert(rank, given_up.clone());
        rank
    }
}

/// A new connection that has no slot yet; counted also if the wait is given up.
struct Waiting<'a>(&'a Slots);

impl<'a> Waiting<'a> {
    fn among(slots: &'a Slots) -> Self {
        slots.idle().waiting += 1;
        Self(slots)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.idle().waiting -= 1;
    }
}

impl Slot {
    /// A request is here: the slot is not given to others before it is answered.
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        let mut turn = self.turn();
        turn.requests_under_way += 1;
        turn.has_spoken = true;
        let mut idle = self.slots.idle();
        idle.connections.remove(&turn.rank);
        if self.given_up.is_cancelled() && !turn.is_late {
            turn.is_late = true;
            idle.leaving -= 1;
            drop(idle);
            self.slots.make_room();
        }
        UnderWay(Arc::clone(self))
    }

    /// Whether no request was ever here.
    pub(super) fn is_silent(&self) -> bool {
        !self.turn().has_spoken
    }

    /// Whether no request is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.turn().requests_under_way == 0
    }

    /// Cancelled when the slot is given to another connection.
    pub(super) fn given_up(&self) -> &CancellationToken {
        &self.given_up
    }

    /// No code can panic while it holds the lock.
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Self(slot) = self;
        let mut turn = slot.turn();
        turn.requests_under_way -= 1;
        if turn.requests_under_way > 0 {
            return;
        }
        let mut idle = slot.slots.idle();
        if slot.given_up.is_cancelled() {
            turn.is_late = false;
            idle.leaving += 1;
            return;
        }
        turn.rank = idle.insert(true, &slot.given_up);
        drop(idle);
        slot.slots.make_room();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let rank = self.turn().rank;
        let mut idle = self.slots.idle();
        idle.connections.remove(&rank);
        if self.given_up.is_cancelled() {
            idle.leaving -= 1; // no request is under way: it would hold the slot
        }
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

    fn taken(slots: &Arc<Slots>) -> Arc<Slot> {
        match now(slots.take()) {
            Poll::Ready(slot) => Arc::new(slot),
            Poll::Pending => panic!("a slot is free"),
        }
    }

    fn given_up<const N: usize>(slots: [&Arc<Slot>; N]) -> [bool; N] {
        slots.map(|slot| slot.given_up().is_cancelled())
    }

    #[test]
    fn the_oldest_silent_connection_makes_room() {
        let slots = Slots::new(3);
        let [first, second, third] = [taken(&slots), taken(&slots), taken(&slots)];
        let _request = first.begin();
        assert!(now(slots.take()).is_pending(), "the slot is free only once its connection has ended");
        assert_eq!(given_up([&first, &second, &third]), [false, true, false]);
        drop(second);
        let _another = taken(&slots).begin();
        assert!(!third.given_up().is_cancelled());
    }

    #[test]
    fn who_is_served_is_waited_for_and_goes_when_it_is_idle() {
        let slots = Slots::new(1);
        let served = taken(&slots);
        let requests = [served.begin(), served.begin()];
        let mut waiting = pin!(slots.take());
        let mut poll = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        let [first, second] = requests;
        drop(first);
        assert!(!served.given_up().is_cancelled() && !served.is_idle());
        drop(second);
        assert!(served.given_up().is_cancelled() && served.is_idle(), "somebody waits");
        drop(served.begin()); // it came before the connection knew
        drop(served);
        let Poll::Ready(slot) = poll() else { panic!("a slot is free") };
        assert!(slot.is_silent() && !slot.given_up().is_cancelled(), "nobody waits any more");
    }

    #[test]
    fn of_those_who_have_spoken_the_longest_idle_goes_and_the_silent_go_before_them() {
        let slots = Slots::new(4);
        let all = [(); 4].map(|()| taken(&slots));
        let [first, second, third, silent] = &all;
        for slot in [second, first, third, second] {
            drop(slot.begin());
        }
        assert_eq!(given_up(all.each_ref()), [false; 4], "there is room");
        let mut waiting = Vec::new();
        for gone in [silent, first, third, second] {
            assert!(!gone.given_up().is_cancelled());
            let mut take = Box::pin(slots.take());
            assert!(take.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            waiting.push(take);
            assert!(gone.given_up().is_cancelled());
        }
    }

    #[test]
    fn as_many_go_as_wait_and_another_one_for_who_answers_first() {
        let slots = Slots::new(3);
        let [first, second, third] = [taken(&slots), taken(&slots), taken(&slots)];
        let all = [&first, &second, &third];
        let requests = all.map(|slot| slot.begin());
        let mut waiting = pin!(slots.take());
        let mut poll = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        drop(requests);
        assert_eq!(given_up(all), [true, false, false], "one waits");
        let late = first.begin();
        assert_eq!(given_up(all), [true, true, false], "the first has to answer");
        let later = first.begin();
        drop((late, later));
        assert_eq!(given_up(all), [true, true, false]);
        drop(second);
        assert!(poll().is_ready());
        drop(first);
        assert_eq!(slots.idle().leaving, 0);
    }

    #[test]
    fn nothing_is_kept_of_a_connection_that_has_ended() {
        let slots = Slots::new(2);
        let request = taken(&slots).begin();
        assert!(now(slots.all_free()).is_pending());
        drop((request, taken(&slots)));
        assert_eq!(slots.idle().connections.len(), 0);
        assert_eq!(slots.free.available_permits(), 2);
        assert!(now(slots.all_free()).is_ready());
    }
}

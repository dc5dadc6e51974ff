//! The requests that wait, in the order in which they are to be served.
//!
//! First those that are *due*: half of the time until their deadline has passed, or, without one, all the patience that
//! their priority asks of them. So nobody waits for ever behind more important ones. Then by priority, smaller first. Within
//! either, first those that have run before (preempted, or their worker was lost), by their place; then by fair shares: the
//! tenant that was served fewest tokens, of its users the one that was served fewest, of that user's requests the first
//! place. A share is charged when a request is admitted, so the order changes with every admission.
//!
//! A request that is passed over is taken out and put back as it was: it keeps its place ahead of later ones. B:SC1.
//! Never here: what a request needs, or whether there is room for it. Every call is O(log n).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::live::{Place, RequestKey};
use crate::shares::{Served, Shares, Turn};
use crate::{Micros, Party};

/// How long a request of priority 0 or less waits before it is due.
pub(crate) const PATIENCE: Micros = Micros(30_000_000);
/// A priority above 0 multiplies it by so much more, up to this bound: 32 × 30 s = 16 min.
const PATIENCE_FACTOR_MAX: u64 = 32;

/// What the queue knows of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticket {
    pub(crate) key: RequestKey,
    pub(crate) place: Place,
    pub(crate) party: Party,
    pub(crate) deadline: Option<Micros>,
    pub(crate) has_run: bool,
}

impl Ticket {
    fn due(&self) -> Micros {
        let arrival = self.place.arrival.0;
        match self.deadline {
            Some(deadline) => Micros(arrival + deadline.0.saturating_sub(arrival) / 2),
            None => {
                let above = u64::try_from(self.place.priority).unwrap_or(0);
                Micros(arrival.saturating_add(PATIENCE.0 * (above + 1).min(PATIENCE_FACTOR_MAX)))
            }
        }
    }

    /// Where it stands among the requests of its party: of those that are due, the nearest deadline is first.
    fn rank(&self, class: Class) -> (Micros, Place) {
        let first = match class {
            Class::Due => self.deadline.unwrap_or_else(|| self.due()),
            Class::Priority(_) => Micros(0),
        };
        (first, self.place)
    }
}

/// Requests are served class by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Class {
    Due,
    Priority(i32),
}

/// See the top of the file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Queue {
    tickets: BTreeMap<Place, Waiting>,
    classes: BTreeMap<Class, Ranks>,
    to_be_due: BTreeSet<(Micros, Place)>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Waiting {
    ticket: Ticket,
    class: Class,
}

/// Those of one class.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Ranks {
    has_run: BTreeSet<Place>,
    fair: Turn<(Micros, Place)>,
}

impl Ranks {
    fn is_empty(&self) -> bool {
        self.has_run.is_empty() && self.fair.is_empty()
    }
}

impl Queue {
    /// Enters a request, new or passed over or come back. If it is due already, the next `age` will see it.
    pub(crate) fn insert(&mut self, ticket: Ticket, shares: &Shares) {
        let class = Class::Priority(ticket.place.priority);
        self.to_be_due.insert((ticket.due(), ticket.place));
        self.enter(&ticket, class, shares);
        let before = self.tickets.insert(ticket.place, Waiting { ticket, class });
        assert!(before.is_none(), "{:?} waits once", ticket.place);
    }

    /// Takes a request out. False: it does not wait.
    pub(crate) fn remove(&mut self, place: Place, shares: &Shares) -> bool {
        let Some(Waiting { ticket, class }) = self.tickets.remove(&place) else { return false };
        self.to_be_due.remove(&(ticket.due(), place));
        self.leave(&ticket, class, shares);
        true
    }

    /// Takes out the one whose turn it is.
    pub(crate) fn pop_first(&mut self, shares: &Shares) -> Option<Ticket> {
        let place = self.first_place()?;
        let ticket = self.tickets[&place].ticket;
        self.remove(place, shares);
        Some(ticket)
    }

    /// The one whose turn it is.
    pub(crate) fn first(&self) -> Option<RequestKey> {
        Some(self.tickets[&self.first_place()?].ticket.key)
    }

    fn first_place(&self) -> Option<Place> {
        let (_, ranks) = self.classes.first_key_value()?;
        let fair = || ranks.fair.first().map(|(_, place)| place);
        Some(*ranks.has_run.first().or_else(fair).expect("an empty class is removed"))
    }

    /// Lets those become due whose time has come.
    pub(crate) fn age(&mut self, now: Micros, shares: &Shares) {
        while let Some(&(due, place)) = self.to_be_due.first()
            && due <= now
        {
            self.to_be_due.pop_first();
            let waiting = self.tickets.get_mut(&place).expect("those to be due wait");
            let (ticket, was) = (waiting.ticket, std::mem::replace(&mut waiting.class, Class::Due));
            self.leave(&ticket, was, shares);
            self.enter(&ticket, Class::Due, shares);
        }
    }

    /// A party's share has changed from `before`: its requests move accordingly.
    pub(crate) fn reorder(&mut self, party: Party, before: Served, shares: &Shares) {
        for ranks in self.classes.values_mut() {
            ranks.fair.reorder(party, before, shares.served(party));
        }
    }

    /// All that wait, by place.
    pub(crate) fn tickets(&self) -> impl ExactSizeIterator<Item = &Ticket> {
        self.tickets.values().map(|waiting| &waiting.ticket)
    }

    fn enter(&mut self, ticket: &Ticket, class: Class, shares: &Shares) {
        let ranks = self.classes.entry(class).or_default();
        if ticket.has_run {
            ranks.has_run.insert(ticket.place);
        } else {
            ranks.fair.insert(ticket.party, shares.served(ticket.party), ticket.rank(class));
        }
    }

    fn leave(&mut self, ticket: &Ticket, class: Class, shares: &Shares) {
        let ranks = self.classes.get_mut(&class).expect("it stands in its class");
        let stood = match ticket.has_run {
            true => ranks.has_run.remove(&ticket.place),
            false => ranks.fair.remove(ticket.party, shares.served(ticket.party), &ticket.rank(class)),
        };
        assert!(stood, "{ticket:?} stands in its class");
        if ranks.is_empty() {
            self.classes.remove(&class);
        }
    }
    /// Asserts that each ticket stands where its class and its party's share say, and nothing else does.
    pub(crate) fn check(&self, shares: &Shares) {
        let stand: usize = self.classes.values().map(|ranks| ranks.has_run.len() + ranks.fair.len()).sum();
        assert_eq!(stand, self.tickets.len());
        for Waiting { ticket, class } in self.tickets.values() {
            let ranks = &self.classes[class];
            assert!(match ticket.has_run {
                true => ranks.has_run.contains(&ticket.place),
                false => ranks.fair.contains(ticket.party, shares.served(ticket.party), &ticket.rank(*class)),
            });
            assert_eq!(*class != Class::Due, self.to_be_due.contains(&(ticket.due(), ticket.place)), "{ticket:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestId;
    use crate::live::Requests;

    fn ticket(id: u64, priority: i32, arrival: u64, tenant: u64) -> Ticket {
        let place = Place { priority, arrival: Micros(arrival), id: RequestId(id) };
        let party = Party { tenant, user: 0 };
        Ticket { key: Requests::key_for_tests(id), place, party, deadline: None, has_run: false }
    }

    /// The order in which tickets come, aged until `now`, if nobody is charged.
    fn order(tickets: &[Ticket], now: Micros) -> Vec<u64> {
        let (mut queue, mut shares) = (Queue::default(), Shares::default());
        for &ticket in tickets {
            shares.enter(ticket.party);
            queue.insert(ticket, &shares);
        }
        queue.age(now, &shares);
        queue.check(&shares);
        std::iter::from_fn(|| queue.pop_first(&shares)).map(|ticket| ticket.place.id.0).collect()
    }

    #[test]
    fn priority_then_those_that_have_run_then_arrival() {
        let run = |ticket| Ticket { has_run: true, ..ticket };
        let tickets =
            [ticket(1, 1, 0, 0), ticket(2, 0, 7, 0), ticket(3, 0, 5, 0), run(ticket(4, 0, 9, 0)), ticket(5, -3, 20, 0)];
        assert_eq!(order(&tickets, Micros(20)), [5, 4, 3, 2, 1]);
    }

    #[test]
    fn whoever_has_waited_for_all_its_patience_goes_before_more_important_ones() {
        let tickets = [ticket(1, 2, 0, 0), ticket(2, 0, 1_000, 0), ticket(3, -5, PATIENCE.0 * 3 - 1, 0)];
        assert_eq!(order(&tickets, Micros(PATIENCE.0)), [3, 2, 1]);
        assert_eq!(order(&tickets, Micros(PATIENCE.0 + 1_000)), [2, 3, 1], "2 is due");
        assert_eq!(order(&tickets, Micros(PATIENCE.0 * 3)), [2, 1, 3], "1 too: its patience is three times as long");
    }

    #[test]
    fn a_deadline_is_due_when_half_of_its_time_has_passed() {
        let with = |deadline, ticket| Ticket { deadline: Some(Micros(deadline)), ..ticket };
        let tickets = [ticket(1, 0, 0, 0), with(1_000, ticket(2, 0, 10, 0)), with(600, ticket(3, 9, 20, 0))];
        assert_eq!(order(&tickets, Micros(300)), [1, 2, 3]);
        assert_eq!(order(&tickets, Micros(310)), [3, 1, 2], "its priority does not matter any more");
        assert_eq!(order(&tickets, Micros(505)), [3, 2, 1], "the nearer deadline first");
    }

    /// B:SC1.
    #[test]
    fn one_that_is_passed_over_comes_before_later_ones_again() {
        let (mut queue, mut shares) = (Queue::default(), Shares::default());
        for id in 0..5 {
            shares.enter(Party::default());
            queue.insert(ticket(id, 0, id, 0), &shares);
        }
        let skipped = [queue.pop_first(&shares), queue.pop_first(&shares)];
        let taken = queue.pop_first(&shares).expect("five wait");
        assert_eq!(taken.place.id.0, 2);
        queue.insert(ticket(9, 0, 9, 0), &shares);
        skipped.into_iter().flatten().for_each(|ticket| queue.insert(ticket, &shares));
        let left: Vec<u64> = std::iter::from_fn(|| queue.pop_first(&shares)).map(|ticket| ticket.place.id.0).collect();
        assert_eq!(left, [0, 1, 3, 4, 9]);
    }

    #[test]
    fn a_tenant_with_a_thousand_requests_does_not_hold_up_one_with_two() {
        let (mut queue, mut shares) = (Queue::default(), Shares::default());
        for id in 0..1_000 {
            shares.enter(Party { tenant: 1, user: 0 });
            queue.insert(ticket(id, 0, id, 1), &shares);
        }
        for id in 1_000..1_002 {
            shares.enter(Party { tenant: 2, user: 0 });
            queue.insert(ticket(id, 0, id, 2), &shares);
        }
        let mut served = Vec::new();
        for _ in 0..6 {
            let ticket = queue.pop_first(&shares).expect("many wait");
            let before = shares.served(ticket.party);
            shares.charge(ticket.party, 100);
            queue.reorder(ticket.party, before, &shares);
            queue.check(&shares);
            served.push(ticket.party.tenant);
        }
        assert_eq!(served, [1, 2, 1, 2, 1, 1]);
    }
}

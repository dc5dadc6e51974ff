//! The requests that wait, in the order in which they are to be served.
//!
//! First those that are *urgent*: half of the time until their deadline has passed; the nearest deadline comes first, whoever
//! asks. They take turns with all others: a deadline is a wish that anybody may have. Of the others first those that are *due*:
//! they have waited for all the patience that their priority asks of them, so nobody waits for ever behind more important
//! ones. But more important ones have three turns of four, so that a backlog holds them up no more than that. Then by
//! priority, smaller first. Within due and priority, first those that have run before (preempted, or their worker was lost),
//! by their place; then by fair shares: the tenant that was served fewest tokens, of its users the one that was served fewest,
//! of that user's requests, and among equals, the first place. Of those that are due a tenant's are served as they became due,
//! whoever its users are: a user is a name that anybody may make up, and new ones would go before an old one for ever. A share
//! is charged when a request is admitted, so the order changes with every admission.
//!
//! Shares bound what others get and not how long one waits: a tenant that is served much elsewhere could keep its own old request
//! behind those of all others. So those that are due stand in a line, too, as they became due or came back, and every eighth of
//! their turns is that of the first in line, whoever asks. Before a request that is due, whatever comes, no more are served than
//! 64 times those that were in line before it, and 64 (`queue/bound.rs`).
//!
//! Before all of them stands one for which another has given up its slot (`turns.rs`).
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
/// Of so many turns of those that are due one is that of the first in line.
const TURNS_PER_LINE: u32 = 8;
/// So many turns more important requests have before one that is due has one.
const TURNS_OF_IMPORTANT: u32 = 3;
/// Priorities from minus this to this are all told apart; beyond, those of the same power of two share a class.
const EXACT: i32 = 128;
/// A priority above 0 multiplies it by so much more, up to this bound: 32 × 30 s = 16 min.
const PATIENCE_FACTOR_MAX: u64 = 32;
/// So many of those that are urgent are looked at for one to call.
const URGENT_LOOKED_AT_MAX: usize = 64;

/// What the queue knows of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticket {
    pub(crate) key: RequestKey,
    pub(crate) place: Place,
    pub(crate) party: Party,
    pub(crate) deadline: Option<Micros>,
    pub(crate) has_run: bool,
    pub(crate) since: Micros, // its patience begins: its arrival, or the end of its turn
    pub(crate) class: Class,
    pub(crate) number: u64, // of those that are due, in line
}

impl Ticket {
    /// Of a request that comes into the queue.
    pub(crate) fn new(key: RequestKey, place: Place, party: Party, deadline: Option<Micros>, has_run: bool) -> Self {
        let class = Class::Priority(level(place.priority));
        Self { key, place, party, deadline, has_run, since: place.arrival, class, number: 0 }
    }

    /// Its place among those that run, once it is let in. One that has risen keeps that: it stands before all that have not, however
    /// important they are, and among its like by its arrival. So nobody is preempted again and again after it has waited for long.
    pub(crate) fn standing(&self) -> Place {
        match self.class {
            Class::Called | Class::Urgent | Class::Due => Place { priority: i32::MIN, ..self.place },
            Class::Priority(_) => self.place,
        }
    }

    /// It was called, and there is no room for it all the same: it waits with the others.
    pub(crate) fn call_off(&mut self) {
        if self.class == Class::Called {
            self.class = Class::Due;
        }
    }

    /// When it rises next, and to which class.
    fn rise(&self) -> Option<(Micros, Class)> {
        let arrival = self.place.arrival.0;
        let urgent = self.deadline.map(|deadline| Micros(arrival + deadline.0.saturating_sub(arrival) / 2));
        let urgent = urgent.map(|at| (at, Class::Urgent));
        match self.class {
            Class::Called | Class::Urgent => None,
            Class::Due => urgent,
            Class::Priority(_) => {
                let due = (self.due_after(self.since), Class::Due);
                Some(urgent.filter(|(at, _)| *at <= due.0).unwrap_or(due))
            }
        }
    }

    /// When all the patience is over that its priority asks of it, if it began then.
    fn due_after(&self, since: Micros) -> Micros {
        let above = u64::try_from(self.place.priority).unwrap_or(0);
        let patience = PATIENCE.0 * (above + 1).min(PATIENCE_FACTOR_MAX);
        Micros(since.0.saturating_add(patience))
    }

    fn rank(&self) -> Rank {
        match self.class {
            Class::Urgent => Rank::Hurried(self.deadline.expect("what is urgent has a deadline"), self.place),
            Class::Called => Rank::HasRun(self.place),
            _ if self.has_run => Rank::HasRun(self.place),
            Class::Due => Rank::Fair(self.due_after(self.place.arrival), self.place),
            Class::Priority(_) => Rank::Fair(Micros(0), self.place),
        }
    }
}

/// Which class a priority belongs to: there are few, since each costs something when a share changes.
fn level(priority: i32) -> i32 {
    match priority {
        _ if priority.unsigned_abs() <= EXACT.unsigned_abs() => priority,
        _ => priority.signum() * (EXACT + 1 + i32::try_from(priority.unsigned_abs().ilog2()).expect("below 32")),
    }
}

/// Requests are served class by class, but for turns: see the top of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Class {
    /// Another one has given up its slot for it.
    Called,
    Urgent,
    Due,
    Priority(i32),
}

impl Class {
    /// Whose share counts, and what it is.
    fn payer(self, party: Party, shares: &Shares) -> (Party, Served) {
        match self {
            Self::Due => (party.of_tenant(), shares.served(party).of_tenant()),
            _ => (party, shares.served(party)),
        }
    }
}

/// Where a request stands within its class.
enum Rank {
    /// By its deadline.
    Hurried(Micros, Place),
    /// By its place.
    HasRun(Place),
    /// By what its party was served, then by these.
    Fair(Micros, Place),
}

/// See the top of the file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Queue {
    tickets: BTreeMap<Place, Ticket>,
    classes: BTreeMap<Class, Ranks>,
    to_rise: BTreeSet<(Micros, Place)>,
    line: BTreeSet<(u64, Place)>, // of those that are due
    urgent_had_its_turn: bool,
    due_turns: u32,       // since the first in line had its turn
    important_turns: u32, // since one that is due had its turn, at most `TURNS_OF_IMPORTANT`
}

/// Those of one class.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Ranks {
    hurried: BTreeSet<(Micros, Place)>,
    has_run: BTreeSet<Place>,
    fair: Turn<(Micros, Place)>,
}

impl Ranks {
    fn is_empty(&self) -> bool {
        self.hurried.is_empty() && self.has_run.is_empty() && self.fair.is_empty()
    }

    fn first(&self) -> Option<&Place> {
        let hurried = self.hurried.first().map(|(_, place)| place);
        let fair = || self.fair.first().map(|(_, place)| place);
        hurried.or_else(|| self.has_run.first()).or_else(fair)
    }
}

impl Queue {
    /// Enters a request, new or come back or passed over. If its time to rise has come, the next `age` will see it; one that has risen
    /// stays where it was.
    pub(crate) fn insert(&mut self, ticket: Ticket, shares: &Shares) {
        self.to_rise.extend(ticket.rise().map(|(at, _)| (at, ticket.place)));
        self.enter(&ticket, shares);
        let before = self.tickets.insert(ticket.place, ticket);
        assert!(before.is_none(), "{:?} waits once", ticket.place);
    }

    /// Takes a request out. None: it does not wait.
    pub(crate) fn remove(&mut self, place: Place, shares: &Shares) -> Option<Ticket> {
        let ticket = self.tickets.remove(&place)?;
        if let Some((at, _)) = ticket.rise() {
            self.to_rise.remove(&(at, place));
        }
        self.leave(&ticket, shares);
        Some(ticket)
    }

    /// Takes out the one whose turn it is.
    pub(crate) fn pop_first(&mut self, shares: &Shares) -> Option<Ticket> {
        self.remove(self.first_place()?, shares)
    }

    /// One of this class has had its turn.
    pub(crate) fn served(&mut self, class: Class) {
        match class {
            Class::Called => {}
            Class::Urgent => self.urgent_had_its_turn = true,
            Class::Due => {
                (self.urgent_had_its_turn, self.important_turns) = (false, 0);
                self.due_turns = (self.due_turns + 1) % TURNS_PER_LINE;
            }
            Class::Priority(_) => {
                self.urgent_had_its_turn = false;
                self.important_turns = (self.important_turns + 1).min(TURNS_OF_IMPORTANT);
            }
        }
    }

    /// The one whose turn it is.
    pub(crate) fn first(&self) -> Option<RequestKey> {
        Some(self.tickets[&self.first_place()?].key)
    }

    /// Whether anybody may be called.
    pub(crate) fn may_call(&self) -> bool {
        self.classes.range(..Class::Priority(i32::MIN)).next().is_some()
    }

    /// See `Requests::due_with_fewest`. Those that are urgent count, too, once they have waited as long as those that are due.
    pub(crate) fn due_with_fewest(
        &self,
        now: Micros,
        slots: impl Fn(u64) -> usize,
        fits: impl Fn(RequestKey) -> bool,
    ) -> Option<(usize, u64, RequestKey)> {
        let ticket = |place: &Place| &self.tickets[place];
        let of = |ticket: &Ticket, number| fits(ticket.key).then(|| (slots(ticket.party.tenant), number, ticket.key));
        if let Some(called) = self.classes.get(&Class::Called).and_then(Ranks::first).map(ticket) {
            return of(called, 0);
        }
        let due = self.classes.get(&Class::Due).into_iter();
        let due = due.flat_map(|due| due.has_run.iter().chain(due.fair.firsts().map(|(_, place)| place))).map(ticket);
        let urgent = self.classes.get(&Class::Urgent).into_iter().flat_map(|urgent| &urgent.hurried);
        let urgent = urgent.take(URGENT_LOOKED_AT_MAX).map(|(_, place)| ticket(place));
        let urgent = urgent.filter(|ticket| ticket.due_after(ticket.since) <= now);
        due.chain(urgent)
            .filter_map(|ticket| of(ticket, ticket.number))
            .min_by_key(|&(slots, number, _)| (slots, number))
    }

    /// See `Requests::call`. None: it does not wait here.
    pub(crate) fn take_for_call(&mut self, place: Place, shares: &Shares) -> Option<Ticket> {
        self.remove(place, shares).map(|ticket| Ticket { class: Class::Called, ..ticket })
    }

    fn first_place(&self) -> Option<Place> {
        if let Some(called) = self.classes.get(&Class::Called) {
            return called.first().copied();
        }
        let (urgent, others) = (self.classes.get(&Class::Urgent).and_then(Ranks::first), self.first_of_others());
        if self.urgent_had_its_turn { others.or(urgent) } else { urgent.or(others) }.copied()
    }

    /// Of those that are not urgent.
    fn first_of_others(&self) -> Option<&Place> {
        let important = self.classes.range(Class::Priority(i32::MIN)..).next().and_then(|(_, ranks)| ranks.first());
        let in_line = self.line.first().map(|(_, place)| place).filter(|_| self.due_turns == 0);
        let due = in_line.or_else(|| self.classes.get(&Class::Due)?.first());
        let Some((due, important)) = due.zip(important) else { return due.or(important) };
        let has_turn = important.priority < due.priority && self.important_turns < TURNS_OF_IMPORTANT;
        Some(if has_turn { important } else { due })
    }

    /// Lets those rise whose time has come. The numbers in line go on from `number`.
    pub(crate) fn age(&mut self, now: Micros, number: &mut u64, shares: &Shares) {
        while let Some(&(due, place)) = self.to_rise.first()
            && due <= now
        {
            self.to_rise.pop_first();
            let ticket = self.tickets[&place];
            self.leave(&ticket, shares);
            *number += 1;
            let (_, class) = ticket.rise().expect("it stands among those that do");
            let risen = Ticket { class, number: *number, ..ticket };
            self.to_rise.extend(risen.rise().map(|(at, _)| (at, place)));
            self.enter(&risen, shares);
            self.tickets.insert(place, risen);
        }
    }

    /// A party's share has changed: its requests move accordingly.
    pub(crate) fn reorder(&mut self, party: Party, shares: &Shares) {
        for (class, ranks) in &mut self.classes {
            let (party, served) = class.payer(party, shares);
            ranks.fair.reorder(party, served);
        }
    }

    /// All that wait, by place.
    pub(crate) fn tickets(&self) -> impl ExactSizeIterator<Item = &Ticket> {
        self.tickets.values()
    }

    fn enter(&mut self, ticket: &Ticket, shares: &Shares) {
        if ticket.class == Class::Due {
            self.line.insert((ticket.number, ticket.place));
        }
        let ranks = self.classes.entry(ticket.class).or_default();
        match ticket.rank() {
            Rank::Hurried(deadline, place) => drop(ranks.hurried.insert((deadline, place))),
            Rank::HasRun(place) => drop(ranks.has_run.insert(place)),
            Rank::Fair(due, place) => {
                let (party, served) = ticket.class.payer(ticket.party, shares);
                ranks.fair.insert(party, served, (due, place));
            }
        }
    }

    fn leave(&mut self, ticket: &Ticket, shares: &Shares) {
        if ticket.class == Class::Due {
            self.line.remove(&(ticket.number, ticket.place));
        }
        let ranks = self.classes.get_mut(&ticket.class).expect("it stands in its class");
        let stood = match ticket.rank() {
            Rank::Hurried(deadline, place) => ranks.hurried.remove(&(deadline, place)),
            Rank::HasRun(place) => ranks.has_run.remove(&place),
            Rank::Fair(due, place) => {
                let (party, served) = ticket.class.payer(ticket.party, shares);
                ranks.fair.remove(party, served, &(due, place))
            }
        };
        assert!(stood, "{ticket:?} stands in its class");
        if ranks.is_empty() {
            self.classes.remove(&ticket.class);
        }
    }

    /// Asserts that each ticket stands where its class and its party's share say, and nothing else does.
    pub(crate) fn check(&self, shares: &Shares) {
        let count = |ranks: &Ranks| ranks.hurried.len() + ranks.has_run.len() + ranks.fair.len();
        assert_eq!(self.classes.values().map(count).sum::<usize>(), self.tickets.len());
        assert_eq!(self.classes.get(&Class::Due).map_or(0, count), self.line.len());
        for ticket in self.tickets.values() {
            let ranks = &self.classes[&ticket.class];
            assert!(match ticket.rank() {
                Rank::Hurried(deadline, place) => ranks.hurried.contains(&(deadline, place)),
                Rank::HasRun(place) => ranks.has_run.contains(&place),
                Rank::Fair(due, place) => {
                    let (party, served) = ticket.class.payer(ticket.party, shares);
                    ranks.fair.contains(party, served, &(due, place))
                }
            });
            assert_eq!(self.line.contains(&(ticket.number, ticket.place)), ticket.class == Class::Due, "{ticket:?}");
            assert!(ticket.rise().is_none_or(|(at, _)| self.to_rise.contains(&(at, ticket.place))), "{ticket:?}");
        }
        let to_rise = self.tickets.values().filter(|ticket| ticket.rise().is_some()).count();
        assert_eq!(to_rise, self.to_rise.len());
    }
}

#[cfg(test)]
mod bound;
#[cfg(test)]
mod tests;

//! A bound on waiting, as a property of whatever may come: any arrivals of any parties, priorities and deadlines, in any order with
//! services, preemptions and ends. Who was set aside has had its turn, in vain; brought back to where there is a place
//! for it, it has its number in line still.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::live::{LiveRequest, Requests};
use crate::request::{Goal, NewRequest, Sampling, StopRule};
use crate::{CacheScope, GroupId, RequestId, SlotId};

#[derive(Debug, Clone)]
enum Act {
    Ask {
        tenant: u64,
        user: u64,
        priority: i32,
        deadline_after: Option<u64>,
    },
    /// The one whose turn it is runs, and is charged for so many tokens.
    Serve {
        cost: u64,
    },
    /// Looked at in vain: no turn of theirs.
    PassOver {
        count: usize,
    },
    /// Looked at in vain and set aside: no turn of theirs while they stand there.
    SetAside {
        count: usize,
    },
    /// So many of those that stand aside are looked at again; if there is no place for them, they stand aside again.
    BringBack {
        count: usize,
        has_place: bool,
    },
    /// Of those that run this one comes back.
    Preempt {
        nth: usize,
    },
    /// Of those that run this one ends, and is charged for so many tokens in all.
    End {
        nth: usize,
        cost: u64,
    },
    TimePasses {
        by: u64,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let seconds = |range: std::ops::Range<u64>| range.prop_map(|seconds| seconds * 1_000_000);
    let ask = (0..3_u64, 0..3_u64, -2..3_i32, proptest::option::weighted(0.3, seconds(1..200)));
    prop_oneof![
        5 => ask.prop_map(|(tenant, user, priority, deadline_after)| Act::Ask { tenant, user, priority, deadline_after }),
        5 => (1..2_000_u64).prop_map(|cost| Act::Serve { cost }),
        1 => (1..4_usize).prop_map(|count| Act::PassOver { count }),
        1 => (1..4_usize).prop_map(|count| Act::SetAside { count }),
        2 => (1..9_usize, any::<bool>()).prop_map(|(count, has_place)| Act::BringBack { count, has_place }),
        2 => (0..64_usize).prop_map(|nth| Act::Preempt { nth }),
        1 => (0..64_usize, 1..2_000_u64).prop_map(|(nth, cost)| Act::End { nth, cost }),
        2 => seconds(1..40).prop_map(|by| Act::TimePasses { by }),
    ]
}

/// What was served since a request became due, or came back and was.
#[derive(Debug, Default)]
struct Ledger {
    in_line_before: u32,
    urgent: u32,
    due: u32,
    important: u32,
}

#[derive(Default)]
struct World {
    requests: Requests,
    now: u64,
    next_id: u64,
    running: Vec<RequestKey>,
    ledgers: BTreeMap<Place, Ledger>, // of those that wait and are due
    aside: BTreeSet<Place>,
}

impl World {
    fn act(&mut self, act: Act) {
        match act {
            Act::Ask { tenant, user, priority, deadline_after } => {
                let new = NewRequest {
                    id: RequestId(self.next_id),
                    prompt: vec![1].into(),
                    generated: Vec::new(),
                    scored: 0,
                    goal: Goal::Tokens,
                    sampling: Sampling::greedy(),
                    stop: StopRule { max_tokens: 4_000, min_tokens: 0, stop_ids: [].into() },
                    masked: false,
                    scope: CacheScope::default(),
                    priority,
                    arrival: Micros(self.now),
                    party: Party { tenant, user },
                    deadline: deadline_after.map(|after| Micros(self.now + after)),
                };
                self.next_id += 1;
                self.requests.insert(LiveRequest::new(new, 10_000, false));
            }
            Act::Serve { cost } => self.serve(cost),
            Act::PassOver { count } => {
                let passed: Vec<Ticket> = std::iter::from_fn(|| self.requests.pop_waiting()).take(count).collect();
                passed.into_iter().for_each(|ticket| self.requests.put_back(ticket));
            }
            Act::SetAside { count } => {
                let passed: Vec<Ticket> = std::iter::from_fn(|| self.requests.pop_waiting()).take(count).collect();
                self.aside.extend(passed.iter().map(|ticket| ticket.place));
                self.ledgers.retain(|place, _| !self.aside.contains(place)); // it was their turn
                passed.into_iter().for_each(|ticket| self.requests.set_aside(ticket));
            }
            Act::BringBack { count, has_place } => {
                let back = self.requests.bring_back(count);
                if has_place {
                    self.aside.retain(|place| !back.contains(place));
                } else {
                    back.into_iter().for_each(|place| self.requests.set_aside_again(place));
                }
            }
            Act::Preempt { nth } if !self.running.is_empty() => {
                let key = self.running.swap_remove(nth % self.running.len());
                self.requests.return_to_queue(key);
            }
            Act::End { nth, cost } if !self.running.is_empty() => {
                let key = self.running.swap_remove(nth % self.running.len());
                self.requests.charge(key, cost);
                self.requests.remove(key);
            }
            Act::Preempt { .. } | Act::End { .. } => {}
            Act::TimePasses { by } => self.now += by,
        }
        self.requests.age(Micros(self.now));
        self.requests.check();
        self.open_ledgers();
    }

    /// In line.
    fn due(&self) -> Vec<Place> {
        let mut due: Vec<&Ticket> = self.requests.waiting().filter(|ticket| ticket.class == Class::Due).collect();
        due.sort_by_key(|ticket| ticket.number);
        due.into_iter().map(|ticket| ticket.place).collect()
    }

    fn open_ledgers(&mut self) {
        for (before, place) in self.due().into_iter().enumerate().filter(|(_, place)| !self.aside.contains(place)) {
            let in_line_before = u32::try_from(before).expect("few");
            self.ledgers.entry(place).or_insert_with(|| Ledger { in_line_before, ..Ledger::default() });
        }
    }

    fn serve(&mut self, cost: u64) {
        let due = self.due();
        let Some(ticket) = self.requests.pop_waiting() else { return };
        self.ledgers.remove(&ticket.place);
        for place in due.iter().filter(|place| **place != ticket.place && !self.aside.contains(*place)) {
            let ledger = self.ledgers.get_mut(place).expect("opened when it became due");
            match ticket.class {
                Class::Urgent => ledger.urgent += 1,
                Class::Due => ledger.due += 1,
                Class::Priority(_) => ledger.important += 1,
                Class::Called => unreachable!("nobody gives up a slot here"),
            }
            let Ledger { in_line_before, urgent, due, important } = *ledger;
            let before = format!("{place:?} is due: before it {urgent} urgent, {due} due, {important} important ones");
            assert!(important <= TURNS_OF_IMPORTANT * (due + 1), "{before}");
            assert!(urgent <= due + important + 1, "{before}");
            let bound = TURNS_PER_LINE * (in_line_before + 1);
            assert!(due < bound, "{before}; {in_line_before} were in line before it");
        }
        self.running.push(ticket.key);
        self.requests.move_to_slot(&ticket, GroupId(0), SlotId(0));
        self.requests.charge(ticket.key, cost);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Once it is due: of others that are due, fewer than eight times (those that were in line before it, and one); of more important
    /// ones three times as many, and three; of those in a hurry as many as of all others, and one.
    #[test]
    fn whoever_is_due_has_its_turn_whatever_comes(acts in prop::collection::vec(act(), 1..400)) {
        let mut world = World::default();
        for act in acts {
            world.act(act);
        }
    }
}

//! The order of the queue, case by case; `bound.rs` shows what holds for all of them.

use super::*;
use crate::RequestId;
use crate::live::Requests;

fn ticket(id: u64, priority: i32, arrival: u64, tenant: u64) -> Ticket {
    let place = Place { priority, arrival: Micros(arrival), id: RequestId(id) };
    let party = Party { tenant, user: 0 };
    Ticket::new(Requests::key_for_tests(id), place, party, None, false)
}

fn with(deadline: u64, ticket: Ticket) -> Ticket {
    Ticket { deadline: Some(Micros(deadline)), ..ticket }
}

/// The order in which tickets come, aged until `now`, if nobody is charged.
fn order(tickets: &[Ticket], now: Micros) -> Vec<u64> {
    let (mut queue, mut shares) = (Queue::default(), Shares::default());
    for &ticket in tickets {
        shares.enter(ticket.party);
        queue.insert(ticket, &shares);
    }
    queue.age(now, &mut 0, &shares);
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

/// The order in which tickets are served, aged until `now`, if nobody is charged.
fn served(tickets: &[Ticket], now: Micros) -> Vec<u64> {
    let (mut queue, mut shares) = (Queue::default(), Shares::default());
    for &ticket in tickets {
        shares.enter(ticket.party);
        queue.insert(ticket, &shares);
    }
    queue.age(now, &mut 0, &shares);
    let mut served = Vec::new();
    while let Some(ticket) = queue.pop_first(&shares) {
        queue.served(ticket.class);
        queue.check(&shares);
        served.push(ticket.place.id.0);
    }
    served
}

#[test]
fn whoever_has_waited_for_all_its_patience_goes_before_all_but_more_important_ones_which_have_three_turns_of_four() {
    let fresh = |id, priority| ticket(id, priority, PATIENCE.0 * 2, 0);
    let tickets = [ticket(1, 2, 0, 0), ticket(2, 0, 1_000, 0), fresh(3, 0), fresh(4, 3), fresh(5, -9), fresh(6, -5)];
    let more = [7, 8].map(|id| fresh(id, -2));
    let tickets: Vec<Ticket> = tickets.into_iter().chain(more).collect();
    let now = Micros(PATIENCE.0 * 2 + 1);
    assert_eq!(served(&tickets, now), [5, 6, 7, 2, 8, 3, 1, 4], "2 is due");
    let now = Micros(PATIENCE.0 * 3 - 1);
    assert_eq!(served(&tickets[..4], now), [2, 3, 1, 4], "3 and 4 are more important than 1, and 1 is not due");
    assert_eq!(served(&[tickets[0], tickets[3]], Micros(PATIENCE.0 * 3)), [1, 4], "now it is");
}

#[test]
fn priorities_that_are_far_out_share_classes_and_keep_their_order() {
    let priorities = [i32::MIN, -3_000, -2_900, -128, 0, 128, 2_900, 3_000, i32::MAX];
    let levels: Vec<i32> = priorities.iter().map(|&priority| level(priority)).collect();
    assert!(levels.is_sorted() && levels[1] == levels[2] && levels[6] == levels[7], "{levels:?}");
    assert!((-4_000..4_000).map(level).is_sorted());
    let tickets: Vec<Ticket> = (0..9).rev().map(|at| ticket(at as u64, priorities[at], 0, 0)).collect();
    assert_eq!(served(&tickets, Micros(0)), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_deadline_that_is_far_away_takes_nobodys_patience() {
    let far = with(PATIENCE.0 * 100, ticket(1, 0, 0, 0));
    assert_eq!(served(&[far, ticket(2, 0, 1, 0)], Micros(PATIENCE.0)), [1, 2]);
    assert_eq!(served(&[far, ticket(2, -1, PATIENCE.0, 0)], Micros(PATIENCE.0)), [2, 1]);
    let important: Vec<Ticket> = (2..8).map(|id| ticket(id, -1, PATIENCE.0, 0)).collect();
    let all: Vec<Ticket> = [far].into_iter().chain(important).collect();
    assert_eq!(served(&all, Micros(PATIENCE.0)), [2, 3, 4, 1, 5, 6, 7], "it is due");
    assert_eq!(served(&all, Micros(PATIENCE.0 * 50))[0], 1, "it is urgent");
}

#[test]
fn a_deadline_is_urgent_when_half_of_its_time_has_passed() {
    let tickets = [ticket(1, 0, 0, 0), with(1_000, ticket(2, 0, 10, 0)), with(600, ticket(3, 9, 20, 0))];
    assert_eq!(order(&tickets, Micros(300)), [1, 2, 3]);
    assert_eq!(order(&tickets, Micros(310)), [3, 1, 2], "its priority does not matter any more");
    assert_eq!(order(&tickets, Micros(505)), [3, 2, 1], "the nearer deadline first");
}

/// Whoever asks, and whatever they were served.
#[test]
fn the_nearest_deadline_is_first_among_all_tenants() {
    let (mut queue, mut shares) = (Queue::default(), Shares::default());
    let asked = [(1, 900, 1), (2, 500, 2), (3, 700, 1), (4, 600, 3)];
    for (id, deadline, tenant) in asked {
        shares.enter(Party { tenant, user: 0 });
        queue.insert(with(deadline, ticket(id, 0, 0, tenant)), &shares);
    }
    shares.charge(Party { tenant: 2, user: 0 }, 10_000);
    queue.age(Micros(450), &mut 0, &shares);
    queue.check(&shares);
    let order: Vec<u64> = std::iter::from_fn(|| queue.pop_first(&shares)).map(|ticket| ticket.place.id.0).collect();
    assert_eq!(order, [2, 4, 3, 1]);
}

#[test]
fn those_in_a_hurry_and_those_that_waited_for_long_take_turns() {
    let (mut queue, mut shares) = (Queue::default(), Shares::default());
    shares.enter(Party::default());
    for id in 0..4 {
        shares.enter(Party { tenant: 1, user: 0 });
        queue.insert(ticket(id, 0, 0, 0), &shares);
        queue.insert(with(PATIENCE.0 + 10 * id, ticket(10 + id, 0, 0, 1)), &shares);
    }
    queue.age(PATIENCE, &mut 0, &shares);
    let mut served = Vec::new();
    while let Some(ticket) = queue.pop_first(&shares) {
        queue.insert(ticket, &shares); // looked at in vain: that was no turn
        queue.age(PATIENCE, &mut 0, &shares);
        let again = queue.pop_first(&shares).expect("it waits");
        assert_eq!(again, ticket);
        queue.served(ticket.class);
        queue.check(&shares);
        served.push(ticket.place.id.0);
    }
    assert_eq!(served, [10, 0, 11, 1, 12, 2, 13, 3]);
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
fn of_users_that_were_served_alike_the_one_who_asked_first_is_first() {
    let by_user = |id: u64, user| Ticket { party: Party { tenant: 0, user }, ..ticket(id, 0, id, 0) };
    assert_eq!(order(&[by_user(1, 9), by_user(2, 5), by_user(3, 7)], Micros(10)), [1, 2, 3]);
    let by_tenant = [ticket(1, 0, 1, 9), ticket(2, 0, 2, 5), ticket(3, 0, 3, 7)];
    assert_eq!(order(&by_tenant, Micros(10)), [1, 2, 3]);
}

/// One tenant whose every request names a new user, and one user that was served before; more comes than can be served.
#[test]
fn new_users_hold_up_nobody_for_longer_than_those_that_were_due_before() {
    let (mut queue, mut shares) = (Queue::default(), Shares::default());
    let honest = Party { tenant: 1, user: u64::MAX };
    shares.enter(honest);
    shares.charge(honest, 1_000_000);
    queue.insert(Ticket { party: honest, ..ticket(0, 0, 0, 1) }, &shares);
    let (second, mut id) = (1_000_000, 0);
    for now in 0..120 {
        for _ in 0..11 {
            id += 1;
            let party = Party { tenant: 1, user: id };
            shares.enter(party);
            queue.insert(Ticket { party, ..ticket(id, 0, now * second, 1) }, &shares);
        }
        queue.age(Micros(now * second), &mut 0, &shares);
        for _ in 0..10 {
            let ticket = queue.pop_first(&shares).expect("more comes than can be served");
            queue.served(ticket.class);
            shares.charge(ticket.party, 100);
            queue.reorder(ticket.party, &shares);
            shares.wait_no_more(ticket.party);
            shares.leave(ticket.party);
            if ticket.party == honest {
                assert!(now * second <= PATIENCE.0 + second, "it is the first that is due");
                return;
            }
        }
    }
    panic!("it was never served");
}

#[test]
fn of_one_tenant_who_is_due_first_is_first_whatever_its_user_was_served() {
    let (mut queue, mut shares) = (Queue::default(), Shares::default());
    for (id, user) in [(0, 1), (1, 1), (2, 2)] {
        let party = Party { tenant: 1, user };
        shares.enter(party);
        queue.insert(Ticket { party, ..ticket(id, 0, id, 1) }, &shares);
    }
    let served = Party { tenant: 1, user: 1 };
    shares.charge(served, 1_000_000);
    queue.reorder(served, &shares);
    queue.age(Micros(PATIENCE.0 + 10), &mut 0, &shares);
    let mut order = Vec::new();
    while let Some(ticket) = queue.pop_first(&shares) {
        queue.served(ticket.class);
        order.push(ticket.place.id.0);
    }
    assert_eq!(order, [0, 1, 2], "the line's turn, and two more");
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
        shares.charge(ticket.party, 100);
        queue.reorder(ticket.party, &shares);
        queue.check(&shares);
        served.push(ticket.party.tenant);
    }
    assert_eq!(served, [1, 2, 1, 2, 1, 1]);
}

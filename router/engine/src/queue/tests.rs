//! What the queue takes and refuses, and who has to leave it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const FREE: QueueLimits = QueueLimits { requests: 1_000, tokens: None, wait: None };

fn at(begin: Instant, ms: u64) -> Instant {
    begin + Duration::from_millis(ms)
}

/// 100 requests of 100 tokens wait; every 100 ms two of them are let in, from the third time on for 3 s.
fn busy(limits: QueueLimits, begin: Instant) -> (Arc<Queue>, Vec<Place>) {
    let queue = Queue::new(limits);
    let mut places = enter(&queue, 0, &[100; 100], begin).expect("nobody is before them");
    for turn in 1..=30 {
        for place in places.drain(..2) {
            place.admitted(at(begin, turn * 100));
        }
    }
    (queue, places)
}

/// Of requests that no other call has named.
fn enter(queue: &Arc<Queue>, tenant: u64, tokens: &[u64], now: Instant) -> Result<Vec<Place>, Failure> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let first = NEXT.fetch_add(tokens.len() as u64, Ordering::Relaxed);
    let requests: Vec<_> = (first..).map(RequestId).zip(tokens.iter().copied()).collect();
    queue.enter(tenant, &requests, now)
}

fn refusal(queue: &Arc<Queue>, tokens: u64, now: Instant) -> (QueueBound, u32) {
    match enter(queue, 0, &[tokens], now) {
        Err(Failure::QueueFull { bound, retry_after_s }) => (bound, retry_after_s),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_bound_is_named_with_what_it_got_and_what_it_allows() {
    let begin = Instant::now();
    let now = at(begin, 3_000);
    let (queue, places) = busy(QueueLimits { requests: 100, ..FREE }, begin);
    let more = enter(&queue, 0, &[100; 60], now).expect("room");
    // 100 requests with 10,000 tokens, of which 2,000 are let in a second.
    assert_eq!(refusal(&queue, 1, now), (QueueBound::Requests { waiting: 100, asked: 1, limit: 100 }, 5));
    drop((places, more));

    let (queue, _places) = busy(QueueLimits { tokens: Some(10_000), ..FREE }, begin);
    assert_eq!(refusal(&queue, 6_001, now), (QueueBound::Tokens { waiting: 4_000, asked: 6_001, limit: 10_000 }, 2));
    assert!(enter(&queue, 0, &[3_000, 3_000], now).is_ok());

    let limit = Duration::from_millis(1_500);
    let (queue, _places) = busy(QueueLimits { wait: Some(limit), ..FREE }, begin);
    let (QueueBound::Wait { foreseen, limit: told }, after) = refusal(&queue, 1, now) else { panic!("bounded") };
    assert_eq!((foreseen.as_secs_f64().round(), told, after), (2.0, limit, 2));
    let stats = queue.stats(now);
    assert_eq!((stats.refused_by_requests, stats.refused_by_tokens, stats.refused_by_wait), (0, 0, 1));
}

#[test]
fn whoever_finds_nobody_waiting_may_wait_whatever_it_asks() {
    let now = Instant::now();
    for limits in [QueueLimits { tokens: Some(10), ..FREE }, QueueLimits { requests: 2, ..FREE }] {
        let queue = Queue::new(limits);
        let places = enter(&queue, 0, &[1_000; 3], now).expect("nobody is before them");
        refusal(&queue, 1, now);
        drop(places);
        assert!(enter(&queue, 0, &[1_000; 3], now).is_ok());
    }
}

#[test]
fn those_who_come_together_are_let_in_together_or_not_at_all() {
    let queue = Queue::new(QueueLimits { requests: 4, ..FREE });
    let now = Instant::now();
    let _place = enter(&queue, 0, &[1], now).expect("room");
    assert!(matches!(
        enter(&queue, 0, &[1; 4], now),
        Err(Failure::QueueFull { bound: QueueBound::Requests { waiting: 1, asked: 4, limit: 4 }, .. })
    ));
    assert_eq!(queue.stats(now).requests, 1);
    assert_eq!(enter(&queue, 0, &[1; 3], now).map(|places| places.len()).ok(), Some(3));
}

#[test]
fn however_a_request_leaves_its_place_comes_back() {
    let queue = Queue::new(FREE);
    let now = Instant::now();
    let places: [Place; 2] = enter(&queue, 0, &[7, 9], now).expect("room").try_into().expect("two");
    let [admitted, left] = places;
    assert_eq!((queue.stats(now).requests, queue.stats(now).tokens), (2, 16));
    admitted.admitted(now);
    assert_eq!((queue.stats(now).requests, queue.stats(now).tokens), (1, 9));
    drop(left);
    assert_eq!(queue.stats(now), QueueStats::default());
}

#[test]
fn an_empty_queue_foresees_no_wait_even_after_a_busy_time() {
    let begin = Instant::now();
    let (queue, places) = busy(FREE, begin);
    drop(places);
    assert_eq!(queue.stats(at(begin, 60_000)).wait, Duration::ZERO);
}

fn waiting(places: &[Place]) -> Vec<u64> {
    places.iter().map(|place| place.request.0).collect()
}

fn displaced(queue: &Arc<Queue>, now: Instant) -> Vec<u64> {
    queue.displaced(now).iter().map(|(request, _)| request.0).collect()
}

#[test]
fn one_alone_may_fill_the_queue_and_has_to_share_it_with_whoever_comes_then() {
    let now = Instant::now();
    for limits in [QueueLimits { requests: 8, ..FREE }, QueueLimits { tokens: Some(80), ..FREE }] {
        let queue = Queue::new(limits);
        let first: Vec<Place> =
            (0..8).flat_map(|_| enter(&queue, 1, &[10], now).expect("nobody else is there")).collect();
        assert!(enter(&queue, 1, &[10], now).is_err(), "its own are not pushed out by its own");
        let second = enter(&queue, 2, &[10; 3], now).expect("it has its share");
        assert_eq!(displaced(&queue, now), waiting(&first)[5..], "the latest ones");
        let (_, Failure::QueueFull { bound: QueueBound::Share { waiting }, .. }) = &queue.displaced(now)[0] else {
            panic!("it is told why");
        };
        assert_eq!(*waiting, 6, "as many as there were when it was its turn");
        assert!(enter(&queue, 2, &[10; 2], now).is_err(), "it would have more than the other one");
        let more = enter(&queue, 2, &[10], now).expect("as many");
        assert!(enter(&queue, 2, &[10], now).is_err() && enter(&queue, 1, &[10], now).is_err());
        let third = enter(&queue, 3, &[10; 2], now).expect("it has its share");
        assert_eq!(queue.stats(now).requests, 8);
        assert_eq!(displaced(&queue, now).len(), 6);
        drop((first, second, more, third));
        assert_eq!((displaced(&queue, now), queue.stats(now).requests, queue.stats(now).tokens), (vec![], 0, 0));
        assert!(queue.lock().tenants.is_empty());
    }
}

#[test]
fn one_that_is_let_in_before_it_hears_that_it_is_displaced_is_not() {
    let (queue, now) = (Queue::new(QueueLimits { requests: 2, ..FREE }), Instant::now());
    let _before = enter(&queue, 1, &[10], now).expect("room");
    let mut first = enter(&queue, 1, &[10], now).expect("room");
    let _second = enter(&queue, 2, &[10], now).expect("its share");
    assert_eq!(displaced(&queue, now).len(), 1);
    first.pop().expect("one").admitted(now);
    assert_eq!((displaced(&queue, now).len(), queue.stats(now).requests), (0, 2));
}

#[test]
fn who_comes_to_a_backlog_of_others_waits_for_its_share_of_it() {
    let begin = Instant::now();
    let limit = Duration::from_millis(2_500);
    let (queue, places) = busy(QueueLimits { wait: Some(limit), ..FREE }, begin);
    let now = at(begin, 3_000);
    let more = enter(&queue, 0, &[100; 40], now).expect("2 s are foreseen");
    let (QueueBound::Wait { foreseen, .. }, _) = refusal(&queue, 100, now) else { panic!("bounded") };
    assert_eq!(foreseen.as_secs_f64().round(), 4.0, "80 requests, 20 of which are let in a second");
    assert_eq!(enter(&queue, 1, &[100; 10], now).map(|places| places.len()).ok(), Some(10));
    drop((places, more));
}

#[test]
fn those_who_came_together_leave_together_and_none_once_one_was_let_in() {
    let (queue, now) = (Queue::new(QueueLimits { requests: 8, ..FREE }), Instant::now());
    let mut pair = enter(&queue, 1, &[10; 2], now).expect("room");
    let six = enter(&queue, 1, &[10; 6], now).expect("room");
    assert!(enter(&queue, 2, &[10], now).is_ok_and(|places| places.len() == 1), "two stay, and one comes");
    assert_eq!(displaced(&queue, now), waiting(&six));
    drop(six);
    let _five = enter(&queue, 1, &[10; 5], now).expect("room");
    pair.pop().expect("two").admitted(now);
    let _one = enter(&queue, 3, &[10; 2], now).expect("there is room");
    assert_eq!(queue.stats(now).requests, 8);
    assert!(enter(&queue, 2, &[10; 2], now).is_err(), "it would leave the first one with less");
    assert!(displaced(&queue, now).is_empty());
}

#[test]
fn who_would_wait_for_too_long_pushes_nobody_out() {
    let begin = Instant::now();
    let limits = QueueLimits { requests: 40, wait: Some(Duration::from_millis(500)), ..FREE };
    let queue = Queue::new(limits);
    let mut places = enter(&queue, 0, &[100; 100], begin).expect("nobody is before them");
    for turn in 1..=30 {
        for place in places.drain(..2) {
            place.admitted(at(begin, turn * 100));
        }
    }
    let now = at(begin, 3_000);
    assert!(enter(&queue, 1, &[2_000], now).is_err(), "2 s are foreseen for it");
    assert!(displaced(&queue, now).is_empty());
}

#[test]
fn who_goes_on_is_in_nobodys_way_and_loses_no_place() {
    let now = Instant::now();
    let queue = Queue::new(QueueLimits { requests: 2, tokens: Some(100), wait: None });
    let waiting = enter(&queue, 0, &[10], now).expect("room");
    let mut going = queue.enter_to_go_on(0, &[(RequestId(1_000_000), 500), (RequestId(1_000_001), 500)]);
    assert_eq!((going.len(), queue.stats(now).requests, queue.stats(now).tokens), (2, 1, 10));
    let others = enter(&queue, 1, &[10], now).expect("room, as if nobody went on");
    assert!(enter(&queue, 2, &[10], now).is_err(), "nobody has more than its share, whoever goes on");
    assert!(queue.displaced(now).is_empty());
    going.pop().expect("two").admitted(now);
    drop((waiting, others, going));
    assert_eq!((queue.stats(now).requests, queue.stats(now).tokens), (0, 0));
}

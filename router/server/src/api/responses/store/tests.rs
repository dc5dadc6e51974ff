//! What is kept, for how long, and what goes when there is no room.

use serde_json::json;

use super::{
    super::{
        replay::EVENT_BYTES,
        tests::{form, whole_text},
    },
    *,
};
use crate::generate::Source as _;

fn store(count: usize, bytes: usize) -> Store {
    Store::new(StoreLimits { count, bytes, lifetime: Duration::from_secs(60) })
}

fn empty() -> Stored {
    Stored::new(form().in_progress(), Vec::new(), Vec::new())
}

fn status(response: &Item) -> Value {
    serde_json::from_str::<Value>(response.get()).expect("JSON")["status"].take()
}

#[test]
fn a_response_is_had_by_its_own_tenant_until_it_is_too_old() {
    let (store, now) = (store(10, 1 << 20), Instant::now());
    store.keep("a", 1, empty(), form().whole(whole_text("Hi")), now);
    assert_eq!(store.get("a", 1, now).map(|it| status(&it.response)), Some("completed".into()));
    assert!(store.get("a", 2, now).is_none() && store.get("b", 1, now).is_none());
    assert!(!store.delete("a", 2, now));
    assert!(matches!(store.cancel("a", 2, now), Cancelled::Unknown));
    assert!(matches!(store.cancel("a", 1, now), Cancelled::NotBackground));
    assert!(store.get("a", 1, now + Duration::from_secs(59)).is_some());
    assert!(store.get("a", 1, now + Duration::from_secs(60)).is_none());
    assert_eq!(store.sweep(now + Duration::from_secs(60)), None);
}

#[test]
fn the_oldest_that_is_complete_makes_room() {
    let (store, now) = (store(2, 1 << 20), Instant::now());
    let keep = |id| store.keep(id, 1, empty(), form().whole(whole_text("Hi")), now);
    let is_there = |id| store.get(id, 1, now).is_some();
    assert!(store.begin("running", 1, empty(), Background::default(), now));
    keep("a");
    keep("b");
    assert_eq!(["running", "a", "b"].map(is_there), [true, false, true]);
    assert!(store.begin("second", 1, empty(), Background::default(), now));
    assert!(!store.begin("third", 1, empty(), Background::default(), now), "nothing complete is left to go");
    assert_eq!(["running", "b", "second", "third"].map(is_there), [true, false, true, false]);
}

#[test]
fn bytes_are_bounded_and_all_come_back() {
    let (store, now) = (store(100, 2000), Instant::now());
    let keep = |id, text: &str| store.keep(id, 1, empty(), form().whole(whole_text(text)), now);
    keep("large", &"x".repeat(2000));
    assert!(store.get("large", 1, now).is_none());
    for id in ["a", "b", "c", "d", "e"] {
        keep(id, "Hi");
    }
    assert!(store.get("a", 1, now).is_none() && store.get("e", 1, now).is_some());
    assert!(store.begin("f", 1, empty(), Background::default(), now));
    store.finish("f", form().whole(whole_text(&"x".repeat(2000))), &[]);
    assert!(store.get("f", 1, now).is_none(), "it has grown beyond all room");
    keep("g", "Hi");
    assert!(store.delete("g", 1, now));
    assert_eq!(store.sweep(now), None);
}

#[test]
fn nobody_drives_out_what_others_keep() {
    for (count, bytes) in [(10, 1 << 20), (1000, 20_000)] {
        let (store, now) = (store(count, bytes), Instant::now());
        let keep = |id: &str, tenant| store.keep(id, tenant, empty(), form().whole(whole_text("Hi")), now);
        for id in ["a", "b", "c"] {
            keep(id, 1);
        }
        for id in 0..100 {
            keep(&id.to_string(), 2);
            counted(&store);
        }
        assert!(["a", "b", "c"].iter().all(|id| store.get(id, 1, now).is_some()), "{count}, {bytes}");
        assert!(store.get("0", 2, now).is_none() && store.get("99", 2, now).is_some());
        // Who comes later gets a share, and from whoever has most.
        keep("d", 3);
        assert!(store.get("a", 1, now).is_some() && store.get("d", 3, now).is_some());
    }
}

#[test]
fn a_tenant_with_few_large_ones_has_most_where_bytes_are_short() {
    let (store, now) = (store(1000, 20_000), Instant::now());
    let keep = |id: &str, tenant, text: &str| store.keep(id, tenant, empty(), form().whole(whole_text(text)), now);
    keep("large", 1, &"x".repeat(6000));
    (0..5).for_each(|id| keep(&format!("small {id}"), 2, "Hi"));
    keep("larger", 1, &"x".repeat(7000));
    assert!(store.get("large", 1, now).is_none() && store.get("larger", 1, now).is_some());
    assert!((0..5).all(|id| store.get(&format!("small {id}"), 2, now).is_some()));
    counted(&store);
}

#[test]
fn what_is_kept_comes_back_as_it_was() {
    let (store, now) = (store(10, 1 << 20), Instant::now());
    let odd = json!({ "z": 0.1, "a": -1e-310, "n": u64::MAX, "text": "\u{0}\"é", "list": [null, true, {}] });
    store.keep("a", 1, empty(), Done { response: odd.clone(), output: vec![odd.clone()] }, now);
    let stored = store.get("a", 1, now).expect("it is kept");
    assert_eq!(stored.response.get(), odd.to_string());
    assert_eq!(stored.conversation()[0].get(), odd.to_string());
}

#[test]
fn a_response_of_the_background_ends_once() {
    let (store, now) = (store(10, 1 << 20), Instant::now());
    let [first, second, third] = [0; 3].map(|_| Background::default());
    for (id, background) in [("a", &first), ("b", &second), ("c", &third)] {
        assert!(store.begin(id, 1, empty(), background.clone(), now));
    }
    store.finish("a", form().whole(whole_text("Hi")), &[]);
    let Cancelled::Done(response) = store.cancel("a", 1, now) else { panic!("it has ended") };
    assert_eq!((status(&response), first.cancel.is_cancelled()), (json!("completed"), false));
    let Cancelled::Ending(over) = store.cancel("b", 1, now) else { panic!("it is under way") };
    assert!(second.cancel.is_cancelled() && !over.is_cancelled());
    store.finish("b", form().whole(whole_text("Hi")), &[]);
    store.finish("b", form().whole(whole_text("Twice")), &[]);
    assert!(store.get("b", 1, now).is_some_and(|it| it.response.get().contains("Hi")));
    assert!(store.delete("c", 1, now) && third.cancel.is_cancelled());
    store.finish("c", form().whole(whole_text("Hi")), &[]);
    assert!(store.get("c", 1, now).is_none());
}

#[test]
fn somebody_sweeps_while_there_is_something() {
    let (store, now) = (store(10, 1 << 20), Instant::now());
    assert!(!store.needs_sweeper());
    store.keep("a", 1, empty(), form().whole(whole_text("Hi")), now);
    assert!(store.needs_sweeper() && !store.needs_sweeper());
    assert_eq!(store.sweep(now), Some(now + Duration::from_secs(60)));
    assert_eq!(store.sweep(now + Duration::from_secs(60)), None);
    store.keep("b", 1, empty(), form().whole(whole_text("Hi")), now);
    assert!(store.needs_sweeper());
}

/// A store of 4,000 bytes, of which the events of a response may have 1,000, and a response under way in it.
fn streaming(id: &str, events: &[u8]) -> (Store, Instant) {
    let (store, now) = (store(10, 4000), Instant::now());
    assert!(store.begin_stream(id, 1, empty(), Background::default(), events, now));
    (store, now)
}

fn reader(store: &Store, id: &str, after: Option<u64>) -> EventReader {
    match store.follow(id, 1, after, Instant::now()) {
        Ok(Following::Reader(reader)) => reader,
        other => panic!("{other:?}"),
    }
}

/// What a reader gets now: whole events, or an error's text; `None`: nothing yet.
fn now(reader: &mut EventReader) -> Option<String> {
    let next = futures::FutureExt::now_or_never(reader.next())?;
    Some(next.map_or_else(|error| error.to_string(), |piece| String::from_utf8_lossy(&piece.events).into_owned()))
}

/// All that entries take, counted anew.
fn counted(store: &Store) -> usize {
    let kept = store.kept();
    let all: usize = kept.entries.values().map(|entry| entry.packed.bytes() + entry.event_bytes()).sum();
    assert_eq!(kept.bytes, all);
    assert_eq!(kept.tenants.values().map(|held| held.bytes).sum::<usize>(), all);
    assert_eq!(kept.tenants.values().map(|held| held.order.len()).sum::<usize>(), kept.entries.len());
    assert!(all <= store.limits.bytes, "{all}");
    all
}

#[test]
fn events_are_had_by_their_own_tenant_while_they_come_and_afterwards() {
    let (store, now_is) = streaming("a", b"0\n\n");
    let mut early = reader(&store, "a", None);
    store.append("a", b"1\n\n");
    assert_eq!(now(&mut early).as_deref(), Some("0\n\n1\n\n"));
    assert_eq!(now(&mut early), None);
    store.finish("a", form().whole(whole_text("Hi")), b"2\n\n");
    assert_eq!((now(&mut early).as_deref(), early.is_over()), (Some("2\n\n"), true));
    let mut late = reader(&store, "a", Some(0));
    assert_eq!((now(&mut late).as_deref(), late.is_over()), (Some("1\n\n2\n\n"), true));
    assert!(matches!(store.follow("a", 2, None, now_is), Ok(Following::Unknown)));
    store.append("a", b"never\n\n");
    assert_eq!(now(&mut reader(&store, "a", Some(1))).as_deref(), Some("2\n\n"));
    counted(&store);
}

#[test]
fn what_was_not_streamed_in_the_background_has_no_events() {
    let (store, now) = (store(10, 4000), Instant::now());
    store.keep("a", 1, empty(), form().whole(whole_text("Hi")), now);
    assert!(store.begin("b", 1, empty(), Background::default(), now));
    for id in ["a", "b"] {
        assert!(matches!(store.follow(id, 1, None, now), Ok(Following::NotStreamed)));
    }
}

#[test]
fn events_have_their_share_and_count() {
    let (store, now) = streaming("a", b"0\n\n");
    let before = counted(&store);
    store.append("a", b"1\n\n");
    assert_eq!(counted(&store), before + 3 + EVENT_BYTES);
    let event = [b"x".repeat(300).as_slice(), b"\n\n"].concat();
    for _ in 0..4 {
        store.append("a", &event);
        counted(&store);
    }
    // Of 1,000 bytes two have room, with what they take beside their text.
    let refused = store.follow("a", 1, Some(2), now).expect_err("too early").to_string();
    assert!(refused.starts_with("`starting_after` is 2; allowed: 3 or above"), "{refused}");
    assert!(store.follow("a", 1, Some(3), now).is_ok());
    store.finish("a", form().whole(whole_text("Hi")), b"last\n\n");
    assert_eq!(store.get("a", 1, now).map(|it| status(&it.response)), Some("completed".into()));
    assert!(store.delete("a", 1, now));
    assert_eq!(counted(&store), 0);
}

#[test]
fn first_events_without_room_are_no_beginning() {
    let (store, now) = (store(10, 4000), Instant::now());
    let first = [b"x".repeat(1000).as_slice(), b"\n\n"].concat();
    assert!(!store.begin_stream("a", 1, empty(), Background::default(), &first, now));
    assert_eq!(counted(&store), 0);
}

/// A text whose response takes so many bytes, at least what it takes without one.
fn text_for(bytes: usize) -> String {
    let packed = Packed::complete(empty(), &form().whole(whole_text("x")));
    // A text is there twice: in the response, and as an item for conversations that go on with it.
    "x".repeat(1 + bytes.saturating_sub(packed.bytes()).div_ceil(2))
}

#[test]
fn the_events_of_what_is_complete_go_before_it_does() {
    let (store, now) = streaming("a", b"0\n\n");
    store.finish("a", form().whole(whole_text("Hi")), &[b"x".repeat(800).as_slice(), b"\n\n"].concat());
    let mut follower = reader(&store, "a", None);
    let room = || store.limits.bytes - counted(&store);
    store.keep("b", 1, empty(), form().whole(whole_text(&text_for(room() + 100))), now);
    assert!(store.get("a", 1, now).is_some() && store.get("b", 1, now).is_some());
    assert!(store.follow("a", 1, None, now).is_err());
    assert!(self::now(&mut follower).is_some_and(|told| told.starts_with("`starting_after`")));
    store.keep("c", 1, empty(), form().whole(whole_text(&text_for(room() + 10))), now);
    assert_eq!(["a", "b", "c"].map(|id| store.get(id, 1, now).is_some()), [false, true, true]);
    counted(&store);
}

#[test]
fn a_stream_that_others_leave_no_room_loses_its_own_beginning() {
    let (store, now) = streaming("a", b"0\n\n");
    let left = store.limits.bytes - counted(&store);
    let filler = Stored::new("x".repeat(left - 200).into(), Vec::new(), Vec::new());
    assert!(store.begin("b", 1, filler, Background::default(), now));
    for _ in 0..3 {
        store.append("a", &[b"x".repeat(70).as_slice(), b"\n\n"].concat());
        counted(&store);
    }
    assert!(store.get("b", 1, now).is_some(), "what is under way stays");
    assert!(store.follow("a", 1, None, now).is_err() && store.follow("a", 1, Some(2), now).is_ok());
}

#[test]
fn who_reads_is_told_of_an_end_from_outside() {
    for id in ["deleted", "too old"] {
        let (store, begun) = streaming(id, b"0\n\n");
        let mut follower = reader(&store, id, Some(0));
        assert_eq!(now(&mut follower), None);
        match id {
            "deleted" => assert!(store.delete(id, 1, begun)),
            _ => assert_eq!(store.sweep(begun + Duration::from_secs(60)), None),
        }
        let told = now(&mut follower).expect("an end");
        assert!(told.starts_with("there is no response"), "{told}");
        store.finish(id, form().whole(whole_text("Hi")), b"1\n\n");
        counted(&store);
    }
}

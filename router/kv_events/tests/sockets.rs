//! Real sockets, and a reader that is written here from the protocol's text, byte by byte: nothing of the crate's.
//!
//! A subscription is not acknowledged. But frames are taken in order, so the PONG to a PING behind it says that it is there.

mod reader;

use std::io::Read;
use std::sync::mpsc;

use pelton_kv_events::{Batch, KvEvent, Medium, Published, Publisher, PublisherOptions, Stored};
use reader::{Kind, Reader};
use rmpv::Value;

const TOKENS: u32 = 64;

/// A batch with one block whose hash is given, so that a reader sees which it is.
fn batch(hash: u64) -> Batch {
    let stored = Stored {
        hashes: vec![hash],
        parent: None,
        tokens: vec![u32::MAX; TOKENS as usize],
        block_size: TOKENS,
        lora: None,
        medium: Medium::Device,
        extra_keys: vec![],
    };
    Batch { timestamp: 0.0, events: vec![KvEvent::Stored(stored)] }
}

/// Publishes this many batches, each with its sequence as hash.
fn publish(publisher: &Publisher, count: u64) {
    for _ in 0..count {
        let next = publisher.counts().published;
        assert_eq!(publisher.publish(batch(next)), Published::Queued(next));
    }
}

fn publisher(change: impl FnOnce(&mut PublisherOptions)) -> Publisher {
    let mut options = PublisherOptions::new("tcp://127.0.0.1:0".parse().unwrap());
    options.replay_endpoint = Some("tcp://127.0.0.1:0".parse().unwrap());
    options.topic = "kv@pod".into();
    options.queue_max = 10_000;
    change(&mut options);
    Publisher::bind(options).unwrap()
}

fn subscriber(publisher: &Publisher, prefix: &str) -> Reader {
    let mut reader = Reader::connect(publisher.endpoint(), Kind::Sub);
    reader.send(&[&[b"\x01", prefix.as_bytes()].concat()]);
    reader.ping();
    reader
}

/// The sequence of a message, whose payload has to be the batch of that sequence.
fn sequence(message: &[Vec<u8>]) -> u64 {
    let [topic, sequence, payload] = message else { panic!("three frames, not {message:?}") };
    assert_eq!(topic, b"kv@pod");
    let sequence = u64::from_be_bytes(sequence[..].try_into().unwrap());
    let value = rmpv::decode::read_value(&mut &payload[..]).unwrap();
    assert_eq!(value[1][0]["block_hashes"], Value::Array(vec![sequence.into()]));
    sequence
}

fn live(reader: &mut Reader, count: usize) -> Vec<u64> {
    (0..count).map(|_| sequence(&reader.message())).collect()
}

/// All that a replay sends from `start` on.
fn replay(reader: &mut Reader, start: u64) -> Vec<u64> {
    reader.send(&[b"", &start.to_be_bytes()]);
    let mut sequences = Vec::new();
    loop {
        let message = reader.message();
        assert_eq!(message[0], b"", "the delimiter");
        if message[2] == [0xff; 8] {
            assert_eq!(message, [&b""[..], b"", &[0xff; 8], b""]);
            return sequences;
        }
        sequences.push(sequence(&message[1..]));
    }
}

fn dealer(publisher: &Publisher) -> Reader {
    Reader::connect(publisher.replay_endpoint().unwrap(), Kind::Dealer)
}

#[test]
fn a_late_subscriber_gets_what_follows_and_the_rest_from_a_replay() {
    let publisher = publisher(|options| options.buffer_steps = 100);
    let mut early = subscriber(&publisher, "");
    publish(&publisher, 50);
    assert_eq!(live(&mut early, 50), (0..50).collect::<Vec<_>>());
    let mut late = subscriber(&publisher, "kv@");
    publish(&publisher, 10);
    assert_eq!(live(&mut late, 10), (50..60).collect::<Vec<_>>());
    let mut dealer = dealer(&publisher);
    assert_eq!(replay(&mut dealer, 0), (0..60).collect::<Vec<_>>());
    assert_eq!(replay(&mut dealer, 55), (55..60).collect::<Vec<_>>(), "on the same connection");
    assert_eq!(replay(&mut dealer, 60), []);
    assert_eq!(replay(&mut dealer, u64::MAX), []);
    for _ in 0..2 {
        publish(&publisher, 100);
        live(&mut late, 100);
    }
    assert_eq!(replay(&mut dealer, 0), (160..260).collect::<Vec<_>>(), "the ring keeps 100");
    assert_eq!(publisher.counts().replays, 5);
}

#[test]
fn a_subscriber_that_stops_reading_costs_the_ring_and_disturbs_nobody() {
    const ALL: u64 = 100_000;
    let publisher = publisher(|options| options.buffer_steps = 1000);
    let (mut stopped, mut fast) = (subscriber(&publisher, ""), subscriber(&publisher, ""));
    for window in 0..ALL / 500 {
        publish(&publisher, 500);
        assert_eq!(live(&mut fast, 500), (window * 500..(window + 1) * 500).collect::<Vec<_>>());
    }
    let counts = publisher.counts();
    assert_eq!((counts.kept, counts.dropped), (1000, 0));
    assert!(counts.kept_bytes < 1000 * 1000);
    let mut seen = vec![];
    while seen.last() != Some(&(ALL - 1)) {
        seen.push(sequence(&stopped.message()));
    }
    assert!(seen.is_sorted_by(|one, next| one < next));
    let missed = ALL - seen.len() as u64;
    assert!(missed > 0, "30 MB do not fit into the buffers of two sockets");
    assert_eq!(publisher.counts().skipped, missed);
}

#[test]
fn batches_that_do_not_fit_the_queue_are_dropped_and_leave_a_gap() {
    let publisher = publisher(|options| options.queue_max = 1);
    let mut reader = subscriber(&publisher, "");
    let mut queued = vec![];
    let mut was_dropped = false;
    while !was_dropped {
        match publisher.publish(batch(publisher.counts().published)) {
            Published::Queued(sequence) => queued.push(sequence),
            Published::Dropped(_) => was_dropped = true,
        }
    }
    assert_eq!(live(&mut reader, queued.len()), queued, "and now the queue is empty");
    let next = queued.len() as u64 + 1;
    assert_eq!(publisher.publish(batch(next)), Published::Queued(next), "the dropped one is counted");
    assert_eq!(live(&mut reader, 1), [next]);
    assert_eq!(publisher.counts().dropped, 1);
    queued.push(next);
    assert_eq!(replay(&mut dealer(&publisher), 0), queued);
}

#[test]
fn only_who_subscribed_to_a_prefix_of_the_topic_gets_anything() {
    let publisher = publisher(|_| {});
    let mut other = subscriber(&publisher, "kv@another");
    let mut exact = subscriber(&publisher, "kv@pod");
    let mut command = Reader::connect(publisher.endpoint(), Kind::Sub);
    command.command(b"\x09SUBSCRIBEkv");
    command.ping();
    publish(&publisher, 1);
    assert_eq!(live(&mut exact, 1), [0]);
    assert_eq!(live(&mut command, 1), [0], "ZMTP 3.1 subscribes with a command");
    exact.send(&[b"\x00kv@pod"]);
    exact.ping();
    publish(&publisher, 1);
    assert_eq!(live(&mut command, 1), [1]);
    exact.ping(); // nothing stands before its PONG
    other.ping();
}

#[test]
fn the_end_sends_what_is_queued_and_removes_the_socket_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    let endpoint = format!("ipc://{}", path.display()).parse::<pelton_kv_events::Endpoint>().unwrap();
    for _ in 0..2 {
        let publisher = publisher(|options| options.endpoint = endpoint.clone());
        let mut reader = subscriber(&publisher, "");
        publish(&publisher, 5000);
        let (tell, told) = mpsc::channel();
        let ending = std::thread::spawn(move || {
            drop(publisher);
            tell.send(()).unwrap();
        });
        assert_eq!(live(&mut reader, 5000), (0..5000).collect::<Vec<_>>());
        assert!(reader.sees_end());
        told.recv().unwrap();
        ending.join().unwrap();
        assert!(!path.exists());
    }
}

#[test]
fn a_taken_endpoint_sees_error_and_a_stale_socket_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // leaves its file, as SIGKILL does
    let options = PublisherOptions::new(format!("ipc://{}", path.display()).parse().unwrap());
    let first = Publisher::bind(options.clone()).unwrap();
    let error = Publisher::bind(options.clone()).unwrap_err().to_string();
    assert!(error.contains("events") && error.contains("in use"), "{error}");
    assert!(path.exists(), "the first is still there");
    drop(first);
    std::fs::write(&path, "a letter").unwrap();
    Publisher::bind(options).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"a letter", "what is no socket is not removed");
}

#[test]
fn who_speaks_something_else_is_let_go_and_nobody_notices() {
    let publisher = publisher(|_| {});
    let mut reader = subscriber(&publisher, "");
    let sub_at_the_router = Reader::connect(publisher.replay_endpoint().unwrap(), Kind::Sub);
    assert!(sub_at_the_router.sees_error());
    let mut long = Reader::connect(publisher.endpoint(), Kind::Sub);
    long.raw(b"\x02\0\0\0\0\xff\0\0\0");
    assert!(long.sees_end());
    let mut talker = dealer(&publisher);
    talker.send(&[b"", b"7 bytes"]);
    assert!(talker.sees_end());
    for endpoint in [publisher.endpoint(), publisher.replay_endpoint().unwrap()] {
        let mut browser = reader::dial(endpoint);
        browser.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut greeting = Vec::new();
        let _reset_or_end = browser.read_to_end(&mut greeting);
        assert!(greeting.len() <= 64, "nothing but our greeting");
    }
    publish(&publisher, 1);
    assert_eq!(live(&mut reader, 1), [0]);
    assert_eq!(replay(&mut dealer(&publisher), 0), [0]);
    assert_eq!(publisher.close().faults, 5);
}

#[test]
fn two_hundred_subscribers_are_served_and_the_257th_is_turned_away() {
    let publisher = publisher(|_| {});
    let mut readers: Vec<_> = (0..200).map(|_| subscriber(&publisher, "")).collect();
    publish(&publisher, 20);
    for reader in &mut readers {
        assert_eq!(live(reader, 20), (0..20).collect::<Vec<_>>());
    }
    readers.extend((200..256).map(|_| subscriber(&publisher, "")));
    assert_eq!(publisher.counts().connections, 256);
    let mut turned_away = Vec::new();
    let _reset_or_end = reader::dial(publisher.endpoint()).read_to_end(&mut turned_away);
    assert_eq!(turned_away, b"");
    publish(&publisher, 1);
    assert!(readers.iter_mut().all(|reader| live(reader, 1) == [20]));
    assert_eq!(publisher.counts().refused, 1);
}

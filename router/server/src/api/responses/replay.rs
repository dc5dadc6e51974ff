//! The events of a response in the background: kept within a bound, and read by any number of clients, each at its own pace.
//!
//! Whoever makes the response appends and waits for nobody; what leaves the bound is the oldest. Readers look from the event that they want
//! next, take a piece of what is there, and wait for more. One that wants what has left is told so, and its stream ends.
//! Never here: what the bytes of all responses come to, which is the store's; tasks, timeouts, sockets.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use crate::{
    error::{ApiError, shortened},
    generate::Source,
};

/// What an event takes beside its text: 32 bytes in the list, which may be twice as long as it is full, and as many again for what is
/// allocated with it.
pub(super) const EVENT_BYTES: usize = 96;

/// Bytes that a reader takes at once, but for an event that is longer. A reader who is slow has two such pieces in memory.
const PIECE_BYTES: usize = 64 << 10;

/// What ends an event, and is nowhere within one: JSON has no line breaks of its own.
const EVENT_END: &[u8] = b"\n\n";

/// By which a client asks for the events behind one.
pub(crate) const STARTING_AFTER: &str = "starting_after";

/// The events of one response. When it is dropped they are forgotten, and who still reads is told.
#[derive(Debug)]
pub(super) struct EventLog {
    kept: watch::Sender<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Bytes>,
    /// The number of the first that is kept; of the next one, if none is.
    first: u64,
    /// Of all that are kept.
    bytes: usize,
    is_complete: bool,
    is_forgotten: bool,
}

/// Reads the events of a response, and those that come.
#[derive(Debug)]
pub(crate) struct EventReader {
    kept: watch::Receiver<Kept>,
    id: String,
    /// The number of the event that is wanted next.
    next: u64,
    is_over: bool,
}

/// A piece of a stream.
#[derive(Debug, PartialEq)]
pub(crate) struct Replayed {
    /// Whole events; none if the stream ends where its reader wanted to begin.
    pub(crate) events: Bytes,
    /// The number of the event behind them.
    pub(crate) next: u64,
}

impl EventLog {
    pub(super) fn new() -> Self {
        Self { kept: watch::Sender::new(Kept::default()) }
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.kept.borrow().bytes
    }

    /// Appends whole events, and forgets the oldest of all that are above the bound.
    pub(super) fn append(&self, events: &[u8], bytes_max: usize) {
        self.kept.send_modify(|kept| {
            whole_events(events).for_each(|event| kept.push(event));
            kept.trim(bytes_max);
        });
    }

    /// The same with the last ones.
    pub(super) fn complete(&self, events: &[u8], bytes_max: usize) {
        self.append(events, bytes_max);
        self.kept.send_modify(|kept| kept.is_complete = true);
    }

    /// Forgets the oldest events above a bound.
    pub(super) fn trim(&self, bytes_max: usize) {
        self.kept.send_modify(|kept| kept.trim(bytes_max));
    }

    /// Reads from the event behind `after` on, or from the first one. Refused if what is wanted is kept no longer.
    pub(super) fn read(&self, id: &str, after: Option<u64>) -> Result<EventReader, ApiError> {
        let next = after.map_or(0, |after| after.saturating_add(1));
        let kept = self.kept.subscribe();
        kept.borrow().check(next)?;
        Ok(EventReader { kept, id: id.to_owned(), next, is_over: false })
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        // Readers would hold them as long as they like.
        self.kept.send_modify(|kept| {
            kept.trim(0);
            kept.is_forgotten = true;
        });
    }
}

impl Kept {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    fn push(&mut self, event: &[u8]) {
        self.bytes += event.len() + EVENT_BYTES;
        self.events.push_back(Bytes::copy_from_slice(event));
    }

    fn trim(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some(event) = self.events.pop_front()
        {
            self.bytes -= event.len() + EVENT_BYTES;
            self.first += 1;
        }
        if self.events.is_empty() {
            self.events = VecDeque::new(); // with the room that it had
        }
    }

    /// Refuses to begin with an event that is kept no longer.
    fn check(&self, next: u64) -> Result<(), ApiError> {
        if next >= self.first {
            return Ok(());
        }
        let got = next.checked_sub(1).map_or_else(|| "left out".to_owned(), |after| after.to_string());
        let first = self.first;
        let allowed = format!(
            "{} or above: the first {first} events are kept no longer, as they outgrew their share of `--response-store-size`; \
             the response itself can be retrieved without `stream`",
            first - 1
        );
        Err(ApiError::invalid(STARTING_AFTER, got, allowed))
    }

    /// Events from `next` on, at most so many bytes but for the first.
    fn piece(&self, next: u64, bytes_max: usize) -> (Bytes, u64) {
        let skipped = usize::try_from(next - self.first).unwrap_or(usize::MAX).min(self.events.len());
        let mut rest = self.events.range(skipped..);
        let Some(first) = rest.next() else { return (Bytes::new(), next) };
        let mut piece = BytesMut::from(&first[..]);
        let mut taken = 1;
        for event in rest {
            if piece.len() + event.len() > bytes_max {
                break;
            }
            piece.extend_from_slice(event);
            taken += 1;
        }
        (piece.freeze(), next + taken)
    }
}

impl EventReader {
    /// What is there; `None`: nothing yet.
    fn piece(&mut self) -> Result<Option<Replayed>, ApiError> {
        let kept = self.kept.borrow_and_update();
        if kept.is_forgotten {
            return Err(ApiError::NotKept { what: "response", id: shortened(&self.id) });
        }
        kept.check(self.next)?;
        let (events, next) = kept.piece(self.next, PIECE_BYTES);
        self.next = next;
        self.is_over = kept.is_complete && next >= kept.end();
        Ok((self.is_over || !events.is_empty()).then_some(Replayed { events, next }))
    }

    /// The number of the event that is wanted next.
    pub(crate) fn wanted(&self) -> u64 {
        self.next
    }
}

impl Source for EventReader {
    type Given = Replayed;

    async fn next(&mut self) -> Result<Replayed, ApiError> {
        loop {
            if let Some(piece) = self.piece()? {
                return Ok(piece);
            }
            // An error says that the log is gone, which `piece` has been told before.
            drop(self.kept.changed().await);
        }
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

/// Each event of a stream's bytes, with what ends it.
fn whole_events(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let end = bytes.windows(EVENT_END.len()).position(|two| two == EVENT_END)? + EVENT_END.len();
        let (event, rest) = bytes.split_at(end);
        bytes = rest;
        Some(event)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: usize = usize::MAX;

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        futures::FutureExt::now_or_never(future)
    }

    fn read(reader: &mut EventReader) -> Option<Result<String, String>> {
        let piece = now(Source::next(reader))?;
        Some(piece.map(|piece| String::from_utf8_lossy(&piece.events).into_owned()).map_err(|error| error.to_string()))
    }

    fn text(text: &str) -> Option<Result<String, String>> {
        Some(Ok(text.to_owned()))
    }

    #[test]
    fn events_are_read_from_any_one_on_and_as_they_come() {
        let log = EventLog::new();
        log.append(b"0\n\n1\n\n", ANY);
        let mut readers = [None, Some(0), Some(1), Some(2)].map(|after| log.read("a", after).expect("all are kept"));
        let [all, one, none, ahead] = &mut readers;
        assert_eq!([read(all), read(one), read(none), read(ahead)], [text("0\n\n1\n\n"), text("1\n\n"), None, None]);
        log.append(b"2\n\n", ANY);
        assert_eq!(
            [read(all), read(one), read(none), read(ahead)],
            [text("2\n\n"), text("2\n\n"), text("2\n\n"), None]
        );
        assert!(!all.is_over());
        log.complete(b"3\n\n", ANY);
        for reader in &mut readers {
            assert_eq!((read(reader), reader.is_over(), reader.next), (text("3\n\n"), true, 4));
        }
        for (after, expected) in
            [(None, "0\n\n1\n\n2\n\n3\n\n"), (Some(2), "3\n\n"), (Some(3), ""), (Some(u64::MAX), "")]
        {
            let mut late = log.read("a", after).expect("all are kept");
            assert_eq!((read(&mut late), late.is_over()), (text(expected), true), "{after:?}");
        }
    }

    #[test]
    fn who_waits_is_woken() {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(async {
            let log = EventLog::new();
            let mut reader = log.read("a", None).expect("nothing is lost");
            let (read, ()) = tokio::join!(Source::next(&mut reader), async { log.append(b"0\n\n", ANY) });
            assert_eq!(read, Ok(Replayed { events: Bytes::from_static(b"0\n\n"), next: 1 }));
        });
    }

    #[test]
    fn what_leaves_the_bound_is_the_oldest_and_nothing_is_left_of_it() {
        let log = EventLog::new();
        let mut slow = log.read("a", None).expect("nothing is lost");
        let most = 3 * (EVENT_BYTES + 3);
        for number in 0..5 {
            log.append(format!("{number}\n\n").as_bytes(), most);
            assert_eq!(log.bytes(), most.min((number + 1) * (EVENT_BYTES + 3)));
        }
        for (after, is_refused) in [(None, true), (Some(0), true), (Some(1), false), (Some(7), false)] {
            assert_eq!(log.read("a", after).is_err(), is_refused, "{after:?}");
        }
        let refused = log.read("a", Some(0)).expect_err("too early").to_string();
        assert!(refused.starts_with("`starting_after` is 0; allowed: 1 or above: the first 2 events are"), "{refused}");
        let refused = read(&mut slow).expect("an error").expect_err("too slow");
        assert!(refused.starts_with("`starting_after` is left out"), "{refused}");
        log.trim(0);
        assert_eq!((log.bytes(), log.kept.borrow().end()), (0, 5));
        // One that is larger than the bound leaves by itself.
        log.complete(&[b"x".repeat(most).as_slice(), EVENT_END].concat(), most);
        assert_eq!((log.bytes(), log.kept.borrow().end()), (0, 6));
        assert!(log.read("a", Some(4)).is_err());
        let mut end = log.read("a", Some(5)).expect("nothing is wanted");
        assert_eq!((read(&mut end), end.is_over()), (text(""), true));
    }

    #[test]
    fn a_reader_takes_pieces() {
        let log = EventLog::new();
        let large = [b"x".repeat(PIECE_BYTES).as_slice(), EVENT_END].concat();
        let small = [b"y".repeat(PIECE_BYTES / 2 - 2).as_slice(), EVENT_END].concat();
        log.complete(&[&large[..], &small, &small, &small].concat(), ANY);
        let mut reader = log.read("a", None).expect("all are kept");
        let mut lengths = Vec::new();
        while !reader.is_over() {
            lengths.push(read(&mut reader).expect("it is there").expect("it is kept").len());
        }
        assert_eq!(lengths, [large.len(), PIECE_BYTES, small.len()]);
    }

    #[test]
    fn a_reader_of_what_is_forgotten_is_told() {
        let log = EventLog::new();
        log.append(b"0\n\n", ANY);
        let (mut reader, mut ready) = (log.read("a", Some(0)).expect("kept"), log.read("a", None).expect("kept"));
        assert_eq!(read(&mut reader), None);
        drop(log);
        for reader in [&mut reader, &mut ready] {
            let refused = read(reader).expect("an end").expect_err("it is gone");
            assert!(refused.starts_with("there is no response `a`"), "{refused}");
            assert_eq!((reader.kept.borrow().bytes, reader.kept.borrow().events.capacity()), (0, 0));
        }
    }
}

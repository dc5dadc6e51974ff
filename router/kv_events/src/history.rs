//! The last batches, ready to be sent: what subscribers read as it grows and what a replay reads again.
//!
//! Invariant: sequences grow from front to back, and everything before `lost_until` that is not here was forgotten.
//! Bounded by a number of batches and by their bytes; one batch is always kept, whatever its size.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::sync::watch;

/// How much is copied out at a time: a reader that stops taking bytes holds no more than this and one message.
const CHUNK_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct History {
    messages: VecDeque<Message>,
    bytes: usize,
    steps_max: usize,
    bytes_max: usize,
    next: u64,
    lost_until: u64,
}

#[derive(Debug)]
struct Message {
    sequence: u64,
    frames: Bytes, // all frames of the message, as they go over the wire
}

/// Where a reader stands: the sequence it wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor(pub(crate) u64);

impl History {
    pub(crate) fn new(steps_max: usize, bytes_max: usize) -> Self {
        Self { messages: VecDeque::new(), bytes: 0, steps_max: steps_max.max(1), bytes_max, next: 0, lost_until: 0 }
    }

    /// Takes in the message of a batch. Sequences that were passed over were never sent and are nowhere.
    pub(crate) fn append(&mut self, sequence: u64, frames: Bytes) {
        assert!(sequence >= self.next, "sequences grow");
        self.next = sequence + 1;
        self.bytes += frames.len();
        self.messages.push_back(Message { sequence, frames });
        while self.messages.len() > self.steps_max || (self.bytes > self.bytes_max && self.messages.len() > 1) {
            let oldest = self.messages.pop_front().expect("there is more than one");
            self.bytes -= oldest.frames.len();
            self.lost_until = oldest.sequence + 1;
        }
    }

    /// Behind the newest batch.
    pub(crate) fn end(&self) -> Cursor {
        Cursor(self.next)
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies messages from the cursor on, each behind `prefix`, and moves the cursor; at most a chunk, and nothing at or
    /// behind `end`. Returns how many sequences were forgotten before this reader came to them.
    pub(crate) fn copy(&self, cursor: &mut Cursor, end: Cursor, prefix: &[u8], out: &mut BytesMut) -> u64 {
        let skipped = self.lost_until.min(end.0).saturating_sub(cursor.0);
        let first = self.messages.partition_point(|message| message.sequence < cursor.0);
        for message in self.messages.range(first..) {
            if message.sequence >= end.0 || out.len() >= CHUNK_BYTES {
                cursor.0 = message.sequence.min(end.0).max(cursor.0);
                return skipped;
            }
            out.put_slice(prefix);
            out.put_slice(&message.frames);
        }
        cursor.0 = cursor.0.max(end.0);
        skipped
    }
}

/// Ready when the publisher has ended: it lets go of the history last.
pub(crate) async fn ended(history: &mut watch::Receiver<History>) {
    while history.changed().await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message that is its own sequence, in a byte.
    fn message(sequence: u64) -> Bytes {
        Bytes::from(vec![u8::try_from(sequence).unwrap()])
    }

    fn filled(steps_max: usize, sequences: impl IntoIterator<Item = u64>) -> History {
        let mut history = History::new(steps_max, usize::MAX);
        sequences.into_iter().for_each(|sequence| history.append(sequence, message(sequence)));
        history
    }

    fn copied(history: &History, mut cursor: Cursor) -> (Vec<u8>, u64) {
        let mut out = BytesMut::new();
        let skipped = history.copy(&mut cursor, history.end(), b"", &mut out);
        assert_eq!(cursor.0, history.end().0.max(cursor.0));
        (out.to_vec(), skipped)
    }

    #[test]
    fn a_reader_gets_what_is_kept_from_its_cursor_on() {
        let history = filled(3, 0..5);
        assert_eq!(copied(&history, Cursor(4)), (vec![4], 0));
        assert_eq!(copied(&history, Cursor(2)), (vec![2, 3, 4], 0));
        assert_eq!(copied(&history, Cursor(0)), (vec![2, 3, 4], 2));
        assert_eq!(copied(&history, Cursor(9)), (vec![], 0));
    }

    #[test]
    fn the_prefix_stands_before_every_message_and_nothing_behind_the_end_is_read() {
        let (history, mut cursor, mut out) = (filled(9, 0..5), Cursor(1), BytesMut::new());
        assert_eq!(history.copy(&mut cursor, Cursor(3), b"-", &mut out), 0);
        assert_eq!((&out[..], cursor), (&b"-\x01-\x02"[..], Cursor(3)));
    }

    #[test]
    fn bytes_bound_it_too_but_the_newest_batch_is_always_kept() {
        let mut history = History::new(100, 10);
        history.append(0, Bytes::from_static(&[0; 6]));
        history.append(1, Bytes::from_static(&[0; 6]));
        assert_eq!((history.len(), history.bytes()), (1, 6));
        history.append(2, Bytes::from_static(&[0; 50]));
        assert_eq!((history.len(), history.bytes()), (1, 50));
    }

    proptest! {
        /// Against the plain list of all sequences: whatever is published and dropped, read and lost, a reader gets every
        /// message that is still there when it comes to it, once and in order, and is told of the others.
        #[test]
        fn a_reader_that_reads_now_and_then_gets_what_is_there(
            actions in prop::collection::vec((0u64..3, any::<bool>()), 1..100),
            steps_max in 1usize..8,
        ) {
            let (mut history, mut all) = (History::new(steps_max, usize::MAX), Vec::new());
            let (mut cursor, mut next) = (Cursor(0), 0);
            for (dropped, reads) in actions {
                next += dropped;
                history.append(next, message(next));
                all.push(next);
                next += 1;
                if reads {
                    let kept = &all[all.len().saturating_sub(steps_max)..];
                    let expected: Vec<u8> = kept.iter().filter(|&&it| it >= cursor.0).map(|&it| it as u8).collect();
                    let lost = all[..all.len() - kept.len()].last().map_or(0, |last| (last + 1).saturating_sub(cursor.0));
                    let mut out = BytesMut::new();
                    prop_assert_eq!(history.copy(&mut cursor, history.end(), b"", &mut out), lost);
                    prop_assert_eq!(&out[..], &expected[..]);
                    prop_assert_eq!(cursor, history.end());
                }
            }
        }
    }
}

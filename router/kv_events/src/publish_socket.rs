//! PUB: sends every batch to those who subscribed to the topic.
//!
//! A subscriber gets what is published after its subscription arrived, at its own pace, out of the shared history. Falls
//! it behind the history's oldest batch, it goes on there and sees the gap in the sequence.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::counts::Counters;
use crate::history::History;
use crate::zmtp::{self, Connection, Fault, Frame, FrameKind, SocketType, Stream, put_frame};

/// Who takes no byte for this long loses its connection, so that it does not hold a place for ever. It may come back.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(60);

/// Bytes that wait for the peer, above which its PINGs go unanswered: it is not reading.
const UNANSWERED_BYTES: usize = 64 * 1024;

/// Serves one subscriber until it leaves, or the publisher has ended and the subscriber has everything.
pub(crate) async fn serve(
    stream: Box<dyn Stream>,
    topic: Arc<str>,
    mut history: watch::Receiver<History>,
    counters: Arc<Counters>,
) -> Result<(), Fault> {
    let Connection { mut reader, mut writer } = zmtp::handshake(stream, SocketType::Pub).await?;
    let mut subscriptions = Subscriptions::to(&topic);
    let mut cursor = None;
    let mut out = BytesMut::new();
    let mut stalls_at = Instant::now() + STALL_MAX;
    loop {
        if out.is_empty()
            && let Some(cursor) = &mut cursor
        {
            let history = history.borrow_and_update();
            let skipped = history.copy(cursor, history.end(), b"", &mut out);
            counters.skipped.fetch_add(skipped, Relaxed);
            stalls_at = Instant::now() + STALL_MAX;
        }
        tokio::select! {
            frame = reader.next() => {
                let frame = frame?;
                match frame.pong() {
                    Some(pong) if out.len() < UNANSWERED_BYTES => put_frame(&mut out, FrameKind::Command, &pong),
                    Some(_) => {}
                    None => subscriptions.take_in(&frame)?,
                }
                cursor = subscriptions.any().then(|| cursor.unwrap_or_else(|| history.borrow().end()));
            }
            written = writer.write_buf(&mut out), if !out.is_empty() => {
                written?;
                stalls_at = Instant::now() + STALL_MAX;
            }
            () = sleep_until(stalls_at), if !out.is_empty() => return Err(Fault::Stalled),
            grown = history.changed(), if out.is_empty() => if grown.is_err() {
                writer.shutdown().await?;
                return Ok(());
            },
        }
    }
}

/// Which prefixes of the topic a peer has subscribed to, and how often: as many cancellations undo it.
///
/// A prefix of a known topic is told by its length, so what a peer can make us remember is bounded by the topic.
struct Subscriptions<'a> {
    topic: &'a str,
    by_len: Vec<u32>,
}

impl<'a> Subscriptions<'a> {
    fn to(topic: &'a str) -> Self {
        Self { topic, by_len: vec![0; topic.len() + 1] }
    }

    fn any(&self) -> bool {
        self.by_len.iter().any(|&count| count > 0)
    }

    /// Takes in a frame: a subscription or its end, as a command (ZMTP 3.1) or a message (3.0). Subscriptions to other
    /// topics change nothing, and neither do commands and messages that are something else.
    fn take_in(&mut self, frame: &Frame) -> Result<(), Fault> {
        let (subscribes, prefix) = match (frame.command("SUBSCRIBE"), frame.command("CANCEL"), &frame.body[..]) {
            (Some(prefix), ..) => (true, prefix),
            (_, Some(prefix), _) => (false, prefix),
            (.., [1, prefix @ ..]) if frame.kind == FrameKind::Last => (true, prefix),
            (.., [0, prefix @ ..]) if frame.kind == FrameKind::Last => (false, prefix),
            _ if frame.kind == FrameKind::Command => return Ok(()),
            _ => return Err(Fault::Malformed("a subscriber sends nothing but subscriptions")),
        };
        if self.topic.as_bytes().starts_with(prefix) {
            let count = &mut self.by_len[prefix.len()];
            *count = if subscribes { count.saturating_add(1) } else { count.saturating_sub(1) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn after(topic: &str, frames: &[(FrameKind, &'static [u8])]) -> bool {
        let mut subscriptions = Subscriptions::to(topic);
        for &(kind, body) in frames {
            subscriptions.take_in(&Frame { kind, body: Bytes::from_static(body) }).unwrap();
        }
        subscriptions.any()
    }

    #[test]
    fn a_topic_is_sent_while_a_prefix_of_it_is_subscribed_to() {
        use FrameKind::{Command, Last};
        for (frames, expected) in [
            (&[][..], false),
            (&[(Last, &b"\x01"[..])], true),
            (&[(Last, b"\x01kv@")], true),
            (&[(Last, b"\x01kv@pod")], true),
            (&[(Last, b"\x01kv@pod@model")], false),
            (&[(Last, b"\x01load")], false),
            (&[(Command, b"\x09SUBSCRIBEkv")], true),
            (&[(Command, b"\x09SUBSCRIBEkv"), (Command, b"\x06CANCELkv")], false),
            (&[(Command, b"\x09SUBSCRIBEkv"), (Last, b"\x00kv")], false),
            (&[(Last, b"\x01kv"), (Last, b"\x01kv"), (Last, b"\x00kv")], true),
            (&[(Last, b"\x01kv"), (Last, b"\x00k")], true),
            (&[(Last, b"\x00kv"), (Last, b"\x01kv")], true),
            (&[(Command, b"\x07UNKNOWN")], false),
        ] {
            assert_eq!(after("kv@pod", frames), expected, "{frames:?}");
        }
        assert!(after("", &[(Last, b"\x01")]), "the empty topic");
    }

    #[test]
    fn a_subscriber_that_sends_messages_is_no_subscriber() {
        for (kind, body) in [(FrameKind::Last, &b"hello"[..]), (FrameKind::Part, b"\x01kv"), (FrameKind::Last, b"")] {
            let frame = Frame { kind, body: Bytes::from_static(body) };
            assert!(Subscriptions::to("kv").take_in(&frame).is_err(), "{frame:?}");
        }
    }

    /// A peer's greeting, READY, subscription to everything, and a PING whose PONG says that all this was taken in.
    const HELLO: &[&[u8]] = &[
        b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01NULL",
        &[0; 48],
        b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB",
        b"\0\x01\x01",
        b"\x04\x07\x04PING\0\0",
    ];

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_for_a_minute_loses_its_connection() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(&HELLO.concat()).await.unwrap();
        let (history, reader) = watch::channel(History::new(10, usize::MAX));
        let serving = tokio::spawn(serve(Box::new(ours), "kv".into(), reader, Arc::default()));
        let mut heard = vec![0; 64 + 27 + 7]; // greeting, READY, PONG
        theirs.read_exact(&mut heard).await.unwrap();
        assert!(heard.ends_with(b"\x04\x05\x04PONG"));
        let start = Instant::now();
        history.send_modify(|history| history.append(0, Bytes::from(vec![0; 10_000])));
        tokio::time::sleep(STALL_MAX / 2).await;
        theirs.read_exact(&mut [0; 1]).await.unwrap();
        assert!(matches!(serving.await.unwrap(), Err(Fault::Stalled)));
        assert_eq!(start.elapsed(), STALL_MAX + STALL_MAX / 2, "a byte taken counts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_says_nothing_loses_its_connection() {
        let (ours, _theirs) = tokio::io::duplex(1024);
        let (_history, reader) = watch::channel(History::new(10, usize::MAX));
        let ended = serve(Box::new(ours), "kv".into(), reader, Arc::default()).await;
        assert!(matches!(ended, Err(Fault::SlowHandshake)));
    }
}

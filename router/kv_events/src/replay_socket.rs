//! ROUTER: sends again what a reader missed.
//!
//! A request is a message `["", sequence]`, 8 bytes big-endian; the empty part is what REQ puts before its message and
//! DEALER has to. Answered is with a message `["", topic, sequence, payload]` per batch that is kept from there on, and
//! then `["", "", -1, ""]`. (A REQ socket can receive one answer only; readers that want all use DEALER.)

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::counts::{Counters, count};
use crate::history::{Cursor, History, ended};
use crate::publish_socket::STALL_MAX;
use crate::zmtp::{self, Connection, Fault, FrameKind, SocketType, Stream, put_frame};

/// The empty part before every answer: a frame with more to come and no body.
const DELIMITER: &[u8] = &[1, 0];

/// The sequence that ends a replay, -1.
const END: [u8; 8] = [0xff; 8];

/// Serves one reader until it leaves or the publisher has ended.
pub(crate) async fn serve(
    stream: Box<dyn Stream>,
    mut history: watch::Receiver<History>,
    counters: Arc<Counters>,
) -> Result<(), Fault> {
    let mut connection = zmtp::handshake(stream, SocketType::Router).await?;
    loop {
        let start = tokio::select! {
            start = connection.request() => start?,
            () = ended(&mut history) => return Ok(()),
        };
        count(&counters.replays);
        connection.replay(start, &history).await?;
    }
}

impl Connection {
    /// The next request. Loses parts of a message when it is dropped before it is ready.
    async fn request(&mut self) -> Result<Cursor, Fault> {
        let mut delimiter: Option<Bytes> = None;
        loop {
            let frame = self.reader.next().await?;
            match (frame.kind, delimiter.take()) {
                (FrameKind::Command, kept) => {
                    delimiter = kept;
                    if let Some(pong) = frame.pong() {
                        let mut out = BytesMut::new();
                        put_frame(&mut out, FrameKind::Command, &pong);
                        self.send(&out).await?;
                    }
                }
                (FrameKind::Part, None) if frame.body.is_empty() => delimiter = Some(frame.body),
                (FrameKind::Last, Some(_)) => return wanted(&frame.body),
                _ => return Err(Fault::Malformed(NO_REQUEST)),
            }
        }
    }

    /// Sends everything from `start` on that is kept now, and the end.
    async fn replay(&mut self, start: Cursor, history: &watch::Receiver<History>) -> Result<(), Fault> {
        let end = history.borrow().end();
        let (mut cursor, mut out) = (start, BytesMut::new());
        while cursor.0 < end.0 {
            history.borrow().copy(&mut cursor, end, DELIMITER, &mut out);
            self.send(&out).await?;
            out.clear();
        }
        out.extend_from_slice(DELIMITER);
        put_frame(&mut out, FrameKind::Part, b"");
        put_frame(&mut out, FrameKind::Part, &END);
        put_frame(&mut out, FrameKind::Last, b"");
        self.send(&out).await
    }

    /// Sends all of it, as long as the peer keeps taking some.
    async fn send(&mut self, mut out: &[u8]) -> Result<(), Fault> {
        while !out.is_empty() {
            let taken = timeout(STALL_MAX, self.writer.write(out)).await.map_err(|_| Fault::Stalled)??;
            out = &out[taken..];
        }
        Ok(())
    }
}

const NO_REQUEST: &str = "a replay is asked for with an empty part and 8 bytes of sequence";

fn wanted(body: &[u8]) -> Result<Cursor, Fault> {
    let sequence = body.try_into().map_err(|_| Fault::Malformed(NO_REQUEST))?;
    Ok(Cursor(u64::from_be_bytes(sequence)))
}

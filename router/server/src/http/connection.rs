//! A client's connection that is cut when the client does not say which protocol it speaks, or stops reading.
//!
//! hyper has deadlines of its own from the moment it knows the protocol on, and none before: a client that sends nothing, or
//! the beginning of HTTP/2's preface, would hold its socket for ever. And a reader that never reads would hold it, with a
//! filled buffer, until TCP gives up, a quarter of an hour later.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use super::unparsed;

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a client is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Until its protocol is known.
    pub(super) opening: Duration,
    /// Until a write gets through.
    pub(super) write: Duration,
}

/// A stream whose reads fail when its protocol is not known in time, and whose writes fail when none gets through.
pub(super) struct Connection<S> {
    stream: S,
    /// `None` from the moment on at which the protocol is known.
    opening: Option<Opening>,
    patience: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
    /// What goes out in place of a refusal of hyper's, and how much of it has.
    last_words: Option<(Vec<u8>, usize)>,
    /// Bytes that went out.
    written: Arc<AtomicU64>,
}

/// The protocol is open: all that has come is the beginning of the preface, of which this much is here.
struct Opening {
    deadline: Pin<Box<Sleep>>,
    seen: usize,
}

impl Opening {
    /// Whether the protocol is known, `bytes` being what comes next.
    fn is_over(&mut self, bytes: &[u8]) -> bool {
        let rest = &PREFACE[self.seen..];
        self.seen += bytes.len().min(rest.len());
        bytes.len() >= rest.len() || !rest.starts_with(bytes)
    }
}

impl<S> Connection<S> {
    pub(super) fn new(stream: S, patience: Patience) -> Self {
        let opening = Opening { deadline: Box::pin(tokio::time::sleep(patience.opening)), seen: 0 };
        Self {
            stream,
            opening: Some(opening),
            patience: patience.write,
            waiting: None,
            last_words: None,
            written: Arc::default(),
        }
    }

    /// How many bytes have gone out: as long as these become more, an answer is on its way, though hyper has taken all of it.
    pub(super) fn written(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.written)
    }

    /// `write` is what the stream said: a wait is bounded, anything else ends the wait.
    fn bounded(&mut self, context: &mut Context<'_>, write: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(done) = &write {
            self.waiting = None;
            self.written.fetch_add(done.as_ref().map_or(0, |&bytes| bytes as u64), Ordering::Relaxed);
            return write;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        let Some(opening) = &mut this.opening else { return read };
        if read.is_pending() {
            ready!(opening.deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client says nothing")));
        }
        if opening.is_over(&buffer.filled()[before..]) {
            this.opening = None;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> Connection<S> {
    /// Writes what goes out in place of `refused` bytes of hyper's, and says that those are written.
    fn poll_last_words(&mut self, context: &mut Context<'_>, refused: usize) -> Poll<io::Result<usize>> {
        while let Some((words, sent)) = &mut self.last_words
            && *sent < words.len()
        {
            let write = Pin::new(&mut self.stream).poll_write(context, &words[*sent..]);
            if let Poll::Ready(Ok(written)) = write {
                *sent += written;
            }
            if ready!(self.bounded(context, write))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        self.last_words = None;
        Poll::Ready(Ok(refused))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.last_words.is_none() {
            self.last_words = unparsed::in_place_of(bytes).map(|words| (words, 0));
        }
        if self.last_words.is_some() {
            return self.poll_last_words(context, bytes.len());
        }
        let write = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A refusal of hyper's is a head alone.
        if let [head] = pieces {
            return self.poll_write(context, head);
        }
        let write = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.bounded(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
    }

    const PATIENT: Patience = Patience { opening: Duration::from_secs(3600), write: Duration::from_secs(3600) };

    #[test]
    fn a_client_that_does_not_say_what_it_speaks_is_cut() {
        run(async {
            for said in ["", "P", "PRI * HT", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
                let (near, mut far) = duplex(64);
                far.write_all(said.as_bytes()).await.expect("room");
                let mut connection = Connection::new(near, Patience { opening: Duration::ZERO, ..PATIENT });
                let error = connection.read_to_end(&mut Vec::new()).await.expect_err("it says no more");
                assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{said}");
            }
        });
    }

    #[test]
    fn a_protocol_that_is_known_has_no_such_deadline() {
        run(async {
            let preface = std::str::from_utf8(PREFACE).expect("ASCII");
            for (said, rest) in [("G", ""), ("PRI * HTTP/1", ""), (preface, ""), (preface, "more"), ("PUT", " /")] {
                let (near, mut far) = duplex(64);
                let mut connection = Connection::new(near, Patience { opening: Duration::ZERO, ..PATIENT });
                for piece in [said, rest] {
                    far.write_all(piece.as_bytes()).await.expect("room");
                    let mut got = vec![0; piece.len()];
                    connection.read_exact(&mut got).await.expect("it is here");
                    assert_eq!(got, piece.as_bytes());
                }
                assert!(connection.opening.is_none(), "{said}");
            }
        });
    }

    #[test]
    fn the_preface_may_come_in_any_pieces() {
        run(async {
            for cut in 1..PREFACE.len() {
                let mut opening = Opening { deadline: Box::pin(tokio::time::sleep(Duration::ZERO)), seen: 0 };
                assert!(!opening.is_over(&PREFACE[..cut]));
                assert!(opening.is_over(&PREFACE[cut..]));
            }
        });
    }

    #[test]
    fn a_refusal_of_hypers_is_written_with_a_body_in_pieces_of_any_size() {
        run(async {
            let refusal = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            let (near, mut far) = duplex(7);
            let mut connection = Connection::new(near, PATIENT);
            let mut got = String::new();
            let writing = async {
                connection.write_all(refusal).await.expect("written");
                drop(connection);
            };
            let ((), read) = tokio::join!(writing, far.read_to_string(&mut got));
            read.expect("read");
            assert!(got.starts_with("HTTP/1.1 400 Bad Request\r\n") && got.ends_with("}}"), "{got}");
        });
    }

    #[test]
    fn a_reader_that_reads_nothing_is_cut() {
        run(async {
            let (near, _far) = duplex(4);
            let mut connection = Connection::new(near, Patience { write: Duration::ZERO, ..PATIENT });
            let error = connection.write_all(b"more than fits").await.expect_err("nobody reads");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_reader_that_reads_is_written_to() {
        run(async {
            let (near, mut far) = duplex(4);
            let mut connection = Connection::new(near, PATIENT);
            let mut got = [0; 14];
            let (written, read) = tokio::join!(connection.write_all(b"more than fits"), far.read_exact(&mut got));
            written.expect("written");
            read.expect("read");
            assert_eq!(&got, b"more than fits");
        });
    }
}

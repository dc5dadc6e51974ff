//! A client's connection that is cut when the client stops reading.
//!
//! Without this a reader that never reads would hold its socket and a filled buffer until TCP gives up, a quarter of an
//! hour later.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// A stream whose writes fail once none has got through for `patience`.
pub(super) struct Connection<S> {
    stream: S,
    patience: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Connection<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, waiting: None }
    }

    /// `write` is what the stream said: a wait is bounded, anything else ends the wait.
    fn bounded(&mut self, context: &mut Context<'_>, write: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if write.is_ready() {
            self.waiting = None;
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
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
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

    #[test]
    fn a_reader_that_reads_nothing_is_cut() {
        run(async {
            let (near, _far) = duplex(4);
            let mut connection = Connection::new(near, Duration::ZERO);
            let error = connection.write_all(b"more than fits").await.expect_err("nobody reads");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_reader_that_reads_is_written_to() {
        run(async {
            let (near, mut far) = duplex(4);
            let mut connection = Connection::new(near, Duration::from_secs(3600));
            let mut got = [0; 14];
            let (written, read) = tokio::join!(connection.write_all(b"more than fits"), far.read_exact(&mut got));
            written.expect("written");
            read.expect("read");
            assert_eq!(&got, b"more than fits");
        });
    }
}

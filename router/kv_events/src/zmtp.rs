//! ZMTP 3.1 as a server speaks it: greeting, NULL handshake, frames. <https://rfc.zeromq.org/spec/37/>
//!
//! 1. Both sides send a greeting of 64 bytes at once: signature, version, mechanism.
//! 2. Both send the command READY with their socket type; a type that does not go with ours gets the command ERROR.
//! 3. From then on frames: messages of one or more parts, and commands (PING, SUBSCRIBE) between them.
//!
//! Whatever a peer sends is refused as soon as it cannot become right any more, and the length it announces is checked
//! before anything is kept for it.

mod frame;
mod handshake;

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadHalf, WriteHalf};

pub(crate) use frame::{Frame, FrameKind, put_frame};
pub(crate) use handshake::{SocketType, handshake};

/// A byte stream to a peer: TCP or a Unix socket.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the peer closed the connection")]
    Closed,
    #[error("input or output failed: {0}")]
    Io(#[from] io::Error),
    #[error("this is not ZeroMQ: {0}")]
    Malformed(&'static str),
    #[error("the handshake took too long")]
    SlowHandshake,
    #[error("the peer took no byte for too long")]
    Stalled,
}

/// A connection whose handshake is done.
pub(crate) struct Connection {
    pub(crate) reader: FrameReader,
    pub(crate) writer: WriteHalf<Box<dyn Stream>>,
}

/// Frames out of a byte stream.
pub(crate) struct FrameReader {
    half: ReadHalf<Box<dyn Stream>>,
    unread: BytesMut,
}

impl FrameReader {
    /// The next frame. Nothing is lost when the future is dropped before it is ready.
    pub(crate) async fn next(&mut self) -> Result<Frame, Fault> {
        loop {
            if let Some(frame) = frame::take_frame(&mut self.unread)? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Reads what there is, at least a byte.
    async fn fill(&mut self) -> Result<(), Fault> {
        match self.half.read_buf(&mut self.unread).await? {
            0 => Err(Fault::Closed),
            _ => Ok(()),
        }
    }
}

//! Greeting and READY: who is there, and whether it is a reader of ours.

use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::AsyncWriteExt;

use super::{Connection, Fault, Frame, FrameKind, FrameReader, Stream, put_frame};

/// From the first byte to READY. A peer needs a round trip or two.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// What we are, which tells what the peer may be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SocketType {
    /// Sends to those who subscribed.
    Pub,
    /// Answers who asks.
    Router,
}

impl SocketType {
    fn name(self) -> &'static str {
        match self {
            SocketType::Pub => "PUB",
            SocketType::Router => "ROUTER",
        }
    }

    fn readers(self) -> &'static [&'static [u8]] {
        match self {
            SocketType::Pub => &[b"SUB", b"XSUB"],
            SocketType::Router => &[b"REQ", b"DEALER", b"ROUTER"],
        }
    }
}

/// Greets, and learns that the peer is a reader of this type of socket.
pub(crate) async fn handshake(stream: Box<dyn Stream>, socket: SocketType) -> Result<Connection, Fault> {
    let (half, writer) = tokio::io::split(stream);
    let mut connection = Connection { reader: FrameReader { half, unread: BytesMut::new() }, writer };
    tokio::time::timeout(HANDSHAKE_MAX, connection.introduce(socket)).await.map_err(|_| Fault::SlowHandshake)??;
    Ok(connection)
}

impl Connection {
    async fn introduce(&mut self, socket: SocketType) -> Result<(), Fault> {
        self.writer.write_all(&greeting()).await?;
        while !take_greeting(&mut self.reader.unread)? {
            self.reader.fill().await?;
        }
        let mut ready = Vec::new();
        put_frame(&mut ready, FrameKind::Command, &ready_command(socket));
        self.writer.write_all(&ready).await?;
        let answer = self.reader.next().await?;
        if peer_type(&answer).is_some_and(|peer| socket.readers().contains(&peer)) {
            return Ok(());
        }
        let mut refusal = Vec::new();
        put_frame(&mut refusal, FrameKind::Command, b"\x05ERROR\x13Invalid socket type");
        self.writer.write_all(&refusal).await?;
        Err(Fault::Malformed("the peer's socket type does not go with ours"))
    }
}

/// Signature (10 bytes), version 3.1, mechanism NULL (20 bytes), not a server in the mechanism's sense, filler.
fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10..12].copy_from_slice(&[3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// Takes the peer's greeting out of `unread`; false: it is not all there yet. Says no at the first wrong byte.
fn take_greeting(unread: &mut BytesMut) -> Result<bool, Fault> {
    let seen = &unread[..unread.len().min(64)];
    for (at, &byte) in seen.iter().enumerate() {
        let is_right = match at {
            0 => byte == 0xff,
            9 => byte == 0x7f,
            10 => byte >= 3, // 4 and later speak 3 to those who say 3
            12..32 => byte == greeting()[at],
            _ => true, // a length in old versions, the minor version, the role, filler
        };
        if !is_right {
            return Err(Fault::Malformed("the greeting is not that of ZMTP 3 with the mechanism NULL"));
        }
    }
    let is_whole = seen.len() == 64;
    if is_whole {
        unread.advance(64);
    }
    Ok(is_whole)
}

fn ready_command(socket: SocketType) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    body.put_slice(b"\x0bSocket-Type");
    body.put_u32(socket.name().len() as u32);
    body.put_slice(socket.name().as_bytes());
    body
}

/// The socket type in a READY command. Names of properties have no case.
fn peer_type(ready: &Frame) -> Option<&[u8]> {
    let mut rest = ready.command("READY")?;
    while let Some((&len, tail)) = rest.split_first() {
        let (name, tail) = tail.split_at_checked(len.into())?;
        let (len, tail) = tail.split_first_chunk::<4>()?;
        let (value, tail) = tail.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        rest = tail;
    }
    None
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn taken(bytes: &[u8]) -> Result<bool, String> {
        take_greeting(&mut BytesMut::from(bytes)).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_greeting_is_taken_once_it_is_whole_and_garbage_is_refused_at_its_first_byte() {
        let greeting = greeting();
        for len in 0..64 {
            assert_eq!(taken(&greeting[..len]), Ok(false), "{len} bytes");
        }
        assert_eq!(taken(&greeting), Ok(true));
        assert!(taken(b"G").is_err(), "HTTP");
        assert!(taken(b"\x16\x03\x01").is_err(), "TLS");
        assert!(taken(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01").is_err(), "ZMTP 2");
        let mut curve = greeting;
        curve[12..17].copy_from_slice(b"CURVE");
        assert!(taken(&curve).is_err());
    }

    #[test]
    fn the_socket_type_is_found_among_other_properties() {
        let ready = |body: &'static [u8]| Frame { kind: FrameKind::Command, body: Bytes::from_static(body) };
        for (body, expected) in [
            (&b"\x05READY\x0bSocket-Type\0\0\0\x03SUB"[..], Some(&b"SUB"[..])),
            (b"\x05READY\x08Identity\0\0\0\0\x0bsocket-type\0\0\0\x03REQ", Some(b"REQ")),
            (b"\x05READY", None),
            (b"\x05READY\x0bSocket-Type\0\0\0\x04SUB", None),
            (b"\x05READY\x0bSocket-Type\0\0", None),
            (b"\x05ERROR\x0bSocket-Type\0\0\0\x03SUB", None),
            (b"\x06READY\x0bSocket-Type\0\0\0\x03SUB", None),
        ] {
            assert_eq!(peer_type(&ready(body)), expected, "{body:?}");
        }
        let own = Frame { kind: FrameKind::Command, body: ready_command(SocketType::Pub).into() };
        assert_eq!(peer_type(&own), Some(&b"PUB"[..]));
    }

    proptest! {
        #[test]
        fn no_ready_command_makes_it_panic(tail in prop::collection::vec(any::<u8>(), 0..100)) {
            let body = [b"\x05READY", &tail[..]].concat();
            peer_type(&Frame { kind: FrameKind::Command, body: body.into() });
        }
    }
}

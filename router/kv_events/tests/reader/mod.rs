//! A ZeroMQ reader: ZMTP 3.1 with the mechanism NULL over a blocking stream.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pelton_kv_events::Endpoint;

/// A test that would wait for ever fails instead.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) enum Kind {
    Sub,
    Dealer,
}

pub(crate) trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

pub(crate) struct Reader {
    stream: std::io::BufReader<Box<dyn Stream>>,
}

pub(crate) fn dial(endpoint: &Endpoint) -> Box<dyn Stream> {
    match endpoint {
        Endpoint::Tcp(address) => {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
            Box::new(stream)
        }
        Endpoint::Ipc(path) => {
            let stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Box::new(stream)
        }
    }
}

impl Reader {
    /// Connects and shakes hands, up to the other side's READY.
    pub(crate) fn connect(endpoint: &Endpoint, kind: Kind) -> Self {
        let mut reader = Self { stream: std::io::BufReader::new(dial(endpoint)) };
        let greeting = [&b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL"[..], &[0; 48]].concat();
        let mut theirs = [0; 64];
        reader.raw(&greeting);
        reader.stream.read_exact(&mut theirs).unwrap();
        assert_eq!(theirs[..10], *b"\xff\0\0\0\0\0\0\0\0\x7f");
        assert_eq!((theirs[10], &theirs[12..32]), (3, &b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..]));
        reader.command(match kind {
            Kind::Sub => b"\x05READY\x0bSocket-Type\0\0\0\x03SUB",
            Kind::Dealer => b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0",
        });
        let (flags, ready) = reader.frame().expect("READY");
        assert_eq!(flags, 4);
        assert!(ready.starts_with(b"\x05READY\x0bSocket-Type\0\0\0"), "{ready:?}");
        reader
    }

    /// A message of several parts.
    pub(crate) fn send(&mut self, parts: &[&[u8]]) {
        let last = parts.len() - 1;
        for (at, part) in parts.iter().enumerate() {
            let header = [u8::from(at < last), u8::try_from(part.len()).unwrap()];
            self.raw(&[&header, *part].concat());
        }
    }

    pub(crate) fn command(&mut self, body: &[u8]) {
        self.raw(&[&[4, u8::try_from(body.len()).unwrap()], body].concat());
    }

    /// The next message. The publisher sends no command unasked.
    pub(crate) fn message(&mut self) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        loop {
            let (flags, body) = self.frame().expect("the connection stays open");
            assert_eq!(flags & !3, 0, "no command");
            parts.push(body);
            if flags & 1 == 0 {
                return parts;
            }
        }
    }

    /// Everything sent before has been taken in, and nothing has come.
    pub(crate) fn ping(&mut self) {
        self.command(b"\x04PING\0\0are you there");
        assert_eq!(self.frame(), Some((4, b"\x04PONGare you there".to_vec())));
    }

    /// The other side says that our socket type is wrong, and closes.
    pub(crate) fn sees_error(mut self) -> bool {
        matches!(self.frame(), Some((4, body)) if body.starts_with(b"\x05ERROR")) && self.sees_end()
    }

    pub(crate) fn sees_end(mut self) -> bool {
        self.frame().is_none()
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Flags and body, none at the end.
    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut flags = [0];
        self.stream.read_exact(&mut flags).ok()?;
        let len = if flags[0] & 2 == 0 {
            let mut len = [0];
            self.stream.read_exact(&mut len).unwrap();
            u64::from(len[0])
        } else {
            let mut len = [0; 8];
            self.stream.read_exact(&mut len).unwrap();
            u64::from_be_bytes(len)
        };
        let mut body = vec![0; usize::try_from(len).unwrap()];
        self.stream.read_exact(&mut body).unwrap();
        Some((flags[0], body))
    }
}

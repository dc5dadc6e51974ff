//! One frame: a byte of flags, the length in one byte or eight, the body.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Fault;

/// Longest frame that a reader may send us. Subscriptions and replay requests are far shorter; READY carries an identity of
/// 255 bytes at most and what else a library tells of itself.
pub(super) const FRAME_BYTES_MAX: u64 = 4096;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) body: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A part of a message with more parts to come.
    Part,
    /// The last part of a message, often the only one.
    Last,
    Command,
}

impl Frame {
    /// The body of the command with this name.
    pub(crate) fn command(&self, name: &str) -> Option<&[u8]> {
        let (len, rest) = self.body.split_first()?;
        let is_named = self.kind == FrameKind::Command && usize::from(*len) == name.len();
        is_named.then(|| rest.strip_prefix(name.as_bytes())).flatten()
    }

    /// What answers this frame, if it is a PING: PONG with the same context.
    pub(crate) fn pong(&self) -> Option<Vec<u8>> {
        let context = self.command("PING")?.get(2..)?; // behind a time to live, which concerns the peer's own timer
        Some([b"\x04PONG", context].concat())
    }
}

/// Appends a frame.
pub(crate) fn put_frame(out: &mut impl BufMut, kind: FrameKind, body: &[u8]) {
    let flags = match kind {
        FrameKind::Part => MORE,
        FrameKind::Last => 0,
        FrameKind::Command => COMMAND,
    };
    match u8::try_from(body.len()) {
        Ok(len) => out.put_slice(&[flags, len]),
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(body.len() as u64);
        }
    }
    out.put_slice(body);
}

/// Takes the first frame out of `unread`, once all of it is there.
pub(super) fn take_frame(unread: &mut BytesMut) -> Result<Option<Frame>, Fault> {
    let Some(&flags) = unread.first() else { return Ok(None) };
    let kind = match flags & !LONG {
        0 => FrameKind::Last,
        MORE => FrameKind::Part,
        COMMAND => FrameKind::Command,
        _ => return Err(Fault::Malformed("a frame has flags that do not exist")),
    };
    let (header, len) = if flags & LONG == 0 {
        let Some(&len) = unread.get(1) else { return Ok(None) };
        (2, u64::from(len))
    } else {
        let Some(len) = unread.get(1..9) else { return Ok(None) };
        (9, u64::from_be_bytes(len.try_into().expect("the slice has 8 bytes")))
    };
    if len > FRAME_BYTES_MAX {
        return Err(Fault::Malformed("a frame is longer than any that a reader sends"));
    }
    let len = len as usize; // at most FRAME_BYTES_MAX
    if unread.len() < header + len {
        return Ok(None);
    }
    unread.advance(header);
    Ok(Some(Frame { kind, body: unread.split_to(len).freeze() }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds() -> impl Strategy<Value = FrameKind> {
        prop_oneof![Just(FrameKind::Part), Just(FrameKind::Last), Just(FrameKind::Command)]
    }

    proptest! {
        #[test]
        fn frames_come_back_however_the_bytes_are_cut(
            frames in prop::collection::vec((kinds(), prop::collection::vec(any::<u8>(), 0..600)), 0..8),
            cut in 1usize..300,
        ) {
            let mut wire = Vec::new();
            frames.iter().for_each(|(kind, body)| put_frame(&mut wire, *kind, body));
            let (mut unread, mut taken) = (BytesMut::new(), Vec::new());
            for piece in wire.chunks(cut) {
                unread.extend_from_slice(piece);
                while let Some(frame) = take_frame(&mut unread).unwrap() {
                    taken.push((frame.kind, frame.body.to_vec()));
                }
            }
            prop_assert_eq!(taken, frames);
            prop_assert!(unread.is_empty());
        }

        #[test]
        fn no_bytes_make_it_panic_or_keep_more_than_a_frame(garbage in prop::collection::vec(any::<u8>(), 0..6000)) {
            let mut unread = BytesMut::from(&garbage[..]);
            while let Ok(Some(frame)) = take_frame(&mut unread) {
                prop_assert!(frame.body.len() as u64 <= FRAME_BYTES_MAX);
            }
        }
    }

    #[test]
    fn a_length_is_refused_before_its_bytes_arrive() {
        let mut unread = BytesMut::from(&b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"[..]);
        assert!(take_frame(&mut unread).is_err());
        let mut unread = BytesMut::from(&b"\x08"[..]);
        assert!(take_frame(&mut unread).is_err(), "flags that do not exist");
    }

    #[test]
    fn a_ping_is_answered_with_its_context() {
        let ping = Frame { kind: FrameKind::Command, body: Bytes::from_static(b"\x04PING\x00\x0actx") };
        assert_eq!(ping.pong().as_deref(), Some(&b"\x04PONGctx"[..]));
        let message = Frame { kind: FrameKind::Last, ..ping };
        assert_eq!(message.pong(), None);
    }
}

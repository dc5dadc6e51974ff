//! The hand-over of memory: gRPC carries no descriptors, so they go over a second socket by SCM_RIGHTS.
//!
//! The router sends the handshake's nonce (16 bytes) with three descriptors, memory, bell and masks, or four: then the last one
//! is host memory. The worker checks our uid and the nonce, maps all, and answers 1; or 0, a length (u32, little-endian) and the reason. Both keep the socket open
//! for as long as they use the memory: its end tells each that the other has gone.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::BorrowedFd,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::{
    io::{AsyncReadExt, Interest},
    net::UnixStream,
};

use crate::error::Trouble;

const REASON_BYTES_MAX: u32 = 4096;

pub(crate) async fn hand_over(
    socket: &mut UnixStream,
    nonce: &[u8; 16],
    files: &[BorrowedFd<'_>],
) -> Result<(), Trouble> {
    let sent = socket.async_io(Interest::WRITABLE, || send(socket, nonce, files)).await;
    let sent = sent.map_err(Trouble::system("sendmsg"))?;
    if sent != nonce.len() {
        // The kernel splits no message this small on a fresh stream.
        return Err(Trouble::Contract(format!("{sent} of 16 bytes of the hand-over were sent")));
    }
    let read = Trouble::system("reading the answer to the hand-over");
    match socket.read_u8().await.map_err(&read)? {
        1 => Ok(()),
        0 => {
            let length = socket.read_u32_le().await.map_err(&read)?.min(REASON_BYTES_MAX);
            let mut reason = vec![0; length as usize];
            socket.read_exact(&mut reason).await.map_err(&read)?;
            Err(Trouble::Refused(String::from_utf8_lossy(&reason).into_owned()))
        }
        other => Err(Trouble::Contract(format!("the worker answers the hand-over with {other}; allowed: 0, 1"))),
    }
}

fn send(socket: &UnixStream, nonce: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(files)), "the space was counted for four");
    Ok(sendmsg(socket, &[IoSlice::new(nonce)], &mut control, SendFlags::NOSIGNAL)?)
}

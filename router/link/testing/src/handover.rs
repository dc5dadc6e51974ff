//! The memory socket: takes memory and bell over, serves steps until the router hangs up; then the next router may come.

use std::{
    io::{IoSliceMut, Read, Write},
    mem::MaybeUninit,
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Mutex,
    thread,
};

use pelton_frame::{Bell, HostMemory, MaskMemory, Memory, WorkerEnd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::{Script, Steps, service::Claim};

pub(crate) fn serve_memory(mut socket: UnixStream, claim: &Mutex<Claim>, script: &impl Script) {
    match take_memory(&socket, claim, script.believes_the_nonce()) {
        Ok((memory, bells, host)) => {
            socket.write_all(&[1]).unwrap();
            let (script, hang_up) = (script.clone(), socket.try_clone().unwrap());
            let [theirs, ours] = bells;
            let end = WorkerEnd::new(memory.clone(), Some(theirs));
            let steps = thread::spawn(move || {
                script.take_steps(Steps { end, bell: Some(ours), host, published: Box::new(|| {}) });
                let _ = hang_up.shutdown(Shutdown::Both); // the router may have hung up first
            });
            let _ = socket.read(&mut [0]);
            memory.detach();
            steps.join().unwrap();
        }
        Err(reason) => {
            let length = u32::try_from(reason.len()).unwrap().to_le_bytes();
            let _ = socket.write_all(&[&[0], &length[..], reason.as_bytes()].concat());
        }
    }
}

fn take_memory(
    socket: &UnixStream,
    claim: &Mutex<Claim>,
    believes_the_nonce: bool,
) -> Result<(Memory, [Bell; 2], Option<HostMemory>), String> {
    let mut nonce = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut nonce)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let mut files: Vec<OwnedFd> = rights.flatten().collect();
    let host = (files.len() == 4).then(|| HostMemory::from_fd(files.remove(3)).map_err(|error| error.to_string()));
    let masks = files.pop().filter(|_| files.len() == 2).ok_or_else(|| "the router has gone".to_owned())?;
    let [memory, bell] = <[OwnedFd; 2]>::try_from(files).map_err(|_| "the router has gone".to_owned())?;
    let claim = claim.lock().unwrap();
    if received.bytes != 16 || nonce[..] != claim.nonce[..] || !believes_the_nonce {
        return Err("the nonce is not that of the handshake".to_owned());
    }
    let memory = Memory::from_fd(memory).map_err(|error| error.to_string())?;
    assert_eq!(memory.epoch(), claim.epoch);
    let masks = MaskMemory::from_fd(masks).map_err(|error| error.to_string())?;
    assert_eq!((masks.epoch(), masks.slots()), (claim.epoch, memory.layout().capacities().slots));
    let ours = bell.try_clone().unwrap();
    let bells = [bell, ours].map(|file| Bell::from_fd(file).unwrap());
    Ok((memory, bells, host.transpose()?))
}

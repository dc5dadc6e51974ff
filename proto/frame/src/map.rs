//! Mapped memory as a slice of atomic words. The only `unsafe` of this crate.
//!
//! Invariant of `Mapping`: its words stay mapped, readable and writable until it is dropped. For shared memory that holds
//! because the file is sealed against shrinking before it is mapped, so no peer can turn a read into SIGBUS.
#![allow(unsafe_code)]

use std::{
    os::fd::{AsFd, OwnedFd},
    ptr::{NonNull, null_mut},
    sync::atomic::AtomicU32,
};

use rustix::{
    fs::{MemfdFlags, Mode, SealFlags},
    io::Errno,
    mm::{MapFlags, ProtFlags},
};

use crate::MemoryError;

pub(crate) struct Mapping {
    start: NonNull<AtomicU32>,
    words: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and its words are only ever reached as atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a sealed file of ours or of a peer, whole.
    pub(crate) fn shared(file: &OwnedFd) -> Result<Self, MemoryError> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(system("fcntl(F_GET_SEALS)"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(MemoryError::NotSealed);
        }
        let size = rustix::fs::fstat(file).map_err(system("fstat"))?.st_size;
        let bytes = usize::try_from(size).expect("file sizes are positive and fit 64 bits");
        // SAFETY: a fresh mapping at an address of the kernel's choice; the file has `bytes` bytes and is sealed, so all
        // of them exist for as long as the mapping does. Other processes write to it: it is only reached as atomics.
        let start = unsafe {
            rustix::mm::mmap(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file.as_fd(), 0)
        };
        Self::of(start.map_err(system("mmap"))?.cast(), bytes)
    }

    /// Zeroed memory of this process alone.
    pub(crate) fn private(bytes: usize) -> Result<Self, MemoryError> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        Self::of(start.map_err(system("mmap"))?.cast(), bytes)
    }

    fn of(start: *mut AtomicU32, bytes: usize) -> Result<Self, MemoryError> {
        let start = NonNull::new(start).ok_or(MemoryError::System { call: "mmap", error: Errno::INVAL })?;
        Ok(Self { start, words: bytes / size_of::<AtomicU32>() })
    }

    pub(crate) fn words(&self) -> &[AtomicU32] {
        // SAFETY: `words` words are mapped from `start`, page-aligned, until `self` is dropped (see the invariant), and
        // every bit pattern is an AtomicU32.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length, and nothing borrows from it any more. An error would leave the mapping
        // in place, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.words * size_of::<AtomicU32>()) };
    }
}

/// An anonymous file of this size that can neither shrink nor grow, and that only its owner can open again.
pub(crate) fn sealed_file(name: &str, bytes: usize) -> Result<OwnedFd, MemoryError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags).map_err(system("memfd_create"))?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(system("fchmod"))?;
    rustix::fs::ftruncate(&file, bytes as u64).map_err(system("ftruncate"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(system("fcntl(F_ADD_SEALS)"))?;
    Ok(file)
}

pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> MemoryError {
    move |error| MemoryError::System { call, error }
}

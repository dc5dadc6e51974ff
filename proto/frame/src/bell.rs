//! The router's one bell: a page with one word that its workers, its server threads and its supervisor ring.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering::Acquire},
    time::Duration,
};

use crate::{
    MemoryError,
    futex::Signal,
    map::{Mapping, sealed_file},
};

const BELL_BYTES: usize = 4096;
const COUNT: usize = 0;
const SLEEPERS: usize = 16; // on a line of its own
const RAISED_ON: usize = SLEEPERS + 1; // beside what its writer looks at anyway

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The bell was rung since `seen` was read.
    Rung,
    /// It was not.
    TimedOut,
}

/// A word in shared memory that counts rings. To wait without losing one: `read`, look at everything, `wait(seen)`.
pub struct Bell {
    mapping: Mapping,
    file: OwnedFd,
}

impl Bell {
    /// A new bell.
    pub fn create() -> Result<Self, MemoryError> {
        let file = sealed_file("pelton-bell", BELL_BYTES)?;
        Ok(Self { mapping: Mapping::shared(&file)?, file })
    }

    /// A bell that was handed over.
    pub fn from_fd(file: OwnedFd) -> Result<Self, MemoryError> {
        let mapping = Mapping::shared(&file)?;
        let got = 4 * mapping.words().len() as u64;
        if got != BELL_BYTES as u64 {
            return Err(MemoryError::Size { got, expected: BELL_BYTES as u64 });
        }
        Ok(Self { mapping, file })
    }

    /// The file, for the hand-over.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Wakes whoever waits. What was written before is visible to those that it wakes.
    pub fn ring(&self) {
        self.signal().raise();
    }

    /// Rings so far, wrapping.
    pub fn read(&self) -> u32 {
        self.signal().word.load(Acquire) // pairs with `Signal::raise`
    }

    /// Waits until the bell has been rung since `read` returned `seen`, at most `timeout`.
    pub fn wait(&self, seen: u32, timeout: Duration) -> Woken {
        if self.signal().wait(seen, timeout) { Woken::Rung } else { Woken::TimedOut }
    }

    fn signal(&self) -> Signal<'_> {
        let words: &[AtomicU32] = self.mapping.words();
        Signal { word: &words[COUNT], sleepers: &words[SLEEPERS], raised_on: &words[RAISED_ON] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_not_lost() {
        let bell = Bell::create().unwrap();
        let seen = bell.read();
        bell.ring();
        assert_eq!(bell.wait(seen, Duration::ZERO), Woken::Rung);
        assert_eq!(bell.wait(bell.read(), Duration::from_millis(1)), Woken::TimedOut);
    }

    #[test]
    fn a_ring_through_another_mapping_is_heard() {
        let bell = Bell::create().unwrap();
        let seen = bell.read();
        Bell::from_fd(bell.fd().try_clone_to_owned().unwrap()).unwrap().ring();
        assert_eq!(bell.wait(seen, Duration::ZERO), Woken::Rung);
    }

    #[test]
    fn a_file_that_can_still_shrink_is_refused() {
        let file = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, BELL_BYTES as u64).unwrap();
        assert!(matches!(Bell::from_fd(file), Err(MemoryError::NotSealed)));
    }

    #[test]
    fn a_file_of_another_size_is_refused() {
        let file = sealed_file("long", 2 * BELL_BYTES).unwrap();
        assert!(matches!(Bell::from_fd(file), Err(MemoryError::Size { got: 8192, expected: 4096 })));
    }
}

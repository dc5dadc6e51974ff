//! Host memory: KV blocks that workers save, in a file of the router's. So it outlives every worker.
//!
//! ```text
//!   preamble (4096 bytes)   what the memory is; written once, by the router, before anybody else has it
//!   block 0, block 1 ...    `stride` bytes each: `block_bytes`, and what rounds them up to a cache line
//! ```
//!
//! Who may touch a block when is not decided here: a plan names it to one worker at a time, and the router's own threads
//! touch none that a plan in flight names. Pages that nobody wrote take no memory.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::{
    MemoryError,
    checksum::{halves, whole},
    map::{Mapping, sealed_file},
};

/// Blocks begin on multiples of this.
pub const HOST_BLOCK_ALIGN: usize = 64;
/// Bytes before the first block.
const HEAD_BYTES: usize = 4096;
/// First word of a host memory: "PLTH" in bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"PLTH");
const VERSION: u32 = 1;
/// Words of the preamble: magic, version, blocks, zero, block bytes (both halves).
const HEAD_WORDS: usize = 6;

/// A mapping of the whole memory. Unmapped when dropped.
pub struct HostMemory {
    mapping: Mapping,
    file: OwnedFd,
    blocks: u32,
    block_bytes: usize,
}

impl HostMemory {
    /// Memory for so many blocks, to be handed over to workers.
    pub fn create(blocks: u32, block_bytes: usize) -> Result<Self, MemoryError> {
        let bytes = total_bytes(blocks, block_bytes).ok_or(MemoryError::TooLarge { blocks, block_bytes })?;
        let file = sealed_file("pelton-host-kv", bytes)?;
        let memory = Self { mapping: Mapping::shared(&file)?, file, blocks, block_bytes };
        let (low, high) = halves(block_bytes as u64);
        for (to, from) in memory.mapping.words().iter().zip([MAGIC, VERSION, blocks, 0, low, high]) {
            to.store(from, Relaxed); // nobody else has this memory yet
        }
        Ok(memory)
    }

    /// Memory that was handed over: nothing in it is believed before it is checked.
    pub fn from_fd(file: OwnedFd) -> Result<Self, MemoryError> {
        let mapping = Mapping::shared(&file)?;
        let got = 4 * mapping.words().len();
        if got < HEAD_BYTES {
            return Err(MemoryError::Size { got: got as u64, expected: HEAD_BYTES as u64 });
        }
        let head: [u32; HEAD_WORDS] = std::array::from_fn(|at| mapping.words()[at].load(Relaxed));
        let [magic, version, blocks, _, low, high] = head;
        for (field, got, expected) in [("magic", magic, MAGIC), ("version", version, VERSION)] {
            if got != expected {
                return Err(MemoryError::Mismatch { field, got: got.into(), expected: expected.into() });
            }
        }
        let block_bytes = usize::try_from(whole(low, high)).expect("a pointer has 64 bits");
        let expected = total_bytes(blocks, block_bytes).ok_or(MemoryError::TooLarge { blocks, block_bytes })?;
        if got != expected {
            return Err(MemoryError::Size { got: got as u64, expected: expected as u64 });
        }
        Ok(Self { mapping, file, blocks, block_bytes })
    }

    /// The file, for the hand-over.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// How many blocks it holds.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes from one block to the next.
    pub fn stride(&self) -> usize {
        stride(self.block_bytes)
    }

    /// First byte of the first block; `blocks` x `stride` bytes are mapped from here while this lives. For Python's tensors.
    pub fn start(&self) -> NonNull<u8> {
        NonNull::from(&self.mapping.words()[HEAD_BYTES / 4]).cast()
    }

    /// Copies a block out, into a buffer of its size, while no plan in flight has it written.
    pub fn read(&self, block: u32, into: &mut Vec<u8>) {
        into.clear();
        into.reserve(self.stride());
        for word in self.words(block) {
            into.extend_from_slice(&word.load(Relaxed).to_le_bytes()); // ordered by the counter that published the step
        }
        into.truncate(self.block_bytes);
    }

    /// Copies `bytes`, a whole block, in, while no plan in flight names the block.
    pub fn write(&self, block: u32, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.block_bytes, "blocks are written whole");
        for (word, bytes) in self.words(block).iter().zip(bytes.chunks(4)) {
            let mut padded = [0; 4];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u32::from_le_bytes(padded), Relaxed); // published with the plan that loads it
        }
    }

    fn words(&self, block: u32) -> &[AtomicU32] {
        assert!(block < self.blocks, "block {block} of {}", self.blocks);
        let begin = (HEAD_BYTES + block as usize * self.stride()) / 4;
        &self.mapping.words()[begin..begin + self.block_bytes.div_ceil(4)]
    }
}

const fn stride(block_bytes: usize) -> usize {
    block_bytes.next_multiple_of(HOST_BLOCK_ALIGN)
}

/// None: nothing, or more than an address can name.
fn total_bytes(blocks: u32, block_bytes: usize) -> Option<usize> {
    if blocks == 0 || block_bytes == 0 || block_bytes > usize::MAX / 2 {
        return None;
    }
    let bytes = stride(block_bytes).checked_mul(blocks as usize)?.checked_add(HEAD_BYTES)?;
    (bytes <= isize::MAX as usize).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handed_over(memory: &HostMemory) -> Result<HostMemory, MemoryError> {
        HostMemory::from_fd(memory.fd().try_clone_to_owned().unwrap())
    }

    proptest! {
        #[test]
        fn what_one_side_writes_the_other_reads_and_no_block_touches_another(
            blocks in 1..9u32, block_bytes in 1..300usize, seed in any::<u8>(),
        ) {
            let ours = HostMemory::create(blocks, block_bytes).unwrap();
            let theirs = handed_over(&ours).unwrap();
            prop_assert_eq!((theirs.blocks(), theirs.block_bytes()), (blocks, block_bytes));
            let contents = |block: u32| -> Vec<u8> {
                (0..block_bytes).map(|at| (at as u8).wrapping_mul(31) ^ seed ^ block as u8).collect()
            };
            for block in 0..blocks {
                if block % 2 == 0 { ours.write(block, &contents(block)) } else { theirs.write(block, &contents(block)) }
            }
            let mut read = Vec::new();
            for block in 0..blocks {
                theirs.read(block, &mut read);
                prop_assert_eq!(&read, &contents(block));
                ours.read(block, &mut read);
                prop_assert_eq!(&read, &contents(block));
            }
        }
    }

    #[test]
    fn it_is_sealed_and_of_its_owner_alone_and_its_blocks_are_aligned() {
        let memory = HostMemory::create(3, 100).unwrap();
        assert_eq!(memory.stride(), 128);
        assert_eq!(memory.start().as_ptr().align_offset(HOST_BLOCK_ALIGN), 0);
        let status = rustix::fs::fstat(memory.fd()).unwrap();
        assert_eq!((status.st_mode & 0o7777, status.st_size), (0o600, 4096 + 3 * 128));
        assert!(rustix::fs::ftruncate(memory.fd(), 0).is_err());
    }

    #[test]
    fn damage_of_the_preamble_is_noticed() {
        for word in [0, 1, 2, 4, 5] {
            let memory = HostMemory::create(3, 100).unwrap();
            memory.mapping.words()[word].fetch_xor(1 << 7, Relaxed);
            assert!(handed_over(&memory).is_err(), "word {word}");
        }
    }

    #[test]
    fn claims_that_do_not_fit_the_file_or_an_address_are_refused() {
        assert!(matches!(HostMemory::create(0, 64), Err(MemoryError::TooLarge { .. })));
        assert!(matches!(HostMemory::create(u32::MAX, usize::MAX / 4), Err(MemoryError::TooLarge { .. })));
        assert!(matches!(HostMemory::from_fd(sealed_file("short", 64).unwrap()), Err(MemoryError::Size { .. })));
        assert!(matches!(HostMemory::from_fd(sealed_file("zero", 8192).unwrap()), Err(MemoryError::Mismatch { .. })));
        let memory = HostMemory::create(3, 100).unwrap();
        for (word, claim) in [(2, 0), (2, u32::MAX), (5, u32::MAX)] {
            let before = memory.mapping.words()[word].swap(claim, Relaxed);
            assert!(handed_over(&memory).is_err(), "word {word}: {claim}");
            memory.mapping.words()[word].store(before, Relaxed);
        }
        assert!(handed_over(&memory).is_ok());
    }
}

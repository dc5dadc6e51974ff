//! Whole KV blocks between the caches of all layers and host memory, which other processes map too.
//!
//! A block in host memory is its pieces one after the other: keys of layer 0, values of layer 0, keys of layer 1 ...

use std::marker::PhantomData;

use crate::Cpu;
use crate::error::{Refusal, check_distinct, check_indices};
use crate::split::{Shared, part};

/// Host memory as blocks of `stride` bytes. Only the blocks that a call names are touched.
#[derive(Clone, Copy)]
pub struct HostBlocks<'a> {
    start: *mut u8,
    blocks: usize,
    stride: usize,
    owner: PhantomData<&'a mut [u8]>,
}

// SAFETY: threads reach only the blocks that a call names, each piece of them from one thread.
unsafe impl Sync for HostBlocks<'_> {}

impl HostBlocks<'_> {
    /// # Safety
    /// `blocks` x `stride` bytes are mapped at `start` for as long as 'a, and while a call runs nobody, in this process or
    /// another, writes a block that it names or reads one that it writes.
    pub unsafe fn new(start: *mut u8, blocks: usize, stride: usize) -> Self {
        Self { start, blocks, stride, owner: PhantomData }
    }

    /// Where a piece lies. Checked: the block is there and the piece within it.
    fn piece(&self, block: usize, offset: usize, len: usize) -> *mut u8 {
        assert!(block < self.blocks && offset + len <= self.stride);
        // SAFETY: within the mapping, by the line above and the promise of `new`.
        unsafe { self.start.add(block * self.stride + offset) }
    }

    fn check(&self, caches: usize, piece: usize) -> Result<(), Refusal> {
        if caches * piece <= self.stride {
            return Ok(());
        }
        let got = format!("has {} bytes a block", self.stride);
        Err(Refusal { argument: "host", got, allowed: format!("{} and more", caches * piece) })
    }
}

/// Block `from[i]` of every cache goes to host block `to[i]`. Caches: the bytes of `blocks` blocks each, in the order in
/// which their pieces lie in host memory.
pub fn save_blocks(
    cpu: &mut Cpu,
    host: HostBlocks<'_>,
    caches: &[&[u8]],
    blocks: usize,
    from: &[i32],
    to: &[i32],
) -> Result<(), Refusal> {
    assert!(from.len() == to.len());
    let piece = piece_bytes(caches.iter().map(|cache| cache.len()), blocks);
    host.check(caches.len(), piece)?;
    check_indices("blocks", from, blocks)?;
    check_indices("host_blocks", to, host.blocks)?;
    check_distinct("host_blocks", to)?;
    each_piece(cpu, caches.len(), from.len(), piece, |cache, at| {
        let start = from[at] as usize * piece;
        let source = &caches[cache][start..start + piece];
        let target = host.piece(to[at] as usize, cache * piece, piece);
        // SAFETY: `piece` bytes of a block that is this call's alone (`HostBlocks::new`), named once (checked), so that no
        // other thread has this piece; the caches lie elsewhere, since they are borrowed.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, piece) };
    });
    Ok(())
}

/// Host block `from[i]` goes to block `to[i]` of every cache: what `save_blocks` undoes.
pub fn load_blocks(
    cpu: &mut Cpu,
    caches: Vec<&mut [u8]>,
    blocks: usize,
    host: HostBlocks<'_>,
    from: &[i32],
    to: &[i32],
) -> Result<(), Refusal> {
    assert!(from.len() == to.len());
    let piece = piece_bytes(caches.iter().map(|cache| cache.len()), blocks);
    host.check(caches.len(), piece)?;
    check_indices("host_blocks", from, host.blocks)?;
    check_indices("blocks", to, blocks)?;
    check_distinct("blocks", to)?;
    let caches: Vec<_> = caches.into_iter().map(Shared::new).collect();
    each_piece(cpu, caches.len(), from.len(), piece, |cache, at| {
        let start = to[at] as usize * piece;
        // SAFETY: a block is named once (checked), so that no other thread has this piece of this cache.
        let target = unsafe { caches[cache].piece(start..start + piece) };
        let source = host.piece(from[at] as usize, cache * piece, piece);
        // SAFETY: `piece` bytes that nobody writes meanwhile (`HostBlocks::new`); the target is borrowed, so it lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), piece) };
    });
    Ok(())
}

fn piece_bytes(mut lengths: impl Iterator<Item = usize>, blocks: usize) -> usize {
    let first = lengths.next().unwrap_or(0);
    assert!(lengths.all(|length| length == first), "caches of all layers are alike");
    assert!(blocks > 0 && first.is_multiple_of(blocks));
    first / blocks
}

/// Calls `copy(cache, index)` for every cache and every named block, on as many threads as that is worth.
fn each_piece(cpu: &mut Cpu, caches: usize, blocks: usize, piece: usize, copy: impl Fn(usize, usize) + Sync) {
    let pieces = caches * blocks;
    let parts = cpu.parts(pieces, pieces * piece / size_of::<f32>());
    if parts == 0 {
        return;
    }
    cpu.pool.run(parts, |thread| {
        for at in part(pieces, parts, thread) {
            copy(at % caches, at / caches);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    const BLOCKS: usize = 5;
    const PIECE: usize = 40_000; // so that two threads are worth it
    const STRIDE: usize = 4 * PIECE + 64;

    fn bytes(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|at| ((at * 31 + seed * 7919) >> 3) as u8).collect()
    }

    #[test]
    fn blocks_come_back_as_they_were_saved_and_their_neighbours_are_untouched() {
        for threads in [1, 3] {
            let mut cpu = Cpu::new(Isa::best(), threads);
            let caches: Vec<Vec<u8>> = (0..4).map(|cache| bytes(BLOCKS * PIECE, cache)).collect();
            let mut host = vec![0xEE; 3 * STRIDE];
            // SAFETY: `host` is this test's alone, and not touched while the calls run.
            let area = unsafe { HostBlocks::new(host.as_mut_ptr(), 3, STRIDE) };
            let views: Vec<&[u8]> = caches.iter().map(Vec::as_slice).collect();
            save_blocks(&mut cpu, area, &views, BLOCKS, &[4, 1], &[0, 2]).expect("in range");

            let mut back: Vec<Vec<u8>> = vec![vec![0xDD; BLOCKS * PIECE]; 4];
            let targets = back.iter_mut().map(Vec::as_mut_slice).collect();
            load_blocks(&mut cpu, targets, BLOCKS, area, &[2, 0], &[3, 0]).expect("in range");
            for (back, cache) in back.iter().zip(&caches) {
                let block = |cache: &[u8], at: usize| cache[at * PIECE..(at + 1) * PIECE].to_vec();
                assert!(block(back, 3) == block(cache, 1) && block(back, 0) == block(cache, 4));
                assert!([1, 2, 4].into_iter().all(|at| block(back, at).iter().all(|&byte| byte == 0xDD)));
            }
            assert!(host[STRIDE..2 * STRIDE].iter().chain(&host[3 * STRIDE - 64..]).all(|&byte| byte == 0xEE));
        }
    }

    #[test]
    fn what_lies_outside_or_is_named_twice_is_refused_before_anything_is_written() {
        let mut cpu = Cpu::new(Isa::best(), 1);
        let cache = bytes(BLOCKS * 8, 0);
        let mut host = vec![0xEE; 3 * 64];
        // SAFETY: as above.
        let area = unsafe { HostBlocks::new(host.as_mut_ptr(), 3, 64) };
        let mut save = |caches: usize, from: &[i32], to: &[i32]| {
            save_blocks(&mut cpu, area, &vec![cache.as_slice(); caches], BLOCKS, from, to).unwrap_err().to_string()
        };
        assert!(save(1, &[0, 5], &[0, 1]).contains("`blocks` is 5 at index 1"));
        assert!(save(1, &[0, 1], &[0, -1]).contains("`host_blocks` is -1"));
        assert!(save(1, &[0, 1], &[2, 2]).contains("`host_blocks` is 2 twice"));
        assert!(save(9, &[0], &[0]).contains("`host` has 64 bytes a block; allowed: 72 and more"));
        let mut target = cache.clone();
        let mut load = |from: &[i32], to: &[i32]| {
            load_blocks(&mut cpu, vec![&mut target], BLOCKS, area, from, to).unwrap_err().to_string()
        };
        assert!(load(&[3], &[0]).contains("`host_blocks` is 3"));
        assert!(load(&[0, 1], &[4, 4]).contains("`blocks` is 4 twice"));
        assert!(target == cache && host.iter().all(|&byte| byte == 0xEE));
    }
}

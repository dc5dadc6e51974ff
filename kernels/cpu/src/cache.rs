//! The paged KV cache: `[blocks, heads, block_size, row]`, so that one head's tokens of one block lie in one piece. A row is a token's
//! head: its `dim` elements, or codes and what stands behind them.

use bytemuck::Pod;

use crate::Cpu;
use crate::cached::SCALE_BYTES;
use crate::error::{Refusal, check_indices};
use crate::split::{Shared, part};

/// What a cache's elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheFormat {
    /// Keys and values in the format of activations.
    Plain,
    /// Codes of 8 bits, and a scale behind each token's head ([`crate::Held`]).
    Codes,
}

/// The sizes of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// How many blocks.
    pub blocks: usize,
    /// How many KV heads.
    pub heads: usize,
    /// How many tokens a block holds.
    pub block_size: usize,
    /// How many numbers a head has.
    pub dim: usize,
    /// What stands for a number.
    pub format: CacheFormat,
}

impl CacheShape {
    /// How many elements one token of a head takes.
    #[inline(always)]
    pub(crate) fn row(&self) -> usize {
        match self.format {
            CacheFormat::Plain => self.dim,
            CacheFormat::Codes => self.dim + SCALE_BYTES,
        }
    }

    /// Where the elements of one token and head start.
    #[inline(always)]
    pub(crate) fn at(&self, block: usize, head: usize, token: usize) -> usize {
        ((block * self.heads + head) * self.block_size + token) * self.row()
    }

    /// How many elements the whole cache has.
    pub fn len(&self) -> usize {
        self.blocks * self.heads * self.block_size * self.row()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Copies the first `tokens[i]` tokens of block `from[i]` to block `to[i]`, in the order given.
pub fn copy_blocks<E: Pod + Send + Sync>(
    cpu: &mut Cpu,
    caches: [&mut [E]; 2],
    shape: CacheShape,
    from: &[i32],
    to: &[i32],
    tokens: &[i32],
) -> Result<(), Refusal> {
    assert!(from.len() == to.len() && from.len() == tokens.len());
    assert!(caches.iter().all(|cache| cache.len() == shape.len()));
    check_indices("from_blocks", from, shape.blocks)?;
    check_indices("to_blocks", to, shape.blocks)?;
    check_indices("tokens", tokens, shape.block_size + 1)?;
    let caches = caches.map(Shared::new);
    let work = 2 * from.len() * shape.heads * shape.block_size * shape.row();
    let parts = cpu.parts(shape.heads, work);
    cpu.pool.run(parts, |thread| {
        // A thread has whole heads, and walks the copies in order: a block may be a target first and a source later.
        for head in part(shape.heads, parts, thread) {
            for ((&from, &to), &tokens) in from.iter().zip(to).zip(tokens) {
                let len = tokens as usize * shape.row();
                let (from, to) = (shape.at(from as usize, head, 0), shape.at(to as usize, head, 0));
                for cache in &caches {
                    if from != to {
                        // SAFETY: only this thread touches this head, and two blocks of one head do not overlap.
                        let (source, target) = unsafe { (cache.piece(from..from + len), cache.piece(to..to + len)) };
                        target.copy_from_slice(source);
                    }
                }
            }
        }
    });
    Ok(())
}

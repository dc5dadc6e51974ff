//! out[t][n] = Σ_k x[t][k] · weight[n][k] (+ bias[n]): fixed order, for one row or thousands.
//!
//! Each output is one float32 accumulator, fed with k = 0, 1, 2, … in order (a pair at a time in bfloat16). How many rows
//! are in flight, where K is cut, and which thread has which columns decides only *when* an accumulator is fed, never how,
//! so a row's result does not depend on them. That gives batch invariance for nothing: no split of K, no partial sums.
//!
//! 1. Weights are packed once ([`pack`]): columns in lanes, so that one vector of weights meets one broadcast activation.
//! 2. The activations of a call are packed as `[row block][k][row]`: the inner loop ([`tile`]) reads both operands in one
//!    linear stream, without an index or a bound to check.
//! 3. Up to 6 rows share each weight that is loaded: 6 rows × 64 columns fill 24 of AVX-512's 32 registers.
//! 4. K is walked in pieces that keep a panel's part in the second-level cache while all rows of a group use it.

mod ahead;
mod pack;
mod quantized;
mod source;
mod tile;
#[cfg(target_arch = "x86_64")]
mod tiled;

use std::marker::PhantomData;
use std::ops::Range;

use crate::element::Element;
use crate::simd::{Kernel, Simd};
use crate::split::{Shared, part};
use crate::{Cpu, Isa};

pub use pack::PackedWeight;
pub use quantized::{Activations as QuantizedActivations, Bits, Codes, QuantizedWeight, Scheme, linear_quantized};
pub use source::{Matrix, Stored};
use tile::{Activations, Columns};

/// Rows whose sums wait in memory while one piece of K is walked: 96 × 64 × 4 = 24 KiB.
const GROUP_ROWS: usize = 96;
/// Rows whose activations are packed at once; bounds the scratch memory. Weights are read again for each such chunk, which
/// costs nothing at this many rows.
const CHUNK_ROWS: usize = 8 * GROUP_ROWS;

/// How many of these rows are packed at once. Tiles use weights up so fast that activations, which each panel walks again, have
/// to come from the second-level cache: half of the 2 MiB that every processor with AMX has.
fn chunk_rows(isa: Isa, rows: usize, row_bytes: usize) -> usize {
    const NEAR_BYTES: usize = 1 << 20;
    const PAIR_ROWS: usize = 32; // two blocks of tiles, which go together
    if !isa.has_tiles() {
        return CHUNK_ROWS;
    }
    let most = (NEAR_BYTES / row_bytes).clamp(PAIR_ROWS, CHUNK_ROWS);
    rows.max(1).div_ceil(rows.div_ceil(most).max(1)).next_multiple_of(PAIR_ROWS)
}

/// `out`: `[tokens, N]`, in `O`'s format; `x`: `[tokens, K]`; `bias`: `[N]`, added in float32 before the result is rounded.
pub fn linear<E: Element, O: Element>(
    cpu: &mut Cpu,
    out: &mut [O],
    x: &[E],
    weight: &PackedWeight<E>,
    bias: Option<&[E]>,
) {
    let (n, k) = (weight.columns(), weight.depth());
    assert!(x.len().is_multiple_of(k) && x.len() / k * n == out.len());
    assert!(bias.is_none_or(|bias| bias.len() == n));
    assert!(weight.suits(cpu.isa), "packed for another instruction set than {}", cpu.isa.name());
    let chunk = chunk_rows(cpu.isa, x.len() / k, k * size_of::<E>());
    for (out, x) in out.chunks_mut(chunk * n).zip(x.chunks(chunk * k)) {
        #[cfg(target_arch = "x86_64")]
        if let Some(amx) = cpu.isa.amx()
            && let Some(weight) = weight.in_tiles()
        {
            tiled::multiply(cpu, amx, out, bytemuck::cast_slice(x), weight, bias.map(bytemuck::cast_slice));
            continue;
        }
        linear_chunk(cpu, out, x, weight, bias);
    }
}

fn linear_chunk<E: Element, O: Element>(
    cpu: &mut Cpu,
    out: &mut [O],
    x: &[E],
    weight: &PackedWeight<E>,
    bias: Option<&[E]>,
) {
    let isa = cpu.isa;
    let sizes = isa.run(AskSizes(PhantomData::<E>));
    let rows = Rows { rows: x.len() / weight.depth(), most: sizes.rows };
    let row_words = weight.units() * sizes.activation_words;
    let groups = rows.blocks().div_ceil(GROUP_ROWS / rows.most);
    let units = weight.panels() * groups;
    let pack_parts = cpu.parts(rows.blocks(), x.len());
    // Few rows are bound by reading weights, many by arithmetic: from 4 rows on, the work grows with the rows.
    let parts = cpu.parts(units, weight.columns() * weight.depth() * rows.rows.div_ceil(4));

    let packed = cpu.scratch.scratch::<u32>(rows.rows * row_words);
    let target = Shared::new(packed);
    cpu.pool.run(pack_parts, |thread| {
        for block in part(rows.blocks(), pack_parts, thread) {
            let rows = rows.block(block);
            // SAFETY: blocks do not overlap, and each belongs to one part.
            let packed = unsafe { target.piece(rows.start * row_words..rows.end * row_words) };
            let x = &x[rows.start * weight.depth()..rows.end * weight.depth()];
            isa.run(Activations { packed, x, depth: weight.depth() });
        }
    });

    let packed = &*packed;
    let out = Shared::new(out);
    cpu.pool.run(parts, |thread| {
        let units = part(units, parts, thread);
        isa.run(Columns { out: &out, packed, weight, bias, rows, groups, units });
    });
}

/// What the instruction set decides about the packed activations.
struct Sizes {
    rows: usize,
    activation_words: usize,
}

struct AskSizes<E>(PhantomData<E>);

impl<E: Element> Kernel for AskSizes<E> {
    type Output = Sizes;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Sizes {
        Sizes { rows: S::ROWS, activation_words: size_of::<E::Activation<S>>() / size_of::<u32>() }
    }
}

/// How the rows of a chunk are cut into blocks of nearly equal size, none larger than `most`.
#[derive(Clone, Copy)]
struct Rows {
    rows: usize,
    most: usize,
}

impl Rows {
    #[inline(always)]
    fn blocks(self) -> usize {
        self.rows.div_ceil(self.most)
    }

    #[inline(always)]
    fn block(self, block: usize) -> Range<usize> {
        part(self.rows, self.blocks(), block)
    }
}

#[cfg(test)]
mod tests;

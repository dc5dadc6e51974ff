//! out[t][n] = Σ_g scale[n][g] · (Σ_{k in g} (code[n][k] − zero[n][g]) · x[t][k]) (+ bias[n]): weights of 4 or 8 bits.
//!
//! Codes are unsigned; a sum gets −zero · Σ x, at its beginning or (tiles) at its end, so that the inner loop multiplies codes as they are stored.
//!
//! 1. K is cut into *segments*: a group of one scale, or where a column has but one scale, parts of at most 2,048. With
//!    activations of 8 bits a segment's sum is an exact integer (255 · 127 · 2,048 is 1/32 of what fits), so every
//!    instruction that multiplies integers gives the same bits. With activations as they are it is one accumulator, fed in order: bfloat16 by pairs
//!    where a class multiplies these (codes are exact in bfloat16), else number by number in float32.
//! 2. Segments are added to one float32 sum per output, in order: `sum += segment · (weight's scale · activations' scale)`.
//! 3. Rows, pieces of K and threads decide only when an accumulator is fed, as for other formats (`linear`). Where floats are multiplied, a piece that
//!    several row blocks use is made floats once for all of them ([`wide`]).
//! 4. Where there are tiles (AMX), rows go through them if a column has one scale and 8 bits, or if they are many ([`tiled`]): sums are
//!    exact, so the bits are the same. bfloat16 activations that stay as they are go through tiles always, with an arithmetic of their own: neither segments nor
//!    zeros as in 1 and 2 ([`widened`]).
//!
//! Tried and left: scales of 16 bits. They would save 3 % to 6 % of an int4 weight, but neither float16 nor bfloat16 holds what
//! the other's checkpoints bring.

mod activations;
mod pack;
mod panel;
mod round;
mod scheme;
#[cfg(test)]
mod tests;
mod tile;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod wide;
#[cfg(target_arch = "x86_64")]
mod widened;

use super::out::Out;
use super::{CHUNK_ROWS, GROUP_ROWS, Rows, TILED_CHUNK_ROWS};
use crate::element::Element;
use crate::simd::{Kernel, LANES, Simd};
use crate::split::{Own, Shared, part};
use crate::{Cpu, Isa};
use activations::{Form, Head, Pack, Quad};
pub use pack::{Codes, QuantizedWeight};
pub use scheme::{Activations, Bits, Scheme};
use tile::Panels;

/// How many of these rows are packed at once. Tiles use weights up so fast that activations, which each panel walks again, have
/// to come from the second-level cache: half of the 2 MiB that every processor with AMX has.
fn chunk_rows(isa: Isa, rows: usize, row_bytes: usize, form: Form) -> usize {
    const NEAR_BYTES: usize = 1 << 20;
    const PAIR_ROWS: usize = 32; // two blocks of tiles, which go together
    if !isa.has_tiles() {
        return CHUNK_ROWS;
    }
    if form == Form::Pairs {
        return rows.div_ceil(rows.div_ceil(TILED_CHUNK_ROWS).max(1)).max(1); // and no more of K at once than stays near
    }
    let most = (NEAR_BYTES / row_bytes).clamp(PAIR_ROWS, CHUNK_ROWS);
    rows.max(1).div_ceil(rows.div_ceil(most).max(1)).next_multiple_of(PAIR_ROWS)
}

/// `out`: `[tokens, N]`, in `O`'s format; `x`: `[tokens, K]`; `bias`: `[N]`, added in float32 before the result is rounded.
pub fn linear_quantized<E: Element, O: Element>(
    cpu: &mut Cpu,
    out: &mut [O],
    x: &[E],
    weight: &QuantizedWeight,
    bias: Option<&[E]>,
) {
    let (n, k) = (weight.columns(), weight.depth());
    assert!(x.len().is_multiple_of(k) && x.len() / k * n == out.len());
    assert!(bias.is_none_or(|bias| bias.len() == n));
    assert!(weight.suits(cpu.isa), "packed for another instruction set than {}", cpu.isa.name());
    let bias: Option<Vec<f32>> = bias.map(|bias| bias.iter().map(|bias| bias.to_f32()).collect());
    let mut out = Out::of(out);
    let form = Form::of::<E>(weight.scheme().activations);
    let (rows, chunk) = (x.len() / k, chunk_rows(cpu.isa, x.len() / k, k, form));
    for start in (0..rows).step_by(chunk) {
        let rows = start..rows.min(start + chunk);
        let results = Results { out: out.rows(rows.clone(), n), bias: bias.as_deref(), columns: n };
        multiply(cpu, &results, &x[rows.start * k..rows.end * k], weight);
    }
}

/// Where the sums of a unit of work go.
struct Results<'a> {
    out: Out<'a>,
    bias: Option<&'a [f32]>,
    columns: usize,
}

impl Results<'_> {
    /// Writes `sums`, `width` for each row, with the bias added, rounded once; columns that only fill up the last panel are left out.
    /// `is_far`: as [`Out::write`] has it.
    ///
    /// # Safety
    /// No other thread writes these columns of these rows.
    #[inline(always)]
    unsafe fn write<S: Simd>(
        &self,
        simd: S,
        (first_row, first_column): (usize, usize),
        width: usize,
        sums: &[f32],
        is_far: bool,
    ) {
        let columns = first_column.min(self.columns)..self.columns.min(first_column + width);
        let bias = self.bias.map(|bias| &bias[columns.clone()]);
        for (row, sums) in sums.chunks_exact(width).enumerate() {
            let at = (first_row + row) * self.columns + columns.start;
            // SAFETY: by the caller's promise.
            unsafe { self.out.write(simd, at, &sums[..columns.len()], bias, is_far) };
        }
    }
}

fn multiply<E: Element>(cpu: &mut Cpu, results: &Results<'_>, x: &[E], weight: &QuantizedWeight) {
    let (isa, depth) = (cpu.isa, weight.depth());
    let form = Form::of::<E>(weight.scheme().activations);
    #[cfg(target_arch = "x86_64")]
    if let Some(amx) = isa.amx()
        && form == Form::Pairs
    {
        return widened::multiply(cpu, amx, results, bytemuck::cast_slice(x), weight);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(amx) = isa.amx()
        && tiled::is_faster(weight.scheme(), x.len() / depth)
    {
        return tiled::multiply(cpu, amx, results, x, weight);
    }
    let layout = weight.layout();
    let sizes = isa.run(AskSizes(form));
    let rows = Rows { rows: x.len() / depth, most: sizes.rows };
    let is_wide = sizes.are_floats && rows.blocks() >= wide::blocks_for(weight.scheme().bits);
    let groups = rows.blocks().div_ceil(GROUP_ROWS / rows.most);
    let units = weight.panels() * groups;
    let pack_parts = cpu.parts(rows.blocks(), x.len());
    // As in `linear`; an element of a weight is read in half or a quarter of the time.
    let parts = cpu.parts(units, weight.columns() * depth / 2 * rows.rows.div_ceil(4));

    let row_words = layout.segments * layout.quads * sizes.quad_words;
    let words = rows.rows * row_words;
    let heads = rows.rows * layout.segments;
    let group_rows = rows.rows.min(GROUP_ROWS);
    let wide = if is_wide { group_rows + wide::piece_of(rows.blocks()) } else { 0 };
    let own_words = (group_rows + wide) * layout.width * LANES;
    let all_own_words = Own::<u32>::len(parts, own_words);
    let scratch = cpu.scratch.scratch::<u32>(all_own_words + words + heads * (size_of::<Head>() / size_of::<u32>()));
    let (own, scratch) = scratch.split_at_mut(all_own_words);
    let own = Own::new(own, own_words);
    let (packed, packed_heads) = scratch.split_at_mut(words);
    let packed_heads: &mut [Head] = bytemuck::cast_slice_mut(packed_heads);
    let targets = (Shared::new(packed), Shared::new(packed_heads));
    cpu.pool.run(pack_parts, |thread| {
        for block in part(rows.blocks(), pack_parts, thread) {
            let rows = rows.block(block);
            // SAFETY: blocks do not overlap, and each belongs to one part.
            let words = unsafe { targets.0.piece(rows.start * row_words..rows.end * row_words) };
            // SAFETY: as above.
            let heads = unsafe { targets.1.piece(rows.start * layout.segments..rows.end * layout.segments) };
            isa.run(Pack { words, heads, x: &x[rows.start * depth..rows.end * depth], weight, is_wide });
        }
    });

    let (packed, heads) = (&*packed, &*packed_heads);
    cpu.pool.run(parts, |thread| {
        let units = part(units, parts, thread);
        // SAFETY: each thread has its own.
        let own = bytemuck::cast_slice_mut(unsafe { own.of(thread) });
        let foresees = isa.foresees();
        isa.run(Panels { results, packed, heads, weight, form, is_wide, rows, groups, units, foresees, own });
    });
}

/// What the instruction set decides about packed activations.
struct Sizes {
    rows: usize,
    quad_words: usize,
    /// Whether activations meet codes as floats.
    are_floats: bool,
}

struct AskSizes(Form);

impl Kernel for AskSizes {
    type Output = Sizes;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Sizes {
        let quad = match self.0 {
            Form::Int8 => size_of::<<activations::Int8 as Quad>::X<S>>(),
            Form::Floats => size_of::<<activations::Floats as Quad>::X<S>>(),
            Form::Pairs => size_of::<<activations::Pairs as Quad>::X<S>>(),
        };
        let are_floats = match self.0 {
            Form::Int8 => false,
            Form::Floats => true,
            Form::Pairs => !S::HAS_PAIRS,
        };
        Sizes { rows: S::ROWS, quad_words: quad / size_of::<u32>(), are_floats }
    }
}

//! out[t][n] = Σ_k x[t][k] · weight[n][k] (+ bias[n]): fixed order, for one row or thousands.
//!
//! Each output is one float32 accumulator, fed with k = 0, 1, 2, … in order (a pair at a time in bfloat16). How many rows
//! are in flight, where K is cut, and which thread has which columns decides only *when* an accumulator is fed, never how,
//! so a row's result does not depend on them. That gives batch invariance for nothing: no split of K, no partial sums.
//!
//! 1. Weights are packed once ([`pack`]): columns in lanes, so that one vector of weights meets one broadcast activation.
//! 2. The activations of a call are packed (for tiles only where they do not lie ready: [`Spaced`]) as `[row block][k][row]`: the inner loop ([`tile`]) reads both operands in one
//!    linear stream, without an index or a bound to check.
//! 3. Up to 6 rows share each weight that is loaded: 6 rows × 64 columns fill 24 of AVX-512's 32 registers.
//! 4. K is walked in pieces that keep a panel's part in the second-level cache while all rows of a group use it.
//! 5. Weights of bfloat16 lie in memory in 12 bits ([`short`]); each piece is lengthened while the one before is multiplied.
//! 6. Where floats are multiplied, a piece of bfloat16 that several row blocks use is lengthened and widened once for all of them ([`wide`]).

mod ahead;
mod out;
mod pack;
mod piece;
mod quantized;
pub(crate) mod short;
mod source;
mod tile;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod turn;
mod unpack;
mod wide;

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::cast_slice;

use crate::Cpu;
use crate::element::{Bf16, Element, Format};
use crate::gate::Activation;
use crate::simd::{Kernel, Simd};
use crate::split::{Own, Shared, part};

use out::{Gate, Out};
pub use pack::PackedWeight;
use piece::Cut;
pub use quantized::{Activations as QuantizedActivations, Bits, Codes, QuantizedWeight, Scheme, linear_quantized};
use short::Unit;
pub use source::{Matrix, Stored};
use tile::{Activations, Columns};
use wide::WideUnit;

/// Rows whose sums wait in memory while one piece of K is walked: 96 × 64 × 4 = 24 KiB.
const GROUP_ROWS: usize = 96;
/// Rows whose activations are packed at once; bounds the scratch memory. Weights are read again for each such chunk, which
/// costs nothing at this many rows.
const CHUNK_ROWS: usize = 8 * GROUP_ROWS;

/// The same where bfloat16 goes through tiles: with more, a stretch of K whose activations stay near would be short.
const TILED_CHUNK_ROWS: usize = 512;

/// `out`: `[tokens, N]`, in `O`'s format; `x`: `[tokens, K]`; `bias`: `[N]`, added in float32 before the result is rounded.
pub fn linear<E: Element, O: Element>(
    cpu: &mut Cpu,
    out: &mut [O],
    x: &[E],
    weight: &PackedWeight<E>,
    bias: Option<&[E]>,
) {
    linear_spaced(cpu, out, Spaced { data: x, row: weight.depth() }, weight, bias);
}

/// Rows with room behind each of them, or without.
#[derive(Clone, Copy)]
pub struct Spaced<'a, E> {
    /// All of them.
    pub data: &'a [E],
    /// Elements from a row to the next.
    pub row: usize,
}

impl<E> Spaced<'_, E> {
    fn rows(&self) -> usize {
        self.data.len() / self.row
    }

    fn some(&self, rows: Range<usize>) -> Self {
        Self { data: &self.data[rows.start * self.row..rows.end * self.row], row: self.row }
    }
}

#[cfg(target_arch = "x86_64")]
impl Spaced<'_, Bf16> {
    /// Whether nothing has to be packed for tiles: see [`PackedWeight::room_behind_rows`].
    fn lies_as_tiles_take_it(&self, depth: usize) -> bool {
        depth.is_multiple_of(tiled::STEP)
            && self.row.is_multiple_of(tiled::STEP)
            && !self.row.is_multiple_of(2 * tiled::STEP)
    }
}

/// `linear` of such rows; with room behind them for weights alone that ask for it ([`PackedWeight::room_behind_rows`]).
pub fn linear_spaced<E: Element, O: Element>(
    cpu: &mut Cpu,
    out: &mut [O],
    x: Spaced<'_, E>,
    weight: &PackedWeight<E>,
    bias: Option<&[E]>,
) {
    let (n, k) = (weight.columns(), weight.depth());
    assert!(x.data.len().is_multiple_of(x.row) && x.rows() * n == out.len());
    assert!(x.row == k || x.row == k + weight.room_behind_rows());
    assert!(bias.is_none_or(|bias| bias.len() == n));
    assert!(weight.suits(cpu.isa), "packed for another instruction set than {}", cpu.isa.name());
    let weight: &dyn Any = weight;
    match (weight.downcast_ref(), weight.downcast_ref()) {
        (Some(weight), _) => linear_f32(cpu, Out::of(out), cast_slice(x.data), weight, bias.map(cast_slice)),
        (_, Some(weight)) => {
            let x = Spaced { data: cast_slice(x.data), row: x.row };
            linear_bf16(cpu, Out::of(out), x, weight, bias.map(cast_slice), None);
        }
        (None, None) => unreachable!("there are no other elements"),
    }
}

/// `out[t][i] = act(y[t][i]) · y[t][width + i]`, where `linear_spaced` gives `y` and `width` is half its columns: the bits are those of
/// `gate_mul` behind it. Of each of `out`'s rows, `row` long, the first `width` are written. For weights that can be
/// [gated](PackedWeight::can_be_gated).
pub(crate) fn linear_gated(
    cpu: &mut Cpu,
    out: &mut [Bf16],
    row: usize,
    x: Spaced<'_, Bf16>,
    weight: &PackedWeight<Bf16>,
    bias: Option<&[Bf16]>,
    activation: Activation,
) {
    assert!(weight.can_be_gated() && weight.suits(cpu.isa));
    assert!(x.data.len().is_multiple_of(x.row) && x.rows() * row == out.len() && row >= weight.columns() / 2);
    assert!(x.row == weight.depth() || x.row == weight.depth() + weight.room_behind_rows());
    assert!(bias.is_none_or(|bias| bias.len() == weight.columns()));
    linear_bf16(cpu, Out::of(out), x, weight, bias, Some(Gate { activation, row }));
}

// Not generic, so that they are compiled once, and not again for each crate that calls `linear`.

fn linear_f32(cpu: &mut Cpu, mut out: Out<'_>, x: &[f32], weight: &PackedWeight<f32>, bias: Option<&[f32]>) {
    for rows in chunks(x.len() / weight.depth(), CHUNK_ROWS) {
        let out = out.rows(rows.clone(), weight.columns());
        linear_chunk(cpu, &out, &x[rows.start * weight.depth()..rows.end * weight.depth()], weight, bias);
    }
}

fn linear_bf16(
    cpu: &mut Cpu,
    mut out: Out<'_>,
    x: Spaced<'_, Bf16>,
    weight: &PackedWeight<Bf16>,
    bias: Option<&[Bf16]>,
    gate: Option<Gate>,
) {
    let row = gate.map_or(weight.columns(), |gate| gate.row);
    #[cfg(target_arch = "x86_64")]
    if let Some(amx) = cpu.isa.amx() {
        for rows in even_chunks(x.rows(), TILED_CHUNK_ROWS) {
            let out = out.rows(rows.clone(), row);
            tiled::multiply(cpu, amx, &out, x.some(rows), weight, bias, gate);
        }
        return;
    }
    for rows in even_chunks(x.rows(), CHUNK_ROWS) {
        let out = out.rows(rows.clone(), row);
        linear_chunk(cpu, &out, x.some(rows).data, weight, bias);
    }
}

/// At most so many rows at a time, nearly as many in each chunk.
fn even_chunks(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = rows.div_ceil(most).max(1);
    chunks(rows, rows.div_ceil(count).max(1))
}

/// So many rows at a time.
fn chunks(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(most).map(move |start| start..rows.min(start + most))
}

fn linear_chunk<E: Element>(cpu: &mut Cpu, out: &Out<'_>, x: &[E], weight: &PackedWeight<E>, bias: Option<&[E]>) {
    let isa = cpu.isa;
    let sizes = isa.run(AskSizes(PhantomData::<E>));
    let rows = Rows { rows: x.len() / weight.depth(), most: sizes.rows };
    let row_words = weight.units() * sizes.activation_words;
    let is_short = weight.short().is_some();
    let cut = Cut::new(rows, weight.panels(), weight.units(), (is_short, sizes.may_be_wide), cpu.threads());
    let groups = rows.blocks().div_ceil(cut.group);
    let units = weight.panels() * groups;
    let pack_parts = cpu.parts(rows.blocks(), x.len());
    // Few rows are bound by reading weights, many by arithmetic: from 4 rows on, the work grows with the rows.
    let parts = cpu.parts(units, weight.columns() * weight.depth() * rows.rows.div_ceil(4));

    let sums_words = rows.rows.min(cut.group * rows.most) * weight.panel_columns();
    let words_of = |bytes: usize| cut.piece * bytes / size_of::<u32>();
    let room_words = if is_short && !cut.is_wide { words_of(2 * size_of::<Unit>()) } else { 0 };
    let wide_words = if cut.is_wide { words_of(size_of::<WideUnit>()) } else { 0 };
    let own_words = sums_words + room_words + wide_words;
    let all_own_words = Own::<u32>::len(parts, own_words);
    let scratch = cpu.scratch.scratch::<u32>(all_own_words + rows.rows * row_words);
    let (own, packed) = scratch.split_at_mut(all_own_words);
    let own = Own::new(own, own_words);
    let target = Shared::new(packed);
    cpu.pool.run(pack_parts, |thread| {
        for block in part(rows.blocks(), pack_parts, thread) {
            let rows = rows.block(block);
            // SAFETY: blocks do not overlap, and each belongs to one part.
            let packed = unsafe { target.piece(rows.start * row_words..rows.end * row_words) };
            let x = &x[rows.start * weight.depth()..rows.end * weight.depth()];
            isa.run(Activations { packed, x, depth: weight.depth(), is_wide: cut.is_wide });
        }
    });

    let packed = &*packed;
    cpu.pool.run(parts, |thread| {
        let units = part(units, parts, thread);
        // SAFETY: each thread has its own.
        let own = unsafe { own.of(thread) };
        let (wide, own) = own.split_at_mut(wide_words);
        let (room, sums) = own.split_at_mut(room_words);
        let (room, sums) = (bytemuck::cast_slice_mut(room), bytemuck::cast_slice_mut(sums));
        let wide = bytemuck::cast_slice_mut(wide);
        let foresees = isa.foresees();
        isa.run(Columns { out, packed, weight, bias, rows, groups, units, cut, foresees, sums, room, wide });
    });
}

/// What the instruction set decides about the packed activations.
struct Sizes {
    rows: usize,
    activation_words: usize,
    /// Whether pieces of weights may be widened.
    may_be_wide: bool,
}

struct AskSizes<E>(PhantomData<E>);

impl<E: Element> Kernel for AskSizes<E> {
    type Output = Sizes;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Sizes {
        Sizes {
            rows: S::ROWS,
            activation_words: size_of::<E::Activation<S>>() / size_of::<u32>(),
            may_be_wide: E::FORMAT == Format::BFloat16 && S::WIDTH == short::VECTORS && !S::HAS_PAIRS,
        }
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

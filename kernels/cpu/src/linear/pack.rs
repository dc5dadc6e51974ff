//! Weights as the linear kernel walks them.
//!
//! ```text
//! panel 0                                 panel 1 …            a panel: 64 columns (16 where registers are few)
//! [unit 0][unit 1] … [unit U-1]                                U = K (float32), K/2 rounded up (bfloat16)
//!  └ [column 0][column 1] … [column 63]                        a column: one float32, or the pair k, k+1 of bfloat16
//! ```
//! Columns and the last pair are filled up with zeros. One thread walks neighbouring panels: one linear stream.
//!
//! Where bfloat16 is multiplied in tiles (AMX), a panel is two halves of 32 columns, each one linear stream:
//!
//! ```text
//! half 0                                  half 1               a step: 16 pairs along K, filled up with zeros
//! [step 0][step 1] … [step S-1]
//!  └ [tile: columns 0 to 15][tile: columns 16 to 31]           a tile: 16 pairs × 16 columns = 1 KiB
//! ```
//!
//! Where a panel of bfloat16 is 64 columns wide, it takes three quarters of that, without loss ([`short`]), unless exponents differ more
//! than those of normal weights do.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;

use super::short::{self, Order, Short, Unit};
use super::source::{Coming, Matrix};
use super::turn::{Places, Rows, turn};
use crate::element::{Bf16, Element, Format};
use crate::memory::Buffer;
use crate::simd::{Kernel, LANES, Lanes, Line, Simd};
use crate::split::{Shared, part};
use crate::{Cpu, Isa};

/// A weight matrix `[N, K]` in the layout of one class of instruction sets.
pub struct PackedWeight<E> {
    columns: usize,
    depth: usize,
    layout: Layout,
    /// If its units are short.
    short: Option<short::Sizes>,
    data: Buffer,
    element: PhantomData<E>,
}

/// How a panel lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Unit after unit, so many vectors wide.
    Units { vectors: usize },
    /// Two halves of tiles.
    Tiles,
}

/// Where a weight lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Which panel, or half a panel of tiles: a panel of its own, if its units are short.
    pub(super) stretch: usize,
    /// Of the stretch.
    pub(super) vector: usize,
    /// Of the vector.
    pub(super) lane: usize,
}

/// Columns of a panel of tiles.
pub(super) const TILED_COLUMNS: usize = 64;
/// Pairs along K of a tile.
pub(super) const TILED_UNITS: usize = 16;

impl Layout {
    fn of<E: Element>(isa: Isa) -> Self {
        if E::FORMAT == Format::BFloat16 && isa.has_tiles() {
            return Self::Tiles;
        }
        Self::Units { vectors: isa.run(Width) }
    }

    fn columns(self) -> usize {
        match self {
            Self::Units { vectors } => vectors * LANES,
            Self::Tiles => TILED_COLUMNS,
        }
    }

    /// How its units lie if they are short, where they may be.
    fn short_order<E: Element>(self, isa: Isa) -> Option<Order> {
        match self {
            Self::Units { vectors: short::VECTORS } if E::FORMAT == Format::BFloat16 => {
                Some(if isa.reads_pages_in_turn() { Order::Pages } else { Order::Units })
            }
            Self::Units { .. } => None,
            Self::Tiles => Some(Order::Pages),
        }
    }

    /// Panels and units of a short matrix: half a panel of tiles is one of its own, and four rows of a tile are a unit.
    fn short_shape(self, panels: usize, units: usize) -> (usize, usize) {
        match self {
            Self::Units { .. } => (panels, units),
            Self::Tiles => (2 * panels, units / 2),
        }
    }

    /// How many vectors wide a stretch is.
    fn vectors(self) -> usize {
        match self {
            Self::Units { vectors } => vectors,
            Self::Tiles => 2,
        }
    }

    /// Where words of 16 of a stretch's columns go.
    fn places(self, vector: usize) -> Places {
        match self {
            Self::Units { vectors } => Places { first: vector, word: vectors, block: LANES * vectors },
            Self::Tiles => Places { first: vector * TILED_UNITS, word: 1, block: 2 * TILED_UNITS },
        }
    }

    fn units<E: Element>(self, depth: usize) -> usize {
        match self {
            Self::Units { .. } => depth.div_ceil(E::PACK),
            Self::Tiles => depth.div_ceil(E::PACK).next_multiple_of(TILED_UNITS),
        }
    }
}

impl<E: Element> PackedWeight<E> {
    /// Packs a matrix for the instruction set of `cpu`, with all its threads; values of another format are rounded to `E`.
    pub fn pack(cpu: &mut Cpu, weight: &Matrix<'_>) -> Self {
        Self::packed(cpu, weight, Layout::of::<E>(cpu.isa), true)
    }

    /// As `pack` does what cannot be short.
    #[cfg(test)]
    pub(super) fn pack_whole(cpu: &mut Cpu, weight: &Matrix<'_>) -> Self {
        Self::packed(cpu, weight, Layout::of::<E>(cpu.isa), false)
    }

    /// As `pack` where there are tiles, on any machine: to look at, not to multiply with.
    #[cfg(test)]
    pub(super) fn pack_tiled(cpu: &mut Cpu, weight: &Matrix<'_>, may_be_short: bool) -> Self {
        Self::packed(cpu, weight, Layout::Tiles, may_be_short)
    }

    /// Elements that activations should have room for behind each row, so that nothing has to be packed: 64 bytes where rows would else lie
    /// an even number of these apart, and compete for the same places of the caches.
    pub fn room_behind_rows(&self) -> usize {
        let step = 2 * TILED_UNITS;
        let would_compete = self.depth.is_multiple_of(2 * step);
        if self.layout == Layout::Tiles && would_compete { step } else { 0 }
    }

    /// Whether [`linear_gated`](super::linear_gated) takes it: columns are found 32 at a time, gates and what they are gates of alike.
    pub fn can_be_gated(&self) -> bool {
        self.layout == Layout::Tiles && self.columns.is_multiple_of(TILED_COLUMNS)
    }

    fn packed(cpu: &mut Cpu, weight: &Matrix<'_>, layout: Layout, may_be_short: bool) -> Self {
        let (columns, depth) = (weight.rows(), weight.depth());
        assert!(columns > 0);
        let (units, panel_columns) = (layout.units::<E>(depth), layout.columns());
        let panels = columns.div_ceil(panel_columns);
        let size = units * panel_columns;
        let isa = cpu.isa;
        if let Some(order) = layout.short_order::<E>(isa).filter(|_| may_be_short) {
            let shape = layout.short_shape(panels, units);
            let reader = |panels: Range<usize>| Stretches::new(weight, layout, panels);
            if let Some((sizes, data)) = short::pack(cpu, order, shape, reader) {
                return Self { columns, depth, layout, short: Some(sizes), data, element: PhantomData };
            }
        }
        let mut data = Buffer::for_weights(panels * size * size_of::<E::Unit>());
        let parts = cpu.parts(panels, columns * depth);
        let target = Shared::new(data.as_mut_slice::<E::Unit>());
        cpu.pool.run(parts, |thread| {
            for panel in part(panels, parts, thread) {
                let asked = panel * panel_columns..columns.min((panel + 1) * panel_columns);
                // SAFETY: panels do not overlap, and each belongs to one part.
                let to = unsafe { target.piece(panel * size..(panel + 1) * size) };
                isa.run(Fill::<E> { to, from: weight, columns: asked, layout });
            }
        });
        Self { columns, depth, layout, short: None, data, element: PhantomData }
    }

    /// Takes the bytes of a weight that was packed for the same instruction set, with `exceptions` if its units are short; none:
    /// they are not of these sizes.
    pub(crate) fn restored(
        isa: Isa,
        columns: usize,
        depth: usize,
        exceptions: Option<usize>,
        data: Buffer,
    ) -> Option<Self> {
        if columns.min(depth) == 0 || columns.max(depth) > u32::MAX as usize {
            return None;
        }
        let layout = Layout::of::<E>(isa);
        let (panels, units) = (columns.div_ceil(layout.columns()), layout.units::<E>(depth));
        let bytes = panels.checked_mul(units)?.checked_mul(layout.columns() * size_of::<E::Unit>())?;
        let short = match exceptions {
            Some(exceptions) => {
                let (panels, units) = layout.short_shape(panels, units);
                Some(short::Sizes::new(layout.short_order::<E>(isa)?, panels, units, exceptions)?)
            }
            None => None,
        };
        let is_whole = data.len() == short.map_or(bytes, short::Sizes::bytes);
        let is_sound = is_whole && short.is_none_or(|sizes| Short::of(sizes, data.as_slice()).is_sound());
        is_sound.then_some(Self { columns, depth, layout, short, data, element: PhantomData })
    }

    /// How many exceptions its units have, if they are short.
    pub(crate) fn exceptions(&self) -> Option<usize> {
        self.short.map(|sizes| sizes.exceptions)
    }

    /// Whether its units are short, and their lines lie in three pages.
    pub(crate) fn lies_by_pages(&self) -> bool {
        self.short.is_some_and(|sizes| sizes.order == Order::Pages)
    }

    /// Its short units.
    pub(super) fn short(&self) -> Option<Short<'_>> {
        self.short.map(|sizes| Short::of(sizes, self.data.as_slice()))
    }

    /// As it lies in memory.
    pub(crate) fn data(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// N: how many outputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// K: how many inputs.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// How much memory it takes.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Whether it has the layout that this instruction set's kernel reads.
    pub fn suits(&self, isa: Isa) -> bool {
        self.layout == Layout::of::<E>(isa)
    }

    /// How many steps along K, with those that only fill up a tile.
    pub(super) fn units(&self) -> usize {
        self.layout.units::<E>(self.depth)
    }

    /// How many columns a panel has.
    pub(super) fn panel_columns(&self) -> usize {
        self.layout.columns()
    }

    pub(super) fn panels(&self) -> usize {
        self.columns.div_ceil(self.layout.columns())
    }

    /// Where a column's weights at this step along K lie.
    pub(super) fn place(&self, column: usize, unit: usize) -> Place {
        let lane = column % LANES;
        match self.layout {
            Layout::Units { vectors } => {
                let at = column / LANES;
                Place { stretch: at / vectors, vector: unit * vectors + at % vectors, lane }
            }
            Layout::Tiles => {
                let (step, row, side) = (unit / TILED_UNITS, unit % TILED_UNITS, column / LANES % 2);
                Place { stretch: column / (2 * LANES), vector: (2 * step + side) * TILED_UNITS + row, lane }
            }
        }
    }

    /// The step along K of which a vector holds weights.
    pub(super) fn unit_of(&self, vector: usize) -> usize {
        match self.layout {
            Layout::Units { vectors } => vector / vectors,
            Layout::Tiles => vector / (2 * TILED_UNITS) * TILED_UNITS + vector % TILED_UNITS,
        }
    }

    /// The vectors of a stretch whose units are not short.
    pub(super) fn stretch(&self, stretch: usize) -> &[[E::Unit; LANES]] {
        let size = self.units() * self.layout.vectors();
        &self.data.as_slice()[stretch * size..(stretch + 1) * size]
    }

    /// One panel of units that are not short, as vectors: `[unit][vector]`.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> &[[E::Unit; LANES]] {
        let size = self.units() * self.layout.columns() / LANES;
        &self.data.as_slice()[panel * size..(panel + 1) * size]
    }
}

/// How wide a class wants its panels.
pub(super) struct Width;

impl Kernel for Width {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::WIDTH
    }
}

/// Writes rows of a matrix as columns of a panel.
struct Fill<'a, E: Element> {
    to: &'a mut [E::Unit],
    from: &'a Matrix<'a>,
    columns: Range<usize>,
    layout: Layout,
}

impl<E: Element> Kernel for Fill<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let from = self.from.read::<E>(self.columns);
        let to: &mut [Lanes<u32>] = bytemuck::cast_slice_mut(self.to);
        let apart = size_of::<E>() * self.from.depth();
        let size = self.layout.units::<E>(self.from.depth()) * self.layout.vectors();
        let mut rows = bytemuck::cast_slice(&from).chunks(self.layout.vectors() * LANES * apart);
        for to in to.chunks_mut(size) {
            let bytes = rows.next().unwrap_or_default();
            turn_words(simd, bytes, apart, self.layout, 0, true, to);
        }
    }
}

/// Writes words of a stretch's columns, from that word along K on, as many as there is room for.
#[inline(always)]
fn turn_words<S: Simd>(
    simd: S,
    rows: &[u8],
    apart: usize,
    layout: Layout,
    first: usize,
    asks: bool,
    to: &mut [Lanes<u32>],
) {
    const WORD: usize = size_of::<u32>();
    let end = WORD * (first + to.len() / layout.vectors());
    let is_whole = rows.len() == layout.vectors() * LANES * apart && end <= apart;
    if !is_whole {
        to.fill(Lanes::default()); // columns that are missing, and what fills up the last tiles
    }
    for (vector, bytes) in rows.chunks(LANES * apart).enumerate() {
        let rows = Rows { bytes, apart, from: WORD * first, to: apart.min(end), asks };
        turn(simd, rows, to, layout.places(vector));
    }
}

/// A matrix of bfloat16 by stretches, for one thread that shortens its units.
struct Stretches<'a> {
    from: &'a Matrix<'a>,
    layout: Layout,
    /// The rows of the stretch that is read.
    rows: Cow<'a, [Bf16]>,
    coming: Coming<'a>,
    /// For how many more of these rows' bytes as many are asked for, so that who reads them again asks for no more. None, where they were
    /// read all at once to be converted.
    left: usize,
}

impl<'a> Stretches<'a> {
    fn new(from: &'a Matrix<'a>, layout: Layout, stretches: Range<usize>) -> Self {
        let coming = Coming::new(from, stretches, layout.vectors() * LANES);
        Self { from, layout, rows: Cow::default(), coming, left: 0 }
    }
}

impl short::ReadUnits for Stretches<'_> {
    #[inline(always)]
    fn open(&mut self, stretch: usize) {
        let columns = self.layout.vectors() * LANES;
        let all = self.from.rows();
        self.coming.skip_to(stretch); // panels before may have been read by other ways
        self.rows = self.from.read(all.min(stretch * columns)..all.min((stretch + 1) * columns));
        self.left = if matches!(self.rows, Cow::Borrowed(_)) { size_of_val(&*self.rows) } else { 0 };
    }

    #[inline(always)]
    fn read<S: Simd>(&mut self, simd: S, first: usize, to: &mut [Unit]) {
        let apart = size_of::<Bf16>() * self.from.depth();
        let first = first * short::VECTORS / self.layout.vectors();
        let rows = bytemuck::cast_slice(&self.rows);
        turn_words(simd, rows, apart, self.layout, first, false, to.as_flattened_mut());
    }

    fn rows(&self, stretch: usize) -> Option<&[u8]> {
        const COLUMNS: usize = short::VECTORS * LANES;
        let is_plain = self.layout == Layout::Units { vectors: short::VECTORS }
            && (self.from.depth() * size_of::<Bf16>()).is_multiple_of(size_of::<Line>())
            && (stretch + 1) * COLUMNS <= self.from.rows();
        let rows = || self.from.borrow::<Bf16>(stretch * COLUMNS..(stretch + 1) * COLUMNS);
        is_plain.then(rows).flatten().map(bytemuck::cast_slice)
    }

    #[inline(always)]
    fn ask<S: Simd>(&mut self, simd: S) {
        let bytes = self.left.min(size_of::<Unit>());
        self.left -= bytes;
        self.coming.ask(simd, bytes);
    }
}

#[cfg(test)]
mod tests;

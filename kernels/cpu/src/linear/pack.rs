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

use std::marker::PhantomData;

use super::source::Matrix;
use crate::element::{Element, Format};
use crate::memory::Buffer;
use crate::simd::{Kernel, LANES, Simd};
use crate::split::{Shared, part};
use crate::{Cpu, Isa};

/// A weight matrix `[N, K]` in the layout of one class of instruction sets.
pub struct PackedWeight<E> {
    columns: usize,
    depth: usize,
    layout: Layout,
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
        let (columns, depth) = (weight.rows(), weight.depth());
        assert!(columns > 0);
        let layout = Layout::of::<E>(cpu.isa);
        let (units, panel_columns) = (layout.units::<E>(depth), layout.columns());
        let panels = columns.div_ceil(panel_columns);
        let mut data = Buffer::zeroed(panels * units * panel_columns * size_of::<E::Unit>());

        let parts = cpu.parts(panels, columns * depth);
        let target = Shared::new(data.as_mut_slice::<E::Unit>());
        cpu.pool.run(parts, |thread| {
            for panel in part(panels, parts, thread) {
                let size = units * panel_columns;
                // SAFETY: panels do not overlap, and each belongs to one part.
                let to = unsafe { target.piece(panel * size..(panel + 1) * size) };
                let first = panel * panel_columns;
                let last = columns.min(first + panel_columns);
                let from = &weight.read(first..last);
                match layout {
                    Layout::Units { .. } => pack_panel::<E>(to, from, depth, panel_columns),
                    Layout::Tiles => pack_tiles::<E>(to, from, depth),
                }
            }
        });
        Self { columns, depth, layout, data, element: PhantomData }
    }

    /// Takes the bytes of a weight that was packed for the same instruction set; none: they are not of these sizes.
    pub(crate) fn restored(isa: Isa, columns: usize, depth: usize, data: Buffer) -> Option<Self> {
        if columns == 0 || columns.max(depth) > u32::MAX as usize {
            return None;
        }
        let layout = Layout::of::<E>(isa);
        let units = columns.div_ceil(layout.columns()).checked_mul(layout.units::<E>(depth))?;
        let bytes = units.checked_mul(layout.columns() * size_of::<E::Unit>())?;
        (data.len() == bytes).then_some(Self { columns, depth, layout, data, element: PhantomData })
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

    /// Itself, if it lies in tiles.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn in_tiles(&self) -> Option<&PackedWeight<crate::Bf16>> {
        let any: &dyn std::any::Any = self;
        any.downcast_ref().filter(|weight: &&PackedWeight<_>| weight.layout == Layout::Tiles)
    }

    /// How many steps along K, with those that only fill up a tile.
    pub(super) fn units(&self) -> usize {
        self.layout.units::<E>(self.depth)
    }

    pub(super) fn panels(&self) -> usize {
        self.columns.div_ceil(self.layout.columns())
    }

    /// One panel, as vectors: `[unit][vector]`.
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

/// `from`: the panel's columns, each `depth` long.
fn pack_panel<E: Element>(to: &mut [E::Unit], from: &[E], depth: usize, panel_columns: usize) {
    // 32 units × 64 columns × 4 bytes = 8 KiB are written column by column before the next: they stay in the first-level cache.
    const UNITS: usize = 32;
    let (span, piece) = (UNITS * E::PACK, UNITS * panel_columns);
    for (to, start) in to.chunks_mut(piece).zip((0..depth).step_by(span)) {
        for (column, row) in from.chunks_exact(depth).enumerate() {
            let row = &row[start..depth.min(start + span)];
            for (unit, weights) in row.chunks(E::PACK).enumerate() {
                to[unit * panel_columns + column] = E::unit(weights);
            }
        }
    }
}

/// The same in tiles: each is written whole before the next.
fn pack_tiles<E: Element>(to: &mut [E::Unit], from: &[E], depth: usize) {
    let span = TILED_UNITS * E::PACK;
    let steps = depth.div_ceil(span);
    for (tile, columns) in from.chunks(LANES * depth).enumerate() {
        let (half, side) = (tile / 2, tile % 2);
        for step in 0..steps {
            let at = ((half * steps + step) * 2 + side) * TILED_UNITS * LANES;
            for (column, row) in columns.chunks_exact(depth).enumerate() {
                let row = &row[step * span..depth.min((step + 1) * span)];
                for (unit, weights) in row.chunks(E::PACK).enumerate() {
                    to[at + unit * LANES + column] = E::unit(weights);
                }
            }
        }
    }
}

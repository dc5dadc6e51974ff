//! Weights as the linear kernel walks them.
//!
//! ```text
//! panel 0                                 panel 1 …            a panel: 64 columns (16 where registers are few)
//! [unit 0][unit 1] … [unit U-1]                                U = K (float32), K/2 rounded up (bfloat16)
//!  └ [column 0][column 1] … [column 63]                        a column: one float32, or the pair k, k+1 of bfloat16
//! ```
//! Columns and the last pair are filled up with zeros. One thread walks neighbouring panels: one linear stream.

use std::marker::PhantomData;

use super::source::Matrix;
use crate::element::Element;
use crate::memory::Buffer;
use crate::simd::{Kernel, LANES, Simd};
use crate::split::{Shared, part};
use crate::{Cpu, Isa};

/// A weight matrix `[N, K]` in the layout of one class of instruction sets.
pub struct PackedWeight<E> {
    columns: usize,
    depth: usize,
    panel_vectors: usize,
    data: Buffer,
    element: PhantomData<E>,
}

impl<E: Element> PackedWeight<E> {
    /// Packs a matrix for the instruction set of `cpu`, with all its threads; values of another format are rounded to `E`.
    pub fn pack(cpu: &mut Cpu, weight: &Matrix<'_>) -> Self {
        let (columns, depth) = (weight.rows(), weight.depth());
        assert!(columns > 0);
        let units = depth.div_ceil(E::PACK);
        let panel_vectors = cpu.isa.run(Width);
        let panel_columns = panel_vectors * LANES;
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
                pack_panel::<E>(to, &weight.read(first..last), depth, panel_columns);
            }
        });
        Self { columns, depth, panel_vectors, data, element: PhantomData }
    }

    /// Takes the bytes of a weight that was packed for the same instruction set; none: they are not of these sizes.
    pub(crate) fn restored(isa: Isa, columns: usize, depth: usize, data: Buffer) -> Option<Self> {
        let panel_vectors = isa.run(Width);
        let panel_columns = panel_vectors * LANES;
        let units = columns.div_ceil(panel_columns).checked_mul(depth.div_ceil(E::PACK))?;
        let bytes = units.checked_mul(panel_columns * size_of::<E::Unit>())?;
        (columns > 0 && data.len() == bytes).then_some(Self {
            columns,
            depth,
            panel_vectors,
            data,
            element: PhantomData,
        })
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
        self.panel_vectors == isa.run(Width)
    }

    /// How many steps along K.
    pub(super) fn units(&self) -> usize {
        self.depth.div_ceil(E::PACK)
    }

    pub(super) fn panels(&self) -> usize {
        self.columns.div_ceil(self.panel_vectors * LANES)
    }

    /// One panel, as vectors: `[unit][vector]`.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> &[[E::Unit; LANES]] {
        let size = self.units() * self.panel_vectors;
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

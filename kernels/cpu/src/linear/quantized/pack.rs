//! Quantised weights as the kernel walks them, made of floats or of a checkpoint's codes.
//!
//! ```text
//! panel 0                                    panel 1 …         a panel: 64 columns (16 where registers are few)
//! [segment 0][segment 1] …                                     C = 4 vectors of 16 columns (1)
//!  └ [scales: C vectors of float32][zero points: C vectors of int32, if there are any][words: C vectors each]
//!                                                              a word: 4 codes of 8 bits k … k+3, or 8 of 4 bits:
//!                                                              byte j has k+j below and k+4+j above
//! ```
//! One thread walks neighbouring panels: scales and codes are one linear stream. Columns and the last segment are filled up.
//! Words of 8 bits are tiles too (AMX): 16 of them × one vector, 4 vectors from row to row. A tile at the end of a segment may
//! reach into what follows, where it meets activations of 0; so the last panel is followed by as much memory.

use std::ops::Range;

use super::panel::{Panel, Put};
use super::round::{Quantize, Room};
use super::scheme::{Activations, Bits, Scheme};
use crate::error::Refusal;
use crate::linear::pack::Width;
use crate::linear::source::Matrix;
use crate::memory::Buffer;
use crate::simd::{LANES, Lanes, Line};
use crate::split::{Shared, part};
use crate::{Cpu, Isa};

/// The longest segment: 128 KiB of a 64-column panel of 8 bits.
const SEGMENT_MAX: usize = 2048;
/// Bytes behind the last panel: a tile of 16 words × 4 vectors.
const TAIL: usize = 16 * 4 * LANES * size_of::<u32>();

/// A quantised weight as a checkpoint brings it.
pub struct Codes<'a> {
    /// `[columns, depth]`, each 0 to 255 (8 bits) or 0 to 15.
    pub codes: &'a [u8],
    /// `[columns, groups]`.
    pub scales: &'a [f32],
    /// `[columns, groups]`; none: the middle code is 0.
    pub zeros: Option<&'a [u8]>,
    /// `[depth]`: which activation each code along K meets; none: they stand in order.
    pub order: Option<&'a [i32]>,
    /// K.
    pub depth: usize,
}

/// A weight matrix `[N, K]` in the layout of one class of instruction sets.
pub struct QuantizedWeight {
    scheme: Scheme,
    columns: usize,
    depth: usize,
    layout: Layout,
    order: Option<Vec<u32>>,
    data: Buffer,
}

/// How a panel is cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Along K.
    pub segments: usize,
    /// Four codes each, in a segment.
    pub quads: usize,
    /// Words of each column in a segment.
    pub words: usize,
    /// Vectors per 16 columns that stand before a segment's words: scales, zero points.
    pub header: usize,
    /// How many vectors wide a panel is.
    pub width: usize,
}

impl Layout {
    fn new(scheme: Scheme, depth: usize, has_zeros: bool, width: usize) -> Self {
        let segment = match scheme.group {
            Some(group) => group,
            None => depth.div_ceil(depth.div_ceil(SEGMENT_MAX)).next_multiple_of(8),
        };
        let quads = segment / 4;
        let words = match scheme.bits {
            Bits::Four => quads / 2,
            Bits::Eight => quads,
        };
        Self { segments: depth.div_ceil(segment), quads, words, header: 1 + usize::from(has_zeros), width }
    }

    /// Vectors of one segment of one panel.
    pub(super) fn segment_vectors(self) -> usize {
        (self.header + self.words) * self.width
    }

    /// K, filled up.
    pub(super) fn padded_depth(self) -> usize {
        self.segments * self.quads * 4
    }
}

impl QuantizedWeight {
    /// Rounds floats to the nearest codes, a panel at a time, with all threads of `cpu`.
    pub fn quantize(cpu: &mut Cpu, weight: &Matrix<'_>, scheme: Scheme) -> Self {
        let (columns, depth) = (weight.rows(), weight.depth());
        let isa = cpu.isa;
        Self::fill(cpu, scheme, columns, depth, None, false, |columns, panel, room| {
            isa.run(Quantize { weight, columns, scheme, panel, room });
        })
    }

    /// Takes codes as they are.
    pub fn from_codes(cpu: &mut Cpu, from: &Codes<'_>, scheme: Scheme) -> Result<Self, Refusal> {
        let depth = from.depth;
        let columns = from.codes.len() / depth;
        let groups = depth.div_ceil(scheme.group.unwrap_or(depth));
        assert!(from.codes.len() == columns * depth && from.scales.len() == columns * groups);
        assert!(from.zeros.is_none_or(|zeros| zeros.len() == columns * groups));
        if let Some(order) = from.order {
            assert_eq!(order.len(), depth);
            crate::error::check_indices("order", order, depth)?;
        }
        let order = from.order.map(|order| order.iter().map(|&at| at as u32).collect());
        let isa = cpu.isa;
        let packed = Self::fill(cpu, scheme, columns, depth, order, from.zeros.is_some(), |columns, panel, _| {
            let of_groups = columns.start * groups..columns.end * groups;
            let zeros = from.zeros.map(|zeros| &zeros[of_groups.clone()]);
            let codes = &from.codes[columns.start * depth..columns.end * depth];
            isa.run(Put { panel, codes, scales: &from.scales[of_groups], zeros });
        });
        Ok(packed)
    }

    fn fill(
        cpu: &mut Cpu,
        scheme: Scheme,
        columns: usize,
        depth: usize,
        order: Option<Vec<u32>>,
        has_zeros: bool,
        fill_panel: impl Fn(Range<usize>, Panel<'_>, &mut Room) + Sync,
    ) -> Self {
        assert!(columns > 0 && depth > 0);
        assert!(scheme.group.is_none_or(|group| group.is_multiple_of(8) && (1..=SEGMENT_MAX).contains(&group)));
        let layout = Layout::new(scheme, depth, has_zeros, cpu.isa.run(Width));
        let panel_columns = layout.width * LANES;
        let panels = columns.div_ceil(panel_columns);
        let panel_lines = layout.segments * layout.segment_vectors();
        let mut data = Buffer::for_weights(panels * panel_lines * size_of::<Line>() + TAIL);
        let parts = cpu.parts(panels, columns * depth);
        let target = Shared::new(&mut data.as_mut_slice::<Line>()[..panels * panel_lines]);
        cpu.pool.run(parts, |thread| {
            let mut room = Room::default();
            for panel in part(panels, parts, thread) {
                // SAFETY: panels do not overlap, and each belongs to one part.
                let lines = unsafe { target.piece(panel * panel_lines..(panel + 1) * panel_lines) };
                let first = panel * panel_columns;
                let panel = Panel { lines, layout, bits: scheme.bits, depth, is_grouped: scheme.group.is_some() };
                fill_panel(first..columns.min(first + panel_columns), panel, &mut room);
            }
        });
        Self { scheme, columns, depth, layout, order, data }
    }

    /// Takes the bytes of a weight that was packed for the same instruction set; none: they are not of these sizes.
    pub(crate) fn restored(
        isa: Isa,
        scheme: Scheme,
        [columns, depth]: [usize; 2],
        has_zeros: bool,
        order: Option<Vec<u32>>,
        data: Buffer,
    ) -> Option<Self> {
        let is_group = scheme.group.is_none_or(|group| group.is_multiple_of(8) && (1..=SEGMENT_MAX).contains(&group));
        if columns == 0 || depth == 0 || depth > u32::MAX as usize || !is_group {
            return None;
        }
        let layout = Layout::new(scheme, depth, has_zeros, isa.run(Width));
        let vectors = columns.div_ceil(layout.width * LANES).checked_mul(layout.segments * layout.segment_vectors())?;
        let is_order =
            order.as_ref().is_none_or(|order| order.len() == depth && order.iter().all(|&at| (at as usize) < depth));
        let fits = is_order
            && Some(data.len())
                == vectors.checked_mul(LANES * size_of::<u32>()).and_then(|bytes| bytes.checked_add(TAIL));
        fits.then_some(Self { scheme, columns, depth, layout, order, data })
    }

    /// As it lies in memory, but for the order.
    pub(crate) fn data(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// Whether codes have zero points.
    pub(crate) fn has_zeros(&self) -> bool {
        self.layout.header == 2
    }

    /// How it is held and multiplied.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// N: how many outputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// K: how many inputs.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// How much memory it takes, but for the few bytes that follow it.
    pub fn bytes(&self) -> usize {
        self.data.len() - TAIL + self.order.as_ref().map_or(0, |order| size_of_val(&order[..]))
    }

    /// Whether it has the layout that this instruction set's kernel reads.
    pub fn suits(&self, isa: Isa) -> bool {
        self.layout.width == isa.run(Width)
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn order(&self) -> Option<&[u32]> {
        self.order.as_deref()
    }

    pub(super) fn panels(&self) -> usize {
        self.columns.div_ceil(self.layout.width * LANES)
    }

    /// One panel, as vectors.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> &[Lanes<u32>] {
        let size = self.layout.segments * self.layout.segment_vectors();
        &self.data.as_slice()[panel * size..(panel + 1) * size]
    }

    /// All vectors from the first of this segment of this panel to the end of the weight and what follows it.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn segment(&self, panel: usize, segment: usize) -> &[Lanes<u32>] {
        let size = self.layout.segment_vectors();
        &self.data.as_slice()[(panel * self.layout.segments + segment) * size..]
    }

    /// Whether a row's activations have one scale, not one for each segment.
    pub(super) fn has_whole_rows(&self) -> bool {
        self.scheme.group.is_none() && self.scheme.activations == Activations::Int8
    }
}

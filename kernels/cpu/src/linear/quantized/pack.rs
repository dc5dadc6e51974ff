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

use super::scheme::{Activations, Bits, Scheme};
use crate::error::Refusal;
use crate::linear::pack::Width;
use crate::linear::source::Matrix;
use crate::linear::turn::{Places, Rows, turn};
use crate::memory::Buffer;
use crate::simd::{Kernel, LANES, Lanes, Simd};
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
        Self::fill(cpu, scheme, columns, depth, None, false, |columns, panel| {
            isa.run(Quantize { weight, columns, scheme, panel });
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
        let packed = Self::fill(cpu, scheme, columns, depth, order, from.zeros.is_some(), |columns, panel| {
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
        fill_panel: impl Fn(Range<usize>, Panel<'_>) + Sync,
    ) -> Self {
        assert!(columns > 0 && depth > 0);
        assert!(scheme.group.is_none_or(|group| group.is_multiple_of(8) && (1..=SEGMENT_MAX).contains(&group)));
        let layout = Layout::new(scheme, depth, has_zeros, cpu.isa.run(Width));
        let panel_columns = layout.width * LANES;
        let panels = columns.div_ceil(panel_columns);
        let panel_words = layout.segments * layout.segment_vectors() * LANES;
        let mut data = Buffer::for_weights(panels * panel_words * size_of::<u32>() + TAIL);
        let parts = cpu.parts(panels, columns * depth);
        let target = Shared::new(&mut data.as_mut_slice::<u32>()[..panels * panel_words]);
        cpu.pool.run(parts, |thread| {
            for panel in part(panels, parts, thread) {
                // SAFETY: panels do not overlap, and each belongs to one part.
                let words = unsafe { target.piece(panel * panel_words..(panel + 1) * panel_words) };
                let first = panel * panel_columns;
                let panel = Panel { words, layout, bits: scheme.bits, depth, is_grouped: scheme.group.is_some() };
                fill_panel(first..columns.min(first + panel_columns), panel);
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

/// A panel that is being filled.
struct Panel<'a> {
    words: &'a mut [u32],
    layout: Layout,
    bits: Bits,
    depth: usize,
    is_grouped: bool,
}

impl Panel<'_> {
    /// Up to 16 columns, which are one of its vectors wide. `codes`: `[columns, depth]`; `scales` and `zeros`: of each group, or of the
    /// whole column.
    #[inline(always)]
    fn put<S: Simd>(&mut self, simd: S, vector: usize, codes: &[u8], scales: &[f32], zeros: Option<&[u8]>) {
        let Layout { segments, quads, words, header, width } = self.layout;
        let groups = if self.is_grouped { segments } else { 1 };
        let mut joined = Vec::new();
        let (bytes, apart, segment_bytes) = match self.bits {
            Bits::Eight => (codes, self.depth, 4 * quads),
            Bits::Four => (join(codes, self.depth, &mut joined), 4 * self.depth.div_ceil(8), 4 * words),
        };
        let to: &mut [Lanes<u32>] = bytemuck::cast_slice_mut(self.words);
        for segment in 0..segments {
            let first = segment * self.layout.segment_vectors() + vector;
            let group = segment.min(groups - 1);
            for (to, scales) in to[first].iter_mut().zip(scales.chunks_exact(groups)) {
                *to = scales[group].to_bits();
            }
            if let Some(zeros) = zeros {
                for (to, zeros) in to[first + width].iter_mut().zip(zeros.chunks_exact(groups)) {
                    *to = u32::from(zeros[group]);
                }
            }
            let (from, end) = (segment * segment_bytes, apart.min((segment + 1) * segment_bytes));
            let places = Places { first: first + header * width, word: width, block: LANES * width };
            turn(simd, Rows { bytes, apart, from, to: end, asks: false }, to, places);
        }
    }
}

/// Codes of 4 bits, eight to a word: byte j has k+j below and k+4+j above. Each column begins with a word of its own.
#[inline(always)]
fn join<'a>(codes: &[u8], depth: usize, joined: &'a mut Vec<u32>) -> &'a [u8] {
    let each = depth.div_ceil(8);
    joined.resize(codes.len() / depth * each, 0);
    for (codes, joined) in codes.chunks_exact(depth).zip(joined.chunks_exact_mut(each)) {
        let (whole, rest) = codes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        joined[each - 1] = join_eight(last);
        for (joined, &codes) in joined.iter_mut().zip(whole) {
            *joined = join_eight(codes);
        }
    }
    bytemuck::cast_slice(joined)
}

#[inline(always)]
fn join_eight(codes: [u8; 8]) -> u32 {
    let codes = u64::from_le_bytes(codes);
    (codes | codes >> 32 << 4) as u32
}

/// Fills a panel with a checkpoint's codes.
struct Put<'a> {
    panel: Panel<'a>,
    codes: &'a [u8],
    scales: &'a [f32],
    zeros: Option<&'a [u8]>,
}

impl Kernel for Put<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { mut panel, codes, scales, zeros } = self;
        let groups = scales.len() * panel.depth / codes.len();
        for (vector, codes) in codes.chunks(LANES * panel.depth).enumerate() {
            let columns = vector * LANES..vector * LANES + codes.len() / panel.depth;
            let of_groups = columns.start * groups..columns.end * groups;
            let zeros = zeros.map(|zeros| &zeros[of_groups.clone()]);
            panel.put(simd, vector, codes, &scales[of_groups], zeros);
        }
    }
}

/// Fills a panel with floats, rounded.
struct Quantize<'a> {
    weight: &'a Matrix<'a>,
    columns: Range<usize>,
    scheme: Scheme,
    panel: Panel<'a>,
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { weight, columns, scheme, mut panel } = self;
        let depth = weight.depth();
        let group = scheme.group.unwrap_or(depth);
        let mut codes = vec![0; LANES * depth];
        let mut scales = Vec::with_capacity(LANES * depth.div_ceil(group));
        for (vector, first) in columns.clone().step_by(LANES).enumerate() {
            let columns = first..columns.end.min(first + LANES);
            let codes = &mut codes[..columns.len() * depth];
            scales.clear();
            for (column, codes) in columns.zip(codes.chunks_exact_mut(depth)) {
                weight.ask(simd, column + 1);
                let floats = weight.read::<f32>(column..column + 1);
                for (floats, codes) in floats.chunks(group).zip(codes.chunks_mut(group)) {
                    scales.push(round_to_codes(scheme.bits, floats, codes));
                }
            }
            panel.put(simd, vector, codes, &scales, None);
        }
    }
}

/// The nearest codes, and their scale.
///
/// 8 bits: the largest magnitude becomes ±127. 4 bits: the value of the largest magnitude becomes −8, whatever its sign, so
/// that all 16 codes are used; a value as large on the other side loses half a step to one step.
#[inline(always)]
fn round_to_codes(bits: Bits, floats: &[f32], codes: &mut [u8]) -> f32 {
    let mut largest = 0; // as bits: a NaN is larger than anything
    for float in floats {
        largest = (float.to_bits() & !SIGN).max(largest);
    }
    let (levels, range, largest) = match bits {
        Bits::Eight => (127.0, -127..=127, f32::from_bits(largest)),
        Bits::Four => (-8.0, -8..=7, first_so_large(floats, largest)),
    };
    let (scale, inverse) = step(largest, levels);
    for (code, &float) in codes.iter_mut().zip(floats) {
        *code = (nearest(float * inverse).clamp(*range.start(), *range.end()) + bits.zero()) as u8;
    }
    scale
}

/// The first of the floats that have this magnitude.
#[inline(always)]
fn first_so_large(floats: &[f32], magnitude: u32) -> f32 {
    let (mut is_positive, mut is_negative) = (false, false);
    for float in floats {
        is_positive |= float.to_bits() == magnitude;
        is_negative |= float.to_bits() == magnitude | SIGN;
    }
    match (is_positive, is_negative) {
        (true, true) => floats.iter().find(|float| float.to_bits() & !SIGN == magnitude).copied().unwrap_or_default(),
        _ => f32::from_bits(magnitude | if is_negative { SIGN } else { 0 }),
    }
}

pub(super) const SIGN: u32 = 1 << 31;

/// The scale at which `largest` becomes `levels`, and its inverse. Values too small to be told from 0 become 0; with one
/// that is not finite among them, all become NaN.
pub(super) fn step(largest: f32, levels: f32) -> (f32, f32) {
    const SMALLEST: f32 = 1e-30; // the inverse is finite then
    if !largest.is_finite() {
        return (f32::NAN, 0.0);
    }
    if largest.abs() < SMALLEST {
        return (0.0, 0.0);
    }
    let scale = largest / levels;
    (scale, 1.0 / scale)
}

/// To the nearest integer, ties to even; |value| < 2^22. A NaN gives some number.
///
/// Adding 1.5 · 2^23 pushes the fraction out of the mantissa and leaves the integer in its lowest bits.
#[inline(always)]
pub(super) fn nearest(value: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    ((value + SHIFT).to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32)
}

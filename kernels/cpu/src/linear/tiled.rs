//! bfloat16 in tiles (AMX): `sum += (Σ of the first of 16 pairs) + (Σ of the second)`, 32 neighbours along K at a time.
//!
//! One row goes through the same tiles as thousands: a product takes as long for 1 row as for 16, but a step's 4 KiB of weights
//! take longer to read than its four products, so that memory stays the limit.
//!
//! 1. Weights lie in tiles ([`super::pack`]); the activations of a call are packed as `[row block][step][row]` of 64 bytes, so
//!    that no two rows of a tile compete for one place in the first-level cache.
//! 2. Blocks have up to 16 rows, of nearly equal size; the padding of the last is multiplied too, and not written.
//! 3. Two blocks at a time share 32 columns: four sums in registers, one load for each product. An odd block, and so every call
//!    of up to 16 rows, takes 64 columns by itself.
//! 4. K is walked in pieces whose weights stay near while all blocks of a group use them; sums wait in memory meanwhile.

use std::ops::Range;

use super::out::Out;
use super::pack::{TILED_COLUMNS, TILED_UNITS};
use super::{GROUP_ROWS, PackedWeight, Rows};
use crate::Cpu;
use crate::amx::{Amx, Bf16Pairs, Lie, SUM_COLUMNS, Sums, TILE_ROWS, TILE_WORDS, TileShape, Tiles};
use crate::element::Bf16;
use crate::simd::{Kernel, Simd};
use crate::split::{Shared, part};

/// Neighbours along K of one step.
const STEP: usize = 2 * TILE_WORDS;
/// Steps of a piece: 128 KiB of a half.
const PIECE: usize = 64;
/// Two tiles side by side.
const STEP_BYTES: usize = 2048;

const _: () = assert!(TILED_COLUMNS == SUM_COLUMNS && TILED_UNITS == TILE_WORDS);

/// One row of a block and one step.
type Words = [Bf16; STEP];

/// As `linear`, for a chunk of rows.
pub(super) fn multiply(
    cpu: &mut Cpu,
    amx: Amx,
    out: &Out<'_>,
    x: &[Bf16],
    weight: &PackedWeight<Bf16>,
    bias: Option<&[Bf16]>,
) {
    let (isa, depth) = (cpu.isa, weight.depth());
    let rows = Rows { rows: x.len() / depth, most: TILE_ROWS };
    if rows.rows == 0 {
        return;
    }
    let height = rows.block(0).len();
    let steps = weight.units() / TILE_WORDS;
    let groups = rows.blocks().div_ceil(GROUP_ROWS / TILE_ROWS);
    let units = weight.panels() * groups;
    let pack_parts = cpu.parts(rows.blocks(), x.len());
    // As in `linear`; up to 16 rows take no longer than reading the weights.
    let parts = cpu.parts(units, weight.columns() * depth * rows.blocks());

    let block_words = steps * height;
    let packed = cpu.scratch.scratch::<Words>(rows.blocks() * block_words);
    let target = Shared::new(packed);
    cpu.pool.run(pack_parts, |thread| {
        for block in part(rows.blocks(), pack_parts, thread) {
            let rows = rows.block(block);
            // SAFETY: blocks do not overlap, and each belongs to one part.
            let packed = unsafe { target.piece(block * block_words..(block + 1) * block_words) };
            pack(packed, &x[rows.start * depth..rows.end * depth], depth, height);
        }
    });

    let packed = &*packed;
    cpu.pool.run(parts, |thread| {
        let units = part(units, parts, thread);
        isa.run(Panels { amx, out, packed, weight, bias, rows, height, steps, groups, units });
    });
}

/// The rows of one block, as `[step][row]`. What pads the block keeps what was there: no row sees another.
fn pack(packed: &mut [Words], x: &[Bf16], depth: usize, height: usize) {
    for (row, x) in x.chunks_exact(depth).enumerate() {
        for (to, x) in packed[row..].iter_mut().step_by(height).zip(x.chunks(STEP)) {
            to[..x.len()].copy_from_slice(x);
            to[x.len()..].fill(Bf16::default());
        }
    }
}

/// Some of the units of work of one call: a unit is one panel and one group of blocks, as in `linear`.
struct Panels<'a> {
    amx: Amx,
    out: &'a Out<'a>,
    packed: &'a [Words],
    weight: &'a PackedWeight<Bf16>,
    bias: Option<&'a [Bf16]>,
    rows: Rows,
    /// Rows of a block with its padding.
    height: usize,
    steps: usize,
    groups: usize,
    units: Range<usize>,
}

impl Kernel for Panels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // SAFETY: the only one that this thread has: nothing below makes another.
        let tiles = unsafe { self.amx.tiles(TileShape { rows: self.height, words: TILE_WORDS }) };
        let most = self.rows.blocks().min(GROUP_ROWS / TILE_ROWS);
        let mut sums = vec![0.0_f32; most * self.height * SUM_COLUMNS];
        for unit in self.units.clone() {
            let (panel, group) = (unit / self.groups, unit % self.groups);
            let blocks = part(self.rows.blocks(), self.groups, group);
            let sums = &mut sums[..blocks.len() * self.height * SUM_COLUMNS];
            sums.fill(0.0);
            self.multiply(&tiles, panel, blocks.clone(), bytemuck::cast_slice_mut(sums));
            for (block, sums) in blocks.zip(sums.chunks_exact(self.height * SUM_COLUMNS)) {
                self.write(panel, self.rows.block(block), sums);
            }
        }
    }
}

impl Panels<'_> {
    /// The sums of one panel's columns for all rows of these blocks.
    #[inline(always)]
    fn multiply(&self, tiles: &Tiles, panel: usize, blocks: Range<usize>, sums: &mut [u32]) {
        let weights: &[u8] = bytemuck::cast_slice(self.weight.panel(panel));
        let half = self.steps * STEP_BYTES;
        let (block_sums, lie) = (self.height * SUM_COLUMNS, Lie::by_steps(self.height));
        for from in (0..self.steps).step_by(PIECE) {
            let count = PIECE.min(self.steps - from);
            let x = |block: usize| -> &[u8] {
                let start = (block * self.steps + from) * self.height;
                bytemuck::cast_slice(&self.packed[start..start + count * self.height])
            };
            let weights = &weights[from * STEP_BYTES..];
            let pairs = blocks.len() / 2;
            for side in 0..2 {
                for pair in 0..pairs {
                    let block = blocks.start + 2 * pair;
                    let sums = &mut sums[2 * pair * block_sums + side * SUM_COLUMNS / 2..];
                    let x = [x(block), x(block + 1)];
                    tiles.two_by_two::<Bf16Pairs>(Sums::added(sums), x, lie, &weights[side * half..], count);
                }
            }
            if blocks.len() % 2 == 1 {
                let sums = &mut sums[2 * pairs * block_sums..];
                tiles.one_by_four::<Bf16Pairs>(Sums::added(sums), x(blocks.end - 1), lie, weights, half, count);
            }
        }
    }

    /// Adds the bias, rounds, and leaves out the rows and columns that are padding.
    #[inline(always)]
    fn write(&self, panel: usize, rows: Range<usize>, sums: &[f32]) {
        let columns = self.weight.columns();
        let from = panel * SUM_COLUMNS;
        let to = columns.min(from + SUM_COLUMNS);
        let bias = self.bias.map(|bias| &bias[from..to]);
        for (row, sums) in rows.zip(sums.chunks_exact(SUM_COLUMNS)) {
            // SAFETY: this panel's columns of these rows belong to this unit of work alone.
            unsafe { self.out.write(row * columns + from, &sums[..to - from], bias) };
        }
    }
}

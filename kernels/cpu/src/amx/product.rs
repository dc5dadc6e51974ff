//! The loops over tiles, in assembly. [`Tiles`] checks lengths before it calls them.

use std::arch::asm;

#[cfg(doc)]
use super::Tiles;
use super::{Lie, ROW, TILE_ROWS};

/// Where a product's sums lie: of each block of rows, in bytes from row to row, and whether they begin at zero.
#[repr(C)]
pub(crate) struct Target<const BLOCKS: usize> {
    pub(super) blocks: [*mut u32; BLOCKS],
    pub(super) row: usize,
    pub(super) are_fresh: usize,
}

/// Weights that are asked for beside the products, into the second-level cache: `lines` of each of four pages in each step, then of the
/// next four. Those of one half of the columns: four pages side by side; of both: two of each, or where both halves lie together, and
/// `at` is two pages apart, four again.
///
/// Of one page after the other memory gives little at a time, whoever asks.
#[derive(Clone, Copy)]
pub(crate) struct Ahead<const HALVES: usize> {
    /// Any addresses will do: nothing is read.
    pub(crate) at: [*const u8; HALVES],
    pub(crate) lines: usize,
}

impl<const HALVES: usize> Ahead<HALVES> {
    /// Nothing is asked for.
    pub(crate) const NOTHING: Self = Self { at: [std::ptr::null(); HALVES], lines: 0 };
}

/// What the products differ in.
pub(crate) trait Product {
    /// Bytes from a row of a weight's tile to the next.
    const WEIGHT_ROW: usize;
    /// Bytes from a tile of 16 columns to the one beside it.
    const WEIGHT_TILE: usize;
    /// Bytes from a tile to the next along K.
    const WEIGHT_STEP: usize;

    /// One row of tiles times four columns of them: sums of 64 columns. See [`Tiles::one_by_four`].
    ///
    /// # Safety
    /// This thread is configured; all tiles lie in memory that may be read, and for sums, written.
    unsafe fn one_by_four(
        sums: Target<1>,
        x: *const u8,
        lie: Lie,
        weights: [*const u8; 2],
        ahead: Ahead<2>,
        steps: usize,
    );

    /// Two times two: sums of 32 columns, of two blocks of rows. See [`Tiles::two_by_two`].
    ///
    /// # Safety
    /// As above.
    unsafe fn two_by_two(
        sums: Target<2>,
        x: [*const u8; 2],
        lie: Lie,
        weights: *const u8,
        ahead: Ahead<1>,
        steps: usize,
    );

    /// Four blocks of rows times one tile: sums of 16 columns, that begin at zero. See [`Tiles::four_by_one`]. `sums_block`: bytes
    /// from the sums of a block to the next.
    ///
    /// # Safety
    /// As above.
    unsafe fn four_by_one(
        sums: *mut u32,
        sums_block: usize,
        x: [*const u8; 4],
        lie: Lie,
        weights: *const u8,
        steps: usize,
    );

    /// Four whole blocks of rows times a tile of few columns, whose rows have `row` bytes and lie one behind the other, as those of the sums
    /// do. See [`Tiles::four_by_few`].
    ///
    /// # Safety
    /// As above.
    unsafe fn four_by_few(sums: *mut u32, x: [*const u8; 4], lie: Lie, weights: *const u8, row: usize, steps: usize);

    /// One block of rows times one tile: sums of 16 columns, that begin at zero. See [`Tiles::one_by_one`].
    ///
    /// # Safety
    /// As above.
    unsafe fn one_by_one(sums: *mut u32, x: *const u8, lie: Lie, weights: *const u8, steps: usize);

    /// Four products of tiles of zeros, over and over.
    ///
    /// # Safety
    /// This thread is configured.
    unsafe fn in_registers(rounds: usize);
}

macro_rules! product {
    ($(#[$doc:meta])* $name:ident, $instruction:literal, row $row:literal, tile $tile:literal, step $step:literal, pages $pages:literal) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Product for $name {
            const WEIGHT_ROW: usize = $row;
            const WEIGHT_TILE: usize = $tile;
            const WEIGHT_STEP: usize = $step;

            #[inline(always)]
            unsafe fn one_by_four(
                sums: Target<1>,
                x: *const u8,
                lie: Lie,
                weights: [*const u8; 2],
                ahead: Ahead<2>,
                steps: usize,
            ) {
                // SAFETY: the caller vouches for configuration and memory; tiles are loaded before they are used.
                unsafe {
                    asm!(
                        // Fields of the target: there are not registers enough for all of them.
                        "mov {left}, [{target}]",
                        "mov {row}, [{target} + 8]",
                        "cmp qword ptr [{target} + 16], 0",
                        "je 3f",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "jmp 2f",
                        "3:",
                        "tileloadd tmm0, [{left} + {row}]",
                        "tileloadd tmm1, [{left} + {row} + 64]",
                        "tileloadd tmm2, [{left} + {row} + 128]",
                        "tileloadd tmm3, [{left} + {row} + 192]",
                        "2:",
                        "test {lines}, {lines}",
                        "jz 5f",
                        "mov {left}, {lines}",
                        "4:",
                        "prefetcht1 [{ahead}]",
                        "prefetcht1 [{ahead} + 4096]",
                        "prefetcht1 [{beside}]",
                        "prefetcht1 [{beside} + 4096]",
                        "add {beside}, 64",
                        "add {ahead}, 64",
                        "test {ahead}, 4095",
                        "jnz 6f",
                        concat!("add {beside}, 4096 * (", $pages, " - 1)"),
                        concat!("add {ahead}, 4096 * (", $pages, " - 1)"),
                        "6:",
                        "dec {left}",
                        "jnz 4b",
                        "5:",
                        "tileloadd tmm4, [{a} + {a_row}]",
                        "tileloadd tmm6, [{b0} + {b_row}]",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        concat!("tileloadd tmm7, [{b0} + {b_row} + ", $tile, "]"),
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        "tileloadd tmm6, [{b1} + {b_row}]",
                        concat!($instruction, " tmm2, tmm4, tmm6"),
                        concat!("tileloadd tmm7, [{b1} + {b_row} + ", $tile, "]"),
                        concat!($instruction, " tmm3, tmm4, tmm7"),
                        "add {a}, {a_step}",
                        concat!("add {b0}, ", $step),
                        concat!("add {b1}, ", $step),
                        "dec {steps}",
                        "jnz 2b",
                        "mov {left}, [{target}]",
                        "tilestored [{left} + {row}], tmm0",
                        "tilestored [{left} + {row} + 64], tmm1",
                        "tilestored [{left} + {row} + 128], tmm2",
                        "tilestored [{left} + {row} + 192], tmm3",
                        target = in(reg) &raw const sums,
                        row = out(reg) _,
                        ahead = inout(reg) ahead.at[0] => _,
                        beside = inout(reg) ahead.at[1] => _,
                        lines = in(reg) ahead.lines,
                        left = out(reg) _,
                        a = inout(reg) x => _,
                        a_row = in(reg) lie.row,
                        a_step = in(reg) lie.step,
                        b0 = inout(reg) weights[0] => _,
                        b1 = inout(reg) weights[1] => _,
                        b_row = in(reg) Self::WEIGHT_ROW,
                        steps = inout(reg) steps => _,
                        options(nostack),
                    );
                }
            }

            #[inline(always)]
            unsafe fn two_by_two(
                sums: Target<2>,
                x: [*const u8; 2],
                lie: Lie,
                weights: *const u8,
                ahead: Ahead<1>,
                steps: usize,
            ) {
                // SAFETY: as above.
                unsafe {
                    asm!(
                        two_blocks_in!(),
                        "2:",
                        "test {lines}, {lines}",
                        "jz 5f",
                        "mov {left}, {lines}",
                        "4:",
                        "prefetcht1 [{ahead}]",
                        "prefetcht1 [{ahead} + 4096]",
                        "prefetcht1 [{ahead} + 8192]",
                        "prefetcht1 [{ahead} + 12288]",
                        "add {ahead}, 64",
                        "test {ahead}, 4095",
                        "jnz 6f",
                        "add {ahead}, 12288",
                        "6:",
                        "dec {left}",
                        "jnz 4b",
                        "5:",
                        "tileloadd tmm4, [{a0} + {a_row}]",
                        "tileloadd tmm6, [{b} + {b_row}]",
                        concat!("tileloadd tmm7, [{b} + {b_row} + ", $tile, "]"),
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm5, [{a1} + {a_row}]",
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        concat!($instruction, " tmm2, tmm5, tmm6"),
                        concat!($instruction, " tmm3, tmm5, tmm7"),
                        "add {a0}, {a_step}",
                        "add {a1}, {a_step}",
                        concat!("add {b}, ", $step),
                        "dec {steps}",
                        "jnz 2b",
                        two_blocks_out!(),
                        target = in(reg) &raw const sums,
                        row = out(reg) _,
                        ahead = inout(reg) ahead.at[0] => _,
                        lines = in(reg) ahead.lines,
                        left = out(reg) _,
                        a0 = inout(reg) x[0] => _,
                        a1 = inout(reg) x[1] => _,
                        a_row = in(reg) lie.row,
                        a_step = in(reg) lie.step,
                        b = inout(reg) weights => _,
                        b_row = in(reg) Self::WEIGHT_ROW,
                        steps = inout(reg) steps => _,
                        options(nostack),
                    );
                }
            }

            #[inline(always)]
            unsafe fn four_by_one(
                sums: *mut u32,
                sums_block: usize,
                x: [*const u8; 4],
                lie: Lie,
                weights: *const u8,
                steps: usize,
            ) {
                // SAFETY: as above.
                unsafe {
                    asm!(
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "2:",
                        "tileloadd tmm6, [{b} + {b_row}]",
                        "tileloadd tmm4, [{a0} + {a_row}]",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm5, [{a1} + {a_row}]",
                        concat!($instruction, " tmm1, tmm5, tmm6"),
                        "tileloadd tmm4, [{a2} + {a_row}]",
                        concat!($instruction, " tmm2, tmm4, tmm6"),
                        "tileloadd tmm5, [{a3} + {a_row}]",
                        concat!($instruction, " tmm3, tmm5, tmm6"),
                        "add {a0}, {a_step}",
                        "add {a1}, {a_step}",
                        "add {a2}, {a_step}",
                        "add {a3}, {a_step}",
                        concat!("add {b}, ", $step),
                        "dec {steps}",
                        "jnz 2b",
                        "tilestored [{c} + {c_row}], tmm0",
                        "add {c}, {c_block}",
                        "tilestored [{c} + {c_row}], tmm1",
                        "add {c}, {c_block}",
                        "tilestored [{c} + {c_row}], tmm2",
                        "add {c}, {c_block}",
                        "tilestored [{c} + {c_row}], tmm3",
                        c = inout(reg) sums => _,
                        c_row = in(reg) ROW,
                        c_block = in(reg) sums_block,
                        a0 = inout(reg) x[0] => _,
                        a1 = inout(reg) x[1] => _,
                        a2 = inout(reg) x[2] => _,
                        a3 = inout(reg) x[3] => _,
                        a_row = in(reg) lie.row,
                        a_step = in(reg) lie.step,
                        b = inout(reg) weights => _,
                        b_row = in(reg) Self::WEIGHT_ROW,
                        steps = inout(reg) steps => _,
                        options(nostack),
                    );
                }
            }

            #[inline(always)]
            unsafe fn four_by_few(
                sums: *mut u32,
                x: [*const u8; 4],
                lie: Lie,
                weights: *const u8,
                row: usize,
                steps: usize,
            ) {
                // SAFETY: as above.
                unsafe {
                    asm!(
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "2:",
                        "tileloadd tmm6, [{b} + {row}]",
                        "tileloadd tmm4, [{a0} + {a_row}]",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm5, [{a1} + {a_row}]",
                        concat!($instruction, " tmm1, tmm5, tmm6"),
                        "tileloadd tmm4, [{a2} + {a_row}]",
                        concat!($instruction, " tmm2, tmm4, tmm6"),
                        "tileloadd tmm5, [{a3} + {a_row}]",
                        concat!($instruction, " tmm3, tmm5, tmm6"),
                        "add {a0}, {a_step}",
                        "add {a1}, {a_step}",
                        "add {a2}, {a_step}",
                        "add {a3}, {a_step}",
                        "add {b}, {tile}",
                        "dec {steps}",
                        "jnz 2b",
                        "tilestored [{c} + {row}], tmm0",
                        "add {c}, {tile}",
                        "tilestored [{c} + {row}], tmm1",
                        "add {c}, {tile}",
                        "tilestored [{c} + {row}], tmm2",
                        "add {c}, {tile}",
                        "tilestored [{c} + {row}], tmm3",
                        c = inout(reg) sums => _,
                        row = in(reg) row,
                        tile = in(reg) TILE_ROWS * row,
                        a0 = inout(reg) x[0] => _,
                        a1 = inout(reg) x[1] => _,
                        a2 = inout(reg) x[2] => _,
                        a3 = inout(reg) x[3] => _,
                        a_row = in(reg) lie.row,
                        a_step = in(reg) lie.step,
                        b = inout(reg) weights => _,
                        steps = inout(reg) steps => _,
                        options(nostack),
                    );
                }
            }

            #[inline(always)]
            unsafe fn one_by_one(sums: *mut u32, x: *const u8, lie: Lie, weights: *const u8, steps: usize) {
                // SAFETY: as above.
                unsafe {
                    asm!(
                        "tilezero tmm0",
                        "2:",
                        "tileloadd tmm4, [{a} + {a_row}]",
                        "tileloadd tmm6, [{b} + {b_row}]",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        "add {a}, {a_step}",
                        concat!("add {b}, ", $step),
                        "dec {steps}",
                        "jnz 2b",
                        "tilestored [{c} + {c_row}], tmm0",
                        c = in(reg) sums,
                        c_row = in(reg) ROW,
                        a = inout(reg) x => _,
                        a_row = in(reg) lie.row,
                        a_step = in(reg) lie.step,
                        b = inout(reg) weights => _,
                        b_row = in(reg) Self::WEIGHT_ROW,
                        steps = inout(reg) steps => _,
                        options(nostack),
                    );
                }
            }

            unsafe fn in_registers(rounds: usize) {
                // SAFETY: the caller vouches for the configuration; memory is not touched.
                unsafe {
                    asm!(
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "tilezero tmm4",
                        "tilezero tmm5",
                        "tilezero tmm6",
                        "tilezero tmm7",
                        "2:",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        concat!($instruction, " tmm2, tmm5, tmm6"),
                        concat!($instruction, " tmm3, tmm5, tmm7"),
                        "dec {rounds}",
                        "jnz 2b",
                        rounds = inout(reg) rounds => _,
                        options(nostack, nomem),
                    );
                }
            }
        }
    };
}

product! {
    /// Pairs of bfloat16 into float32. Weights: two tiles of 16 columns side by side, 2 KiB, one step after the other.
    Bf16Pairs, "tdpbf16ps", row 64, tile 1024, step 2048, pages 2
}

product! {
    /// The same. Weights: vectors of 16 columns, four to a row.
    Bf16WidePairs, "tdpbf16ps", row 256, tile 64, step 4096, pages 4
}

product! {
    /// Four signed activations with four unsigned codes into int32, exactly. Weights: vectors of 16 columns, four to a row.
    CodeQuads, "tdpbsud", row 256, tile 64, step 4096, pages 4
}

product! {
    /// The same, for [`Product::one_by_one`] alone. Weights: one tile of 16 columns, 1 KiB, one step after the other.
    CodeQuadTiles, "tdpbsud", row 64, tile 0, step 1024, pages 4
}

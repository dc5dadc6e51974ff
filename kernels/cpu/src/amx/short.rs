//! Products of bfloat16 by pairs beside which weights that come next are lengthened from 12 bits ([`crate::linear::short`]): a tile's
//! product keeps the processor's other units waiting for 16 cycles, and a unit of weights takes them some 10.
//!
//! ```text
//! zmm31 exponents   zmm30 bytes of words exchanged   zmm29 sign and mantissa   zmm16 to zmm24 one unit
//! ```

use std::arch::asm;

use super::{Lie, ROW, Sums, Target, Tiles};
use crate::linear::short::{Exponents, Order, PAGE, REST, Unit};
use crate::simd::Line;

/// Columns of two tiles side by side.
pub(crate) const PAIR_COLUMNS: usize = 32;
/// Units of a step of two tiles.
pub(crate) const STEP_UNITS: usize = 8;
/// So far behind a unit lies what is asked for meanwhile: three pages.
const AHEAD: usize = 3 * 4096;

const _: () = assert!(PAGE * size_of::<Line>() == 4096 && STEP_UNITS * size_of::<Unit>() == 2048);

/// Units that are lengthened beside products.
pub(crate) struct Beside<'a> {
    /// Lines of units, by pages; the first lies where a page of memory begins.
    pub(crate) lines: &'a [Line],
    /// Which unit is the first.
    pub(crate) first: usize,
    pub(crate) exponents: &'a Exponents,
    /// Where they go, `each` in a step: vectors that are aligned.
    pub(crate) to: &'a mut [Unit],
    pub(crate) each: usize,
}

/// What vectors do: see `Simd::lengthen` of AVX-512. `each` may be 0.
macro_rules! lengthening {
    () => {
        "mov {left}, {each}
        test {left}, {left}
        jz 5f
        4:
        vmovdqa64 zmm16, [{from}]
        vmovdqa64 zmm17, [{from} + 4096]
        vmovdqa64 zmm18, [{from} + 8192]
        prefetcht1 [{from} + {ahead}]
        prefetcht1 [{from} + {ahead} + 4096]
        prefetcht1 [{from} + {ahead} + 8192]
        vpermw zmm19, zmm18, zmm31
        vpsrlw zmm20, zmm18, 4
        vpsrlw zmm21, zmm18, 8
        vpsrlw zmm22, zmm18, 12
        vpermw zmm20, zmm20, zmm31
        vpermw zmm21, zmm21, zmm31
        vpermw zmm22, zmm22, zmm31
        vpshufb zmm23, zmm16, zmm30
        vpshufb zmm24, zmm17, zmm30
        vpternlogd zmm19, zmm16, zmm29, 0xf8
        vpternlogd zmm20, zmm23, zmm29, 0xf8
        vpternlogd zmm21, zmm17, zmm29, 0xf8
        vpternlogd zmm22, zmm24, zmm29, 0xf8
        vmovdqa64 [{to}], zmm19
        vmovdqa64 [{to} + 64], zmm20
        vmovdqa64 [{to} + 128], zmm21
        vmovdqa64 [{to} + 192], zmm22
        add {to}, 256
        add {from}, 64
        test {from}, 4095
        jnz 6f
        add {from}, 8192
        6:
        dec {left}
        jnz 4b
        5:"
    };
}

/// Sums in, steps of `$products` beside units that are lengthened, sums out.
macro_rules! products_beside {
    ($sums:expr, $from:expr, $beside:expr, $lie:expr, $weights:expr, $steps:expr,
     in [$($in:expr),*], products [$($product:literal),*], out [$($out:expr),*], $($operand:ident = $value:expr),*) => {
        asm!(
            "vmovdqa64 zmm31, [{left}]
            vbroadcasti32x4 zmm30, [{row}]
            mov {left:e}, {rest}
            vpbroadcastd zmm29, {left:e}",
            $($in,)*
            "2:",
            lengthening!(),
            $($product,)*
            "add {b}, 2048",
            "dec {steps}",
            "jnz 2b",
            $($out,)*
            target = in(reg) &raw const $sums,
            rest = const REST as u32 * 0x1_0001,
            ahead = const AHEAD,
            row = inout(reg) EXCHANGED.as_ptr() => _,
            left = inout(reg) $beside.exponents => _,
            from = inout(reg) $from => _,
            to = inout(reg) $beside.to.as_mut_ptr() => _,
            each = in(reg) $beside.each,
            $($operand = inout(reg) $value => _,)*
            a_step = in(reg) $lie.step,
            a_row = in(reg) $lie.row,
            line = in(reg) ROW,
            b = inout(reg) $weights.as_ptr() => _,
            steps = inout(reg) $steps => _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _,
            out("zmm22") _, out("zmm23") _, out("zmm24") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            options(nostack),
        )
    };
}

/// For those who lengthen nothing.
static NONE: Exponents = Exponents::NONE;

/// Bytes of two words exchanged, for a lane of 128 bits.
static EXCHANGED: [u8; 16] = [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14];

impl Beside<'_> {
    /// Nothing is lengthened.
    pub(crate) fn nothing() -> Self {
        Self { lines: &[], first: 0, exponents: &NONE, to: &mut [], each: 0 }
    }

    /// Where the first unit's first line is, after a look at whether all may be read and written.
    #[inline(always)]
    fn checked(&self, steps: usize) -> *const Line {
        let count = self.each * steps;
        if count == 0 {
            return self.lines.as_ptr();
        }
        assert!(self.to.len() >= count && Order::Pages.count(self.first + count) <= self.lines.len());
        assert!(self.lines.as_ptr().addr().is_multiple_of(4096) && self.to.as_ptr().addr().is_multiple_of(64));
        self.lines.as_ptr().wrapping_add(Order::Pages.lines(self.first).0)
    }
}

impl Tiles {
    /// `sums[row][column] += Σ x[step][row] · weights[step][column]`, of 32 columns; units are lengthened beside.
    #[inline(always)]
    pub(crate) fn one_by_two_beside(
        &self,
        to: Sums<'_>,
        x: &[u8],
        lie: Lie,
        weights: &[Unit],
        beside: Beside<'_>,
        steps: usize,
    ) {
        let rows = self.shape.rows;
        assert!(steps > 0 && self.shape.words == 16 && weights.len() >= steps * STEP_UNITS);
        assert!(to.sums.len() >= (rows - 1) * to.row + PAIR_COLUMNS && x.len() >= lie.bytes(rows, steps));
        let from = beside.checked(steps);
        let sums = Target { blocks: [to.sums.as_mut_ptr()], row: 4 * to.row, are_fresh: usize::from(to.are_fresh) };
        // SAFETY: configured, by the module's invariant; lengths are asserted; the class has these vectors where it has AMX.
        unsafe {
            products_beside!(
                sums, from, beside, lie, weights, steps,
                in [
                    "mov {row}, [{target} + 8]",
                    "mov {left}, [{target}]",
                    "cmp qword ptr [{target} + 16], 0",
                    "je 3f",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "jmp 2f",
                    "3:",
                    "tileloadd tmm0, [{left} + {row}]",
                    "tileloadd tmm1, [{left} + {row} + 64]"
                ],
                products [
                    "tileloadd tmm4, [{a} + {a_row}]",
                    "tileloadd tmm6, [{b} + {line}]",
                    "tileloadd tmm7, [{b} + {line} + 1024]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "add {a}, {a_step}"
                ],
                out [
                    "mov {left}, [{target}]",
                    "tilestored [{left} + {row}], tmm0",
                    "tilestored [{left} + {row} + 64], tmm1"
                ],
                a = x.as_ptr()
            );
        }
    }

    /// The same for two blocks of rows, whose sums lie one behind the other.
    #[inline(always)]
    pub(crate) fn two_by_two_beside(
        &self,
        to: Sums<'_>,
        x: [&[u8]; 2],
        lie: Lie,
        weights: &[Unit],
        beside: Beside<'_>,
        steps: usize,
    ) {
        let rows = self.shape.rows;
        assert!(steps > 0 && self.shape.words == 16 && weights.len() >= steps * STEP_UNITS);
        assert!(to.sums.len() >= (2 * rows - 1) * to.row + PAIR_COLUMNS);
        assert!(x.iter().all(|x| x.len() >= lie.bytes(rows, steps)));
        let from = beside.checked(steps);
        let blocks = [to.sums.as_mut_ptr(), to.sums[rows * to.row..].as_mut_ptr()];
        let sums = Target { blocks, row: 4 * to.row, are_fresh: usize::from(to.are_fresh) };
        // SAFETY: as above.
        unsafe {
            products_beside!(
                sums, from, beside, lie, weights, steps,
                in [two_blocks_in!()],
                products [
                    "tileloadd tmm4, [{a0} + {a_row}]",
                    "tileloadd tmm6, [{b} + {line}]",
                    "tileloadd tmm7, [{b} + {line} + 1024]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{a1} + {a_row}]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {a0}, {a_step}",
                    "add {a1}, {a_step}"
                ],
                out [two_blocks_out!()],
                a0 = x[0].as_ptr(),
                a1 = x[1].as_ptr()
            );
        }
    }
}

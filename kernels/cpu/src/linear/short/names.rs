//! Which sixteen exponents weights of a panel may have, and the number of each.

use super::{Exponents, Unit, VECTORS, WEIGHTS};

/// A bfloat16's exponent, where it lies.
const EXPONENT: u16 = 0x7f80;
/// Bits of what stands for the number of an exponent that has none.
pub(super) const UNNAMED: u16 = 0xf0;
/// A run of exponents will do if it leaves out no more than one weight in so many.
const RARE: usize = 2048;

/// How many weights have each exponent: one count for each vector of a unit, for one that was just raised is waited for.
pub(super) struct Counts([[u32; 256]; VECTORS]);

impl Counts {
    pub(super) const NONE: Self = Self([[0; 256]; VECTORS]);

    pub(super) fn add(&mut self, units: &[Unit]) {
        for unit in units {
            let unit: &[[u16; WEIGHTS]; VECTORS] = bytemuck::cast_ref(unit);
            for (vector, counts) in unit.iter().zip(&mut self.0) {
                for &bits in vector {
                    counts[exponent_of(bits)] += 1;
                }
            }
        }
    }
}

/// Sixteen exponents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    listed: [u8; 16],
    /// Each is the one before plus 1, as with weights that are spread like any bell: their numbers take no looking up.
    is_run: bool,
}

impl Names {
    /// Those that most weights have; of runs that are as good, the lowest. A run, unless it leaves out many.
    pub(super) fn of(counts: &Counts) -> Self {
        let counts: [u32; 256] = std::array::from_fn(|exponent| counts.0.iter().map(|counts| counts[exponent]).sum());
        let of_run = |first: &usize| counts[*first..first + 16].iter().sum::<u32>();
        let first = (0..=240).rev().max_by_key(of_run).expect("there are runs");
        let all: u32 = counts.iter().sum();
        if (all - of_run(&first)) as usize <= all as usize / RARE {
            return Self { listed: std::array::from_fn(|at| (first + at) as u8), is_run: true };
        }
        let mut order: [u8; 256] = std::array::from_fn(|exponent| exponent as u8);
        order.sort_by_key(|&exponent| std::cmp::Reverse(counts[usize::from(exponent)]));
        Self { listed: std::array::from_fn(|at| order[at]), is_run: false }
    }

    pub(super) fn is_run(&self) -> bool {
        self.is_run
    }

    /// Where a bfloat16 has its own.
    pub(super) fn exponents(&self) -> Exponents {
        Exponents(std::array::from_fn(|at| u16::from(self.listed[at % 16]) << 7))
    }

    /// The first of a run, where a bfloat16 has its exponent.
    pub(super) fn run(&self) -> Option<u16> {
        self.is_run.then(|| u16::from(self.listed[0]) << 7)
    }

    /// The number of a weight's exponent; with [`UNNAMED`] bits, if it has none. `IS_RUN`: as `is_run` is.
    #[inline(always)]
    pub(super) fn number<const IS_RUN: bool>(&self, bits: u16) -> u16 {
        if IS_RUN {
            return u16::from((bits >> 7) as u8).wrapping_sub(u16::from(self.listed[0])) & 0xff;
        }
        let mut code = UNNAMED;
        for (number, &name) in self.listed.iter().enumerate() {
            code = if bits & EXPONENT == u16::from(name) << 7 { number as u16 } else { code };
        }
        code
    }
}

/// Whether any of these words, or of what they make together, has any of these bits.
#[inline(always)]
pub(super) fn have_any(words: &[u16; WEIGHTS], bits: u16) -> bool {
    words.iter().fold(0, |all, word| all | word) & bits != 0
}

#[inline(always)]
fn exponent_of(bits: u16) -> usize {
    usize::from(bits >> 7 & 0xff)
}

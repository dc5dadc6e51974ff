//! A panel's units, shortened.

use super::matrix::PanelLines;
use super::{Exception, Exponents, REST, UNIT_WEIGHTS, Unit, VECTORS, WEIGHTS};
use crate::simd::{Kernel, Simd};

/// A bfloat16's exponent, where it lies.
const EXPONENT: u16 = 0x7f80;
/// Behind all numbers of exponents.
const UNNAMED: u16 = 16;

/// Of a panel this long one unit in so many tells which exponents are frequent: an odd number, for in tiles every other four units are of
/// the same 16 columns.
const LONG: usize = 128;
const SAMPLED: usize = 17;
/// With more exceptions than one weight in so many, all units are asked: normal weights have one in ten thousand.
const EXPECTED: usize = 2048;

/// Writes the lines of one panel's units, shortened, to `lines`; what it takes to have them back is returned and added to `exceptions`.
pub(super) struct Shorten<'a> {
    pub(super) panel: &'a [Unit],
    pub(super) exceptions: &'a mut Vec<Exception>,
    pub(super) lines: PanelLines<'a>,
}

impl Kernel for Shorten<'_> {
    type Output = Exponents;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Exponents {
        let Self { panel, exceptions, mut lines } = self;
        let before = exceptions.len();
        let mut step = if panel.len() < LONG { 1 } else { SAMPLED };
        loop {
            let names = Names::of(panel, step);
            if names.is_run {
                write::<S, true>(simd, panel, &names, exceptions, &mut lines);
            } else {
                write::<S, false>(simd, panel, &names, exceptions, &mut lines);
            }
            simd.drain();
            let is_expected = exceptions.len() - before <= panel.len() * UNIT_WEIGHTS / EXPECTED;
            if step == 1 || is_expected {
                return Exponents(std::array::from_fn(|at| u16::from(names.listed[at % 16]) << 7));
            }
            exceptions.truncate(before);
            step = 1;
        }
    }
}

/// Writes the lines of all units. `IS_RUN`: as that of `names`, so that the loop over units does not ask again.
#[inline(always)]
fn write<S: Simd, const IS_RUN: bool>(
    simd: S,
    panel: &[Unit],
    names: &Names,
    exceptions: &mut Vec<Exception>,
    lines: &mut PanelLines<'_>,
) {
    for (number, unit) in panel.iter().enumerate() {
        let (short, has_unnamed) = shortened::<IS_RUN>(unit, names);
        if has_unnamed {
            put_down::<IS_RUN>(unit, number, names, exceptions);
        }
        lines.put(simd, number, &short);
    }
}

/// One unit's lines, and whether it has weights whose exponents have no number. One loop over lanes, without a thing between that has an
/// address: a compiler makes vectors of it that stay in registers.
#[inline(always)]
fn shortened<const IS_RUN: bool>(unit: &Unit, names: &Names) -> ([[u16; WEIGHTS]; 3], bool) {
    let [first, second, third, fourth]: &[[u16; WEIGHTS]; VECTORS] = bytemuck::cast_ref(unit);
    let [mut front, mut back, mut coded, mut seen] = [[0; WEIGHTS]; 4];
    for lane in 0..WEIGHTS {
        let (a, b, c, d) = (first[lane], second[lane], third[lane], fourth[lane]);
        front[lane] = a & REST | (b & REST).swap_bytes();
        back[lane] = c & REST | (d & REST).swap_bytes();
        let (e, f) = (names.number::<IS_RUN>(a), names.number::<IS_RUN>(b));
        let (g, h) = (names.number::<IS_RUN>(c), names.number::<IS_RUN>(d));
        coded[lane] = e & 15 | (f & 15) << 4 | (g & 15) << 8 | h << 12;
        seen[lane] = e | f | g | h;
    }
    ([front, back, coded], seen.into_iter().fold(0, |seen, code| seen | code) & UNNAMED != 0)
}

/// Lists the weights of a unit whose exponents have no number.
#[cold]
#[inline(never)]
fn put_down<const IS_RUN: bool>(unit: &Unit, number: usize, names: &Names, exceptions: &mut Vec<Exception>) {
    let unit: &[u16; UNIT_WEIGHTS] = bytemuck::cast_ref(unit);
    let unnamed = unit.iter().enumerate().filter(|&(_, &bits)| names.number::<IS_RUN>(bits) == UNNAMED);
    exceptions
        .extend(unnamed.map(|(at, &bits)| Exception { at: (number * UNIT_WEIGHTS + at) as u32, bits: bits.into() }));
}

/// A panel's sixteen exponents.
struct Names {
    listed: [u8; 16],
    /// Each is the one before plus 1, as with weights that are spread like any bell: their numbers take no looking up.
    is_run: bool,
}

impl Names {
    /// Those that most weights of every so many-th unit have; of runs that are as good, the lowest. A run, unless it leaves out many.
    fn of(panel: &[Unit], step: usize) -> Self {
        let mut counts = [[0_u32; 256]; VECTORS]; // one for each vector: a count that was just raised is not waited for
        for unit in panel.iter().step_by(step) {
            let unit: &[[u16; WEIGHTS]; VECTORS] = bytemuck::cast_ref(unit);
            for (vector, counts) in unit.iter().zip(&mut counts) {
                for &bits in vector {
                    counts[exponent_of(bits)] += 1;
                }
            }
        }
        let counts: [u32; 256] = std::array::from_fn(|exponent| counts.iter().map(|counts| counts[exponent]).sum());
        let of_run = |first: &usize| counts[*first..first + 16].iter().sum::<u32>();
        let first = (0..=240).rev().max_by_key(of_run).expect("there are runs");
        let all: u32 = counts.iter().sum();
        if (all - of_run(&first)) as usize <= all as usize / EXPECTED {
            return Self { listed: std::array::from_fn(|at| (first + at) as u8), is_run: true };
        }
        let mut order: [u8; 256] = std::array::from_fn(|exponent| exponent as u8);
        order.sort_by_key(|&exponent| std::cmp::Reverse(counts[usize::from(exponent)]));
        Self { listed: std::array::from_fn(|at| order[at]), is_run: false }
    }

    /// The number of a weight's exponent. `IS_RUN`: as `is_run` is.
    #[inline(always)]
    fn number<const IS_RUN: bool>(&self, bits: u16) -> u16 {
        if IS_RUN {
            return (exponent_of(bits) as u16).wrapping_sub(u16::from(self.listed[0])).min(UNNAMED);
        }
        let mut code = UNNAMED;
        for (number, &name) in self.listed.iter().enumerate() {
            code = if bits & EXPONENT == u16::from(name) << 7 { number as u16 } else { code };
        }
        code
    }
}

#[inline(always)]
fn exponent_of(bits: u16) -> usize {
    usize::from(bits >> 7 & 0xff)
}

//! bfloat16 weights in 12 bits each, without loss: reading them is what a decode step waits for.
//!
//! A weight's exponent could be any of 256, but nearly all weights of a matrix share a few: sixteen of them leave out one weight in
//! ten thousand or so. A panel names its sixteen; a weight is then its sign, its 7 bits of mantissa, and the number of its exponent.
//! The others stand in a list with all their bits, and are put right after their piece was lengthened.
//!
//! ```text
//! [panel 0: unit 0, unit 1 …][panel 1 …]   a unit: 64 columns and a pair along K, 192 bytes instead of 256
//! [exponents of panel 0][of panel 1] …
//! [where the exceptions of panel 0 begin][of panel 1] … [their number]
//! [exception][exception] …                 by panel and unit
//! ```
//!
//! Pieces are lengthened into the first- or second-level cache while the piece before is multiplied ([`super::piece`]), so that the
//! products, and their bits, are those of weights that lie in memory as they are.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::{Pod, Zeroable};

use crate::Cpu;
use crate::memory::Buffer;
use crate::simd::{LANES, Lanes};
use crate::split::{Shared, part};

/// Vectors of a unit: the panels of other widths stay as they are.
pub(crate) const VECTORS: usize = 4;
/// Weights of a vector.
const WEIGHTS: usize = 2 * LANES;
const UNIT_WEIGHTS: usize = VECTORS * WEIGHTS;
/// With more exceptions than one weight in so many a matrix stays as it is: each is put right by itself.
const RARE: usize = 64;

/// A bfloat16's sign and mantissa.
pub(crate) const REST: u16 = 0x807f;

/// A unit as it lies in memory before and after: vectors of pairs.
pub(crate) type Unit = [Lanes<u32>; VECTORS];

/// The same in three quarters of the bytes. Arithmetic on 16-bit words turns it back, without a move from lane to lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct ShortUnit {
    /// Signs and mantissas. A word: of the even vector's lane (e), where a bfloat16 has them, and in the bits between of the odd
    /// one's (o), with its bytes exchanged: `e ooooooo o eeeeeee`, the signs at bits 15 and 7.
    pub(crate) rests: [[u16; WEIGHTS]; VECTORS / 2],
    /// Numbers of exponents. A word: four bits for the lane of each vector.
    pub(crate) codes: [u16; WEIGHTS],
}

/// A panel's exponents, in the bits where a bfloat16 has its own. Twice, for those who look up five bits of a word and mean four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Exponents(pub(crate) [u16; WEIGHTS]);

/// A weight whose exponent the panel does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Exception {
    /// Unit · 128 + place in the unit.
    at: u32,
    bits: u32,
}

impl ShortUnit {
    /// What `Simd::lengthen` does, word by word.
    #[inline(always)]
    pub(crate) fn lengthened(&self, exponents: &Exponents, to: &mut Unit) {
        for (vector, to) in to.iter_mut().enumerate() {
            let to: &mut [u16; WEIGHTS] = bytemuck::cast_mut(to);
            for ((to, rests), codes) in to.iter_mut().zip(self.rests[vector / 2]).zip(self.codes) {
                let rest = if vector % 2 == 0 { rests } else { rests.swap_bytes() };
                *to = exponents.0[usize::from(codes >> (4 * vector) & 15)] | rest & REST;
            }
        }
    }
}

/// One panel's units, shortened into `to`; what it takes to have them back is returned and added to `exceptions`.
pub(super) fn shorten(panel: &[Unit], to: &mut [ShortUnit], exceptions: &mut Vec<Exception>) -> Exponents {
    const UNNAMED: u16 = 16;
    let listed = most_frequent(panel);
    let mut codes = [UNNAMED; 256];
    for (code, &exponent) in listed.iter().enumerate() {
        codes[usize::from(exponent)] = code as u16;
    }
    for (number, (unit, to)) in panel.iter().zip(to).enumerate() {
        let unit: &[[u16; WEIGHTS]; VECTORS] = bytemuck::cast_ref(unit);
        let [first, second, third, fourth] = unit;
        let lanes = first.iter().zip(second).zip(third).zip(fourth);
        let mut seen = 0;
        for (lane, (((&a, &b), &c), &d)) in lanes.enumerate() {
            let [e, f, g, h] = [a, b, c, d].map(|bits| codes[exponent_of(bits)]);
            seen |= e | f | g | h;
            to.rests[0][lane] = a & REST | (b & REST).swap_bytes();
            to.rests[1][lane] = c & REST | (d & REST).swap_bytes();
            to.codes[lane] = e & 15 | (f & 15) << 4 | (g & 15) << 8 | (h & 15) << 12;
        }
        if seen & UNNAMED != 0 {
            let weights = unit.as_flattened().iter().enumerate();
            let unnamed = weights.filter(|&(_, &bits)| codes[exponent_of(bits)] == UNNAMED);
            exceptions.extend(
                unnamed.map(|(at, &bits)| Exception { at: (number * UNIT_WEIGHTS + at) as u32, bits: bits.into() }),
            );
        }
    }
    Exponents(std::array::from_fn(|at| u16::from(listed[at % 16]) << 7))
}

/// The sixteen exponents that most weights have; of equals the lower.
fn most_frequent(panel: &[Unit]) -> [u8; 16] {
    let mut counts = [[0_u32; 256]; VECTORS]; // one for each vector: a count that was just raised is not waited for
    for unit in panel {
        let unit: &[[u16; WEIGHTS]; VECTORS] = bytemuck::cast_ref(unit);
        for (vector, counts) in unit.iter().zip(&mut counts) {
            for &bits in vector {
                counts[exponent_of(bits)] += 1;
            }
        }
    }
    let mut order: [u8; 256] = std::array::from_fn(|exponent| exponent as u8);
    let count = |exponent: u8| counts.iter().map(|counts| counts[usize::from(exponent)]).sum::<u32>();
    order.sort_by_key(|&exponent| std::cmp::Reverse(count(exponent)));
    std::array::from_fn(|at| order[at])
}

#[inline(always)]
fn exponent_of(bits: u16) -> usize {
    usize::from(bits >> 7 & 0xff)
}

/// How a shortened matrix lies in its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) panels: usize,
    /// Of each panel.
    pub(super) units: usize,
    /// In all.
    pub(super) exceptions: usize,
}

impl Sizes {
    /// With as many exceptions as there may be. None: the matrix is too large to be counted so.
    fn most(panels: usize, units: usize) -> Option<Self> {
        let weights = units.checked_mul(UNIT_WEIGHTS)?;
        let exceptions = panels.checked_mul(weights)? / RARE;
        let is_countable = u32::try_from(weights).is_ok() && u32::try_from(exceptions).is_ok();
        is_countable.then_some(Self { panels, units, exceptions })
    }

    /// None: no matrix is shortened to these.
    pub(super) fn new(panels: usize, units: usize, exceptions: usize) -> Option<Self> {
        Self::most(panels, units).filter(|most| exceptions <= most.exceptions).map(|most| Self { exceptions, ..most })
    }

    /// Where each part ends.
    fn ends(self) -> [usize; 4] {
        let sizes = [
            self.panels * self.units * size_of::<ShortUnit>(),
            self.panels * size_of::<Exponents>(),
            (self.panels + 1) * size_of::<u32>(),
            self.exceptions * size_of::<Exception>(),
        ];
        let mut end = 0;
        sizes.map(|size| {
            end += size;
            end
        })
    }

    pub(super) fn bytes(self) -> usize {
        self.ends()[3]
    }

    fn split_mut(self, data: &mut [u8]) -> (&mut [ShortUnit], &mut [Exponents], &mut [u32], &mut [Exception]) {
        let [units, exponents, starts, _] = self.ends();
        let (data, exceptions) = data.split_at_mut(starts);
        let (data, starts) = data.split_at_mut(exponents);
        let (units, exponents) = data.split_at_mut(units);
        let exponents = bytemuck::cast_slice_mut(exponents);
        (
            bytemuck::cast_slice_mut(units),
            exponents,
            bytemuck::cast_slice_mut(starts),
            bytemuck::cast_slice_mut(exceptions),
        )
    }
}

/// Packs a matrix, with all threads: `fill` writes the panel of that number into zeroed units. None: there are too many exceptions, or
/// too few units to save anything.
pub(super) fn pack(
    cpu: &mut Cpu,
    (panels, units): (usize, usize),
    fill: impl Fn(usize, &mut [Unit]) + Sync,
) -> Option<(Sizes, Buffer)> {
    let most = Sizes::most(panels, units)?;
    let mut data = Buffer::zeroed(most.bytes());
    let (short, exponents, starts, listed) = most.split_mut(data.as_mut_slice());
    let parts = cpu.parts(panels, panels * units * UNIT_WEIGHTS);
    let mut lists = vec![Vec::new(); parts];
    let count_of_all = AtomicUsize::new(0);
    {
        let (short, exponents) = (Shared::new(short), Shared::new(exponents));
        let (counts, lists) = (Shared::new(&mut starts[1..]), Shared::new(&mut lists));
        cpu.pool.run(parts, |thread| {
            let mut panel = vec![Unit::zeroed(); units];
            // SAFETY: each thread has its own list.
            let list = &mut unsafe { lists.piece(thread..thread + 1) }[0];
            for number in part(panels, parts, thread) {
                panel.fill(Unit::zeroed());
                fill(number, &mut panel);
                let before = list.len();
                // SAFETY: panels do not overlap, and each belongs to one part.
                let short = unsafe { short.piece(number * units..(number + 1) * units) };
                // SAFETY: as above.
                let (exponents, count) =
                    unsafe { (exponents.piece(number..number + 1), counts.piece(number..number + 1)) };
                exponents[0] = shorten(&panel, short, list);
                let found = list.len() - before;
                count[0] = found as u32;
                if count_of_all.fetch_add(found, Ordering::Relaxed) + found > most.exceptions {
                    break; // a hint to the others, and what counts is checked below
                }
            }
        });
    }
    let sizes = Sizes { exceptions: count_of_all.into_inner(), ..most };
    if sizes.exceptions > most.exceptions || sizes.bytes() >= panels * units * size_of::<Unit>() {
        return None;
    }
    listed[..sizes.exceptions].copy_from_slice(&lists.concat());
    for panel in 1..starts.len() {
        starts[panel] += starts[panel - 1];
    }
    data.truncate(sizes.bytes());
    Some((sizes, data))
}

/// A shortened matrix, to read.
#[derive(Clone, Copy)]
pub(super) struct Short<'a> {
    units: &'a [ShortUnit],
    exponents: &'a [Exponents],
    starts: &'a [u32],
    exceptions: &'a [Exception],
    units_of_panel: usize,
}

impl<'a> Short<'a> {
    /// `data`: of these sizes.
    pub(super) fn of(sizes: Sizes, data: &'a [u8]) -> Self {
        let [units, exponents, starts, exceptions] = sizes.ends();
        Self {
            units: bytemuck::cast_slice(&data[..units]),
            exponents: bytemuck::cast_slice(&data[units..exponents]),
            starts: bytemuck::cast_slice(&data[exponents..starts]),
            exceptions: bytemuck::cast_slice(&data[starts..exceptions]),
            units_of_panel: sizes.units,
        }
    }

    /// Whether all exceptions lie where they say: bytes from a file are a claim.
    pub(super) fn is_sound(&self) -> bool {
        let most = self.units_of_panel * UNIT_WEIGHTS;
        self.starts[0] == 0
            && self.starts.is_sorted()
            && self.starts.last().is_some_and(|&end| end as usize == self.exceptions.len())
            && (0..self.exponents.len()).all(|panel| {
                let listed = self.listed(panel);
                listed.is_sorted_by_key(|exception| exception.at)
                    && listed
                        .iter()
                        .all(|exception| (exception.at as usize) < most && exception.bits <= u16::MAX.into())
            })
    }

    /// These units of a panel, and its exponents.
    #[inline(always)]
    pub(super) fn piece(&self, panel: usize, units: Range<usize>) -> (&'a [ShortUnit], &'a Exponents) {
        let first = panel * self.units_of_panel;
        (&self.units[first + units.start..first + units.end], &self.exponents[panel])
    }

    /// Puts right, in the lengthened units of this piece, what the units do not hold. `before`: how many exceptions the panel
    /// has before the piece; how many with the piece is returned.
    #[inline(always)]
    pub(super) fn put_right(&self, panel: usize, units: Range<usize>, lengthened: &mut [Unit], before: usize) -> usize {
        let [first, end] = [units.start, units.end].map(|unit| unit * UNIT_WEIGHTS);
        let weights: &mut [u16] = bytemuck::cast_slice_mut(lengthened);
        let here = self.listed(panel)[before..].iter().take_while(|exception| (exception.at as usize) < end);
        here.fold(before, |seen, exception| {
            weights[exception.at as usize - first] = exception.bits as u16;
            seen + 1
        })
    }

    /// How many exceptions a panel has before this unit.
    pub(super) fn before(&self, panel: usize, unit: usize) -> usize {
        self.listed(panel).partition_point(|exception| (exception.at as usize) < unit * UNIT_WEIGHTS)
    }

    #[inline(always)]
    fn listed(&self, panel: usize) -> &'a [Exception] {
        &self.exceptions[self.starts[panel] as usize..self.starts[panel + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Isa;
    use crate::simd::{Kernel, Simd};

    struct Lengthen<'a>(&'a ShortUnit, &'a Exponents, &'a mut Unit);

    impl Kernel for Lengthen<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            simd.lengthen(self.0, self.1, self.2);
        }
    }

    fn panel(weights: &[u16]) -> Vec<Unit> {
        weights
            .chunks_exact(UNIT_WEIGHTS)
            .map(|weights| {
                let mut unit = Unit::zeroed();
                bytemuck::cast_slice_mut::<_, u16>(&mut unit).copy_from_slice(weights);
                unit
            })
            .collect()
    }

    /// Weights of which about one in `rarity` may have any exponent.
    fn bits(seed: u32, count: usize, rarity: u32) -> Vec<u16> {
        let draw = |at: usize| {
            let [bits, kind, ..] = crate::philox4x32([at as u32, 2, 0, 0], [seed, 0]);
            let exponent = if kind % rarity == 0 { kind >> 8 & 255 } else { 110 + (kind >> 16) % 13 };
            (bits as u16 & REST) | (exponent as u16) << 7
        };
        (0..count).map(draw).collect()
    }

    proptest! {
        #[test]
        fn what_was_shortened_is_the_same_again_in_every_class(seed in any::<u32>(), units in 1_usize..40, rarity in 1_u32..500) {
            let whole = panel(&bits(seed, units * UNIT_WEIGHTS, rarity));
            let (mut short, mut exceptions) = (vec![ShortUnit::zeroed(); units], Vec::new());
            let exponents = shorten(&whole, &mut short, &mut exceptions);
            let starts = [0, exceptions.len() as u32];
            let read = Short {
                units: &short, exponents: &[exponents], starts: &starts, exceptions: &exceptions, units_of_panel: units,
            };
            prop_assert!(read.is_sound());
            for isa in Isa::available() {
                for piece in [0..units, 0..units / 2, units / 2..units, units / 3..units] {
                    let mut again = vec![[[u32::MAX; LANES]; VECTORS]; piece.len()];
                    let (units, exponents) = read.piece(0, piece.clone());
                    for (unit, to) in units.iter().zip(&mut again) {
                        isa.run(Lengthen(unit, exponents, to));
                    }
                    read.put_right(0, piece.clone(), &mut again, read.before(0, piece.start));
                    prop_assert!(again == whole[piece.clone()], "{} {piece:?}", isa.name());
                }
            }
        }

        #[test]
        fn a_matrix_is_packed_the_same_by_any_number_of_threads(seed in any::<u32>(), panels in 1_usize..9, units in 1_usize..9) {
            let weights = bits(seed, panels * units * UNIT_WEIGHTS, 200);
            let whole: Vec<Vec<Unit>> = weights.chunks_exact(units * UNIT_WEIGHTS).map(panel).collect();
            let mut packed = Vec::new();
            for threads in [1, 3] {
                let mut cpu = Cpu::new(Isa::best(), threads);
                cpu.grain = 1;
                packed.push(pack(&mut cpu, (panels, units), |number, to| to.copy_from_slice(&whole[number])));
            }
            let [first, second] = [0, 1].map(|at| packed[at].as_ref().map(|(sizes, data)| (*sizes, data.as_slice::<u8>())));
            prop_assert!(first == second);
            if let Some((sizes, data)) = first {
                prop_assert_eq!(data.len(), sizes.bytes());
                let read = Short::of(sizes, data);
                prop_assert!(read.is_sound());
                for (number, whole) in whole.iter().enumerate() {
                    let mut again = vec![Unit::zeroed(); units];
                    let (units, exponents) = read.piece(number, 0..units);
                    units.iter().zip(&mut again).for_each(|(unit, to)| unit.lengthened(exponents, to));
                    read.put_right(number, 0..units.len(), &mut again, 0);
                    prop_assert!(&again == whole);
                }
            }
        }
    }

    #[test]
    fn normal_weights_take_three_quarters_and_random_bits_stay_as_they_are() {
        let mut cpu = Cpu::new(Isa::best(), 2);
        let (panels, units) = (4, 64);
        let fill = |rarity| {
            move |number: usize, to: &mut [Unit]| {
                to.copy_from_slice(&panel(&bits(number as u32, units * UNIT_WEIGHTS, rarity)));
            }
        };
        let (sizes, data) = pack(&mut cpu, (panels, units), fill(1000)).expect("few exceptions");
        assert!(sizes.exceptions > 0 && data.len() * 100 < panels * units * size_of::<Unit>() * 78, "{}", data.len());
        assert!(pack(&mut cpu, (panels, units), fill(1)).is_none());
    }

    #[test]
    fn exceptions_that_lie_elsewhere_are_no_sound_claim() {
        let units = [ShortUnit::zeroed(); 2];
        let exponents = [Exponents::zeroed()];
        let sound = |starts: [u32; 2], exceptions: &[Exception]| {
            Short { units: &units, exponents: &exponents, starts: &starts, exceptions, units_of_panel: 2 }.is_sound()
        };
        let at = |at| Exception { at, bits: 7 };
        assert!(sound([0, 2], &[at(3), at(255)]));
        for (starts, exceptions) in [
            ([0, 1], [at(3), at(255)]),
            ([1, 2], [at(3), at(255)]),
            ([0, 2], [at(255), at(3)]),
            ([0, 2], [at(3), at(256)]),
            ([0, 2], [at(3), Exception { at: 4, bits: 1 << 16 }]),
        ] {
            assert!(!sound(starts, &exceptions), "{starts:?} {exceptions:?}");
        }
    }
}

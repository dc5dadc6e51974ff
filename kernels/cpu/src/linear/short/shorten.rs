//! A panel's units, shortened.

use bytemuck::Zeroable;

use super::matrix::PanelLines;
use super::names::{Counts, Names, UNNAMED, have_any};
use super::{Exception, Exponents, REST, UNIT_WEIGHTS, Unit, VECTORS, WEIGHTS};
use crate::simd::{Kernel, Simd};

/// Units that are read at a time: a step of tiles twice, and no more than stays in the first-level cache.
pub(super) const GROUP: usize = 16;

/// Of a matrix so many groups of units tell which exponents are frequent.
pub(super) const GROUPS_OF_MATRIX: usize = 8;
/// With more exceptions than one weight in so many, a panel names exponents of its own: normal weights have one in nine or ten thousand, a panel
/// of a few tens of thousands by chance some more.
pub(super) const FEW: usize = 4096;
/// Of a panel that does, one group in so many tells which: of short ones the first alone.
pub(super) const SAMPLED: usize = 17;
/// With more exceptions than one weight in so many then, all of its groups are asked.
const EXPECTED: usize = 2048;

/// Where units come from, for one thread.
pub(crate) trait ReadUnits {
    /// Turns to the panel of that number. Inlined into kernels: what it converts, their instructions convert.
    fn open(&mut self, panel: usize);

    /// Writes units of that panel, from that one on: [`GROUP`], or the last. `first` is a multiple of it.
    fn read<S: Simd>(&mut self, simd: S, first: usize, to: &mut [Unit]);

    /// The rows of a whole panel as they lie, one behind the other, in lines of [`WEIGHTS`]: those of vector after vector, sixteen each. None: they
    /// lie otherwise, or have to be converted.
    fn rows(&self, panel: usize) -> Option<&[u8]>;

    /// Asks memory for as much as a unit takes, of what is read later.
    fn ask<S: Simd>(&mut self, simd: S);
}

/// Looks at some of a matrix.
pub(super) struct Sample<R> {
    pub(super) from: R,
    pub(super) panels: usize,
    /// Of each panel.
    pub(super) units: usize,
}

impl<R: ReadUnits> Kernel for Sample<R> {
    type Output = Names;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Names {
        let Self { mut from, panels, units } = self;
        let panels = panels.max(2) - 1; // the last may lack columns, and its zeros tell nothing
        let groups = units.div_ceil(GROUP);
        let mut counts = Counts::NONE;
        let mut room = [Unit::zeroed(); GROUP];
        for sample in 0..GROUPS_OF_MATRIX {
            let at = sampled(sample, panels * groups);
            let first = at % groups * GROUP;
            let room = &mut room[..GROUP.min(units - first)];
            from.open(at / groups);
            from.read(simd, first, room);
            counts.add(room);
        }
        Names::of(&counts)
    }
}

/// Which group of all is looked at: in the middle of each eighth.
pub(super) fn sampled(sample: usize, groups: usize) -> usize {
    (2 * sample + 1) * groups / (2 * GROUPS_OF_MATRIX)
}

/// Writes the lines of a panel's units, shortened, to `lines`; what it takes to have them back is returned and added to `exceptions`.
pub(super) struct Shorten<'a, R> {
    pub(super) from: &'a mut R,
    pub(super) panel: usize,
    pub(super) units: usize,
    /// None: they are known not to suit it.
    pub(super) of_matrix: Option<&'a Names>,
    pub(super) exceptions: &'a mut Vec<Exception>,
    pub(super) lines: PanelLines<'a>,
}

impl<R: ReadUnits> Kernel for Shorten<'_, R> {
    type Output = Exponents;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Exponents {
        let Self { from, panel, units, of_matrix, exceptions, mut lines } = self;
        from.open(panel);
        let before = exceptions.len();
        let weights = units * UNIT_WEIGHTS;
        for (step, one_in) in [(None, FEW), (Some(SAMPLED), EXPECTED), (Some(1), 1)] {
            let names = match (step, of_matrix) {
                (None, None) => continue,
                (None, Some(names)) => *names,
                (Some(step), _) => of_panel(simd, from, units, step),
            };
            let most = before + weights / one_in;
            if names.is_run() {
                write::<S, R, true>(simd, from, units, &names, exceptions, most, &mut lines);
            } else {
                write::<S, R, false>(simd, from, units, &names, exceptions, most, &mut lines);
            }
            simd.drain();
            if exceptions.len() <= most {
                return names.exponents();
            }
            exceptions.truncate(before);
        }
        unreachable!("no more exceptions than weights")
    }
}

/// The names that suit every so many-th group of the panel.
#[inline(always)]
fn of_panel<S: Simd, R: ReadUnits>(simd: S, from: &mut R, units: usize, step: usize) -> Names {
    let mut counts = Counts::NONE;
    let mut room = [Unit::zeroed(); GROUP];
    for first in (0..units).step_by(step * GROUP) {
        let room = &mut room[..GROUP.min(units - first)];
        from.read(simd, first, room);
        counts.add(room);
    }
    Names::of(&counts)
}

/// Writes the lines of all units, or as many until there are more than `most` exceptions. `IS_RUN`: as that of `names`, so that the loop over
/// units does not ask again.
#[inline(always)]
fn write<S: Simd, R: ReadUnits, const IS_RUN: bool>(
    simd: S,
    from: &mut R,
    units: usize,
    names: &Names,
    exceptions: &mut Vec<Exception>,
    most: usize,
    lines: &mut PanelLines<'_>,
) {
    let mut room = [Unit::zeroed(); GROUP];
    for first in (0..units).step_by(GROUP) {
        let room = &mut room[..GROUP.min(units - first)];
        from.read(simd, first, room);
        let mut seen = [0; WEIGHTS];
        for (at, unit) in room.iter().enumerate() {
            let short = shortened::<IS_RUN>(unit, names, &mut seen);
            lines.put(simd, first + at, &short);
            from.ask(simd);
        }
        if have_any(&seen, UNNAMED) {
            for (number, unit) in (first..).zip(room.iter()) {
                let mut seen = [0; WEIGHTS];
                shortened::<IS_RUN>(unit, names, &mut seen);
                if have_any(&seen, UNNAMED) {
                    put_down::<IS_RUN>(unit, number, names, exceptions);
                }
            }
            if exceptions.len() > most {
                return;
            }
        }
    }
}

/// One unit's lines; numbers of its exponents are added to `seen`. One loop over lanes, without a thing between that has an address: a compiler
/// makes vectors of it that stay in registers.
#[inline(always)]
fn shortened<const IS_RUN: bool>(unit: &Unit, names: &Names, seen: &mut [u16; WEIGHTS]) -> [[u16; WEIGHTS]; 3] {
    let [first, second, third, fourth]: &[[u16; WEIGHTS]; VECTORS] = bytemuck::cast_ref(unit);
    let [mut front, mut back, mut coded] = [[0; WEIGHTS]; 3];
    for lane in 0..WEIGHTS {
        let (a, b, c, d) = (first[lane], second[lane], third[lane], fourth[lane]);
        front[lane] = a & REST | (b & REST).swap_bytes();
        back[lane] = c & REST | (d & REST).swap_bytes();
        let (e, f) = (names.number::<IS_RUN>(a), names.number::<IS_RUN>(b));
        let (g, h) = (names.number::<IS_RUN>(c), names.number::<IS_RUN>(d));
        coded[lane] = e & 15 | (f & 15) << 4 | (g & 15) << 8 | (h & 15) << 12;
        seen[lane] |= e | f | g | h;
    }
    [front, back, coded]
}

/// Lists the weights of a unit whose exponents have no number.
#[cold]
#[inline(never)]
fn put_down<const IS_RUN: bool>(unit: &Unit, number: usize, names: &Names, exceptions: &mut Vec<Exception>) {
    let unit: &[u16; UNIT_WEIGHTS] = bytemuck::cast_ref(unit);
    let unnamed = unit.iter().enumerate().filter(|&(_, &bits)| names.number::<IS_RUN>(bits) & UNNAMED != 0);
    exceptions
        .extend(unnamed.map(|(at, &bits)| Exception { at: (number * UNIT_WEIGHTS + at) as u32, bits: bits.into() }));
}

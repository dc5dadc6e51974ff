//! A matrix of short units, in one buffer.
//!
//! ```text
//! [units of panel 0][of panel 1] …                                  a unit: 192 bytes instead of 256, in three lines
//! [exponents of panel 0][of panel 1] …
//! [where the exceptions of panel 0 begin][of panel 1] … [their number]
//! [exception][exception] …                                          by panel and unit
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Piece;
use super::rows::{ROOMS, RowRooms, ShortenRows};
use super::shorten::{FEW, ReadUnits, Sample, Shorten};
use super::{Exception, Exponents, ShortUnit, UNIT_WEIGHTS, Unit, VECTORS, WEIGHTS, lengthened};
use crate::Cpu;
use crate::memory::Buffer;
use crate::simd::{Kernel, LANES, Lanes, Line, Simd};
use crate::split::{Own, Shared, part};

/// With more exceptions than one weight in so many a matrix stays as it is: each is put right by itself.
const RARE: usize = 64;

/// How the lines of units lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Those of a unit side by side.
    Units,
    /// Those of 64 units in three pages: the first lines of all of them, then the second, then the third. Who walks units asks three
    /// pages in turn that way; of one page after the other memory gives little at a time.
    Pages,
}

/// Lines of a page, or a third of the lines of as many units.
pub(crate) const PAGE: usize = 64;

impl Order {
    /// Where the first of a unit's three lines lies, and how far it is from one to the next.
    #[inline(always)]
    pub(crate) fn lines(self, unit: usize) -> (usize, usize) {
        match self {
            Self::Units => (3 * unit, 1),
            Self::Pages => (unit / PAGE * 3 * PAGE + unit % PAGE, PAGE),
        }
    }

    /// How many lines so many units take, with what only fills up pages.
    pub(crate) fn count(self, units: usize) -> usize {
        match self {
            Self::Units => 3 * units,
            Self::Pages => 3 * units.next_multiple_of(PAGE),
        }
    }
}

/// How a shortened matrix lies in its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) order: Order,
    panels: usize,
    /// Of each panel.
    units: usize,
    /// In all.
    pub(crate) exceptions: usize,
}

impl Sizes {
    /// With as many exceptions as there may be. None: the matrix is too large to be counted so.
    fn most(order: Order, panels: usize, units: usize) -> Option<Self> {
        let weights = units.checked_mul(UNIT_WEIGHTS)?;
        let exceptions = panels.checked_mul(weights)? / RARE;
        let is_countable = u32::try_from(weights).is_ok() && u32::try_from(exceptions).is_ok();
        is_countable.then_some(Self { order, panels, units, exceptions })
    }

    /// None: no matrix is shortened to these.
    pub(crate) fn new(order: Order, panels: usize, units: usize, exceptions: usize) -> Option<Self> {
        Self::most(order, panels, units)
            .filter(|most| exceptions <= most.exceptions)
            .map(|most| Self { exceptions, ..most })
    }

    /// Where each part ends.
    fn ends(self) -> [usize; 4] {
        let sizes = [
            self.order.count(self.panels * self.units) * size_of::<Line>(),
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

    pub(crate) fn bytes(self) -> usize {
        self.ends()[3]
    }

    fn split_mut(self, data: &mut [u8]) -> (&mut [Line], &mut [Exponents], &mut [u32], &mut [Exception]) {
        let [lines, exponents, starts, _] = self.ends();
        let (data, exceptions) = data.split_at_mut(starts);
        let (data, starts) = data.split_at_mut(exponents);
        let (lines, exponents) = data.split_at_mut(lines);
        (
            bytemuck::cast_slice_mut(lines),
            bytemuck::cast_slice_mut(exponents),
            bytemuck::cast_slice_mut(starts),
            bytemuck::cast_slice_mut(exceptions),
        )
    }
}

/// The lines of a panel that is being shortened.
pub(super) struct PanelLines<'a> {
    order: Order,
    lines: &'a Shared<'a, Line>,
    units: Range<usize>,
}

impl<'a> PanelLines<'a> {
    /// # Safety
    /// Nobody else reads or writes lines of these units while this lives, and until its thread has drained ([`Simd::drain`]).
    unsafe fn new(order: Order, lines: &'a Shared<'a, Line>, units: Range<usize>) -> Self {
        Self { order, lines, units }
    }

    /// Writes those of the panel's unit of that number; others see them when the thread has drained.
    #[inline(always)]
    pub(super) fn put<S: Simd>(&mut self, simd: S, unit: usize, short: &[[u16; WEIGHTS]; 3]) {
        assert!(unit < self.units.len());
        let (first, apart) = self.order.lines(self.units.start + unit);
        for (line, words) in short.iter().enumerate() {
            let at = first + line * apart;
            // SAFETY: a line of one of these units, and nobody else has them, as `new` was promised.
            let to = unsafe { self.lines.piece(at..at + 1) };
            simd.stream_line(words, &mut to[0]);
        }
    }

    /// Writes one of the three lines of sixteen units, from that one on; its number is a multiple of 16, and so are panels' units.
    #[inline(always)]
    pub(super) fn put_third<S: Simd>(&mut self, simd: S, unit: usize, third: usize, words: &[Lanes<u32>; LANES]) {
        assert!(unit + LANES <= self.units.len() && third < 3);
        let unit = self.units.start + unit;
        let (first, apart) = self.order.lines(unit);
        let first = first + third * apart;
        match self.order {
            Order::Units => self.put_lines::<S, 3>(simd, first, words),
            Order::Pages => {
                assert!(unit.is_multiple_of(LANES)); // so that they lie in one page
                self.put_lines::<S, 1>(simd, first, words);
            }
        }
    }

    /// Writes lines so many apart. All in registers, and all addresses known from the first one's.
    #[inline(always)]
    fn put_lines<S: Simd, const APART: usize>(&mut self, simd: S, first: usize, words: &[Lanes<u32>; LANES]) {
        let count = (LANES - 1) * APART + 1;
        // SAFETY: from a line of the first of the units to one of the last, as `put_third` has checked: nobody else has what lies between, as
        // `new` was promised.
        let to = &mut unsafe { self.lines.piece(first..first + count) }[..count];
        for (at, words) in words.iter().enumerate() {
            simd.stream_line(bytemuck::cast_ref(words), &mut to[APART * at]);
        }
    }
}

/// Waits until what this thread streamed is where everybody sees it.
struct Drain;

impl Kernel for Drain {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        simd.drain();
    }
}

/// Packs a matrix, with all threads, each of which has a reader of its panels. None: there are too many exceptions, or too few units to
/// save anything.
pub(crate) fn pack<R: ReadUnits>(
    cpu: &mut Cpu,
    order: Order,
    (panels, units): (usize, usize),
    reader: impl Fn(Range<usize>) -> R + Sync,
) -> Option<(Sizes, Buffer)> {
    let most = Sizes::most(order, panels, units)?;
    let whole = panels * units * size_of::<Unit>();
    if (Sizes { exceptions: 0, ..most }).bytes() >= whole {
        return None;
    }
    let mut data = Buffer::for_weights(most.bytes());
    let (lines, exponents, starts, listed) = most.split_mut(data.as_mut_slice());
    let (isa, parts) = (cpu.isa, cpu.parts(panels, panels * units * UNIT_WEIGHTS));
    let names = isa.run(Sample { from: reader(0..panels), panels, units });
    let mut lists = vec![Vec::new(); parts];
    let rooms = Own::new(cpu.scratch.scratch::<Line>(Own::<Line>::len(parts, ROOMS)), ROOMS);
    let count_of_all = AtomicUsize::new(0);
    {
        let (lines, exponents) = (Shared::new(lines), Shared::new(exponents));
        let (counts, lists) = (Shared::new(&mut starts[1..]), Shared::new(&mut lists));
        cpu.pool.run(parts, |thread| {
            let panels = part(panels, parts, thread);
            let mut from = reader(panels.clone());
            // SAFETY: each thread has its own list.
            let list = &mut unsafe { lists.piece(thread..thread + 1) }[0];
            // SAFETY: nothing else borrows what this thread owns.
            let mut rooms = RowRooms::new(unsafe { rooms.of(thread) });
            for number in panels.clone() {
                let before = list.len();
                // SAFETY: no two units share a line, and each panel belongs to one part; two of these do not live at once.
                let lines = || unsafe { PanelLines::new(order, &lines, number * units..(number + 1) * units) };
                let rows = names.run().zip(from.rows(number));
                let was_read = rows.is_some();
                let is_done = rows.is_some_and(|(first, rows)| {
                    isa.run(ShortenRows {
                        rows,
                        next: panels.contains(&(number + 1)).then(|| from.rows(number + 1)).flatten(),
                        panel: number,
                        first,
                        rooms: &mut rooms,
                        exceptions: list,
                        most: units * UNIT_WEIGHTS / FEW,
                        lines: lines(),
                    })
                });
                let listed = if is_done {
                    names.exponents()
                } else {
                    isa.run(Shorten {
                        from: &mut from,
                        panel: number,
                        units,
                        of_matrix: (!was_read).then_some(&names),
                        exceptions: list,
                        lines: lines(),
                    })
                };
                // SAFETY: as above.
                let (exponents, count) =
                    unsafe { (exponents.piece(number..number + 1), counts.piece(number..number + 1)) };
                exponents[0] = listed;
                let found = list.len() - before;
                count[0] = found as u32;
                if count_of_all.fetch_add(found, Ordering::Relaxed) + found > most.exceptions {
                    break; // a hint to the others, and what counts is checked below
                }
            }
            isa.run(Drain);
        });
    }
    let sizes = Sizes { exceptions: count_of_all.into_inner(), ..most };
    if sizes.exceptions > most.exceptions || sizes.bytes() >= whole {
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
pub(crate) struct Short<'a> {
    order: Order,
    lines: &'a [Line],
    exponents: &'a [Exponents],
    starts: &'a [u32],
    exceptions: &'a [Exception],
    units_of_panel: usize,
}

impl<'a> Short<'a> {
    /// `data`: of these sizes.
    pub(crate) fn of(sizes: Sizes, data: &'a [u8]) -> Self {
        let [lines, exponents, starts, exceptions] = sizes.ends();
        Self {
            order: sizes.order,
            lines: bytemuck::cast_slice(&data[..lines]),
            exponents: bytemuck::cast_slice(&data[lines..exponents]),
            starts: bytemuck::cast_slice(&data[exponents..starts]),
            exceptions: bytemuck::cast_slice(&data[starts..exceptions]),
            units_of_panel: sizes.units,
        }
    }

    /// Whether all exceptions lie where they say: bytes from a file are a claim.
    pub(crate) fn is_sound(&self) -> bool {
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

    /// The lines of all units, and which unit of all a panel's first is.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn lines(&self, panel: usize) -> (&'a [Line], usize) {
        (self.lines, self.first_unit(panel))
    }

    /// A panel's exponents.
    #[inline(always)]
    pub(crate) fn exponents(&self, panel: usize) -> &'a Exponents {
        &self.exponents[panel]
    }

    /// The unit of that number, counted over all panels.
    #[inline(always)]
    pub(crate) fn unit(&self, number: usize) -> ShortUnit<'a> {
        let (first, apart) = self.order.lines(number);
        let [Line(front), Line(back), Line(codes)] = [0, 1, 2].map(|line| &self.lines[first + line * apart]);
        ShortUnit { rests: [front, back], codes }
    }

    /// Where its lines lie, or would lie.
    #[inline(always)]
    pub(crate) fn addresses(&self, number: usize) -> [*const u8; 3] {
        let (first, apart) = self.order.lines(number);
        [0, 1, 2].map(|line| self.lines.as_ptr().wrapping_add(first + line * apart).cast())
    }

    /// The number of a panel's first unit.
    #[inline(always)]
    pub(crate) fn first_unit(&self, panel: usize) -> usize {
        panel * self.units_of_panel
    }

    /// Lengthens these units of a panel, but for their exceptions.
    #[inline(always)]
    pub(crate) fn lengthen<S: Simd>(&self, simd: S, panel: usize, units: Range<usize>, to: &mut [Unit]) {
        let first = self.first_unit(panel);
        for (unit, to) in units.zip(to) {
            simd.lengthen(self.unit(first + unit), self.exponents(panel), to);
        }
    }

    /// Both weights of a lane of one of a panel's vectors, unless they are exceptions.
    #[inline(always)]
    pub(crate) fn pair(&self, panel: usize, vector: usize, lane: usize, exponents: &Exponents) -> [u16; 2] {
        let unit = self.unit(self.first_unit(panel) + vector / VECTORS);
        let (vector, rests) = (vector % VECTORS, unit.rests[vector % VECTORS / 2]);
        [2 * lane, 2 * lane + 1].map(|word| lengthened(vector, rests[word], unit.codes[word], exponents))
    }

    /// A panel's exceptions: vector, word of it, and all bits.
    pub(crate) fn unnamed(&self, panel: usize) -> impl Iterator<Item = (usize, usize, u16)> {
        self.listed(panel).iter().map(|exception| {
            let at = exception.at as usize;
            (at / WEIGHTS, at % WEIGHTS, exception.bits as u16)
        })
    }

    #[inline(always)]
    fn listed(&self, panel: usize) -> &'a [Exception] {
        &self.exceptions[self.starts[panel] as usize..self.starts[panel + 1] as usize]
    }
}

/// Up to where exceptions were asked for last.
pub(crate) struct Seen {
    panel: usize,
    unit: usize,
    /// How many the panel has before that unit.
    count: usize,
}

impl Seen {
    /// Before any panel's first.
    pub(crate) const NONE: Self = Self { panel: 0, unit: 0, count: 0 };

    /// What a piece's units do not hold: the unit, counted from the piece's first, the weight's place in it, and all its bits.
    #[inline(always)]
    pub(crate) fn exceptions<'a>(
        &mut self,
        short: &Short<'a>,
        piece: Piece,
    ) -> impl Iterator<Item = (usize, usize, u16)> + use<'a> {
        let listed = short.listed(piece.panel);
        let before = match *self {
            _ if piece.from == 0 => 0,
            Self { panel, unit, count } if (panel, unit) == (piece.panel, piece.from) => count,
            _ => listed.partition_point(|exception| exception.unit() < piece.from),
        };
        let count = listed[before..].iter().take_while(|exception| exception.unit() < piece.to).count();
        *self = Self { panel: piece.panel, unit: piece.to, count: before + count };
        listed[before..before + count].iter().map(move |exception| {
            (exception.unit() - piece.from, exception.at as usize % UNIT_WEIGHTS, exception.bits as u16)
        })
    }
}

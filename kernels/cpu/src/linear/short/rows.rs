//! Panels that are shortened before they are turned.
//!
//! Of a unit the first vector's words meet the second's, and the third's the fourth's: rows sixteen apart, at the same place along K. So a
//! panel's rows can be read as they lie, four streams at once, which memory gives faster than lines of 64 rows in turn, and three quarters are
//! left to be turned. They wait for that in a room in the second-level cache; while they are turned and written, the next are read.

use super::matrix::PanelLines;
use super::names::have_any;
use super::{Exception, REST, UNIT_WEIGHTS, VECTORS, WEIGHTS};
use crate::simd::{Kernel, LANES, Line, Simd};

/// Bytes of a line: 32 weights of a row.
const LINE: usize = size_of::<Line>();
/// Lines of a row that are read before they are turned: as many as make a linear stream, and few enough that two rooms stay in the cache.
const LINES: usize = 32;
/// Rows of a room: the fronts of four rows, their backs, and the numbers of their exponents.
const SHORT_ROWS: usize = 3 * LANES;
/// From a row of a room to the next, so that they do not compete for places of the first-level cache.
const APART: usize = LINES + 1;
/// Lines of two rooms.
pub(super) const ROOMS: usize = 2 * SHORT_ROWS * APART;
/// How many bytes ahead each stream asks.
const AHEAD: usize = 1024;
/// Bits of a word less the first exponent that only another exponent than those sixteen sets.
const OTHERS: u16 = 0x7800;

/// What a thread keeps from panel to panel.
pub(super) struct RowRooms<'a> {
    lines: &'a mut [Line],
    /// Which of the two is turned.
    used: usize,
    /// The panel whose first piece waits in it.
    waiting: Option<usize>,
    /// Exceptions of the panel that is turned, and of the next.
    found: [Vec<Exception>; 2],
}

impl<'a> RowRooms<'a> {
    /// `lines`: so many as [`ROOMS`].
    pub(super) fn new(lines: &'a mut [Line]) -> Self {
        Self { lines, used: 0, waiting: None, found: [Vec::new(), Vec::new()] }
    }
}

/// Shortens a panel with sixteen exponents in a row; `exceptions` gets what they leave out. False: there are more than `most` of these,
/// `exceptions` is as before, and the panel has to be written again.
pub(super) struct ShortenRows<'a, 'r> {
    /// The panel's rows, and those of the panel that comes next, if it is read this way.
    pub(super) rows: &'a [u8],
    pub(super) next: Option<&'a [u8]>,
    pub(super) panel: usize,
    /// The first exponent, where a bfloat16 has its own.
    pub(super) first: u16,
    pub(super) rooms: &'a mut RowRooms<'r>,
    pub(super) exceptions: &'a mut Vec<Exception>,
    pub(super) most: usize,
    pub(super) lines: PanelLines<'a>,
}

impl Kernel for ShortenRows<'_, '_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        let Self { rows, next, panel, first, rooms, exceptions, most, mut lines } = self;
        let RowRooms { lines: room, used, waiting, found: [found, coming] } = rooms;
        let (one, other) = room.split_at_mut(ROOMS / 2);
        let mut rooms = if *used == 0 { [one, other] } else { [other, one] };
        let all = rows.len() / (VECTORS * LANES * LINE);
        if waiting.take() != Some(panel) {
            found.clear();
            let mut reading = Reading::new(rows, first, 0, rooms[0], found);
            reading.read(simd, usize::MAX);
        }
        for at in (0..all).step_by(LINES) {
            let [here, there] = &mut rooms;
            let mut reading = if at + LINES < all {
                Some(Reading::new(rows, first, at + LINES, there, found))
            } else {
                next.map(|next| Reading::new(next, first, 0, there, coming))
            };
            let count = LINES.min(all - at);
            for line in 0..count {
                if let Some(reading) = &mut reading {
                    reading.read(simd, (reading.all() * (line + 1)).div_ceil(count));
                }
                turn(simd, here, line, (at + line) * LANES, &mut lines);
            }
            rooms.swap(0, 1);
            *used = 1 - *used;
            if found.len() > most {
                coming.clear();
                simd.drain(); // before the same lines are written again
                return false;
            }
        }
        found.sort_unstable_by_key(|exception| exception.at);
        exceptions.append(found);
        std::mem::swap(found, coming);
        *waiting = next.map(|_| panel + 1);
        true
    }
}

/// A piece of a panel's rows that is read into a room, line after line: each of four rows, shortened into three.
struct Reading<'a> {
    rows: &'a [u8],
    first: u16,
    /// The first of each row's lines, and how many.
    from: usize,
    count: usize,
    /// How many lines were read.
    done: usize,
    /// A third each: fronts, backs and numbers.
    room: [&'a mut [Line]; 3],
    found: &'a mut Vec<Exception>,
}

impl<'a> Reading<'a> {
    fn new(rows: &'a [u8], first: u16, from: usize, room: &'a mut [Line], found: &'a mut Vec<Exception>) -> Self {
        let count = LINES.min(rows.len() / (VECTORS * LANES * LINE) - from);
        let (front, rest) = room.split_at_mut(LANES * APART);
        let (back, coded) = rest.split_at_mut(LANES * APART);
        Self { rows, first, from, count, done: 0, room: [front, back, coded], found }
    }

    /// How many lines there are to be read, each of four rows.
    fn all(&self) -> usize {
        LANES * self.count
    }

    /// Reads until so many are read, or all.
    #[inline(always)]
    fn read<S: Simd>(&mut self, simd: S, until: usize) {
        let until = until.min(self.all());
        while self.done < until {
            let (row, line) = (self.done / self.count, self.done % self.count);
            let count = (until - self.done).min(self.count - line);
            self.read_lines(simd, row, line, count);
            self.done += count;
        }
    }

    /// Lines of one of each sixteen rows.
    #[inline(always)]
    fn read_lines<S: Simd>(&mut self, simd: S, row: usize, line: usize, count: usize) {
        let (four, first) = (self.four(row, line, count), self.first);
        let to = row * APART + line..row * APART + line + count;
        let [front, back, coded] = &mut self.room;
        let (front, back, coded) = (&mut front[to.clone()], &mut back[to.clone()], &mut coded[to]);
        let mut seen = [0; WEIGHTS];
        for at in 0..count {
            for row in four {
                simd.prefetch(row.as_ptr().wrapping_add(at).cast::<u8>().wrapping_add(AHEAD));
            }
            let short = shortened(words_of(four, at), first, &mut seen);
            (front[at].0, back[at].0, coded[at].0) = (short[0], short[1], short[2]);
        }
        if have_any(&seen, OTHERS) {
            for at in 0..count {
                let (words, mut seen) = (words_of(four, at), [0; WEIGHTS]);
                shortened(words, first, &mut seen);
                if have_any(&seen, OTHERS) {
                    self.put_down(row, line + at, words);
                }
            }
        }
    }

    /// Lines of each of four rows.
    #[inline(always)]
    fn four(&self, row: usize, line: usize, count: usize) -> [&'a [[u8; LINE]]; VECTORS] {
        let apart = self.rows.len() / (VECTORS * LANES);
        let (block, rest) = (LANES * apart, &self.rows[row * apart + (self.from + line) * LINE..]);
        let mut four = [[].as_slice(); VECTORS];
        for (at, lines) in four.iter_mut().enumerate() {
            *lines = &rest[at * block..].as_chunks().0[..count];
        }
        four
    }

    /// Lists the weights whose exponents have no number.
    #[cold]
    #[inline(never)]
    fn put_down(&mut self, row: usize, line: usize, words: [[u16; WEIGHTS]; VECTORS]) {
        for (vector, words) in words.into_iter().enumerate() {
            for (word, bits) in words.into_iter().enumerate() {
                if bits.wrapping_sub(self.first) & OTHERS != 0 {
                    let unit = (self.from + line) * LANES + word / 2;
                    let place = vector * WEIGHTS + 2 * row + word % 2;
                    self.found.push(Exception { at: (unit * UNIT_WEIGHTS + place) as u32, bits: bits.into() });
                }
            }
        }
    }
}

#[inline(always)]
fn words_of(four: [&[[u8; LINE]]; VECTORS], at: usize) -> [[u16; WEIGHTS]; VECTORS] {
    let mut words = [[0; WEIGHTS]; VECTORS];
    for (words, lines) in words.iter_mut().zip(four) {
        *words = bytemuck::pod_read_unaligned(&lines[at]);
    }
    words
}

/// What a unit's three lines are made of, before they are turned. One loop over words, which a compiler makes vectors of.
#[inline(always)]
fn shortened(rows: [[u16; WEIGHTS]; VECTORS], first: u16, seen: &mut [u16; WEIGHTS]) -> [[u16; WEIGHTS]; 3] {
    let [mut front, mut back, mut coded] = [[0; WEIGHTS]; 3];
    for word in 0..WEIGHTS {
        let [a, b, c, d] = [rows[0][word], rows[1][word], rows[2][word], rows[3][word]];
        front[word] = a & REST | b.swap_bytes() & !REST;
        back[word] = c & REST | d.swap_bytes() & !REST;
        let (e, f) = (a.wrapping_sub(first), b.wrapping_sub(first));
        let (g, h) = (c.wrapping_sub(first), d.wrapping_sub(first));
        coded[word] = e >> 7 & 0xf | f >> 3 & 0xf0 | g << 1 & 0xf00 | h << 5 & 0xf000;
        seen[word] |= e | f | g | h;
    }
    [front, back, coded]
}

/// Writes the lines of sixteen units, which lie in one line of each of a room's rows.
#[inline(always)]
fn turn<S: Simd>(simd: S, room: &[Line], line: usize, first: usize, lines: &mut PanelLines<'_>) {
    for third in 0..3 {
        let mut block = [[0; LANES]; LANES];
        for (row, block) in block.iter_mut().enumerate() {
            *block = bytemuck::pod_read_unaligned(bytemuck::bytes_of(&room[(third * LANES + row) * APART + line]));
        }
        simd.transpose(&mut block);
        lines.put_third(simd, first, third, &block);
    }
}

//! Where pieces of short weights are lengthened: two rooms, one for the piece that is multiplied, one for the piece that comes next.

use super::{Seen, Short, UNIT_WEIGHTS, Unit};
use crate::simd::Simd;

/// Units `from..to` of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) panel: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Piece {
    /// No unit of any panel.
    pub(crate) const NONE: Self = Self { panel: 0, from: 0, to: 0 };

    /// How many units.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.to - self.from
    }
}

/// The two rooms of a thread. For each piece: `enter`, then `turn` as often as wanted, then `leave`.
pub(crate) struct Rooms<'a> {
    pub(crate) short: Short<'a>,
    rooms: [Room<'a>; 2],
    /// Which room has the piece that is multiplied.
    used: usize,
    here: Piece,
    /// What is on its way into the other room.
    next: Option<Piece>,
    /// Up to where exceptions were put right.
    seen: Seen,
}

/// Room for one piece.
struct Room<'a> {
    units: &'a mut [Unit],
    holds: Piece,
}

/// A piece to multiply, and a piece to lengthen meanwhile.
pub(crate) struct Turn<'a> {
    pub(crate) weights: &'a [Unit],
    /// None of it is there yet; no units, if there is nothing to do.
    pub(crate) next: Piece,
    pub(crate) to: &'a mut [Unit],
}

impl<'a> Rooms<'a> {
    /// `units`: of two rooms.
    #[inline(always)]
    pub(crate) fn new(short: Short<'a>, units: &'a mut [Unit]) -> Self {
        let (first, second) = units.split_at_mut(units.len() / 2);
        let rooms = [first, second].map(|units| Room { units, holds: Piece::NONE });
        Self { short, rooms, used: 0, here: Piece::NONE, next: None, seen: Seen::NONE }
    }

    /// Goes to a piece; `next` is what had better be ready when this one was used.
    #[inline(always)]
    pub(crate) fn enter<S: Simd>(&mut self, simd: S, here: Piece, next: Option<Piece>) {
        if self.rooms[self.used].holds != here {
            self.used = 1 - self.used;
        }
        if self.rooms[self.used].holds != here {
            self.complete(simd, self.used, here, 0);
        }
        let other = &mut self.rooms[1 - self.used];
        self.next = next.filter(|&next| other.holds != next);
        if self.next.is_some() {
            other.holds = Piece::NONE; // until it is complete
        }
        self.here = here;
    }

    /// What to multiply, and what to lengthen.
    #[inline(always)]
    pub(crate) fn turn(&mut self) -> Turn<'_> {
        let [first, second] = &mut self.rooms;
        let (room, other) = if self.used == 0 { (first, second) } else { (second, first) };
        let next = self.next.unwrap_or(Piece::NONE);
        Turn { weights: &room.units[..self.here.len()], next, to: &mut other.units[..next.len()] }
    }

    /// The piece was used, and the first `done` units of the next were lengthened, or all if it has no more.
    #[inline(always)]
    pub(crate) fn leave<S: Simd>(&mut self, simd: S, done: usize) {
        if let Some(next) = self.next {
            self.complete(simd, 1 - self.used, next, done);
        }
    }

    /// Brings into a room what it lacks of a piece whose first `done` units are there.
    #[inline(always)]
    fn complete<S: Simd>(&mut self, simd: S, room: usize, piece: Piece, done: usize) {
        let Piece { panel, from, to } = piece;
        let room = &mut self.rooms[room];
        let units = &mut room.units[..piece.len()];
        if done < units.len() {
            self.short.lengthen(simd, panel, from + done..to, &mut units[done..]);
        }
        let weights: &mut [[u16; UNIT_WEIGHTS]] = bytemuck::cast_slice_mut(units);
        for (unit, place, bits) in self.seen.exceptions(&self.short, piece) {
            weights[unit][place] = bits;
        }
        room.holds = piece;
    }
}

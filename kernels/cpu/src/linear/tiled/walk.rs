//! The order in which pieces of weights are used that have to be made ready first: half a panel after the other, a piece along K at a time.

use std::ops::Range;

use super::Cut;
use crate::amx::STEP_UNITS;
use crate::linear::short::Piece;
use crate::split::part;

/// Where a walk is.
#[derive(Clone, Copy)]
pub(in crate::linear) struct At {
    /// Of blocks of rows.
    pub(in crate::linear) group: usize,
    /// Behind the last panel of the group that belongs to this thread, and the panels whose sums wait together: from, to.
    pub(in crate::linear) own_end: usize,
    pub(in crate::linear) together: (usize, usize),
    pub(in crate::linear) panel: usize,
    pub(in crate::linear) side: usize,
    /// Steps from, to; and how many pieces they are cut into.
    pub(in crate::linear) stretch: (usize, usize),
    pub(in crate::linear) pieces: usize,
    pub(in crate::linear) piece: usize,
    /// Of the piece: from, to.
    pub(in crate::linear) steps: (usize, usize),
}

impl At {
    /// The unit of weights at which the piece begins and ends.
    #[inline(always)]
    pub(in crate::linear) fn units(&self, halves: Halves) -> Piece {
        let (from, to) = self.steps;
        Piece { panel: halves.number(self.panel, self.side), from: from * STEP_UNITS, to: to * STEP_UNITS }
    }
}

/// Which halves of panels, as they lie in memory, are multiplied as one panel.
#[derive(Clone, Copy)]
pub(in crate::linear) struct Halves {
    /// From a panel's first half to the next one's.
    step: usize,
    /// From a panel's first half to its second.
    pub(in crate::linear) apart: usize,
}

impl Halves {
    /// Those that lie side by side.
    pub(in crate::linear) const NEIGHBOURS: Self = Self { step: 2, apart: 1 };

    /// One of the first half of all columns, and the one that stands there in the second half, of so many panels in all.
    pub(in crate::linear) fn gated(panels: usize) -> Self {
        Self { step: 1, apart: panels }
    }

    #[inline(always)]
    pub(in crate::linear) fn number(self, panel: usize, side: usize) -> usize {
        panel * self.step + side * self.apart
    }
}

/// The order in which pieces are used.
pub(in crate::linear) struct Walk {
    pub(in crate::linear) cut: Cut,
    pub(in crate::linear) panels: usize,
    /// Of one thread: a unit is one panel and one group of blocks.
    pub(in crate::linear) units: Range<usize>,
}

impl Walk {
    /// The first of the units from `unit` on.
    pub(in crate::linear) fn begin(&self, unit: usize) -> Option<At> {
        let group = unit / self.panels;
        let first = group * self.panels;
        let is_there = unit < self.units.end;
        is_there.then(|| self.begin_together(group, self.panels.min(self.units.end - first), unit - first))
    }

    fn begin_together(&self, group: usize, own_end: usize, panel: usize) -> At {
        let together = (panel, own_end.min(panel + self.cut.together));
        let none = (0, 0);
        let at = At { group, own_end, together, panel, side: 0, stretch: none, pieces: 0, piece: 0, steps: none };
        self.begin_stretch(at, 0)
    }

    fn begin_stretch(&self, at: At, from: usize) -> At {
        let stretch = (from, self.cut.steps.min(from + self.cut.stretch));
        let pieces = (stretch.1 - from).div_ceil(self.cut.piece);
        self.begin_side(At { panel: at.together.0, stretch, pieces, ..at }, 0)
    }

    fn begin_side(&self, at: At, side: usize) -> At {
        let steps = part(at.stretch.1 - at.stretch.0, at.pieces, 0);
        At { side, piece: 0, steps: (at.stretch.0, at.stretch.0 + steps.end), ..at }
    }

    /// Whether the sums of both halves have all their steps behind this piece.
    #[inline(always)]
    pub(in crate::linear) fn is_complete(&self, at: &At) -> bool {
        at.side == 1 && at.steps.1 == self.cut.steps
    }

    /// The piece that comes behind it.
    #[inline(always)]
    pub(in crate::linear) fn after(&self, at: &At) -> Option<At> {
        if at.piece + 1 < at.pieces {
            let steps = part(at.stretch.1 - at.stretch.0, at.pieces, at.piece + 1);
            return Some(At { piece: at.piece + 1, steps: (at.steps.1, at.stretch.0 + steps.end), ..*at });
        }
        self.after_side(at)
    }

    #[cold]
    fn after_side(&self, at: &At) -> Option<At> {
        if at.side == 0 {
            Some(self.begin_side(*at, 1))
        } else if at.panel + 1 < at.together.1 {
            Some(self.begin_side(At { panel: at.panel + 1, ..*at }, 0))
        } else if at.stretch.1 < self.cut.steps {
            Some(self.begin_stretch(*at, at.stretch.1))
        } else if at.together.1 < at.own_end {
            Some(self.begin_together(at.group, at.own_end, at.together.1))
        } else {
            self.begin((at.group + 1) * self.panels)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_taken_once_each() {
        for halves in [Halves::NEIGHBOURS, Halves::gated(7)] {
            let mut numbers: Vec<_> = (0..7).flat_map(|panel| [0, 1].map(|side| halves.number(panel, side))).collect();
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..14));
        }
    }

    #[test]
    fn a_walk_comes_to_each_step_of_each_half_once_and_writes_what_is_whole() {
        for (rows, steps, panels, parts) in
            [(1, 9, 3, 2), (16, 96, 5, 2), (20, 7, 1, 3), (500, 65, 9, 3), (512, 500, 40, 2), (300, 1, 2, 5)]
        {
            let cut = Cut::new(rows, steps, panels, parts, true);
            let all = panels * cut.groups;
            let mut seen = vec![0; all * 2 * steps];
            let mut written = vec![0; all];
            for number in 0..parts {
                let walk = Walk { cut, panels, units: part(all, parts, number) };
                let mut here = walk.begin(walk.units.start);
                while let Some(at) = here {
                    let unit = at.group * panels + at.panel;
                    assert!(walk.units.contains(&unit) && (at.together.0..at.together.1).contains(&at.panel));
                    assert!(at.together.1 - at.together.0 <= cut.together && at.steps.1 - at.steps.0 <= cut.piece);
                    for step in at.steps.0..at.steps.1 {
                        let place = (unit * 2 + at.side) * steps + step;
                        assert!(step == 0 || seen[place - 1] == 1, "a sum takes in what comes first");
                        seen[place] += 1;
                    }
                    if walk.is_complete(&at) {
                        let both = &seen[unit * 2 * steps..(unit + 1) * 2 * steps];
                        assert!(both.iter().all(|&times| times == 1), "a sum is written when it is whole");
                        written[unit] += 1;
                    }
                    here = walk.after(&at);
                }
            }
            assert!(
                seen.iter().chain(&written).all(|&times| times == 1),
                "{rows} rows, {steps} steps, {panels} panels, {parts} parts"
            );
        }
    }
}

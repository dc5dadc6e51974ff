//! Where a row's recurrent states come from and where they go.
//!
//! ```text
//!   tokens   0 1 2 3 | 4 5 6 7 | 8 9         a row of ten tokens in blocks of four, at the start of a request
//!   All      zero → block 0 → block 1 → 2    the states after 4 and 8 tokens stay behind and can be found
//!   Align    zero → ............ block 1     and the row ends there: the next one computes the last two tokens
//!   None     zero → .................. → 0   and in place ever after
//! ```
//!
//! A row that ends in the block in which the one before it ended goes on in place, and nothing is said of it.

use crate::kinds::Kinds;
use crate::table::Table;
use crate::{SlotId, StateMode, StateMove};

/// Tells how the states of a row from `start` to `end` move. The table has the blocks that the row writes.
pub(crate) fn moves(
    kinds: &Kinds,
    block_size: u32,
    slot: SlotId,
    table: &Table,
    start: u32,
    end: u32,
    moves: &mut Vec<StateMove>,
) {
    let place = |token: u32| (token / block_size) as usize;
    for (kind, mode) in kinds.with_state() {
        let at = |at| table.get(kind, at).expect("a row has the blocks that it reads and writes");
        let number = u32::try_from(kind).expect("few kinds");
        let mut from = match mode {
            _ if start == 0 => None,
            StateMode::None => Some(at(0)),
            StateMode::All | StateMode::Align => Some(at(place(start - 1))),
        };
        for to_place in kinds.written(kind, start, end) {
            let to = at(to_place);
            let until = match mode {
                StateMode::All => end.min((u32::try_from(to_place).expect("counted by u32") + 1) * block_size),
                StateMode::Align | StateMode::None => end,
            };
            if from != Some(to) || until < end {
                moves.push(StateMove { slot, kind: number, from, to, until });
            }
            from = Some(to);
        }
    }
}

/// How many places a row from `start` on may reach, if `left` moves may still be told.
pub(crate) fn reach(kinds: &Kinds, block_size: u32, start: u32, left: u32) -> u32 {
    let begun = start.div_ceil(block_size);
    let (mut per_place, mut per_row) = (0, 0);
    for (_, mode) in kinds.with_state() {
        match mode {
            StateMode::All => {
                per_place += 1;
                per_row += u32::from(!start.is_multiple_of(block_size)); // in place, to the end of the block
            }
            StateMode::Align => per_row += 1,
            StateMode::None => per_row += u32::from(start == 0),
        }
    }
    match left.checked_sub(per_row) {
        None => begun,
        Some(left) => begun.saturating_add(left.checked_div(per_place).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockId, Kind};

    fn told(mode: StateMode, rows: &[(u32, u32)]) -> Vec<(Option<u32>, u32, u32)> {
        let kinds = Kinds::new(&[Kind::State { mode }], 4);
        let mut table = Table::new(1);
        let mut all = Vec::new();
        for &(start, end) in rows {
            for at in kinds.written(0, start, end) {
                if table.get(0, at).is_none() {
                    table.put(0, at, BlockId(u32::try_from(at).expect("few")));
                }
            }
            let before = all.len();
            moves(&kinds, 4, SlotId(0), &table, start, end, &mut all);
            let told = u32::try_from(all.len() - before).expect("few");
            let places = end.div_ceil(4) - start.div_ceil(4);
            let left = (0..).find(|&left| reach(&kinds, 4, start, left) >= end.div_ceil(4));
            let left = left.expect("with enough moves every row can be");
            assert!(told <= left && left <= told.max(places + 1), "{start} to {end}: {told} told, {left} asked for");
        }
        all.iter().map(|told| (told.from.map(|from| from.0), told.to.0, told.until)).collect()
    }

    #[test]
    fn states_begin_as_zeros_move_from_block_to_block_and_stay_in_place_within_one() {
        let rows = [(0, 3), (3, 4), (4, 5), (5, 6)];
        assert_eq!(told(StateMode::None, &rows), [(None, 0, 3)]);
        for mode in [StateMode::All, StateMode::Align] {
            assert_eq!(told(mode, &rows), [(None, 0, 3), (Some(0), 1, 5)]);
        }
        let rows = [(0, 10), (10, 13)];
        let in_place_first = (Some(2), 2, 12);
        assert_eq!(told(StateMode::None, &rows), [(None, 0, 10)]);
        assert_eq!(
            told(StateMode::All, &rows),
            [(None, 0, 4), (Some(0), 1, 8), (Some(1), 2, 10), in_place_first, (Some(2), 3, 13)]
        );
        assert_eq!(told(StateMode::Align, &[(0, 8), (8, 10)]), [(None, 1, 8), (Some(1), 2, 10)]);
    }
}

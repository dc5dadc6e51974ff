//! The persistent batch: block tables by slot, and a step's rows as the arrays that kernels read.
//!
//! A slot's life: an admit empties its table, appends fill it, rows of later steps read it, a drop or the next admit ends it.
//! A row's last token may not be known yet (the router plans one step ahead): it is what the slot drew last.

use pelton_cpu::program::StepRows;
use pelton_frame::{PlanView, ROW_SAMPLES};

/// A plan that its blocks do not carry: the router's bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// More blocks than the longest context has.
    #[error("slot {slot} is given more than the {most} blocks of the longest context")]
    Table {
        /// Which slot.
        slot: u32,
        /// Blocks of the longest context.
        most: usize,
    },
    /// Tokens without a place for their KV.
    #[error("slot {slot} computes {tokens} tokens and has blocks for {room}")]
    Blocks {
        /// Which slot.
        slot: u32,
        /// Tokens after this step.
        tokens: usize,
        /// Tokens that its blocks hold.
        room: usize,
    },
}

pub(crate) struct Batch {
    block_size: usize,
    blocks_max: usize,
    tables: Vec<i32>,   // [slots, blocks_max]
    blocks: Vec<usize>, // how many of each table count
}

/// One step's rows. Kept from step to step, so that nothing is allocated once the largest step has been.
#[derive(Default)]
pub(crate) struct Arrays {
    ids: Vec<i32>,
    positions: Vec<i32>,
    kv_slots: Vec<i64>,
    block_table: Vec<i32>,
    row_offsets: Vec<i32>,
    row_starts: Vec<i32>,
    drawn_at: Vec<i32>,
    /// Rows that draw.
    pub(crate) drawn_rows: Vec<usize>,
    /// Their slots.
    pub(crate) drawn_slots: Vec<i32>,
    /// Where the drawn tokens will stand.
    pub(crate) drawn_positions: Vec<i32>,
}

impl Arrays {
    pub(crate) fn rows(&self) -> StepRows<'_> {
        StepRows {
            ids: &self.ids,
            positions: &self.positions,
            kv_slots: &self.kv_slots,
            block_table: &self.block_table,
            row_offsets: &self.row_offsets,
            row_starts: &self.row_starts,
            drawn_at: &self.drawn_at,
        }
    }

    fn clear(&mut self) {
        self.ids.clear();
        self.positions.clear();
        self.kv_slots.clear();
        self.block_table.clear();
        self.row_offsets.clear();
        self.row_starts.clear();
        self.drawn_at.clear();
        self.drawn_rows.clear();
        self.drawn_slots.clear();
        self.drawn_positions.clear();
    }
}

impl Batch {
    pub(crate) fn new(slots: usize, blocks_max: usize, block_size: usize) -> Self {
        Self { block_size, blocks_max, tables: vec![0; slots * blocks_max], blocks: vec![0; slots] }
    }

    /// Takes in drops, admits and appends, in this order.
    pub(crate) fn apply(&mut self, plan: &PlanView<'_>) -> Result<(), NoRoom> {
        for &slot in plan.drops {
            self.blocks[slot as usize] = 0;
        }
        for admit in plan.admits {
            self.blocks[admit.slot as usize] = 0;
        }
        for append in plan.appends {
            let slot = append.slot as usize;
            let at = self.blocks[slot];
            if at == self.blocks_max {
                return Err(NoRoom::Table { slot: append.slot, most: self.blocks_max });
            }
            self.tables[slot * self.blocks_max + at] = append.block as i32;
            self.blocks[slot] += 1;
        }
        Ok(())
    }

    /// The arrays of a step; `latest` is what each slot drew last.
    pub(crate) fn lay_out(&self, plan: &PlanView<'_>, latest: &[i32], into: &mut Arrays) -> Result<(), NoRoom> {
        into.clear();
        let mut longest = 0;
        for row in plan.rows {
            let tokens = (row.start + row.count) as usize;
            let room = self.blocks[row.slot as usize] * self.block_size;
            if tokens > room {
                return Err(NoRoom::Blocks { slot: row.slot, tokens, room });
            }
            longest = longest.max(tokens.div_ceil(self.block_size));
        }
        into.row_offsets.push(0);
        for (number, row) in plan.rows.iter().enumerate() {
            let slot = row.slot as usize;
            let table = &self.tables[slot * self.blocks_max..][..self.blocks_max];
            let (start, end) = (row.start as usize, (row.start + row.count) as usize);
            let known = &plan.tokens[row.token_offset as usize..][..row.known as usize];
            into.ids.extend(known.iter().map(|&id| id as i32));
            into.ids.extend((row.known < row.count).then_some(latest[slot]));
            into.positions.extend(start as i32..end as i32);
            into.kv_slots.extend((start..end).map(|position| {
                let block = table[position / self.block_size] as usize;
                (block * self.block_size + position % self.block_size) as i64
            }));
            into.block_table.extend_from_slice(&table[..longest]);
            into.row_offsets.push(into.ids.len() as i32);
            into.row_starts.push(start as i32);
            if row.flags & ROW_SAMPLES != 0 {
                into.drawn_at.push(into.ids.len() as i32 - 1);
                into.drawn_rows.push(number);
                into.drawn_slots.push(slot as i32);
                into.drawn_positions.push(end as i32);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pelton_frame::{Admit, Append, Row};
    use proptest::prelude::*;

    use super::*;

    fn append((slot, block): (u32, u32)) -> Append {
        Append { slot, block }
    }

    fn row(slot: u32, start: u32, count: u32, known: u32, token_offset: u32, samples: bool) -> Row {
        Row { slot, start, count, known, token_offset, flags: u32::from(samples), row_offset: 0, zero: 0 }
    }

    fn admits(slots: &[u32]) -> Vec<Admit> {
        slots.iter().map(|&slot| Admit { slot, ..Admit::default() }).collect()
    }

    #[test]
    fn rows_of_a_step_lie_as_the_kernels_want_them() {
        let (mut batch, mut arrays) = (Batch::new(8, 4, 4), Arrays::default());
        let mut latest = vec![0; 8];
        let tokens: Vec<u32> = (1..7).chain(20..29).collect();
        let plan = PlanView {
            admits: &admits(&[5, 2]),
            appends: &[(5, 30), (2, 11), (5, 31), (2, 10), (5, 29)].map(append), // interleaved, several to one slot
            rows: &[row(2, 0, 6, 6, 0, true), row(5, 0, 9, 9, 6, false)],
            tokens: &tokens,
            ..PlanView::default()
        };
        batch.apply(&plan).unwrap();
        batch.lay_out(&plan, &latest, &mut arrays).unwrap();
        assert_eq!(arrays.ids, tokens.iter().map(|&id| id as i32).collect::<Vec<_>>());
        assert_eq!(arrays.positions, (0..6).chain(0..9).collect::<Vec<_>>());
        assert_eq!(arrays.kv_slots, [44, 45, 46, 47, 40, 41, 120, 121, 122, 123, 124, 125, 126, 127, 116]);
        assert_eq!(arrays.block_table, [11, 10, 0, 30, 31, 29]);
        assert_eq!((&arrays.row_offsets[..], &arrays.row_starts[..]), (&[0, 6, 15][..], &[0, 0][..]));
        assert_eq!((&arrays.drawn_rows[..], &arrays.drawn_at[..]), (&[0][..], &[5][..]));
        assert_eq!((&arrays.drawn_slots[..], &arrays.drawn_positions[..]), (&[2][..], &[6][..]));

        // Slot 2 goes on with the token that it drew; slot 5 ends its prompt before it.
        latest[2] = 77;
        let plan = PlanView {
            rows: &[row(5, 9, 2, 2, 0, true), row(2, 6, 1, 0, 2, true)],
            tokens: &[29, 30],
            ..PlanView::default()
        };
        batch.apply(&plan).unwrap();
        batch.lay_out(&plan, &latest, &mut arrays).unwrap();
        assert_eq!(arrays.ids, [29, 30, 77]);
        assert_eq!(arrays.kv_slots, [117, 118, 42]);
        assert_eq!((&arrays.row_starts[..], &arrays.drawn_positions[..]), (&[9, 6][..], &[11, 7][..]));

        // A slot that is admitted again starts with an empty table, in the same step as its drop.
        let plan = PlanView {
            drops: &[2],
            admits: &admits(&[2]),
            appends: &[append((2, 7))],
            rows: &[row(2, 0, 1, 1, 0, true)],
            tokens: &[9],
            ..PlanView::default()
        };
        batch.apply(&plan).unwrap();
        batch.lay_out(&plan, &latest, &mut arrays).unwrap();
        assert_eq!(arrays.block_table, [7]);
    }

    #[test]
    fn a_plan_that_its_blocks_do_not_carry_is_refused() {
        let (mut batch, mut arrays) = (Batch::new(8, 4, 4), Arrays::default());
        let appends: Vec<_> = (0..5).map(|block| append((0, block))).collect();
        let plan = PlanView { admits: &admits(&[0]), appends: &appends, ..PlanView::default() };
        assert_eq!(batch.apply(&plan), Err(NoRoom::Table { slot: 0, most: 4 }));

        let rows = [row(0, 0, 5, 5, 0, true)];
        let plan = PlanView {
            admits: &admits(&[0]),
            appends: &appends[..1],
            rows: &rows,
            tokens: &[1; 5],
            ..PlanView::default()
        };
        batch.apply(&plan).unwrap();
        let refused = batch.lay_out(&plan, &[0; 8], &mut arrays);
        assert_eq!(refused, Err(NoRoom::Blocks { slot: 0, tokens: 5, room: 4 }));
    }

    proptest! {
        #[test]
        fn every_token_has_the_place_that_its_position_says(
            starts in prop::collection::vec((0..30_u32, 1..20_u32), 1..6), block_size in 1..9_usize,
        ) {
            let blocks_max = 50_usize.div_ceil(block_size);
            let (mut batch, mut arrays) = (Batch::new(6, blocks_max, block_size), Arrays::default());
            let rows: Vec<_> = starts
                .iter()
                .enumerate()
                .map(|(slot, &(start, count))| row(slot as u32, start, count, count, 0, slot % 2 == 0))
                .collect();
            // Blocks of a slot lie apart and backwards.
            let appends: Vec<_> = (0..6 * blocks_max as u32)
                .map(|at| append((at % 6, 1000 - at)))
                .collect();
            let slots: Vec<_> = (0..6).collect();
            let plan = PlanView { admits: &admits(&slots), appends: &appends, rows: &rows, tokens: &[1; 20], ..PlanView::default() };
            batch.apply(&plan).unwrap();
            batch.lay_out(&plan, &[0; 6], &mut arrays).unwrap();
            let expected: Vec<_> = rows.iter().flat_map(|row| (row.start..row.start + row.count).map(move |position| {
                let block = 1000 - i64::from(row.slot) - 6 * (position as i64 / block_size as i64);
                block * block_size as i64 + position as i64 % block_size as i64
            })).collect();
            prop_assert_eq!(&arrays.kv_slots, &expected);
            prop_assert_eq!(arrays.rows().counts().tokens, expected.len());
            prop_assert_eq!(arrays.rows().counts().draws, rows.len().div_ceil(2));
        }
    }
}

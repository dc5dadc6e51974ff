//! The persistent batch: block tables by slot, and a step's rows as the arrays that kernels read.
//!
//! A slot's life: an admit empties its tables, appends fill them, rows of later steps read them, a drop or the next admit
//! ends it. There is a table for each kind of layers. What is never put into one is a hole: what lies there is of an earlier
//! request, and no kernel looks behind a window. So do blocks that a window has passed, which are another one's by then.
//! A row's last token may not be known yet (the router plans one step ahead): it is what the slot drew last.

use pelton_cpu::program::{Embeds, StepRows};
use pelton_frame::{Append, PlanView, ROW_POOLS, ROW_SAMPLES, Row};

/// A plan that its blocks do not carry: the router's bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// A place beyond the longest context, or a kind that the model has not.
    #[error("slot {slot} is given a block at {at} of kind {kind}; the tables have {most} places")]
    Table {
        /// Which slot.
        slot: u32,
        /// Of which kind.
        kind: u32,
        /// Where.
        at: u32,
        /// Blocks of the longest context.
        most: usize,
    },
    /// Tokens without a place for their KV.
    #[error("slot {slot} computes {tokens} tokens and has blocks of kind {kind} for {room}")]
    Blocks {
        /// Which slot.
        slot: u32,
        /// Of which kind.
        kind: usize,
        /// Tokens after this step.
        tokens: usize,
        /// Tokens that its blocks hold.
        room: usize,
    },
}

pub(crate) struct Batch {
    block_size: usize,
    slots: usize,
    blocks_max: usize,
    tables: Vec<i32>, // [kinds, slots, blocks_max]
    ends: Vec<usize>, // [kinds, slots]: behind the last place that was filled
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
    /// Each draw's row: one draw for a row, and one more for each of its drafts. Or the rows that pool: a step's rows do one or
    /// the other, as the model does.
    pub(crate) drawn_rows: Vec<usize>,
    /// Its place among the results.
    pub(crate) drawn_results: Vec<usize>,
    /// Its slot.
    pub(crate) drawn_slots: Vec<i32>,
    /// Where the drawn token will stand.
    pub(crate) drawn_positions: Vec<i32>,
    /// What is scored: the tokens that follow. In `drawn_at` their places come behind those of all draws.
    pub(crate) scored_tokens: Vec<i32>,
    /// Their places among the results.
    pub(crate) scored_results: Vec<usize>,
    /// Their slots.
    pub(crate) scored_slots: Vec<i32>,
    /// The tokens in whose places embeddings stand.
    embeds_at: Vec<i32>,
}

impl Arrays {
    /// `embeds`: the plan's; `scale`: what the model multiplies them with.
    pub(crate) fn rows<'a>(&'a self, embeds: &'a [f32], scale: f32) -> StepRows<'a> {
        StepRows {
            ids: &self.ids,
            positions: &self.positions,
            kv_slots: &self.kv_slots,
            block_table: &self.block_table,
            row_offsets: &self.row_offsets,
            row_starts: &self.row_starts,
            drawn_at: &self.drawn_at,
            embeds: Embeds { at: &self.embeds_at, values: embeds, scale },
        }
    }

    /// What rows score, behind what they draw: their last tokens, without the one that they draw behind.
    fn lay_out_scores(&mut self, rows: &[Row]) {
        let mut results = 0;
        for row in rows {
            let end = row.row_offset + row.count - (row.flags & ROW_SAMPLES);
            for at in end - row.scores..end {
                let is_followed = at + 1 < row.row_offset + row.count;
                self.drawn_at.push(at as i32);
                self.scored_tokens.push(if is_followed { self.ids[at as usize + 1] } else { row.next as i32 });
                self.scored_results.push((results + at + row.scores - end) as usize);
                self.scored_slots.push(row.slot as i32);
            }
            results += 1 + row.drafts + row.scores;
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
        self.drawn_results.clear();
        self.drawn_slots.clear();
        self.drawn_positions.clear();
        self.scored_tokens.clear();
        self.scored_results.clear();
        self.scored_slots.clear();
        self.embeds_at.clear();
    }
}

impl Batch {
    pub(crate) fn new(kinds: usize, slots: usize, blocks_max: usize, block_size: usize) -> Self {
        let tables = vec![0; kinds * slots * blocks_max];
        Self { block_size, slots, blocks_max, tables, ends: vec![0; kinds * slots] }
    }

    /// Takes in drops, admits and appends, in this order.
    pub(crate) fn apply(&mut self, plan: &PlanView<'_>) -> Result<(), NoRoom> {
        for &slot in plan.drops {
            self.empty(slot);
        }
        for admit in plan.admits {
            self.empty(admit.slot);
        }
        for &Append { slot, kind, at, block } in plan.appends {
            let table = kind as usize * self.slots + slot as usize;
            if table >= self.ends.len() || at as usize >= self.blocks_max {
                return Err(NoRoom::Table { slot, kind, at, most: self.blocks_max });
            }
            self.tables[table * self.blocks_max + at as usize] = block as i32;
            self.ends[table] = self.ends[table].max(at as usize + 1);
        }
        Ok(())
    }

    fn empty(&mut self, slot: u32) {
        self.ends[slot as usize..].iter_mut().step_by(self.slots).for_each(|end| *end = 0);
    }

    /// The arrays of a step; `latest` is what each slot drew last.
    pub(crate) fn lay_out(&self, plan: &PlanView<'_>, latest: &[i32], into: &mut Arrays) -> Result<(), NoRoom> {
        into.clear();
        let mut longest = 0;
        for row in plan.rows {
            let tokens = (row.start + row.count) as usize;
            for (kind, ends) in self.ends.chunks_exact(self.slots).enumerate() {
                let room = ends[row.slot as usize] * self.block_size;
                if tokens > room {
                    return Err(NoRoom::Blocks { slot: row.slot, kind, tokens, room });
                }
            }
            longest = longest.max(tokens.div_ceil(self.block_size));
        }
        for tables in self.tables.chunks_exact(self.slots * self.blocks_max) {
            for row in plan.rows {
                let table = &tables[row.slot as usize * self.blocks_max..][..self.blocks_max];
                into.kv_slots.extend((row.start as usize..(row.start + row.count) as usize).map(|position| {
                    let block = table[position / self.block_size] as usize;
                    (block * self.block_size + position % self.block_size) as i64
                }));
                into.block_table.extend_from_slice(&table[..longest]);
            }
        }
        into.row_offsets.push(0);
        let mut results = 0;
        for (number, row) in plan.rows.iter().enumerate() {
            let slot = row.slot as usize;
            let (start, end) = (row.start as usize, (row.start + row.count) as usize);
            let known = &plan.tokens[row.token_offset as usize..][..row.known as usize];
            into.embeds_at.extend((into.ids.len() as i32..).take(row.embeds as usize));
            into.ids.extend(known.iter().map(|&id| id as i32));
            into.ids.extend((row.known < row.count).then_some(latest[slot]));
            into.positions.extend(start as i32..end as i32);
            into.row_offsets.push(into.ids.len() as i32);
            into.row_starts.push(start as i32);
            if row.flags & (ROW_SAMPLES | ROW_POOLS) != 0 {
                for before_end in (0..=row.drafts as usize).rev() {
                    into.drawn_at.push((into.ids.len() - 1 - before_end) as i32);
                    into.drawn_rows.push(number);
                    into.drawn_results.push(results + (row.scores + row.drafts) as usize - before_end);
                    into.drawn_slots.push(slot as i32);
                    into.drawn_positions.push((end - before_end) as i32);
                }
            }
            results += 1 + (row.drafts + row.scores) as usize;
        }
        into.lay_out_scores(plan.rows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pelton_frame::{Admit, Row};
    use proptest::prelude::*;

    use super::*;

    /// Blocks of one kind, each behind its slot's one before.
    fn appends(list: &[(u32, u32)]) -> Vec<Append> {
        let at = |index: usize| list[..index].iter().filter(|(slot, _)| *slot == list[index].0).count() as u32;
        let append = |(index, &(slot, block)): (usize, &(u32, u32))| Append { slot, kind: 0, at: at(index), block };
        list.iter().enumerate().map(append).collect()
    }

    fn row(slot: u32, start: u32, count: u32, known: u32, token_offset: u32, samples: bool) -> Row {
        Row { slot, start, count, known, token_offset, flags: u32::from(samples), row_offset: 0, ..Row::default() }
    }

    fn admits(slots: &[u32]) -> Vec<Admit> {
        slots.iter().map(|&slot| Admit { slot, ..Admit::default() }).collect()
    }

    #[test]
    fn rows_of_a_step_lie_as_the_kernels_want_them() {
        let (mut batch, mut arrays) = (Batch::new(1, 8, 4, 4), Arrays::default());
        let mut latest = vec![0; 8];
        let tokens: Vec<u32> = (1..7).chain(20..29).collect();
        let plan = PlanView {
            admits: &admits(&[5, 2]),
            appends: &appends(&[(5, 30), (2, 11), (5, 31), (2, 10), (5, 29)]), // interleaved, several to one slot
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
            appends: &appends(&[(2, 7)]),
            rows: &[row(2, 0, 1, 1, 0, true)],
            tokens: &[9],
            ..PlanView::default()
        };
        batch.apply(&plan).unwrap();
        batch.lay_out(&plan, &latest, &mut arrays).unwrap();
        assert_eq!(arrays.block_table, [7]);
    }

    #[test]
    fn a_row_with_drafts_draws_after_its_last_known_token_and_after_each_draft() {
        let (mut batch, mut arrays) = (Batch::new(1, 8, 4, 4), Arrays::default());
        let rows = [row(1, 0, 2, 2, 0, false), Row { drafts: 2, ..row(4, 5, 3, 3, 2, true) }, row(0, 3, 1, 1, 5, true)];
        let plan = PlanView {
            admits: &admits(&[0, 1, 4]),
            appends: &appends(&[(1, 1), (4, 2), (4, 3), (0, 5)]),
            rows: &rows,
            tokens: &[10, 11, 20, 21, 22, 30],
            ..PlanView::default()
        };
        batch.apply(&plan).unwrap();
        batch.lay_out(&plan, &[0; 8], &mut arrays).unwrap();
        assert_eq!(arrays.ids, [10, 11, 20, 21, 22, 30]);
        assert_eq!((&arrays.drawn_at[..], &arrays.drawn_rows[..]), (&[2, 3, 4, 5][..], &[1, 1, 1, 2][..]));
        assert_eq!((&arrays.drawn_slots[..], &arrays.drawn_positions[..]), (&[4, 4, 4, 0][..], &[6, 7, 8, 4][..]));
        assert_eq!(arrays.drawn_results, [1, 2, 3, 4]);
    }

    #[test]
    fn scored_tokens_come_behind_all_draws_each_with_the_one_that_follows_it() {
        let (mut batch, mut arrays) = (Batch::new(1, 8, 4, 4), Arrays::default());
        let rows = [
            Row { scores: 2, next: 13, ..row(1, 0, 3, 3, 0, false) }, // a prompt goes on with 13
            Row { scores: 1, row_offset: 3, ..row(4, 5, 2, 2, 3, true) }, // and one ends
            Row { row_offset: 5, ..row(0, 3, 1, 1, 5, true) },
        ];
        let plan = PlanView {
            admits: &admits(&[0, 1, 4]),
            appends: &appends(&[(1, 1), (4, 2), (4, 3), (0, 5)]),
            rows: &rows,
            tokens: &[10, 11, 12, 20, 21, 30],
            ..PlanView::default()
        };
        batch.apply(&plan).unwrap();
        batch.lay_out(&plan, &[0; 8], &mut arrays).unwrap();
        assert_eq!((&arrays.drawn_results[..], &arrays.drawn_slots[..]), (&[4, 5][..], &[4, 0][..]));
        assert_eq!(arrays.drawn_at, [4, 5, 1, 2, 3]);
        assert_eq!((&arrays.scored_tokens[..], &arrays.scored_slots[..]), (&[12, 13, 21][..], &[1, 1, 4][..]));
        assert_eq!(arrays.scored_results, [0, 1, 3]);
    }

    #[test]
    fn embeddings_stand_in_the_places_of_their_rows_first_tokens() {
        let (mut batch, mut arrays) = (Batch::new(1, 8, 4, 4), Arrays::default());
        let rows = [
            row(1, 0, 1, 1, 0, false),
            Row { embeds: 2, ..row(4, 2, 3, 3, 1, true) },
            Row { embeds: 1, ..row(0, 3, 1, 1, 4, false) },
        ];
        let plan = PlanView {
            admits: &admits(&[0, 1, 4]),
            appends: &appends(&[(1, 1), (4, 2), (4, 3), (0, 5)]),
            rows: &rows,
            tokens: &[10, 0, 0, 20, 0],
            embeds: &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            ..PlanView::default()
        };
        batch.apply(&plan).unwrap();
        batch.lay_out(&plan, &[0; 8], &mut arrays).unwrap();
        let Embeds { at, values, scale } = arrays.rows(plan.embeds, 3.0).embeds;
        assert_eq!((at, values, scale), (&[1, 2, 4][..], plan.embeds, 3.0));
        // Nothing of it is left for the next step.
        let next = PlanView { rows: &rows[..1], tokens: &[10], ..PlanView::default() };
        batch.lay_out(&next, &[0; 8], &mut arrays).unwrap();
        assert_eq!(arrays.rows(&[], 1.0).embeds.at, []);
    }

    #[test]
    fn a_plan_that_its_blocks_do_not_carry_is_refused() {
        let (mut batch, mut arrays) = (Batch::new(1, 8, 4, 4), Arrays::default());
        let appends = appends(&[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]);
        let plan = PlanView { admits: &admits(&[0]), appends: &appends, ..PlanView::default() };
        assert_eq!(batch.apply(&plan), Err(NoRoom::Table { slot: 0, kind: 0, at: 4, most: 4 }));
        let of_another = [Append { slot: 7, kind: 1, at: 0, block: 3 }];
        let refused = batch.apply(&PlanView { appends: &of_another, ..PlanView::default() });
        assert_eq!(refused, Err(NoRoom::Table { slot: 7, kind: 1, at: 0, most: 4 }));

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
        assert_eq!(refused, Err(NoRoom::Blocks { slot: 0, kind: 0, tokens: 5, room: 4 }));
    }

    #[test]
    fn each_kind_has_its_own_table_and_a_hole_is_no_lack_of_room() {
        let (mut batch, mut arrays) = (Batch::new(2, 3, 4, 4), Arrays::default());
        let append = |kind, at, block| Append { slot: 1, kind, at, block };
        let plan = PlanView {
            admits: &admits(&[1]),
            // Kind 1 has a window: of a prefix of 8 tokens it has the second block alone.
            appends: &[append(0, 0, 20), append(0, 1, 21), append(1, 1, 31), append(0, 2, 22), append(1, 2, 32)],
            rows: &[row(1, 8, 3, 3, 0, true)],
            tokens: &[1, 2, 3],
            ..PlanView::default()
        };
        batch.apply(&plan).unwrap();
        batch.lay_out(&plan, &[0; 3], &mut arrays).unwrap();
        assert_eq!(arrays.kv_slots, [88, 89, 90, 128, 129, 130]);
        assert_eq!(arrays.block_table, [20, 21, 22, 0, 31, 32]);

        let behind = PlanView { rows: &[row(1, 11, 2, 2, 0, true)], tokens: &[4, 5], ..PlanView::default() };
        let only_full = PlanView { appends: &[append(0, 3, 23)], ..behind };
        batch.apply(&only_full).unwrap();
        let refused = batch.lay_out(&only_full, &[0; 3], &mut arrays);
        assert_eq!(refused, Err(NoRoom::Blocks { slot: 1, kind: 1, tokens: 13, room: 12 }));

        // Emptied, all of them.
        batch.apply(&PlanView { drops: &[1], ..PlanView::default() }).unwrap();
        let refused = batch.lay_out(&behind, &[0; 3], &mut arrays);
        assert_eq!(refused, Err(NoRoom::Blocks { slot: 1, kind: 0, tokens: 13, room: 0 }));
    }

    proptest! {
        #[test]
        fn every_token_has_the_place_that_its_position_says(
            starts in prop::collection::vec((0..30_u32, 1..20_u32), 1..6), block_size in 1..9_usize,
        ) {
            let blocks_max = 50_usize.div_ceil(block_size);
            let (mut batch, mut arrays) = (Batch::new(1, 6, blocks_max, block_size), Arrays::default());
            let rows: Vec<_> = starts
                .iter()
                .enumerate()
                .map(|(slot, &(start, count))| row(slot as u32, start, count, count, 0, slot % 2 == 0))
                .collect();
            // Blocks of a slot lie apart and backwards.
            let appends: Vec<_> = (0..6 * blocks_max as u32)
                .map(|number| Append { slot: number % 6, kind: 0, at: number / 6, block: 1000 - number })
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
            prop_assert_eq!(arrays.rows(&[], 1.0).counts().tokens, expected.len());
            prop_assert_eq!(arrays.rows(&[], 1.0).counts().draws, rows.len().div_ceil(2));
        }
    }
}

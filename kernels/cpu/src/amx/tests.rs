//! The products against sums of the same words in plain arithmetic, for every shape of tile; and threads that take turns.

use super::*;
use crate::element::Bf16;

fn words(seed: u32, count: usize) -> Vec<u32> {
    (0..count).map(|at| crate::philox4x32([at as u32, 0, 0, 0], [seed, 0])[0]).collect()
}

/// The processor's, or emulated ones where it has all else that they need.
fn tiles() -> Option<Amx> {
    crate::Isa::named("amx").and_then(crate::Isa::amx)
}

/// What a product does with one word of an activation and one of a weight.
trait Plain: Product {
    /// The same words, of a range whose sums have one right answer.
    fn tame(word: u32) -> u32;
    /// Sums of `steps` steps of `words` words, `(activation, weight)`, that begin at `start`; as bits.
    fn sum(start: u32, steps: &[Vec<(u32, u32)>]) -> u32;
}

macro_rules! pairs {
    ($product:ty) => {
        impl Plain for $product {
            /// Two numbers in [-1, 1).
            fn tame(word: u32) -> u32 {
                let half = |bits: u32| u32::from(Bf16::from_f32(f32::from(bits as u16 as i16) / 32768.0).0);
                half(word & 0xffff) | half(word >> 16) << 16
            }

            fn sum(start: u32, steps: &[Vec<(u32, u32)>]) -> u32 {
                let first = |word: u32| f32::from_bits(word << 16);
                let second = |word: u32| f32::from_bits(word & 0xffff_0000);
                let mut sum = f32::from_bits(start);
                for step in steps {
                    let sums = step.iter().fold((0.0_f32, 0.0_f32), |sums, &(x, weight)| {
                        (first(x).mul_add(first(weight), sums.0), second(x).mul_add(second(weight), sums.1))
                    });
                    sum += sums.0 + sums.1;
                }
                sum.to_bits()
            }
        }
    };
}

pairs!(Bf16Pairs);
pairs!(Bf16WidePairs);

impl Plain for CodeQuads {
    fn tame(word: u32) -> u32 {
        word
    }

    fn sum(start: u32, steps: &[Vec<(u32, u32)>]) -> u32 {
        let dot = |&(x, weight): &(u32, u32)| -> i32 {
            let pairs = x.to_le_bytes().into_iter().zip(weight.to_le_bytes());
            pairs.map(|(x, weight)| i32::from(x as i8) * i32::from(weight)).sum()
        };
        (start as i32 + steps.iter().flatten().map(dot).sum::<i32>()) as u32
    }
}

impl Plain for CodeQuadTiles {
    fn tame(word: u32) -> u32 {
        word
    }

    fn sum(start: u32, steps: &[Vec<(u32, u32)>]) -> u32 {
        CodeQuads::sum(start, steps)
    }
}

/// One thread's inputs, and what both products must make of them.
struct Case<P> {
    shape: TileShape,
    steps: usize,
    x: [Vec<u32>; 2],
    weights: Vec<u32>,
    /// Bytes between the halves of the weights.
    half: usize,
    start: Vec<u32>,
    product: PhantomData<P>,
}

impl<P: Plain> Case<P> {
    fn new(seed: u32, shape: TileShape, steps: usize) -> Self {
        let half = if P::WEIGHT_ROW == ROW { steps * P::WEIGHT_STEP } else { 2 * ROW };
        let x = [1, 2].map(|side| words(seed + side, steps * shape.rows * 16).into_iter().map(P::tame).collect());
        let weights = words(seed + 3, (half + steps * P::WEIGHT_STEP) / 4).into_iter().map(P::tame).collect();
        let start = words(seed + 4, 2 * shape.rows * SUM_COLUMNS).into_iter().map(|word| P::tame(word) & 0x4fff_ffff);
        Self { shape, steps, x, weights, half, start: start.collect(), product: PhantomData }
    }

    /// The right bits of one sum; of one that begins at zero if it is fresh.
    fn expected(&self, block: usize, row: usize, column: usize, is_fresh: bool) -> u32 {
        let place = (block * self.shape.rows + row) * SUM_COLUMNS + column;
        let first = (column / 32 * self.half + column % 32 / 16 * P::WEIGHT_TILE) / 4 + column % 16;
        let step = |step: usize| {
            let pair = |word: usize| {
                let x = self.x[block][(step * self.shape.rows + row) * 16 + word];
                (x, self.weights[first + (step * P::WEIGHT_STEP + word * P::WEIGHT_ROW) / 4])
            };
            (0..self.shape.words).map(pair).collect()
        };
        P::sum(if is_fresh { 0 } else { self.start[place] }, &(0..self.steps).map(step).collect::<Vec<_>>())
    }

    /// Both products, added to sums that are there.
    fn run(&self, tiles: &Tiles) -> [Vec<u32>; 2] {
        let (weights, below): (&[u8], _) = (bytemuck::cast_slice(&self.weights), self.shape.rows * SUM_COLUMNS);
        let x = [0, 1].map(|block: usize| -> &[u8] { bytemuck::cast_slice(&self.x[block]) });
        let lie = Lie::by_steps(self.shape.rows);
        let (mut by_four, mut by_two) = (self.start.clone(), self.start.clone());
        for block in 0..2 {
            let sums = Sums::added(&mut by_four[block * below..]);
            // One of them asks for what comes next, over the ends of pages: that changes nothing.
            let next = weights.as_ptr();
            let ahead = if block == 0 { Ahead::NOTHING } else { Ahead { at: [next, next.wrapping_add(9)], lines: 40 } };
            tiles.one_by_four::<P>(sums, x[block], lie, weights, self.half, ahead, self.steps);
        }
        let ahead = Ahead { at: [weights.as_ptr()], lines: 40 };
        tiles.two_by_two::<P>(Sums::added(&mut by_two), x, lie, weights, ahead, self.steps);
        tiles.two_by_two::<P>(
            Sums::added(&mut by_two[32..]),
            x,
            lie,
            &weights[self.half..],
            Ahead::NOTHING,
            self.steps,
        );
        [by_four, by_two]
    }

    /// The same where each row's steps lie side by side, and sums that are not there yet farther apart; what lies between is
    /// left out.
    fn run_apart(&self, tiles: &Tiles) -> [Vec<u32>; 2] {
        const APART: usize = SUM_COLUMNS + 16;
        let (weights, rows): (&[u8], _) = (bytemuck::cast_slice(&self.weights), self.shape.rows);
        let lie = Lie { row: self.steps * ROW, step: ROW };
        let x = self.x.each_ref().map(|x| -> Vec<u32> {
            let word = |row: usize, step: usize| x[(step * rows + row) * 16..][..16].iter().copied();
            (0..rows).flat_map(|row| (0..self.steps).flat_map(move |step| word(row, step))).collect()
        });
        let x = x.each_ref().map(|x| -> &[u8] { bytemuck::cast_slice(x) });
        let mut sums = [vec![u32::MAX; 2 * rows * APART], vec![u32::MAX; 2 * rows * APART]];
        let [by_four, by_two] = &mut sums;
        fn fresh(sums: &mut [u32]) -> Sums<'_> {
            Sums { sums, row: APART, are_fresh: true }
        }
        for block in 0..2 {
            let sums = fresh(&mut by_four[block * rows * APART..]);
            tiles.one_by_four::<P>(sums, x[block], lie, weights, self.half, Ahead::NOTHING, self.steps);
        }
        tiles.two_by_two::<P>(fresh(by_two), x, lie, weights, Ahead::NOTHING, self.steps);
        tiles.two_by_two::<P>(fresh(&mut by_two[32..]), x, lie, &weights[self.half..], Ahead::NOTHING, self.steps);
        sums.map(|sums| {
            assert!(sums.chunks(APART).all(|row| row[SUM_COLUMNS..].iter().all(|&word| word == u32::MAX)));
            sums.chunks(APART).flat_map(|row| row[..SUM_COLUMNS].iter().copied()).collect()
        })
    }

    /// The sums of the first 16 columns: both blocks of rows, and both again.
    fn run_by_one(&self, tiles: &Tiles) -> Vec<u32> {
        let x = [0, 1, 0, 1].map(|block: usize| -> &[u8] { bytemuck::cast_slice(&self.x[block]) });
        let mut sums = vec![u32::MAX; 4 * self.shape.rows * 16];
        let weights = bytemuck::cast_slice(&self.weights);
        tiles.four_by_one::<P>(&mut sums, x, Lie::by_steps(self.shape.rows), weights, self.steps);
        sums
    }

    /// Fresh sums of the first 16 columns, a block at a time.
    fn check_one_by_one(&self, tiles: &Tiles) {
        let (weights, lie): (&[u8], _) = (bytemuck::cast_slice(&self.weights), Lie::by_steps(self.shape.rows));
        for block in 0..2 {
            let mut sums = [[u32::MAX; 16]; TILE_ROWS];
            tiles.one_by_one::<P>(&mut sums, bytemuck::cast_slice(&self.x[block]), lie, weights, self.steps);
            for (row, sums) in sums.iter().enumerate() {
                for (column, &got) in sums.iter().enumerate() {
                    let is_there = row < self.shape.rows;
                    let expected = if is_there { self.expected(block, row, column, true) } else { u32::MAX };
                    assert_eq!(got, expected, "row {row}, column {column} of {:?}, one by one", self.shape);
                }
            }
        }
    }

    fn check(&self, tiles: &Tiles) {
        self.check_one_by_one(tiles);
        for (place, got) in self.run_by_one(tiles).into_iter().enumerate() {
            let (row, column) = (place / 16 % (2 * self.shape.rows), place % 16);
            let expected = self.expected(row / self.shape.rows, row % self.shape.rows, column, true);
            assert_eq!(got, expected, "row {row}, column {column} of {:?}, four by one", self.shape);
        }
        let forms = [(self.run(tiles), false), (self.run_apart(tiles), true)];
        for (form, (sums, is_fresh)) in
            forms.into_iter().flat_map(|(forms, is_fresh)| forms.map(|form| (form, is_fresh))).enumerate()
        {
            for (place, got) in sums.into_iter().enumerate() {
                let (row, column) = (place / SUM_COLUMNS, place % SUM_COLUMNS);
                let expected = self.expected(row / self.shape.rows, row % self.shape.rows, column, is_fresh);
                assert_eq!(got, expected, "form {form}, row {row}, column {column} of {:?}", self.shape);
            }
        }
    }
}

impl<P: Plain> Case<P> {
    /// The sums of the first few columns, which lie packed, of whole blocks of rows: the bits of all columns. Nothing is written behind them.
    fn check_four_by_few(amx: Amx, columns: usize, steps: usize) {
        let case = Self::new(200, TileShape::new(TILE_ROWS, TILE_WORDS), steps);
        let word = |step: usize, word: usize| (step * P::WEIGHT_STEP + word * P::WEIGHT_ROW) / 4;
        let weights: Vec<u32> = (0..steps * TILE_WORDS)
            .flat_map(|row| case.weights[word(row / TILE_WORDS, row % TILE_WORDS)..][..columns].iter().copied())
            .collect();
        let x = [0, 1, 1, 0].map(|block: usize| -> &[u8] { bytemuck::cast_slice(&case.x[block]) });
        let sums_end = 4 * TILE_ROWS * columns;
        let mut sums = vec![u32::MAX; sums_end + 16];
        // SAFETY: this thread has no other.
        let tiles = unsafe { amx.tiles(TileShape::of_columns(columns)) };
        tiles.four_by_few::<P>(&mut sums, x, Lie::by_steps(TILE_ROWS), &weights, steps);
        for (place, &got) in sums[..sums_end].iter().enumerate() {
            let (row, column) = (place / columns, place % columns);
            let expected = case.expected([0, 1, 1, 0][row / TILE_ROWS], row % TILE_ROWS, column, true);
            assert_eq!(got, expected, "row {row}, column {column} of {columns}, {steps} steps");
        }
        assert!(sums[sums_end..].iter().all(|&word| word == u32::MAX));
    }
}

fn check<P: Plain>(amx: Amx) {
    for (columns, steps) in [(1, 1), (1, 4), (2, 1), (2, 5), (3, 2), (4, 4), (16, 1)] {
        Case::<P>::check_four_by_few(amx, columns, steps);
    }
    for (rows, words, steps) in
        [(1, 16, 1), (1, 16, 9), (2, 2, 3), (7, 8, 1), (15, 16, 2), (16, 16, 5), (16, 4, 1), (9, 1, 2)]
    {
        let case = Case::<P>::new(100, TileShape::new(rows, words), steps);
        // SAFETY: this thread has no other.
        let tiles = unsafe { amx.tiles(case.shape) };
        case.check(&tiles);
    }
}

#[test]
fn sums_are_those_of_plain_arithmetic_bit_for_bit() {
    if let Some(amx) = tiles() {
        check::<Bf16Pairs>(amx);
        check::<Bf16WidePairs>(amx);
        check::<CodeQuads>(amx);
    }
}

/// More threads than cores, each with a shape of its own: the system takes their tiles away and gives them back, in the middle
/// of products.
#[test]
fn threads_that_take_turns_do_not_see_each_others_tiles() {
    let Some(amx) = tiles() else { return };
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            scope.spawn(move || {
                let shape = TileShape::new(2 * thread as usize + 1, 16);
                let (pairs, quads) =
                    (Case::<Bf16Pairs>::new(thread, shape, 40), Case::<CodeQuads>::new(thread, shape, 40));
                // SAFETY: this thread has no other.
                let tiles = unsafe { amx.tiles(shape) };
                let expected = (pairs.run(&tiles), quads.run(&tiles));
                pairs.check(&tiles);
                quads.check(&tiles);
                for round in 0..300 {
                    assert!(pairs.run(&tiles) == expected.0 && quads.run(&tiles) == expected.1, "{thread}, {round}");
                    if round % 8 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}

#[test]
fn a_panic_while_tiles_are_configured_leaves_the_thread_usable() {
    let Some(amx) = tiles() else { return };
    for _ in 0..3 {
        let outcome = std::panic::catch_unwind(|| {
            // SAFETY: this thread has no other: the one before was dropped when its panic unwound.
            let tiles = unsafe { amx.tiles(TileShape::new(4, 16)) };
            let lie = Lie::by_steps(4);
            tiles.one_by_four::<CodeQuads>(
                Sums::added(&mut [0; 4]),
                &[0; 4096],
                lie,
                &[0; 8192],
                128,
                Ahead::NOTHING,
                1,
            );
        });
        assert!(outcome.is_err(), "sums that are too short are seen");
        let case = Case::<CodeQuads>::new(7, TileShape::new(3, 16), 2);
        // SAFETY: as above.
        case.check(&unsafe { amx.tiles(case.shape) });
    }
}

#[test]
fn tiles_one_behind_the_other_give_exact_sums() {
    let Some(amx) = tiles() else { return };
    for (seed, (rows, words, steps)) in [(1, 2, 1), (16, 16, 3), (9, 8, 2), (13, 16, 1)].into_iter().enumerate() {
        let case = Case::<CodeQuadTiles>::new(seed as u32, TileShape::new(rows, words), steps);
        // SAFETY: this thread has no other.
        case.check_one_by_one(&unsafe { amx.tiles(case.shape) });
    }
}

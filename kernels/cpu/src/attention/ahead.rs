//! Keys or values that are asked for while others are computed with.

use crate::simd::Simd;

/// Tokens that may lie side by side.
const SIDE_BY_SIDE: usize = 16;
/// Blocks of which parts are asked for in turn, each of keys and of values.
const IN_TURN: usize = 8;
/// Of the cache, in bytes.
const LINE: usize = 64;

/// Keys and values of a piece, and which of them are still to be asked for. `LINES`: of a part, which is asked for at once.
///
/// Not one after the other, but a part of each block's first keys, then of each block's first values, then another: of one page
/// after the other memory gives little at a time, whoever asks, and of few in turn less than of many. And little by little: who asks for
/// more than a core may wait for waits himself.
#[derive(Default)]
pub(super) struct Asked<const LINES: usize> {
    places: Vec<usize>,
    /// Parts of a head; neighbours of a part, where heads are smaller; and how many lie side by side.
    parts: usize,
    neighbours: usize,
    beside: usize,
    /// Bytes of a part's neighbours.
    bytes: usize,
    /// How many blocks are asked in turn.
    in_turn: usize,
    caches: usize,
    next: Cursor,
    /// How many parts there are, some of them of no place, and how many were asked for.
    count: u32,
    asked: u32,
    /// How many are due, and how many more are at each call of [`Self::ask`], in 1/65,536.
    due: u64,
    pace: u64,
}

/// A part, in the order in which they are asked for: blocks in turn, then caches, parts of a head, neighbours, and the blocks behind.
#[derive(Default)]
struct Cursor {
    block: usize,
    cache: usize,
    part: usize,
    token: usize,
    /// The first block of a turn.
    first: usize,
}

impl<const LINES: usize> Asked<LINES> {
    /// What lies at these places, of `bytes` each, is to be asked for in so many caches; what was left of others is not.
    #[inline(always)]
    pub(super) fn set(&mut self, places: &[usize], bytes: usize, caches: usize) {
        self.places.clear();
        self.places.extend_from_slice(places);
        self.parts = bytes.div_ceil(LINES * LINE);
        self.neighbours = (LINES * LINE / bytes).clamp(1, SIDE_BY_SIDE);
        self.beside = places.len().min(SIDE_BY_SIDE);
        self.bytes = bytes * self.neighbours;
        let blocks = places.len().div_ceil(SIDE_BY_SIDE);
        let turns = blocks.div_ceil(IN_TURN).max(1);
        self.in_turn = blocks.div_ceil(turns); // as many in each turn
        self.caches = caches;
        self.next = Cursor::default();
        let of_block = caches * self.parts * self.beside.div_ceil(self.neighbours);
        self.count = (turns * self.in_turn * of_block) as u32;
        (self.asked, self.due, self.pace) = (0, 0, 0);
    }

    /// Whether these are the keys from this place on.
    #[inline(always)]
    pub(super) fn begins_at(&self, place: usize) -> bool {
        self.places.first() == Some(&place)
    }

    /// Whether all was asked for, from the key at this place on.
    #[inline(always)]
    pub(super) fn has_asked_from(&self, place: usize) -> bool {
        self.begins_at(place) && self.asked == self.count
    }

    /// What is left is asked for in so many calls.
    #[inline(always)]
    pub(super) fn spread(&mut self, calls: usize) {
        self.due = u64::from(self.asked) << 16;
        self.pace = (u64::from(self.count - self.asked) << 16).div_ceil(calls.max(1) as u64);
    }

    /// Asks for what is left: keys that nobody sees take fewer calls than were counted with.
    #[inline(always)]
    pub(super) fn finish<S: Simd, H, const N: usize>(&mut self, simd: S, caches: [&[H]; N]) {
        self.spread(1);
        self.ask(simd, caches);
    }

    /// Asks for what is due of what lies in these caches.
    #[inline(always)]
    pub(super) fn ask<S: Simd, H, const N: usize>(&mut self, simd: S, caches: [&[H]; N]) {
        debug_assert!(self.count == 0 || self.caches == N);
        self.due += self.pace;
        let due = ((self.due >> 16) as u32).min(self.count);
        while self.asked < due {
            let Cursor { block, cache, part, token, first } = self.next;
            if let Some(&place) = self.places.get((first + block) * SIDE_BY_SIDE + token) {
                let start = caches[cache % N].as_ptr().wrapping_add(place).cast::<u8>(); // without a check: it always is below
                for line in 0..LINES {
                    let at = (part * LINES + line) * LINE;
                    if at < self.bytes {
                        simd.prefetch(start.wrapping_add(at));
                    }
                }
            }
            self.asked += 1;
            self.step();
        }
    }

    #[inline(always)]
    fn step(&mut self) {
        let next = &mut self.next;
        next.block += 1;
        if next.block < self.in_turn {
            return;
        }
        next.block = 0;
        next.cache += 1;
        if next.cache < self.caches {
            return;
        }
        next.cache = 0;
        next.part += 1;
        if next.part < self.parts {
            return;
        }
        next.part = 0;
        next.token += self.neighbours;
        if next.token < self.beside {
            return;
        }
        next.token = 0;
        next.first += self.in_turn;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::Kernel;

    struct Walk(usize, usize);

    impl Kernel for Walk {
        type Output = ();

        /// All is asked for in as many calls as were said, or at the end.
        fn run<S: Simd>(self, simd: S) {
            let Self(keys, bytes) = self;
            let (places, cache): (Vec<usize>, Vec<u8>) = ((0..keys).map(|key| key * bytes).collect(), vec![]);
            for calls in [1, 7, 64, 1_000] {
                let mut asked = Asked::<4>::default();
                asked.set(&places, bytes, 2);
                let mut of_parts = std::collections::HashMap::new();
                for _ in 0..asked.count {
                    let Cursor { block, cache, part, token, first } = asked.next;
                    *of_parts.entry(((first + block) * SIDE_BY_SIDE + token, cache, part)).or_insert(0) += 1;
                    asked.step();
                }
                let neighbours = (256 / bytes).clamp(1, SIDE_BY_SIDE);
                for key in (0..keys).filter(|key| (key % SIDE_BY_SIDE).is_multiple_of(neighbours)) {
                    for (cache, part) in
                        (0..2).flat_map(|cache| (0..bytes.div_ceil(256)).map(move |part| (cache, part)))
                    {
                        assert_eq!(of_parts.get(&(key, cache, part)), Some(&1), "{keys} keys of {bytes}: {key}");
                    }
                }
                asked.set(&places, bytes, 2);
                asked.spread(calls);
                for _ in 0..calls {
                    asked.ask(simd, [&cache[..]; 2]);
                }
                assert_eq!(asked.has_asked_from(0), keys > 0);
                asked.set(&places, bytes, 2);
                asked.spread(2);
                asked.ask(simd, [&cache[..]; 2]);
                asked.finish(simd, [&cache[..]; 2]);
                assert_eq!(asked.has_asked_from(0), keys > 0);
            }
        }
    }

    #[test]
    fn each_part_is_asked_for_once() {
        for keys in [0, 1, 15, 16, 17, 143, 150, 256] {
            for bytes in [32, 64, 100, 128, 160, 256, 512, 600] {
                Isa::best().run(Walk(keys, bytes));
            }
        }
    }
}

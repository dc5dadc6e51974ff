//! What was shortened, back again: by any class, in any pieces, however the lines of units lie.

use proptest::prelude::*;

use super::matrix::PAGE;
use super::shorten::{GROUP, GROUPS_OF_MATRIX, SAMPLED, sampled};
use super::*;
use crate::memory::Buffer;
use crate::simd::{Kernel, Simd};
use crate::{Cpu, Isa};

/// Lengthens a piece by itself.
struct Lengthen<'a>(Short<'a>, Piece, &'a mut [Unit]);

impl Kernel for Lengthen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(short, piece, units) = self;
        short.lengthen(simd, piece.panel, piece.from..piece.to, units);
        let weights: &mut [[u16; UNIT_WEIGHTS]] = bytemuck::cast_slice_mut(units);
        let mut seen = Seen::NONE;
        for (unit, place, bits) in seen.exceptions(&short, piece) {
            weights[unit][place] = bits;
        }
    }
}

/// Walks all panels by pieces of so many units; of each piece that comes next it lengthens some.
struct Walk<'a>(Rooms<'a>, &'a [Vec<Unit>], usize);

impl Kernel for Walk<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        let Self(mut rooms, whole, size) = self;
        let piece = |(panel, from): (usize, usize)| Piece { panel, from, to: whole[panel].len().min(from + size) };
        let mut at = (0, 0);
        loop {
            let here = piece(at);
            let next = if here.to < whole[at.0].len() { (at.0, here.to) } else { (at.0 + 1, 0) };
            let next = (next.0 < whole.len()).then(|| piece(next));
            rooms.enter(simd, here, next);
            let short = rooms.short;
            let turn = rooms.turn();
            if turn.weights != &whole[at.0][here.from..here.to] {
                return false;
            }
            let done = turn.next.len() * 2 / 3;
            short.lengthen(simd, turn.next.panel, turn.next.from..turn.next.from + done, turn.to);
            rooms.leave(simd, done);
            match next {
                Some(next) => at = (next.panel, next.from),
                None => return true,
            }
        }
    }
}

/// Units that lie there already, and the panel that is read.
struct Whole<'a>(&'a [Vec<Unit>], usize);

impl ReadUnits for Whole<'_> {
    fn open(&mut self, panel: usize) {
        self.1 = panel;
    }

    fn read<S: Simd>(&mut self, _: S, first: usize, to: &mut [Unit]) {
        assert!(first.is_multiple_of(GROUP) && to.len() == GROUP.min(self.0[self.1].len() - first));
        to.copy_from_slice(&self.0[self.1][first..first + to.len()]);
    }

    fn rows(&self, _: usize) -> Option<&[u8]> {
        None
    }

    fn ask<S: Simd>(&mut self, _: S) {}
}

fn pack(cpu: &mut Cpu, order: Order, whole: &[Vec<Unit>]) -> Option<(Sizes, Buffer)> {
    super::pack(cpu, order, (whole.len(), whole[0].len()), |_| Whole(whole, 0))
}

fn panel(weights: &[u16]) -> Vec<Unit> {
    weights
        .chunks_exact(UNIT_WEIGHTS)
        .map(|weights| {
            let mut unit = Unit::zeroed();
            bytemuck::cast_slice_mut::<_, u16>(&mut unit).copy_from_slice(weights);
            unit
        })
        .collect()
}

/// Weights of which about one in `rarity` may have any exponent.
fn bits(seed: u32, count: usize, rarity: u32) -> Vec<u16> {
    let draw = |at: usize| {
        let [bits, kind, ..] = crate::philox4x32([at as u32, 2, 0, 0], [seed, 0]);
        let exponent = if kind % rarity == 0 { kind >> 8 & 255 } else { 110 + (kind >> 16) % 13 };
        (bits as u16 & REST) | (exponent as u16) << 7
    };
    (0..count).map(draw).collect()
}

proptest! {
    #[test]
    fn what_was_shortened_by_any_threads_is_the_same_again_in_every_class(
        seed in any::<u32>(), panels in 1_usize..9, units in prop_oneof![1_usize..80, 130_usize..300], size in 1_usize..50, is_regular in any::<bool>(),
    ) {
        let weights = bits(seed, panels * units * UNIT_WEIGHTS, if is_regular { 10_000 } else { 200 });
        let whole: Vec<Vec<Unit>> = weights.chunks_exact(units * UNIT_WEIGHTS).map(panel).collect();
        for order in [Order::Units, Order::Pages] {
            let mut packed = Vec::new();
            for threads in [1, 3] {
                let mut cpu = Cpu::new(Isa::best(), threads);
                cpu.grain = 1;
                packed.push(pack(&mut cpu, order, &whole));
            }
            let [first, second] = [0, 1].map(|at| packed[at].as_ref().map(|(sizes, data)| (*sizes, data.as_slice::<u8>())));
            prop_assert!(first == second);
            // What only fills up pages, or lists, may take more than is saved.
            prop_assert!(first.is_some() || panels * units < 4 * PAGE);
            let Some((sizes, data)) = first else { continue };
            prop_assert_eq!(data.len(), sizes.bytes());
            let read = Short::of(sizes, data);
            prop_assert!(read.is_sound());
            for isa in Isa::available() {
                for (number, whole) in whole.iter().enumerate() {
                    for (from, to) in [(0, units), (0, units / 2), (units / 2, units), (units / 3, units)] {
                        let mut again = vec![[[u32::MAX; LANES]; VECTORS]; to - from];
                        isa.run(Lengthen(read, Piece { panel: number, from, to }, &mut again));
                        prop_assert!(again == whole[from..to], "{} {order:?} {from} {to}", isa.name());
                    }
                }
                let mut rooms = vec![[[u32::MAX; LANES]; VECTORS]; 2 * size];
                prop_assert!(isa.run(Walk(Rooms::new(read, &mut rooms), &whole, size)), "{} {order:?}", isa.name());
            }
        }
    }
}

#[test]
fn normal_weights_take_three_quarters_and_random_bits_stay_as_they_are() {
    let mut cpu = Cpu::new(Isa::best(), 2);
    let (panels, units) = (4, 64);
    let whole = |rarity| -> Vec<Vec<Unit>> {
        (0..panels).map(|number| panel(&bits(number as u32, units * UNIT_WEIGHTS, rarity))).collect()
    };
    for order in [Order::Units, Order::Pages] {
        let (sizes, data) = pack(&mut cpu, order, &whole(1000)).expect("few exceptions");
        assert!(sizes.exceptions > 0 && data.len() * 100 < panels * units * size_of::<Unit>() * 78, "{}", data.len());
        assert!(pack(&mut cpu, order, &whole(1)).is_none());
    }
}

#[test]
fn exponents_are_named_wherever_they_are_and_however_few_of_them_one_sees_at_first() {
    const UNITS: usize = 340;
    // What is looked at of the matrix, and then of the panel: the first group is in the latter alone.
    let of_matrix =
        |unit: usize| (0..GROUPS_OF_MATRIX).any(|sample| sampled(sample, UNITS.div_ceil(GROUP)) == unit / GROUP);
    let of_any = |unit: usize| of_matrix(unit) || (unit / GROUP).is_multiple_of(SAMPLED);
    assert!(!of_matrix(0) && of_any(0) && !of_any(2 * GROUP));
    let exponent_of: [&dyn Fn(usize, usize) -> u16; 8] = [
        &|unit, at| if of_matrix(unit) { 20 } else { 120 } + (at % 7) as u16, // most of the others lie elsewhere
        &|unit, at| if of_any(unit) { 20 } else { 120 } + (at % 7) as u16,
        &|unit, at| if of_any(unit) { 120 } else { 136 } + (at % 7) as u16, // and next to those
        &|unit, at| if unit % 2 == 1 { 0 } else { 120 } + (at % 7) as u16,  // no run has both
        &|_, at| 240 + (at % 16) as u16,                                    // infinities and NaNs too
        &|_, at| (at % 16) as u16,
        &|_, _| 255,
        &|_, _| 0,
    ];
    for (way, exponent_of) in exponent_of.into_iter().enumerate() {
        let mut weights = bits(7, UNITS * UNIT_WEIGHTS, u32::MAX);
        for (at, bits) in weights.iter_mut().enumerate() {
            *bits = *bits & REST | exponent_of(at / UNIT_WEIGHTS, at % UNIT_WEIGHTS) << 7;
        }
        let whole = panel(&weights);
        let mut cpu = Cpu::new(Isa::best(), 1);
        let (sizes, data) = pack(&mut cpu, Order::Units, std::slice::from_ref(&whole)).expect("few exceptions");
        assert_eq!(sizes.exceptions, 0, "{way}");
        let mut again = vec![Unit::zeroed(); UNITS];
        let piece = Piece { panel: 0, from: 0, to: UNITS };
        Isa::best().run(Lengthen(Short::of(sizes, data.as_slice()), piece, &mut again));
        assert!(again == whole, "{way}");
    }
}

#[test]
fn exceptions_that_lie_elsewhere_are_no_sound_claim() {
    let sizes = |exceptions| Sizes::new(Order::Units, 1, 2, exceptions).expect("small");
    let sound = |starts: [u32; 2], exceptions: &[[u32; 2]]| {
        let mut data = vec![Exponents::zeroed(); 8]; // for its alignment: two units and exponents are 448 bytes
        let data: &mut [u8] = bytemuck::cast_slice_mut(&mut data);
        data[448..456].copy_from_slice(bytemuck::cast_slice(&starts));
        data[456..456 + 8 * exceptions.len()].copy_from_slice(bytemuck::cast_slice(exceptions));
        let sizes = sizes(exceptions.len());
        Short::of(sizes, &data[..sizes.bytes()]).is_sound()
    };
    assert!(sound([0, 2], &[[3, 7], [255, 7]]));
    for (starts, exceptions) in [
        ([0, 1], [[3, 7], [255, 7]]),
        ([1, 2], [[3, 7], [255, 7]]),
        ([0, 2], [[255, 7], [3, 7]]),
        ([0, 2], [[3, 7], [256, 7]]),
        ([0, 2], [[3, 7], [4, 1 << 16]]),
    ] {
        assert!(!sound(starts, &exceptions), "{starts:?} {exceptions:?}");
    }
}

//! Every class that this machine has against the portable one, operation by operation.

use super::{Kernel, LANES, Lanes, Simd};
use crate::element::Bf16;
use crate::isa::Isa;

/// All operations that must not depend on the class, over one set of inputs.
struct Exact<'a>(&'a Lanes<f32>, &'a Lanes<f32>);

impl Kernel for Exact<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Vec<u32> {
        let (a, b) = (simd.load(self.0), simd.load(self.1));
        let (mantissa, exponent) = simd.split_exponent(simd.max(b, simd.splat(1e-30)));
        let mut results = vec![
            simd.add(a, b),
            simd.sub(a, b),
            simd.mul(a, b),
            simd.div(a, b),
            simd.max(a, b),
            simd.min(a, b),
            simd.select_less(a, b, simd.splat(1.0), simd.splat(2.0)),
            simd.round(a),
            simd.to_float(simd.whole(simd.max(simd.splat(-2e9), simd.min(simd.splat(2e9), a)))),
            simd.scale(mantissa, simd.round(simd.max(simd.splat(-120.0), simd.min(simd.splat(120.0), a)))),
            simd.scale_far(mantissa, simd.round(simd.max(simd.splat(-120.0), simd.min(simd.splat(127.0), a)))),
            simd.scale_far(simd.splat(0.75), simd.round(simd.max(simd.splat(-120.0), simd.min(simd.splat(128.0), a)))),
            mantissa,
            exponent,
        ];
        // Large enough to wrap.
        let words = [self.0, self.1].map(|row| simd.load_words(&row.map(|x| x.to_bits() << 1)));
        results.push(simd.to_float(simd.add_i32(words[0], words[1])));
        results.push(simd.to_float(simd.mul_i32(words[0], words[1])));
        let mut halves = [Bf16::default(); LANES];
        simd.store_bf16(a, &mut halves);
        results.push(simd.load_bf16(&halves));
        let codes: [i8; 2 * LANES] = std::array::from_fn(|at| (self.0[at % LANES].to_bits() >> (at % 24)) as i8);
        results.extend(codes.as_chunks::<LANES>().0.iter().map(|codes| simd.load_i8(codes)));
        results.extend(simd.bf16_of_i8(&codes).as_chunks::<LANES>().0.iter().map(|codes| simd.load_bf16(codes)));
        results.push(simd.load_i32(&self.0.map(|x| x.to_bits() as i32)));
        results.push(simd.splat(simd.sum(a)));
        results.push(simd.splat(simd.max_lane(a)));
        let different: [S::V; LANES] = std::array::from_fn(|at| simd.add(a, simd.mul(b, simd.splat(at as f32))));
        results.push(simd.sum_each(&different));
        results.push(simd.load(&different.map(|each| simd.sum(each))));
        let halves = [self.0, self.1].map(|row| bytemuck::cast::<_, [u8; 64]>(row.map(f32::to_bits)));
        let (mut zipped, rounded) = ([[0; LANES]; 2], simd.round_to_bf16(&[*self.0, *self.1]));
        simd.zip(&halves[0], &halves[1], &mut zipped);
        let (mut turned, mut streamed) = ([[0; LANES]; 2], [Bf16::default(); 2 * LANES + 1]);
        simd.turn(&halves[0], &halves[1], &mut turned);
        for start in [0, 1] {
            let to = streamed[start..].first_chunk_mut().expect("as long as that");
            simd.stream(&rounded, to); // wherever it begins
            simd.drain();
            assert_eq!(*to, rounded);
        }
        let parts = [a, b, mantissa, exponent];
        let joined = [simd.join_bytes(parts), simd.join_nibbles(parts, [b, a, exponent, mantissa])];
        results.extend(simd.alternate([a, b]));
        results.extend(simd.separate([a, b]));
        results.extend(simd.separate(simd.alternate([a, b])));
        results.extend(simd.widen(&self.0.map(f32::to_bits)));
        let tiny = simd.splat(f32::MIN_POSITIVE);
        results.extend([simd.flush(a), simd.flush(simd.mul(a, tiny)), simd.flush(simd.mul(b, tiny))]);
        let rounded = rounded.map(|half| half.0.into()).to_vec();
        let mut bits = [zipped.concat(), turned.concat(), joined.concat(), rounded].concat();
        for result in results {
            let mut lanes = [0.0; LANES];
            simd.store(result, &mut lanes);
            bits.extend(lanes.map(f32::to_bits));
        }
        bits
    }
}

#[test]
fn every_class_does_the_exact_operations_alike() {
    let portable = Isa::named("portable").expect("always there");
    let cases: [[f32; 4]; 4] =
        [[1.0, -2.5, 0.5, 3.75], [1e-20, 7.0, -0.0, 1.5], [59.5, -60.25, 2.0, 1e5], [0.1, 0.3, -0.7, 1234.567]];
    for (seed, case) in cases.iter().enumerate() {
        let a: Lanes<f32> = std::array::from_fn(|lane| case[lane % 4] * (1.0 + lane as f32 * 0.37));
        let b: Lanes<f32> = std::array::from_fn(|lane| case[(lane + seed) % 4].abs() + lane as f32 * 0.01);
        let expected = portable.run(Exact(&a, &b));
        for isa in Isa::available() {
            assert_eq!(isa.run(Exact(&a, &b)), expected, "{}", isa.name());
        }
    }
}

/// The dot product of one class.
struct Blocks<'a>(&'a [Bf16; 32], &'a [Bf16; 32]);

impl Kernel for Blocks<'_> {
    type Output = Lanes<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Lanes<f32> {
        let mut out = [0.0; LANES];
        simd.store(simd.dot_blocks(simd.splat(-1.0), self.0, self.1), &mut out);
        out
    }
}

#[test]
fn blocks_multiply_neighbouring_pairs() {
    let a: [Bf16; 32] = std::array::from_fn(|at| Bf16::from_f32(at as f32));
    let b: [Bf16; 32] = std::array::from_fn(|at| Bf16::from_f32(if at % 2 == 0 { 2.0 } else { -1.0 }));
    let expected: Lanes<f32> = std::array::from_fn(|lane| 2.0 * lane as f32 - 2.0); // exact in every class
    for isa in Isa::available() {
        assert_eq!(isa.run(Blocks(&a, &b)), expected, "{}", isa.name());
    }
}

/// Products of two codes at each place of a word: bytes, then lower and upper nibbles, each in the lower and the upper half.
struct Codes<'a>(&'a Lanes<u32>, [Bf16; 2]);

impl Kernel for Codes<'_> {
    type Output = Vec<Lanes<f32>>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Vec<Lanes<f32>> {
        let (words, x) = (simd.load_words(self.0), simd.pair(self.1[0], self.1[1]));
        let bytes = [0, 16].map(|shift| simd.two_bytes(words, shift));
        let nibbles = [0, 4, 16, 20].map(|shift| simd.two_nibbles(words, shift));
        let dot = |codes| {
            let mut out = [0.0; LANES];
            simd.store(simd.dot_codes(simd.splat(1.0), codes, x), &mut out);
            out
        };
        bytes.into_iter().chain(nibbles).map(dot).collect()
    }
}

#[test]
fn two_codes_meet_two_activations() {
    let words: Lanes<u32> = std::array::from_fn(|lane| 0x9E37_79B9_u32.wrapping_mul(lane as u32 + 1) ^ 0xff00_0f80);
    let code = |word: u32, shift: u32, mask: u32| f64::from(word >> shift & mask);
    let dot = |shift: u32, mask: u32| -> Lanes<f32> {
        words.map(|word| (1.0 + 2.0 * code(word, shift, mask) - 3.0 * code(word, shift + 8, mask)) as f32)
    };
    let expected: Vec<Lanes<f32>> =
        [(0, 255), (16, 255), (0, 15), (4, 15), (16, 15), (20, 15)].map(|(shift, mask)| dot(shift, mask)).into(); // exact in every class
    for isa in Isa::available() {
        let got = isa.run(Codes(&words, [Bf16::from_f32(2.0), Bf16::from_f32(-3.0)]));
        assert_eq!(got, expected, "{}", isa.name());
    }
}

/// The pair product of one class.
struct Pairs<'a>(&'a Lanes<u32>, [Bf16; 2]);

impl Kernel for Pairs<'_> {
    type Output = Lanes<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Lanes<f32> {
        let mut out = [0.0; LANES];
        let sum = simd.dot_pairs(simd.splat(1.0), self.0, simd.pair(self.1[0], self.1[1]));
        simd.store(sum, &mut out);
        out
    }
}

#[test]
fn pairs_multiply_first_with_first_and_second_with_second() {
    let half = |value: f32| u32::from(Bf16::from_f32(value).0);
    let weights: Lanes<u32> = std::array::from_fn(|lane| half(lane as f32) | half(0.5) << 16);
    let activation = [Bf16::from_f32(2.0), Bf16::from_f32(-4.0)];
    let expected: Lanes<f32> = std::array::from_fn(|lane| 1.0 + 2.0 * lane as f32 - 2.0); // exact in every class
    for isa in Isa::available() {
        assert_eq!(isa.run(Pairs(&weights, activation)), expected, "{}", isa.name());
    }
}

#[test]
fn codes_are_exact_in_both_formats() {
    struct Codes<'a>(&'a [i8; 32]);
    impl Kernel for Codes<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<f32> {
            let mut lanes = [[0.0; LANES]; 2];
            for (lanes, codes) in lanes.iter_mut().zip(self.0.as_chunks::<LANES>().0) {
                simd.store(simd.load_i8(codes), lanes);
            }
            let halves = simd.bf16_of_i8(self.0).map(Bf16::to_f32);
            assert_eq!(lanes.as_flattened(), halves);
            halves.to_vec()
        }
    }
    for isa in Isa::available() {
        for first in (i8::MIN..=i8::MAX).step_by(32) {
            let codes: [i8; 32] = std::array::from_fn(|at| first.wrapping_add(at as i8));
            assert_eq!(isa.run(Codes(&codes)), codes.map(f32::from), "{}", isa.name());
        }
    }
}

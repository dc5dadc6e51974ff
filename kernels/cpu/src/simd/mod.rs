//! Sixteen float32 lanes: the thin layer under which the instruction sets differ.
//!
//! A value of type [`Simd`] is a token: it exists only inside the `run_*` function of its class, so its methods are safe.
//! Everything is `inline(always)`, so that a kernel's whole body ends up inside a function that has the class's features
//! switched on: the one of `run_*`, or that of a [`Part`]. `fma` is the only method whose rounding differs between classes (`portable` rounds twice), and
//! `dot_pairs`, `dot_blocks` and `dot_codes` the only ones that differ further (`avx512bf16` sums each pair in hardware), but for what is
//! smaller than any normal number. Integers are exact.

use bytemuck::{Pod, Zeroable};

use crate::element::Bf16;
use crate::linear::short::{Exponents, ShortUnit, Unit};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

/// Lanes of one vector, the same in every class.
pub(crate) const LANES: usize = 16;

/// The bits of √½, the least mantissa that `split_exponent` returns.
const SQRT_HALF_BITS: i32 = 0x3f35_04f3;

/// One vector's worth of elements in memory.
pub(crate) type Lanes<T> = [T; LANES];

/// A cache line, as 16-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Line(pub(crate) [u16; 2 * LANES]);

impl Line {
    /// As 32-bit words.
    #[inline(always)]
    pub(crate) fn words(&mut self) -> &mut Lanes<u32> {
        bytemuck::cast_mut(&mut self.0)
    }
}

/// The operations of one instruction set.
pub trait Simd: Copy {
    /// 16 float32 lanes.
    type V: Copy;
    /// 16 int32 lanes.
    type I: Copy;
    /// Two neighbouring bfloat16 activations, in the form that `dot_pairs` takes.
    type Pair: Pod + Send + Sync;
    /// Four neighbouring activations of 8 bits, in the form that `dot_quads` takes.
    type Quad: Pod + Send + Sync;
    /// Two neighbouring codes of each column, in the form that `dot_codes` takes.
    type Codes: Copy;
    /// Whether pairs of bfloat16 are multiplied in one go; else a `Pair` is two float32.
    const HAS_PAIRS: bool = false;
    /// How many rows the linear kernel keeps in registers.
    const ROWS: usize;
    /// How many vectors wide a register tile is, and so a packed weight's panel: 4 where there are 32 registers of full
    /// width (6 rows × 4 = 24 sums), 1 where there are 16 of half the width (6 rows × 2 = 12).
    const WIDTH: usize;

    /// The same value in all lanes.
    fn splat(self, value: f32) -> Self::V;
    /// From memory.
    fn load(self, from: &Lanes<f32>) -> Self::V;
    /// To memory.
    fn store(self, value: Self::V, to: &mut Lanes<f32>);
    /// Widens; exact.
    fn load_bf16(self, from: &Lanes<Bf16>) -> Self::V;
    /// Rounds as [`Bf16::from_f32`] does.
    fn store_bf16(self, value: Self::V, to: &mut Lanes<Bf16>);
    /// From signed bytes; exact.
    fn load_i8(self, from: &Lanes<i8>) -> Self::V;
    /// The same as bfloat16; exact.
    fn bf16_of_i8(self, from: &[i8; 32]) -> [Bf16; 32];
    /// From signed integers, to nearest even.
    fn load_i32(self, from: &Lanes<i32>) -> Self::V;

    /// a + b
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// a - b
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// a · b
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// a / b
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// a · b + c
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The greater; `b` if either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; `b` if either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `yes` where a < b, else `no`.
    fn select_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// To the nearest integer, ties to even; |a| < 2^22.
    fn round(self, a: Self::V) -> Self::V;
    /// a · 2^power, for whole powers that keep a result normal.
    fn scale(self, a: Self::V, power: Self::V) -> Self::V;
    /// The same, where 2^power itself may be out of reach: up to 2^254, down to 2^-252.
    #[inline(always)]
    fn scale_far(self, a: Self::V, power: Self::V) -> Self::V {
        let half = self.round(self.mul(power, self.splat(0.5)));
        self.scale(self.scale(a, half), self.sub(power, half))
    }
    /// (m, e) with a = m · 2^e and m in [√½, √2), for positive normal a.
    fn split_exponent(self, a: Self::V) -> (Self::V, Self::V);

    /// Sum of the lanes in one fixed tree: 16 → 8 → 4 → 2 → 1, each lane with the one half the width above it.
    fn sum(self, a: Self::V) -> f32;
    /// The sums of sixteen, each in that same tree: of the first in the first lane.
    #[inline(always)]
    fn sum_each(self, a: &[Self::V; LANES]) -> Self::V {
        self.load(&a.map(|a| self.sum(a)))
    }

    /// Greatest lane, by the same tree.
    fn max_lane(self, a: Self::V) -> f32;

    /// Two neighbouring activations.
    fn pair(self, first: Bf16, second: Bf16) -> Self::Pair;
    /// `sum + w.first · x.first + w.second · x.second` for 16 columns.
    fn dot_pairs(self, sum: Self::V, weights: &Lanes<u32>, activation: Self::Pair) -> Self::V;
    /// Both bfloat16 of each lane as float32; exact.
    #[inline(always)]
    fn widen(self, pairs: &Lanes<u32>) -> [Self::V; 2] {
        let of = |turned: fn(u32) -> u32| pairs.map(|pair| f32::from_bits(turned(pair)));
        [self.load(&of(|pair| pair << 16)), self.load(&of(|pair| pair & 0xffff_0000))]
    }

    /// `sum + a · b` over neighbouring pairs: lane i takes elements 2i and 2i + 1, rounded as `dot_pairs` does.
    fn dot_blocks(self, sum: Self::V, a: &[Bf16; 32], b: &[Bf16; 32]) -> Self::V;

    /// The same integer in all lanes.
    fn splat_i32(self, value: i32) -> Self::I;
    /// From memory, bit for bit.
    fn load_words(self, from: &Lanes<u32>) -> Self::I;
    /// To memory, bit for bit.
    fn store_words(self, a: Self::I, to: &mut Lanes<u32>);
    /// a · b; what does not fit into 32 bits is cut off.
    fn mul_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Modulo 2^32.
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// To nearest even.
    fn to_float(self, a: Self::I) -> Self::V;
    /// Without what is behind the point; of what an int32 holds.
    fn whole(self, a: Self::V) -> Self::I;
    /// The lower four bits of each byte.
    fn low_nibbles(self, a: Self::I) -> Self::I;
    /// The upper four bits of each byte.
    fn high_nibbles(self, a: Self::I) -> Self::I;
    /// The unsigned byte that begins at bit `shift` of each lane; exact. Shifts are constants once loops are unrolled.
    fn byte(self, a: Self::I, shift: u32) -> Self::V;
    /// The unsigned four bits that begin there; exact.
    fn nibble(self, a: Self::I, shift: u32) -> Self::V;
    /// `nibble` less 8.
    #[inline(always)]
    fn nibble_less_8(self, a: Self::I, shift: u32) -> Self::V {
        self.sub(self.nibble(a, shift), self.splat(8.0))
    }
    /// The unsigned bytes that begin at bits `shift` and `shift + 8` of each lane; exact.
    fn two_bytes(self, a: Self::I, shift: u32) -> Self::Codes;
    /// The unsigned four bits that begin there; exact.
    fn two_nibbles(self, a: Self::I, shift: u32) -> Self::Codes;
    /// `sum + first code · x.first + second code · x.second`, rounded as `dot_pairs` does.
    fn dot_codes(self, sum: Self::V, codes: Self::Codes, x: Self::Pair) -> Self::V;
    /// Four neighbouring activations.
    fn quad(self, values: [i8; 4]) -> Self::Quad;
    /// `sum + Σ code · x` over the four unsigned bytes of each lane. Exact in every class: nothing saturates on the way.
    fn dot_quads(self, sum: Self::I, codes: Self::I, x: Self::Quad) -> Self::I;

    /// A unit of weights as it was before it was shortened, but for its exceptions.
    #[inline(always)]
    fn lengthen(self, unit: ShortUnit<'_>, exponents: &Exponents, to: &mut Unit) {
        unit.lengthened(exponents, to);
    }

    /// Column i becomes row i.
    #[inline(always)]
    fn transpose(self, rows: &mut [Lanes<u32>; LANES]) {
        for row in 1..LANES {
            let (above, below) = rows.split_at_mut(row);
            for (column, above) in above.iter_mut().enumerate() {
                std::mem::swap(&mut above[row], &mut below[0][column]);
            }
        }
    }

    /// The lowest bytes of each lane's bits as a word, the first's lowest.
    #[inline(always)]
    fn join_bytes(self, parts: [Self::V; 4]) -> Lanes<u32> {
        let mut words = [0; LANES];
        for (number, part) in parts.into_iter().enumerate() {
            let mut lanes = [0.0; LANES];
            self.store(part, &mut lanes);
            for (word, lane) in words.iter_mut().zip(lanes) {
                *word |= (lane.to_bits() & 0xff) << (8 * number);
            }
        }
        words
    }

    /// The lowest four bits of each lane's: byte i of the word has those of `low`'s number i, and above them those of `high`'s.
    #[inline(always)]
    fn join_nibbles(self, low: [Self::V; 4], high: [Self::V; 4]) -> Lanes<u32> {
        let (low, high) = (self.join_bytes(low), self.join_bytes(high));
        let mut words = [0; LANES];
        for ((word, low), high) in words.iter_mut().zip(low).zip(high) {
            *word = (low & 0x0f0f_0f0f) | (high & 0x0f0f_0f0f) << 4;
        }
        words
    }

    /// Two numbers of each lane as a pair of bfloat16, the first in the lower half. To nearest even; what is smaller than any normal number may
    /// become 0.
    #[inline(always)]
    fn store_pairs(self, [first, second]: [Self::V; 2], to: &mut Lanes<u32>) {
        let mut halves = [[Bf16::default(); LANES]; 2];
        self.store_bf16(first, &mut halves[0]);
        self.store_bf16(second, &mut halves[1]);
        for (lane, to) in to.iter_mut().enumerate() {
            *to = u32::from(halves[0][lane].0) | u32::from(halves[1][lane].0) << 16;
        }
    }

    /// Two rows of bfloat16 by pairs, the first row's in the lower half of a word.
    #[inline(always)]
    fn zip(self, first: &[u8; 64], second: &[u8; 64], to: &mut [Lanes<u32>; 2]) {
        let (first, second) = (first.as_chunks::<2>().0, second.as_chunks::<2>().0);
        for ((to, &[a, b]), &[c, d]) in to.as_flattened_mut().iter_mut().zip(first).zip(second) {
            *to = u32::from_le_bytes([a, b, c, d]);
        }
    }

    /// Two rows of bfloat16: pairs of their even numbers, then of their odd ones, the first row's in the upper half of a word.
    #[inline(always)]
    fn turn(self, first: &[u8; 64], second: &[u8; 64], to: &mut [Lanes<u32>; 2]) {
        let (first, second) = (first.as_chunks::<4>().0, second.as_chunks::<4>().0);
        let [even, odd] = to;
        for (((even, odd), &[a, b, c, d]), &[e, f, g, h]) in even.iter_mut().zip(odd).zip(first).zip(second) {
            *even = u32::from_le_bytes([e, f, a, b]);
            *odd = u32::from_le_bytes([g, h, c, d]);
        }
    }

    /// The even and the odd of some numbers, in their order.
    #[inline(always)]
    fn alternate(self, [even, odd]: [Self::V; 2]) -> [Self::V; 2] {
        let (mut halves, mut all) = ([[0.0; LANES]; 2], [[0.0; LANES]; 2]);
        self.store(even, &mut halves[0]);
        self.store(odd, &mut halves[1]);
        for (at, to) in all.as_flattened_mut().iter_mut().enumerate() {
            *to = halves[at % 2][at / 2];
        }
        [self.load(&all[0]), self.load(&all[1])]
    }

    /// The even numbers of two vectors, and the odd ones: what [`Self::alternate`] turns back.
    #[inline(always)]
    fn separate(self, all: [Self::V; 2]) -> [Self::V; 2] {
        let (mut halves, mut lanes) = ([[0.0; LANES]; 2], [[0.0; LANES]; 2]);
        self.store(all[0], &mut lanes[0]);
        self.store(all[1], &mut lanes[1]);
        for (at, from) in lanes.as_flattened().iter().enumerate() {
            halves[at % 2][at / 2] = *from;
        }
        [self.load(&halves[0]), self.load(&halves[1])]
    }

    /// Zeros for what is smaller than any normal number.
    #[inline(always)]
    fn flush(self, a: Self::V) -> Self::V {
        let mut lanes = [0.0; LANES];
        self.store(a, &mut lanes);
        for lane in &mut lanes {
            *lane = if lane.is_subnormal() { 0.0 } else { *lane };
        }
        self.load(&lanes)
    }

    /// To nearest even; what is smaller than any normal number may become 0.
    #[inline(always)]
    fn round_to_bf16(self, values: &[Lanes<f32>; 2]) -> [Bf16; 2 * LANES] {
        let mut rounded = [Bf16::default(); 2 * LANES];
        for (to, values) in rounded.as_chunks_mut::<LANES>().0.iter_mut().zip(values) {
            self.store_bf16(self.load(values), to);
        }
        rounded
    }

    /// A line that nobody needs soon, past the caches where the class can and the line begins at a multiple of 64 bytes. Others see it when the thread
    /// has drained.
    #[inline(always)]
    fn stream(self, from: &[Bf16; 2 * LANES], to: &mut [Bf16; 2 * LANES]) {
        if to.as_ptr().addr().is_multiple_of(align_of::<Line>()) {
            self.stream_line(bytemuck::cast_ref(from), bytemuck::cast_mut(to)); // both lie as they have to
        } else {
            *to = *from;
        }
    }

    /// The same for what is known to begin at such a multiple.
    #[inline(always)]
    fn stream_line(self, from: &[u16; 2 * LANES], to: &mut Line) {
        to.0 = *from;
    }

    /// Whatever was streamed is where everybody sees it.
    #[inline(always)]
    fn drain(self) {}

    /// Runs a part of a kernel as a function of its own that has the class's features.
    fn apart<P: Part<Self>>(self, part: P) -> P::Output;

    /// Asks for a cache line that will be needed soon, into the second-level cache. Any address will do: it does not fault.
    ///
    /// Not into the first level: that has few places for outstanding misses, and scattered blocks then come at half the rate
    /// (Zen 4, one core, 8 KiB blocks: 9 GB/s against 18; a linear stream comes at 30 either way).
    fn prefetch(self, at: *const u8);
}

/// Four activations as two words of two 16-bit numbers: the first and third, then the second and fourth, as the even and
/// the odd bytes of codes meet them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sixteen_bits(values: [i8; 4]) -> [u32; 2] {
    let [a, b, c, d] = values.map(|value| u32::from(i16::from(value) as u16));
    [a | c << 16, b | d << 16]
}

/// A kernel: its arguments, and a body that is compiled once per class.
pub(crate) trait Kernel {
    type Output;

    /// Must be `inline(always)`, or the features of the class do not reach it.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// A part of a kernel that is compiled as a function of its own: what one function holds takes a time to compile that grows faster than it
/// does, and a kernel with tiles for each number of rows would take minutes.
pub trait Part<S: Simd> {
    /// What it returns.
    type Output;

    /// Must be `inline(always)`, as that of a [`Kernel`].
    fn run(self, simd: S) -> Self::Output;
}

/// A kernel, as the part that all begins with.
struct Whole<K>(K);

impl<K: Kernel, S: Simd> Part<S> for Whole<K> {
    type Output = K::Output;

    #[inline(always)]
    fn run(self, simd: S) -> K::Output {
        self.0.run(simd)
    }
}

pub(crate) fn run_portable<K: Kernel>(kernel: K) -> K::Output {
    portable::Portable.apart(Whole(kernel))
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller vouches for the features, and the token does not leave this function's callees.
    unsafe { avx2::Avx2::new() }.apart(Whole(kernel))
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: as in `run_avx2`.
    unsafe { avx512::Avx512::new() }.apart(Whole(kernel))
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn run_avx512vnni<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: as in `run_avx2`.
    unsafe { avx512::Avx512Vnni::new() }.apart(Whole(kernel))
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn run_avx512bf16<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: as in `run_avx2`.
    unsafe { avx512::Avx512Bf16::new() }.apart(Whole(kernel))
}

#[cfg(test)]
mod tests;

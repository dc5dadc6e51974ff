//! Plain Rust: what every platform runs, and what the compiler makes of it.

use super::{LANES, Lanes, Part, Simd};
use crate::element::Bf16;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn each(mut f: impl FnMut(usize) -> f32) -> Lanes<f32> {
    let mut out = [0.0; LANES];
    for (lane, out) in out.iter_mut().enumerate() {
        *out = f(lane);
    }
    out
}

#[inline(always)]
fn fold(a: Lanes<f32>, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut a = a;
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            a[lane] = f(a[lane], a[lane + width]);
        }
        width /= 2;
    }
    a[0]
}

impl Simd for Portable {
    type V = Lanes<f32>;
    type I = Lanes<i32>;
    type Pair = [f32; 2];
    type Quad = [i8; 4];
    type Codes = [Lanes<f32>; 2];

    #[inline(always)]
    fn apart<P: Part<Self>>(self, part: P) -> P::Output {
        #[inline(never)]
        fn function<P: Part<Portable>>(simd: Portable, part: P) -> P::Output {
            part.run(simd)
        }
        function(self, part)
    }

    #[inline(always)]
    fn two_bytes(self, a: Lanes<i32>, shift: u32) -> [Lanes<f32>; 2] {
        [self.byte(a, shift), self.byte(a, shift + 8)]
    }

    #[inline(always)]
    fn two_nibbles(self, a: Lanes<i32>, shift: u32) -> [Lanes<f32>; 2] {
        [self.nibble(a, shift), self.nibble(a, shift + 8)]
    }

    #[inline(always)]
    fn dot_codes(self, sum: Lanes<f32>, codes: [Lanes<f32>; 2], x: [f32; 2]) -> Lanes<f32> {
        let sum = self.fma(codes[0], self.splat(x[0]), sum);
        self.fma(codes[1], self.splat(x[1]), sum)
    }
    const ROWS: usize = 3;
    const WIDTH: usize = 1;

    #[inline(always)]
    fn splat(self, value: f32) -> Lanes<f32> {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &Lanes<f32>) -> Lanes<f32> {
        *from
    }

    #[inline(always)]
    fn store(self, value: Lanes<f32>, to: &mut Lanes<f32>) {
        *to = value;
    }

    #[inline(always)]
    fn load_bf16(self, from: &Lanes<Bf16>) -> Lanes<f32> {
        each(|lane| from[lane].to_f32())
    }

    #[inline(always)]
    fn store_bf16(self, value: Lanes<f32>, to: &mut Lanes<Bf16>) {
        for (to, value) in to.iter_mut().zip(value) {
            *to = Bf16::from_f32(value);
        }
    }

    #[inline(always)]
    fn load_i8(self, from: &Lanes<i8>) -> Lanes<f32> {
        each(|lane| f32::from(from[lane]))
    }

    #[inline(always)]
    fn bf16_of_i8(self, from: &[i8; 32]) -> [Bf16; 32] {
        let mut out = [Bf16::default(); 32];
        for (out, &code) in out.iter_mut().zip(from) {
            *out = Bf16((f32::from(code).to_bits() >> 16) as u16); // what is cut off is zero
        }
        out
    }

    #[inline(always)]
    fn load_i32(self, from: &Lanes<i32>) -> Lanes<f32> {
        each(|lane| from[lane] as f32)
    }

    #[inline(always)]
    fn add(self, a: Lanes<f32>, b: Lanes<f32>) -> Lanes<f32> {
        each(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn sub(self, a: Lanes<f32>, b: Lanes<f32>) -> Lanes<f32> {
        each(|lane| a[lane] - b[lane])
    }

    #[inline(always)]
    fn mul(self, a: Lanes<f32>, b: Lanes<f32>) -> Lanes<f32> {
        each(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn div(self, a: Lanes<f32>, b: Lanes<f32>) -> Lanes<f32> {
        each(|lane| a[lane] / b[lane])
    }

    /// Two roundings: `f32::mul_add` is a library call where the processor has no such instruction.
    #[inline(always)]
    fn fma(self, a: Lanes<f32>, b: Lanes<f32>, c: Lanes<f32>) -> Lanes<f32> {
        each(|lane| a[lane] * b[lane] + c[lane])
    }

    #[inline(always)]
    fn max(self, a: Lanes<f32>, b: Lanes<f32>) -> Lanes<f32> {
        each(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn min(self, a: Lanes<f32>, b: Lanes<f32>) -> Lanes<f32> {
        each(|lane| if a[lane] < b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn select_less(self, a: Lanes<f32>, b: Lanes<f32>, yes: Lanes<f32>, no: Lanes<f32>) -> Lanes<f32> {
        each(|lane| if a[lane] < b[lane] { yes[lane] } else { no[lane] })
    }

    /// Adding 2^23 pushes the fraction out of the mantissa, and the addition's own rounding is to even.
    #[inline(always)]
    fn round(self, a: Lanes<f32>) -> Lanes<f32> {
        const SHIFT: f32 = 8_388_608.0;
        each(|lane| ((a[lane].abs() + SHIFT) - SHIFT).copysign(a[lane]))
    }

    #[inline(always)]
    fn scale(self, a: Lanes<f32>, power: Lanes<f32>) -> Lanes<f32> {
        each(|lane| f32::from_bits(a[lane].to_bits().wrapping_add(((power[lane] as i32) << 23) as u32)))
    }

    #[inline(always)]
    fn split_exponent(self, a: Lanes<f32>) -> (Lanes<f32>, Lanes<f32>) {
        let exponent = |lane: usize| (a[lane].to_bits() as i32).wrapping_sub(super::SQRT_HALF_BITS) >> 23;
        let mantissa = each(|lane| f32::from_bits(a[lane].to_bits().wrapping_sub((exponent(lane) << 23) as u32)));
        (mantissa, each(|lane| exponent(lane) as f32))
    }

    #[inline(always)]
    fn sum(self, a: Lanes<f32>) -> f32 {
        fold(a, |a, b| a + b)
    }

    #[inline(always)]
    fn max_lane(self, a: Lanes<f32>) -> f32 {
        fold(a, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn pair(self, first: Bf16, second: Bf16) -> [f32; 2] {
        [first.to_f32(), second.to_f32()]
    }

    #[inline(always)]
    fn dot_pairs(self, sum: Lanes<f32>, weights: &Lanes<u32>, activation: [f32; 2]) -> Lanes<f32> {
        let [first, second] = self.widen(weights);
        let sum = self.fma(first, self.splat(activation[0]), sum);
        self.fma(second, self.splat(activation[1]), sum)
    }

    #[inline(always)]
    fn dot_blocks(self, sum: Lanes<f32>, a: &[Bf16; 32], b: &[Bf16; 32]) -> Lanes<f32> {
        let sum = each(|lane| a[2 * lane].to_f32() * b[2 * lane].to_f32() + sum[lane]);
        each(|lane| a[2 * lane + 1].to_f32() * b[2 * lane + 1].to_f32() + sum[lane])
    }

    #[inline(always)]
    fn splat_i32(self, value: i32) -> Lanes<i32> {
        [value; LANES]
    }

    #[inline(always)]
    fn load_words(self, from: &Lanes<u32>) -> Lanes<i32> {
        from.map(|word| word as i32)
    }

    #[inline(always)]
    fn store_words(self, a: Lanes<i32>, to: &mut Lanes<u32>) {
        *to = a.map(|word| word as u32);
    }

    #[inline(always)]
    fn mul_i32(self, a: Lanes<i32>, b: Lanes<i32>) -> Lanes<i32> {
        std::array::from_fn(|lane| a[lane].wrapping_mul(b[lane]))
    }

    #[inline(always)]
    fn add_i32(self, a: Lanes<i32>, b: Lanes<i32>) -> Lanes<i32> {
        std::array::from_fn(|lane| a[lane].wrapping_add(b[lane]))
    }

    #[inline(always)]
    fn to_float(self, a: Lanes<i32>) -> Lanes<f32> {
        each(|lane| a[lane] as f32)
    }

    #[inline(always)]
    fn whole(self, a: Lanes<f32>) -> Lanes<i32> {
        a.map(|value| value as i32)
    }

    #[inline(always)]
    fn low_nibbles(self, a: Lanes<i32>) -> Lanes<i32> {
        a.map(|word| word & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn high_nibbles(self, a: Lanes<i32>) -> Lanes<i32> {
        a.map(|word| (word >> 4) & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn byte(self, a: Lanes<i32>, shift: u32) -> Lanes<f32> {
        each(|lane| ((a[lane] >> shift) & 0xff) as f32)
    }

    #[inline(always)]
    fn nibble(self, a: Lanes<i32>, shift: u32) -> Lanes<f32> {
        each(|lane| ((a[lane] >> shift) & 0xf) as f32)
    }

    #[inline(always)]
    fn quad(self, values: [i8; 4]) -> [i8; 4] {
        values
    }

    #[inline(always)]
    fn dot_quads(self, sum: Lanes<i32>, codes: Lanes<i32>, x: [i8; 4]) -> Lanes<i32> {
        std::array::from_fn(|lane| {
            let products = codes[lane].to_le_bytes().into_iter().zip(x).map(|(code, x)| i32::from(code) * i32::from(x));
            sum[lane] + products.sum::<i32>()
        })
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}

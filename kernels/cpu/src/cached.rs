//! What a cache holds of keys and values: activations as they are, or codes of 8 bits with a scale for each token and head.
//!
//! x ≈ code · scale, symmetric, with scale = max |x| / 127 over the token's head. The scale is float32 and stands behind its codes:
//!
//! ```text
//!   one token of a head:  | dim codes | scale, 4 bytes |
//! ```
//! 1. A block stays one piece that way: whoever copies, saves or loads it moves its scales along and knows nothing of them. A
//!    bfloat16 scale would save 2 bytes of 132 (128 columns), and codes would have to make good for its rounding.
//! 2. Codes are whole numbers up to 127, exact in float32 and in bfloat16 too (8 bits of fraction). So products with codes are those with
//!    activations that happen to be whole, by the same instructions in the same order; a score meets its key's scale
//!    after the sum, a weight its value's before.
//! 3. What is not finite does not become a number: the scale is NaN then.

use std::borrow::Borrow;

use bytemuck::Pod;

use crate::cache::CacheFormat;
use crate::element::{Bf16, Element};
use crate::norm::padded;
use crate::simd::{LANES, Lanes, Simd};

/// Bytes behind a token's codes.
pub const SCALE_BYTES: usize = size_of::<f32>();

/// The greatest code, and less its sign the least.
const CODE_MAX: f32 = 127.0;

/// What a cache holds of activations of format `E`: implemented by `E` itself, and by `i8`.
pub trait Held<E: Element>: Pod + Send + Sync + Default {
    /// How a cache's shape names it.
    const FORMAT: CacheFormat;
    /// As many neighbours as an [`Element::Block`] has.
    type Block: Pod;
    /// An [`Element::Block`], made or lent.
    type Wide<'a>: Borrow<E::Block>;

    /// One step of a dot product, without the scale; exact.
    fn wide<S: Simd>(simd: S, block: &Self::Block) -> Self::Wide<'_>;
    /// 16 neighbours as float32 lanes, without the scale; exact.
    fn load<S: Simd>(simd: S, from: &Lanes<Self>) -> S::V;
    /// Whether a class has a shorter way to widen 32 neighbours, which gives the even ones and then the odd ones: [`Self::load_apart`].
    #[inline(always)]
    fn are_apart<S: Simd>() -> bool {
        false
    }
    /// The even ones of 32 neighbours as float32 lanes, and the odd ones; exact.
    fn load_apart<S: Simd>(_: S, _: &[Self; 2 * LANES]) -> [S::V; 2] {
        unreachable!("asked for only where there is such a way")
    }
    /// What a token's head is multiplied with: it stands in `row` behind its `dim` numbers.
    fn scale(row: &[Self], dim: usize) -> f32;
    /// Puts a token's head into its row.
    fn store<S: Simd>(simd: S, head: &[E], row: &mut [Self]);
    /// A row that takes a head as it is, which may be written there at once.
    fn as_plain(_: &mut [Self]) -> Option<&mut [E]> {
        None
    }
}

impl<E: Element> Held<E> for E {
    const FORMAT: CacheFormat = CacheFormat::Plain;
    type Block = E::Block;
    type Wide<'a> = &'a E::Block;

    #[inline(always)]
    fn wide<S: Simd>(_: S, block: &E::Block) -> &E::Block {
        block
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &Lanes<E>) -> S::V {
        E::load(simd, from)
    }

    /// Two operations widen a register of pairs, four would two halves of it.
    #[inline(always)]
    fn are_apart<S: Simd>() -> bool {
        const { E::PACK == 2 && S::WIDTH == 4 }
    }

    #[inline(always)]
    fn load_apart<S: Simd>(simd: S, from: &[E; 2 * LANES]) -> [S::V; 2] {
        simd.widen(&bytemuck::pod_read_unaligned(bytemuck::bytes_of(from)))
    }

    #[inline(always)]
    fn scale(_: &[E], _: usize) -> f32 {
        1.0
    }

    #[inline(always)]
    fn store<S: Simd>(_: S, head: &[E], row: &mut [E]) {
        row.copy_from_slice(head);
    }

    #[inline(always)]
    fn as_plain(row: &mut [E]) -> Option<&mut [E]> {
        Some(row)
    }
}

impl Held<f32> for i8 {
    const FORMAT: CacheFormat = CacheFormat::Codes;
    type Block = Lanes<i8>;
    type Wide<'a> = Lanes<f32>;

    #[inline(always)]
    fn wide<S: Simd>(simd: S, block: &Lanes<i8>) -> Lanes<f32> {
        let mut wide = [0.0; LANES];
        simd.store(simd.load_i8(block), &mut wide);
        wide
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &Lanes<i8>) -> S::V {
        simd.load_i8(from)
    }

    #[inline(always)]
    fn scale(row: &[i8], dim: usize) -> f32 {
        scale_of(row, dim)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, head: &[f32], row: &mut [i8]) {
        store_codes(simd, head, row);
    }
}

impl Held<Bf16> for i8 {
    const FORMAT: CacheFormat = CacheFormat::Codes;
    type Block = [i8; 2 * LANES];
    type Wide<'a> = [Bf16; 2 * LANES];

    #[inline(always)]
    fn wide<S: Simd>(simd: S, block: &[i8; 2 * LANES]) -> [Bf16; 2 * LANES] {
        simd.bf16_of_i8(block)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &Lanes<i8>) -> S::V {
        simd.load_i8(from)
    }

    #[inline(always)]
    fn scale(row: &[i8], dim: usize) -> f32 {
        scale_of(row, dim)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, head: &[Bf16], row: &mut [i8]) {
        store_codes(simd, head, row);
    }
}

#[inline(always)]
fn scale_of(row: &[i8], dim: usize) -> f32 {
    // Rows may begin anywhere: heads are of any width.
    bytemuck::pod_read_unaligned(bytemuck::cast_slice(&row[dim..dim + SCALE_BYTES]))
}

/// To nearest even, of x / scale: the division's one rounding is the same in every class.
#[inline(always)]
fn store_codes<E: Element, S: Simd>(simd: S, head: &[E], row: &mut [i8]) {
    let (codes, behind) = row.split_at_mut(head.len());
    let zero = simd.splat(0.0);
    let (mut most, mut spoiled) = (zero, zero);
    for some in head.chunks(LANES) {
        let x = E::load(simd, &padded(some));
        most = simd.max(most, simd.max(x, simd.sub(zero, x)));
        spoiled = simd.fma(x, zero, spoiled); // NaN from the first number on that is not finite
    }
    let scale = simd.max_lane(most) / CODE_MAX + simd.sum(spoiled);
    behind.copy_from_slice(bytemuck::cast_slice(&scale.to_ne_bytes()));
    if scale.is_nan() || scale == 0.0 {
        codes.fill(0);
        return;
    }
    let (least, greatest) = (simd.splat(-CODE_MAX), simd.splat(CODE_MAX));
    for (codes, some) in codes.chunks_mut(LANES).zip(head.chunks(LANES)) {
        let code = simd.div(E::load(simd, &padded(some)), simd.splat(scale));
        // A scale below the smallest normal number has few bits.
        let inside = simd.min(greatest, simd.max(least, code));
        let mut lanes = [0.0; LANES];
        simd.store(simd.round(inside), &mut lanes);
        for (to, code) in codes.iter_mut().zip(lanes) {
            *to = code as i8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::Kernel;

    struct Store<'a, E>(&'a [E], &'a mut [i8]);

    impl<E: Element> Kernel for Store<'_, E>
    where
        i8: Held<E>,
    {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            <i8 as Held<E>>::store(simd, self.0, self.1);
        }
    }

    /// Codes and scale.
    fn stored<E: Element>(isa: Isa, head: &[f32]) -> (Vec<i8>, f32)
    where
        i8: Held<E>,
    {
        let head: Vec<E> = head.iter().map(|&x| E::from_f32(x)).collect();
        let mut row = vec![99; head.len() + SCALE_BYTES];
        isa.run(Store(&head, &mut row));
        let scale = scale_of(&row, head.len());
        row.truncate(head.len());
        (row, scale)
    }

    #[test]
    fn the_greatest_number_has_the_greatest_code_and_others_are_rounded_to_even() {
        for isa in Isa::available() {
            let expected = (vec![127, -127, 0, 1, 2, 2, -2, 0], 1.0);
            let head = [127.0, -127.0, 0.5, 1.0, 1.5, 2.5, -1.5, -0.25];
            assert_eq!(stored::<f32>(isa, &head), expected, "{}", isa.name());
            assert_eq!(stored::<Bf16>(isa, &head), expected, "{}", isa.name());
            let long: Vec<f32> = (0..37).map(|at| -2.0 * at as f32).collect();
            let (codes, scale) = stored::<f32>(isa, &long);
            assert_eq!((codes[36], scale), (-127, 72.0 / 127.0), "{}", isa.name());
        }
    }

    #[test]
    fn nothing_is_nothing_and_what_is_not_finite_stays_so() {
        for isa in Isa::available() {
            assert_eq!(stored::<f32>(isa, &[0.0, -0.0, 0.0]), (vec![0; 3], 0.0));
            assert_eq!(stored::<f32>(isa, &[1e-45, 0.0]), (vec![0; 2], 0.0)); // the scale has no number
            for spoiled in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let (codes, scale) = stored::<f32>(isa, &[1.0, spoiled, 3.0]);
                assert!(codes == [0; 3] && scale.is_nan(), "{spoiled} on {}", isa.name());
            }
        }
    }
}

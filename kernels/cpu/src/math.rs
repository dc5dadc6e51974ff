//! exp, ln and tanh on 16 lanes, by polynomials after Cephes (`expf`, `logf`, `tanhf`): within 2 ulp, the same instructions everywhere;
//! the normal distribution's Φ by one of our own; and load and store of a row's incomplete end.

use crate::element::Element;
use crate::simd::{LANES, Simd};

/// Up to 16 values, the missing ones being `fill`.
#[inline(always)]
pub(crate) fn filled<S: Simd>(simd: S, values: &[f32], fill: f32) -> S::V {
    if let Ok(whole) = values.try_into() {
        return simd.load(whole);
    }
    let mut lanes = [fill; LANES];
    lanes[..values.len()].copy_from_slice(values);
    simd.load(&lanes)
}

/// As many lanes of a vector as there is room for, up to 16.
#[inline(always)]
pub(crate) fn put<S: Simd, E: Element>(simd: S, value: S::V, to: &mut [E]) {
    if let Ok(whole) = to.try_into() {
        return E::store(simd, value, whole);
    }
    let mut lanes = [E::default(); LANES];
    E::store(simd, value, &mut lanes);
    to.copy_from_slice(&lanes[..to.len()]);
}

/// e^x. 0 below -87.3 (the smallest normal result), infinity above 88.7; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::V) -> S::V {
    const GREATEST: f32 = 88.722_83;
    // As `max(constant, x)`, because the second is what comes back when x is NaN.
    let (poly, power) = exp_parts(simd, simd.min(simd.splat(GREATEST), simd.max(simd.splat(EXP_LEAST), x)));
    // 2^128 is no float32, but the result may still be one.
    let value = simd.select_less(x, simd.splat(EXP_LEAST), simd.splat(0.0), simd.scale_far(poly, power));
    simd.select_less(simd.splat(GREATEST), x, simd.splat(f32::INFINITY), value)
}

/// The same for x ≤ 0 and NaN, bit for bit, with a third less work.
#[inline(always)]
pub(crate) fn exp_at_most_one<S: Simd>(simd: S, x: S::V) -> S::V {
    let (poly, power) = exp_parts(simd, simd.max(simd.splat(EXP_LEAST), x));
    simd.select_less(x, simd.splat(EXP_LEAST), simd.splat(0.0), simd.scale(poly, power))
}

/// Below, e^x is no normal float32.
const EXP_LEAST: f32 = -87.336_54;

/// (p, n) with e^x = p · 2^n.
#[inline(always)]
fn exp_parts<S: Simd>(simd: S, x: S::V) -> (S::V, S::V) {
    // ln 2 in two parts: the first has few bits, so that its product with a small whole number is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let power = simd.round(simd.mul(x, simd.splat(std::f32::consts::LOG2_E)));
    let rest = simd.fma(power, simd.splat(-LN2_HIGH), x);
    let rest = simd.fma(power, simd.splat(-LN2_LOW), rest);
    let mut poly = simd.splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        poly = simd.fma(poly, rest, simd.splat(coefficient));
    }
    (simd.fma(poly, simd.mul(rest, rest), simd.add(rest, simd.splat(1.0))), power)
}

/// tanh x.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, x: S::V) -> S::V {
    let zero = simd.splat(0.0);
    let minus = simd.sub(zero, x);
    let size = simd.max(x, minus); // NaN stays NaN: the second comes back
    // Near 0 an odd polynomial; from 0.625 on 1 - 2 / (e^2x + 1), whose difference loses no bits any more.
    let square = simd.mul(x, x);
    let mut poly = simd.splat(-5.704_988_7e-3);
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        poly = simd.fma(poly, square, simd.splat(coefficient));
    }
    let near = simd.fma(simd.mul(poly, square), x, x);
    let one = simd.splat(1.0);
    let grown = simd.add(exp(simd, simd.add(size, size)), one);
    let far = simd.sub(one, simd.div(simd.splat(2.0), grown));
    let far = simd.select_less(x, zero, simd.sub(zero, far), far);
    simd.select_less(size, simd.splat(0.625), near, far)
}

/// Φ(x), the share of the normal distribution below x, with a small relative error in both tails: 1 - Φ is never taken where
/// it would cancel.
///
/// Φ(-u) = e^(-u²/2) · G(u) for u ≥ 0, and G is smooth: t · Q(t) with t = 1 / (1 + 0.35 u) and Q of degree 9, fitted for the least
/// relative error up to u = 13.3, where e^(-u²/2) ends. In exact arithmetic it is 2e-8 off, in float32 3e-7; what e is raised to
/// adds its own rounding, u²/2 · 2^-24.
#[inline(always)]
pub(crate) fn normal_cdf<S: Simd>(simd: S, x: S::V) -> S::V {
    let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
    let size = simd.max(x, simd.sub(zero, x)); // NaN stays NaN: the second comes back
    let t = simd.div(one, simd.fma(size, simd.splat(0.35), one));
    let mut poly = simd.splat(4.431_806e-3);
    for coefficient in [
        -0.052_556_53,
        0.197_277_75,
        -0.324_186_03,
        0.213_682_23,
        -0.050_906_95,
        0.114_559_054,
        0.118_023_97,
        0.140_062_69,
        0.139_611_99,
    ] {
        poly = simd.fma(poly, t, simd.splat(coefficient));
    }
    let density = exp(simd, simd.mul(simd.mul(size, size), simd.splat(-0.5)));
    let below = simd.mul(density, simd.mul(poly, t));
    simd.select_less(x, zero, below, simd.sub(one, below))
}

/// ln x for positive normal x.
#[inline(always)]
pub(crate) fn ln<S: Simd>(simd: S, x: S::V) -> S::V {
    let (mantissa, exponent) = simd.split_exponent(x);
    ln_of_parts(simd, simd.sub(mantissa, simd.splat(1.0)), exponent)
}

/// ln(1 - x) for x in [0, 1 - 2^-24]; exact to the last bits for small x too, where 1 - x would round them away.
#[inline(always)]
pub(crate) fn ln_one_minus<S: Simd>(simd: S, x: S::V) -> S::V {
    let zero = simd.splat(0.0);
    let (mantissa, exponent) = simd.split_exponent(simd.sub(simd.splat(1.0), x));
    let rounded = simd.sub(mantissa, simd.splat(1.0));
    let minus = simd.sub(zero, x);
    ln_of_parts(simd, simd.select_less(exponent, zero, rounded, minus), exponent)
}

/// ln((1 + f) · 2^e) for f in [√½ - 1, √2 - 1).
#[inline(always)]
fn ln_of_parts<S: Simd>(simd: S, f: S::V, e: S::V) -> S::V {
    let square = simd.mul(f, f);
    let mut poly = simd.splat(7.037_683_6e-2);
    for coefficient in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        poly = simd.fma(poly, f, simd.splat(coefficient));
    }
    let poly = simd.mul(simd.mul(poly, f), square);
    let poly = simd.fma(e, simd.splat(-2.121_944_4e-4), poly);
    let poly = simd.fma(square, simd.splat(-0.5), poly);
    simd.fma(e, simd.splat(0.693_359_4), simd.add(f, poly))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::simd::{Kernel, Lanes};

    #[derive(Clone, Copy)]
    enum Function {
        Exp,
        Tanh,
        Ln,
        LnOneMinus,
        NormalCdf,
        ExpAtMostOne,
    }

    struct Apply(Function, f32);

    impl Kernel for Apply {
        type Output = f32;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> f32 {
            let x = simd.splat(self.1);
            let value = match self.0 {
                Function::Exp => exp(simd, x),
                Function::Tanh => tanh(simd, x),
                Function::Ln => ln(simd, x),
                Function::LnOneMinus => ln_one_minus(simd, x),
                Function::NormalCdf => normal_cdf(simd, x),
                Function::ExpAtMostOne => exp_at_most_one(simd, x),
            };
            let mut out: Lanes<f32> = [0.0; 16];
            simd.store(value, &mut out);
            assert!(out.iter().all(|lane| lane.to_bits() == out[0].to_bits()));
            out[0]
        }
    }

    fn worst_ulps(isa: Isa, function: Function, inputs: impl Iterator<Item = f32>, exact: impl Fn(f64) -> f64) -> f64 {
        inputs.fold(0.0, |worst: f64, x| {
            let truth = exact(f64::from(x));
            let ulp = f64::from((truth as f32).abs()) * 2.0_f64.powi(-23);
            worst.max((f64::from(isa.run(Apply(function, x))) - truth).abs() / ulp.max(f64::from(f32::MIN_POSITIVE)))
        })
    }

    #[test]
    fn exp_tanh_and_ln_are_within_two_ulp_of_the_truth() {
        for isa in Isa::available() {
            let spread = |low: f32, high: f32| (0..40_000).map(move |at| low + (high - low) * at as f32 / 40_000.0);
            assert!(worst_ulps(isa, Function::Exp, spread(-87.3, 88.7), f64::exp) < 2.0, "{}", isa.name());
            let both = spread(-1.0, 1.0).chain(spread(-20.0, 20.0));
            assert!(worst_ulps(isa, Function::Tanh, both, f64::tanh) < 2.0, "{}", isa.name());
            let tiny = (0..20_000).map(|at| f32::from_bits(0x0080_0000 + at * 0x0001_7fff));
            assert!(worst_ulps(isa, Function::Ln, tiny.chain(spread(0.01, 3.0)), f64::ln) < 2.0, "{}", isa.name());
            let small = (1..10_000).map(|at| (at as f32).powi(2) * 1e-10);
            let inputs = small.chain(spread(0.01, 1.0 - f32::EPSILON));
            let exact = |x: f64| (-x).ln_1p();
            assert!(worst_ulps(isa, Function::LnOneMinus, inputs, exact) < 2.0, "{}", isa.name());
        }
    }

    #[test]
    fn exp_of_what_is_not_positive_has_the_same_bits_whichever_way() {
        let spread = (0..100_000).map(|at| -88.0 * at as f32 / 100_000.0);
        let odd = [0.0, -0.0, f32::NAN, f32::NEG_INFINITY, f32::MIN, -f32::MIN_POSITIVE, EXP_LEAST, -87.336_55];
        for isa in Isa::available() {
            for x in spread.clone().chain(odd) {
                let (plain, short) = (isa.run(Apply(Function::Exp, x)), isa.run(Apply(Function::ExpAtMostOne, x)));
                assert_eq!(plain.to_bits(), short.to_bits(), "{x} by {}", isa.name());
            }
        }
    }

    /// Φ by the series about 0 and, far out on the left, by the continued fraction of Mills' ratio.
    fn exact_normal_cdf(x: f64) -> f64 {
        let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        if x < -3.0 {
            return density / (1..200).rev().fold(-x, |rest, term| -x + f64::from(term) / rest);
        }
        let mut term = x;
        let series = (1..200).fold(x, |sum, at| {
            term *= x * x / f64::from(2 * at + 1);
            sum + term
        });
        0.5 + density * series
    }

    #[test]
    fn the_normal_distribution_keeps_its_left_tail() {
        assert!((exact_normal_cdf(-1.0) / 0.158_655_253_931_457_05 - 1.0).abs() < 1e-13);
        assert!((exact_normal_cdf(-5.0) / 2.866_515_718_791_939e-7 - 1.0).abs() < 1e-13);
        for isa in Isa::available() {
            for at in 0..40_000 {
                let x = -13.0 + 26.0 * at as f32 / 40_000.0;
                let (got, exact) = (f64::from(isa.run(Apply(Function::NormalCdf, x))), exact_normal_cdf(f64::from(x)));
                // 8 roundings, and those of what e is raised to.
                let steps = 8.0 + f64::from(x.min(0.0)).powi(2) / 2.0;
                assert!((got - exact).abs() <= exact * steps * 2.0_f64.powi(-23), "{}: {got} at {x}", isa.name());
            }
            let ends = [(f32::NEG_INFINITY, 0.0), (-100.0, 0.0), (0.0, 0.5), (100.0, 1.0), (f32::INFINITY, 1.0)];
            for (x, expected) in ends {
                let got = isa.run(Apply(Function::NormalCdf, x));
                assert!((got - expected).abs() < 1e-7, "{} of {x}: {got}", isa.name());
            }
            assert!(isa.run(Apply(Function::NormalCdf, f32::NAN)).is_nan());
        }
    }

    #[test]
    fn exp_keeps_its_ends() {
        for isa in Isa::available() {
            let cases = [
                (f32::NEG_INFINITY, 0.0),
                (-200.0, 0.0),
                (0.0, 1.0),
                (-0.0, 1.0),
                (200.0, f32::INFINITY),
                (f32::INFINITY, f32::INFINITY),
            ];
            for (x, expected) in cases {
                assert_eq!(isa.run(Apply(Function::Exp, x)), expected, "{} of {x}", isa.name());
            }
            assert!(isa.run(Apply(Function::Exp, f32::NAN)).is_nan());
        }
    }
}

//! x = act(x), in place: the activations of MLPs without a gate.
//!
//! ```text
//!   silu(x)       x / (1 + e^-x)
//!   gelu_tanh(x)  x / (1 + e^-2u), u = √(2/π) · (x + 0.044715 x³): x/2 · (1 + tanh u), with one division
//!   gelu_erf(x)   x · Φ(x), with the normal distribution's Φ: x/2 · (1 + erf(x/√2))
//!   relu(x)       x where x > 0, else 0
//!   tanh(x)       (e^2x - 1) / (e^2x + 1)
//! ```

use crate::Cpu;
use crate::element::Element;
use crate::elementwise::by_parts;
use crate::gate::minus_2u;
use crate::math::{exp, normal_cdf, tanh};
use crate::simd::{Kernel, LANES, Simd};

/// What is done to each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// x · sigmoid(x).
    Silu,
    /// The tanh form of x · Φ(x).
    GeluTanh,
    /// x · Φ(x).
    GeluErf,
    /// max(x, 0).
    Relu,
    /// The hyperbolic tangent.
    Tanh,
}

impl Function {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Silu, Self::GeluTanh, Self::GeluErf, Self::Relu, Self::Tanh];

    /// The name that `pelton_kernels.ops` has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::GeluTanh => "gelu_tanh",
            Self::GeluErf => "gelu_erf",
            Self::Relu => "relu",
            Self::Tanh => "tanh",
        }
    }
}

/// `x = function(x)`, rounded to its format.
pub fn activate<E: Element>(cpu: &mut Cpu, x: &mut [E], function: Function) {
    let isa = cpu.isa;
    // An element with its exp and division weighs about as much as two that are only read and added.
    by_parts(cpu, x, 2, |_, x| match function {
        Function::Silu => isa.run(Apply(x, Silu)),
        Function::GeluTanh => isa.run(Apply(x, GeluTanh)),
        Function::GeluErf => isa.run(Apply(x, GeluErf)),
        Function::Relu => isa.run(Apply(x, Relu)),
        Function::Tanh => isa.run(Apply(x, Tanh)),
    });
}

/// A function of 16 lanes, each a type of its own so that the loop around it has no branch.
trait Lanewise {
    fn of<S: Simd>(&self, simd: S, x: S::V) -> S::V;
}

struct Silu;
struct GeluTanh;
struct GeluErf;
struct Relu;
struct Tanh;

impl Lanewise for Silu {
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, x: S::V) -> S::V {
        through_sigmoid(simd, x, simd.sub(simd.splat(0.0), x))
    }
}

impl Lanewise for GeluTanh {
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, x: S::V) -> S::V {
        through_sigmoid(simd, x, minus_2u(simd, x))
    }
}

impl Lanewise for GeluErf {
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, x: S::V) -> S::V {
        simd.mul(x, normal_cdf(simd, x))
    }
}

impl Lanewise for Relu {
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, x: S::V) -> S::V {
        simd.max(simd.splat(0.0), x) // NaN stays NaN: the second comes back
    }
}

impl Lanewise for Tanh {
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, x: S::V) -> S::V {
        tanh(simd, x)
    }
}

/// x / (1 + e^power)
#[inline(always)]
fn through_sigmoid<S: Simd>(simd: S, x: S::V, power: S::V) -> S::V {
    let one = simd.splat(1.0);
    simd.mul(x, simd.div(one, simd.add(one, exp(simd, power))))
}

struct Apply<'a, E, F>(&'a mut [E], F);

impl<E: Element, F: Lanewise> Kernel for Apply<'_, E, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(x, function) = self;
        let (chunks, tail) = x.as_chunks_mut::<LANES>();
        for x in chunks {
            let value = function.of(simd, E::load(simd, x));
            E::store(simd, value, x);
        }
        if !tail.is_empty() {
            let mut lanes = [E::default(); LANES];
            lanes[..tail.len()].copy_from_slice(tail);
            let value = function.of(simd, E::load(simd, &lanes));
            E::store(simd, value, &mut lanes);
            tail.copy_from_slice(&lanes[..tail.len()]);
        }
    }
}

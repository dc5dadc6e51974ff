//! The Python door of matrix products, and of look-ups in what was packed for them. As in `ops`: addresses of tensors that Python has checked and holds during the call.

use pelton_cpu::program::Weight;
use pelton_cpu::{Bf16, Element, Format, Isa};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::ops::{cpu, format_of, refused};
use crate::span::{Span, check_apart};
use crate::weights::PackedWeight;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(linear, module)?)?;
    module.add_function(wrap_pyfunction!(embed_packed, module)?)
}

/// `out_dtype` is the weight's, or float32.
#[pyfunction]
#[pyo3(signature = (out_dtype, out, x, weight, bias))]
fn linear(
    py: Python<'_>,
    out_dtype: &str,
    out: Span,
    x: Span,
    weight: &Bound<'_, PackedWeight>,
    bias: Option<Span>,
) -> PyResult<()> {
    let out_format = format_of(out_dtype)?;
    let bias = bias.unwrap_or(Span::new(0, 0));
    match (&weight.get().0, out_format) {
        (Weight::Float32(weight), Format::Float32) => linear_of::<f32, f32>(py, out, x, weight, bias),
        (Weight::BFloat16(weight), Format::Float32) => linear_of::<Bf16, f32>(py, out, x, weight, bias),
        (Weight::BFloat16(weight), Format::BFloat16) => linear_of::<Bf16, Bf16>(py, out, x, weight, bias),
        (Weight::Quantized(Format::Float32, weight), Format::Float32) => {
            quantized_of::<f32, f32>(py, out, x, weight, bias)
        }
        (Weight::Quantized(Format::BFloat16, weight), Format::Float32) => {
            quantized_of::<Bf16, f32>(py, out, x, weight, bias)
        }
        (Weight::Quantized(Format::BFloat16, weight), Format::BFloat16) => {
            quantized_of::<Bf16, Bf16>(py, out, x, weight, bias)
        }
        (Weight::Float32(_) | Weight::Quantized(Format::Float32, _), Format::BFloat16) => {
            Err(PyValueError::new_err("`out` is bfloat16, the weight is for float32; allowed: float32"))
        }
    }
}

/// `out` is of the weight's format.
#[pyfunction]
fn embed_packed(py: Python<'_>, out: Span, table: &Bound<'_, PackedWeight>, ids: Span, scale: f32) -> PyResult<()> {
    match &table.get().0 {
        Weight::Float32(table) => embed_packed_of(py, out, table, ids, scale),
        Weight::BFloat16(table) => embed_packed_of(py, out, table, ids, scale),
        Weight::Quantized(..) => Err(PyValueError::new_err("`table` is quantised; allowed: float32, bfloat16")),
    }
}

fn embed_packed_of<E: Element>(
    py: Python<'_>,
    out: Span,
    table: &pelton_cpu::PackedWeight<E>,
    ids: Span,
    scale: f32,
) -> PyResult<()> {
    check_apart(&[("out", out, size_of::<E>())], &[("ids", ids, 4)])?;
    // SAFETY: see the module's comment; apart by the check above.
    let (out, ids) = unsafe { (out.write::<E>(), ids.read()) };
    py.detach(|| {
        let mut cpu = cpu();
        check_suits(table.suits(cpu.isa()), cpu.isa())?;
        pelton_cpu::embed_packed(&mut cpu, out, table, ids, scale).map_err(refused)
    })
}

fn quantized_of<E: Element, O: Element>(
    py: Python<'_>,
    out: Span,
    x: Span,
    weight: &pelton_cpu::QuantizedWeight,
    bias: Span,
) -> PyResult<()> {
    check_apart(&[("out", out, size_of::<O>())], &[("x", x, size_of::<E>()), ("bias", bias, size_of::<E>())])?;
    // SAFETY: see the module's comment; apart by the check above.
    let (out, x, bias) = unsafe { (out.write::<O>(), x.read::<E>(), bias.read::<E>()) };
    py.detach(|| {
        let mut cpu = cpu();
        check_suits(weight.suits(cpu.isa()), cpu.isa())?;
        pelton_cpu::linear_quantized(&mut cpu, out, x, weight, (!bias.is_empty()).then_some(bias));
        Ok(())
    })
}

fn check_suits(suits: bool, isa: Isa) -> PyResult<()> {
    if suits {
        return Ok(());
    }
    let isa = isa.name();
    Err(PyValueError::new_err(format!("`weight` is packed for another instruction set; allowed: one packed for {isa}")))
}

fn linear_of<E: Element, O: Element>(
    py: Python<'_>,
    out: Span,
    x: Span,
    weight: &pelton_cpu::PackedWeight<E>,
    bias: Span,
) -> PyResult<()> {
    check_apart(&[("out", out, size_of::<O>())], &[("x", x, size_of::<E>()), ("bias", bias, size_of::<E>())])?;
    // SAFETY: see the module's comment; apart by the check above.
    let (out, x, bias) = unsafe { (out.write::<O>(), x.read::<E>(), bias.read::<E>()) };
    py.detach(|| {
        let mut cpu = cpu();
        check_suits(weight.suits(cpu.isa()), cpu.isa())?;
        pelton_cpu::linear(&mut cpu, out, x, weight, (!bias.is_empty()).then_some(bias));
        Ok(())
    })
}

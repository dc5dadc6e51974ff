//! Weights for Python: matrices where a checkpoint has them, packed with all threads; floats, or codes of 4 and 8 bits.

use std::sync::Arc;

use pelton_cpu::program::Weight;
use pelton_cpu::{Bf16, Bits, Codes, Format, Matrix, QuantizedActivations, QuantizedWeight, Scheme, Stored};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::ops::{cpu, format_of, refused};
use crate::span::Span;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PackedWeight>()?;
    module.add_function(wrap_pyfunction!(pack, module)?)?;
    module.add_function(wrap_pyfunction!(quantize, module)?)?;
    module.add_function(wrap_pyfunction!(pack_codes, module)?)
}

/// A weight matrix in the layout of the instruction set that was chosen when it was packed.
#[pyclass(frozen, module = "pelton_kernels._native")]
pub(crate) struct PackedWeight(pub(crate) Weight);

#[pymethods]
impl PackedWeight {
    /// How much memory it takes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    /// What `KeptFile.weight` must know of it.
    #[getter]
    fn numbers(&self) -> Vec<u64> {
        self.0.numbers()
    }
}

/// Bits, group (0: a whole column), format of the activations that are multiplied: "int8" or "float".
pub(crate) type SchemeWords<'a> = (u32, usize, &'a str);

pub(crate) fn scheme_of((bits, group, activations): SchemeWords<'_>) -> PyResult<Scheme> {
    let unknown = |name: &str, got: String, allowed: &str| {
        PyValueError::new_err(format!("`{name}` is {got}; allowed: {allowed}"))
    };
    let bits = match bits {
        4 => Bits::Four,
        8 => Bits::Eight,
        other => return Err(unknown("bits", other.to_string(), "4, 8")),
    };
    if !group.is_multiple_of(8) || group > 2048 {
        return Err(unknown("group", group.to_string(), "multiples of 8 up to 2048; 0 for a whole column"));
    }
    let activations = match activations {
        "int8" => QuantizedActivations::Int8,
        "float" => QuantizedActivations::Float,
        other => return Err(unknown("activations", other.to_owned(), "int8, float")),
    };
    Ok(Scheme { bits, group: (group > 0).then_some(group), activations })
}

/// Matrices one above the other: how each is stored, and where.
type Parts = Vec<(String, Span)>;

fn matrix<'a>(parts: &Parts, depth: usize) -> PyResult<Matrix<'a>> {
    let stored = |(dtype, span): &(String, Span)| {
        if !span.elements().is_multiple_of(depth) {
            return Err(PyValueError::new_err(format!(
                "a part of {} values is no matrix {depth} wide",
                span.elements()
            )));
        }
        // SAFETY: contiguous tensors of these formats, which the caller holds; nothing that Python can see is written.
        unsafe {
            match dtype.as_str() {
                "float32" => Ok(Stored::Float32(span.read::<f32>())),
                "bfloat16" => Ok(Stored::BFloat16(span.read::<Bf16>())),
                "float16" => Ok(Stored::Float16(span.read::<u16>())),
                other => {
                    Err(PyValueError::new_err(format!("`weight` is {other}; allowed: float32, bfloat16, float16")))
                }
            }
        }
    };
    Ok(Matrix::new(parts.iter().map(stored).collect::<PyResult<_>>()?, depth))
}

/// Packs row-major matrices that stand one above the other, in the format that is computed in.
#[pyfunction]
fn pack(py: Python<'_>, dtype: &str, parts: Parts, depth: usize) -> PyResult<PackedWeight> {
    let (format, matrix) = (format_of(dtype)?, matrix(&parts, depth)?);
    Ok(PackedWeight(py.detach(|| match format {
        Format::Float32 => Weight::Float32(Arc::new(pelton_cpu::PackedWeight::pack(&mut cpu(), &matrix))),
        Format::BFloat16 => Weight::BFloat16(Arc::new(pelton_cpu::PackedWeight::pack(&mut cpu(), &matrix))),
    })))
}

/// Rounds such matrices to codes; `dtype` is that of the activations.
#[pyfunction]
fn quantize(
    py: Python<'_>,
    dtype: &str,
    parts: Parts,
    depth: usize,
    scheme: SchemeWords<'_>,
) -> PyResult<PackedWeight> {
    let (format, matrix, scheme) = (format_of(dtype)?, matrix(&parts, depth)?, scheme_of(scheme)?);
    let weight = py.detach(|| QuantizedWeight::quantize(&mut cpu(), &matrix, scheme));
    Ok(PackedWeight(Weight::Quantized(format, Arc::new(weight))))
}

/// Packs codes as a checkpoint has them: one byte each, `[columns, depth]`; scales and zero points `[columns, groups]`.
#[pyfunction]
#[pyo3(signature = (dtype, codes, depth, scheme, scales, zeros, order))]
#[allow(clippy::too_many_arguments, reason = "one per tensor of the Python door")]
fn pack_codes(
    py: Python<'_>,
    dtype: &str,
    codes: Span,
    depth: usize,
    scheme: SchemeWords<'_>,
    scales: Span,
    zeros: Option<Span>,
    order: Option<Span>,
) -> PyResult<PackedWeight> {
    let (format, scheme) = (format_of(dtype)?, scheme_of(scheme)?);
    // SAFETY: contiguous tensors of these formats and of the shapes that `ops` has checked, which the caller holds.
    let codes = unsafe {
        Codes {
            codes: codes.read(),
            scales: scales.read(),
            zeros: zeros.map(|zeros| zeros.read()),
            order: order.map(|order| order.read()),
            depth,
        }
    };
    let weight = py.detach(|| QuantizedWeight::from_codes(&mut cpu(), &codes, scheme)).map_err(refused)?;
    Ok(PackedWeight(Weight::Quantized(format, Arc::new(weight))))
}

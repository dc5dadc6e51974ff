//! What models of vectors need besides a decoder's ops, for Python: segments of a pair, and rows pooled to one vector each.

use pelton_cpu::{Bf16, Format, Pooling};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::ops::{by_format, cpu, format_of, refused};
use crate::span::{Span, check_apart};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(embed_segments, module)?)?;
    module.add_function(wrap_pyfunction!(pool_rows, module)?)
}

/// The pooling of this name.
pub(crate) fn pooling_of(name: &str) -> PyResult<Pooling> {
    Pooling::ALL.into_iter().find(|pooling| pooling.name() == name).ok_or_else(|| {
        let allowed = Pooling::ALL.map(Pooling::name).join(", ");
        PyValueError::new_err(format!("`pooling` is {name}; allowed: {allowed}"))
    })
}

#[pyfunction]
#[pyo3(signature = (dtype, out, table, ids, row_offsets, separator, width))]
#[allow(clippy::too_many_arguments, reason = "one per argument of the op")]
fn embed_segments(
    py: Python<'_>,
    dtype: &str,
    out: Span,
    table: Span,
    ids: Span,
    row_offsets: Span,
    separator: Option<i32>,
    width: usize,
) -> PyResult<()> {
    let format = format_of(dtype)?;
    by_format!(format, E => {
        let size = size_of::<E>();
        check_apart(&[("out", out, size)], &[("table", table, size), ("ids", ids, 4), ("row_offsets", row_offsets, 4)])?;
        // SAFETY: tensors of these formats, held by the caller during this call; apart by the check above.
        let (out, table, ids, offsets) = unsafe { (out.write::<E>(), table.read(), ids.read(), row_offsets.read()) };
        py.detach(|| pelton_cpu::embed_segments(&mut cpu(), out, table, ids, offsets, separator, width)).map_err(refused)
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one per argument of the op")]
fn pool_rows(
    py: Python<'_>,
    out_dtype: &str,
    dtype: &str,
    out: Span,
    x: Span,
    row_offsets: Span,
    at: Span,
    width: usize,
    pooling: &str,
) -> PyResult<()> {
    let (out_format, format, pooling) = (format_of(out_dtype)?, format_of(dtype)?, pooling_of(pooling)?);
    by_format!(out_format, O => by_format!(format, E => {
        let read = [("x", x, size_of::<E>()), ("row_offsets", row_offsets, 4), ("at", at, 4)];
        check_apart(&[("out", out, size_of::<O>())], &read)?;
        // SAFETY: as above.
        let (out, x, offsets, at) = unsafe { (out.write::<O>(), x.read::<E>(), row_offsets.read(), at.read()) };
        py.detach(|| pelton_cpu::pool_rows(&mut cpu(), out, x, offsets, at, width, pooling)).map_err(refused)
    }))
}

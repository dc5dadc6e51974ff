//! The norms' Python door. As in `ops`: addresses of tensors that Python has checked and holds during the call.

use pelton_cpu::{Bf16, Format, LayerNorm};
use pyo3::prelude::*;

use crate::ops::{by_format, cpu, format_of};
use crate::span::{Span, check_apart};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(add_rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(layer_norm, module)?)?;
    module.add_function(wrap_pyfunction!(add_layer_norm, module)?)
}

#[pyfunction]
fn rms_norm(py: Python<'_>, dtype: &str, out: Span, x: Span, gain: Span, eps: f32) -> PyResult<()> {
    let format = format_of(dtype)?;
    by_format!(format, E => {
        let size = size_of::<E>();
        let is_in_place = out == x;
        check_apart(&[("out", out, size)], &[("gain", gain, 4)])?;
        // SAFETY: see the module's comment; `out` is apart from `gain` by the check above.
        let (target, gain) = unsafe { (out.write::<E>(), gain.read::<f32>()) };
        if is_in_place {
            py.detach(|| pelton_cpu::rms_norm_in_place(&mut cpu(), target, gain, eps));
            return Ok(());
        }
        check_apart(&[("out", out, size)], &[("x", x, size)])?;
        // SAFETY: as above, and apart from `out`.
        let x = unsafe { x.read::<E>() };
        py.detach(|| pelton_cpu::rms_norm(&mut cpu(), target, gain.len(), x, gain, eps));
        Ok(())
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one per tensor of the Python door")]
fn add_rms_norm(py: Python<'_>, dtype: &str, out: Span, residual: Span, x: Span, gain: Span, eps: f32) -> PyResult<()> {
    let format = format_of(dtype)?;
    by_format!(format, E => {
        let size = size_of::<E>();
        check_apart(&[("out", out, size), ("residual", residual, size)], &[("x", x, size), ("gain", gain, 4)])?;
        // SAFETY: see the module's comment; apart by the check above.
        let (out, residual, x, gain) =
            unsafe { (out.write::<E>(), residual.write::<E>(), x.read::<E>(), gain.read::<f32>()) };
        py.detach(|| pelton_cpu::add_rms_norm(&mut cpu(), out, gain.len(), residual, x, gain, eps));
        Ok(())
    })
}

#[pyfunction]
#[pyo3(signature = (dtype, out, x, gain, bias, eps, group))]
#[allow(clippy::too_many_arguments, reason = "one per tensor of the Python door")]
fn layer_norm(
    py: Python<'_>,
    dtype: &str,
    out: Span,
    x: Span,
    gain: Span,
    bias: Option<Span>,
    eps: f32,
    group: usize,
) -> PyResult<()> {
    let format = format_of(dtype)?;
    let no_bias = Span::new(0, 0);
    by_format!(format, E => {
        let size = size_of::<E>();
        let read = [("x", x, size), ("gain", gain, 4), ("bias", bias.unwrap_or(no_bias), 4)];
        check_apart(&[("out", out, size)], &read)?;
        // SAFETY: see the module's comment; apart by the check above.
        let (out, x, gain, bias) =
            unsafe { (out.write::<E>(), x.read::<E>(), gain.read(), bias.map(|bias| bias.read())) };
        py.detach(|| pelton_cpu::layer_norm(&mut cpu(), out, x, LayerNorm { gain, bias, eps, group }));
        Ok(())
    })
}

#[pyfunction]
#[pyo3(signature = (dtype, out, residual, x, gain, bias, eps))]
#[allow(clippy::too_many_arguments, reason = "one per tensor of the Python door")]
fn add_layer_norm(
    py: Python<'_>,
    dtype: &str,
    out: Span,
    residual: Span,
    x: Span,
    gain: Span,
    bias: Option<Span>,
    eps: f32,
) -> PyResult<()> {
    let format = format_of(dtype)?;
    let (no_bias, group) = (Span::new(0, 0), gain.elements());
    by_format!(format, E => {
        let size = size_of::<E>();
        let read = [("x", x, size), ("gain", gain, 4), ("bias", bias.unwrap_or(no_bias), 4)];
        check_apart(&[("out", out, size), ("residual", residual, size)], &read)?;
        // SAFETY: see the module's comment; apart by the check above.
        let (out, residual, x, gain, bias) = unsafe {
            (out.write::<E>(), residual.write::<E>(), x.read::<E>(), gain.read(), bias.map(|bias| bias.read()))
        };
        py.detach(|| pelton_cpu::add_layer_norm(&mut cpu(), out, residual, x, LayerNorm { gain, bias, eps, group }));
        Ok(())
    })
}

//! The CPU kernels' Python door: addresses of contiguous tensors in, `pelton_cpu` called without the GIL.
//!
//! A tensor arrives as [`Span`]: address and number of elements. `pelton_kernels.cpu`, the only caller, takes both from the
//! tensor and holds it during the call; shapes and formats are checked before, in `pelton_kernels.ops`, so that all devices
//! refuse alike. Checked here: that nothing written overlaps anything else, and what lies in the tensors (by `pelton_cpu`).

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use pelton_cpu::{Activation, Bf16, Cpu, Format, Function, Isa, Refusal};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::span::{Span, check_apart};

/// One for the process: its threads are the cores, and two ops at once would only take them from each other.
static CPU: LazyLock<Mutex<Cpu>> =
    LazyLock::new(|| Mutex::new(Cpu::new(Isa::best(), available_parallelism().map_or(1, usize::from))));

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(embed, module)?)?;
    module.add_function(wrap_pyfunction!(silu_mul, module)?)?;
    module.add_function(wrap_pyfunction!(gelu_mul, module)?)?;
    module.add_function(wrap_pyfunction!(gelu_erf_mul, module)?)?;
    module.add_function(wrap_pyfunction!(activate, module)?)?;
    module.add_function(wrap_pyfunction!(add, module)?)?;
    module.add_function(wrap_pyfunction!(scale, module)?)?;
    module.add_function(wrap_pyfunction!(soft_cap, module)?)
}

/// A kernel that panicked left no half-made state behind: all it keeps between calls is scratch memory.
pub(crate) fn cpu() -> MutexGuard<'static, Cpu> {
    CPU.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn refused(refusal: Refusal) -> PyErr {
    PyValueError::new_err(refusal.to_string())
}

pub(crate) fn format_of(dtype: &str) -> PyResult<Format> {
    [Format::Float32, Format::BFloat16]
        .into_iter()
        .find(|format| format.name() == dtype)
        .ok_or_else(|| PyValueError::new_err(format!("`dtype` is {dtype}; allowed: float32, bfloat16")))
}

/// The activation of this name.
pub(crate) fn function_of(name: &str) -> PyResult<Function> {
    Function::ALL.into_iter().find(|function| function.name() == name).ok_or_else(|| {
        let allowed = Function::ALL.map(Function::name).join(", ");
        PyValueError::new_err(format!("`function` is {name}; allowed: {allowed}"))
    })
}

/// `$body` with `$E` the element type of this format.
macro_rules! by_format {
    ($format:expr, $E:ident => $body:expr) => {
        match $format {
            Format::Float32 => {
                type $E = f32;
                $body
            }
            Format::BFloat16 => {
                type $E = Bf16;
                $body
            }
        }
    };
}
pub(crate) use by_format;

#[pyfunction]
fn embed(py: Python<'_>, dtype: &str, out: Span, table: Span, ids: Span, width: usize) -> PyResult<()> {
    let format = format_of(dtype)?;
    by_format!(format, E => {
        check_apart(&[("out", out, size_of::<E>())], &[("table", table, size_of::<E>()), ("ids", ids, 4)])?;
        // SAFETY: see the module's comment; apart by the check above.
        let (out, table, ids) = unsafe { (out.write::<E>(), table.read(), ids.read()) };
        py.detach(|| pelton_cpu::embed(&mut cpu(), out, table, ids, width)).map_err(refused)
    })
}

#[pyfunction]
fn silu_mul(py: Python<'_>, dtype: &str, out: Span, gate_up: Span, width: usize) -> PyResult<()> {
    gate_mul(py, dtype, out, gate_up, width, Activation::Silu)
}

#[pyfunction]
fn gelu_mul(py: Python<'_>, dtype: &str, out: Span, gate_up: Span, width: usize) -> PyResult<()> {
    gate_mul(py, dtype, out, gate_up, width, Activation::Gelu)
}

#[pyfunction]
fn gelu_erf_mul(py: Python<'_>, dtype: &str, out: Span, gate_up: Span, width: usize) -> PyResult<()> {
    gate_mul(py, dtype, out, gate_up, width, Activation::GeluErf)
}

fn gate_mul(
    py: Python<'_>,
    dtype: &str,
    out: Span,
    gate_up: Span,
    width: usize,
    activation: Activation,
) -> PyResult<()> {
    let format = format_of(dtype)?;
    by_format!(format, E => {
        check_apart(&[("out", out, size_of::<E>())], &[("gate_up", gate_up, size_of::<E>())])?;
        // SAFETY: see the module's comment; apart by the check above.
        let (out, gate_up) = unsafe { (out.write::<E>(), gate_up.read::<E>()) };
        py.detach(|| pelton_cpu::gate_mul(&mut cpu(), out, width, gate_up, width, activation));
        Ok(())
    })
}

#[pyfunction]
fn activate(py: Python<'_>, dtype: &str, x: Span, function: &str) -> PyResult<()> {
    let (format, function) = (format_of(dtype)?, function_of(function)?);
    by_format!(format, E => {
        // SAFETY: see the module's comment.
        let x = unsafe { x.write::<E>() };
        py.detach(|| pelton_cpu::activate(&mut cpu(), x, function));
        Ok(())
    })
}

#[pyfunction]
fn add(py: Python<'_>, dtype: &str, residual: Span, x: Span) -> PyResult<()> {
    let format = format_of(dtype)?;
    by_format!(format, E => {
        check_apart(&[("residual", residual, size_of::<E>())], &[("x", x, size_of::<E>())])?;
        // SAFETY: see the module's comment; apart by the check above.
        let (residual, x) = unsafe { (residual.write::<E>(), x.read::<E>()) };
        py.detach(|| pelton_cpu::add(&mut cpu(), residual, x));
        Ok(())
    })
}

#[pyfunction]
fn scale(py: Python<'_>, dtype: &str, x: Span, factor: f32) -> PyResult<()> {
    let format = format_of(dtype)?;
    by_format!(format, E => {
        // SAFETY: see the module's comment.
        let x = unsafe { x.write::<E>() };
        py.detach(|| pelton_cpu::scale(&mut cpu(), x, factor));
        Ok(())
    })
}

#[pyfunction]
fn soft_cap(py: Python<'_>, x: Span, cap: f32) {
    // SAFETY: see the module's comment.
    let x = unsafe { x.write::<f32>() };
    py.detach(|| pelton_cpu::soft_cap(&mut cpu(), x, cap));
}

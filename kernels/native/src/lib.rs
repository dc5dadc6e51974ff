//! `pelton_kernels._native`: what Python workers reach of Rust. Thin: it converts, checks and calls.
//!
//! Never here: arithmetic (`pelton-cpu`), the meaning of a frame (`pelton-frame`), models.

use pyo3::prelude::*;

mod arena;
mod attention;
mod foreseen;
mod frame;
mod host;
mod kept;
mod linear;
mod machine;
mod masks;
mod norms;
mod ops;
mod pooling;
mod program;
mod sampling;
mod span;
mod steps;
mod weights;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    arena::register(module)?;
    foreseen::register(module)?;
    frame::register(module)?;
    host::register(module)?;
    kept::register(module)?;
    masks::register(module)?;
    machine::register(module)?;
    ops::register(module)?;
    linear::register(module)?;
    attention::register(module)?;
    sampling::register(module)?;
    norms::register(module)?;
    weights::register(module)?;
    pooling::register(module)?;
    program::register(module)?;
    steps::register(module)
}

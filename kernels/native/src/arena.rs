//! Memory for KV, seen from Python without a copy.

use pelton_cpu::{Arena, ArenaStep};
use pyo3::exceptions::PyBufferError;
use pyo3::{ffi, prelude::*};

use crate::ops::cpu;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ArenaBytes>()?;
    module.add_class::<RunningStep>()
}

/// Zeros in equal parts, each of which is used from its beginning on.
#[pyclass(frozen, module = "pelton_kernels._native")]
pub(crate) struct ArenaBytes(Arena);

impl ArenaBytes {
    /// See `Arena::step`.
    pub(crate) fn begin(&self, reached: usize, pieces: usize) -> ArenaStep {
        self.0.step(reached, pieces)
    }
}

/// A step that has begun; it ends with this object.
#[pyclass(frozen, module = "pelton_kernels._native")]
struct RunningStep(#[expect(dead_code, reason = "held")] ArenaStep);

#[pymethods]
impl ArenaBytes {
    /// The first megabytes of each part are taken from the machine now, more ahead of what steps reach, and further ahead while none runs.
    #[new]
    fn new(py: Python<'_>, bytes: usize, parts: usize) -> Self {
        py.detach(|| Self(Arena::new(bytes, parts, cpu().threads())))
    }

    /// A step begins that touches nothing behind the first `reached` of so many equal pieces of each part; it ends when the result goes.
    fn step(&self, reached: usize, pieces: usize) -> RunningStep {
        RunningStep(self.begin(reached, pieces))
    }

    /// Where it lies, and how many bytes it has.
    #[getter]
    fn span(&self) -> (usize, usize) {
        self.0.span()
    }

    /// # Safety
    /// Python calls it with a view to fill, or none.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: i32) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let (start, bytes) = slf.get().0.span();
        let bytes = isize::try_from(bytes).expect("no memory is longer");
        // SAFETY: `view` is Python's to be filled. The memory stays mapped while `slf` lives, and the view holds a reference to it.
        // Kernels write blocks that are theirs at the time.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start as *mut _, bytes, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

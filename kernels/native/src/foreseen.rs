//! Memory for weights that is taken before they are there.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pelton_cpu::Foreseen;
use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ForeseenMemory>()?;
    module.add_function(wrap_pyfunction!(memory_is_urgent, module)?)
}

/// Whether a start waits for memory from now on: then pages are small if huge ones come slowly, and may become huge once none does.
#[pyfunction]
fn memory_is_urgent(py: Python<'_>, is_urgent: bool) {
    py.detach(|| pelton_cpu::memory_is_urgent(is_urgent));
}

/// Weights are packed into it from its making on. When it goes, what none has taken goes back to the system.
#[pyclass(frozen, module = "pelton_kernels._native")]
struct ForeseenMemory(Mutex<Foreseen>);

#[pymethods]
impl ForeseenMemory {
    /// For so many bytes, which a thread begins to take from the system.
    #[new]
    fn new(bytes: usize) -> Self {
        Self(Mutex::new(Foreseen::new(bytes)))
    }

    /// Returns once all of it is taken, or none can be; `stop` waits as long.
    fn wait(&self, py: Python<'_>) {
        py.detach(|| self.lock().wait());
    }

    /// Takes no more. How many bytes are there that no weight has.
    fn stop(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().stop())
    }
}

impl ForeseenMemory {
    fn lock(&self) -> MutexGuard<'_, Foreseen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What the processor is and gives, and how many threads the kernels use, for Python.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pelton_cpu::{Cpu, Isa};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::ops::{cpu, format_of};
use crate::weights::{SchemeWords, scheme_of};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ReadProbe>()?;
    module.add_class::<CopyProbe>()?;
    module.add_function(wrap_pyfunction!(multiply_codes, module)?)?;
    module.add_function(wrap_pyfunction!(multiply_tiles, module)?)?;
    module.add_function(wrap_pyfunction!(available_cores, module)?)?;
    module.add_function(wrap_pyfunction!(available_memory, module)?)?;
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(available_isas, module)?)?;
    module.add_function(wrap_pyfunction!(emulate_tiles, module)?)?;
    module.add_function(wrap_pyfunction!(force_isa, module)?)?;
    module.add_function(wrap_pyfunction!(numerics_id, module)?)
}

/// Cores that this process may use: its cgroup's share, if that is less.
#[pyfunction]
fn available_cores() -> usize {
    pelton_machine::cores()
}

/// What a worker should take at most beside what it has, as the router sees it: within cgroups, and something left for the others.
#[pyfunction]
fn available_memory() -> u64 {
    pelton_machine::memory().map_or(0, |memory| memory.worker_limit_bytes())
}

/// How many threads share an op, the caller's among them.
#[pyfunction]
fn set_threads(py: Python<'_>, threads: usize) -> PyResult<()> {
    if threads == 0 {
        return Err(PyValueError::new_err("`threads` is 0; allowed: 1 and more"));
    }
    py.detach(|| {
        let mut cpu = cpu();
        *cpu = Cpu::new(cpu.isa(), threads);
    });
    Ok(())
}

/// The instruction sets that run here, the best first.
#[pyfunction]
fn available_isas() -> Vec<&'static str> {
    Isa::available().into_iter().map(Isa::name).collect()
}

/// Has AMX emulated where the processor has all else of its class: for tests, which may force it then.
#[pyfunction]
fn emulate_tiles() {
    Isa::emulate_tiles();
}

/// Uses this instruction set from now on; `None`: the best. Weights keep the layout they were packed in.
#[pyfunction]
#[pyo3(signature = (name))]
fn force_isa(py: Python<'_>, name: Option<&str>) -> PyResult<()> {
    let isa = name.map_or_else(|| Some(Isa::best()), Isa::named).ok_or_else(|| {
        let allowed = available_isas().join(", ");
        PyValueError::new_err(format!("`name` is {}; allowed here: {allowed}", name.unwrap_or_default()))
    })?;
    py.detach(|| {
        let mut cpu = cpu();
        *cpu = Cpu::new(isa, cpu.threads());
    });
    Ok(())
}

/// Class, format, scheme of quantised weights and version of the arithmetic.
#[pyfunction]
#[pyo3(signature = (dtype, scheme))]
fn numerics_id(py: Python<'_>, dtype: &str, scheme: Option<SchemeWords<'_>>) -> PyResult<String> {
    let format = format_of(dtype)?;
    let scheme = scheme.map(scheme_of).transpose()?;
    Ok(py.detach(|| cpu().numerics_id(format, scheme)))
}

/// Memory that benches have read, to know what this machine gives at that moment.
#[pyclass(frozen, module = "pelton_kernels._native")]
struct ReadProbe(pelton_cpu::ReadProbe);

#[pymethods]
impl ReadProbe {
    #[new]
    fn new(py: Python<'_>, bytes: usize) -> Self {
        Self(py.detach(|| pelton_cpu::ReadProbe::new(&mut cpu(), bytes)))
    }

    /// How many bytes one reading takes in.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    /// Reads everything once with all threads; the sum of it.
    fn read(&self, py: Python<'_>) -> f32 {
        py.detach(|| self.0.read(&mut cpu()))
    }
}

/// Memory that benches have copied as packing copies it.
#[pyclass(frozen, module = "pelton_kernels._native")]
struct CopyProbe(Mutex<pelton_cpu::CopyProbe>);

#[pymethods]
impl CopyProbe {
    #[new]
    fn new(py: Python<'_>, bytes: usize) -> Self {
        Self(Mutex::new(py.detach(|| pelton_cpu::CopyProbe::new(&mut cpu(), bytes))))
    }

    /// How many bytes one copying reads.
    #[getter]
    fn nbytes(&self) -> usize {
        self.lock().bytes()
    }

    /// Copies everything once with all threads.
    fn copy(&self, py: Python<'_>) {
        py.detach(|| self.lock().copy(&mut cpu()));
    }
}

impl CopyProbe {
    fn lock(&self) -> MutexGuard<'_, pelton_cpu::CopyProbe> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // bytes of no meaning, whoever panicked
    }
}

/// Multiplies integers in registers with all threads: how many operations that were.
#[pyfunction]
fn multiply_codes(py: Python<'_>, rounds: usize) -> f64 {
    py.detach(|| pelton_cpu::multiply_codes(&mut cpu(), rounds)).0
}

/// Multiplies tiles in registers with all threads, of bfloat16 or of codes: how many operations that were; `None`: no tiles here.
#[pyfunction]
fn multiply_tiles(py: Python<'_>, of_codes: bool, rounds: usize) -> PyResult<Option<f64>> {
    if rounds == 0 {
        return Err(PyValueError::new_err("`rounds` is 0; allowed: 1 and more"));
    }
    Ok(py.detach(|| pelton_cpu::multiply_tiles(&mut cpu(), of_codes, rounds)))
}

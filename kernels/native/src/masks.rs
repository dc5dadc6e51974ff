//! Mask memory for Python: which tokens each row of a step may draw (see `pelton_frame::MaskMemory`). Waiting lets go of the GIL.
//!
//! Never here: grammars, sampling, what a row is.

use std::os::fd::{AsRawFd, RawFd};

use pelton_frame::{MASK_WAIT, MaskState};
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyBytes,
};

use crate::frame::{duplicate, value_error};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<MaskMemory>()
}

/// The masks of one router's steps.
#[pyclass(frozen, module = "pelton_kernels._native")]
pub(crate) struct MaskMemory(pub(crate) pelton_frame::MaskMemory);

#[pymethods]
impl MaskMemory {
    /// Memory to be handed over: what a router makes.
    #[staticmethod]
    fn create(slots: u32, tokens: u32, epoch: u32) -> PyResult<Self> {
        pelton_frame::MaskMemory::create(slots, tokens, epoch).map(Self).map_err(value_error)
    }

    /// Checks and maps memory that was handed over. The caller keeps its descriptor and closes it.
    #[staticmethod]
    fn from_fd(fd: RawFd) -> PyResult<Self> {
        pelton_frame::MaskMemory::from_fd(duplicate(fd)?).map(Self).map_err(value_error)
    }

    /// Memory of this process alone, for masks that travel inline.
    #[staticmethod]
    fn local(slots: u32, tokens: u32, epoch: u32) -> PyResult<Self> {
        pelton_frame::MaskMemory::local(slots, tokens, epoch).map(Self).map_err(value_error)
    }

    /// Which life of the worker it serves: must be the handshake's.
    #[getter]
    fn epoch(&self) -> u32 {
        self.0.epoch()
    }

    /// How many places there are.
    #[getter]
    fn slots(&self) -> u32 {
        self.0.slots()
    }

    /// Bits of a mask.
    #[getter]
    fn tokens(&self) -> u32 {
        self.0.tokens()
    }

    /// The descriptor, open while this lives.
    fn fileno(&self) -> PyResult<RawFd> {
        let local = || PyValueError::new_err("this memory is of this process alone");
        self.0.fd().map(|fd| fd.as_raw_fd()).ok_or_else(local)
    }

    /// Puts a mask that came inline in its place. RuntimeError: it is damaged.
    fn accept(&self, mask: &[u8]) -> PyResult<()> {
        self.0.accept(mask).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Waits for the masks of these slots for a step, a few milliseconds at most. The words of those that are here, one mask
    /// after the other; and for each slot whether its is.
    fn take<'py>(&self, py: Python<'py>, step: u64, slots: Vec<u32>) -> PyResult<(Bound<'py, PyBytes>, Vec<bool>)> {
        if let Some(slot) = slots.iter().find(|&&slot| slot >= self.0.slots()) {
            return Err(PyValueError::new_err(format!("slot {slot} of {}", self.0.slots())));
        }
        let (mut words, mut states) = (Vec::new(), Vec::new());
        py.detach(|| self.0.take(step, slots.iter().copied(), MASK_WAIT, &mut words, &mut states));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok((PyBytes::new(py, &bytes), states.iter().map(|&state| state == MaskState::Here).collect()))
    }
}

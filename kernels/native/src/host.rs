//! Host memory for Python: the router's memory of saved KV blocks, as a buffer, and the kernels that fill and read it.
//!
//! Other processes map the same bytes. Which block is whose is said by plans (see `pelton_frame::HostMemory`).

use std::os::fd::RawFd;

use pelton_cpu::HostBlocks;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::{ffi, prelude::*};

use crate::frame::{duplicate, value_error};
use crate::ops::{cpu, refused};
use crate::span::Span;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<HostMemory>()?;
    module.add_function(wrap_pyfunction!(save_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(load_blocks, module)?)
}

/// Host memory that was handed over: `blocks` blocks, each `stride` bytes after the one before. A buffer of bytes, writable.
#[pyclass(frozen, module = "pelton_kernels._native")]
pub(crate) struct HostMemory(pelton_frame::HostMemory);

impl HostMemory {
    /// For the saves and loads of one step.
    pub(crate) fn blocks_for_a_step(&self) -> HostBlocks<'_> {
        // SAFETY: mapped while `self` lives. The router names a block in one plan at a time and leaves it alone meanwhile.
        unsafe { HostBlocks::new(self.0.start().as_ptr(), self.0.blocks() as usize, self.0.stride()) }
    }
}

#[pymethods]
impl HostMemory {
    /// Checks and maps it. The caller keeps its descriptor and closes it.
    #[staticmethod]
    fn from_fd(fd: RawFd) -> PyResult<Self> {
        pelton_frame::HostMemory::from_fd(duplicate(fd)?).map(Self).map_err(value_error)
    }

    /// How many blocks it holds.
    #[getter]
    fn blocks(&self) -> u32 {
        self.0.blocks()
    }

    /// Bytes of one block.
    #[getter]
    fn block_bytes(&self) -> usize {
        self.0.block_bytes()
    }

    /// Bytes from one block to the next.
    #[getter]
    fn stride(&self) -> usize {
        self.0.stride()
    }

    fn __len__(&self) -> usize {
        self.0.blocks() as usize * self.0.stride()
    }

    /// # Safety
    /// `view` is null or a `Py_buffer` to be filled, as the buffer protocol says; Python calls this.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: i32) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let memory = slf.get();
        let bytes = isize::try_from(memory.__len__()).expect("checked when it was mapped");
        // SAFETY: `view` is Python's to be filled. The bytes stay mapped while `slf` lives, and the view holds a reference
        // to it. Other processes write blocks that are theirs at the time.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory.0.start().as_ptr().cast(), bytes, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// `host`: address, blocks, stride. `caches`: the bytes of keys and values by layer.
type Area = (usize, usize, usize);

fn area<'a>(host: Area) -> HostBlocks<'a> {
    let (address, blocks, stride) = host;
    // SAFETY: `pelton_kernels.cpu` takes all three from a tensor that it holds during the call; whose blocks the named ones
    // are, is the router's promise with the plan that names them.
    unsafe { HostBlocks::new(address as *mut u8, blocks, stride) }
}

/// Refuses caches that lie in host memory: copies would overlap.
fn check_apart(host: Area, caches: &[Span]) -> PyResult<()> {
    let (address, blocks, stride) = host;
    let host = Span::new(address, blocks * stride);
    if caches.iter().any(|cache| cache.overlaps(1, host, 1)) {
        return Err(PyValueError::new_err("`host` shares memory with a cache; allowed: a tensor of its own"));
    }
    Ok(())
}

#[pyfunction]
fn save_blocks(py: Python<'_>, host: Area, caches: Vec<Span>, blocks: usize, from: Span, to: Span) -> PyResult<()> {
    check_apart(host, &caches)?;
    // SAFETY: addresses of contiguous tensors that the caller holds; nothing writes them during a step's op.
    let (caches, from, to) = unsafe {
        (caches.into_iter().map(|cache| cache.read::<u8>()).collect::<Vec<_>>(), from.read::<i32>(), to.read::<i32>())
    };
    let host = area(host);
    py.detach(|| pelton_cpu::save_blocks(&mut cpu(), host, &caches, blocks, from, to)).map_err(refused)
}

#[pyfunction]
fn load_blocks(py: Python<'_>, caches: Vec<Span>, blocks: usize, host: Area, from: Span, to: Span) -> PyResult<()> {
    check_apart(host, &caches)?;
    for (at, cache) in caches.iter().enumerate() {
        if caches[at + 1..].iter().any(|other| cache.overlaps(1, *other, 1)) {
            return Err(PyValueError::new_err("two of `caches` share memory; allowed: tensors of their own"));
        }
    }
    // SAFETY: as in `save_blocks`; caches are apart by the check above.
    let (caches, from, to) = unsafe {
        (caches.into_iter().map(|cache| cache.write::<u8>()).collect::<Vec<_>>(), from.read::<i32>(), to.read::<i32>())
    };
    let host = area(host);
    py.detach(|| pelton_cpu::load_blocks(&mut cpu(), caches, blocks, host, from, to)).map_err(refused)
}

//! `WorkerEnd`: the worker's end of frame memory, for Python. Every region is seen through one writable buffer over the
//! whole mapping, so that tensors need no copy; waiting lets go of the GIL.
//!
//! Never here: what a plan means, gRPC, torch.

use std::{
    os::fd::{BorrowedFd, RawFd},
    ptr::NonNull,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use pelton_frame::{
    Bell, Bounds, Capacities, FrameError, HEARTBEAT_INTERVAL, Inline, Layout, Memory, PREAMBLE_BYTES, RECORDS_CHECKSUM,
    Region, Waited,
};
use pyo3::{
    exceptions::{PyBufferError, PyKeyError, PyRuntimeError, PyValueError},
    ffi,
    prelude::*,
    types::{PyBytes, PyDict, PyTuple},
};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("RECORDS_CHECKSUM", RECORDS_CHECKSUM)?;
    module.add_class::<WorkerEnd>()?;
    module.add_class::<FrameBuffer>()
}

/// The worker's end of one memory. One thread waits and publishes; others may carry inline bytes and detach meanwhile.
#[pyclass(frozen, module = "pelton_kernels._native")]
pub(crate) struct WorkerEnd {
    pub(crate) memory: Memory,
    end: Mutex<pelton_frame::WorkerEnd>, // never held while waiting
    inline: Option<Mutex<Inline>>,       // none: the router maps this memory too
}

#[pymethods]
impl WorkerEnd {
    /// Over memory and bell that the router handed over. The caller keeps its descriptors and closes them.
    #[staticmethod]
    fn from_fds(memory_fd: RawFd, bell_fd: RawFd) -> PyResult<Self> {
        let memory = Memory::from_fd(duplicate(memory_fd)?).map_err(value_error)?;
        let bell = Bell::from_fd(duplicate(bell_fd)?).map_err(value_error)?;
        let end = Mutex::new(pelton_frame::WorkerEnd::new(memory.clone(), Some(bell)));
        Ok(Self { memory, end, inline: None })
    }

    /// Over memory of this process alone; plans and results travel as bytes.
    #[staticmethod]
    fn inline(capacities: &Bound<'_, PyDict>, epoch: u32) -> PyResult<Self> {
        let layout = Layout::new(capacities_of(capacities)?).map_err(value_error)?;
        let memory = Memory::local(&layout, epoch).map_err(value_error)?;
        let end = Mutex::new(pelton_frame::WorkerEnd::new(memory.clone(), None));
        let inline = Some(Mutex::new(Inline::new(memory.clone())));
        Ok(Self { memory, end, inline })
    }

    /// Region name -> (bytes from the frame's begin, words of one record, records it holds).
    #[getter]
    fn layout<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let regions = PyDict::new(py);
        for region in Region::ALL {
            let place = self.memory.layout().place(region);
            regions.set_item(region.name(), (place.offset, place.words, place.capacity))?;
        }
        Ok(regions)
    }

    /// Bytes from one frame to the next.
    #[getter]
    fn frame_stride(&self) -> usize {
        self.memory.layout().frame_stride()
    }

    /// How many frames there are.
    #[getter]
    fn frames(&self) -> u32 {
        self.memory.layout().capacities().frames
    }

    /// Bytes before the first frame.
    #[getter]
    fn preamble_bytes(&self) -> usize {
        PREAMBLE_BYTES
    }

    /// Equal to the router's exactly when both place everything alike.
    #[getter]
    fn layout_checksum(&self) -> u64 {
        self.memory.layout().checksum()
    }

    /// Which life of this worker the memory is for: must be the handshake's.
    #[getter]
    fn epoch(&self) -> u32 {
        self.memory.epoch()
    }

    /// Whether the router has gone, or `detach` was called.
    #[getter]
    fn detached(&self) -> bool {
        self.memory.is_detached()
    }

    /// Ends every wait, now and later.
    fn detach(&self) {
        self.memory.detach();
    }

    /// The whole mapping as a writable buffer of bytes; it stays mapped while the buffer lives.
    fn buffer(&self) -> FrameBuffer {
        FrameBuffer { memory: self.memory.clone() }
    }

    /// What ids may be from now on; plans outside are refused.
    #[pyo3(signature = (*, blocks, kinds, host_blocks, block_size, vocab, positions))]
    fn set_bounds(&self, blocks: u32, kinds: u32, host_blocks: u32, block_size: u32, vocab: u32, positions: u32) {
        self.lock().set_bounds(Bounds { blocks, kinds, host_blocks, block_size, vocab, positions });
    }

    /// The frame of the next plan, checked; None if none came in time or the router has gone (`detached`).
    /// RuntimeError: the plan is damaged or points outside; this memory is of no more use.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<u32>> {
        let timeout = Duration::try_from_secs_f64(timeout_s).map_err(value_error)?;
        let begin = Instant::now();
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            // In slices, so that Python's signal handlers run; the heartbeat beats in the same slices.
            match py.detach(|| self.take_within(left.min(HEARTBEAT_INTERVAL))).map_err(runtime_error)? {
                Waited::Step(frame) => return Ok(Some(frame)),
                Waited::Detached => return Ok(None),
                Waited::Idle if left.is_zero() => return Ok(None),
                Waited::Idle => py.check_signals()?,
            }
        }
    }

    /// (step, epoch, drops, admits, appends, copies, biases, suppressed, history, rows, tokens, saves, loads, draws, embeds) of
    /// a frame that was taken and not yet published.
    fn header<'py>(&self, py: Python<'py>, frame: u32) -> PyResult<Bound<'py, PyTuple>> {
        let end = self.lock();
        let h = end.header(frame).map_err(runtime_error)?;
        let counts = [
            h.epoch,
            h.drops,
            h.admits,
            h.appends,
            h.copies,
            h.biases,
            h.suppressed,
            h.history,
            h.rows,
            h.tokens,
            h.saves,
            h.loads,
            h.draws,
            h.embeds,
        ];
        let values: [u64; 15] = std::array::from_fn(|at| if at == 0 { h.step() } else { counts[at - 1].into() });
        PyTuple::new(py, values)
    }

    /// Signs and publishes the results of the oldest frame taken, and rings the router.
    fn publish(&self, frame: u32, status: u32, duration_us: u64) -> PyResult<()> {
        self.lock().publish(frame, status, Duration::from_micros(duration_us)).map_err(runtime_error)
    }

    /// Inline: puts a plan part into the next frame and wakes whoever waits for it.
    fn accept_plan(&self, plan: &[u8]) -> PyResult<u32> {
        self.carrier()?.accept_plan(plan).map_err(runtime_error)
    }

    /// Inline: the result part of a frame that was published.
    fn result_bytes<'py>(&self, py: Python<'py>, frame: u32) -> PyResult<Bound<'py, PyBytes>> {
        if frame >= self.frames() {
            return Err(PyValueError::new_err(format!("frame {frame} of {}", self.frames())));
        }
        Ok(PyBytes::new(py, &self.carrier()?.result_bytes(frame).map_err(runtime_error)?))
    }
}

impl WorkerEnd {
    pub(crate) fn lock(&self) -> MutexGuard<'_, pelton_frame::WorkerEnd> {
        self.end.lock().expect("no code panics while it holds this lock")
    }

    fn carrier(&self) -> PyResult<MutexGuard<'_, Inline>> {
        let inline =
            self.inline.as_ref().ok_or_else(|| PyRuntimeError::new_err("this memory is shared, not inline"))?;
        Ok(inline.lock().expect("no code panics while it holds this lock"))
    }

    fn take_within(&self, timeout: Duration) -> Result<Waited, FrameError> {
        let (waited, taken) = {
            let mut end = self.lock();
            (end.take()?, end.taken())
        };
        if waited != Waited::Idle || timeout.is_zero() {
            return Ok(waited);
        }
        self.memory.wait_for_submission(taken, timeout);
        self.lock().take()
    }
}

/// The bytes of a mapping, through the buffer protocol.
#[pyclass(frozen, module = "pelton_kernels._native")]
struct FrameBuffer {
    memory: Memory,
}

#[pymethods]
impl FrameBuffer {
    fn __len__(&self) -> usize {
        self.memory.layout().total_bytes()
    }

    /// # Safety
    /// `view` is null or a `Py_buffer` to be filled, as the buffer protocol says; Python calls this.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: i32) -> PyResult<()> {
        let Some(view) = NonNull::new(view) else {
            return Err(PyBufferError::new_err("the view is null"));
        };
        let memory = &slf.get().memory;
        let bytes = isize::try_from(memory.layout().total_bytes()).expect("a layout is at most 1 GiB");
        // SAFETY: `view` is Python's to be filled. The bytes stay mapped while `slf` lives, and the view holds a reference
        // to it. Router and worker write them at the same time, as both sides of the frame protocol know.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view.as_ptr(), slf.as_ptr(), memory.start().as_ptr().cast(), bytes, 0, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

pub(crate) fn duplicate(fd: RawFd) -> PyResult<std::os::fd::OwnedFd> {
    if fd < 0 {
        return Err(PyValueError::new_err(format!("{fd} is no file descriptor")));
    }
    // SAFETY: borrowed for this call alone. If it is not open, the call says so and nothing is harmed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_dupfd_cloexec(borrowed, 0)
        .map_err(|error| PyValueError::new_err(format!("descriptor {fd}: {error}")))
}

/// Every field by name, and no other.
fn capacities_of(dict: &Bound<'_, PyDict>) -> PyResult<Capacities> {
    const NAMES: [&str; 15] = [
        "frames",
        "slots",
        "tokens",
        "appends",
        "copies",
        "biases",
        "suppressed",
        "history",
        "top_logprobs",
        "saves",
        "loads",
        "pooled_width",
        "scores",
        "embeds",
        "embed_width",
    ];
    let mut values = [0; NAMES.len()];
    for (value, name) in values.iter_mut().zip(NAMES) {
        *value = dict.get_item(name)?.ok_or_else(|| PyKeyError::new_err(name))?.extract()?;
    }
    if dict.len() != NAMES.len() {
        return Err(PyValueError::new_err(format!("capacities are {NAMES:?}, and {} keys were given", dict.len())));
    }
    let [
        frames,
        slots,
        tokens,
        appends,
        copies,
        biases,
        suppressed,
        history,
        top_logprobs,
        saves,
        loads,
        pooled_width,
        scores,
        embeds,
        embed_width,
    ] = values;
    Ok(Capacities {
        frames,
        slots,
        tokens,
        appends,
        copies,
        biases,
        suppressed,
        history,
        top_logprobs,
        saves,
        loads,
        pooled_width,
        scores,
        embeds,
        embed_width,
    })
}

pub(crate) fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn runtime_error(error: FrameError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

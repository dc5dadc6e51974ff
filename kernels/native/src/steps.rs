//! `Steps`: a CPU worker's steps from doorbell to doorbell, in one call that has let go of the GIL.
//!
//! Python is asked for nothing while steps run well. It is called when a step fails, so that its log says why; when a program
//! has call-backs; and after each step of a memory that is inline, whose results travel by gRPC.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pelton_frame::{
    FrameError, HEARTBEAT_INTERVAL, MASK_WAIT, MaskMemory, MaskState, Memory, PlanView, Region, STATUS_FAILED,
    STATUS_OK, Waited,
};
use pelton_steps::{RowResults, Sizes};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::arena::ArenaBytes;
use crate::frame::WorkerEnd;
use crate::host::HostMemory;
use crate::masks;
use crate::ops::cpu;
use crate::program::Program;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Steps>()
}

/// The requests of one router, and what runs their steps. One thread serves; others look at the numbers, and drain.
#[pyclass(frozen, module = "pelton_kernels._native")]
struct Steps {
    program: Py<Program>,
    arena: Py<ArenaBytes>,
    blocks: usize,
    masks: Option<MaskMemory>, // none: the router writes none, and masked rows are not drawn
    host: Mutex<Option<Py<HostMemory>>>, // held for the whole of a step, so that `close` waits for the running one
    steps: Mutex<pelton_steps::Steps>,
    done: AtomicU64,
    /// When the running step began, in microseconds since `started`, and one more; 0: none runs.
    began: AtomicU64,
    started: Instant,
    is_draining: AtomicBool,
}

#[pymethods]
impl Steps {
    #[new]
    #[pyo3(signature = (program, arena, host, masks, *, blocks, slots, kinds, positions, block_size, vocabulary, top_logprobs, pooled_width=0, embed_scale=1.0))]
    #[allow(clippy::too_many_arguments, reason = "named in Python")]
    fn new(
        program: Py<Program>,
        arena: Py<ArenaBytes>,
        host: Option<Py<HostMemory>>,
        masks: Option<Py<masks::MaskMemory>>,
        blocks: usize,
        slots: usize,
        kinds: usize,
        positions: usize,
        block_size: usize,
        vocabulary: usize,
        top_logprobs: usize,
        pooled_width: usize,
        embed_scale: f32,
    ) -> Self {
        let sizes = Sizes { slots, kinds, positions, block_size, vocabulary, top_logprobs, pooled_width, embed_scale };
        Self {
            program,
            arena,
            blocks,
            masks: masks.map(|masks| masks.get().0.clone()),
            host: Mutex::new(host),
            steps: Mutex::new(pelton_steps::Steps::new(sizes)),
            done: AtomicU64::new(0),
            began: AtomicU64::new(0),
            started: Instant::now(),
            is_draining: AtomicBool::new(false),
        }
    }

    /// How many steps were published.
    #[getter]
    fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    /// How long the running step has run; 0 if none does.
    fn running_step_micros(&self) -> u64 {
        let began = self.began.load(Relaxed);
        if began == 0 { 0 } else { (self.now() - began).max(1) }
    }

    /// `serve` returns once no frame is left, and takes no more.
    fn drain(&self) {
        self.is_draining.store(true, Relaxed);
    }

    /// Lets go of the router's memory of saved blocks: from now on nothing here touches it.
    fn close(&self, py: Python<'_>) {
        let host = py.detach(|| self.host_memory().take());
        drop(host); // with the GIL: it may be the last reference
    }

    /// Runs frames until the router has gone or all is drained. `published(frame)` is called after each, if it is given;
    /// `failed(step, epoch, why)` once, when the first step fails: it and all after it are published as failed.
    /// RuntimeError: a plan is damaged or points outside; this memory is of no more use.
    #[pyo3(signature = (end, published, failed))]
    fn serve(
        &self,
        py: Python<'_>,
        end: &Bound<'_, WorkerEnd>,
        published: Option<Py<PyAny>>,
        failed: Py<PyAny>,
    ) -> PyResult<()> {
        let end = end.get();
        let mut has_failed = false;
        py.detach(|| {
            let _stay = self.program.get().stay();
            while let Some(frame) = self.next(end).map_err(frame_error)? {
                self.began.store(self.now(), Relaxed);
                let began = Instant::now();
                if !has_failed && let Err(why) = self.compute(end, frame) {
                    has_failed = true;
                    Python::attach(|py| {
                        let (step, epoch) =
                            end.lock().header(frame).map_or((0, 0), |header| (header.step(), header.epoch));
                        failed.call1(py, (step, epoch, why)).map(drop)
                    })?;
                }
                let status = if has_failed { STATUS_FAILED } else { STATUS_OK };
                end.lock().publish(frame, status, began.elapsed()).map_err(frame_error)?;
                self.done.fetch_add(1, Relaxed);
                self.began.store(0, Relaxed);
                if let Some(published) = &published {
                    Python::attach(|py| published.call1(py, (frame,)).map(drop))?;
                }
            }
            Ok(())
        })
    }

    /// Computes the plan that `end` took last, and writes its results into its frame. Publishing is left to the caller.
    fn run(&self, py: Python<'_>, end: &Bound<'_, WorkerEnd>, frame: u32) -> PyResult<()> {
        let end = end.get();
        py.detach(|| self.compute(end, frame)).map_err(PyValueError::new_err)
    }
}

impl Steps {
    /// Microseconds since these steps were made, and one more.
    fn now(&self) -> u64 {
        1 + self.started.elapsed().as_micros() as u64
    }

    fn lock(&self) -> MutexGuard<'_, pelton_steps::Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner) // a step that panicked is published as failed
    }

    fn host_memory(&self) -> MutexGuard<'_, Option<Py<HostMemory>>> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next frame; none: no more will come, or all that came before a drain are done.
    fn next(&self, end: &WorkerEnd) -> Result<Option<u32>, FrameError> {
        loop {
            let is_last = self.is_draining.load(Relaxed); // before the look: what was submitted before the drain is served
            let (waited, taken) = {
                let mut end = end.lock();
                (end.take()?, end.taken())
            };
            match waited {
                Waited::Step(frame) => return Ok(Some(frame)),
                Waited::Detached => return Ok(None),
                Waited::Idle if is_last => return Ok(None),
                Waited::Idle => end.memory.wait_for_submission(taken, HEARTBEAT_INTERVAL),
            }
        }
    }

    fn compute(&self, end: &WorkerEnd, frame: u32) -> Result<(), String> {
        let end = end.lock();
        let plan = end.plan().ok_or("no plan was taken")?;
        let has_top = end.header(frame).map_err(|error| error.to_string())?.top == 1;
        // An assertion in a kernel is our bug; the router replaces the worker, and the requests live on.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.run_plan(&plan, |results| {
                write(end.memory(), frame, results, has_top);
            })
        }));
        outcome.unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            Err(said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned())
        })
    }

    fn run_plan(&self, plan: &PlanView<'_>, write: impl FnOnce(&RowResults)) -> Result<(), String> {
        let program = self.program.get();
        let reached = plan.appends.iter().map(|append| append.block as usize + 1).max().unwrap_or(0);
        let _running = self.arena.get().begin(reached, self.blocks);
        let (mut steps, host) = (self.lock(), self.host_memory());
        let host = host.as_ref().map(|host| host.get().blocks_for_a_step());
        let mut take = |step, slots: &[u32], words: &mut Vec<u32>, states: &mut Vec<MaskState>| {
            let Some(masks) = &self.masks else { return };
            masks.take(step, slots.iter().copied(), MASK_WAIT, words, states);
        };
        let results = steps.run(&mut cpu(), &mut program.lock(), host, &mut program.answers(), Some(&mut take), plan);
        write(results.map_err(|error| error.to_string())?);
        Ok(())
    }
}

fn write(memory: &Memory, frame: u32, results: &RowResults, has_top: bool) {
    memory.write(frame, Region::Sampled, &results.sampled);
    memory.write(frame, Region::Flags, &results.flags);
    memory.write(frame, Region::ChosenLogprob, &results.chosen);
    if !results.pooled.is_empty() {
        memory.write(frame, Region::Pooled, &results.pooled);
    }
    if has_top {
        memory.write(frame, Region::TopIds, &results.top_ids);
        memory.write(frame, Region::TopLogprobs, &results.top_logprobs);
    }
}

fn frame_error(error: FrameError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

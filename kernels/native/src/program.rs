//! Programs for Python: built call by call from a recording, run from tensors or by the step loop (`steps`).
//!
//! Tensors that a program uses (tables, gains, the KV arena) are lent by their addresses; the program holds their owners.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pelton_cpu::program::{
    self, BufferId, Call, CallBacks, Counts, Layer, Lent, LentHeadNorm, LentMut, LentNorm, Memory, Parts, Per, RowOf,
    Size, StepRows,
};
use pelton_cpu::{Activation, CacheFormat, Stay};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::attention::{CacheSizes, HeadSteps, cache_format_of, cache_shape, heads_at, pairs_of};
use crate::ops::{cpu, format_of, function_of};
use crate::pooling::pooling_of;
use crate::span::{Span, check_apart};
use crate::weights::PackedWeight;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ProgramBuilder>()?;
    module.add_class::<Program>()
}

/// Collects what a program is made of. Buffers are numbers that `buffer` gave.
#[pyclass(module = "pelton_kernels._native")]
struct ProgramBuilder {
    parts: Parts,
    call_backs: Vec<CallBack>,
}

/// A Python function, and the buffers whose addresses it is given.
struct CallBack {
    function: Py<PyAny>,
    buffers: Vec<BufferId>,
}

impl ProgramBuilder {
    fn lend(&self, span: Span) -> Lent {
        lend(span, self.parts.format.bytes())
    }

    fn gate_mul(&mut self, out: usize, gate_up: usize, width: usize, activation: Activation) {
        self.parts.calls.push(Call::GateMul { out: BufferId(out), gate_up: BufferId(gate_up), width, activation });
    }
}

/// Elements of this size at an address.
fn lend(span: Span, size: usize) -> Lent {
    // SAFETY: the address is a contiguous tensor's, which `build` takes the owner of; nobody writes weights after loading.
    unsafe { Lent::new(span.address(), span.elements() * size) }
}

/// Gains and biases are float32.
fn lend_norm(gain: Span, bias: Option<Span>, eps: f32, group: usize) -> LentNorm {
    LentNorm { gain: lend(gain, 4), bias: bias.map(|bias| lend(bias, 4)), eps, group }
}

#[pymethods]
impl ProgramBuilder {
    #[new]
    fn new(dtype: &str) -> PyResult<Self> {
        let format = format_of(dtype)?;
        let parts = Parts { format, buffers: vec![], calls: vec![], layers: vec![], result: BufferId(usize::MAX) };
        Ok(Self { parts, call_backs: vec![] })
    }

    /// A buffer of `each` bytes per "step", "token" or "draw".
    fn buffer(&mut self, each: usize, per: &str) -> PyResult<usize> {
        let per = match per {
            "step" => Per::Step,
            "token" => Per::Token,
            "draw" => Per::Draw,
            other => return Err(PyValueError::new_err(format!("`per` is {other}; allowed: step, token, draw"))),
        };
        self.parts.buffers.push(Size { each, per });
        Ok(self.parts.buffers.len() - 1)
    }

    /// A pair of caches of the program's format, or "int8". No other layer may have any of their memory.
    fn layer(&mut self, k: Span, v: Span, cache: CacheSizes, cache_dtype: &str) -> PyResult<usize> {
        let shape = cache_shape(cache, cache_format_of(cache_dtype, self.parts.format)?);
        if k.elements() != shape.len() || v.elements() != shape.len() {
            return Err(PyValueError::new_err(format!(
                "caches of {} and {} elements; allowed: {}",
                k.elements(),
                v.elements(),
                shape.len()
            )));
        }
        let size = match shape.format {
            CacheFormat::Plain => self.parts.format.bytes(),
            CacheFormat::Codes => size_of::<i8>(),
        };
        check_apart(&[("k", k, size), ("v", v, size)], &[])?;
        // SAFETY: as in `lend`; apart from each other by the check above, from other layers by the caller's promise. While a
        // program runs or copies blocks, nothing else of this process touches the KV arena: a worker runs one step at a time.
        let (k, v) =
            unsafe { (LentMut::new(k.address(), k.elements() * size), LentMut::new(v.address(), v.elements() * size)) };
        self.parts.layers.push(Layer { k, v, shape });
        Ok(self.parts.layers.len() - 1)
    }

    /// `by`: "ids" or "positions", the step's array that says which rows.
    fn embed(&mut self, out: usize, table: Span, by: &str, width: usize) -> PyResult<()> {
        let row = match by {
            "ids" => RowOf::Id,
            "positions" => RowOf::Position,
            other => return Err(PyValueError::new_err(format!("`by` is {other}; allowed: ids, positions"))),
        };
        self.parts.calls.push(Call::Embed { out: BufferId(out), table: self.lend(table), row, width });
        Ok(())
    }

    /// `table`: the weight of the head that shares it.
    fn embed_packed(&mut self, out: usize, table: &Bound<'_, PackedWeight>, scale: f32) {
        self.parts.calls.push(Call::EmbedPacked { out: BufferId(out), table: table.get().0.clone(), scale });
    }

    /// `separator`: none: nobody looks for one.
    #[pyo3(signature = (out, table, separator, width))]
    fn embed_segments(&mut self, out: usize, table: Span, separator: Option<i32>, width: usize) {
        let table = self.lend(table);
        self.parts.calls.push(Call::EmbedSegments { out: BufferId(out), table, separator, width });
    }

    fn pool_rows(&mut self, out: usize, x: usize, width: usize, pooling: &str, out_dtype: &str) -> PyResult<()> {
        let (pooling, out_format) = (pooling_of(pooling)?, format_of(out_dtype)?);
        self.parts.calls.push(Call::PoolRows { out: BufferId(out), x: BufferId(x), width, pooling, out_format });
        Ok(())
    }

    fn pick(&mut self, out: usize, x: usize, width: usize) {
        self.parts.calls.push(Call::Pick { out: BufferId(out), x: BufferId(x), width });
    }

    fn clear(&mut self, out: usize) {
        self.parts.calls.push(Call::Clear { out: BufferId(out) });
    }

    fn columns(&mut self, out: usize, x: usize, start: usize, width: usize, stride: usize) {
        self.parts.calls.push(Call::Columns { out: BufferId(out), x: BufferId(x), from: start, width, stride });
    }

    fn rms_norm(&mut self, out: usize, x: usize, gain: Span, eps: f32) {
        self.parts.calls.push(Call::RmsNorm { out: BufferId(out), x: BufferId(x), gain: lend(gain, 4), eps });
    }

    fn add_rms_norm(&mut self, out: usize, residual: usize, x: usize, gain: Span, eps: f32) {
        let (out, residual, x) = (BufferId(out), BufferId(residual), BufferId(x));
        self.parts.calls.push(Call::AddRmsNorm { out, residual, x, gain: lend(gain, 4), eps });
    }

    #[pyo3(signature = (out, x, gain, bias, eps, group))]
    fn layer_norm(&mut self, out: usize, x: usize, gain: Span, bias: Option<Span>, eps: f32, group: usize) {
        let norm = lend_norm(gain, bias, eps, group);
        self.parts.calls.push(Call::LayerNorm { out: BufferId(out), x: BufferId(x), norm });
    }

    #[pyo3(signature = (out, residual, x, gain, bias, eps))]
    fn add_layer_norm(&mut self, out: usize, residual: usize, x: usize, gain: Span, bias: Option<Span>, eps: f32) {
        let (out, residual, x) = (BufferId(out), BufferId(residual), BufferId(x));
        let norm = lend_norm(gain, bias, eps, gain.elements());
        self.parts.calls.push(Call::AddLayerNorm { out, residual, x, norm });
    }

    #[pyo3(signature = (out, x, weight, bias, out_dtype))]
    fn linear(
        &mut self,
        out: usize,
        x: usize,
        weight: &Bound<'_, PackedWeight>,
        bias: Option<Span>,
        out_dtype: &str,
    ) -> PyResult<()> {
        let weight = weight.get().0.clone();
        let bias = bias.map(|bias| self.lend(bias));
        let out_format = format_of(out_dtype)?;
        self.parts.calls.push(Call::Linear { out: BufferId(out), x: BufferId(x), weight, bias, out_format });
        Ok(())
    }

    fn silu_mul(&mut self, out: usize, gate_up: usize, width: usize) {
        self.gate_mul(out, gate_up, width, Activation::Silu);
    }

    fn gelu_mul(&mut self, out: usize, gate_up: usize, width: usize) {
        self.gate_mul(out, gate_up, width, Activation::Gelu);
    }

    fn gelu_erf_mul(&mut self, out: usize, gate_up: usize, width: usize) {
        self.gate_mul(out, gate_up, width, Activation::GeluErf);
    }

    fn activate(&mut self, x: usize, function: &str, dtype: &str) -> PyResult<()> {
        let (function, format) = (function_of(function)?, format_of(dtype)?);
        self.parts.calls.push(Call::Activate { x: BufferId(x), function, format });
        Ok(())
    }

    fn add(&mut self, residual: usize, x: usize) {
        self.parts.calls.push(Call::Add { residual: BufferId(residual), x: BufferId(x) });
    }

    fn scale(&mut self, x: usize, factor: f32, dtype: &str) -> PyResult<()> {
        self.parts.calls.push(Call::Scale { x: BufferId(x), factor, format: format_of(dtype)? });
        Ok(())
    }

    fn soft_cap(&mut self, x: usize, cap: f32) {
        self.parts.calls.push(Call::SoftCap { x: BufferId(x), cap });
    }

    /// `q_at`, `k_at`, `v_at`: where their heads lie in the buffers.
    #[allow(clippy::too_many_arguments, reason = "one per argument of the op")]
    #[pyo3(signature = (out, q, q_at, k, k_at, v, v_at, q_gain, k_gain, eps, angles, rotated, is_interleaved, layer, kind, heads))]
    fn rope_kv_write(
        &mut self,
        out: usize,
        q: usize,
        q_at: HeadSteps,
        k: usize,
        k_at: HeadSteps,
        v: usize,
        v_at: HeadSteps,
        q_gain: Option<Span>,
        k_gain: Option<Span>,
        eps: f32,
        angles: Span,
        rotated: usize,
        is_interleaved: bool,
        layer: usize,
        kind: usize,
        heads: usize,
    ) {
        let [q, k, v] = [(q, q_at), (k, k_at), (v, v_at)].map(|(id, at)| (BufferId(id), heads_at(at)));
        let norm = q_gain.zip(k_gain);
        let norm = norm.map(|(q, k)| LentHeadNorm { q_gain: lend(q, 4), k_gain: lend(k, 4), eps });
        let (out, angles, pairs) = (BufferId(out), lend(angles, 4), pairs_of(is_interleaved));
        self.parts.calls.push(Call::RopeKvWrite { out, q, k, v, norm, angles, rotated, pairs, layer, kind, heads });
    }

    #[allow(clippy::too_many_arguments, reason = "one per argument of the op")]
    #[pyo3(signature = (out, q, layer, kind, heads, scale, is_whole, window, soft_cap, sinks, slopes))]
    fn paged_attention(
        &mut self,
        out: usize,
        q: usize,
        layer: usize,
        kind: usize,
        heads: usize,
        scale: f32,
        is_whole: bool,
        window: Option<usize>,
        soft_cap: Option<f32>,
        sinks: Option<Span>,
        slopes: Option<Span>,
    ) {
        let (out, q) = (BufferId(out), BufferId(q));
        let [sinks, slopes] = [sinks, slopes].map(|of_heads| of_heads.map(|of_heads| lend(of_heads, 4)));
        let call =
            Call::PagedAttention { out, q, layer, kind, heads, scale, is_whole, window, soft_cap, sinks, slopes };
        self.parts.calls.push(call);
    }

    /// `function(tokens, draws, [address of ids, positions, drawn_at, then of each buffer read, then written])` is called, with the GIL.
    fn call_back(&mut self, name: String, function: Py<PyAny>, reads: Vec<usize>, writes: Vec<usize>) {
        let ids = |list: Vec<usize>| list.into_iter().map(BufferId).collect::<Vec<_>>();
        let (reads, writes) = (ids(reads), ids(writes));
        self.call_backs.push(CallBack { function, buffers: [&reads[..], &writes[..]].concat() });
        self.parts.calls.push(Call::CallBack { name, reads, writes });
    }

    /// The program whose logits are `result`; `lenders` own all addresses that were given. This builder is empty afterwards.
    fn build(&mut self, result: usize, lenders: Vec<Py<PyAny>>) -> PyResult<Program> {
        let (format, empty) = (self.parts.format, BufferId(usize::MAX));
        let fresh = Parts { format, buffers: vec![], calls: vec![], layers: vec![], result: empty };
        let parts = Parts { result: BufferId(result), ..std::mem::replace(&mut self.parts, fresh) };
        let call_backs = std::mem::take(&mut self.call_backs);
        let program = program::Program::new(parts).map_err(|flaw| PyValueError::new_err(flaw.to_string()))?;
        Ok(Program { program: Mutex::new(program), call_backs, _lenders: lenders })
    }
}

/// A recorded model.
#[pyclass(frozen, module = "pelton_kernels._native")]
pub(crate) struct Program {
    program: Mutex<program::Program>,
    call_backs: Vec<CallBack>,
    _lenders: Vec<Py<PyAny>>, // what its addresses point into
}

/// One call: name, buffers read, buffers written, and of the run before: bytes, operations, microseconds.
type Line = (String, Vec<usize>, Vec<usize>, f64, f64, f64);

#[pymethods]
impl Program {
    /// How many of its calls go back to Python.
    #[getter]
    fn call_backs(&self) -> usize {
        self.call_backs.len()
    }

    /// Each buffer: bytes, of what, and the number of its place in the arena; none: no call uses it any more.
    #[getter]
    fn buffers(&self, py: Python<'_>) -> Vec<(usize, &'static str, Option<usize>)> {
        let per = |per| match per {
            Per::Step => "step",
            Per::Token => "token",
            Per::Draw => "draw",
        };
        py.detach(|| {
            let program = self.lock();
            let line = |id| (program.size(id).each, per(program.size(id).per), program.place(id));
            (0..program.buffers().0).map(|id| line(BufferId(id))).collect()
        })
    }

    /// Bytes of the arena in such a step.
    fn arena_bytes(&self, py: Python<'_>, tokens: usize, draws: usize) -> usize {
        py.detach(|| self.lock().arena_bytes(Counts { tokens, draws }))
    }

    /// Runs it over a step's tensors; `out`: float32 `[draws, vocabulary]`.
    #[allow(clippy::too_many_arguments, reason = "one per tensor of a step")]
    #[pyo3(signature = (*, ids, positions, kv_slots, block_table, row_offsets, row_starts, drawn_at, out))]
    fn run(
        &self,
        py: Python<'_>,
        ids: Span,
        positions: Span,
        kv_slots: Span,
        block_table: Span,
        row_offsets: Span,
        row_starts: Span,
        drawn_at: Span,
        out: Span,
    ) -> PyResult<()> {
        // SAFETY: contiguous tensors of these formats, held by the caller during this call; `out` is a fresh one.
        let (rows, out) = unsafe {
            let rows = StepRows {
                ids: ids.read(),
                positions: positions.read(),
                kv_slots: kv_slots.read(),
                block_table: block_table.read(),
                row_offsets: row_offsets.read(),
                row_starts: row_starts.read(),
                drawn_at: drawn_at.read(),
                embeds: program::Embeds::default(),
            };
            (rows, out.write::<f32>())
        };
        py.detach(|| {
            let _stay = self.stay();
            let mut cpu = cpu(); // before the program, as a step does
            let mut program = self.lock();
            program.run(&mut cpu, &rows, &mut Answers(&self.call_backs)).map_err(|stop| stop.to_string())?;
            let logits = program.logits();
            if logits.len() != out.len() {
                return Err(format!("`out` has {} elements; allowed: {}", out.len(), logits.len()));
            }
            out.copy_from_slice(logits);
            Ok(())
        })
        .map_err(PyValueError::new_err)
    }

    /// From now on each run notes how long each call takes.
    fn note_times(&self, py: Python<'_>) {
        py.detach(|| self.lock().note_times());
    }

    /// The calls, with the cost of a step of these rows and the times of the run before (0 if they were not noted).
    fn lines(&self, py: Python<'_>, ids: Span, row_offsets: Span, row_starts: Span, drawn_at: Span) -> Vec<Line> {
        // SAFETY: as in `run`.
        let rows = unsafe {
            StepRows {
                ids: ids.read(),
                positions: &[],
                kv_slots: &[],
                block_table: &[],
                row_offsets: row_offsets.read(),
                row_starts: row_starts.read(),
                drawn_at: drawn_at.read(),
                embeds: program::Embeds::default(),
            }
        };
        py.detach(|| {
            let program = self.lock();
            let ids = |list: Vec<BufferId>| list.into_iter().map(|id| id.0).collect();
            let line = |(at, call): (usize, &Call)| {
                let cost = program.cost(call, &rows);
                let micros = program.times().map_or(0.0, |times| times[at].as_secs_f64() * 1e6);
                (call.to_string(), ids(call.reads()), ids(call.writes()), cost.bytes, cost.flops, micros)
            };
            program.calls().iter().enumerate().map(line).collect()
        })
    }
}

impl Program {
    /// A run that panicked left nothing half-made but the arena, which the next one fills anew. Never with Python's lock held: a run
    /// holds this one while a call-back waits for that.
    pub(crate) fn lock(&self) -> MutexGuard<'_, program::Program> {
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread runs it until the result goes: see `Cpu::stay`. Not with call-backs, whose own threads would stay where this one does.
    pub(crate) fn stay(&self) -> Option<Stay> {
        if self.call_backs.is_empty() { cpu().stay() } else { None }
    }

    /// What answers its call-backs. Takes the GIL for each.
    pub(crate) fn answers(&self) -> impl CallBacks + '_ {
        Answers(&self.call_backs)
    }
}

struct Answers<'a>(&'a [CallBack]);

impl CallBacks for Answers<'_> {
    fn call(&mut self, number: usize, mut memory: Memory<'_>) -> Result<(), String> {
        let CallBack { function, buffers } = &self.0[number];
        let Counts { tokens, draws } = memory.counts();
        let inputs = [memory.rows.ids, memory.rows.positions, memory.rows.drawn_at];
        let mut addresses: Vec<_> = inputs.iter().map(|input| input.as_ptr() as usize).collect();
        addresses.extend(buffers.iter().map(|&id| memory.buffer(id).as_mut_ptr() as usize));
        Python::attach(|py| function.call1(py, (tokens, draws, addresses)).map(drop).map_err(|error| error.to_string()))
    }
}

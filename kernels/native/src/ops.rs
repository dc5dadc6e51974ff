//! The CPU kernels' Python door: addresses of contiguous tensors in, `pelton_cpu` called without the GIL.
//!
//! A tensor arrives as [`Span`]: address and number of elements. `pelton_kernels.cpu`, the only caller, takes both from the
//! tensor and holds it during the call; shapes and formats are checked before, in `pelton_kernels.ops`, so that all devices
//! refuse alike. Checked here: that nothing written overlaps anything else, and what lies in the tensors (by `pelton_cpu`).

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use pelton_cpu::program::Weight;
use pelton_cpu::{
    Activation, Attention, Bf16, CacheFormat, CacheShape, Cpu, Element, Format, Function, Held, Isa, Pairs, Refusal,
    RopeKvWrite, SampleOut, SampleRows, ScoreOut, ScoreRows, Sight,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::span::{Span, check_apart};
use crate::weights::{PackedWeight, SchemeWords, scheme_of};

/// One for the process: its threads are the cores, and two ops at once would only take them from each other.
static CPU: LazyLock<Mutex<Cpu>> =
    LazyLock::new(|| Mutex::new(Cpu::new(Isa::best(), available_parallelism().map_or(1, usize::from))));

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ReadProbe>()?;
    module.add_function(wrap_pyfunction!(multiply_codes, module)?)?;
    module.add_function(wrap_pyfunction!(multiply_tiles, module)?)?;
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(available_isas, module)?)?;
    module.add_function(wrap_pyfunction!(force_isa, module)?)?;
    module.add_function(wrap_pyfunction!(numerics_id, module)?)?;
    module.add_function(wrap_pyfunction!(embed, module)?)?;
    module.add_function(wrap_pyfunction!(linear, module)?)?;
    module.add_function(wrap_pyfunction!(rope_kv_write, module)?)?;
    module.add_function(wrap_pyfunction!(silu_mul, module)?)?;
    module.add_function(wrap_pyfunction!(gelu_mul, module)?)?;
    module.add_function(wrap_pyfunction!(gelu_erf_mul, module)?)?;
    module.add_function(wrap_pyfunction!(activate, module)?)?;
    module.add_function(wrap_pyfunction!(add, module)?)?;
    module.add_function(wrap_pyfunction!(scale, module)?)?;
    module.add_function(wrap_pyfunction!(soft_cap, module)?)?;
    module.add_function(wrap_pyfunction!(paged_attention, module)?)?;
    module.add_function(wrap_pyfunction!(copy_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(score, module)?)?;
    module.add_function(wrap_pyfunction!(sample, module)?)
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

pub(crate) fn pairs_of(is_interleaved: bool) -> Pairs {
    if is_interleaved { Pairs::Neighbours } else { Pairs::Halves }
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

/// `$body` with `$H` what such a cache holds of activations of type `$E`.
macro_rules! by_cache {
    ($format:expr, $E:ident, $H:ident => $body:expr) => {
        match $format {
            CacheFormat::Plain => {
                type $H = $E;
                $body
            }
            CacheFormat::Codes => {
                type $H = i8;
                $body
            }
        }
    };
}

/// Of caches of this dtype, for activations of that format.
pub(crate) fn cache_format_of(dtype: &str, activations: Format) -> PyResult<CacheFormat> {
    if dtype == "int8" {
        return Ok(CacheFormat::Codes);
    }
    if dtype == activations.name() {
        return Ok(CacheFormat::Plain);
    }
    Err(PyValueError::new_err(format!("`cache_dtype` is {dtype}; allowed: {}, int8", activations.name())))
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

/// `out_dtype` is the weight's, or float32.
#[pyfunction]
#[pyo3(signature = (out_dtype, out, x, weight, bias))]
fn linear(
    py: Python<'_>,
    out_dtype: &str,
    out: Span,
    x: Span,
    weight: &Bound<'_, PackedWeight>,
    bias: Option<Span>,
) -> PyResult<()> {
    let out_format = format_of(out_dtype)?;
    let bias = bias.unwrap_or(Span::new(0, 0));
    match (&weight.get().0, out_format) {
        (Weight::Float32(weight), Format::Float32) => linear_of::<f32, f32>(py, out, x, weight, bias),
        (Weight::BFloat16(weight), Format::Float32) => linear_of::<Bf16, f32>(py, out, x, weight, bias),
        (Weight::BFloat16(weight), Format::BFloat16) => linear_of::<Bf16, Bf16>(py, out, x, weight, bias),
        (Weight::Quantized(Format::Float32, weight), Format::Float32) => {
            quantized_of::<f32, f32>(py, out, x, weight, bias)
        }
        (Weight::Quantized(Format::BFloat16, weight), Format::Float32) => {
            quantized_of::<Bf16, f32>(py, out, x, weight, bias)
        }
        (Weight::Quantized(Format::BFloat16, weight), Format::BFloat16) => {
            quantized_of::<Bf16, Bf16>(py, out, x, weight, bias)
        }
        (Weight::Float32(_) | Weight::Quantized(Format::Float32, _), Format::BFloat16) => {
            Err(PyValueError::new_err("`out` is bfloat16, the weight is for float32; allowed: float32"))
        }
    }
}

fn quantized_of<E: Element, O: Element>(
    py: Python<'_>,
    out: Span,
    x: Span,
    weight: &pelton_cpu::QuantizedWeight,
    bias: Span,
) -> PyResult<()> {
    check_apart(&[("out", out, size_of::<O>())], &[("x", x, size_of::<E>()), ("bias", bias, size_of::<E>())])?;
    // SAFETY: see the module's comment; apart by the check above.
    let (out, x, bias) = unsafe { (out.write::<O>(), x.read::<E>(), bias.read::<E>()) };
    py.detach(|| {
        let mut cpu = cpu();
        check_suits(weight.suits(cpu.isa()), cpu.isa())?;
        pelton_cpu::linear_quantized(&mut cpu, out, x, weight, (!bias.is_empty()).then_some(bias));
        Ok(())
    })
}

fn check_suits(suits: bool, isa: Isa) -> PyResult<()> {
    if suits {
        return Ok(());
    }
    let isa = isa.name();
    Err(PyValueError::new_err(format!("`weight` is packed for another instruction set; allowed: one packed for {isa}")))
}

fn linear_of<E: Element, O: Element>(
    py: Python<'_>,
    out: Span,
    x: Span,
    weight: &pelton_cpu::PackedWeight<E>,
    bias: Span,
) -> PyResult<()> {
    check_apart(&[("out", out, size_of::<O>())], &[("x", x, size_of::<E>()), ("bias", bias, size_of::<E>())])?;
    // SAFETY: see the module's comment; apart by the check above.
    let (out, x, bias) = unsafe { (out.write::<O>(), x.read::<E>(), bias.read::<E>()) };
    py.detach(|| {
        let mut cpu = cpu();
        check_suits(weight.suits(cpu.isa()), cpu.isa())?;
        pelton_cpu::linear(&mut cpu, out, x, weight, (!bias.is_empty()).then_some(bias));
        Ok(())
    })
}

/// Blocks, KV heads, block size, head size: of numbers, without what stands behind them.
pub(crate) type CacheSizes = (usize, usize, usize, usize);

pub(crate) fn cache_shape((blocks, heads, block_size, dim): CacheSizes, format: CacheFormat) -> CacheShape {
    CacheShape { blocks, heads, block_size, dim, format }
}

#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one per tensor of the Python door")]
fn rope_kv_write(
    py: Python<'_>,
    dtype: &str,
    q: Span,
    k: Span,
    v: Span,
    cos_sin: Span,
    rotated: usize,
    is_interleaved: bool,
    positions: Span,
    cache_dtype: &str,
    k_cache: Span,
    v_cache: Span,
    cache: CacheSizes,
    kv_slots: Span,
    heads: usize,
) -> PyResult<()> {
    let format = format_of(dtype)?;
    let cache = cache_shape(cache, cache_format_of(cache_dtype, format)?);
    by_format!(format, E => by_cache!(cache.format, E, H => {
        let (size, cache_size) = (size_of::<E>(), size_of::<H>());
        check_apart(
            &[("q", q, size), ("k", k, size), ("k_cache", k_cache, cache_size), ("v_cache", v_cache, cache_size)],
            &[("v", v, size), ("cos_sin", cos_sin, 4), ("positions", positions, 4), ("kv_slots", kv_slots, 8)],
        )?;
        // SAFETY: see the module's comment; apart by the check above.
        let args = unsafe {
            RopeKvWrite {
                q: q.write::<E>(),
                k: k.write(),
                v: v.read(),
                cos_sin: cos_sin.read(),
                rotated,
                pairs: pairs_of(is_interleaved),
                positions: positions.read(),
                k_cache: k_cache.write::<H>(),
                v_cache: v_cache.write(),
                cache,
                kv_slots: kv_slots.read(),
                heads,
            }
        };
        py.detach(|| pelton_cpu::rope_kv_write(&mut cpu(), args)).map_err(refused)
    }))
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
        py.detach(|| pelton_cpu::gate_mul(&mut cpu(), out, gate_up, width, activation));
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

#[pyfunction]
#[pyo3(signature = (dtype, out, q, cache_dtype, k_cache, v_cache, cache, block_table, row_offsets, row_starts, heads, scale, is_whole, window, soft_cap, sinks, slopes))]
#[allow(clippy::too_many_arguments, reason = "one per tensor of the Python door")]
fn paged_attention(
    py: Python<'_>,
    dtype: &str,
    out: Span,
    q: Span,
    cache_dtype: &str,
    k_cache: Span,
    v_cache: Span,
    cache: CacheSizes,
    block_table: Span,
    row_offsets: Span,
    row_starts: Span,
    heads: usize,
    scale: f32,
    is_whole: bool,
    window: Option<usize>,
    soft_cap: Option<f32>,
    sinks: Option<Span>,
    slopes: Option<Span>,
) -> PyResult<()> {
    let format = format_of(dtype)?;
    let cache = cache_shape(cache, cache_format_of(cache_dtype, format)?);
    by_format!(format, E => by_cache!(cache.format, E, H => {
        let (size, cache_size) = (size_of::<E>(), size_of::<H>());
        let tables = [
            ("block_table", block_table, 4),
            ("row_offsets", row_offsets, 4),
            ("row_starts", row_starts, 4),
            ("sinks", sinks.unwrap_or(Span::new(0, 0)), 4),
            ("slopes", slopes.unwrap_or(Span::new(0, 0)), 4),
        ];
        let caches = [("k_cache", k_cache, cache_size), ("v_cache", v_cache, cache_size)];
        check_apart(&[("out", out, size)], &[("q", q, size)])?;
        check_apart(&[("out", out, size)], &caches)?;
        check_apart(&[("out", out, size)], &tables)?;
        // SAFETY: see the module's comment; apart by the checks above.
        let args = unsafe {
            Attention {
                out: out.write::<E>(),
                q: q.read(),
                k_cache: k_cache.read::<H>(),
                v_cache: v_cache.read(),
                cache,
                block_table: block_table.read(),
                row_offsets: row_offsets.read(),
                row_starts: row_starts.read(),
                heads,
                scale,
                sight: Sight {
                    is_whole,
                    window,
                    soft_cap,
                    sinks: sinks.map(|sinks| sinks.read()),
                    slopes: slopes.map(|slopes| slopes.read()),
                },
            }
        };
        py.detach(|| pelton_cpu::paged_attention(&mut cpu(), args)).map_err(refused)
    }))
}

#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one per tensor of the Python door")]
fn copy_blocks(
    py: Python<'_>,
    cache_dtype: &str,
    k_cache: Span,
    v_cache: Span,
    cache: CacheSizes,
    from_blocks: Span,
    to_blocks: Span,
    tokens: Span,
) -> PyResult<()> {
    let (caches, lists) = ([k_cache, v_cache], [from_blocks, to_blocks, tokens]);
    if cache_dtype == "int8" {
        // Rows are copied as they lie: of which activations they are makes no difference.
        return copy_blocks_of::<f32, i8>(py, caches, cache_shape(cache, CacheFormat::Codes), lists);
    }
    by_format!(format_of(cache_dtype)?, E => {
        copy_blocks_of::<E, E>(py, caches, cache_shape(cache, CacheFormat::Plain), lists)
    })
}

fn copy_blocks_of<E: Element, H: Held<E>>(
    py: Python<'_>,
    [k_cache, v_cache]: [Span; 2],
    shape: CacheShape,
    [from_blocks, to_blocks, tokens]: [Span; 3],
) -> PyResult<()> {
    let size = size_of::<H>();
    let lists = [("from_blocks", from_blocks, 4), ("to_blocks", to_blocks, 4), ("tokens", tokens, 4)];
    check_apart(&[("k_cache", k_cache, size), ("v_cache", v_cache, size)], &lists)?;
    // SAFETY: see the module's comment; apart by the check above.
    let (caches, from, to, tokens) =
        unsafe { ([k_cache.write::<H>(), v_cache.write()], from_blocks.read(), to_blocks.read(), tokens.read()) };
    py.detach(|| pelton_cpu::copy_blocks(&mut cpu(), caches, shape, from, to, tokens)).map_err(refused)
}

/// Words of a parameter record.
const ADMIT_WORDS: usize = pelton_frame::Admit::WORDS;

#[pyfunction]
#[pyo3(signature = (out_tokens, out_flags, out_chosen, out_top_ids, out_top_logprobs, logits, vocabulary, params, slots, positions, counts, bias_ids, bias_values, suppressed, masks, mask_of))]
#[allow(clippy::too_many_arguments, reason = "one per tensor of the Python door")]
fn sample(
    py: Python<'_>,
    out_tokens: Span,
    out_flags: Span,
    out_chosen: Span,
    out_top_ids: Span,
    out_top_logprobs: Span,
    logits: Span,
    vocabulary: usize,
    params: Span,
    slots: Span,
    positions: Span,
    counts: Option<Span>,
    bias_ids: Span,
    bias_values: Span,
    suppressed: Span,
    masks: Span,
    mask_of: Span,
) -> PyResult<()> {
    let named = |name, span| (name, span, 4); // every tensor here has elements of 4 bytes
    check_apart(
        &[
            named("out_tokens", out_tokens),
            named("out_flags", out_flags),
            named("out_chosen", out_chosen),
            named("out_top_ids", out_top_ids),
            named("out_top_logprobs", out_top_logprobs),
        ],
        &[
            named("logits", logits),
            named("params", params),
            named("slots", slots),
            named("positions", positions),
            named("counts", counts.unwrap_or(Span::new(0, 0))),
            named("bias_ids", bias_ids),
            named("bias_values", bias_values),
            named("suppressed", suppressed),
            named("masks", masks),
            named("mask_of", mask_of),
        ],
    )?;
    // SAFETY: see the module's comment; apart by the check above. An `Admit` is 24 words, any of which may have any value.
    let (out, input) = unsafe {
        let out = SampleOut {
            tokens: out_tokens.write(),
            flags: out_flags.write(),
            chosen: out_chosen.write(),
            top_ids: out_top_ids.write(),
            top_logprobs: out_top_logprobs.write(),
        };
        let input = SampleRows {
            logits: logits.read(),
            vocabulary,
            params: Span::new(params.address(), params.elements() / ADMIT_WORDS).read(),
            slots: slots.read(),
            positions: positions.read(),
            counts: counts.map(|counts| counts.read()),
            bias_ids: bias_ids.read(),
            bias_values: bias_values.read(),
            suppressed: suppressed.read(),
            masks: masks.read(),
            mask_of: mask_of.read(),
        };
        (out, input)
    };
    py.detach(|| pelton_cpu::sample(&mut cpu(), out, input)).map_err(refused)
}

#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "an op's tensors")]
fn score(
    py: Python<'_>,
    out_ranks: Span,
    out_flags: Span,
    out_chosen: Span,
    out_top_ids: Span,
    out_top_logprobs: Span,
    logits: Span,
    vocabulary: usize,
    given: Span,
    wanted: Span,
) -> PyResult<()> {
    let named = |name, span| (name, span, 4); // every tensor here has elements of 4 bytes
    check_apart(
        &[
            named("out_ranks", out_ranks),
            named("out_flags", out_flags),
            named("out_chosen", out_chosen),
            named("out_top_ids", out_top_ids),
            named("out_top_logprobs", out_top_logprobs),
        ],
        &[named("logits", logits), named("given", given), named("wanted", wanted)],
    )?;
    // SAFETY: see the module's comment; apart by the check above.
    let (out, input) = unsafe {
        let out = ScoreOut {
            ranks: out_ranks.write(),
            flags: out_flags.write(),
            chosen: out_chosen.write(),
            top_ids: out_top_ids.write(),
            top_logprobs: out_top_logprobs.write(),
        };
        (out, ScoreRows { logits: logits.read(), vocabulary, given: given.read(), wanted: wanted.read() })
    };
    py.detach(|| pelton_cpu::score(&mut cpu(), out, input)).map_err(refused)
}

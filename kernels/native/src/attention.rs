//! The Python door of attention and of the KV cache. As in `ops`: addresses of tensors that Python has checked and holds during the call.

use pelton_cpu::{
    Attention, Bf16, CacheFormat, CacheShape, Element, Format, HeadNorm, HeadsAt, Held, Pairs, RopeKvWrite, Sight,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::ops::{by_format, cpu, format_of, refused};
use crate::span::{Span, check_apart};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rope_kv_write, module)?)?;
    module.add_function(wrap_pyfunction!(paged_attention, module)?)?;
    module.add_function(wrap_pyfunction!(copy_blocks, module)?)
}

pub(crate) fn pairs_of(is_interleaved: bool) -> Pairs {
    if is_interleaved { Pairs::Neighbours } else { Pairs::Halves }
}

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

/// Blocks, KV heads, block size, head size: of numbers, without what stands behind them.
pub(crate) type CacheSizes = (usize, usize, usize, usize);

pub(crate) fn cache_shape((blocks, heads, block_size, dim): CacheSizes, format: CacheFormat) -> CacheShape {
    CacheShape { blocks, heads, block_size, dim, format }
}

/// First element, elements to the next token, and to the next head: see [`HeadsAt`].
pub(crate) type HeadSteps = [usize; 3];

pub(crate) fn heads_at([from, by_token, by_head]: HeadSteps) -> HeadsAt {
    HeadsAt { from, by_token, by_head }
}

#[pyfunction]
#[pyo3(signature = (dtype, out, q, q_at, k, k_at, v, v_at, q_gain, k_gain, eps, cos_sin, rotated, is_interleaved, positions, cache_dtype, k_cache, v_cache, cache, kv_slots, heads))]
#[allow(clippy::too_many_arguments, reason = "one per tensor of the Python door")]
fn rope_kv_write(
    py: Python<'_>,
    dtype: &str,
    out: Span,
    q: Span,
    q_at: HeadSteps,
    k: Span,
    k_at: HeadSteps,
    v: Span,
    v_at: HeadSteps,
    q_gain: Option<Span>,
    k_gain: Option<Span>,
    eps: f32,
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
    let gains = q_gain.zip(k_gain);
    let (q_gain, k_gain) = gains.unwrap_or((Span::new(0, 0), Span::new(0, 0)));
    by_format!(format, E => by_cache!(cache.format, E, H => {
        let (size, cache_size) = (size_of::<E>(), size_of::<H>());
        check_apart(
            &[("out", out, size), ("k_cache", k_cache, cache_size), ("v_cache", v_cache, cache_size)],
            &[
                ("q", q, size),
                ("k", k, size),
                ("v", v, size),
                ("q_gain", q_gain, 4),
                ("k_gain", k_gain, 4),
                ("cos_sin", cos_sin, 4),
                ("positions", positions, 4),
                ("kv_slots", kv_slots, 8),
            ],
        )?;
        // SAFETY: see the module's comment; apart by the check above.
        let args = unsafe {
            RopeKvWrite {
                out: out.write::<E>(),
                q: (q.read(), heads_at(q_at)),
                k: (k.read(), heads_at(k_at)),
                v: (v.read(), heads_at(v_at)),
                norm: gains.map(|_| HeadNorm { q_gain: q_gain.read(), k_gain: k_gain.read(), eps }),
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
                out_row: heads * cache.dim,
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

"""The oracle: every op in plain torch, as its formula reads, for tensors on any device.

bfloat16 is computed in float32 and rounded at the end; float64 stays float64, so that the truth, by which errors are
measured, comes from the same lines. Results are returned; only caches are written in place.
Never here: anything for speed.
"""

from pelton_kernels.reference.attention import copy_blocks, paged_attention, rope_kv_write
from pelton_kernels.reference.codes import codes_of, numbers_of
from pelton_kernels.reference.dense import (
    activate,
    add,
    add_layer_norm,
    add_rms_norm,
    embed,
    gelu_erf_mul,
    gelu_mul,
    layer_norm,
    linear,
    linear_codes_f32,
    linear_f32,
    rms_norm,
    rounded,
    scale,
    silu_mul,
    soft_cap,
)
from pelton_kernels.reference.host import load_blocks, save_blocks
from pelton_kernels.reference.philox import philox4x32
from pelton_kernels.reference.rows import embed_segments, pool_rows
from pelton_kernels.reference.sampling import Sampled, Scored, sample, score

__all__ = [
    "Sampled",
    "Scored",
    "activate",
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "codes_of",
    "copy_blocks",
    "embed",
    "embed_segments",
    "gelu_erf_mul",
    "gelu_mul",
    "layer_norm",
    "linear",
    "linear_codes_f32",
    "linear_f32",
    "load_blocks",
    "numbers_of",
    "paged_attention",
    "philox4x32",
    "pool_rows",
    "rms_norm",
    "rope_kv_write",
    "rounded",
    "sample",
    "save_blocks",
    "scale",
    "score",
    "silu_mul",
    "soft_cap",
]

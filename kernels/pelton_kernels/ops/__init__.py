"""The one dispatch table: each op checks its tensors, then goes to the kernels of the device they lie on.

Outputs come first and are written in place. All tensors are contiguous, but for heads that are parts of a product's
rows, and on one device; formats are float32 and bfloat16. A ValueError names the argument, what it is, and what is
allowed. What each op computes is written down, in plain torch, in `reference`; indices out of range are refused on the
CPU and are the caller's duty on a GPU.

On a CPU a row's result is bit for bit the same alone, in any batch or chunk, on any number of threads.
"""

from pelton_kernels.heads import HeadNorm
from pelton_kernels.ops.caches import (
    copy_blocks,
    load_blocks,
    paged_attention,
    rope_kv_write,
    save_blocks,
)
from pelton_kernels.ops.dispatch import (
    Caches,
    Function,
    Kernels,
    Pooling,
    available_isas,
    force_isa,
    numerics_id,
    set_threads,
    watched,
)
from pelton_kernels.ops.drawing import (
    sample,
    score,
)
from pelton_kernels.ops.rows import (
    FUNCTIONS,
    POOLINGS,
    activate,
    add,
    add_layer_norm,
    add_rms_norm,
    embed,
    embed_packed,
    embed_segments,
    gelu_erf_mul,
    gelu_mul,
    layer_norm,
    pool_rows,
    rms_norm,
    scale,
    silu_mul,
    soft_cap,
)
from pelton_kernels.ops.weights import (
    linear,
    linear_f32,
    pack,
    pack_codes,
    quantize,
)
from pelton_kernels.packed import PackedWeight, Scheme

__all__ = [
    "FUNCTIONS",
    "POOLINGS",
    "Caches",
    "Function",
    "HeadNorm",
    "Kernels",
    "PackedWeight",
    "Pooling",
    "Scheme",
    "activate",
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "available_isas",
    "copy_blocks",
    "embed",
    "embed_packed",
    "embed_segments",
    "force_isa",
    "gelu_erf_mul",
    "gelu_mul",
    "layer_norm",
    "linear",
    "linear_f32",
    "load_blocks",
    "numerics_id",
    "pack",
    "pack_codes",
    "paged_attention",
    "pool_rows",
    "quantize",
    "rms_norm",
    "rope_kv_write",
    "sample",
    "save_blocks",
    "scale",
    "score",
    "set_threads",
    "silu_mul",
    "soft_cap",
    "watched",
]

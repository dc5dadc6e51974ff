//! Kernels for CPUs: every op a worker calls, over plain slices, with one arithmetic per instruction set and format.
//!
//! An algorithm is written once, over [`simd::Simd`] (16 float32 lanes), and compiled once per instruction set, which is
//! chosen at start. **A row's result is bit for bit the same alone, in any batch or chunk, on any number of threads:** each
//! output has one accumulator that is fed in one order; threads only split outputs among themselves.
//! Never here: Python, tensors, requests, sockets, randomness without a seed, files (but for those that say which memory nodes there are),
//! clocks (but for the pool's 20 µs of spinning and the arena's lulls).
//! In: slices and shapes. Out: slices written in place, or a [`Refusal`] that names the argument, and then nothing is written.

mod activate;
#[cfg(target_arch = "x86_64")]
mod amx;
mod apart;
mod arena;
mod attention;
mod cache;
mod cached;
mod element;
mod elementwise;
mod embed;
mod error;
mod gate;
mod host;
mod isa;
mod layer_norm;
mod linear;
mod lined;
mod math;
mod memory;
mod nodes;
mod norm;
mod philox;
mod pool;
mod pool_rows;
mod probe;
pub mod program;
mod rope;
mod sample;
mod share;
mod simd;
mod split;

pub use activate::{Function, activate};
pub use arena::{Arena, ArenaStep};
pub use attention::{Attention, Sight, paged_attention};
pub use cache::{CacheFormat, CacheShape, copy_blocks};
pub use cached::{Held, SCALE_BYTES};
pub use element::{Bf16, Element, Format};
pub use elementwise::{add, scale, soft_cap};
pub use embed::{embed, embed_packed, embed_segments};
pub use error::Refusal;
pub use gate::{Activation, gate_mul};
pub use host::{HostBlocks, load_blocks, save_blocks};
pub use isa::Isa;
pub use layer_norm::{LayerNorm, add_layer_norm, layer_norm};
pub use linear::{
    Bits, Codes, Matrix, PackedWeight, QuantizedActivations, QuantizedWeight, Scheme, Spaced, Stored, linear,
    linear_quantized, linear_spaced,
};
pub use memory::{Buffer, Foreseen, memory_is_urgent};
pub use nodes::{Node, Stay, nodes};
pub use norm::{add_rms_norm, rms_norm, rms_norm_in_place};
pub use philox::philox4x32;
pub use pool::Pool;
pub use pool_rows::{Pooling, pool_rows};
pub use probe::{CopyProbe, ReadProbe, multiply_codes, multiply_tiles};
pub use rope::{HeadNorm, HeadsAt, Pairs, RopeKvWrite, rope_kv_write};
pub use sample::{SampleOut, SampleRows, ScoreOut, ScoreRows, sample, score};

/// What every op runs on: the instruction set, the threads, and memory that is used again from call to call.
pub struct Cpu {
    isa: Isa,
    pool: Pool,
    scratch: memory::Buffer,
    /// How many elements are worth waking one more thread: about what a core handles in the microseconds that takes.
    grain: usize,
}

impl Cpu {
    /// `threads` counts the calling thread; 1 starts no thread at all.
    pub fn new(isa: Isa, threads: usize) -> Self {
        Self { isa, pool: Pool::new(threads), scratch: memory::Buffer::empty(), grain: 16_384 }
    }

    /// How many parts to cut an op into: no more than there are threads or `units`, nor than `work` (in elements) is worth.
    fn parts(&self, units: usize, work: usize) -> usize {
        self.threads().min(units).min(1 + work / self.grain)
    }

    /// The calling thread calls ops until the result goes: where there are several memory nodes, it stays in its own.
    pub fn stay(&self) -> Option<Stay> {
        self.pool.stay()
    }

    /// The instruction set that all ops of this value use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// How many threads share an op, the caller's among them.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// What the bits of a result depend on besides its inputs: class, format, how weights are quantised, version of the
    /// arithmetic.
    pub fn numerics_id(&self, format: Format, scheme: Option<Scheme>) -> String {
        // Raised whenever any op's arithmetic changes: cached KV of another version is another model's.
        const VERSION: u32 = 4;
        // What alone was changed since the last time: bfloat16 activations as they are among codes, in tiles.
        const WIDENED_SINCE: u32 = 1;
        let is_widened = self.isa.has_tiles()
            && format == Format::BFloat16
            && scheme.is_some_and(|scheme| scheme.activations == QuantizedActivations::Float);
        let version = VERSION + if is_widened { WIDENED_SINCE } else { 0 };
        let scheme = scheme.map_or(String::new(), |scheme| format!("-{scheme}"));
        format!("cpu-{}-{}{scheme}-{version}", self.isa.name(), format.name())
    }
}

//! A model as a program: a flat list of kernel calls over buffers of one arena, walked without Python.
//!
//! ```text
//!   recorded calls ──▶ checked ──▶ rewritten ──▶ places in the arena ──▶ run(step) ──▶ logits
//! ```
//! Sizes are so many bytes per token or per draw, so one program serves any mix of rows. The kernels are those that the same
//! model calls when it is run eagerly, so the two agree bit for bit.
//! Never here: how a program was recorded, Python, weights' names, requests.

mod call;
mod cost;
mod flaw;
mod kept;
mod lent;
mod places;
mod rewrite;
mod run;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use call::{BufferId, Call, Counts, LentHeadNorm, LentNorm, Per, RowOf, Size, Weight};
pub use cost::Cost;
pub use flaw::Flaw;
pub use lent::{Lent, LentMut};
pub use run::{CallBacks, Memory, NoCallBacks, Stop};

use crate::cache::{CacheFormat, CacheShape, copy_blocks};
use crate::element::{Bf16, Format};
use crate::error::Refusal;
use crate::host::{HostBlocks, load_blocks, save_blocks};
use crate::{Cpu, memory};
use places::Places;

/// One layer's part of the KV arena.
pub struct Layer {
    /// Keys.
    pub k: LentMut,
    /// Values.
    pub v: LentMut,
    /// Of both.
    pub shape: CacheShape,
}

/// Which tokens a step has, where their KV goes, what they look at. Shapes as for the kernels that read them.
#[derive(Debug, Clone, Copy)]
pub struct StepRows<'a> {
    /// `[tokens]`.
    pub ids: &'a [i32],
    /// `[tokens]`.
    pub positions: &'a [i32],
    /// `[kinds, tokens]`: each kind of layers has blocks of its own.
    pub kv_slots: &'a [i64],
    /// `[kinds, rows, max blocks]`.
    pub block_table: &'a [i32],
    /// `[rows + 1]`.
    pub row_offsets: &'a [i32],
    /// `[rows]`.
    pub row_starts: &'a [i32],
    /// `[draws]`: the tokens after which one is drawn.
    pub drawn_at: &'a [i32],
    /// What stands in the place of some tokens' rows of the table.
    pub embeds: Embeds<'a>,
}

/// Embeddings that were given. The default: none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Embeds<'a> {
    /// `[embeds]`: the tokens in whose places they stand.
    pub at: &'a [i32],
    /// `[embeds, width]`.
    pub values: &'a [f32],
    /// What they are multiplied with, a number of the program's format: 1, unless the model multiplies all that comes in.
    pub scale: f32,
}

impl StepRows<'_> {
    /// How many tokens and draws.
    pub fn counts(&self) -> Counts {
        Counts { tokens: self.ids.len(), draws: self.drawn_at.len() }
    }

    /// KV slots and block table of one kind of layers. There is a token at least.
    fn of_kind(&self, kind: usize) -> (&[i64], &[i32]) {
        let tokens = self.ids.len();
        let kinds = self.kv_slots.len() / tokens;
        let cells = self.block_table.len() / kinds;
        (&self.kv_slots[kind * tokens..][..tokens], &self.block_table[kind * cells..][..cells])
    }
}

/// What a program is made of.
pub struct Parts {
    /// Of all activations.
    pub format: Format,
    /// By `BufferId`.
    pub buffers: Vec<Size>,
    /// In order.
    pub calls: Vec<Call>,
    /// The KV arena.
    pub layers: Vec<Layer>,
    /// The logits: float32.
    pub result: BufferId,
}

/// A checked and planned program.
pub struct Program {
    parts: Parts,
    places: Places,
    arena: memory::Buffer,
    counts: Counts, // of the step that ran last
    times: Option<Vec<Duration>>,
}

impl Program {
    /// Checks the calls against the buffers, rewrites what can be had for less, and gives every buffer its place.
    pub fn new(mut parts: Parts) -> Result<Self, Flaw> {
        flaw::check(&parts)?;
        rewrite::pick_early(&mut parts);
        flaw::check(&parts)?;
        rewrite::gate_early(&mut parts);
        rewrite::space_rows(&mut parts);
        Ok(Self::planned(parts))
    }

    fn planned(parts: Parts) -> Self {
        let places = Places::plan(&parts.buffers, &parts.calls, parts.result);
        let counts = Counts { tokens: 0, draws: 0 };
        Self { parts, places, arena: memory::Buffer::empty(), counts, times: None }
    }

    /// The calls, in order.
    pub fn calls(&self) -> &[Call] {
        &self.parts.calls
    }

    /// A buffer's size.
    pub fn size(&self, id: BufferId) -> Size {
        self.parts.buffers[id.0]
    }

    /// The number of the place that a buffer shares with others; none: no call uses it any more.
    pub fn place(&self, id: BufferId) -> Option<usize> {
        self.places.of(id)
    }

    /// How many buffers, and how many places they share.
    pub fn buffers(&self) -> (usize, usize) {
        (self.parts.buffers.len(), self.places.count())
    }

    /// Bytes of the arena in a step of these counts.
    pub fn arena_bytes(&self, counts: Counts) -> usize {
        self.places.clone().lay_out(counts)
    }

    /// The logits of the step that ran last: `[draws, vocabulary]`.
    pub fn logits(&self) -> &[f32] {
        let bytes = self.parts.buffers[self.parts.result.0].bytes(self.counts);
        bytemuck::cast_slice(&self.arena.as_slice::<u8>()[self.places.range(self.parts.result, bytes)])
    }

    /// From now on each run notes how long each call takes. It costs two looks at the clock per call.
    pub fn note_times(&mut self) {
        self.times = Some(vec![Duration::ZERO; self.parts.calls.len()]);
    }

    /// How long each call took in the run before, if that was wanted.
    pub fn times(&self) -> Option<&[Duration]> {
        self.times.as_deref()
    }

    /// Copies the beginnings of blocks in every layer, as `copy_blocks` does.
    pub fn copy_blocks(&mut self, cpu: &mut Cpu, from: &[i32], to: &[i32], tokens: &[i32]) -> Result<(), Refusal> {
        let format = self.parts.format;
        for Layer { k, v, shape } in &mut self.parts.layers {
            match (shape.format, format) {
                (CacheFormat::Plain, Format::Float32) => {
                    let caches = [k.as_mut_slice::<f32>(), v.as_mut_slice::<f32>()];
                    copy_blocks(cpu, caches, *shape, from, to, tokens)?;
                }
                (CacheFormat::Plain, Format::BFloat16) => {
                    let caches = [k.as_mut_slice::<Bf16>(), v.as_mut_slice::<Bf16>()];
                    copy_blocks(cpu, caches, *shape, from, to, tokens)?;
                }
                (CacheFormat::Codes, _) => {
                    let caches = [k.as_mut_slice::<i8>(), v.as_mut_slice::<i8>()];
                    copy_blocks(cpu, caches, *shape, from, to, tokens)?;
                }
            }
        }
        Ok(())
    }

    /// Whole blocks of every layer go to host memory, as `save_blocks` does.
    pub fn save_blocks(
        &self,
        cpu: &mut Cpu,
        host: HostBlocks<'_>,
        from: &[i32],
        host_blocks: &[i32],
    ) -> Result<(), Refusal> {
        let caches: Vec<&[u8]> =
            self.parts.layers.iter().flat_map(|layer| [layer.k.as_slice(), layer.v.as_slice()]).collect();
        save_blocks(cpu, host, &caches, self.blocks(), from, host_blocks)
    }

    /// Whole blocks of every layer come back from host memory, as `load_blocks` does.
    pub fn load_blocks(
        &mut self,
        cpu: &mut Cpu,
        host: HostBlocks<'_>,
        host_blocks: &[i32],
        to: &[i32],
    ) -> Result<(), Refusal> {
        let blocks = self.blocks();
        let layers = self.parts.layers.iter_mut();
        let caches = layers.flat_map(|layer| [layer.k.as_mut_slice(), layer.v.as_mut_slice()]).collect();
        load_blocks(cpu, caches, blocks, host, host_blocks, to)
    }

    fn blocks(&self) -> usize {
        self.parts.layers.first().map_or(0, |layer| layer.shape.blocks)
    }
}

//! One walk over a program's calls. All buffers are pieces of one slice, taken apart anew for each call, so that what a call
//! may not touch is out of its reach.

use std::ops::Range;
use std::time::Instant;

use super::call::{BufferId, Call, Counts, LentHeadNorm, LentNorm, Per, RowOf, Size, Weight};
use super::places::Places;
use super::{Embeds, Layer, Program, StepRows};
use crate::activate::activate;
use crate::attention::{Attention, Sight, paged_attention};
use crate::cache::CacheFormat;
use crate::cached::Held;
use crate::element::{Bf16, Element, Format};
use crate::elementwise::{add, scale, soft_cap};
use crate::embed::{embed, embed_packed, embed_segments, place_embeds};
use crate::error::Refusal;
use crate::gate::gate_mul;
use crate::layer_norm::{LayerNorm, add_layer_norm, layer_norm};
use crate::linear::{QuantizedWeight, Spaced, linear_gated, linear_quantized, linear_spaced};
use crate::norm::{add_rms_norm, rms_norm, rms_norm_in_place};
use crate::pool_rows::pool_rows;
use crate::rope::{HeadNorm, RopeKvWrite, rope_kv_write};
use crate::split::{Shared, part};
use crate::{Cpu, PackedWeight};

/// Why a run ended early. What it has written by then means nothing.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// A kernel refused what lies in the step.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A call-back failed.
    #[error("call-back {name}: {why}")]
    CallBack {
        /// Which.
        name: String,
        /// As it said.
        why: String,
    },
}

/// Does what has no kernel.
pub trait CallBacks {
    /// `number` counts the program's call-backs from 0.
    fn call(&mut self, number: usize, memory: Memory<'_>) -> Result<(), String>;
}

/// For programs without call-backs.
pub struct NoCallBacks;

impl CallBacks for NoCallBacks {
    fn call(&mut self, number: usize, _: Memory<'_>) -> Result<(), String> {
        Err(format!("nobody answers call-back {number}"))
    }
}

/// What a call-back may touch.
pub struct Memory<'a> {
    arena: &'a mut [u8],
    places: &'a Places,
    buffers: &'a [Size],
    /// The step's arrays.
    pub rows: &'a StepRows<'a>,
}

impl Memory<'_> {
    /// How many tokens and draws.
    pub fn counts(&self) -> Counts {
        self.rows.counts()
    }

    /// A buffer's bytes. Two buffers that the call-back names do not overlap.
    pub fn buffer(&mut self, id: BufferId) -> &mut [u8] {
        let bytes = self.buffers[id.0].bytes(self.rows.counts());
        &mut self.arena[self.places.range(id, bytes)]
    }
}

impl Program {
    /// One step: KV is written, and `logits` are what it came to.
    pub fn run(&mut self, cpu: &mut Cpu, rows: &StepRows<'_>, call_backs: &mut dyn CallBacks) -> Result<(), Stop> {
        self.counts = rows.counts();
        let bytes = self.places.lay_out(self.counts);
        let arena = self.arena.scratch::<u8>(bytes);
        let mut walk = Walk {
            cpu,
            arena,
            places: &self.places,
            buffers: &self.parts.buffers,
            layers: &mut self.parts.layers,
            rows,
            counts: self.counts,
        };
        let mut call_backs_before = 0;
        for (at, call) in self.parts.calls.iter().enumerate() {
            let began = self.times.is_some().then(Instant::now);
            if let Call::CallBack { name, .. } = call {
                let answer = call_backs.call(call_backs_before, walk.memory());
                answer.map_err(|why| Stop::CallBack { name: name.clone(), why })?;
                call_backs_before += 1;
            } else if walk.has_work(call) {
                match self.parts.format {
                    Format::Float32 => walk.call::<f32>(call)?,
                    Format::BFloat16 => walk.call::<Bf16>(call)?,
                }
            }
            if let (Some(times), Some(began)) = (&mut self.times, began) {
                times[at] = began.elapsed();
            }
        }
        Ok(())
    }
}

struct Walk<'a> {
    cpu: &'a mut Cpu,
    arena: &'a mut [u8],
    places: &'a Places,
    buffers: &'a [Size],
    layers: &'a mut [Layer],
    rows: &'a StepRows<'a>,
    counts: Counts,
}

impl Walk<'_> {
    fn memory(&mut self) -> Memory<'_> {
        Memory { arena: self.arena, places: self.places, buffers: self.buffers, rows: self.rows }
    }

    /// Whether it writes anything: nothing is drawn in a step that only prefills.
    fn has_work(&self, call: &Call) -> bool {
        call.writes().iter().any(|&id| self.buffers[id.0].bytes(self.counts) > 0)
    }

    fn range(&self, id: BufferId) -> Range<usize> {
        self.places.range(id, self.buffers[id.0].bytes(self.counts))
    }

    /// Elements from a row of a buffer to the next: `width`, or more, where there is room behind each. A token may have several rows (its
    /// heads, say), but then there is none.
    fn row<E: Element>(&self, id: BufferId, width: usize) -> usize {
        let Size { each, per } = self.buffers[id.0];
        let of_token = each / size_of::<E>();
        if per == Per::Step || of_token.is_multiple_of(width) { width } else { of_token }
    }

    /// One buffer to write, as elements.
    fn one<E: Element>(&mut self, id: BufferId) -> &mut [E] {
        let range = self.range(id);
        bytemuck::cast_slice_mut(&mut self.arena[range])
    }

    fn call<E: Element>(&mut self, call: &Call) -> Result<(), Refusal>
    where
        i8: Held<E>,
    {
        let (rows, counts) = (self.rows, self.counts);
        match call {
            Call::Embed { out, table, row, width } => {
                let range = self.range(*out);
                let out: &mut [E] = bytemuck::cast_slice_mut(&mut self.arena[range]);
                let which = match row {
                    RowOf::Id => rows.ids,
                    RowOf::Position => rows.positions,
                };
                embed(self.cpu, out, table.as_slice(), which, *width)?;
                if let (RowOf::Id, Embeds { at: at @ [_, ..], values, scale }) = (row, rows.embeds) {
                    place_embeds(out, at, values, scale, *width)?;
                }
            }
            Call::EmbedPacked { out, table, scale } => {
                let range = self.range(*out);
                let out = &mut self.arena[range];
                match table {
                    Weight::Float32(table) => {
                        embed_packed(self.cpu, bytemuck::cast_slice_mut(out), table, rows.ids, *scale)?;
                    }
                    Weight::BFloat16(table) => {
                        embed_packed(self.cpu, bytemuck::cast_slice_mut(out), table, rows.ids, *scale)?;
                    }
                    Weight::Quantized(..) => unreachable!("`check` has refused it"),
                }
                if let Embeds { at: at @ [_, ..], values, scale } = rows.embeds {
                    place_embeds::<E>(bytemuck::cast_slice_mut(out), at, values, scale, table.shape().1)?;
                }
            }
            Call::EmbedSegments { out, table, separator, width } => {
                let range = self.range(*out);
                let out: &mut [E] = bytemuck::cast_slice_mut(&mut self.arena[range]);
                embed_segments(self.cpu, out, table.as_slice(), rows.ids, rows.row_offsets, *separator, *width)?;
            }
            Call::PoolRows { out, x, width, pooling, out_format } => {
                let pieces = self.arena.get_disjoint_mut([self.range(*out), self.range(*x)]);
                let [out, x] = pieces.expect("a call's buffers lie apart");
                let x: &[E] = bytemuck::cast_slice(x);
                let (offsets, at) = (rows.row_offsets, rows.drawn_at);
                match out_format {
                    Format::Float32 => {
                        let out: &mut [f32] = bytemuck::cast_slice_mut(out);
                        pool_rows(self.cpu, out, x, offsets, at, *width, *pooling)?;
                    }
                    Format::BFloat16 => {
                        let out: &mut [Bf16] = bytemuck::cast_slice_mut(out);
                        pool_rows(self.cpu, out, x, offsets, at, *width, *pooling)?;
                    }
                }
            }
            Call::Pick { out, x, width } => {
                let (cpu, [out, x]) = self.apart::<E, 2>([*out, *x]);
                embed(cpu, out, x, rows.drawn_at, *width)?;
            }
            Call::Clear { out } => self.one::<E>(*out).fill(E::default()),
            Call::Columns { out, x, from, width, stride } => {
                let (cpu, [out, x]) = self.apart::<E, 2>([*out, *x]);
                columns(cpu, out, x, *from, *width, *stride);
            }
            Call::RmsNorm { out, x, gain, eps } if out == x => {
                let (cpu, [x]) = self.apart::<E, 1>([*x]);
                rms_norm_in_place(cpu, x, gain.as_slice(), *eps);
            }
            Call::RmsNorm { out, x, gain, eps } => {
                let row = self.row::<E>(*out, gain.as_slice::<f32>().len());
                let (cpu, [out, x]) = self.apart::<E, 2>([*out, *x]);
                rms_norm(cpu, out, row, x, gain.as_slice(), *eps);
            }
            Call::AddRmsNorm { out, residual, x, gain, eps } => {
                let row = self.row::<E>(*out, gain.as_slice::<f32>().len());
                let (cpu, [out, residual, x]) = self.apart::<E, 3>([*out, *residual, *x]);
                add_rms_norm(cpu, out, row, residual, x, gain.as_slice(), *eps);
            }
            Call::LayerNorm { out, x, norm } => {
                let (cpu, [out, x]) = self.apart::<E, 2>([*out, *x]);
                layer_norm(cpu, out, x, borrowed(norm));
            }
            Call::AddLayerNorm { out, residual, x, norm } => {
                let (cpu, [out, residual, x]) = self.apart::<E, 3>([*out, *residual, *x]);
                add_layer_norm(cpu, out, residual, x, borrowed(norm));
            }
            Call::Linear { out, x, weight, bias, out_format } => {
                let row = self.row::<E>(*x, weight.shape().1);
                let pieces = self.arena.get_disjoint_mut([self.range(*out), self.range(*x)]);
                let [out, x] = pieces.expect("a call's buffers lie apart");
                match (weight, out_format) {
                    (Weight::Float32(weight), _) => product::<f32, f32>(self.cpu, out, x, row, weight, bias.as_ref()),
                    (Weight::BFloat16(weight), Format::BFloat16) => {
                        product::<Bf16, Bf16>(self.cpu, out, x, row, weight, bias.as_ref());
                    }
                    (Weight::BFloat16(weight), Format::Float32) => {
                        product::<Bf16, f32>(self.cpu, out, x, row, weight, bias.as_ref());
                    }
                    (Weight::Quantized(_, weight), Format::Float32) => {
                        quantized_product::<E, f32>(self.cpu, out, x, weight, bias.as_ref());
                    }
                    (Weight::Quantized(_, weight), Format::BFloat16) => {
                        quantized_product::<E, Bf16>(self.cpu, out, x, weight, bias.as_ref());
                    }
                }
            }
            Call::GatedLinear { out, x, weight, bias, activation } => {
                let (columns, depth) = weight.shape();
                let (out_row, row) = (self.row::<Bf16>(*out, columns / 2), self.row::<Bf16>(*x, depth));
                let pieces = self.arena.get_disjoint_mut([self.range(*out), self.range(*x)]);
                let [out, x] = pieces.expect("a call's buffers lie apart").map(bytemuck::cast_slice_mut);
                let Weight::BFloat16(weight) = weight else { unreachable!("no other weight can be gated") };
                let bias = bias.as_ref().map(super::Lent::as_slice);
                linear_gated(self.cpu, out, out_row, Spaced { data: x, row }, weight, bias, *activation);
            }
            Call::GateMul { out, gate_up, width, activation } => {
                let row = self.row::<E>(*out, *width);
                let (cpu, [out, gate_up]) = self.apart::<E, 2>([*out, *gate_up]);
                gate_mul(cpu, out, row, gate_up, *width, *activation);
            }
            Call::Activate { x, function, format } => match format {
                Format::Float32 => {
                    let (cpu, [x]) = self.apart::<f32, 1>([*x]);
                    activate(cpu, x, *function);
                }
                Format::BFloat16 => {
                    let (cpu, [x]) = self.apart::<Bf16, 1>([*x]);
                    activate(cpu, x, *function);
                }
            },
            Call::Add { residual, x } => {
                let (cpu, [residual, x]) = self.apart::<E, 2>([*residual, *x]);
                add(cpu, residual, x);
            }
            Call::Scale { x, factor, format } => match format {
                Format::Float32 => {
                    let (cpu, [x]) = self.apart::<f32, 1>([*x]);
                    scale(cpu, x, *factor);
                }
                Format::BFloat16 => {
                    let (cpu, [x]) = self.apart::<Bf16, 1>([*x]);
                    scale(cpu, x, *factor);
                }
            },
            Call::SoftCap { x, cap } => {
                let (cpu, [x]) = self.apart::<f32, 1>([*x]);
                soft_cap(cpu, x, *cap);
            }
            Call::RopeKvWrite { layer, .. } => match self.layers[*layer].shape.format {
                CacheFormat::Plain => self.rope_kv_write::<E, E>(call)?,
                CacheFormat::Codes => self.rope_kv_write::<E, i8>(call)?,
            },
            Call::PagedAttention { layer, .. } => match self.layers[*layer].shape.format {
                CacheFormat::Plain => self.paged_attention::<E, E>(call)?,
                CacheFormat::Codes => self.paged_attention::<E, i8>(call)?,
            },
            Call::CallBack { .. } => unreachable!("answered by whoever runs the program, in a step of {counts:?}"),
        }
        Ok(())
    }

    fn rope_kv_write<E: Element, H: Held<E>>(&mut self, call: &Call) -> Result<(), Refusal> {
        let Call::RopeKvWrite { out, q, k, v, norm, angles, rotated, pairs, layer, kind, heads } = call else {
            unreachable!("asked of this call alone")
        };
        let ranges = [q, k, v].map(|(id, _)| self.range(*id));
        let (out, reads) = beside(self.arena, self.range(*out), ranges);
        let [q_data, k_data, v_data] = reads.map(bytemuck::cast_slice::<u8, E>);
        let Layer { k: k_cache, v: v_cache, shape } = &mut self.layers[*layer];
        let args = RopeKvWrite {
            out: bytemuck::cast_slice_mut(out),
            q: (q_data, q.1),
            k: (k_data, k.1),
            v: (v_data, v.1),
            norm: norm.as_ref().map(borrowed_of_heads),
            cos_sin: angles.as_slice(),
            rotated: *rotated,
            pairs: *pairs,
            positions: self.rows.positions,
            k_cache: k_cache.as_mut_slice::<H>(),
            v_cache: v_cache.as_mut_slice(),
            cache: *shape,
            kv_slots: self.rows.of_kind(*kind).0,
            heads: *heads,
        };
        rope_kv_write(self.cpu, args)
    }

    fn paged_attention<E: Element, H: Held<E>>(&mut self, call: &Call) -> Result<(), Refusal> {
        let Call::PagedAttention { out, q, layer, kind, heads, scale, is_whole, window, soft_cap, sinks, slopes } =
            call
        else {
            unreachable!("asked of this call alone")
        };
        let out_row = self.row::<E>(*out, heads * self.layers[*layer].shape.dim);
        let pieces = self.arena.get_disjoint_mut([self.range(*out), self.range(*q)]);
        let [out, q] = pieces.expect("a call's buffers lie apart").map(bytemuck::cast_slice_mut::<u8, E>);
        let Layer { k, v, shape } = &self.layers[*layer];
        let args = Attention {
            out,
            out_row,
            q,
            k_cache: k.as_slice::<H>(),
            v_cache: v.as_slice(),
            cache: *shape,
            block_table: self.rows.of_kind(*kind).1,
            row_offsets: self.rows.row_offsets,
            row_starts: self.rows.row_starts,
            heads: *heads,
            scale: *scale,
            sight: Sight {
                is_whole: *is_whole,
                window: *window,
                soft_cap: *soft_cap,
                sinks: sinks.as_ref().map(super::Lent::as_slice),
                slopes: slopes.as_ref().map(super::Lent::as_slice),
            },
        };
        paged_attention(self.cpu, args)
    }

    /// Several buffers at once, as elements, and what runs a kernel over them.
    fn apart<E: Element, const N: usize>(&mut self, ids: [BufferId; N]) -> (&mut Cpu, [&mut [E]; N]) {
        let ranges = ids.map(|id| self.range(id));
        let pieces = self.arena.get_disjoint_mut(ranges).expect("a call's buffers lie apart");
        (self.cpu, pieces.map(bytemuck::cast_slice_mut))
    }
}

/// One piece of the arena to write, and others to read, which may be the same as each other.
fn beside<const N: usize>(arena: &mut [u8], written: Range<usize>, read: [Range<usize>; N]) -> (&mut [u8], [&[u8]; N]) {
    let (before, rest) = arena.split_at_mut(written.start);
    let (piece, behind) = rest.split_at_mut(written.len());
    let (before, behind): (&[u8], &[u8]) = (before, behind);
    let read = read.map(|range| match range.start.checked_sub(written.end) {
        Some(start) => &behind[start..][..range.len()],
        None => &before[range],
    });
    (piece, read)
}

fn borrowed_of_heads(norm: &LentHeadNorm) -> HeadNorm<'_> {
    HeadNorm { q_gain: norm.q_gain.as_slice(), k_gain: norm.k_gain.as_slice(), eps: norm.eps }
}

fn borrowed(norm: &LentNorm) -> LayerNorm<'_> {
    let bias = norm.bias.as_ref().map(super::Lent::as_slice);
    LayerNorm { gain: norm.gain.as_slice(), bias, eps: norm.eps, group: norm.group }
}

fn product<E: Element, O: Element>(
    cpu: &mut Cpu,
    out: &mut [u8],
    x: &[u8],
    row: usize,
    weight: &PackedWeight<E>,
    bias: Option<&super::Lent>,
) {
    let (out, x) = (bytemuck::cast_slice_mut::<u8, O>(out), bytemuck::cast_slice::<u8, E>(x));
    linear_spaced(cpu, out, Spaced { data: x, row }, weight, bias.map(|bias| bias.as_slice()));
}

fn quantized_product<E: Element, O: Element>(
    cpu: &mut Cpu,
    out: &mut [u8],
    x: &[u8],
    weight: &QuantizedWeight,
    bias: Option<&super::Lent>,
) {
    let (out, x) = (bytemuck::cast_slice_mut::<u8, O>(out), bytemuck::cast_slice::<u8, E>(x));
    linear_quantized(cpu, out, x, weight, bias.map(|bias| bias.as_slice()));
}

/// out[t] = x[t][from..from + width]: the copy that cuts queries and keys out of one product where a model norms them otherwise than each
/// head by itself.
fn columns<E: Element>(cpu: &mut Cpu, out: &mut [E], x: &[E], from: usize, width: usize, stride: usize) {
    assert!(width > 0 && from + width <= stride && out.len().is_multiple_of(width));
    let rows = out.len() / width;
    assert_eq!(x.len(), rows * stride);
    let parts = cpu.parts(rows, out.len());
    let out = Shared::new(out);
    cpu.pool.run(parts, |thread| {
        let rows = part(rows, parts, thread);
        // SAFETY: parts do not overlap.
        let out = unsafe { out.piece(rows.start * width..rows.end * width) };
        for (out, row) in out.chunks_exact_mut(width).zip(rows) {
            out.copy_from_slice(&x[row * stride + from..][..width]);
        }
    });
}

//! What a program is made of: calls of kernels over numbered buffers, and what each call reads, writes and costs.

use std::fmt;
use std::sync::Arc;

use super::lent::Lent;
use crate::activate::Function;
use crate::element::{Bf16, Format};
use crate::gate::Activation;
use crate::linear::{PackedWeight, QuantizedWeight, Scheme};
use crate::pool_rows::Pooling;
use crate::rope::{HeadsAt, Pairs};

/// What a size grows with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Per {
    /// Nothing: it is the same in every step.
    Step,
    /// The step's tokens.
    Token,
    /// The rows that draw a token.
    Draw,
}

/// How many tokens and draws one step has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of all rows.
    pub tokens: usize,
    /// Rows that draw.
    pub draws: usize,
}

/// So many bytes for each of what it grows with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// Bytes.
    pub each: usize,
    /// Of what.
    pub per: Per,
}

impl Size {
    /// Bytes in a step of these counts.
    pub fn bytes(self, counts: Counts) -> usize {
        self.each
            * match self.per {
                Per::Step => 1,
                Per::Token => counts.tokens,
                Per::Draw => counts.draws,
            }
    }
}

/// Which of a program's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub usize);

/// A packed weight, shared with whoever packed it.
#[derive(Clone)]
pub enum Weight {
    /// float32.
    Float32(Arc<PackedWeight<f32>>),
    /// bfloat16.
    BFloat16(Arc<PackedWeight<Bf16>>),
    /// 4 or 8 bits, for activations of this format.
    Quantized(Format, Arc<QuantizedWeight>),
}

impl Weight {
    /// N and K.
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Self::Float32(weight) => (weight.columns(), weight.depth()),
            Self::BFloat16(weight) => (weight.columns(), weight.depth()),
            Self::Quantized(_, weight) => (weight.columns(), weight.depth()),
        }
    }

    /// Bytes that rows of activations should have room for behind them: see [`PackedWeight::room_behind_rows`].
    pub(super) fn room_behind_rows(&self) -> usize {
        match self {
            Self::BFloat16(weight) => weight.room_behind_rows() * size_of::<Bf16>(),
            Self::Float32(_) | Self::Quantized(..) => 0,
        }
    }

    /// Whether its halves can be gated where they are computed: see [`PackedWeight::can_be_gated`].
    pub(super) fn can_be_gated(&self) -> bool {
        matches!(self, Self::BFloat16(weight) if weight.can_be_gated())
    }

    /// How much memory it takes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Float32(weight) => weight.bytes(),
            Self::BFloat16(weight) => weight.bytes(),
            Self::Quantized(_, weight) => weight.bytes(),
        }
    }

    /// Of the activations that it multiplies.
    pub fn format(&self) -> Format {
        match self {
            Self::Float32(_) => Format::Float32,
            Self::BFloat16(_) => Format::BFloat16,
            Self::Quantized(format, _) => *format,
        }
    }

    /// How it is quantised.
    pub fn scheme(&self) -> Option<Scheme> {
        match self {
            Self::Float32(_) | Self::BFloat16(_) => None,
            Self::Quantized(_, weight) => Some(weight.scheme()),
        }
    }
}

/// Which of the step's arrays says what row of a table a token gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOf {
    /// The token's id.
    Id,
    /// Where it stands in its request.
    Position,
}

/// What a layer norm is besides its input: see [`crate::LayerNorm`].
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "as there")]
pub struct LentNorm {
    pub gain: Lent,
    pub bias: Option<Lent>,
    pub eps: f32,
    pub group: usize,
}

/// See [`crate::HeadNorm`].
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "as there")]
pub struct LentHeadNorm {
    pub q_gain: Lent,
    pub k_gain: Lent,
    pub eps: f32,
}

/// One kernel and its arguments. Formats are the program's, but for the result of `Linear` and for norms' gains and
/// biases, which are float32.
#[derive(Clone)]
#[allow(missing_docs, reason = "the arguments are those of the kernels of the same names")]
pub enum Call {
    /// out[t] = table[ids[t]], or table[positions[t]]
    Embed {
        out: BufferId,
        table: Lent,
        row: RowOf,
        width: usize,
    },
    /// out[t] = table[ids[t]] · scale, where the table is a head's weight
    EmbedPacked {
        out: BufferId,
        table: Weight,
        scale: f32,
    },
    /// out[t] = table[1] behind the row's first separator, else table[0]
    EmbedSegments {
        out: BufferId,
        table: Lent,
        separator: Option<i32>,
        width: usize,
    },
    /// out[d] = the pooled row of `drawn_at[d]`; of the program's format or, as its result, float32.
    PoolRows {
        out: BufferId,
        x: BufferId,
        width: usize,
        pooling: Pooling,
        out_format: Format,
    },
    /// out[d] = x[drawn_at[d]]
    Pick {
        out: BufferId,
        x: BufferId,
        width: usize,
    },
    /// out = 0
    Clear {
        out: BufferId,
    },
    /// out[t] = x[t][from..from + width], rows of x being `stride` apart
    Columns {
        out: BufferId,
        x: BufferId,
        from: usize,
        width: usize,
        stride: usize,
    },
    /// `out` may be `x`.
    RmsNorm {
        out: BufferId,
        x: BufferId,
        gain: Lent,
        eps: f32,
    },
    AddRmsNorm {
        out: BufferId,
        residual: BufferId,
        x: BufferId,
        gain: Lent,
        eps: f32,
    },
    LayerNorm {
        out: BufferId,
        x: BufferId,
        norm: LentNorm,
    },
    AddLayerNorm {
        out: BufferId,
        residual: BufferId,
        x: BufferId,
        norm: LentNorm,
    },
    Linear {
        out: BufferId,
        x: BufferId,
        weight: Weight,
        bias: Option<Lent>,
        out_format: Format,
    },
    /// out = act(gate) · up, where gate and up are halves of `Linear`'s result.
    GatedLinear {
        out: BufferId,
        x: BufferId,
        weight: Weight,
        bias: Option<Lent>,
        activation: Activation,
    },
    GateMul {
        out: BufferId,
        gate_up: BufferId,
        width: usize,
        activation: Activation,
    },
    /// x = function(x); of the program's format or, of its result, float32.
    Activate {
        x: BufferId,
        function: Function,
        format: Format,
    },
    /// residual += x
    Add {
        residual: BufferId,
        x: BufferId,
    },
    /// x *= factor; of the program's format or, of logits, float32.
    Scale {
        x: BufferId,
        factor: f32,
        format: Format,
    },
    /// Of logits.
    SoftCap {
        x: BufferId,
        cap: f32,
    },
    /// `layer` is the number of a pair of caches, `kind` that of the layers' kind: whose KV slots.
    RopeKvWrite {
        out: BufferId,
        q: (BufferId, HeadsAt),
        k: (BufferId, HeadsAt),
        v: (BufferId, HeadsAt),
        norm: Option<LentHeadNorm>,
        angles: Lent,
        rotated: usize,
        pairs: Pairs,
        layer: usize,
        kind: usize,
        heads: usize,
    },
    /// As above: whose block table.
    PagedAttention {
        out: BufferId,
        q: BufferId,
        layer: usize,
        kind: usize,
        heads: usize,
        scale: f32,
        is_whole: bool,
        window: Option<usize>,
        soft_cap: Option<f32>,
        sinks: Option<Lent>,
        slopes: Option<Lent>,
    },
    /// Something that has no kernel: whoever runs the program does it.
    CallBack {
        name: String,
        reads: Vec<BufferId>,
        writes: Vec<BufferId>,
    },
}

/// The kernel's name and the sizes that its buffers do not show.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Embed { row: RowOf::Position, width, .. } => write!(f, " {width} by position"),
            Self::EmbedPacked { table, .. } => write!(f, " {} of the head's", table.shape().1),
            Self::EmbedSegments { width, .. } => write!(f, " {width} by segment"),
            Self::PoolRows { width, pooling, .. } => write!(f, " {width} {}", pooling.name()),
            Self::Embed { width, .. } | Self::Pick { width, .. } | Self::GateMul { width, .. } => write!(f, " {width}"),
            Self::Columns { from, width, stride, .. } => write!(f, " {from}..{} of {stride}", from + width),
            Self::RmsNorm { gain, .. } | Self::AddRmsNorm { gain, .. } => write!(f, " {} B of gain", gain.bytes()),
            Self::LayerNorm { norm, .. } | Self::AddLayerNorm { norm, .. } => {
                let bias = if norm.bias.is_some() { " + bias" } else { "" };
                write!(f, " {} B of gain{bias}, {} together", norm.gain.bytes(), norm.group)
            }
            Self::Activate { function, .. } => write!(f, " {}", function.name()),
            Self::Linear { weight, bias, .. } | Self::GatedLinear { weight, bias, .. } => {
                let (columns, depth) = weight.shape();
                let scheme = weight.scheme().map_or(String::new(), |scheme| format!(" {scheme}"));
                write!(f, "{scheme} {depth} -> {columns}{}", if bias.is_some() { " + bias" } else { "" })
            }
            Self::RopeKvWrite { layer, rotated, pairs, heads, norm, .. } => {
                let normed = if norm.is_some() { " normed," } else { "" };
                let neighbours = if *pairs == Pairs::Neighbours { " by neighbours" } else { "" };
                write!(f, " layer {layer}, {heads} heads,{normed} {rotated} turned{neighbours}")
            }
            Self::PagedAttention { layer, heads, is_whole, window, slopes, .. } => {
                let sides = if *is_whole { ", both sides" } else { "" };
                let slopes = if slopes.is_some() { ", slopes" } else { "" };
                write!(f, " layer {layer}, {heads} heads{sides}{slopes}")?;
                window.map_or(Ok(()), |window| write!(f, ", window {window}"))
            }
            Self::Scale { factor, .. } => write!(f, " {factor}"),
            Self::SoftCap { cap, .. } => write!(f, " {cap}"),
            Self::Clear { .. } | Self::Add { .. } | Self::CallBack { .. } => Ok(()),
        }
    }
}

impl Call {
    /// The kernel's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Embed { .. } => "embed",
            Self::EmbedPacked { .. } => "embed_packed",
            Self::EmbedSegments { .. } => "embed_segments",
            Self::PoolRows { .. } => "pool_rows",
            Self::Pick { .. } => "pick",
            Self::Clear { .. } => "clear",
            Self::Columns { .. } => "columns",
            Self::RmsNorm { .. } => "rms_norm",
            Self::AddRmsNorm { .. } => "add_rms_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::AddLayerNorm { .. } => "add_layer_norm",
            Self::Linear { .. } => "linear",
            Self::GatedLinear { activation: Activation::Silu, .. } => "linear_silu_mul",
            Self::GatedLinear { activation: Activation::Gelu, .. } => "linear_gelu_mul",
            Self::GatedLinear { activation: Activation::GeluErf, .. } => "linear_gelu_erf_mul",
            Self::GateMul { activation: Activation::Silu, .. } => "silu_mul",
            Self::GateMul { activation: Activation::Gelu, .. } => "gelu_mul",
            Self::GateMul { activation: Activation::GeluErf, .. } => "gelu_erf_mul",
            Self::Activate { .. } => "activate",
            Self::Add { .. } => "add",
            Self::Scale { .. } => "scale",
            Self::SoftCap { .. } => "soft_cap",
            Self::RopeKvWrite { .. } => "rope_kv_write",
            Self::PagedAttention { .. } => "paged_attention",
            Self::CallBack { name, .. } => name,
        }
    }

    /// Buffers whose contents it uses.
    pub fn reads(&self) -> Vec<BufferId> {
        match self {
            Self::Embed { .. } | Self::EmbedPacked { .. } | Self::EmbedSegments { .. } | Self::Clear { .. } => vec![],
            Self::Pick { x, .. }
            | Self::PoolRows { x, .. }
            | Self::Columns { x, .. }
            | Self::RmsNorm { x, .. }
            | Self::LayerNorm { x, .. }
            | Self::Linear { x, .. }
            | Self::GatedLinear { x, .. }
            | Self::GateMul { gate_up: x, .. }
            | Self::Activate { x, .. }
            | Self::Scale { x, .. }
            | Self::SoftCap { x, .. }
            | Self::PagedAttention { q: x, .. } => vec![*x],
            Self::AddRmsNorm { residual, x, .. }
            | Self::AddLayerNorm { residual, x, .. }
            | Self::Add { residual, x } => vec![*residual, *x],
            Self::RopeKvWrite { q, k, v, .. } => vec![q.0, k.0, v.0],
            Self::CallBack { reads, .. } => reads.clone(),
        }
    }

    /// Buffers that it writes, as a whole or, if it also reads them, in place.
    pub fn writes(&self) -> Vec<BufferId> {
        match self {
            Self::Embed { out, .. }
            | Self::EmbedPacked { out, .. }
            | Self::EmbedSegments { out, .. }
            | Self::PoolRows { out, .. }
            | Self::Pick { out, .. }
            | Self::Clear { out }
            | Self::Columns { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::LayerNorm { out, .. }
            | Self::Linear { out, .. }
            | Self::GatedLinear { out, .. }
            | Self::GateMul { out, .. }
            | Self::Activate { x: out, .. }
            | Self::Scale { x: out, .. }
            | Self::SoftCap { x: out, .. }
            | Self::Add { residual: out, .. }
            | Self::RopeKvWrite { out, .. }
            | Self::PagedAttention { out, .. } => vec![*out],
            Self::AddRmsNorm { out, residual, .. } | Self::AddLayerNorm { out, residual, .. } => {
                vec![*out, *residual]
            }
            Self::CallBack { writes, .. } => writes.clone(),
        }
    }

    /// Puts other buffers in place of those that it names. Not for call-backs, which are given addresses in an order of their own.
    pub(super) fn rename(&mut self, mut other: impl FnMut(BufferId) -> BufferId) {
        let named = match self {
            Self::Embed { out, .. }
            | Self::EmbedPacked { out, .. }
            | Self::EmbedSegments { out, .. }
            | Self::Clear { out } => vec![out],
            Self::Activate { x, .. } | Self::Scale { x, .. } | Self::SoftCap { x, .. } => vec![x],
            Self::Add { residual, x } => vec![residual, x],
            Self::Pick { out, x, .. }
            | Self::PoolRows { out, x, .. }
            | Self::Columns { out, x, .. }
            | Self::RmsNorm { out, x, .. }
            | Self::LayerNorm { out, x, .. }
            | Self::Linear { out, x, .. }
            | Self::GatedLinear { out, x, .. }
            | Self::GateMul { out, gate_up: x, .. }
            | Self::PagedAttention { out, q: x, .. } => vec![out, x],
            Self::AddRmsNorm { out, residual, x, .. } | Self::AddLayerNorm { out, residual, x, .. } => {
                vec![out, residual, x]
            }
            Self::RopeKvWrite { out, q, k, v, .. } => vec![out, &mut q.0, &mut k.0, &mut v.0],
            Self::CallBack { name, .. } => panic!("call-back {name} keeps its buffers"),
        };
        for id in named {
            *id = other(*id);
        }
    }
}

//! Prompts that come as embeddings (`prompt_embeds`): base64 of a safetensors file with one tensor, read and checked.
//!
//! ```text
//!   8 bytes: how long the header is │ the header: JSON, {"name": {"dtype", "shape", "data_offsets"}} │ the numbers
//! ```
//! Whatever the header claims is compared with what is there before anything is allocated for it. Pickles (`torch.save`) are programs,
//! and never read.

use std::{collections::BTreeMap, fmt::Display, sync::Arc};

use base64::{DecodeError, Engine as _, prelude::BASE64_STANDARD};
use pelton_engine::{CacheScope, Embeds, ModelReport};
use serde::Deserialize;

use super::serving::Serving;
use crate::{
    api::why_no_json,
    error::{ApiError, shortened},
    room::{Place, Room},
};

/// How requests call such prompts.
pub(crate) const PROMPT_EMBEDS: &str = "prompt_embeds";
/// No number is larger: float16 holds no larger one, no model makes one, and the square of one is far from what a float32 holds.
const LARGEST: f32 = 65504.0;

/// Embeddings in the place of a prompt's tokens.
#[derive(Debug, Clone)]
pub struct GivenEmbeds {
    /// Their numbers.
    pub(crate) embeds: Arc<Embeds>,
    /// How the prefix cache tells them apart, without a salt.
    pub(crate) scope: CacheScope,
}

/// Room for embeddings, as long as their prompts wait or run.
fn take(room: &Room, bytes: usize) -> Result<Place, ApiError> {
    room.take(bytes).ok_or_else(|| ApiError::NoRoom {
        reason: format!(
            "`{PROMPT_EMBEDS}` take {bytes} bytes, and prompts that wait or run leave {} of {}; try again when some have ended",
            room.free(),
            room.all()
        ),
    })
}

impl Serving {
    /// Reads embeddings. `param`: what the request calls them.
    pub(super) fn given_embeds(&self, param: &str, base64: &str) -> Result<GivenEmbeds, ApiError> {
        let conflict = |reason: &str| ApiError::Conflict { param: param.to_owned(), reason: reason.to_owned() };
        if !self.limits.prompt_embeds {
            return Err(conflict("is not taken by this server; its operator may allow it by `--enable-prompt-embeds`"));
        }
        let model = self.ready()?;
        if model.embed_width == 0 {
            return Err(conflict("cannot be used: the served model takes no embeddings"));
        }
        let embeds = Arc::new(read(param, base64, &model, &self.embeds_room)?);
        let scope = self.engine.scope_of(&embeds, &model);
        Ok(GivenEmbeds { embeds, scope })
    }
}

/// What the header says of a tensor.
#[derive(Debug, Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Formats of numbers, and bytes of one.
const DTYPES: [(&str, usize); 3] = [("F32", 4), ("BF16", 2), ("F16", 2)];

fn read(param: &str, base64: &str, model: &ModelReport, room: &Room) -> Result<Embeds, ApiError> {
    let width = model.embed_width as usize;
    let wrong = |got: &dyn Display| {
        let allowed =
            format!("base64 of a safetensors file with one tensor of shape [tokens, {width}] in F32, BF16 or F16");
        ApiError::invalid(param, got, allowed)
    };
    let file = BASE64_STANDARD
        .decode(base64)
        .map_err(|error| wrong(&format_args!("no base64 ({})", why_no_base64(&error))))?;
    let (tensor, data) = opened(&file).map_err(|why| match &file[..] {
        // The first byte of safetensors may be any.
        [b'P', b'K', ..] | [0x80, ..] => {
            let instead = "safetensors, which run no code: base64 of `safetensors.torch.save({\"embeds\": tensor})`";
            ApiError::invalid(param, "a pickle, as `torch.save` writes it", instead)
        }
        _ => wrong(&why),
    })?;
    let rows = match tensor.shape[..] {
        [rows, columns] if rows > 0 && columns == width as u64 => rows,
        ref shape => return Err(wrong(&format_args!("a tensor of shape {shape:?}"))),
    };
    if rows >= u64::from(model.max_model_len) {
        let limit = u64::from(model.max_model_len);
        return Err(ApiError::PromptTooLong { param: param.to_owned(), prompt: rows, limit });
    }
    let Some(&(dtype, size)) = DTYPES.iter().find(|(name, _)| *name == tensor.dtype) else {
        return Err(wrong(&format_args!("a tensor of {}", shortened(&tensor.dtype))));
    };
    let count = rows as usize * width; // below 2^20 · 2^16
    if tensor.data_offsets != [0, data.len() as u64] || data.len() != count * size {
        let (at, bytes) = (tensor.data_offsets, data.len());
        return Err(wrong(&format_args!("a tensor of {count} numbers at bytes {at:?} of {bytes}")));
    }
    let held = take(room, count * size_of::<f32>())?;
    let values = match dtype {
        "F32" => numbers(data, f32::from_le_bytes),
        "BF16" => numbers(data, |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)),
        _ => numbers(data, |bytes| of_half(u16::from_le_bytes(bytes))),
    };
    let is_usual = |value: &f32| value.abs() <= LARGEST; // NaN is not
    if let Some(at) = values.iter().position(|value| !is_usual(value)) {
        let got = format!("a tensor with {} in row {}", values[at], at / width);
        return Err(ApiError::invalid(param, got, format!("numbers from -{LARGEST} to {LARGEST}")));
    }
    Ok(Embeds::new(model.embed_width, values, Some(held.into_permit())))
}

fn why_no_base64(error: &DecodeError) -> String {
    match error {
        DecodeError::InvalidByte(at, _) => format!("the character after {at} bytes is none of it"),
        DecodeError::InvalidLastSymbol(at, _) => format!("the character after {at} bytes cannot be the last one"),
        DecodeError::InvalidLength(length) => format!("{length} characters do not make whole bytes"),
        DecodeError::InvalidPadding => "it has to be filled up with `=` to a multiple of four characters".to_owned(),
    }
}

/// The only tensor of a file, and what stands behind the header.
fn opened(file: &[u8]) -> Result<(Tensor, &[u8]), String> {
    let cut = || "a file that ends within its header".to_owned();
    let (length, behind) = file.split_first_chunk::<8>().ok_or_else(cut)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| cut())?;
    let (header, data) = behind.split_at_checked(length).ok_or_else(cut)?;
    let header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header)
        .map_err(|error| format!("a file whose header is no JSON object ({})", why_no_json(&error)))?;
    let mut tensors: Vec<_> = header.into_iter().filter(|(name, _)| name != "__metadata__").collect();
    let count = tensors.len();
    let Some((_, tensor)) = tensors.pop().filter(|_| count == 1) else {
        return Err(format!("a file of {count} tensors"));
    };
    let tensor = Tensor::deserialize(tensor)
        .map_err(|_| "a file whose header does not give `dtype`, `shape` and `data_offsets` of its tensor")?;
    Ok((tensor, data))
}

fn numbers<const N: usize>(data: &[u8], number: impl Fn([u8; N]) -> f32) -> Box<[f32]> {
    data.chunks_exact(N).map(|bytes| number(bytes.try_into().expect("so many"))).collect()
}

/// A float16, which a float32 holds exactly.
fn of_half(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2.0_f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2.0_f32.powi(exponent - 25),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests;

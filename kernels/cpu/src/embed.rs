//! out[t] = table[ids[t]], or the row of a text's first or second segment: copied, so exact in every format. A table may lie packed, as
//! the weight of the head that shares it.

use bytemuck::Pod;

use crate::Cpu;
use crate::element::Element;
use crate::error::{Refusal, check_indices, check_offsets};
use crate::linear::PackedWeight;
use crate::split::{Shared, part};

/// `out`: `[tokens, width]`; `table`: `[vocabulary, width]`; `ids`: `[tokens]`, each below the vocabulary's size.
pub fn embed<E: Pod + Send + Sync>(
    cpu: &mut Cpu,
    out: &mut [E],
    table: &[E],
    ids: &[i32],
    width: usize,
) -> Result<(), Refusal> {
    assert!(width > 0 && table.len().is_multiple_of(width) && out.len() == ids.len() * width);
    check_indices("ids", ids, table.len() / width)?;
    let parts = cpu.parts(ids.len(), out.len());
    let out = Shared::new(out);
    cpu.pool.run(parts, |thread| {
        let tokens = part(ids.len(), parts, thread);
        // SAFETY: parts do not overlap.
        let out = unsafe { out.piece(tokens.start * width..tokens.end * width) };
        for (out, &id) in out.chunks_exact_mut(width).zip(&ids[tokens]) {
            out.copy_from_slice(&table[id as usize * width..][..width]);
        }
    });
    Ok(())
}

/// The same of a table that was packed as a head's weight; each number times `scale`, which is rounded to the format, as the product is.
///
/// `out`: `[tokens, table.depth()]`; `ids`: `[tokens]`, each below `table.columns()`.
pub fn embed_packed<E: Element>(
    cpu: &mut Cpu,
    out: &mut [E],
    table: &PackedWeight<E>,
    ids: &[i32],
    scale: f32,
) -> Result<(), Refusal> {
    /// What a number of a packed row costs, in copied ones: its neighbours lie a cache line and more apart.
    const GATHERED: usize = 8;
    let (width, scale) = (table.depth(), E::from_f32(scale).to_f32());
    assert!(table.suits(cpu.isa) && out.len() == ids.len() * width);
    check_indices("ids", ids, table.columns())?;
    let parts = cpu.parts(ids.len(), GATHERED * out.len());
    let out = Shared::new(out);
    cpu.pool.run(parts, |thread| {
        let tokens = part(ids.len(), parts, thread);
        // SAFETY: parts do not overlap.
        let out = unsafe { out.piece(tokens.start * width..tokens.end * width) };
        for (out, &id) in out.chunks_exact_mut(width).zip(&ids[tokens]) {
            table.unpack(id as usize, out);
            if scale != 1.0 {
                out.iter_mut().for_each(|x| *x = E::from_f32(x.to_f32() * scale));
            }
        }
    });
    Ok(())
}

/// `out[at[e]] = values[e] · scale`, rounded to the format before and after the product: what is given in the place of rows of a table.
///
/// `out`: `[tokens, width]`; `values`: `[at, width]`. Few tokens of a step, each copied once: not worth a thread.
pub(crate) fn place_embeds<E: Element>(
    out: &mut [E],
    at: &[i32],
    values: &[f32],
    scale: f32,
    width: usize,
) -> Result<(), Refusal> {
    assert!(width > 0 && values.len() == at.len() * width, "frames have the model's width");
    check_indices("embeds", at, out.len() / width)?;
    for (&at, values) in at.iter().zip(values.chunks_exact(width)) {
        for (out, &value) in out[at as usize * width..][..width].iter_mut().zip(values) {
            *out = E::from_f32(value);
            if scale != 1.0 {
                *out = E::from_f32(out.to_f32() * scale);
            }
        }
    }
    Ok(())
}

/// `out[t] = table[1]` where t stands behind its row's first `separator`, else `table[0]`: what models of pairs add to each token.
///
/// A text that ends with its only separator has one segment. `table`: `[segments, width]`; with one segment nobody looks for
/// separators. `row_offsets`: `[rows + 1]`; row r has the tokens `row_offsets[r]..row_offsets[r + 1]`.
pub fn embed_segments<E: Pod + Send + Sync>(
    cpu: &mut Cpu,
    out: &mut [E],
    table: &[E],
    ids: &[i32],
    row_offsets: &[i32],
    separator: Option<i32>,
    width: usize,
) -> Result<(), Refusal> {
    let mut segments = vec![0; ids.len()];
    if let Some(separator) = separator {
        check_offsets(row_offsets, ids.len())?;
        for pair in row_offsets.windows(2) {
            let row = pair[0] as usize..pair[1] as usize;
            let first = ids[row.clone()].iter().position(|&id| id == separator).unwrap_or(row.len());
            segments[(row.start + first + 1).min(row.end)..row.end].fill(1);
        }
    }
    embed(cpu, out, table, &segments, width)
}

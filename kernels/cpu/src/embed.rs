//! out[t] = table[ids[t]]: copied, so exact in every format.

use bytemuck::Pod;

use crate::Cpu;
use crate::error::{Refusal, check_indices};
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

//! One vector for a whole row of tokens: the first token's, the last one's, or the mean of all.
//!
//! A mean is summed in float32, token by token in their order, and divided once: one accumulator for each column, so a row's
//! bits are the same in every batch and on any number of threads.

use crate::Cpu;
use crate::element::Element;
use crate::error::{Refusal, check_indices, check_offsets};
use crate::split::{Shared, part};

/// What a row is reduced to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Its first token.
    First,
    /// Its last token.
    Last,
    /// The mean of all its tokens.
    Mean,
}

impl Pooling {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::First, Self::Last, Self::Mean];

    /// The name that `pelton_kernels.ops` has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Last => "last",
            Self::Mean => "mean",
        }
    }
}

/// `out[d]` = the pooled row of x whose tokens are those around `at[d]`. `out`: `[at, width]`; `x`: `[tokens, width]`;
/// `row_offsets`: `[rows + 1]`, row r having the tokens `row_offsets[r]..row_offsets[r + 1]`.
pub fn pool_rows<E: Element, O: Element>(
    cpu: &mut Cpu,
    out: &mut [O],
    x: &[E],
    row_offsets: &[i32],
    at: &[i32],
    width: usize,
    pooling: Pooling,
) -> Result<(), Refusal> {
    assert!(width > 0 && x.len().is_multiple_of(width) && out.len() == at.len() * width);
    let tokens = x.len() / width;
    check_offsets(row_offsets, tokens)?;
    check_indices("at", at, tokens)?;
    let row_of = |at: i32| {
        let behind = row_offsets.partition_point(|&offset| offset <= at);
        row_offsets[behind - 1] as usize..row_offsets[behind] as usize
    };
    let work: usize = if pooling == Pooling::Mean { at.iter().map(|&at| row_of(at).len()).sum() } else { at.len() };
    let parts = cpu.parts(at.len(), work * width);
    let out = Shared::new(out);
    cpu.pool.run(parts, |thread| {
        let rows = part(at.len(), parts, thread);
        // SAFETY: parts do not overlap.
        let out = unsafe { out.piece(rows.start * width..rows.end * width) };
        let mut sums = vec![0.0_f32; width];
        for (out, &at) in out.chunks_exact_mut(width).zip(&at[rows]) {
            let row = row_of(at);
            let pooled = match pooling {
                Pooling::First => row.start..row.start + 1,
                Pooling::Last => row.end - 1..row.end,
                Pooling::Mean => row,
            };
            let count = pooled.len() as f32;
            sums.fill(0.0);
            for token in x[pooled.start * width..pooled.end * width].chunks_exact(width) {
                for (sum, value) in sums.iter_mut().zip(token) {
                    *sum += value.to_f32();
                }
            }
            for (out, sum) in out.iter_mut().zip(&sums) {
                *out = O::from_f32(sum / count);
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bf16, Isa};

    /// Rows of 2, 1 and 3 tokens, 3 columns wide.
    fn pooled<E: Element, O: Element>(threads: usize, at: &[i32], pooling: Pooling) -> Vec<f32> {
        let x: Vec<E> = (0..18).map(|number| E::from_f32(number as f32)).collect();
        let mut out = vec![O::from_f32(f32::NAN); at.len() * 3];
        let mut cpu = Cpu { grain: 1, ..Cpu::new(Isa::best(), threads) };
        pool_rows(&mut cpu, &mut out, &x, &[0, 2, 3, 6], at, 3, pooling).unwrap();
        out.into_iter().map(Element::to_f32).collect()
    }

    #[test]
    fn a_row_is_its_first_its_last_or_the_mean_of_all_its_tokens() {
        for (pooling, of_first, of_last) in
            [(Pooling::First, 0.0, 9.0), (Pooling::Last, 3.0, 15.0), (Pooling::Mean, 1.5, 12.0)]
        {
            let expected: Vec<f32> = [of_first, of_last].iter().flat_map(|&v| [v, v + 1.0, v + 2.0]).collect();
            for threads in [1, 2] {
                assert_eq!(pooled::<f32, f32>(threads, &[1, 5], pooling), expected);
                assert_eq!(pooled::<Bf16, f32>(threads, &[1, 5], pooling), expected);
                assert_eq!(pooled::<Bf16, Bf16>(threads, &[1, 5], pooling), expected);
            }
            assert_eq!(pooled::<f32, f32>(1, &[2], pooling), [6.0, 7.0, 8.0]);
        }
    }

    #[test]
    fn a_mean_is_summed_wide_and_in_order() {
        // In bfloat16 a sum of 256 ones would stay at 256; from behind, 2^24 would swallow each one.
        let mut x = vec![Bf16::from_f32(1.0); 600];
        let mut out = [0.0_f32];
        let mut cpu = Cpu::new(Isa::best(), 1);
        pool_rows(&mut cpu, &mut out, &x, &[0, 600], &[599], 1, Pooling::Mean).unwrap();
        assert_eq!(out, [1.0]);
        x[599] = Bf16::from_f32(16_777_216.0);
        pool_rows(&mut cpu, &mut out, &x, &[0, 600], &[599], 1, Pooling::Mean).unwrap();
        assert_eq!(out, [(16_777_216.0 + 600.0) / 600.0]);
    }

    #[test]
    fn rows_that_are_not_those_of_x_are_refused() {
        let mut cpu = Cpu::new(Isa::best(), 1);
        let mut pool = |offsets: &[i32], at: i32| {
            pool_rows(&mut cpu, &mut [0.0_f32], &[0.0_f32; 4], offsets, &[at], 1, Pooling::Mean)
                .map_err(|no| no.argument)
        };
        assert_eq!(pool(&[0, 4], 3), Ok(()));
        assert_eq!(pool(&[0, 4], 4), Err("at"));
        assert_eq!(pool(&[0, 3], 2), Err("row_offsets"));
        assert_eq!(pool(&[0, 5, 4], 2), Err("row_offsets"));
    }
}

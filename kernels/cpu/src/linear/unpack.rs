//! A packed weight's columns as they were before they were packed: exact, since nothing that packing does loses a bit.
//!
//! Where a head shares the embedding's table, its packed weight is the only copy: a token's row of the table is a column of the head.

use super::PackedWeight;
use super::pack::Place;
use crate::element::Element;

impl<E: Element> PackedWeight<E> {
    /// All of a column's weights along K, into as many elements.
    pub(crate) fn unpack(&self, column: usize, to: &mut [E]) {
        assert!(column < self.columns() && to.len() == self.depth());
        match self.short() {
            None => {
                for (unit, to) in to.chunks_mut(E::PACK).enumerate() {
                    let Place { stretch, vector, lane } = self.place(column, unit);
                    let weights: &[E] = bytemuck::cast_slice(&self.stretch(stretch)[vector][lane..=lane]);
                    to.copy_from_slice(&weights[..to.len()]);
                }
            }
            Some(short) => {
                let to: &mut [u16] = bytemuck::cast_slice_mut(to);
                let Place { stretch, lane, .. } = self.place(column, 0);
                let exponents = short.exponents(stretch);
                for (unit, to) in to.chunks_mut(E::PACK).enumerate() {
                    let pair = short.pair(stretch, self.place(column, unit).vector, lane, exponents);
                    to.copy_from_slice(&pair[..to.len()]);
                }
                for (vector, word, bits) in short.unnamed(stretch) {
                    let unit = self.unit_of(vector);
                    let is_of_column = word / 2 == lane && self.place(column, unit).vector == vector;
                    if let (true, Some(to)) = (is_of_column, to.get_mut(unit * E::PACK + word % 2)) {
                        *to = bits;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::element::Bf16;
    use crate::linear::{Matrix, Stored};
    use crate::{Cpu, Isa};

    /// Bits of any kind; of them `odd` in a thousand have exponents that no panel names.
    fn weights(columns: usize, depth: usize, odd: u32, seed: u32) -> Vec<Bf16> {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        let mut weight = || {
            let exponent = if next() % 1000 < odd { next() % 256 } else { 120 + next() % 4 };
            Bf16((next() as u16 & 0x807f) | (exponent as u16) << 7)
        };
        (0..columns * depth).map(|_| weight()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]

        #[test]
        fn columns_are_what_was_packed(columns in 1..200_usize, depth in 1..300_usize, odd in 0..12_u32, seed: u32) {
            let stored = weights(columns, depth, odd, seed);
            let floats: Vec<f32> = stored.iter().map(|x| x.to_f32()).collect();
            for isa in Isa::available() {
                let mut cpu = Cpu::new(isa, 2);
                let matrix = Matrix::new(vec![Stored::BFloat16(&stored)], depth);
                let kinds = [
                    PackedWeight::pack(&mut cpu, &matrix),
                    PackedWeight::pack_whole(&mut cpu, &matrix),
                    PackedWeight::pack_tiled(&mut cpu, &matrix, true),
                    PackedWeight::pack_tiled(&mut cpu, &matrix, false),
                ];
                let exact = PackedWeight::<f32>::pack(&mut cpu, &matrix);
                for column in 0..columns {
                    for weight in &kinds {
                        let mut row = vec![Bf16(0xffff); depth];
                        weight.unpack(column, &mut row);
                        prop_assert!(row == stored[column * depth..][..depth], "column {column} on {}", isa.name());
                    }
                    let mut row = vec![f32::NAN; depth];
                    exact.unpack(column, &mut row);
                    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    prop_assert_eq!(bits(&row), bits(&floats[column * depth..][..depth]));
                }
            }
        }
    }

    #[test]
    fn exceptions_are_found_in_matrices_that_are_short() {
        let (columns, depth) = (130, 700);
        let stored = weights(columns, depth, 5, 7);
        for isa in Isa::available() {
            let mut cpu = Cpu::new(isa, 1);
            let matrix = Matrix::new(vec![Stored::BFloat16(&stored)], depth);
            let packed = PackedWeight::<Bf16>::pack(&mut cpu, &matrix);
            let tiled = PackedWeight::pack_tiled(&mut cpu, &matrix, true);
            let may_be_short = isa.name().starts_with("avx512") || isa.name() == "amx";
            for (weight, is_short) in [(packed, may_be_short), (tiled, true)] {
                assert_eq!(weight.exceptions().is_some_and(|count| count > 100), is_short, "{}", isa.name());
                for column in 0..columns {
                    let mut row = vec![Bf16(0xffff); depth];
                    weight.unpack(column, &mut row);
                    assert!(row == stored[column * depth..][..depth], "column {column} on {}", isa.name());
                }
            }
        }
    }
}

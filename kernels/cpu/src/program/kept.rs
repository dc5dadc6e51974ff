//! Packed weights as numbers and bytes, so that a file can keep them; and back. Bytes mean something to the instruction set
//! alone that they were packed for: whoever keeps them keeps its name beside them.

use std::sync::Arc;

use super::call::Weight;
use crate::Isa;
use crate::element::Format;
use crate::error::Refusal;
use crate::linear::{Bits, PackedWeight, QuantizedActivations, QuantizedWeight, Scheme};
use crate::memory::Buffer;

const FLOAT32: u64 = 0;
const BFLOAT16: u64 = 1;
const QUANTIZED: u64 = 2;
const SHORT: u64 = 3;
const SHORT_BY_PAGES: u64 = 4;

impl Weight {
    /// What tells how `data` is to be read: kind and sizes; of short weights also their exceptions, of quantised ones the scheme and
    /// the order along K.
    pub fn numbers(&self) -> Vec<u64> {
        let (columns, depth) = self.shape();
        let kind = match self {
            Self::Float32(_) => FLOAT32,
            Self::BFloat16(weight) if weight.exceptions().is_some() => {
                if weight.lies_by_pages() {
                    SHORT_BY_PAGES
                } else {
                    SHORT
                }
            }
            Self::BFloat16(_) => BFLOAT16,
            Self::Quantized(..) => QUANTIZED,
        };
        let mut numbers = vec![kind, columns as u64, depth as u64];
        if let Self::BFloat16(weight) = self {
            numbers.extend(weight.exceptions().map(|count| count as u64));
        }
        if let Self::Quantized(format, weight) = self {
            let Scheme { bits, group, activations } = weight.scheme();
            numbers.extend([
                u64::from(*format == Format::BFloat16),
                u64::from(bits == Bits::Eight),
                group.unwrap_or(0) as u64,
                u64::from(activations == QuantizedActivations::Int8),
                u64::from(weight.has_zeros()),
            ]);
            numbers.extend(weight.order().into_iter().flatten().map(|&at| u64::from(at)));
        }
        numbers
    }

    /// The packed values.
    pub fn data(&self) -> &[u8] {
        match self {
            Self::Float32(weight) => weight.data(),
            Self::BFloat16(weight) => weight.data(),
            Self::Quantized(_, weight) => weight.data(),
        }
    }

    /// The weight that had these numbers and bytes, packed for this instruction set.
    pub fn restored(isa: Isa, numbers: &[u64], data: Buffer) -> Result<Self, Refusal> {
        let got = format!("are {} with {} bytes", shown(numbers), data.len());
        let allowed = || "those of a weight that was packed for this instruction set".to_owned();
        restored(isa, numbers, data).ok_or_else(|| Refusal { argument: "numbers", got, allowed: allowed() })
    }
}

fn restored(isa: Isa, numbers: &[u64], data: Buffer) -> Option<Weight> {
    let (&[kind, columns, depth], rest) = numbers.split_first_chunk::<3>()?;
    let (columns, depth) = (usize::try_from(columns).ok()?, usize::try_from(depth).ok()?);
    let float = |exceptions, data| PackedWeight::restored(isa, columns, depth, exceptions, data);
    match (kind, rest, rest.split_first_chunk::<5>()) {
        (FLOAT32, [], _) => {
            let weight = PackedWeight::restored(isa, columns, depth, None, data)?;
            Some(Weight::Float32(Arc::new(weight)))
        }
        (BFLOAT16, [], _) => Some(Weight::BFloat16(Arc::new(float(None, data)?))),
        (SHORT | SHORT_BY_PAGES, &[exceptions], _) => {
            let weight = float(Some(usize::try_from(exceptions).ok()?), data)?;
            (weight.lies_by_pages() == (kind == SHORT_BY_PAGES)).then(|| Weight::BFloat16(Arc::new(weight)))
        }
        (QUANTIZED, _, Some((&[is_bf16, is_eight, group, is_int8, has_zeros], order))) => {
            let [is_bf16, is_eight, is_int8, has_zeros] = [is_bf16, is_eight, is_int8, has_zeros].map(|flag| flag != 0);
            let scheme = Scheme {
                bits: if is_eight { Bits::Eight } else { Bits::Four },
                group: (group > 0).then_some(usize::try_from(group).ok()?),
                activations: if is_int8 { QuantizedActivations::Int8 } else { QuantizedActivations::Float },
            };
            let order: Vec<u32> = order.iter().map(|&at| u32::try_from(at).ok()).collect::<Option<_>>()?;
            let order = (!order.is_empty()).then_some(order);
            let weight = QuantizedWeight::restored(isa, scheme, [columns, depth], has_zeros, order, data)?;
            let format = if is_bf16 { Format::BFloat16 } else { Format::Float32 };
            Some(Weight::Quantized(format, Arc::new(weight)))
        }
        _ => None,
    }
}

fn shown(numbers: &[u64]) -> String {
    let some = &numbers[..numbers.len().min(8)];
    format!("{some:?}{}", if numbers.len() > some.len() { " …" } else { "" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Codes, Cpu, Matrix, Stored};

    fn copied(weight: &Weight, isa: Isa) -> Weight {
        let mut data = Buffer::zeroed(weight.data().len());
        data.as_mut_slice::<u8>().copy_from_slice(weight.data());
        Weight::restored(isa, &weight.numbers(), data).expect("its own numbers")
    }

    fn weights(cpu: &mut Cpu, columns: usize, depth: usize) -> Vec<Weight> {
        let floats: Vec<f32> = (0..columns * depth).map(|at| ((at * 37 % 101) as f32 - 50.0) / 17.0).collect();
        let matrix = || Matrix::new(vec![Stored::Float32(&floats)], depth);
        let scheme = |bits, group, activations| Scheme { bits, group, activations };
        let float = scheme(Bits::Eight, None, QuantizedActivations::Float);
        let int8 = scheme(Bits::Four, Some(8), QuantizedActivations::Int8);
        let groups = depth.div_ceil(8);
        let codes: Vec<u8> = (0..columns * depth).map(|at| (at * 7 % 16) as u8).collect();
        let (zeros, scales) = (vec![3; columns * groups], vec![0.5; columns * groups]);
        let order: Vec<i32> = (0..depth as i32).rev().collect();
        let codes = Codes { codes: &codes, scales: &scales, zeros: Some(&zeros), order: Some(&order), depth };
        vec![
            Weight::Float32(Arc::new(PackedWeight::pack(cpu, &matrix()))),
            Weight::BFloat16(Arc::new(PackedWeight::pack(cpu, &matrix()))),
            Weight::Quantized(Format::Float32, Arc::new(QuantizedWeight::quantize(cpu, &matrix(), float))),
            Weight::Quantized(Format::BFloat16, Arc::new(QuantizedWeight::quantize(cpu, &matrix(), int8))),
            Weight::Quantized(
                Format::BFloat16,
                Arc::new(QuantizedWeight::from_codes(cpu, &codes, int8).expect("codes")),
            ),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]

        #[test]
        fn a_weight_of_any_size_is_the_same_again(columns in 1..150_usize, depth in 1..70_usize) {
            for isa in Isa::available() {
                for weight in weights(&mut Cpu::new(isa, 2), columns, depth) {
                    let again = copied(&weight, isa);
                    prop_assert_eq!(again.numbers(), weight.numbers());
                    prop_assert!(again.data() == weight.data());
                    prop_assert_eq!(again.scheme(), weight.scheme());
                    prop_assert_eq!((again.shape(), again.bytes(), again.format()), (weight.shape(), weight.bytes(), weight.format()));
                }
            }
        }

        #[test]
        fn other_numbers_are_refused_or_fit_the_bytes(numbers in prop::collection::vec(0..70_u64, 0..12), bytes in 0..5000_usize) {
            if let Ok(weight) = Weight::restored(Isa::best(), &numbers, Buffer::zeroed(bytes)) {
                prop_assert_eq!(weight.data().len(), bytes);
                prop_assert_eq!(&weight.numbers()[..3], &numbers[..3]);
            }
        }
    }

    #[test]
    fn lines_that_lie_otherwise_than_a_class_reads_them_are_refused() {
        let floats: Vec<f32> = (0..128 * 256).map(|at| ((at * 37 % 101) as f32 - 50.0) / 17.0).collect();
        for isa in Isa::available() {
            let matrix = Matrix::new(vec![Stored::Float32(&floats)], 256);
            let weight = Weight::BFloat16(Arc::new(PackedWeight::pack(&mut Cpu::new(isa, 1), &matrix)));
            let mut numbers = weight.numbers();
            let data = |weight: &Weight| {
                let mut data = Buffer::zeroed(weight.data().len());
                data.as_mut_slice::<u8>().copy_from_slice(weight.data());
                data
            };
            assert!(Weight::restored(isa, &numbers, data(&weight)).is_ok());
            if [SHORT, SHORT_BY_PAGES].contains(&numbers[0]) {
                numbers[0] = SHORT + SHORT_BY_PAGES - numbers[0];
                assert!(Weight::restored(isa, &numbers, data(&weight)).is_err(), "{}", isa.name());
            }
        }
    }

    #[test]
    fn weights_are_the_same_again_and_bytes_cut_short_are_refused() {
        for isa in Isa::available() {
            for (columns, depth) in [(70, 30), (330, 300), (200, 900)] {
                for weight in weights(&mut Cpu::new(isa, 1), columns, depth) {
                    assert!(copied(&weight, isa).data() == weight.data());
                    let refused = Weight::restored(isa, &weight.numbers(), Buffer::zeroed(weight.data().len() - 4));
                    assert_eq!(refused.err().expect("too short").argument, "numbers");
                    let may_be_short = isa.name().starts_with("avx512") || isa.name() == "amx";
                    let is_bfloat16 = matches!(weight, Weight::BFloat16(_));
                    let is_large = columns > 70;
                    assert!(
                        !(may_be_short && is_bfloat16 && is_large)
                            || [SHORT, SHORT_BY_PAGES].contains(&weight.numbers()[0])
                    );
                }
            }
        }
    }
}

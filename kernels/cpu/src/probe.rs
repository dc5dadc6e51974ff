//! How fast these threads can read memory: the limit that decoding is measured against, taken in the same run.

use crate::Cpu;
use crate::memory::Buffer;
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::{Shared, part};

/// Memory of its own, laid out as a packed weight is.
pub struct ReadProbe {
    data: Buffer,
}

impl ReadProbe {
    /// `bytes` are rounded up to whole vectors, and touched by the threads that will read them.
    pub fn new(cpu: &mut Cpu, bytes: usize) -> Self {
        let mut data = Buffer::zeroed(bytes.next_multiple_of(size_of::<Lanes<f32>>()));
        let vectors = data.as_mut_slice::<Lanes<f32>>();
        let (len, parts) = (vectors.len(), cpu.threads());
        let vectors = Shared::new(vectors);
        cpu.pool.run(parts, |thread| {
            // SAFETY: parts do not overlap.
            unsafe { vectors.piece(part(len, parts, thread)) }.fill([1.0; LANES]);
        });
        Self { data }
    }

    /// How many bytes one reading takes in.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Reads everything once, each thread its own part from end to end, and returns the sum so that nothing is left out.
    pub fn read(&self, cpu: &mut Cpu) -> f32 {
        let vectors = self.data.as_slice::<Lanes<f32>>();
        let (isa, parts) = (cpu.isa, cpu.threads());
        let mut sums = vec![0.0; parts];
        let shared = Shared::new(&mut sums);
        cpu.pool.run(parts, |thread| {
            let sum = isa.run(Read(&vectors[part(vectors.len(), parts, thread)]));
            // SAFETY: each thread writes its own.
            let own = unsafe { shared.piece(thread..thread + 1) };
            own[0] = sum;
        });
        sums.iter().sum()
    }
}

struct Read<'a>(&'a [Lanes<f32>]);

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat(0.0); 8];
        for vectors in self.0.chunks(sums.len()) {
            simd.prefetch(vectors.as_ptr().cast::<u8>().wrapping_add(4096));
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                *sum = simd.add(*sum, simd.load(vector));
            }
        }
        sums.into_iter().map(|sum| simd.sum(sum)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn everything_is_read_once() {
        for isa in Isa::available() {
            let mut cpu = Cpu::new(isa, 2);
            for vectors in [1_u32, 7, 1000] {
                let probe = ReadProbe::new(&mut cpu, vectors as usize * 64);
                assert_eq!(probe.read(&mut cpu), (vectors * 16) as f32);
                assert_eq!(probe.bytes(), vectors as usize * 64);
            }
        }
    }
}

//! How fast these threads can read memory, copy it, and multiply: the limits that linear layers are measured against, taken in the same
//! run.

use crate::Cpu;
use crate::memory::Buffer;
use crate::simd::{Kernel, LANES, Lanes, Line, Simd};
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

/// Memory that is copied as packing bfloat16 copies it: all is read, and three quarters as much written, past the caches.
pub struct CopyProbe {
    from: Buffer,
    to: Buffer,
}

/// What a round of copying reads, and what it writes.
type Four = [Line; 4];
type Three = [Line; 3];

impl CopyProbe {
    /// `bytes` are rounded up to whole rounds.
    pub fn new(cpu: &mut Cpu, bytes: usize) -> Self {
        let rounds = bytes.div_ceil(size_of::<Four>());
        let [from, to] = [size_of::<Four>(), size_of::<Three>()].map(|size| Buffer::zeroed(rounds * size));
        let mut probe = Self { from, to };
        probe.from.as_mut_slice::<u8>().fill(1);
        probe.copy(cpu); // the threads that write it touch it first
        probe
    }

    /// How many bytes one copying reads.
    pub fn bytes(&self) -> usize {
        self.from.len()
    }

    /// Copies everything once, each thread its own part from end to end.
    pub fn copy(&mut self, cpu: &mut Cpu) {
        let (from, to) = (self.from.as_slice::<Four>(), self.to.as_mut_slice::<Three>());
        let (isa, parts, rounds) = (cpu.isa, cpu.threads(), from.len());
        let to = Shared::new(to);
        cpu.pool.run(parts, |thread| {
            let rounds = part(rounds, parts, thread);
            // SAFETY: parts do not overlap.
            isa.run(Copy(&from[rounds.clone()], unsafe { to.piece(rounds) }));
        });
    }
}

struct Copy<'a>(&'a [Four], &'a mut [Three]);

impl Kernel for Copy<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(from, to) = self;
        for ([first, second, third, fourth], to) in from.iter().zip(to) {
            let mut mixed = *first; // so that the fourth is read too
            for (mixed, fourth) in mixed.0.iter_mut().zip(fourth.0) {
                *mixed ^= fourth;
            }
            for (from, to) in [&mixed, second, third].into_iter().zip(to) {
                simd.stream_line(&from.0, to);
            }
        }
        simd.drain();
    }
}

/// Each thread multiplies codes of 8 bits that stay in registers, `rounds` times as many as a register tile holds. Returns the
/// multiplications and additions of all threads, and a sum so that nothing is left out.
pub fn multiply_codes(cpu: &mut Cpu, rounds: usize) -> (f64, f32) {
    let (isa, parts) = (cpu.isa, cpu.threads());
    let mut sums = vec![0.0; parts];
    let shared = Shared::new(&mut sums);
    cpu.pool.run(parts, |thread| {
        let sum = isa.run(Multiply(rounds));
        // SAFETY: each thread writes its own.
        let own = unsafe { shared.piece(thread..thread + 1) };
        own[0] = sum;
    });
    ((parts * rounds * TILE * LANES * 8) as f64, sums.iter().sum())
}

/// Each thread multiplies tiles that stay in registers, `4 · rounds` times: pairs of bfloat16, or codes of 8 bits. Returns the
/// multiplications and additions of all threads; `None`: the class has no tiles.
pub fn multiply_tiles(cpu: &mut Cpu, of_codes: bool, rounds: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if let Some(amx) = cpu.isa.amx() {
        use crate::amx::{Bf16Pairs, CodeQuads, TILE_ROWS, TILE_WORDS, TileShape};
        let parts = cpu.threads();
        cpu.pool.run(parts, |_| {
            // SAFETY: the only one that this thread has.
            let tiles = unsafe { amx.tiles(TileShape::new(TILE_ROWS, TILE_WORDS)) };
            if of_codes { tiles.in_registers::<CodeQuads>(rounds) } else { tiles.in_registers::<Bf16Pairs>(rounds) }
        });
        let neighbours = if of_codes { 4 } else { 2 };
        return Some((parts * 4 * rounds * TILE_ROWS * LANES * TILE_WORDS * neighbours * 2) as f64);
    }
    let _ = (cpu, of_codes, rounds);
    None
}

/// Independent sums, as in a tile of 6 rows and 4 vectors.
const TILE: usize = 24;

struct Multiply(usize);

impl Kernel for Multiply {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat_i32(0); TILE];
        let codes = simd.splat_i32(0x0102_0301);
        for round in 0..self.0 {
            let x = simd.quad([round as i8, 1, -1, 2]);
            for sum in &mut sums {
                *sum = simd.dot_quads(*sum, codes, x);
            }
        }
        sums.into_iter().map(|sum| simd.sum(simd.to_float(sum))).sum()
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
    fn every_product_is_counted() {
        for isa in Isa::available() {
            let mut cpu = Cpu::new(isa, 2);
            let (operations, sum) = multiply_codes(&mut cpu, 10);
            assert_eq!(operations, f64::from(2 * 10 * 24 * 16 * 8));
            // Of a round r: r + 3 - 2 + 2, in all lanes of all sums.
            assert_eq!(sum, (2 * 24 * 16 * (0..10).map(|round| round + 3).sum::<i32>()) as f32);
        }
    }

    #[test]
    fn tiles_are_counted_where_the_class_has_them() {
        for isa in Isa::available() {
            let mut cpu = Cpu::new(isa, 2);
            for (of_codes, neighbours) in [(false, 2.0), (true, 4.0)] {
                let expected = (isa.name() == "amx").then_some(2.0 * 4.0 * 10.0 * 4096.0 * neighbours * 2.0);
                assert_eq!(multiply_tiles(&mut cpu, of_codes, 10), expected);
            }
        }
    }

    #[test]
    fn everything_is_copied_that_should_be() {
        for isa in Isa::available() {
            let mut cpu = Cpu::new(isa, 2);
            for bytes in [1, 256, 1000, 256 * 100] {
                let mut probe = CopyProbe::new(&mut cpu, bytes);
                assert_eq!((probe.bytes(), probe.to.len()), (bytes.next_multiple_of(256), bytes.div_ceil(256) * 192));
                for (at, byte) in probe.from.as_mut_slice::<u8>().iter_mut().enumerate() {
                    *byte = at as u8;
                }
                probe.to.as_mut_slice::<u8>().fill(7);
                probe.copy(&mut cpu);
                for round in probe.to.as_slice::<[u8; 192]>() {
                    assert!(
                        round.iter().enumerate().all(|(at, &byte)| {
                            byte == if at < 64 { at as u8 ^ (192 + at) as u8 } else { at as u8 }
                        })
                    );
                }
            }
        }
    }

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

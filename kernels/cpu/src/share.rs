//! Work of other crates on the threads that share an op.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::split::{Shared, part};
use crate::{Buffer, Cpu};

/// The least that a system gives.
const PAGE: usize = 4096;

impl Cpu {
    /// `work` for each number of `0..count`, which threads draw one after the other.
    ///
    /// # Panics
    /// When `work` does.
    pub fn share(&mut self, count: usize, work: impl Fn(usize) + Sync) {
        let next = AtomicUsize::new(0);
        self.pool.run(self.threads().min(count), |_| {
            while let Some(number) = Some(next.fetch_add(1, Relaxed)).filter(|&number| number < count) {
                work(number);
            }
        });
    }

    /// Memory for a packed weight of so many bytes, as [`Buffer::for_weights`]. Where threads stay in several memory nodes, each part of it lies
    /// near to the thread that will read it, whoever writes it.
    ///
    /// # Panics
    /// When the system has no memory left, like any allocation.
    pub fn memory_for_weights(&mut self, bytes: usize) -> Buffer {
        let mut buffer = Buffer::for_weights(bytes);
        if self.pool.has_homes() {
            let parts = self.threads();
            let all = Shared::new(buffer.as_mut_slice::<u8>());
            self.pool.run(parts, |thread| {
                // SAFETY: parts do not overlap.
                let own = unsafe { all.piece(part(bytes, parts, thread)) };
                for byte in own.iter_mut().step_by(PAGE) {
                    // SAFETY: a byte of ours, which is 0 already. A write that could be left out would leave the page where it is not.
                    unsafe { std::ptr::from_mut(byte).write_volatile(0) };
                }
            });
        }
        buffer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use crate::{Cpu, Isa};

    #[test]
    fn each_piece_is_drawn_once_however_long_one_takes() {
        for threads in 1..5 {
            let mut cpu = Cpu::new(Isa::best(), threads);
            for count in 0..20 {
                let drawn: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                cpu.share(count, |number| {
                    if number == count / 3 {
                        std::thread::sleep(std::time::Duration::from_micros(300));
                    }
                    drawn[number].fetch_add(1, Relaxed);
                });
                assert!(drawn.iter().all(|drawn| drawn.load(Relaxed) == 1), "{count} with {threads} threads");
            }
        }
    }
}

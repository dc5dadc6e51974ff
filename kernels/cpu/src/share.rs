//! Pieces of work that threads draw.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::Cpu;

impl Cpu {
    /// `work` for each number of `0..count`, with all threads. A thread draws its own first, which are pieces of what it would pack of a weight in
    /// so many equal pieces. Then it draws what others have left, unless their memory is far (NUMA).
    ///
    /// # Panics
    /// When `work` does.
    pub fn share(&mut self, count: usize, work: impl Fn(usize) + Sync) {
        if count < 2 {
            return (0..count).for_each(work);
        }
        let (threads, are_near) = (self.threads(), !self.pool.has_homes());
        let next: Vec<_> = (0..threads).map(|thread| AtomicUsize::new(first(count, threads, thread))).collect();
        self.pool.run(threads, |thread| {
            let others = if are_near { (thread + 1..threads).chain(0..thread) } else { (0..0).chain(0..0) };
            for owner in std::iter::once(thread).chain(others) {
                let end = first(count, threads, owner + 1);
                while let Some(number) = Some(next[owner].fetch_add(1, Relaxed)).filter(|&number| number < end) {
                    work(number);
                }
            }
        });
    }
}

/// The first piece whose middle is the thread's.
fn first(count: usize, threads: usize, thread: usize) -> usize {
    (2 * count * thread).saturating_sub(threads).div_ceil(2 * threads)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::first;
    use crate::{Cpu, Isa};

    #[test]
    fn pieces_belong_to_who_has_most_of_them() {
        for threads in 1..9 {
            for count in 0..40 {
                assert_eq!((first(count, threads, 0), first(count, threads, threads)), (0, count));
                for thread in 0..threads {
                    let middle = |piece: usize| (2 * piece + 1) as f64 / (2 * count) as f64 * threads as f64;
                    for piece in first(count, threads, thread)..first(count, threads, thread + 1) {
                        assert!((thread as f64..thread as f64 + 1.0).contains(&middle(piece)), "{piece} of {count}");
                    }
                }
            }
        }
    }

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

//! Memory for weights that is taken from the system before they are there, while a start waits for something else. A virtual machine
//! may need a second for a gigabyte, even one that it has had before: some give back to their hosts what is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::{HUGE_PAGE, Mapping, Open, SHARED_BYTES, pages, release};
use crate::nodes;

/// The least that a system gives. Where it gives huge pages, one write is enough, and the others cost next to nothing.
const SMALL_PAGE: usize = 4096;

/// Weights are packed into it from its making on. When it goes, what none has taken goes back. One at a time: what an earlier one has
/// left when another begins is held as long as the earlier one's weights.
pub struct Foreseen {
    mapping: Arc<Mapping>,
    is_over: Arc<AtomicBool>,
    /// It returns up to where the mapping's pages are there.
    taker: Option<JoinHandle<usize>>,
    /// Up to where they are, once it has ended.
    there: usize,
}

impl Foreseen {
    /// Memory for so many bytes of weights, which a thread begins to take. If none can be had, pages are taken as they are met; where there are
    /// several memory nodes, too: whoever packs a weight there may be the one who reads it.
    ///
    /// # Panics
    /// As `Buffer::zeroed`.
    pub fn new(bytes: usize) -> Self {
        let may_be_taken = cfg!(target_os = "linux") && nodes().len() < 2; // see `Buffer::for_weights`
        let bytes = if may_be_taken { bytes } else { 0 };
        // With room behind it for what was not foreseen: so what is there and not needed is known.
        let mapping = Arc::new(Mapping::new(bytes.checked_add(SHARED_BYTES).expect("no memory has so many bytes")));
        pages::follow(&mapping);
        Open::get().begin(&mapping);
        let is_over = Arc::new(AtomicBool::new(false));
        let work = {
            let (mapping, is_over) = (Arc::clone(&mapping), Arc::clone(&is_over));
            move || take(&mapping, bytes, &is_over)
        };
        let taker = thread::Builder::new().name("pelton-memory".to_owned()).spawn(work).ok();
        Self { mapping, is_over, taker, there: 0 }
    }

    /// Returns once all is taken, or none can be: for benches, which measure what comes after.
    pub fn wait(&mut self) {
        if let Some(taker) = self.taker.take() {
            self.there = taker.join().expect("taking memory does not panic");
        }
    }

    /// Takes no more. How many bytes are there that no weight has.
    pub fn stop(&mut self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        self.wait();
        self.there.saturating_sub(Open::get().taken_of(&self.mapping))
    }
}

impl Drop for Foreseen {
    fn drop(&mut self) {
        self.stop();
        let open = Open::get(); // nobody takes any meanwhile
        let first = open.taken_of(&self.mapping).next_multiple_of(HUGE_PAGE);
        if first < self.there {
            // SAFETY: whole pages of the mapping that no buffer has, and none gets while `open` is held.
            let rest =
                unsafe { std::slice::from_raw_parts_mut(self.mapping.start.add(first).as_ptr(), self.there - first) };
            release(rest); // if the system refuses, the next who takes memory for weights has it
        }
    }
}

/// Page by page, by writes: that holds nobody up who maps memory, as a call for several pages would.
fn take(mapping: &Arc<Mapping>, bytes: usize, is_over: &AtomicBool) -> usize {
    let mut there = 0;
    while there < bytes && !is_over.load(Ordering::Relaxed) {
        let open = Open::get();
        there = there.max(open.taken_of(mapping).next_multiple_of(HUGE_PAGE));
        if there < bytes {
            pages::meet(mapping, || {
                for page in (there..there + HUGE_PAGE).step_by(SMALL_PAGE) {
                    // SAFETY: within the mapping, in pages that no buffer has, and none gets while `open` is held. They hold zeros.
                    unsafe { mapping.start.add(page).write_volatile(0) };
                }
            });
            there += HUGE_PAGE;
        }
    }
    there
}

#[cfg(test)]
mod tests {
    use super::Foreseen;
    use crate::Buffer;
    use crate::memory::HUGE_PAGE;

    #[test]
    fn weights_are_whole_whatever_of_their_memory_is_taken_meanwhile() {
        for round in 0..40_u8 {
            let memory = Foreseen::new(8 * HUGE_PAGE);
            let mut held = Vec::new();
            for size in 1..3 + usize::from(round) % 10 {
                let mut buffer = Buffer::for_weights(size * HUGE_PAGE / 4 + 1);
                assert!(buffer.as_slice::<u8>().iter().all(|&byte| byte == 0), "round {round}");
                buffer.as_mut_slice::<u8>().fill(round + 1);
                held.push(buffer);
                if size % 3 == 0 {
                    held.swap_remove(0); // it goes back, and may be taken again
                }
            }
            drop(memory);
            for buffer in &held {
                assert!(buffer.as_slice::<u8>().iter().all(|&byte| byte == round + 1), "somebody else wrote there");
            }
        }
    }
}

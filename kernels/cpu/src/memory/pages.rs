//! Huge pages, or small ones where the machine below is slow to give huge ones: those become huge later.
//!
//! A virtual machine that gives what is free back to its host asks for each huge page anew. One such host takes 6 ms for one, 0.35 GB/s
//! however many threads ask, while the small pages that the guest has kept come at 3 to 4 GB/s; and a linear stream is read from small
//! ones at 0.95 to 0.98 of the rate. So a start would wait for seconds, for next to nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::{HUGE_PAGE, Mapping};

/// A huge page that takes longer is given by a slow host. Else it is cleared within half of one, on all machines that were measured.
const SLOW: Duration = Duration::from_millis(2);
/// So many in a row are slow, and the others will be: one may be late for another reason.
const ENOUGH: usize = 2;

/// How many were. Once there are enough it stays until weights are loaded: huge pages are asked for no more.
static SLOW_IN_A_ROW: AtomicUsize = AtomicUsize::new(0);

/// Mappings whose pages are small until weights are loaded.
static SMALL: Mutex<Vec<Weak<Mapping>>> = Mutex::new(Vec::new());

/// Has the mapping's pages be small if huge ones come slowly: its first tell. They hold zeros, nobody has a part of them yet, and they are
/// there afterwards.
pub(super) fn choose(mapping: &Arc<Mapping>) {
    follow(mapping);
    for page in (0..mapping.len).step_by(HUGE_PAGE).take(ENOUGH) {
        // SAFETY: within the mapping, in a page that nobody has yet. It holds zeros.
        meet(mapping, || unsafe { mapping.start.add(page).write_volatile(0) });
        if SLOW_IN_A_ROW.load(Ordering::Relaxed) == 0 {
            break;
        }
    }
}

/// The same by what others told.
pub(super) fn follow(mapping: &Arc<Mapping>) {
    if are_slow() {
        have_small(mapping);
    }
}

/// `take` meets one huge page of the mapping for the first time. If it is slow, those behind it may be small.
pub(super) fn meet<T>(mapping: &Arc<Mapping>, take: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let taken = take();
    if began.elapsed() < SLOW {
        if !are_slow() {
            SLOW_IN_A_ROW.store(0, Ordering::Relaxed);
        }
    } else if SLOW_IN_A_ROW.fetch_add(1, Ordering::Relaxed) + 1 >= ENOUGH {
        have_small(mapping);
    }
    taken
}

fn are_slow() -> bool {
    SLOW_IN_A_ROW.load(Ordering::Relaxed) >= ENOUGH
}

fn have_small(mapping: &Arc<Mapping>) {
    let mut small = get();
    small.retain(|mapping| mapping.strong_count() > 0);
    if !small.iter().any(|known| known.as_ptr() == Arc::as_ptr(mapping)) {
        mapping.advise(Size::Small);
        small.push(Arc::downgrade(mapping));
    }
}

/// Weights are loaded. What was taken of the system in small pages may become huge ones, which it makes beside all else, and what comes is
/// huge where that is quick by then.
pub fn weights_are_loaded() {
    let small = std::mem::take(&mut *get());
    for mapping in small.iter().filter_map(Weak::upgrade) {
        mapping.advise(Size::Huge);
    }
    SLOW_IN_A_ROW.store(0, Ordering::Relaxed);
}

fn get() -> MutexGuard<'static, Vec<Weak<Mapping>>> {
    SMALL.lock().unwrap_or_else(PoisonError::into_inner) // a list, which is never half written
}

/// Of pages.
#[derive(Clone, Copy)]
pub(super) enum Size {
    Small,
    Huge,
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Arc;

    use super::{Mapping, SLOW, follow, meet, weights_are_loaded};
    use crate::memory::HUGE_PAGE;

    /// Of the mapping's beginning, as the kernel has it; see proc_pid_smaps(5).
    fn flags(mapping: &Mapping) -> String {
        let start = mapping.start.as_ptr().addr();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut holds_it = false;
        for line in smaps.lines() {
            let ends = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let range = ends.and_then(|(first, end)| {
                Some(usize::from_str_radix(first, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
            });
            holds_it = range.map_or(holds_it, |range| range.contains(&start));
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| holds_it) {
                return format!("{flags} ");
            }
        }
        panic!("the mapping is not in smaps");
    }

    #[test]
    fn pages_are_small_once_huge_ones_come_slowly_and_until_weights_are_loaded() {
        let [mapping, later] = [(); 2].map(|()| Arc::new(Mapping::new(2 * HUGE_PAGE)));
        if !flags(&mapping).contains(" hg ") {
            eprintln!("skipped: this system has no huge pages");
            return;
        }
        meet(&mapping, || ());
        assert!(flags(&mapping).contains(" hg "), "{}", flags(&mapping));
        // Other tests meet quick ones meanwhile.
        while flags(&mapping).contains(" hg ") {
            meet(&mapping, || std::thread::sleep(SLOW));
        }
        follow(&later); // what is mapped meanwhile
        let held = [&mapping, &later].map(|mapping| {
            assert!(flags(mapping).contains(" nh "), "{}", flags(mapping));
            // SAFETY: the test's own mapping, two huge pages long.
            let held = unsafe { std::slice::from_raw_parts_mut(mapping.start.as_ptr(), 2 * HUGE_PAGE) };
            held.fill(7);
            held
        });
        weights_are_loaded();
        for mapping in [&mapping, &later] {
            let at_last = flags(mapping);
            assert!(at_last.contains(" hg ") && !at_last.contains(" nh "), "{at_last}");
        }
        assert!(held.iter().all(|held| held.iter().all(|&byte| byte == 7)));
        let after = Arc::new(Mapping::new(HUGE_PAGE));
        follow(&after);
        assert!(flags(&after).contains(" hg "), "{}", flags(&after));
    }
}

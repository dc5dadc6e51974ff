//! Huge pages; or small ones while a start waits for memory and the machine below is slow to give huge ones. Those become huge later.
//!
//! A virtual machine that gives what is free back to its host asks for each huge page anew. One such host takes 6 ms for one, 0.35 GB/s
//! however many threads ask, while the small pages that the guest has kept come at 3 to 4 GB/s. Steps are 6 to 12 % slower with small
//! ones; a start would wait for seconds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{HUGE_PAGE, Mapping};

/// A huge page that takes longer is given by a slow host. Others were cleared within half a millisecond wherever it was measured.
const SLOW: Duration = Duration::from_millis(2);
/// So many in a row are slow, and the others will be. One may be late because another thread runs.
const ENOUGH: usize = 4;
/// How many times as long as a page was made huge it is rested afterwards, and the most that counts of it. With a tenth of that, steps gave
/// 0.6 of their rate meanwhile.
const REST: u32 = 30;
const REST_MAX: Duration = Duration::from_millis(50);

static GIVING: Mutex<Giving> = Mutex::new(Giving { is_urgent: false, slow_in_a_row: 0, small: Vec::new() });

/// How the system gives huge pages.
struct Giving {
    /// Whether a start waits for memory. Else nothing is looked at.
    is_urgent: bool,
    /// Once there are enough it stays: huge pages are asked for no more.
    slow_in_a_row: usize,
    /// Whose pages are small as long as it is urgent.
    small: Vec<Weak<Mapping>>,
}

impl Giving {
    fn get() -> MutexGuard<'static, Self> {
        GIVING.lock().unwrap_or_else(PoisonError::into_inner) // a number and a list, which are never half written
    }

    fn are_slow(&self) -> bool {
        self.slow_in_a_row >= ENOUGH
    }

    /// A huge page of the mapping took so long.
    fn met(&mut self, mapping: &Arc<Mapping>, took: Duration) {
        if self.is_urgent && !self.are_slow() {
            self.slow_in_a_row = if took < SLOW { 0 } else { self.slow_in_a_row + 1 };
        }
        self.follow(mapping);
    }

    /// Has the mapping's pages be small from now on, if huge ones come slowly.
    fn follow(&mut self, mapping: &Arc<Mapping>) {
        self.small.retain(|known| known.strong_count() > 0);
        let is_known = || self.small.iter().any(|known| known.as_ptr() == Arc::as_ptr(mapping));
        if self.are_slow() && mapping.is_huge && !is_known() {
            mapping.advise(Size::Small);
            self.small.push(Arc::downgrade(mapping));
        }
    }

    /// Whose pages need no longer be small.
    fn be_urgent(&mut self, is_urgent: bool) -> Vec<Weak<Mapping>> {
        (self.is_urgent, self.slow_in_a_row) = (is_urgent, 0);
        for mapping in self.small.iter().filter_map(Weak::upgrade) {
            mapping.advise(Size::Huge);
        }
        std::mem::take(&mut self.small)
    }
}

/// Whether a start waits for memory from now on. Once none does, a thread of its own makes huge pages of what was taken in small ones.
pub fn memory_is_urgent(is_urgent: bool) {
    let small = Giving::get().be_urgent(is_urgent);
    if !small.is_empty() {
        // Without the thread the kernel does it within minutes.
        let _ = thread::Builder::new().name("pelton-pages".to_owned()).spawn(move || small.iter().for_each(make_huge));
    }
}

/// Page by page, and rests after each: the machine below gives memory while it holds the processor, which a step waits for. The mapping
/// may go meanwhile. What is not there at all stays so.
fn make_huge(mapping: &Weak<Mapping>) {
    let mut start = 0;
    while let Some(mapping) = mapping.upgrade().filter(|mapping| start < mapping.len) {
        let began = Instant::now();
        mapping.collapse(start);
        drop(mapping);
        thread::sleep(began.elapsed().min(REST_MAX) * REST);
        start += HUGE_PAGE;
    }
}

/// Has a new mapping's pages be small, if huge ones come slowly: its first tell, which hold zeros and are there afterwards.
pub(super) fn choose(mapping: &Arc<Mapping>) {
    {
        let mut giving = Giving::get();
        giving.follow(mapping);
        if !giving.is_urgent || giving.are_slow() {
            return;
        }
    }
    for page in (0..mapping.len).step_by(HUGE_PAGE).take(ENOUGH) {
        // SAFETY: within the mapping, in a page that nobody has yet. It holds zeros.
        meet(mapping, || unsafe { mapping.start.add(page).write_volatile(0) });
        if Giving::get().slow_in_a_row == 0 {
            break;
        }
    }
}

/// The same by what others told.
pub(super) fn follow(mapping: &Arc<Mapping>) {
    Giving::get().follow(mapping);
}

/// `take` meets about one huge page of the mapping. If that is slow, those behind it may be small.
pub(super) fn meet<T>(mapping: &Arc<Mapping>, take: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let taken = take();
    Giving::get().met(mapping, began.elapsed());
    taken
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
    use std::time::Duration;

    use super::{ENOUGH, Giving, HUGE_PAGE, Mapping, SLOW, Size, make_huge};

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

    fn is_huge(mapping: &Mapping) -> bool {
        let flags = flags(mapping);
        assert!(!(flags.contains(" hg ") && flags.contains(" nh ")), "{flags}");
        flags.contains(" hg ")
    }

    /// Whether the small page at this place is there.
    fn is_there(mapping: &Mapping, at: usize) -> bool {
        let mut present = 0_u8;
        // SAFETY: the place lies in a mapping that stands, and `present` has room for one page.
        let said = unsafe { mincore(mapping.start.as_ptr().add(at).cast(), 4096, &mut present) };
        assert_eq!(said, 0);
        present & 1 == 1
    }

    unsafe extern "C" {
        fn mincore(start: *mut std::ffi::c_void, len: usize, present: *mut u8) -> i32;
    }

    #[test]
    fn what_nobody_has_touched_is_not_there_after_pages_were_made_huge() {
        let mapping = Arc::new(Mapping::new(3 * HUGE_PAGE));
        mapping.advise(Size::Small);
        // SAFETY: within the test's own mapping.
        unsafe { mapping.start.add(HUGE_PAGE).write_volatile(1) };
        mapping.advise(Size::Huge);
        make_huge(&Arc::downgrade(&mapping));
        assert!(is_there(&mapping, HUGE_PAGE));
        assert!(!is_there(&mapping, 0) && !is_there(&mapping, 2 * HUGE_PAGE), "an arena would be taken to its end");
    }

    #[test]
    fn pages_are_small_once_huge_ones_come_slowly_and_as_long_as_memory_is_urgent() {
        let [mapping, later, after] = [(); 3].map(|()| Arc::new(Mapping::new(2 * HUGE_PAGE)));
        let tiny = Arc::new(Mapping::new(1));
        if !is_huge(&mapping) {
            eprintln!("skipped: this system has no huge pages");
            return;
        }
        let mut giving = Giving { is_urgent: false, slow_in_a_row: 0, small: Vec::new() };
        let slow = |giving: &mut Giving, count| (0..count).for_each(|_| giving.met(&mapping, SLOW));
        slow(&mut giving, 2 * ENOUGH);
        assert!(is_huge(&mapping), "nobody waits");
        giving.be_urgent(true);
        slow(&mut giving, ENOUGH - 1);
        giving.met(&mapping, Duration::ZERO);
        slow(&mut giving, ENOUGH - 1);
        assert!(is_huge(&mapping), "not so many in a row");
        slow(&mut giving, 1);
        giving.met(&mapping, Duration::ZERO); // small ones come quickly
        giving.follow(&later);
        giving.follow(&tiny);
        let held = [&mapping, &later].map(|mapping| {
            assert!(!is_huge(mapping), "{}", flags(mapping));
            // SAFETY: the test's own mapping, two huge pages long.
            let held = unsafe { std::slice::from_raw_parts_mut(mapping.start.as_ptr(), 2 * HUGE_PAGE) };
            held.fill(7);
            held
        });
        let small = giving.be_urgent(false);
        giving.follow(&after);
        assert_eq!(small.len(), 2);
        small.iter().for_each(make_huge);
        let gone = Arc::downgrade(&Arc::new(Mapping::new(HUGE_PAGE)));
        make_huge(&gone);
        assert!([&mapping, &later, &after].into_iter().all(|mapping| is_huge(mapping)));
        assert!(!is_huge(&tiny), "it would leave most of a huge page empty");
        assert!(held.iter().all(|held| held.iter().all(|&byte| byte == 7)));
    }
}

//! Large memory for packed weights and scratch: aligned to huge pages, and asked of the system as such.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytemuck::Pod;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::nodes::{self, Node};

mod foreseen;
mod pages;

pub use foreseen::Foreseen;
use pages::Size;
pub use pages::memory_is_urgent;

/// Huge page of x86-64 Linux. A packed weight is walked once per step in one stream: with 4 KiB pages the page walks show.
const HUGE_PAGE: usize = 2 << 20;

/// Of so many bytes is a mapping that buffers of weights share. What nobody takes of it is never touched, so it costs nothing.
const SHARED_BYTES: usize = 128 << 20;
/// Where a buffer begins in it: no two share a page, however large the system's are.
const PAGE: usize = 64 << 10;
/// What is smaller would leave most of a huge page empty.
const SMALL_BYTES: usize = HUGE_PAGE / 8;

/// Zeroed bytes, in huge pages if the system has them.
///
/// Mapped, not allocated: pages are touched first by the threads that fill them, after the advice, and go back when dropped.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    mapping: Option<Arc<Mapping>>,
}

// SAFETY: a `Buffer` owns its part of a mapping alone, and plain bytes may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; `&Buffer` only reads.
unsafe impl Sync for Buffer {}

/// What the system gave, in huge pages, up to one more than was asked for, so that an aligned start lies within.
struct Mapping {
    base: *mut c_void,
    size: usize,
    start: NonNull<u8>,
    /// From `start` on: whole huge pages.
    len: usize,
    /// Whether its pages are to be huge.
    is_huge: bool,
}

// SAFETY: addresses of a mapping that stands until the value is dropped; whoever reads or writes there has a part of its own.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> Self {
        assert!(len <= isize::MAX as usize / 2, "no memory for {len} bytes");
        let is_huge = len >= SMALL_BYTES;
        let len = len.next_multiple_of(HUGE_PAGE);
        let size = len + HUGE_PAGE;
        // SAFETY: a new private mapping at an address of the system's choice touches nothing that exists.
        let mapping = unsafe {
            mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let base = mapping.unwrap_or_else(|error| panic!("no memory for {len} bytes: {error}"));
        let skipped = base.align_offset(HUGE_PAGE);
        // SAFETY: `skipped` is below HUGE_PAGE, so this lies within the mapping, and what follows is at least `len` long.
        let start = unsafe { base.cast::<u8>().add(skipped) };
        let start = NonNull::new(start).expect("a mapping does not lie at address 0");
        let mapping = Self { base, size, start, len, is_huge };
        if is_huge {
            mapping.advise(Size::Huge);
        }
        mapping
    }

    /// Of this size are pages that are not there yet.
    #[cfg(target_os = "linux")]
    fn advise(&self, size: Size) {
        use rustix::mm::{Advice, madvise};
        let advice = match size {
            Size::Huge => Advice::LinuxHugepage,
            Size::Small => Advice::LinuxNoHugepage,
        };
        // A refusal (a kernel without huge pages) costs speed and nothing else, so the answer is not looked at.
        // SAFETY: the range is ours, and the advice does not change its contents.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, advice) };
    }

    #[cfg(not(target_os = "linux"))]
    fn advise(&self, _: Size) {}

    /// Makes the small pages from `start` on, as many as a huge one has, a huge one. A refusal (a kernel that cannot, or nothing there) leaves
    /// them as they are.
    #[cfg(target_os = "linux")]
    fn collapse(&self, start: usize) {
        const MADV_COLLAPSE: i32 = 25;
        assert!(start.is_multiple_of(HUGE_PAGE) && start < self.len, "a huge page of the mapping");
        // SAFETY: the page is ours, and the advice does not change its contents, which others may read and write meanwhile.
        let _ = unsafe { madvise(self.start.add(start).as_ptr().cast(), HUGE_PAGE, MADV_COLLAPSE) };
    }

    #[cfg(not(target_os = "linux"))]
    fn collapse(&self, _: usize) {}
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size, unmapped once, and no buffer outlives its mapping.
        unsafe { munmap(self.base, self.size) }.expect("a mapping that stands can be taken down");
    }
}

#[cfg(target_os = "linux")]
unsafe extern "C" {
    fn madvise(start: *mut c_void, len: usize, advice: i32) -> i32;
}

/// The mapping from which buffers of weights are taken now, and how much of it is.
struct Open {
    mapping: Weak<Mapping>,
    taken: usize,
}

static OPEN: Mutex<Open> = Mutex::new(Open { mapping: Weak::new(), taken: 0 });

impl Open {
    fn get() -> MutexGuard<'static, Self> {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner) // two numbers, which are never half written
    }

    fn take(&mut self, len: usize) -> Buffer {
        let open = self.mapping.upgrade().map(|mapping| (mapping.len - self.taken, mapping));
        let (mapping, at) = match open {
            Some((room, mapping)) if room >= len => (mapping, self.taken),
            other => {
                let mapping = Arc::new(Mapping::new(len.max(SHARED_BYTES)));
                pages::choose(&mapping);
                let is_roomier = other.is_none_or(|(room, _)| mapping.len - len > room);
                if !is_roomier {
                    return Buffer { start: mapping.start, len, mapping: Some(mapping) };
                }
                self.begin(&mapping);
                (mapping, 0)
            }
        };
        self.taken = (at + len).next_multiple_of(PAGE).min(mapping.len);
        // SAFETY: `len` bytes behind `at` lie within the mapping, as was asked or made so.
        let start = unsafe { mapping.start.add(at) };
        Buffer { start, len, mapping: Some(mapping) }
    }

    /// Buffers are taken from this mapping now.
    fn begin(&mut self, mapping: &Arc<Mapping>) {
        (self.mapping, self.taken) = (Arc::downgrade(mapping), 0);
    }

    /// Up to where buffers may have been taken from this mapping: all of it, if others are taken from now.
    fn taken_of(&self, mapping: &Arc<Mapping>) -> usize {
        if self.mapping.as_ptr() == Arc::as_ptr(mapping) { self.taken } else { mapping.len }
    }

    /// Whether nothing was taken behind this end of a buffer.
    fn is_last(&self, mapping: &Arc<Mapping>, end: usize) -> bool {
        self.mapping.as_ptr() == Arc::as_ptr(mapping) && end.next_multiple_of(PAGE).min(mapping.len) == self.taken
    }
}

impl Buffer {
    /// No bytes, and no mapping.
    pub fn empty() -> Self {
        Self { start: NonNull::<crate::simd::Line>::dangling().cast(), len: 0, mapping: None }
    }

    /// `len` zero bytes, aligned to a huge page.
    ///
    /// # Panics
    /// When the system has no memory left, like any allocation.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self::empty();
        }
        let mapping = Arc::new(Mapping::new(len));
        pages::follow(&mapping);
        Self { start: mapping.start, len, mapping: Some(mapping) }
    }

    /// `len` zero bytes for weights, aligned to a page: they lie behind those that were taken before. A matrix alone would leave part of
    /// its last huge page empty, or have it in small pages, which cores read at a third of the rate (4 KiB, a virtual machine).
    ///
    /// # Panics
    /// As `zeroed`.
    #[cfg(target_os = "linux")]
    pub fn for_weights(len: usize) -> Self {
        if len == 0 { Self::empty() } else { Open::get().take(len) }
    }

    /// The same: without Linux's advice a part of a mapping could not go back by itself.
    #[cfg(not(target_os = "linux"))]
    pub fn for_weights(len: usize) -> Self {
        Self::zeroed(len)
    }

    /// Its pages come from all of several memory nodes in turn, for threads of all will read them. Before any is touched.
    pub(crate) fn spread(&mut self, nodes: &[Node]) {
        nodes::spread(self.start.as_ptr(), self.len, nodes);
    }

    /// Where it begins in its mapping.
    fn at(&self, mapping: &Mapping) -> usize {
        self.start.as_ptr().addr() - mapping.start.as_ptr().addr()
    }

    /// As `take`, for somebody who waits: pages are small if huge ones come slowly. For a piece of about one of them.
    pub(crate) fn take_soon(&self, start: usize, len: usize) -> bool {
        self.mapping.as_ref().is_none_or(|mapping| pages::meet(mapping, || self.take(start, len)))
    }

    /// Has the system give the pages of this part now, as it else would when they are first written. What they hold stays. False: it
    /// cannot, or has none left.
    #[cfg(target_os = "linux")]
    pub(crate) fn take(&self, start: usize, len: usize) -> bool {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len), "the part lies within the buffer");
        let first = start / HUGE_PAGE * HUGE_PAGE; // advice is about whole pages
        // SAFETY: the range is ours, and the advice does not change its contents.
        unsafe {
            let begin = self.start.as_ptr().add(first).cast();
            rustix::mm::madvise(begin, start + len - first, rustix::mm::Advice::LinuxPopulateWrite).is_ok()
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn take(&self, _: usize, _: usize) -> bool {
        false
    }

    /// Leaves out what lies behind `len` bytes, which was never written: the next who takes memory for weights may have it.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len == 0 {
            *self = Self::empty();
        } else if len < self.len {
            if let Some(mapping) = &self.mapping {
                let (mut open, at) = (Open::get(), self.at(mapping));
                if open.is_last(mapping, at + self.len) {
                    open.taken = (at + len).next_multiple_of(PAGE);
                }
            }
            self.len = len;
        }
    }

    /// How many bytes it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it, to read.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        // SAFETY: initialised (mapped zeroed), owned, `len` long; the dangling start of an empty buffer is aligned.
        bytemuck::cast_slice(unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    /// All of it, to write.
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, and borrowed mutably.
        bytemuck::cast_slice_mut(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// `count` values of unspecified contents; grows the buffer if it must, and then keeps it for the next call.
    pub(crate) fn scratch<T: Pod>(&mut self, count: usize) -> &mut [T] {
        let len = count * size_of::<T>();
        if len > self.len {
            *self = Self::zeroed(len);
        }
        bytemuck::cast_slice_mut(&mut self.as_mut_slice::<u8>()[..len])
    }
}

impl Drop for Buffer {
    /// Its pages go back although others of the mapping stay. Huge pages that it shares stay whole, and are cleared if the next may have them.
    fn drop(&mut self) {
        let Some(mapping) = self.mapping.take().filter(|mapping| Arc::strong_count(mapping) > 1) else { return };
        let (mut open, at) = (Open::get(), self.at(&mapping));
        let first = self.start.as_ptr().align_offset(HUGE_PAGE).min(self.len);
        let whole = (self.len - first) / HUGE_PAGE * HUGE_PAGE;
        let is_last = open.is_last(&mapping, at + self.len);
        let (before, rest) = self.as_mut_slice::<u8>().split_at_mut(first);
        let (pages, behind) = rest.split_at_mut(whole);
        if release(pages) && is_last {
            before.fill(0);
            behind.fill(0);
            open.taken = at;
        }
    }
}

/// Gives whole huge pages back to the system: they hold zeros then. False: it refuses.
#[cfg(target_os = "linux")]
fn release(pages: &mut [u8]) -> bool {
    let advice = rustix::mm::Advice::LinuxDontNeed;
    // SAFETY: whole pages that are borrowed alone; they hold bytes before and after, of any value.
    pages.is_empty() || unsafe { rustix::mm::madvise(pages.as_mut_ptr().cast(), pages.len(), advice) }.is_ok()
}

#[cfg(not(target_os = "linux"))]
fn release(_: &mut [u8]) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::{Buffer, HUGE_PAGE, Open, PAGE, SHARED_BYTES};

    #[test]
    fn memory_is_zeroed_aligned_and_as_long_as_asked() {
        for len in [1, 4096, HUGE_PAGE + 1] {
            let mut buffer = Buffer::zeroed(len);
            assert_eq!(buffer.as_slice::<u8>(), vec![0; len]);
            assert_eq!(buffer.as_slice::<u8>().as_ptr().align_offset(HUGE_PAGE), 0);
            buffer.as_mut_slice::<u8>().fill(7);
        }
        assert!(Buffer::empty().as_slice::<f32>().is_empty());
    }

    #[test]
    fn buffers_of_weights_lie_one_behind_the_other() {
        let mut open = Open { mapping: Weak::new(), taken: 0 };
        let [first, second] = [PAGE + 1, 7].map(|len| open.take(len));
        let place = |buffer: &Buffer| buffer.as_slice::<u8>().as_ptr().addr();
        assert_eq!((place(&first).is_multiple_of(HUGE_PAGE), place(&second)), (true, place(&first) + 2 * PAGE));
        // What does not fit has a mapping of its own, and the roomier one stays open.
        let large = open.take(SHARED_BYTES);
        assert_eq!(place(&open.take(9)), place(&first) + 3 * PAGE);
        assert_eq!(large.as_slice::<u8>()[SHARED_BYTES - 1], 0);
        let other = open.take(SHARED_BYTES - 3 * PAGE);
        assert!(place(&other).is_multiple_of(HUGE_PAGE));
        assert_eq!(place(&open.take(8 * PAGE)), place(&first) + 4 * PAGE);
        // With all of a mapping's buffers the mapping is gone.
        drop((first, second));
        assert!(place(&open.take(1)).is_multiple_of(HUGE_PAGE));
    }

    #[test]
    fn buffers_of_weights_go_back_one_by_one_and_hurt_no_other() {
        // Other tests take from the same mapping meanwhile.
        let mut held: Vec<(u8, Buffer)> = Vec::new();
        for round in 0..120_usize {
            let len = 1 + round * 7_919_001 % (3 * HUGE_PAGE);
            let mut buffer = Buffer::for_weights(len);
            assert_eq!((buffer.len(), buffer.as_slice::<u8>().as_ptr().align_offset(PAGE)), (len, 0));
            assert!(buffer.as_slice::<u8>().iter().all(|&byte| byte == 0), "round {round}");
            if round % 3 == 0 {
                buffer.truncate(len.div_ceil(2));
            }
            let mark = 1 + round as u8;
            buffer.as_mut_slice::<u8>().fill(mark);
            held.push((mark, buffer));
            match round % 4 {
                0 | 1 => drop(held.swap_remove(round / 3 % held.len())),
                2 => drop(held.pop()),
                _ => {}
            }
        }
        for (mark, buffer) in &held {
            assert!(buffer.as_slice::<u8>().iter().all(|byte| byte == mark), "somebody else wrote there");
        }
    }

    #[test]
    fn scratch_grows_and_is_kept() {
        let mut buffer = Buffer::empty();
        buffer.scratch::<u32>(10)[9] = 5;
        assert_eq!(buffer.scratch::<u32>(10)[9], 5);
        assert_eq!(buffer.scratch::<u64>(1000).len(), 1000);
        assert!(buffer.len() >= 8000);
    }
}

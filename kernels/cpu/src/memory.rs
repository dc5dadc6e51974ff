//! Large memory for packed weights and scratch: aligned to huge pages, and asked of the system as such.

use std::ffi::c_void;
use std::ptr::NonNull;

use bytemuck::Pod;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Huge page of x86-64 Linux. A packed weight is walked once per step in one stream: with 4 KiB pages the page walks show.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed bytes of its own, aligned to a huge page.
///
/// Mapped, not allocated: pages are touched first by the threads that fill them, after the advice, and go back when dropped.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// What was mapped: up to a huge page longer, so that an aligned start lies within.
    mapped: (*mut c_void, usize),
}

// SAFETY: a `Buffer` owns its mapping alone, and plain bytes may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; `&Buffer` only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// No bytes, and no mapping.
    pub fn empty() -> Self {
        Self { start: NonNull::<[u64; 8]>::dangling().cast(), len: 0, mapped: (std::ptr::null_mut(), 0) }
    }

    /// `len` zero bytes.
    ///
    /// # Panics
    /// When the system has no memory left, like any allocation.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self::empty();
        }
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
        let buffer = Self { start, len, mapped: (base, size) };
        buffer.ask_for_huge_pages();
        buffer
    }

    #[cfg(target_os = "linux")]
    fn ask_for_huge_pages(&self) {
        let whole = self.len / HUGE_PAGE * HUGE_PAGE;
        // A refusal (a kernel without huge pages) costs speed and nothing else, so the answer is not looked at.
        // SAFETY: the range is ours, and the advice does not change its contents.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), whole, rustix::mm::Advice::LinuxHugepage) };
    }

    #[cfg(not(target_os = "linux"))]
    fn ask_for_huge_pages(&self) {}

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

    /// Leaves out what lies behind `len` bytes. What of that was touched stays taken until all of it goes.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len == 0 {
            *self = Self::empty();
        }
        self.len = self.len.min(len);
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
    fn drop(&mut self) {
        if self.len > 0 {
            let (base, size) = self.mapped;
            // SAFETY: mapped by `zeroed` with this size, unmapped once, and no slice outlives the buffer.
            unsafe { munmap(base, size) }.expect("a mapping that stands can be taken down");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffer, HUGE_PAGE};

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
    fn scratch_grows_and_is_kept() {
        let mut buffer = Buffer::empty();
        buffer.scratch::<u32>(10)[9] = 5;
        assert_eq!(buffer.scratch::<u32>(10)[9], 5);
        assert_eq!(buffer.scratch::<u64>(1000).len(), 1000);
        assert!(buffer.len() >= 8000);
    }
}

//! How work is cut into parts, and how several threads write one slice.

use std::marker::PhantomData;
use std::ops::Range;

/// Part `part` of `0..total` cut into `parts` that differ by one at most.
pub(crate) fn part(total: usize, parts: usize, part: usize) -> Range<usize> {
    let (each, longer) = (total / parts, total % parts);
    let start = part * each + part.min(longer);
    start..start + each + usize::from(part < longer)
}

/// A slice whose disjoint pieces are written by different threads.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Shared` only hands out pieces, and `piece`'s callers promise that no two that are alive at once overlap.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// # Safety
    /// No other piece that overlaps `range` is alive.
    #[allow(clippy::mut_from_ref, reason = "that is what this type is for; `range` is what keeps pieces apart")]
    pub(crate) unsafe fn piece(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice (asserted), which is borrowed for 'a; alone by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Bytes between what belongs to one thread and what belongs to the next: a processor fetches ahead past the end of what it walks over,
/// and would take from the other's cache what was just written there.
const BETWEEN: usize = 4096;

/// A slice of which each thread has as much for itself.
pub(crate) struct Own<'a, T> {
    shared: Shared<'a, T>,
    each: usize,
}

impl<'a, T> Own<'a, T> {
    /// How long a slice has to be for so many threads.
    pub(crate) fn len(threads: usize, each: usize) -> usize {
        threads * Self::apart(each)
    }

    /// From the beginning of a thread's to the next one's.
    fn apart(each: usize) -> usize {
        const { assert!(BETWEEN.is_multiple_of(size_of::<T>())) }
        each.next_multiple_of(BETWEEN / size_of::<T>()) + BETWEEN / size_of::<T>()
    }

    pub(crate) fn new(slice: &'a mut [T], each: usize) -> Self {
        Self { shared: Shared::new(slice), each }
    }

    /// # Safety
    /// No other borrow of this thread's is alive.
    #[allow(clippy::mut_from_ref, reason = "as of `Shared::piece`")]
    pub(crate) unsafe fn of(&self, thread: usize) -> &mut [T] {
        let start = thread * Self::apart(self.each);
        // SAFETY: threads' ranges do not overlap, and this one's is not borrowed by the caller's promise.
        unsafe { self.shared.piece(start..start + self.each) }
    }
}

#[cfg(test)]
mod tests {
    use super::{BETWEEN, Own, part};

    #[test]
    fn what_threads_own_lies_apart_and_within_the_slice() {
        for each in [0, 1, 1023, 1024, 1025] {
            let mut slice = vec![0_u32; Own::<u32>::len(3, each)];
            let own = Own::new(&mut slice, each);
            // SAFETY: each thread's is borrowed once.
            let all = [0, 1, 2].map(|thread| unsafe { own.of(thread) });
            assert!(all.iter().all(|own| own.len() == each));
            for pair in all.windows(2) {
                assert!(pair[1].as_ptr() as usize - pair[0].as_ptr_range().end as usize >= BETWEEN);
            }
        }
    }

    #[test]
    fn parts_cover_everything_once_and_differ_by_one_at_most() {
        for total in 0..40 {
            for parts in 1..9 {
                let ranges: Vec<_> = (0..parts).map(|at| part(total, parts, at)).collect();
                assert_eq!(ranges.iter().cloned().flatten().collect::<Vec<_>>(), (0..total).collect::<Vec<_>>());
                let longest = ranges.iter().map(ExactSizeIterator::len).max().expect("at least one part");
                assert!(ranges.iter().all(|range| range.len() + 1 >= longest));
            }
        }
    }
}

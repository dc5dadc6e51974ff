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

#[cfg(test)]
mod tests {
    use super::part;

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

//! Tensors as addresses, and whether two of them share memory.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A contiguous tensor: its address, and how many elements it has.
#[derive(FromPyObject, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(usize, usize);

impl Span {
    pub(crate) fn new(address: usize, elements: usize) -> Self {
        Self(address, elements)
    }

    pub(crate) fn address(self) -> usize {
        self.0
    }

    pub(crate) fn elements(self) -> usize {
        self.1
    }

    /// # Safety
    /// This many `T` lie at the address, for as long as 'a, and nothing writes them meanwhile.
    pub(crate) unsafe fn read<'a, T>(self) -> &'a [T] {
        if self.1 == 0 {
            return &[]; // torch gives an empty tensor the address 0
        }
        // SAFETY: the caller's promise; torch aligns tensors to their elements at least.
        unsafe { std::slice::from_raw_parts(self.0 as *const T, self.1) }
    }

    /// # Safety
    /// As for `read`, and nothing else reads or writes them meanwhile.
    pub(crate) unsafe fn write<'a, T>(self) -> &'a mut [T] {
        if self.1 == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise, as in `read`.
        unsafe { std::slice::from_raw_parts_mut(self.0 as *mut T, self.1) }
    }

    pub(crate) fn overlaps(self, size: usize, other: Self, other_size: usize) -> bool {
        let (end, other_end) = (self.0 + self.1 * size, other.0 + other.1 * other_size);
        self.1 > 0 && other.1 > 0 && self.0 < other_end && other.0 < end
    }
}

/// Refuses a tensor that is written and overlaps another. Each is named, and has its element size.
pub(crate) fn check_apart(written: &[(&str, Span, usize)], read: &[(&str, Span, usize)]) -> PyResult<()> {
    for (at, &(name, span, size)) in written.iter().enumerate() {
        for &(other, other_span, other_size) in written[at + 1..].iter().chain(read) {
            if span.overlaps(size, other_span, other_size) {
                return Err(PyValueError::new_err(format!(
                    "`{name}` shares memory with `{other}`; allowed: a tensor of its own"
                )));
            }
        }
    }
    Ok(())
}

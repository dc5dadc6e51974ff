//! Working memory that begins at a cache line: a vector or a tile's row of 64 bytes that lies across two lines takes twice as long.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A `Vec` of which only the length changes.
pub(crate) struct Lined<T> {
    lines: Vec<Line>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Lined<T> {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        const { assert!(align_of::<T>() <= align_of::<Line>()) };
        Self { lines: vec![], len: 0, element: PhantomData }
    }

    /// What is new is zero, or what stood there when it was longer.
    pub(crate) fn resize(&mut self, len: usize) {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.lines.len() < lines {
            self.lines.resize(lines, Line::zeroed());
        }
        self.len = len;
    }
}

impl<T: Pod> Deref for Lined<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        let bytes: &[u8] = bytemuck::cast_slice(&self.lines);
        bytemuck::cast_slice(&bytes[..self.len * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for Lined<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.lines);
        bytemuck::cast_slice_mut(&mut bytes[..self.len * size_of::<T>()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_at_a_line_and_keeps_what_it_has() {
        let mut numbers = Lined::<u32>::new();
        assert!(numbers.is_empty());
        for len in [1, 16, 17, 5, 100] {
            numbers.resize(len);
            assert!(numbers.len() == len && (numbers.as_ptr() as usize).is_multiple_of(64));
            numbers[len - 1] = len as u32;
        }
        assert!(numbers[0] == 1 && numbers[4] == 5 && numbers[16] == 17 && numbers[50] == 0);
    }
}

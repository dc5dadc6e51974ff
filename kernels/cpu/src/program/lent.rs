//! Memory that a program uses and does not own: tables and gains that a loader filled, the KV arena. The program's only `unsafe`.
//!
//! Invariant, kept by whoever makes these values (`unsafe fn new`): the bytes stay where they are for as long as the value
//! lives; nobody writes [`Lent`] bytes meanwhile, and only the holder of a [`LentMut`] touches its bytes while a program runs.

use bytemuck::Pod;

/// Bytes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent(Place);

/// Bytes to read and write. Not `Clone`: one holder.
#[derive(Debug, PartialEq, Eq)]
pub struct LentMut(Place);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    start: usize,
    bytes: usize,
}

impl Place {
    /// Borrowed from the `Lent` or `LentMut` around it.
    fn read<T: Pod>(&self) -> &[T] {
        if self.bytes == 0 {
            return &[]; // an empty tensor's address may be 0
        }
        // SAFETY: the bytes are there, and nobody writes them while `self` is borrowed: the module's invariant.
        bytemuck::cast_slice(unsafe { std::slice::from_raw_parts(self.start as *const u8, self.bytes) })
    }
}

impl Lent {
    /// # Safety
    /// The module's invariant. `start` is aligned to the elements that will be read.
    pub unsafe fn new(start: usize, bytes: usize) -> Self {
        Self(Place { start, bytes })
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// All of it.
    pub(super) fn as_slice<T: Pod>(&self) -> &[T] {
        self.0.read()
    }
}

impl LentMut {
    /// # Safety
    /// The module's invariant, and no other value of this kind overlaps it. `start` is aligned to the elements.
    pub unsafe fn new(start: usize, bytes: usize) -> Self {
        Self(Place { start, bytes })
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// All of it, to read.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        self.0.read()
    }

    /// All of it, to write.
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        if self.0.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as in `Lent::as_slice`, and `&mut self` is the only way to these bytes.
        bytemuck::cast_slice_mut(unsafe { std::slice::from_raw_parts_mut(self.0.start as *mut u8, self.0.bytes) })
    }
}

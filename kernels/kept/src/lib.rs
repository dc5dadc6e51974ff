//! Files that keep what loading a model made, so that the next start reads it instead of making it again.
//!
//! ```text
//! magic │ bytes of the header │ number of blobs │ sum of what follows up to the padding
//! header │ length of each blob │ sum of each chunk of each blob │ padding │ blob │ padding │ blob …
//! ```
//! Blobs begin on pages. All numbers are little-endian u64. Sums are XXH3: they find damage, not forgery; a file belongs into a
//! folder of its user's own. A file is written beside its name and renamed, so that a name always stands for a whole file; it
//! is read, not mapped: weights lie in huge pages, and nobody who cuts the file short can hurt the reader.
//! Never here: what a header or a blob means, which files there are, Python.

mod read;
mod write;

pub use read::{Damage, KeptFile};
pub use write::write;

const MAGIC: u64 = u64::from_le_bytes(*b"PELKEPT1");
const PREAMBLE_BYTES: usize = 4 * 8;
/// What one sum is of, and what one thread reads at a time.
const CHUNK_BYTES: usize = 4 << 20;
const PAGE_BYTES: usize = 4096;
/// Far above what a model needs: a damaged file may claim any number.
const HEADER_BYTES_MAX: u64 = 64 << 20;
const BLOBS_MAX: u64 = 1 << 20;

fn chunks(blob_bytes: usize) -> usize {
    blob_bytes.div_ceil(CHUNK_BYTES)
}

#[cfg(test)]
mod tests;

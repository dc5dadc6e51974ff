//! Reading a file with several threads, each chunk compared with its sum before anybody sees it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use pelton_cpu::{Buffer, Cpu};
use rustix::fs::{CWD, Mode, OFlags, openat};
use xxhash_rust::xxh3::xxh3_64;

use crate::{BLOBS_MAX, CHUNK_BYTES, HEADER_BYTES_MAX, MAGIC, PAGE_BYTES, PREAMBLE_BYTES, chunks};

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// It is not what was written.
    #[error("{0}")]
    Content(&'static str),
}

/// A file whose front part is as it was written. Its blobs are looked at when they are read.
#[derive(Debug)]
pub struct KeptFile {
    file: File,
    header: Vec<u8>,
    blobs: Vec<Blob>,
    sums: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Blob {
    start: u64,
    bytes: usize,
    first_sum: usize,
}

impl KeptFile {
    /// Reads all but the blobs.
    pub fn open(path: &Path) -> Result<Self, Damage> {
        let file = File::from(
            openat(CWD, path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
                .map_err(io::Error::from)?,
        );
        let mut preamble = [0; PREAMBLE_BYTES];
        file.read_exact_at(&mut preamble, 0)?;
        let [magic, header_bytes, blobs, sum] = std::array::from_fn(|at| number(&preamble, at));
        if magic != MAGIC {
            return Err(Damage::Content("it is no file of this kind, or of another version"));
        }
        if header_bytes > HEADER_BYTES_MAX || blobs > BLOBS_MAX {
            return Err(Damage::Content("its header is larger than any"));
        }
        let length = file.metadata()?.len();
        let (header_bytes, blobs) = (header_bytes as usize, blobs as usize);
        let mut front = vec![0; header_bytes + 8 * blobs];
        file.read_exact_at(&mut front, PREAMBLE_BYTES as u64)?;
        let lengths: Vec<u64> = (0..blobs).map(|at| number(&front[header_bytes..], at)).collect();
        if lengths.iter().try_fold(0_u64, |all, &bytes| all.checked_add(bytes)).is_none_or(|all| all > length) {
            return Err(Damage::Content("it is shorter than its header says"));
        }
        let count: usize = lengths.iter().map(|&bytes| chunks(bytes as usize)).sum();
        let known = front.len();
        front.resize(known + 8 * count, 0);
        file.read_exact_at(&mut front[known..], (PREAMBLE_BYTES + known) as u64)?;
        if xxh3_64(&front) != sum {
            return Err(Damage::Content("its header has been damaged"));
        }
        let sums = (0..count).map(|at| number(&front[known..], at)).collect();
        let (mut end, mut first_sum, mut places) = ((PREAMBLE_BYTES + front.len()) as u64, 0, Vec::new());
        for &bytes in &lengths {
            let start = end.next_multiple_of(PAGE_BYTES as u64);
            places.push(Blob { start, bytes: bytes as usize, first_sum });
            end = start + bytes;
            first_sum += chunks(bytes as usize);
        }
        if end != length {
            return Err(Damage::Content("it has another length than its header says"));
        }
        front.truncate(header_bytes);
        Ok(Self { file, header: front, blobs: places, sums })
    }

    /// What the writer said about the blobs.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// How many bytes each blob has.
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = usize> {
        self.blobs.iter().map(|blob| blob.bytes)
    }

    /// Reads one blob with all threads, into memory that lies where they will read it.
    ///
    /// # Panics
    /// When there is no blob of this number.
    pub fn read(&self, number: usize, cpu: &mut Cpu) -> Result<Buffer, Damage> {
        let blob = self.blobs[number];
        let mut buffer = cpu.memory_for_weights(blob.bytes);
        let chunks: Vec<_> = buffer.as_mut_slice::<u8>().chunks_mut(CHUNK_BYTES).map(Mutex::new).collect();
        let damage = OnceLock::new();
        cpu.share(chunks.len(), |at| {
            let mut chunk = chunks[at].lock().expect("nobody else has it");
            if damage.get().is_none()
                && let Err(found) = self.read_chunk(blob, at, &mut chunk)
            {
                _ = damage.set(found); // or another was first
            }
        });
        drop(chunks);
        damage.into_inner().map_or(Ok(buffer), Err)
    }

    fn read_chunk(&self, blob: Blob, at: usize, to: &mut [u8]) -> Result<(), Damage> {
        self.file.read_exact_at(to, blob.start + (at * CHUNK_BYTES) as u64)?;
        let is_whole = xxh3_64(to) == self.sums[blob.first_sum + at];
        if is_whole { Ok(()) } else { Err(Damage::Content("a part of it has been damaged")) }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * at..][..8].try_into().expect("eight bytes"))
}

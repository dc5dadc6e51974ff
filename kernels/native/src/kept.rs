//! What loading made, in files: written from the memory of a loaded model, and read back without PyTorch.

use std::io::ErrorKind;
use std::path::PathBuf;

use pelton_cpu::Buffer;
use pelton_cpu::program::Weight;
use pelton_kept::Damage;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::ops::{cpu, refused};
use crate::span::Span;
use crate::weights::PackedWeight;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<HeldBytes>()?;
    module.add_class::<KeptFile>()?;
    module.add_function(wrap_pyfunction!(keep, module)?)
}

/// Memory of Rust's for a program: tables that were read.
#[pyclass(frozen, module = "pelton_kernels._native")]
struct HeldBytes(Buffer);

#[pymethods]
impl HeldBytes {
    /// So many zeros.
    #[staticmethod]
    fn zeroed(bytes: usize) -> Self {
        Self(Buffer::for_weights(bytes))
    }

    /// Where it lies, and how many bytes it has.
    #[getter]
    fn span(&self) -> (usize, usize) {
        (self.0.as_slice::<u8>().as_ptr() as usize, self.0.len())
    }
}

/// A file that `keep` wrote. ValueError: it is damaged, or none. OSError: it cannot be read.
#[pyclass(frozen, module = "pelton_kernels._native")]
struct KeptFile(pelton_kept::KeptFile);

#[pymethods]
impl KeptFile {
    /// Reads all but the blobs.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| pelton_kept::KeptFile::open(&path)).map(Self).map_err(damaged)
    }

    /// What the writer said about the blobs.
    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.header())
    }

    /// Bytes of each blob.
    #[getter]
    fn lengths(&self) -> Vec<usize> {
        self.0.lengths().collect()
    }

    /// A blob, in memory of its own.
    fn read(&self, py: Python<'_>, number: usize) -> PyResult<HeldBytes> {
        py.detach(|| self.blob(number)).map(HeldBytes)
    }

    /// A blob that is a packed weight of these numbers.
    fn weight(&self, py: Python<'_>, number: usize, numbers: Vec<u64>) -> PyResult<PackedWeight> {
        py.detach(|| {
            let data = self.blob(number)?;
            Weight::restored(cpu().isa(), &numbers, data).map(PackedWeight).map_err(refused)
        })
    }
}

impl KeptFile {
    fn blob(&self, number: usize) -> PyResult<Buffer> {
        if number >= self.0.lengths().len() {
            return Err(PyValueError::new_err(format!(
                "`number` is {number}; there are {} blobs",
                self.0.lengths().len()
            )));
        }
        self.0.read(number, &mut cpu()).map_err(damaged)
    }
}

fn damaged(damage: Damage) -> PyErr {
    match damage {
        Damage::Read(error) if error.kind() == ErrorKind::UnexpectedEof => PyValueError::new_err(error.to_string()),
        Damage::Read(error) => PyOSError::new_err(error.to_string()),
        Damage::Content(why) => PyValueError::new_err(why),
    }
}

/// A blob to write: a tensor's bytes, or a packed weight.
#[derive(FromPyObject)]
enum Blob<'py> {
    Weight(Bound<'py, PackedWeight>),
    Bytes(Span),
}

/// Writes header and blobs to `path`, by way of `part`; returns how many bytes the file has. The caller holds the tensors.
#[pyfunction]
fn keep(py: Python<'_>, path: PathBuf, part: PathBuf, header: &[u8], blobs: Vec<Blob<'_>>) -> PyResult<u64> {
    let weights: Vec<_> = blobs
        .iter()
        .map(|blob| match blob {
            Blob::Weight(weight) => Ok(weight.get().0.clone()),
            Blob::Bytes(span) => Err(*span),
        })
        .collect();
    py.detach(|| {
        let blobs: Vec<&[u8]> = weights
            .iter()
            .map(|blob| match blob {
                Ok(weight) => weight.data(),
                // SAFETY: a contiguous tensor's bytes, which the caller holds and nobody writes after loading.
                Err(span) => unsafe { span.read::<u8>() },
            })
            .collect();
        pelton_kept::write(&path, &part, header, &blobs)
    })
    .map_err(|error| PyOSError::new_err(error.to_string()))
}

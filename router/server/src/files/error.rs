//! What can be wrong with a file.

use std::io;

use crate::error::{ApiError, shortened};

/// Expected trouble with files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileError {
    #[error("there is no such file")]
    Unknown { id: String },
    #[error("a batch reads it")]
    InUse,
    #[error("it has more than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("all files together have {limit} bytes, the most that is kept")]
    Full { limit: u64 },
    #[error("{limit} files are kept, which is the most")]
    TooMany { limit: usize },
    #[error("the disk: {0}")]
    Disk(String),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::Disk(error.to_string())
    }
}

impl From<FileError> for ApiError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Unknown { id } => Self::NotKept { what: "file", id: shortened(&id) },
            FileError::InUse => Self::Conflict {
                param: "file_id".to_owned(),
                reason: "names a file that a batch reads; cancel the batch, or wait for its end".to_owned(),
            },
            FileError::TooLarge { limit } => Self::FileTooLarge { limit },
            FileError::Full { limit } => {
                Self::NoRoom { reason: format!("all files together would have more than {limit} bytes; delete some") }
            }
            FileError::TooMany { limit } => {
                Self::NoRoom { reason: format!("there are {limit} files already; delete some") }
            }
            FileError::Disk(log) => Self::Internal { log: format!("files: {log}") },
        }
    }
}

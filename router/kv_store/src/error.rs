//! What can be wrong with a folder or with a block in it.

use std::{io, path::PathBuf};

/// A folder that this server cannot use.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another server has it.
    #[error("{} is used by another server{}; give each server a folder of its own", path.display(), .pid.map_or(String::new(), |pid| format!(" (process {pid})")))]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The other server, as it has written it down.
        pid: Option<u32>,
    },
    /// It cannot be made, opened, read or written.
    #[error("{} cannot be used: {call}: {error}", path.display())]
    System {
        /// The folder.
        path: PathBuf,
        /// What failed.
        call: &'static str,
        /// Why.
        error: io::Error,
    },
}

/// A block that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is a file, and it is not what was written. It is gone now.
    #[error("place {place}: {what}")]
    Damaged {
        /// Which.
        place: u32,
        /// What does not fit.
        what: &'static str,
    },
    /// There is none, or it cannot be read.
    #[error("place {place}: {error}")]
    System {
        /// Which.
        place: u32,
        /// Why.
        error: io::Error,
    },
}

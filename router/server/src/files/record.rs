//! What is known of a file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    /// Requests, a line each.
    Batch,
    /// Their answers.
    BatchOutput,
}

impl Purpose {
    pub(crate) const ALL: [Self; 2] = [Self::Batch, Self::BatchOutput];

    /// As clients write it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::BatchOutput => "batch_output",
        }
    }
}

/// A file that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) id: String,
    /// Whose it is.
    pub(crate) tenant: u64,
    /// The name that its owner gave it: shown, and never a path's.
    pub(crate) filename: String,
    pub(crate) purpose: Purpose,
    pub(crate) bytes: u64,
    /// Microseconds since 1970: files of the same second have an order, too.
    pub(crate) created_us: u64,
    /// Seconds since 1970.
    pub(crate) expires_at: u64,
}

impl FileRecord {
    /// As clients see it.
    pub(crate) fn object(&self) -> FileObject {
        FileObject {
            id: self.id.clone(),
            object: "file",
            bytes: self.bytes,
            created_at: self.created_us / 1_000_000,
            expires_at: self.expires_at,
            filename: self.filename.clone(),
            purpose: self.purpose,
            status: "processed",
            status_details: None,
        }
    }
}

/// A file as clients see it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FileObject {
    id: String,
    object: &'static str,
    bytes: u64,
    created_at: u64,
    expires_at: u64,
    filename: String,
    purpose: Purpose,
    status: &'static str,
    status_details: Option<String>,
}

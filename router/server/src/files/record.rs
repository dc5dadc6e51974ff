//! What is known of a file.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    pub(crate) fn object(&self) -> Value {
        json!({
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_us / 1_000_000,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose.word(),
            "status": "processed",
            "status_details": null,
        })
    }
}

//! A batch: what was asked for, how far it is, and when it came there.
//!
//! ```text
//!   validating ──▶ in_progress ──▶ finalizing ──▶ completed
//!       │               ├──▶ (its window is over) ──▶ expired
//!       ▼               └──▶ cancelling ──▶ cancelled
//!     failed
//! ```

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::usage::Usage;
use crate::api::batches::{BatchRequest, LineError};

/// How far a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Validating,
    Failed,
    InProgress,
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    /// Nothing more happens to it.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Requests of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BatchCounts")]
pub(crate) struct Counts {
    pub(crate) total: u64,
    /// Answered with success.
    pub(crate) completed: u64,
    /// Answered with an error, or not at all.
    pub(crate) failed: u64,
}

/// See the top of the file. All times are seconds since 1970.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) id: String,
    /// Whose it is.
    pub(crate) tenant: u64,
    pub(crate) endpoint: String,
    pub(crate) input_file_id: String,
    completion_window: String,
    metadata: Option<HashMap<String, String>>,
    pub(crate) output_lifetime_s: u64,
    pub(crate) status: Status,
    pub(crate) errors: Vec<LineError>,
    /// Where answers are written, and errors; files only once the batch has ended.
    pub(crate) drafts: Option<(String, String)>,
    pub(crate) output_file_id: Option<String>,
    pub(crate) error_file_id: Option<String>,
    /// Microseconds: batches of the same second have an order, too.
    pub(crate) created_us: u64,
    pub(crate) expires_at: u64,
    in_progress_at: Option<u64>,
    finalizing_at: Option<u64>,
    cancelling_at: Option<u64>,
    /// With its last status.
    ended_at: Option<u64>,
    pub(crate) counts: Counts,
    #[serde(default)] // batches of earlier versions have none
    pub(crate) usage: Option<Usage>,
    /// What answers it, once its requests are begun.
    #[serde(default)]
    pub(crate) model: Option<String>,
}

impl Batch {
    pub(crate) fn new(id: String, tenant: u64, asked: BatchRequest, now_us: u64) -> Self {
        Self {
            id,
            tenant,
            endpoint: asked.endpoint.to_owned(),
            input_file_id: asked.input_file_id,
            completion_window: asked.completion_window,
            metadata: asked.metadata,
            output_lifetime_s: asked.output_lifetime_s,
            status: Status::Validating,
            errors: Vec::new(),
            drafts: None,
            output_file_id: None,
            error_file_id: None,
            created_us: now_us,
            expires_at: now_us / 1_000_000 + asked.window_s,
            in_progress_at: None,
            finalizing_at: None,
            cancelling_at: None,
            ended_at: None,
            counts: Counts::default(),
            usage: None,
            model: None,
        }
    }

    /// The next status. One that was cancelled stays so until its end.
    pub(crate) fn turn(&mut self, status: Status, now: u64) {
        assert!(!self.status.is_final(), "nothing follows {:?}", self.status);
        if self.status == Status::Cancelling && !status.is_final() {
            return;
        }
        self.status = status;
        match status {
            Status::Validating => unreachable!("it begins so"),
            Status::InProgress => self.in_progress_at = Some(now),
            Status::Finalizing => self.finalizing_at = Some(now),
            Status::Cancelling => self.cancelling_at = Some(now),
            Status::Failed | Status::Completed | Status::Expired | Status::Cancelled => self.ended_at = Some(now),
        }
    }

    /// As clients see it.
    pub(crate) fn object(&self) -> BatchObject {
        let ended = |status| self.ended_at.filter(|_| self.status == status);
        BatchObject {
            id: self.id.clone(),
            object: "batch",
            endpoint: self.endpoint.clone(),
            model: self.model.clone(),
            errors: (!self.errors.is_empty()).then(|| BatchErrors { object: "list", data: self.errors.clone() }),
            input_file_id: self.input_file_id.clone(),
            completion_window: self.completion_window.clone(),
            status: self.status,
            output_file_id: self.output_file_id.clone(),
            error_file_id: self.error_file_id.clone(),
            created_at: self.created_us / 1_000_000,
            in_progress_at: self.in_progress_at,
            expires_at: self.expires_at,
            finalizing_at: self.finalizing_at,
            completed_at: ended(Status::Completed),
            failed_at: ended(Status::Failed),
            expired_at: ended(Status::Expired),
            cancelling_at: self.cancelling_at,
            cancelled_at: ended(Status::Cancelled),
            request_counts: self.counts,
            usage: self.usage,
            metadata: self.metadata.clone(),
        }
    }
}

/// A batch as clients see it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BatchObject {
    id: String,
    object: &'static str,
    endpoint: String,
    /// What answers it, once its requests are begun.
    model: Option<String>,
    errors: Option<BatchErrors>,
    input_file_id: String,
    completion_window: String,
    status: Status,
    output_file_id: Option<String>,
    error_file_id: Option<String>,
    created_at: u64,
    in_progress_at: Option<u64>,
    expires_at: u64,
    finalizing_at: Option<u64>,
    completed_at: Option<u64>,
    failed_at: Option<u64>,
    expired_at: Option<u64>,
    cancelling_at: Option<u64>,
    cancelled_at: Option<u64>,
    request_counts: Counts,
    /// Once some request is answered.
    usage: Option<Usage>,
    metadata: Option<HashMap<String, String>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BatchErrors {
    object: &'static str,
    data: Vec<LineError>,
}

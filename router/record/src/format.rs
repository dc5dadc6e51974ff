//! What a recording looks like on disk: a line that names the format, then records, each with its length and checksum.
//!
//! ```text
//!   "pelton recording 1\n"
//!   header    who recorded, and with which sources of the core: others read it wrongly
//!   snapshot  of the core, before the first call
//!   calls     some calls, back to back; again and again
//!   end       missing if the process was killed or the file was cut
//!
//!   record:  kind u8 | length u32 | checksum u64 of kind, length and payload | payload      little-endian
//! ```
//!
//! Payloads are postcard. A length is a claim until it was compared with its bound and with what the file still has.

use serde::{Deserialize, Serialize};

use crate::call::checksum;

/// How every recording begins; the version of the format follows.
pub(crate) const NAME: &[u8] = b"pelton recording ";
/// The first line.
pub(crate) const FIRST_LINE: &[u8] = b"pelton recording 1\n";
/// Kind, length, checksum.
pub(crate) const FRAME: usize = 1 + 4 + 8;
/// A million blocks of 32 tokens take some 100 MiB.
const SNAPSHOT_MAX: u32 = 1 << 30;
/// The writer begins another record at 16 KiB. Most single calls have at most a context's tokens, 5 bytes each; that which restores a
/// disk has all of its blocks, as the snapshots behind it do, at some 200 bytes each.
const CALLS_MAX: u32 = SNAPSHOT_MAX;
const SMALL_MAX: u32 = 4 << 10;

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Header = 1,
    Snapshot = 2,
    Calls = 3,
    End = 4,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Header, Self::Snapshot, Self::Calls, Self::End].into_iter().find(|&kind| kind as u8 == byte)
    }

    /// So many bytes of payload at most.
    pub(crate) fn length_max(self) -> u32 {
        match self {
            Self::Header | Self::End => SMALL_MAX,
            Self::Snapshot => SNAPSHOT_MAX,
            Self::Calls => CALLS_MAX,
        }
    }
}

/// Where a segment comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of Pelton.
    pub pelton: String,
    /// `pelton_core::SOURCES` of the core that was recorded.
    pub sources: String,
    /// One per process.
    pub run: u64,
    /// When the process began to record, in seconds since 1970.
    pub began: u64,
    /// Counted from 0 within a run.
    pub number: u64,
    /// Whether the segment goes on where the one before it ended. Otherwise the engine began anew, or:
    pub is_continued: bool,
    /// So many calls before it were not recorded: the disk was too slow.
    pub lost: u64,
}

/// A record, whole.
pub(crate) fn frame(kind: Kind, payload: &[u8]) -> Option<[u8; FRAME]> {
    let length = u32::try_from(payload.len()).ok().filter(|&length| length <= kind.length_max())?;
    let mut frame = [0; FRAME];
    frame[0] = kind as u8;
    frame[1..5].copy_from_slice(&length.to_le_bytes());
    frame[5..].copy_from_slice(&sum(kind as u8, length, payload).to_le_bytes());
    Some(frame)
}

/// The checksum of a record.
pub(crate) fn sum(kind: u8, length: u32, payload: &[u8]) -> u64 {
    checksum(payload) ^ checksum(&[&[kind][..], &length.to_le_bytes()].concat())
}

/// Why a file is not read, or not any further.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// It begins otherwise.
    #[error("this is no recording of Pelton")]
    NotARecording,
    /// Another version of the format.
    #[error("the recording has format {got}; this Pelton reads format 1")]
    OtherFormat {
        /// What it says.
        got: String,
    },
    /// Made by another build.
    #[error(
        "the recording was made by Pelton {} with core {}; this is {} with core {}: replay it with the build that made it",
        .0.pelton, .0.sources, env!("CARGO_PKG_VERSION"), pelton_core::SOURCES
    )]
    OtherSources(Box<Header>),
    /// The file ends too early.
    #[error("the file ends in the midst of a record, at byte {at}")]
    Cut {
        /// Where the record begins.
        at: u64,
    },
    /// Its bytes are not those that were written.
    #[error("a record is damaged, at byte {at}: {what}")]
    Record {
        /// Where the record begins.
        at: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The disk says no.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

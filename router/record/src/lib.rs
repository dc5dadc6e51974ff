//! Recordings: what the core was told, kept in files, so that an incident can be run again bit for bit and explained.
//!
//! In: the calls that the engine makes ([`RecordedCore`] is the core's door with a recorder beside it). Out: [`replay()`],
//! which makes the same calls, compares every plan, and tells each request's story.
//! Never here: API keys, text, the network. What users wrote is here, as token ids: files are for their owner only.
#![forbid(unsafe_code)]

mod call;
mod files;
mod format;
mod reader;
mod recorded;
mod recorder;
mod replay;
mod writer;

pub use call::{Call, Digest};
pub use format::{Damage, Header};
pub use reader::{Calls, Segment, segments};
pub use recorded::RecordedCore;
pub use recorder::{RecordOptions, Recorder};
pub use replay::{Difference, End, Replay, Story, replay};

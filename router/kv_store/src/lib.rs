//! KV blocks on disk: a folder that outlives router and workers, and that nobody has to trust.
//!
//! ```text
//!   FOLDER/lock              held (flock) by the one server that uses the folder
//!   FOLDER/hash-key          16 random bytes: block keys stay the same from one start to the next
//!   FOLDER/MODEL/about       which model, numerics and block size the blocks below are of
//!   FOLDER/MODEL/PLACE.kv    a block: what it is, its bytes, and checksums over both (see `file.rs`)
//! ```
//!
//! A block that is not exactly what was written, of exactly the model that asks, is none: it is removed and computed again.
//! Nothing here waits for the disk to have written (no fsync): a loss of power costs blocks, and checksums find the torn ones.
//! Files are for their owner only (0600): they hold what users wrote, as token ids, and what the model made of it.
//!
//! Never here: requests, schedules, which block is worth keeping. Places are the caller's; here they are names of files.
#![forbid(unsafe_code)]

mod error;
mod file;
mod folder;
mod identity;
mod store;
mod upkeep;

pub use error::{FolderError, ReadError};
pub use file::Record;
pub use folder::Folder;
pub use identity::{Identity, digest_of_model};
pub use store::{Entry, Store};
pub use upkeep::{Kept, list, purge};

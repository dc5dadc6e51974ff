//! The tiers below the device: what is kept in the host's memory and on disk, and how it comes back.

mod orders;

pub use orders::{DiskEntry, DiskFault, DiskOrder};

use crate::DiskPlace;
use crate::core::Core;

impl Core {
    /// Whether `disk_orders` has any.
    pub fn has_disk_orders(&self) -> bool {
        false
    }

    /// What the disk is to do next. To be asked after anything has changed.
    pub fn disk_orders(&mut self) -> Vec<DiskOrder> {
        Vec::new()
    }

    /// An order was carried out, or could not be.
    pub fn disk_done(&mut self, _place: DiskPlace, _result: Result<(), DiskFault>) {}

    /// What an earlier life of the engine has left on disk. Before the first request.
    pub fn restore_disk(&mut self, _entries: Vec<DiskEntry>) {}

    /// All that is kept below the devices is void: it is of another model, or computed otherwise.
    pub fn clear_tiers(&mut self) {}
}

//! What each group's readers are still to hear of the tiers that all groups share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{CacheChange, GroupId};

/// See the top of the file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    groups: BTreeMap<GroupId, Vec<CacheChange>>, // those whose readers are told
}

impl Told {
    pub(crate) fn tell(&mut self, change: impl FnOnce() -> CacheChange) {
        if self.groups.is_empty() {
            return;
        }
        let change = change();
        self.groups.values_mut().for_each(|changes| changes.push(change.clone()));
    }

    pub(crate) fn begin(&mut self, group: GroupId, known: Vec<CacheChange>) {
        self.groups.insert(group, known);
    }

    pub(crate) fn end(&mut self, group: GroupId) {
        self.groups.remove(&group);
    }

    pub(crate) fn take(&mut self, group: GroupId) -> Vec<CacheChange> {
        self.groups.get_mut(&group).map(std::mem::take).unwrap_or_default()
    }
}

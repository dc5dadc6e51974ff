//! A request's blocks, by place and kind. A hole is a block that was not taken yet, was given back, or is never needed.
//!
//! Never here: what the places mean (`kinds.rs`), who else holds the blocks.

use serde::{Deserialize, Serialize};

use crate::BlockId;

/// See the top of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Table {
    cells: Vec<Option<BlockId>>, // place by place, each with its kinds
    kinds: u32,
    held: u32, // cells that are no holes
}

impl Table {
    pub(crate) fn new(kinds: usize) -> Self {
        Self { cells: Vec::new(), kinds: u32::try_from(kinds).expect("few kinds"), held: 0 }
    }

    pub(crate) fn get(&self, kind: usize, at: usize) -> Option<BlockId> {
        self.cells.get(at * self.kinds as usize + kind).copied().flatten()
    }

    /// Fills a hole.
    pub(crate) fn put(&mut self, kind: usize, at: usize, block: BlockId) {
        let cell = at * self.kinds as usize + kind;
        if self.cells.len() <= cell {
            self.cells.resize((at + 1) * self.kinds as usize, None);
        }
        assert_eq!(self.cells[cell], None, "a hole is filled");
        self.cells[cell] = Some(block);
        self.held += 1;
    }

    /// Leaves a hole.
    pub(crate) fn take(&mut self, kind: usize, at: usize) -> Option<BlockId> {
        let block = self.cells.get_mut(at * self.kinds as usize + kind)?.take()?;
        self.held -= 1;
        Some(block)
    }

    /// Leaves holes from a place on.
    pub(crate) fn truncate(&mut self, at: usize) {
        while self.cells.len() > at * self.kinds as usize {
            let cell = self.cells.pop().expect("longer than that");
            self.held -= u32::from(cell.is_some());
        }
    }

    /// Blocks in the table.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// The blocks, place by place.
    pub(crate) fn blocks(&self) -> impl DoubleEndedIterator<Item = BlockId> {
        self.cells.iter().copied().flatten()
    }

    /// Those from a place on.
    pub(crate) fn blocks_from(&self, at: usize) -> impl Iterator<Item = BlockId> {
        self.cells[(at * self.kinds as usize).min(self.cells.len())..].iter().copied().flatten()
    }
}

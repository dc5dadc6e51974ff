//! What becomes findable, and is to be saved: the full blocks of a table, and the block that its end has begun to fill.

use super::Blocks;
use crate::keys::Key;
use crate::live::LiveRequest;
use crate::table::Table;
use crate::tiers::Label;
use crate::{BlockId, Medium, TokenId};

impl Blocks {
    /// What the block of a kind holds at one of a request's full places, by the number of places before it.
    pub(crate) fn label(&self, request: &mut LiveRequest, kind: usize, before: usize) -> Label {
        let parent = request.keys.key(&self.keys, &request.tokens, before);
        let key = request.keys.key(&self.keys, &request.tokens, before + 1);
        Label::new(&self.kinds, kind, parent, key, request.keys.scope().cloned(), before)
    }

    /// The tokens of a block, if it still holds what it is said to hold.
    pub(crate) fn tokens_of(&self, block: BlockId, key: Key) -> Option<&[TokenId]> {
        let index = self.index.as_ref()?;
        (index.key_of(block) == Some(key)).then(|| index.tokens_of(block))
    }

    /// Whether a tier below keeps copies of these blocks.
    pub(crate) fn are_saved(&self) -> bool {
        self.filled.is_some()
    }

    /// What was filled since the last call.
    pub(crate) fn take_filled(&mut self) -> Vec<(BlockId, Label)> {
        self.filled.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A block that was filled before is to be saved all the same.
    pub(crate) fn want_saved(&mut self, block: BlockId, label: Label) {
        self.filled.as_mut().expect("the caller saw a tier below").push((block, label));
    }

    /// Makes the full blocks of a table findable whose tokens are committed. Those of `indexed` places were looked at
    /// before, and the first `hidden` ones are not to be found.
    pub(crate) fn index_full(
        &mut self,
        request: &mut LiveRequest,
        table: &Table,
        indexed: &mut usize,
        committed: u32,
        hidden: usize,
    ) {
        let Some(index) = &mut self.index else { return };
        let block_size = self.block_size as usize;
        if request.keys.is_apart() {
            *indexed = committed as usize / block_size;
            return; // nobody may find it
        }
        while (*indexed + 1) * block_size <= committed as usize {
            let at = *indexed;
            if at < hidden {
                *indexed += 1;
                continue;
            }
            let parent = request.keys.key(&self.keys, &request.tokens, at);
            let key = request.keys.key(&self.keys, &request.tokens, at + 1);
            let filling = &request.tokens[at * block_size..][..block_size];
            let plain = request.keys.plain(at * block_size, (at + 1) * block_size);
            if at == 0 {
                self.traces.stored(self.keys.unsalted(filling), request.keys.salt());
            }
            for kind in 0..self.kinds.count() {
                let Some(block) = table.get(kind, at).filter(|_| self.kinds.is_kept(kind, at, committed)) else {
                    continue;
                };
                if index.full_block(block) == Some((kind, key)) {
                    continue; // a hit behind blocks that were brought back
                }
                index.forget(block); // it may have been findable as the end of a prompt
                if index.insert_full(block, kind, parent, key, filling, plain) {
                    let label = Label::new(&self.kinds, kind, parent, key, request.keys.scope().cloned(), at);
                    if let Some(changes) = &mut self.changes {
                        changes.extend(label.stored(filling, Medium::Device));
                    }
                    if let Some(filled) = &mut self.filled {
                        filled.push((block, label));
                    }
                }
            }
            *indexed += 1;
        }
    }

    /// Makes the end of a prompt findable that fills no block, while its request goes on to fill it: the copies that others
    /// take of it do not reach what is written behind it.
    pub(crate) fn index_prompt_end(&mut self, request: &mut LiveRequest, table: &Table, indexed: usize) {
        if indexed == (request.prompt_len / self.block_size) as usize {
            let prompt_len = request.prompt_len;
            self.index_tail(request, table, prompt_len);
        }
    }

    /// Makes the last block findable that committed tokens have begun to fill, up to the first that only holds a place. For a request that leaves: what is
    /// written behind those tokens does not matter, but the block must belong to no other table.
    pub(crate) fn index_tail(&mut self, request: &mut LiveRequest, table: &Table, committed: u32) {
        let Some(index) = self.index.as_mut().filter(|_| self.kinds.can_be_copied() && !request.keys.is_apart()) else {
            return;
        };
        let full = (committed / self.block_size) as usize;
        let start = full * self.block_size as usize;
        let filling = &request.tokens[start..][..request.keys.plain(start, committed as usize)];
        if !filling.is_empty() {
            let parent = request.keys.key(&self.keys, &request.tokens, full);
            for kind in 0..self.kinds.count() {
                let block = table.get(kind, full).expect("the next token would be written behind the latest one");
                index.forget(block); // it may have been findable with fewer tokens
                index.insert_tail(block, kind, parent, filling);
            }
        }
    }
}

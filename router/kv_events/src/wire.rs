//! A batch as msgpack, exactly as vLLM's encoder (msgspec) writes it.
//!
//! The batch is an array of three: `[timestamp, events, data_parallel_rank]`, the rank nil if there is none. An event is
//! a map whose first entry, `type`, is its name; before vllm#42892 (mid-2026) it was an array that began with its name. In a
//! map, fields that have a default are left out when they have it; `parent_block_hash`, `lora_id`, `medium` and `lora_name` have none
//! and are always there. In an array nothing is left out, because msgspec ignores `omit_defaults` there.
//!
//! Numbers take their shortest form. `lora_id` is deprecated and always nil: `lora_name` names the adapter.

use rmp::encode as msgpack;

use crate::event::{Batch, ExtraKey, KvEvent, Medium, Stored};

/// How an event is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// A map with names: vLLM since mid-2026, and all current readers.
    #[default]
    Map,
    /// An array by position, for readers of before: the last fields that vLLM wrote in this form.
    Array,
}

/// What `group_idx`, `kv_cache_spec_kind` and `kv_cache_spec_sliding_window` hold at the end of a stored event's array:
/// nil, for all blocks are of one kind here.
const STORED_TAIL: usize = 3;

/// `group_idx` at the end of a removed event's array.
const REMOVED_TAIL: usize = 1;

/// The batch as the third frame of its message.
pub(crate) fn encode(batch: &Batch, rank: Option<u32>, encoding: Encoding) -> Vec<u8> {
    let mut out = Packed { bytes: Vec::with_capacity(64 * (1 + batch.events.len())), encoding };
    out.array(3);
    out.float(batch.timestamp);
    out.array(batch.events.len());
    for event in &batch.events {
        out.event(event);
    }
    out.optional(rank, |out, rank| out.unsigned(rank.into()));
    out.bytes
}

/// Msgpack under way. Writing into a `Vec` cannot fail.
struct Packed {
    bytes: Vec<u8>,
    encoding: Encoding,
}

const VEC_TAKES_ALL: &str = "a Vec takes every write";

impl Packed {
    fn event(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Stored(stored) => self.stored(stored),
            KvEvent::Removed { hashes, medium } => {
                self.begin("BlockRemoved", 2, REMOVED_TAIL);
                self.name("block_hashes");
                self.list(hashes, |out, &hash| out.unsigned(hash));
                self.name("medium");
                self.text(medium.name());
                self.end(REMOVED_TAIL);
            }
            KvEvent::Cleared => self.begin("AllBlocksCleared", 0, 0),
        }
    }

    fn stored(&mut self, stored: &Stored) {
        let has_keys = !stored.extra_keys.is_empty();
        let in_map = 7 + usize::from(has_keys);
        let in_array = 8 - in_map + STORED_TAIL;
        self.begin("BlockStored", in_map, in_array);
        self.name("block_hashes");
        self.list(&stored.hashes, |out, &hash| out.unsigned(hash));
        self.name("parent_block_hash");
        self.optional(stored.parent, Self::unsigned);
        self.name("token_ids");
        self.list(&stored.tokens, |out, &token| out.unsigned(token.into()));
        self.name("block_size");
        self.unsigned(stored.block_size.into());
        self.name("lora_id");
        self.nil();
        self.name("medium");
        self.text(stored.medium.name());
        self.name("lora_name");
        self.optional(stored.lora.as_deref(), Self::text);
        if has_keys {
            self.name("extra_keys");
            self.list(&stored.extra_keys, |out, keys| out.block_keys(keys));
        }
        self.end(in_array);
    }

    /// One block's keys; nil where there are none.
    fn block_keys(&mut self, keys: &[ExtraKey]) {
        if keys.is_empty() {
            return self.nil();
        }
        self.list(keys, |out, key| match key {
            ExtraKey::Text(text) => out.text(text),
            ExtraKey::Media { identifier, offset } => {
                out.array(2);
                out.text(identifier);
                out.signed(*offset);
            }
            ExtraKey::Digest(digest) => out.binary(digest),
        });
    }

    /// Opens an event of `named` fields that stand in both forms and `tail` nils that stand in an array only.
    fn begin(&mut self, tag: &str, named: usize, tail: usize) {
        match self.encoding {
            Encoding::Map => {
                msgpack::write_map_len(&mut self.bytes, length(1 + named)).expect(VEC_TAKES_ALL);
                self.text("type");
            }
            Encoding::Array => self.array(1 + named + tail),
        }
        self.text(tag);
    }

    fn end(&mut self, tail: usize) {
        if self.encoding == Encoding::Array {
            (0..tail).for_each(|_| self.nil());
        }
    }

    /// The name of the field that follows; its place is its name in an array.
    fn name(&mut self, name: &str) {
        if self.encoding == Encoding::Map {
            self.text(name);
        }
    }

    fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.array(items.len());
        for item in items {
            write(self, item);
        }
    }

    fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.nil(),
        }
    }

    fn array(&mut self, len: usize) {
        msgpack::write_array_len(&mut self.bytes, length(len)).expect(VEC_TAKES_ALL);
    }

    fn unsigned(&mut self, value: u64) {
        msgpack::write_uint(&mut self.bytes, value).expect(VEC_TAKES_ALL);
    }

    fn signed(&mut self, value: i64) {
        msgpack::write_sint(&mut self.bytes, value).expect(VEC_TAKES_ALL);
    }

    fn float(&mut self, value: f64) {
        msgpack::write_f64(&mut self.bytes, value).expect(VEC_TAKES_ALL);
    }

    fn text(&mut self, text: &str) {
        msgpack::write_str(&mut self.bytes, text).expect(VEC_TAKES_ALL);
    }

    fn binary(&mut self, bytes: &[u8]) {
        msgpack::write_bin(&mut self.bytes, bytes).expect(VEC_TAKES_ALL);
    }

    fn nil(&mut self) {
        msgpack::write_nil(&mut self.bytes).expect(VEC_TAKES_ALL);
    }
}

impl Medium {
    fn name(self) -> &'static str {
        match self {
            Medium::Device => "GPU",
            Medium::Host => "CPU",
            Medium::Storage => "STORAGE",
        }
    }
}

/// A count as msgpack has it. A step's events are bounded by the tokens of a step, far below 2³².
fn length(len: usize) -> u32 {
    u32::try_from(len).expect("a batch has fewer than 2³² items")
}

#[cfg(test)]
mod tests;

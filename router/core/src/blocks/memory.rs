//! What the books of a worker's blocks take in the router's memory, and that it has a bound.

use super::*;
use crate::live::LiveRequest;
use crate::{CacheScope, Kind, Limits, Micros, NewRequest, Party, RequestId, Sampling, StopRule, TokenId};

const BLOCK_SIZE: u32 = 32;

/// What `docs/architecture.md` says: beside 4 bytes per token of a block. 64k blocks of 32 tokens: 25 MiB.
const BYTES_PER_BLOCK_MAX: usize = 260;

fn blocks(capacity: u32, kinds: Vec<Kind>) -> Blocks {
    let limits = Limits {
        slots: 1,
        tokens: 1,
        appends: 1,
        saves: 0,
        loads: 0,
        copies: 0,
        states: 0,
        biases: 0,
        suppressed: 0,
        history: 0,
        scores: 8,
        embeds: 0,
    };
    let config = CoreConfig {
        block_size: BLOCK_SIZE,
        kinds,
        max_model_len: 1 << 20,
        limits,
        max_running: 1,
        max_waiting: 1,
        token_budget: 1,
        itl_target_us: None,
        hash_key: [1, 2],
        host_blocks: 0,
        disk_places: 0,
        drafts_max: 0,
        prefix_caching: true,
        pin_share: 0,
        tenant_cache_share: 100,
        tells_cache_changes: false,
    };
    Blocks::new(capacity, false, &config)
}

/// A request of so many tokens that no other one has.
fn request(id: u32, tokens: u32) -> LiveRequest {
    let new = NewRequest {
        id: RequestId(id.into()),
        prompt: (0..tokens).map(|at| id.wrapping_mul(2_654_435_761) ^ at).collect::<Vec<TokenId>>().into(),
        generated: Vec::new(),
        scored: 0,
        goal: crate::Goal::Tokens,
        sampling: Sampling::greedy(),
        stop: StopRule { max_tokens: 1, min_tokens: 0, stop_ids: [].into() },
        masked: false,
        scope: CacheScope::default(),
        priority: 0,
        arrival: Micros(0),
        party: Party::default(),
        deadline: None,
    };
    LiveRequest::new(new, 1 << 20, false)
}

/// Computes a request and lets go of it: all of its blocks stay findable.
fn pass_by(blocks: &mut Blocks, id: u32, tokens: u32) {
    let mut request = request(id, tokens);
    let mut table = Table::new(blocks.kinds.count());
    blocks.take_for_row(&mut table, 0, tokens);
    let mut indexed = 0;
    blocks.index_full(&mut request, &table, &mut indexed, tokens, 0);
    blocks.index_tail(&mut request, &table, tokens);
    table.blocks().rev().for_each(|block| blocks.give(block, 0));
}

fn heap_bytes(blocks: &Blocks) -> usize {
    let index = blocks.index.as_ref().expect("prefix caching is on");
    blocks.pool.heap_bytes() + index.heap_bytes() + blocks.traces.heap_bytes()
}

#[test]
fn a_block_costs_the_router_no_more_bytes_than_stated() {
    for kinds in [vec![Kind::Full], vec![Kind::Full, Kind::Window { tokens: 64 }]] {
        let capacity = 1 << 16;
        let mut blocks = blocks(capacity, kinds.clone());
        for id in 0..capacity {
            pass_by(&mut blocks, id, BLOCK_SIZE * 2);
        }
        blocks.check(std::iter::empty());
        let per_block = heap_bytes(&blocks) / capacity as usize - 4 * BLOCK_SIZE as usize;
        println!("{per_block} bytes per block, and 4 per token, with {kinds:?}");
        assert!(per_block <= BYTES_PER_BLOCK_MAX, "{per_block} bytes per block, with {kinds:?}");
    }
}

#[test]
fn a_million_distinct_prefixes_leave_the_index_as_large_as_the_pool() {
    let capacity = 1_000;
    let mut blocks = blocks(capacity, vec![Kind::Full]);
    for id in 0..3 * capacity {
        pass_by(&mut blocks, id, BLOCK_SIZE + 5);
    }
    let before = heap_bytes(&blocks);
    for id in 0..1_000_000 {
        pass_by(&mut blocks, 10_000 + id, BLOCK_SIZE + 5);
    }
    blocks.check(std::iter::empty());
    assert_eq!(blocks.pool.idle(), capacity as usize);
    assert!(heap_bytes(&blocks) <= before * 2, "{} bytes became {}", before, heap_bytes(&blocks));
}

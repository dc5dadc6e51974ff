//! Whatever a router sends as a plan, the worker's end refuses it or hands out what keeps within every bound.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use pelton_frame::{Bounds, Capacities, Inline, Layout, Memory, STATUS_OK, Waited, WorkerEnd};

/// Frames that one input may hold, one behind the other.
const FRAMES: usize = 3;

fuzz_target!(|input: &[u8]| {
    let capacities = Capacities {
        frames: 2,
        slots: 8,
        tokens: 64,
        appends: 16,
        copies: 4,
        biases: 8,
        suppressed: 8,
        history: 32,
        saves: 4,
        loads: 4,
        top_logprobs: 3,
        pooled_width: 4,
        embeds: 7,
        embed_width: 3,
        scores: 4,
    };
    let bounds = Bounds { blocks: 32, kinds: 2, block_size: 16, vocab: 1000, positions: 512, host_blocks: 12 };
    let layout = Layout::new(capacities).expect("small capacities");
    let memory = Memory::local(&layout, 1).expect("memory");
    let (mut inline, mut worker) = (Inline::new(memory.clone()), WorkerEnd::new(memory, None));
    worker.set_bounds(bounds);
    for bytes in input.chunks(input.len().div_ceil(FRAMES).next_multiple_of(4).max(4)) {
        if inline.accept_plan(bytes).is_err() {
            return; // it does not say what it is
        }
        let Ok(Waited::Step(frame)) = worker.take() else { return };
        let plan = worker.plan().expect("just taken");
        assert!(plan.rows.len() <= 8 && plan.tokens.len() <= 64);
        for row in plan.rows {
            assert!(row.slot < 8 && row.count > 0 && row.known <= row.count && row.count - row.known <= 1);
            assert!(row.start.checked_add(row.count).is_some_and(|end| end <= 512));
            assert!((row.token_offset as usize).checked_add(row.known as usize).is_some_and(|end| end <= plan.tokens.len()));
        }
        let embeds: usize = plan.rows.iter().map(|row| row.embeds as usize).sum();
        assert!(embeds <= 7 && plan.embeds.len() == embeds * 3 && plan.rows.iter().all(|row| row.embeds <= row.known));
        assert!(plan.appends.iter().all(|append| append.slot < 8 && append.kind < 2 && append.at < 32 && append.block < 32));
        assert!(plan.copies.iter().all(|copy| copy.from < 32 && copy.to < 32 && copy.tokens <= 16));
        assert!(plan.saves.iter().all(|save| save.block < 32 && save.host_block < 12));
        assert!(plan.loads.iter().all(|load| load.block < 32 && load.host_block < 12));
        for admit in plan.admits {
            assert!(admit.slot < 8);
            let within = |offset: u32, count: u32, len: usize| (offset as usize + count as usize) <= len;
            assert!(within(admit.bias_offset, admit.bias_count, plan.biases.len()));
            assert!(within(admit.suppress_offset, admit.suppress_count, plan.suppressed.len()));
            assert!(within(admit.history_offset, admit.history_count, plan.history.len()));
        }
        worker.publish(frame, STATUS_OK, Duration::ZERO).expect("the frame that was taken");
        inline.next_result().expect("a result of ours").expect("published");
    }
});

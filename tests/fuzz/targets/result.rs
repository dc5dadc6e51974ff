//! Whatever a worker sends as a result, the router's end refuses it or hands out as many rows as it asked for.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use pelton_frame::{Capacities, Inline, Layout, Memory, PlanView, ROW_SAMPLES, RouterEnd, Row};

fuzz_target!(|input: &[u8]| {
    let capacities = Capacities {
        frames: 2,
        slots: 8,
        tokens: 64,
        appends: 1,
        copies: 1,
        biases: 1,
        suppressed: 1,
        history: 1,
        saves: 1,
        loads: 1,
        top_logprobs: 3,
        pooled_width: 4,
        embeds: 0,
        embed_width: 0,
        scores: 4,
    };
    let layout = Layout::new(capacities).expect("small capacities");
    let memory = Memory::local(&layout, 1).expect("memory");
    let (mut inline, mut router) = (Inline::new(memory.clone()), RouterEnd::new(memory));
    let row = |slot| Row { slot, count: 1, known: 1, token_offset: slot, row_offset: slot, flags: ROW_SAMPLES, ..Row::default() };
    let rows: Vec<Row> = (0..3).map(row).collect();
    router.submit(&PlanView { step: 1, rows: &rows, tokens: &[7; 3], ..PlanView::default() }).expect("a sound plan");
    inline.next_plan(Duration::ZERO).expect("ours").expect("submitted");
    for bytes in input.chunks(input.len().div_ceil(2).next_multiple_of(4).max(4)) {
        if inline.accept_result(bytes).is_err() {
            return;
        }
        match router.poll() {
            Some(Ok(results)) => {
                assert_eq!((results.step, results.sampled.len(), results.flags.len(), results.chosen.len()), (1, 3, 3, 3));
                assert!(results.top.is_empty(), "nobody asked");
            }
            Some(Err(_)) | None => return,
        }
    }
});

//! Both ends together: any plan arrives as it was sent, and no damage goes unnoticed.

use std::{thread, time::Duration};

use proptest::prelude::*;

use crate::{
    layout::tests::small,
    memory::flip,
    records::{ADMIT_LOGPROBS, ROW_POOLS, ROW_SAMPLES},
    *,
};

/// A plan that owns its records.
#[derive(Debug, Clone, Default, PartialEq)]
struct Plan {
    drops: Vec<u32>,
    admits: Vec<Admit>,
    biases: Vec<Bias>,
    suppressed: Vec<u32>,
    history: Vec<u32>,
    appends: Vec<Append>,
    saves: Vec<Save>,
    loads: Vec<Load>,
    copies: Vec<Copy>,
    rows: Vec<Row>,
    tokens: Vec<u32>,
    embeds: Vec<f32>,
}

impl Plan {
    fn view(&self, step: u64) -> PlanView<'_> {
        PlanView {
            step,
            drops: &self.drops,
            admits: &self.admits,
            biases: &self.biases,
            suppressed: &self.suppressed,
            history: &self.history,
            appends: &self.appends,
            saves: &self.saves,
            loads: &self.loads,
            copies: &self.copies,
            rows: &self.rows,
            tokens: &self.tokens,
            embeds: &self.embeds,
        }
    }

    /// Adds a row of `count` tokens, all known, that draws.
    fn row(self, slot: u32, start: u32, count: u32) -> Self {
        self.flagged(slot, start, count, ROW_SAMPLES)
    }

    fn flagged(mut self, slot: u32, start: u32, count: u32, flags: u32) -> Self {
        let token_offset = self.tokens.len() as u32;
        let row_offset = self.rows.iter().map(|row| row.count).sum();
        let row = Row { slot, start, count, known: count, token_offset, flags, row_offset, ..Row::default() };
        self.rows.push(row);
        self.tokens.extend(start..start + count);
        self
    }

    /// Gives the first `count` tokens of the latest row as embeddings.
    fn embedded(mut self, count: u32) -> Self {
        self.rows.last_mut().expect("there is a row").embeds = count;
        self.embeds.extend((0..count * small().embed_width).map(|at| at as f32 - 1.5));
        self
    }
}

/// Something in every region, within `small()` and `bounds()`.
fn full() -> Plan {
    let admit = Admit {
        slot: 2,
        flags: ADMIT_LOGPROBS,
        temperature: 0.7,
        top_logprobs: 2,
        bias_offset: 0,
        bias_count: 2,
        suppress_offset: 1,
        suppress_count: 1,
        history_offset: 0,
        history_count: 3,
        ..Admit::default()
    };
    let plan = Plan {
        drops: vec![7, 2],
        admits: vec![admit],
        biases: vec![Bias { token: 5, value: -1.5 }, Bias { token: 6, value: 100.0 }],
        suppressed: vec![1, 2],
        history: vec![9, 8, 7],
        appends: vec![Append { slot: 2, kind: 0, at: 0, block: 11 }, Append { slot: 3, kind: 2, at: 5, block: 12 }],
        saves: vec![Save { block: 4, host_block: 63 }],
        loads: vec![Load { host_block: 7, block: 11 }, Load { host_block: 0, block: 31 }],
        copies: vec![Copy { from: 3, to: 11, tokens: 16, zero: 0 }],
        ..Plan::default()
    };
    plan.row(2, 0, 9).embedded(2).row(3, 40, 1).flagged(5, 0, 4, ROW_POOLS)
}

fn bounds() -> Bounds {
    Bounds { blocks: 32, kinds: 3, host_blocks: 64, block_size: 32, vocab: 1000, positions: 4096 }
}

fn ends() -> (RouterEnd, WorkerEnd) {
    let memory = Memory::create(&Layout::new(small()).unwrap(), 3).unwrap();
    let peer = Memory::from_fd(memory.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
    let mut worker = WorkerEnd::new(peer, None);
    worker.set_bounds(bounds());
    (RouterEnd::new(memory), worker)
}

fn take(worker: &mut WorkerEnd) -> u32 {
    match worker.take().unwrap() {
        Waited::Step(frame) => frame,
        other => panic!("no step was taken: {other:?}"),
    }
}

/// Writes all results: token `first`, `first + 1` ...
fn answer(worker: &mut WorkerEnd, frame: u32, first: u32) {
    let draws = worker.header(frame).unwrap().draws;
    let memory = worker.memory().clone();
    let (top, width) = (memory.layout().capacities().top_logprobs, memory.layout().capacities().pooled_width);
    memory.write(frame, Region::Sampled, &(first..first + draws).collect::<Vec<_>>());
    memory.write(frame, Region::Flags, &vec![0; draws as usize]);
    memory.write(frame, Region::ChosenLogprob, &vec![(-0.5f32).to_bits(); draws as usize]);
    memory.write(frame, Region::TopIds, &(0..draws * top).collect::<Vec<_>>());
    memory.write(frame, Region::TopLogprobs, &vec![(-0.25f32).to_bits(); (draws * top) as usize]);
    memory.write(frame, Region::Pooled, &(0..draws * width).map(|at| (at as f32).to_bits()).collect::<Vec<_>>());
    worker.publish(frame, STATUS_OK, Duration::from_micros(250)).unwrap();
}

#[test]
fn a_step_goes_out_and_its_results_come_back() {
    let (mut router, mut worker) = ends();
    router.submit(&full().view(1)).unwrap();
    assert_eq!(router.in_flight(), 1);
    assert_eq!(router.poll(), None);

    let frame = take(&mut worker);
    let header = *worker.header(frame).unwrap();
    assert_eq!((header.step(), header.epoch, header.rows, header.tokens), (1, 3, 3, 14));
    assert_eq!((header.drops, header.admits, header.appends, header.copies), (2, 1, 2, 1));
    assert_eq!((header.saves, header.loads, header.embeds), (1, 2, 2));
    assert_eq!(worker.plan().unwrap().embeds, full().embeds);
    answer(&mut worker, frame, 40);

    let results = router.poll().unwrap().unwrap();
    assert_eq!((results.step, results.duration_us), (1, 250));
    assert_eq!((results.sampled, results.flags), (vec![40, 41, 42], vec![0, 0, 0]));
    assert_eq!(results.chosen, [-0.5, -0.5, -0.5]);
    assert_eq!(results.top, (0..9).map(|id| (id, -0.25)).collect::<Vec<_>>());
    assert_eq!(results.pooled, (0..15).map(|at| at as f32).collect::<Vec<_>>());
    assert_eq!((router.in_flight(), router.poll()), (0, None));
}

#[test]
fn likeliest_tokens_travel_only_while_a_row_in_the_step_asks_for_them() {
    let (mut router, mut worker) = ends();
    let asks = full();
    let others = Plan::default().row(3, 41, 1);
    let admitted = Admit { slot: 2, score_top: 1, ..Admit::default() };
    let left = Plan { admits: vec![admitted], ..Plan::default() }.row(2, 0, 1);
    let mut scored = Plan::default().row(2, 1, 3);
    scored.rows[0].scores = 2;
    for (step, (plan, top)) in
        [(asks, 9), (others, 0), (Plan::default().row(2, 9, 1), 3), (left, 0), (scored, 9)].iter().enumerate()
    {
        router.submit(&plan.view(step as u64 + 1)).unwrap();
        let frame = take(&mut worker);
        answer(&mut worker, frame, 0);
        assert_eq!(router.poll().unwrap().unwrap().top.len(), *top, "step {}", step + 1);
    }
}

#[test]
fn vectors_travel_only_in_steps_in_which_a_row_pools() {
    let (mut router, mut worker) = ends();
    let both = Plan::default().row(1, 0, 2).flagged(4, 0, 3, ROW_POOLS);
    let chunk = Plan::default().flagged(4, 0, 3, 0);
    for (step, (plan, numbers)) in [(both, 10), (chunk, 0), (Plan::default(), 0)].iter().enumerate() {
        router.submit(&plan.view(step as u64 + 1)).unwrap();
        let frame = take(&mut worker);
        answer(&mut worker, frame, 0);
        assert_eq!(router.poll().unwrap().unwrap().pooled.len(), *numbers, "step {}", step + 1);
    }
}

#[test]
fn frames_without_embeddings_carry_none() {
    let layout = Layout::new(Capacities { embeds: 0, embed_width: 0, ..small() }).unwrap();
    let mut router = RouterEnd::new(Memory::local(&layout, 1).unwrap());
    let error = router.submit(&Plan::default().row(0, 0, 2).embedded(1).view(1)).unwrap_err().to_string();
    assert!(error.contains("3 embeds do not fit; the frame holds 0"), "{error}");
    let mut nameless = Plan::default().row(0, 0, 2).embedded(1);
    nameless.embeds.clear();
    let error = router.submit(&nameless.view(1)).unwrap_err().to_string();
    assert!(error.contains("rows[0].embeds is 1; allowed: 0 to 0"), "{error}");
}

#[test]
fn frames_without_vectors_carry_no_row_that_pools() {
    let layout = Layout::new(Capacities { pooled_width: 0, ..small() }).unwrap();
    let mut router = RouterEnd::new(Memory::local(&layout, 1).unwrap());
    let error = router.submit(&Plan::default().flagged(0, 0, 1, ROW_POOLS).view(1)).unwrap_err().to_string();
    assert!(error.contains("rows[0].flags is 4; allowed: to pool alone, where frames carry vectors"), "{error}");
}

#[test]
fn steps_queue_up_to_the_number_of_frames_and_come_back_in_order() {
    let (mut router, mut worker) = ends();
    let plan = Plan::default().row(0, 0, 1);
    let mut step = 0;
    for round in 0..50 {
        while router.free_frame() {
            step += 1;
            router.submit(&plan.view(step)).unwrap();
        }
        assert_eq!(router.submit(&plan.view(step + 1)), Err(FrameError::NoFreeFrame { frames: 4 }));
        let taken: Vec<u32> = (0..4).map(|_| take(&mut worker)).collect();
        assert_eq!(worker.take(), Ok(Waited::Idle));
        assert_eq!(worker.publish(taken[1], STATUS_OK, Duration::ZERO), Err(FrameError::NotDue { frame: taken[1] }));
        for frame in taken {
            answer(&mut worker, frame, round);
        }
        for behind in (0..4).rev() {
            assert_eq!(router.poll().unwrap().unwrap().step, step - behind);
        }
    }
}

#[test]
fn damage_of_any_word_of_a_result_is_noticed() {
    let words_of = |router: &RouterEnd| {
        let layout = router.memory().layout().clone();
        let used = [(Region::ResultHeader, 16), (Region::Sampled, 3), (Region::Flags, 3), (Region::ChosenLogprob, 3)];
        let tops = [(Region::TopIds, 9), (Region::TopLogprobs, 9), (Region::Pooled, 15)];
        let words = move |(region, count)| (0..count).map(move |word| (region, word));
        let at = move |(region, word): (Region, usize)| PREAMBLE_BYTES + layout.place(region).offset + 4 * word;
        used.into_iter().chain(tops).flat_map(words).map(at).collect::<Vec<_>>()
    };
    let count = words_of(&ends().0).len();
    for word in 0..count {
        let (mut router, mut worker) = ends();
        router.submit(&full().view(1)).unwrap();
        let frame = take(&mut worker);
        answer(&mut worker, frame, 0);
        flip(router.memory(), words_of(&router)[word], 1 << (word % 32));
        assert!(router.poll().unwrap().is_err(), "word {word} of the result");
    }
}

#[test]
fn damage_of_any_word_of_a_plan_is_noticed() {
    let plan = full();
    let header = plan.view(1).header(3, true);
    let counts = plan::PLAN_REGIONS.into_iter().zip(header.counts());
    for (region, count) in [(Region::Header, 1)].into_iter().chain(counts) {
        let place = Layout::new(small()).unwrap().place(region);
        for word in 0..count as usize * place.words {
            let (mut router, mut worker) = ends();
            router.submit(&plan.view(1)).unwrap();
            flip(router.memory(), PREAMBLE_BYTES + place.offset + 4 * word, 1 << (word % 32));
            assert!(worker.take().is_err(), "word {word} of {region}");
        }
    }
}

#[test]
fn plans_that_point_outside_are_refused_by_field() {
    // (what is wrong, what the error names)
    type Change = fn(&mut Plan);
    let cases: &[(Change, &str)] = &[
        (|p| p.drops[0] = 8, "drops[0].slot is 8"),
        (|p| p.admits[0].slot = 8, "admits[0].slot is 8"),
        (|p| p.admits.push(p.admits[0]), "admits[1].slot is 2; allowed: each slot once"),
        (|p| p.admits[0].bias_count = 3, "bias_offset + bias_count is 3"),
        (|p| p.admits[0].bias_offset = u32::MAX, "bias_offset + bias_count is 4294967297"),
        (|p| p.admits[0].suppress_offset = 2, "suppress_offset + suppress_count + told_count is 3"),
        (|p| p.admits[0].history_count = 4, "history_offset + history_count is 4"),
        (|p| p.admits[0].top_logprobs = 4, "top_logprobs is 4; allowed: 0 to 3"),
        (|p| p.appends[1].slot = 9, "appends[1].slot is 9"),
        (|p| p.rows[1].slot = 2, "rows[1].slot is 2; allowed: each slot once"),
        (|p| p.rows[1].slot = 99, "rows[1].slot is 99"),
        (|p| p.rows[0].count = 0, "rows[0].count is 0"),
        (|p| p.rows[1].count = 56, "rows[1].count is 56; allowed: 1 to 55"),
        (|p| p.rows[0].known = 7, "rows[0].known is 7; allowed: 8 to 9"),
        (|p| p.rows[0].known = 10, "rows[0].known is 10"),
        (|p| p.rows[1].token_offset = 8, "rows[1].token_offset is 8; allowed: 9 to 9"),
        (|p| p.rows[1].row_offset = 10, "rows[1].row_offset is 10"),
        (|p| p.rows[1].flags = 2, "rows[1].flags is 2"),
        (|p| p.rows[0].scores = 7, "rows[0].scores is 7; allowed: 0 to 6"),
        (|p| (p.rows[1].scores, p.rows[1].known) = (1, 0), "rows[1].scores is 1; allowed: 0 to 0"),
        (|p| p.rows[1].scores = 1, "rows[1].scores is 1; allowed: 0 to 0"), // it draws behind its only token
        (|p| p.rows[2].scores = 1, "rows[2].scores is 1; allowed: 0 to 0"), // it pools
        (|p| p.rows[0].next = 1, "rows[0].next is 1; allowed: 0 to 0"),
        (|p| p.admits[0].score_top = 4, "admits[0].score_top is 4; allowed: 0 to 3"),
        (|p| p.admits[0].told_count = 1, "admits[0].told_count is 1; allowed: "),
        (
            |p| (p.admits[0].told_count, p.admits[0].top_logprobs) = (2, 2),
            "suppress_offset + suppress_count + told_count is ",
        ),
        (|p| p.rows[0].drafts = 9, "rows[0].drafts is 9; allowed: 0 to 5"),
        (|p| (p.rows[0].drafts, p.rows[0].flags) = (1, 0), "rows[0].drafts is 1; allowed: 0 to 0"),
        (|p| (p.rows[0].drafts, p.rows[0].flags) = (1, 3), "rows[0].drafts is 1; allowed: 0 to 0"),
        (|p| (p.rows[0].drafts, p.rows[0].known) = (1, 8), "rows[0].drafts is 1; allowed: 0 to 0"),
        (|p| p.rows[1].flags = ROW_POOLS | ROW_SAMPLES, "rows[1].flags is 5; allowed: to pool alone"),
        (|p| p.rows[1].flags = 8, "rows[1].flags is 8"),
        (|p| p.rows[0].embeds = 8, "rows[0].embeds is 8; allowed: 0 to 7"),
        (|p| p.rows[1].embeds = 6, "rows[1].embeds is 6; allowed: 0 to 1"),
        (|p| (p.rows[1].embeds, p.rows[1].known) = (1, 0), "rows[1].embeds is 1; allowed: 0 to 0"), // nobody knows it yet
        (|p| p.rows[2].embeds = 1, "rows[2].embeds is 1; allowed: 0 to 0"),                         // it pools
        (|p| (p.rows[0].drafts, p.rows[0].embeds) = (5, 5), "rows[0].embeds is 5; allowed: 0 to 4"),
        (|p| p.rows[0].embeds = 1, "embeds is 6, and 3 is due"),
        (|p| p.embeds.truncate(5), "embeds is 5, and 6 is due"),
        (|p| p.embeds = vec![0.0; 22], "8 embeds do not fit; the frame holds 7"),
        (|p| p.tokens.push(1), "tokens is 15, and 14 is due"),
        (|p| p.tokens.truncate(5), "tokens is 5, and 14 is due"),
        (|p| p.drops = vec![0; 9], "9 drops do not fit; the frame holds 8"),
        (|p| p.history = vec![0; 33], "33 history do not fit"),
        (|p| p.saves = vec![p.saves[0]; 5], "5 saves do not fit; the frame holds 4"),
        (|p| p.loads = vec![p.loads[0]; 5], "5 loads do not fit; the frame holds 4"),
    ];
    for (change, expected) in cases {
        let (mut router, _worker) = ends();
        let mut plan = full();
        change(&mut plan);
        let error = router.submit(&plan.view(1)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\nshould say: {expected}");
        assert_eq!(router.in_flight(), 0);
    }
    // What only the worker knows: its arena, its model.
    let cases: &[(Change, &str)] = &[
        (|p| p.appends[0].block = 32, "appends[0].block is 32; allowed: 0 to 31"),
        (|p| p.appends[0].kind = 3, "appends[0].kind is 3; allowed: 0 to 2"),
        (|p| p.appends[1].at = 128, "appends[1].at is 128; allowed: 0 to 127"),
        (|p| p.saves[0].block = 32, "saves[0].block is 32; allowed: 0 to 31"),
        (|p| p.saves[0].host_block = 64, "saves[0].host_block is 64; allowed: 0 to 63"),
        (|p| p.loads[1].host_block = 64, "loads[1].host_block is 64; allowed: 0 to 63"),
        (|p| p.loads[1].block = u32::MAX, "loads[1].block is"),
        (|p| p.copies[0].from = 32, "copies[0].from is 32"),
        (|p| p.copies[0].to = u32::MAX, "copies[0].to is"),
        (|p| p.copies[0].tokens = 33, "copies[0].tokens is 33"),
        (|p| p.biases[1].token = 1000, "biases[1].token is 1000"),
        (|p| p.suppressed[0] = 1000, "suppressed[0].token is 1000"),
        (|p| p.history[2] = 5000, "history[2].token is 5000"),
        (|p| p.tokens[9] = 1000, "tokens[9].token is 1000"),
        (
            |p| (p.rows[0].flags, p.rows[0].scores, p.rows[0].next) = (0, 1, 1000),
            "rows[0].next is 1000; allowed: 0 to 999",
        ),
        (|p| p.rows[1].start = 4096, "rows[1].start is 4096; allowed: 0 to 4095"),
        (|p| p.rows[1].start = u32::MAX, "rows[1].start is"),
    ];
    for (change, expected) in cases {
        let (mut router, mut worker) = ends();
        let mut plan = full();
        change(&mut plan);
        // A position that overflows is refused on both sides.
        let error = match router.submit(&plan.view(1)) {
            Ok(()) => worker.take().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expected), "{error}\nshould say: {expected}");
    }
}

#[test]
fn a_worker_that_maps_no_host_memory_takes_no_plan_that_names_it() {
    let saves = Plan { saves: vec![Save { block: 0, host_block: 0 }], ..Plan::default() };
    let loads = Plan { loads: vec![Load { block: 0, host_block: 0 }], ..Plan::default() };
    for plan in [saves, loads] {
        let (mut router, mut worker) = ends();
        worker.set_bounds(Bounds { host_blocks: 0, ..bounds() });
        router.submit(&plan.view(1)).unwrap();
        assert!(worker.take().unwrap_err().to_string().contains("host_block is 0; allowed: none"));
    }
}

#[test]
fn steps_out_of_order_and_other_epochs_are_refused() {
    let (mut router, mut worker) = ends();
    router.submit(&Plan::default().row(0, 0, 1).view(2)).unwrap();
    assert!(worker.take().unwrap_err().to_string().contains("step is 2, and 1 is due"));

    let memory = Memory::local(&Layout::new(small()).unwrap(), 4).unwrap();
    let (mut other, mut carrier) = (RouterEnd::new(memory.clone()), Inline::new(memory));
    other.submit(&Plan::default().row(0, 0, 1).view(1)).unwrap();
    let bytes = carrier.next_plan(Duration::ZERO).unwrap().unwrap();
    let local = Memory::local(&Layout::new(small()).unwrap(), 3).unwrap();
    Inline::new(local.clone()).accept_plan(&bytes).unwrap();
    assert!(WorkerEnd::new(local, None).take().unwrap_err().to_string().contains("epoch is 4, and 3 is due"));
}

#[test]
fn a_worker_that_counts_what_nobody_submitted_is_an_error() {
    let (mut router, worker) = ends();
    worker.memory().complete();
    let counter = FrameError::Counter { counter: "completed", got: 1, most: 0 };
    assert_eq!(router.poll(), Some(Err(counter)));
}

#[test]
fn a_failed_step_is_the_workers_fault() {
    let (mut router, mut worker) = ends();
    router.submit(&full().view(1)).unwrap();
    let frame = take(&mut worker);
    worker.publish(frame, STATUS_FAILED, Duration::ZERO).unwrap();
    assert_eq!(router.poll(), Some(Err(FrameError::WorkerFailed { step: 1, status: STATUS_FAILED })));
}

#[test]
fn the_worker_beats_while_it_waits_and_hears_of_the_routers_end() {
    let (router, mut worker) = ends();
    let before = router.heartbeat();
    assert_eq!(worker.wait(Duration::from_millis(1)), Ok(Waited::Idle));
    assert_ne!(router.heartbeat(), before);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| worker.wait(Duration::from_secs(60)));
        drop(router);
        assert_eq!(waiting.join().unwrap(), Ok(Waited::Detached));
    });
}

#[test]
fn whoever_sleeps_is_woken_by_the_end_and_takes_it_for_no_frame() {
    // Each round sleeps, spins or comes too late by chance. An end that woke nobody would show as a minute's wait.
    for _ in 0..500 {
        let (router, mut worker) = ends();
        let memory = worker.memory().clone();
        let mut outlet = Inline::new(memory.clone());
        thread::scope(|scope| {
            let sleeper = scope.spawn(move || memory.submissions().wait(0, Duration::from_secs(60)));
            let taker = scope.spawn(move || worker.wait(Duration::from_secs(60)));
            let carrier = scope.spawn(move || outlet.next_plan(Duration::from_secs(60)));
            drop(router);
            assert!(sleeper.join().unwrap());
            assert_eq!(taker.join().unwrap(), Ok(Waited::Detached));
            assert_eq!(carrier.join().unwrap(), Ok(None));
        });
    }
}

#[test]
fn inline_bytes_of_a_wrong_length_are_refused() {
    let memory = Memory::local(&Layout::new(small()).unwrap(), 3).unwrap();
    let (mut router, mut out) = (RouterEnd::new(memory.clone()), Inline::new(memory));
    router.submit(&full().view(1)).unwrap();
    let bytes = out.next_plan(Duration::ZERO).unwrap().unwrap();
    assert_eq!(out.next_plan(Duration::ZERO), Ok(None));
    let mut inlet = Inline::new(Memory::local(&Layout::new(small()).unwrap(), 3).unwrap());
    for cut in [0, 3, 63, 64, bytes.len() - 4, bytes.len() - 1] {
        assert!(matches!(inlet.accept_plan(&bytes[..cut]), Err(FrameError::Length { .. })), "{cut} bytes");
        assert!(inlet.accept_result(&bytes[..cut.min(60)]).is_err(), "{cut} bytes");
    }
    let mut long = bytes.clone();
    long.extend([0; 4]);
    assert!(matches!(inlet.accept_plan(&long), Err(FrameError::Length { .. })));
    for frame in 0..4 {
        assert_eq!(inlet.accept_plan(&bytes), Ok(frame));
    }
    assert_eq!(inlet.accept_plan(&bytes), Err(FrameError::NoFreeFrame { frames: 4 }));
}

/// What a row may be.
const ROW_FLAGS: &[u32] = &[0, ROW_SAMPLES, ROW_SAMPLES | ROW_MASKED, ROW_POOLS];

prop_compose! {
    /// Any plan that fits `small()`: up to 8 rows of up to 8 tokens.
    fn any_plan()(
        slots in Just((0..8u32).collect::<Vec<_>>()).prop_shuffle(),
        rows in prop::collection::vec((0..4000u32, 1..=8u32, any::<bool>(), prop::sample::select(ROW_FLAGS)), 0..=8),
        drops in prop::collection::vec(0..8u32, 0..=8),
        tokens in prop::collection::vec(0..1000u32, 64),
        history in prop::collection::vec(0..1000u32, 0..=32),
        appends in prop::collection::vec((0..8u32, 0..3u32, 0..128u32, 0..32u32), 0..=16),
        moved in prop::collection::vec((0..32u32, 0..64u32), 0..=8),
        admitted in 0..=8usize,
        temperature in any::<f32>(),
    ) -> Plan {
        let mut plan = Plan { drops, ..Plan::default() };
        let (mut token_offset, mut row_offset) = (0, 0);
        let (mut drafts_left, mut scores_left, mut embeds_left) = (8 - rows.len() as u32, 6, 7);
        for ((start, count, last_known, flags), slot) in rows.into_iter().zip(&slots) {
            let known = if last_known { count } else { count - 1 };
            let drafts = if flags == ROW_SAMPLES && last_known { (start % count).min(drafts_left) } else { 0 };
            drafts_left -= drafts;
            let may_score = flags & ROW_POOLS == 0 && drafts == 0 && last_known;
            let scores = if may_score { (start % 7).min(count - (flags & ROW_SAMPLES)).min(scores_left) } else { 0 };
            scores_left -= scores;
            let next = if scores > 0 && flags & ROW_SAMPLES == 0 { start % 1000 } else { 0 };
            let embeds = if flags & ROW_POOLS == 0 { (start % 5).min(known - drafts).min(embeds_left) } else { 0 };
            embeds_left -= embeds;
            plan.embeds.extend((0..embeds * small().embed_width).map(|at| at as f32 / 3.0 - temperature));
            plan.rows.push(Row {
                slot: *slot, start, count, known, token_offset, flags, row_offset, drafts, scores, next, embeds,
            });
            (token_offset, row_offset) = (token_offset + known, row_offset + count);
        }
        plan.tokens = tokens[..token_offset as usize].to_vec();
        let history_count = history.len() as u32;
        let admit = |slot: &u32| Admit {
            slot: *slot, temperature, history_count, top_logprobs: slot % 4, ..Admit::default()
        };
        plan.admits = slots.iter().take(admitted).map(admit).collect();
        plan.history = history;
        plan.appends = appends.into_iter().map(|(slot, kind, at, block)| Append { slot, kind, at, block }).collect();
        let (saved, loaded) = moved.split_at(moved.len() / 2);
        plan.saves = saved.iter().map(|&(block, host_block)| Save { block, host_block }).collect();
        plan.loads = loaded.iter().map(|&(block, host_block)| Load { host_block, block }).collect();
        plan
    }
}

/// Each plan is taken word for word as it was submitted, and its results come back as they were written.
/// `carry` is called where bytes have to travel: after each submission and after each answer.
fn exchange(plans: &[Plan], mut router: RouterEnd, mut worker: WorkerEnd, mut carry: impl FnMut()) {
    worker.set_bounds(bounds());
    for (step, plan) in (1..).zip(plans) {
        router.submit(&plan.view(step)).unwrap();
        carry();
        let frame = take(&mut worker);
        for (region, words) in plan::PLAN_REGIONS.into_iter().zip(plan.view(step).parts()) {
            let mut arrived = Vec::new();
            worker.memory().read(frame, region, words.len(), &mut arrived);
            assert_eq!(arrived, words, "{region}");
        }
        // What the peer writes after the check changes nothing about the copy. NaN is not equal to itself: by words.
        let taken = worker.plan().expect("taken and not published").parts().concat();
        assert_eq!(taken, plan.view(step).parts().concat());
        answer(&mut worker, frame, 100);
        assert_eq!(worker.plan(), None);
        carry();
        let results = router.poll().expect("the result was carried").unwrap();
        assert_eq!(results.step, step);
        let draws = plan.rows.iter().map(|row| 1 + row.drafts + row.scores).sum::<u32>();
        assert_eq!(results.sampled, (100..100 + draws).collect::<Vec<_>>());
        assert_eq!((results.flags.len(), results.chosen.len()), (draws as usize, draws as usize));
    }
}

proptest! {
    #[test]
    fn any_plan_arrives_word_for_word_in_shared_memory(plans in prop::collection::vec(any_plan(), 1..6)) {
        let (router, worker) = ends();
        exchange(&plans, router, worker, || {});
    }

    #[test]
    fn any_plan_arrives_word_for_word_inline(plans in prop::collection::vec(any_plan(), 1..6)) {
        let layout = Layout::new(small()).unwrap();
        let (near, far) = (Memory::local(&layout, 3).unwrap(), Memory::local(&layout, 3).unwrap());
        let (mut here, mut there) = (Inline::new(near.clone()), Inline::new(far.clone()));
        exchange(&plans, RouterEnd::new(near), WorkerEnd::new(far, None), || {
            if let Some(plan) = here.next_plan(Duration::ZERO).unwrap() {
                there.accept_plan(&plan).unwrap();
            }
            if let Some(result) = there.next_result().unwrap() {
                here.accept_result(&result).unwrap();
            }
        });
    }
}

use std::sync::Arc;

use super::*;
use crate::{Isa, Matrix, PackedWeight};

fn per_token(each: usize) -> Size {
    Size { each: 4 * each, per: Per::Token }
}

/// A table of this many rows, leaked: tests lend it for good.
fn lent(values: Vec<f32>) -> Lent {
    let values: &'static [f32] = values.leak();
    // SAFETY: leaked, and nobody writes it.
    unsafe { Lent::new(values.as_ptr() as usize, size_of_val(values)) }
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37 % 101) as f32 - 50.0) / 50.0).collect()
}

const WIDTH: usize = 24;
const VOCABULARY: usize = 7;

/// logits = head(norm(table[ids]))
fn parts(cpu: &mut Cpu) -> Parts {
    let weight = PackedWeight::pack(cpu, &Matrix::of(&numbers(VOCABULARY * WIDTH), WIDTH));
    let [x, normed, picked, logits] = [0, 1, 2, 3].map(BufferId);
    Parts {
        format: Format::Float32,
        buffers: vec![
            per_token(WIDTH),
            per_token(WIDTH),
            Size { each: 4 * WIDTH, per: Per::Draw },
            Size { each: 4 * VOCABULARY, per: Per::Draw },
        ],
        calls: vec![
            Call::Embed { out: x, table: lent(numbers(VOCABULARY * WIDTH)), row: RowOf::Id, width: WIDTH },
            Call::RmsNorm { out: normed, x, gain: lent(vec![1.5; WIDTH]), eps: 1e-6 },
            Call::Pick { out: picked, x: normed, width: WIDTH },
            Call::Linear {
                out: logits,
                x: picked,
                weight: Weight::Float32(Arc::new(weight)),
                bias: None,
                out_format: Format::Float32,
            },
        ],
        layers: vec![],
        result: logits,
    }
}

fn rows<'a>(ids: &'a [i32], drawn_at: &'a [i32]) -> StepRows<'a> {
    StepRows {
        ids,
        positions: ids,
        kv_slots: &[],
        block_table: &[],
        row_offsets: &[],
        row_starts: &[],
        drawn_at,
        embeds: Embeds::default(),
    }
}

#[test]
fn a_program_gives_what_its_kernels_give_one_by_one_for_any_mix_of_rows() {
    let mut cpu = Cpu::new(Isa::best(), 2);
    let mut program = Program::new(parts(&mut cpu)).unwrap();
    let weight = PackedWeight::pack(&mut cpu, &Matrix::of(&numbers(VOCABULARY * WIDTH), WIDTH));
    for (ids, drawn_at) in
        [(vec![3], vec![0]), (vec![1, 2, 0, 6], vec![3, 1]), (vec![5, 5], vec![]), (vec![4; 300], vec![299, 0])]
    {
        program.run(&mut cpu, &rows(&ids, &drawn_at), &mut NoCallBacks).unwrap();
        let (mut x, mut normed) = (vec![0.0; ids.len() * WIDTH], vec![0.0; ids.len() * WIDTH]);
        crate::embed(&mut cpu, &mut x, &numbers(VOCABULARY * WIDTH), &ids, WIDTH).unwrap();
        crate::rms_norm(&mut cpu, &mut normed, WIDTH, &x, &[1.5; WIDTH], 1e-6);
        let mut logits = vec![0.0; drawn_at.len() * VOCABULARY];
        for (row, &at) in logits.chunks_mut(VOCABULARY).zip(&drawn_at) {
            crate::linear(&mut cpu, row, &normed[at as usize * WIDTH..][..WIDTH], &weight, None);
        }
        assert_eq!(program.logits(), logits);
    }
}

#[test]
fn an_id_outside_the_table_stops_the_step_and_the_next_one_runs() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let mut program = Program::new(parts(&mut cpu)).unwrap();
    let stop = program.run(&mut cpu, &rows(&[VOCABULARY as i32], &[0]), &mut NoCallBacks).unwrap_err();
    assert!(stop.to_string().contains("`ids` is 7 at index 0"), "{stop}");
    program.run(&mut cpu, &rows(&[0], &[0]), &mut NoCallBacks).unwrap();
}

#[test]
fn calls_that_are_no_program_are_refused_by_name() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let mut refused = |change: fn(&mut Parts)| {
        let mut parts = parts(&mut cpu);
        change(&mut parts);
        Program::new(parts).err().expect("refused").to_string()
    };
    assert!(refused(|parts| drop(parts.calls.remove(0))).contains("call 0 (rms_norm): reads buffer 0 before"));
    assert!(refused(|parts| drop(parts.calls.pop())).contains("(result): is not written"));
    assert!(
        refused(|parts| parts.calls[2] = Call::Pick { out: BufferId(1), x: BufferId(1), width: WIDTH })
            .contains("twice")
    );
    assert!(refused(|parts| parts.calls[0] = Call::Clear { out: BufferId(9) }).contains("names buffer 9; there are 4"));
    assert!(refused(|parts| parts.format = Format::BFloat16).contains("mixes formats"));
    let attention = Call::PagedAttention {
        out: BufferId(1),
        q: BufferId(0),
        layer: 0,
        kind: 0,
        heads: 1,
        scale: 1.0,
        is_whole: false,
        window: None,
        soft_cap: None,
        sinks: None,
        slopes: None,
    };
    let mut unlayered = parts(&mut cpu);
    unlayered.calls[1] = attention;
    assert!(Program::new(unlayered).err().expect("refused").to_string().contains("names layer 0; there are 0"));
}

struct Negate(usize);

impl CallBacks for Negate {
    fn call(&mut self, number: usize, mut memory: Memory<'_>) -> Result<(), String> {
        if number != 0 {
            return Err("there is one".to_owned());
        }
        self.0 = memory.counts().tokens;
        for value in bytemuck::cast_slice_mut::<u8, f32>(memory.buffer(BufferId(1))) {
            *value = -*value;
        }
        Ok(())
    }
}

#[test]
fn a_call_back_sees_its_buffers_in_place_and_may_fail() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let mut program = Program::new(parts(&mut cpu)).unwrap();
    program.run(&mut cpu, &rows(&[1, 2], &[1]), &mut NoCallBacks).unwrap();
    let plain = program.logits().to_vec();

    let mut with = parts(&mut cpu);
    let negate = Call::CallBack { name: "negate".to_owned(), reads: vec![BufferId(1)], writes: vec![BufferId(1)] };
    with.calls.insert(2, negate);
    let mut program = Program::new(with).unwrap();
    let mut call_backs = Negate(0);
    program.run(&mut cpu, &rows(&[1, 2], &[1]), &mut call_backs).unwrap();
    assert_eq!(call_backs.0, 2);
    assert_eq!(program.logits(), plain.iter().map(|logit| -logit).collect::<Vec<_>>());
    let stop = program.run(&mut cpu, &rows(&[1], &[0]), &mut NoCallBacks).unwrap_err();
    assert!(stop.to_string().contains("call-back negate: nobody answers"), "{stop}");
}

#[test]
fn costs_count_weights_once_and_products_per_token() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let program = Program::new(parts(&mut cpu)).unwrap();
    let Some(head @ Call::Linear { weight, .. }) = program.calls().last() else { panic!("the head is last") };
    let one = program.cost(head, &rows(&[1, 1], &[0]));
    let two = program.cost(head, &rows(&[1, 1], &[0, 1]));
    assert_eq!(one.flops, 2.0 * (VOCABULARY * WIDTH) as f64);
    assert_eq!(two.flops, 2.0 * one.flops);
    assert_eq!(two.bytes - one.bytes, 4.0 * (VOCABULARY + WIDTH) as f64);
    assert!(one.bytes > weight.bytes() as f64);
}

#[test]
fn times_are_noted_when_they_are_wanted() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let mut program = Program::new(parts(&mut cpu)).unwrap();
    assert!(program.times().is_none());
    program.note_times();
    program.run(&mut cpu, &rows(&[1; 50], &[0]), &mut NoCallBacks).unwrap();
    assert!(program.times().unwrap().iter().any(|time| !time.is_zero()));
}

/// A residual stream beside the norm: what a decoder's last layer looks like after its attention.
fn deeper(cpu: &mut Cpu) -> Parts {
    let mut parts = parts(cpu);
    let square = Weight::Float32(Arc::new(PackedWeight::pack(cpu, &Matrix::of(&numbers(WIDTH * WIDTH), WIDTH))));
    let [x, picked, residual, inner, normed] = [0, 2, 4, 5, 6].map(BufferId);
    parts.buffers.extend([per_token(WIDTH); 3]);
    let head = parts.calls.pop().expect("the head");
    parts.calls = vec![
        parts.calls[0].clone(),
        Call::Embed { out: residual, table: lent(numbers(VOCABULARY * WIDTH)), row: RowOf::Id, width: WIDTH },
        Call::Linear { out: inner, x, weight: square, bias: Some(lent(numbers(WIDTH))), out_format: Format::Float32 },
        Call::AddRmsNorm { out: normed, residual, x: inner, gain: lent(numbers(WIDTH)), eps: 1e-6 },
        Call::Pick { out: picked, x: normed, width: WIDTH },
        head,
    ];
    parts
}

#[test]
fn rows_are_picked_before_what_handles_each_by_itself_and_the_logits_stay_the_same() {
    let mut cpu = Cpu::new(Isa::best(), 2);
    let (mut early, mut late) = (Program::new(deeper(&mut cpu)).unwrap(), Program::planned(deeper(&mut cpu)));
    let names: Vec<_> = early.calls().iter().map(Call::name).collect();
    assert_eq!(names, ["embed", "embed", "pick", "pick", "linear", "add_rms_norm", "linear"]);
    for (ids, drawn_at) in [(vec![3], vec![0]), (vec![1, 2, 0, 6, 6], vec![4, 1]), (vec![5; 60], vec![])] {
        let rows = rows(&ids, &drawn_at);
        early.run(&mut cpu, &rows, &mut NoCallBacks).unwrap();
        late.run(&mut cpu, &rows, &mut NoCallBacks).unwrap();
        assert_eq!(early.logits(), late.logits());
    }
}

const INNER: usize = 128;

/// logits = head(down(silu(gate) · up)), with gate and up of norm(residual + x); `is_seen`: the normed rows are also added to what the head reads.
fn gated(cpu: &mut Cpu, is_seen: bool) -> Parts {
    let mut packed = |rows: usize, depth: usize| {
        let weights: Vec<_> = numbers(rows * depth).into_iter().map(Bf16::from_f32).collect();
        Weight::BFloat16(Arc::new(PackedWeight::pack(cpu, &Matrix::of(&weights, depth))))
    };
    let [x, residual, normed, both, inner, last, logits] = [0, 1, 2, 3, 4, 5, 6].map(BufferId);
    let row = |width: usize| Size { each: 2 * width, per: Per::Token };
    let table = || {
        let table: &'static [Bf16] =
            numbers(VOCABULARY * INNER).into_iter().map(Bf16::from_f32).collect::<Vec<_>>().leak();
        // SAFETY: leaked, and nobody writes it.
        unsafe { Lent::new(table.as_ptr() as usize, size_of_val(table)) }
    };
    let format = Format::BFloat16;
    let mut calls = vec![
        Call::Embed { out: x, table: table(), row: RowOf::Id, width: INNER },
        Call::Embed { out: residual, table: table(), row: RowOf::Position, width: INNER },
        Call::AddRmsNorm { out: normed, residual, x, gain: lent(numbers(INNER)), eps: 1e-6 },
        Call::Linear { out: both, x: normed, weight: packed(2 * INNER, INNER), bias: None, out_format: format },
        Call::GateMul { out: inner, gate_up: both, width: INNER, activation: crate::Activation::Silu },
        Call::Linear { out: last, x: inner, weight: packed(INNER, INNER), bias: None, out_format: format },
        Call::Pick { out: BufferId(7), x: last, width: INNER },
        Call::Linear {
            out: logits,
            x: BufferId(7),
            weight: packed(VOCABULARY, INNER),
            bias: None,
            out_format: Format::Float32,
        },
    ];
    if is_seen {
        calls.insert(6, Call::Add { residual: last, x: normed });
    }
    let per_draw = |each: usize| Size { each, per: Per::Draw };
    let buffers = [row(INNER), row(INNER), row(INNER), row(2 * INNER), row(INNER), row(INNER)];
    let buffers = [&buffers[..], &[per_draw(4 * VOCABULARY), per_draw(2 * INNER)]].concat();
    Parts { format, buffers, calls, layers: vec![], result: logits }
}

#[test]
fn rows_that_products_alone_read_have_room_behind_them_where_tiles_want_it() {
    let mut cpu = Cpu::new(Isa::best(), 2);
    let room = if cpu.isa.has_tiles() { 64 } else { 0 };
    for is_seen in [false, true] {
        let (mut spaced, mut plain) = (gated(&mut cpu, is_seen), Program::planned(gated(&mut cpu, is_seen)));
        rewrite::space_rows(&mut spaced);
        let of_normed = if is_seen { 0 } else { room };
        let rooms = spaced.buffers.iter().zip(&plain.parts.buffers).map(|(spaced, plain)| spaced.each - plain.each);
        // What is picked lies as it is picked.
        assert_eq!(rooms.collect::<Vec<_>>(), [0, 0, of_normed, 0, room, 0, 0, 0]);
        let mut spaced = Program::planned(spaced);
        let mut whole = Program::new(gated(&mut cpu, is_seen)).unwrap();
        for (ids, drawn_at) in [(vec![3], vec![0]), (vec![1, 2, 0, 6, 6], vec![4, 1]), (vec![5; 70], vec![69, 3])] {
            let rows = rows(&ids, &drawn_at);
            let mut logits = |program: &mut Program| {
                program.run(&mut cpu, &rows, &mut NoCallBacks).unwrap();
                program.logits().to_vec()
            };
            let expected = logits(&mut plain);
            assert!(expected.iter().all(|logit| logit.is_finite()));
            assert_eq!(logits(&mut spaced), expected);
            assert_eq!(logits(&mut whole), expected);
        }
    }
}

#[test]
fn gates_are_applied_within_the_product_where_tiles_are_and_nobody_else_reads_them() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let names = |parts: &Parts| parts.calls.iter().map(|call| call.name().to_owned()).collect::<Vec<_>>();
    let mut parts = gated(&mut cpu, false);
    rewrite::gate_early(&mut parts);
    let both = if cpu.isa.has_tiles() { &["linear_silu_mul"][..] } else { &["linear", "silu_mul"] };
    assert_eq!(names(&parts), [&["embed", "embed", "add_rms_norm"], both, &["linear", "pick", "linear"]].concat());

    let mut seen = gated(&mut cpu, false);
    seen.calls.push(Call::CallBack { name: "look".to_owned(), reads: vec![BufferId(3)], writes: vec![] });
    let before = names(&seen);
    rewrite::gate_early(&mut seen);
    assert_eq!(names(&seen), before);
}

#[test]
fn heads_that_are_normed_by_themselves_have_no_room_behind_them() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let mut parts = gated(&mut cpu, false);
    let normed = BufferId(2);
    parts.calls[2] = Call::RmsNorm { out: normed, x: BufferId(0), gain: lent(numbers(INNER / 2)), eps: 1e-6 };
    let before = parts.buffers[normed.0];
    rewrite::space_rows(&mut parts);
    assert_eq!(parts.buffers[normed.0], before);
    Program::planned(parts).run(&mut cpu, &rows(&[1, 2, 3], &[2]), &mut NoCallBacks).unwrap();
}

#[test]
fn embeddings_take_the_places_of_rows_of_the_table() {
    let mut cpu = Cpu::new(Isa::best(), 2);
    let mut program = Program::new(parts(&mut cpu)).unwrap();
    let table = numbers(VOCABULARY * WIDTH);
    let mut logits = |ids: &[i32], at: &[i32], values: &[f32], scale| {
        let step = StepRows { embeds: Embeds { at, values, scale }, ..rows(ids, &[0, 1, 2, 3]) };
        program.run(&mut cpu, &step, &mut NoCallBacks).map(|()| program.logits().to_vec())
    };
    let plain = logits(&[3, 6, 1, 2], &[], &[], 1.0).unwrap();
    let values: Vec<f32> = [&table[6 * WIDTH..], &table[2 * WIDTH..3 * WIDTH]].concat();
    assert_eq!(logits(&[3, 0, 1, 0], &[1, 3], &values, 1.0).unwrap(), plain);
    assert_ne!(logits(&[3, 0, 1, 0], &[], &[], 1.0).unwrap(), plain);
    let halves: Vec<f32> = values.iter().map(|value| value / 2.0).collect();
    assert_eq!(logits(&[3, 0, 1, 0], &[1, 3], &halves, 2.0).unwrap(), plain, "the model multiplies what comes in");
    assert!(logits(&[3, 0, 1, 0], &[1, 4], &values, 1.0).is_err(), "there is no such token");
}

#[test]
fn a_table_that_lies_packed_gives_its_rows_times_a_number() {
    let mut cpu = Cpu::new(Isa::best(), 2);
    let table = numbers(VOCABULARY * WIDTH);
    let doubled: Vec<f32> = table.iter().map(|value| 2.0 * value).collect();
    let packed = |cpu: &mut Cpu| Weight::Float32(Arc::new(PackedWeight::pack(cpu, &Matrix::of(&table, WIDTH))));
    let mut logits = |embed: Call| {
        let mut parts = parts(&mut cpu);
        parts.calls[0] = embed;
        let mut program = Program::new(parts).unwrap();
        let step = StepRows {
            embeds: Embeds { at: &[1], values: &table[..WIDTH], scale: 2.0 },
            ..rows(&[3, 6, 1, 2], &[0, 1, 2, 3])
        };
        program.run(&mut cpu, &step, &mut NoCallBacks).unwrap();
        assert!(program.run(&mut cpu, &rows(&[VOCABULARY as i32], &[0]), &mut NoCallBacks).is_err());
        program.run(&mut cpu, &step, &mut NoCallBacks).unwrap();
        program.logits().to_vec()
    };
    let out = BufferId(0);
    let plain = logits(Call::Embed { out, table: lent(doubled), row: RowOf::Id, width: WIDTH });
    let table = packed(&mut Cpu::new(Isa::best(), 1));
    assert_eq!(logits(Call::EmbedPacked { out, table, scale: 2.0 }), plain);
}

#[test]
fn only_a_weight_of_the_rows_own_format_and_size_is_a_table() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let narrow = Weight::Float32(Arc::new(PackedWeight::pack(&mut cpu, &Matrix::of(&numbers(20), 10))));
    let short = Weight::BFloat16(Arc::new(PackedWeight::pack(&mut cpu, &Matrix::of(&numbers(2 * WIDTH), WIDTH))));
    for table in [narrow, short] {
        let mut parts = parts(&mut cpu);
        parts.calls[0] = Call::EmbedPacked { out: BufferId(0), table, scale: 1.0 };
        let flaw = Program::new(parts).err().expect("it is none");
        assert_eq!((flaw.at, flaw.call.as_str()), (0, "embed_packed"));
    }
}

#[test]
fn rows_that_are_looked_at_again_are_not_picked_early() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let mut parts = deeper(&mut cpu);
    let look = Call::CallBack { name: "look".to_owned(), reads: vec![BufferId(4)], writes: vec![] };
    parts.calls.push(look);
    let names = |parts: &Parts| parts.calls.iter().map(|call| call.name().to_owned()).collect::<Vec<_>>();
    let before = names(&parts);
    rewrite::pick_early(&mut parts);
    assert_eq!(names(&parts), before);
}

#[test]
fn a_program_may_end_with_pooled_rows() {
    let mut cpu = Cpu::new(Isa::best(), 2);
    let mut parts = parts(&mut cpu);
    parts.calls.truncate(1);
    let segments = lent((0..2 * WIDTH).map(|at| if at < WIDTH { 0.0 } else { 100.0 }).collect());
    parts.calls.extend([
        Call::EmbedSegments { out: BufferId(1), table: segments, separator: Some(6), width: WIDTH },
        Call::Add { residual: BufferId(0), x: BufferId(1) },
        Call::PoolRows {
            out: BufferId(2),
            x: BufferId(0),
            width: WIDTH,
            pooling: crate::Pooling::Mean,
            out_format: Format::Float32,
        },
    ]);
    parts.result = BufferId(2);
    let mut program = Program::new(parts).unwrap();
    let step = StepRows { row_offsets: &[0, 2, 6], ..rows(&[3, 6, 1, 6, 2, 6], &[5, 1]) };
    program.run(&mut cpu, &step, &mut NoCallBacks).unwrap();
    let table = numbers(VOCABULARY * WIDTH);
    let of = |ids: &[usize], second: f32| -> Vec<f32> {
        let mean = |at: usize| ids.iter().map(|id| table[id * WIDTH + at]).sum::<f32>() / ids.len() as f32 + second;
        (0..WIDTH).map(mean).collect()
    };
    // Two of the second row's four tokens stand behind its separator; behind the first row's stands nothing.
    let expected = [of(&[1, 6, 2, 6], 50.0), of(&[3, 6], 0.0)].concat();
    for (got, expected) in program.logits().iter().zip(expected) {
        assert!((got - expected).abs() < 1e-4, "{got} for {expected}");
    }
    assert_eq!(program.calls()[3].to_string(), "pool_rows 24 mean");
}

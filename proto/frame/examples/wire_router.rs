//! The router's side of `bench/wire`: sends steps of decoding rows to a worker process and prints each round trip in
//! microseconds, from the plan's records to the checked results.
//!
//! `wire_router PYTHON WORKER.py ROUNDS SEQUENCES PAUSE_US`; the worker gets the two descriptors as arguments.
use std::{
    error::Error,
    os::fd::AsRawFd as _,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use pelton_frame::{Bell, Capacities, Layout, Memory, PlanView, ROW_SAMPLES, RouterEnd, Row};

/// Rounds that are not counted: the worker imports, caches warm up.
const WARM_UP: u64 = 50;
/// No step of an idle worker takes this long.
const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, python, script, rounds, sequences, pause_us] = arguments.as_slice() else {
        return Err("usage: wire_router PYTHON WORKER.py ROUNDS SEQUENCES PAUSE_US".into());
    };
    let (rounds, sequences): (u64, u32) = (rounds.parse()?, sequences.parse()?);
    let pause = Duration::from_micros(pause_us.parse()?);
    let layout = Layout::new(Capacities {
        frames: 4,
        slots: sequences,
        tokens: 2048,
        appends: 1 << 16,
        copies: sequences,
        biases: 8192,
        suppressed: 4096,
        history: 1 << 20,
        top_logprobs: 20,
        pooled_width: 0,
        scores: 4,
        embeds: 0,
        embed_width: 0,
        saves: 4,
        loads: 4,
    })?;
    let bell = Bell::create()?;
    let memory = Memory::create(&layout, 1)?;
    // `dup` gives descriptors that the child inherits.
    let frames = rustix::io::dup(memory.fd().ok_or("the memory is shared")?)?;
    let rings = rustix::io::dup(bell.fd())?;
    let mut worker = Command::new(python)
        .arg(script)
        .args([frames.as_raw_fd().to_string(), rings.as_raw_fd().to_string()])
        .spawn()?;
    drop((frames, rings));
    let mut end = RouterEnd::new(memory);
    let mut taken = Vec::new();
    for step in 1..=rounds + WARM_UP {
        thread::sleep(pause);
        let begin = Instant::now();
        let rows: Vec<Row> = (0..sequences).map(|slot| decoding(slot, step)).collect();
        let tokens: Vec<u32> = (0..sequences).collect();
        end.submit(&PlanView { step, rows: &rows, tokens: &tokens, ..PlanView::default() })?;
        let results = loop {
            let seen = bell.read();
            if let Some(results) = end.poll() {
                break results?;
            }
            if begin.elapsed() > DEADLINE {
                return Err("the worker does not answer".into());
            }
            bell.wait(seen, DEADLINE);
        };
        assert_eq!(results.sampled.len(), rows.len());
        assert!(results.sampled.iter().zip(&rows).all(|(token, row)| *token == row.slot + row.start));
        if step > WARM_UP {
            taken.push(begin.elapsed());
        }
    }
    drop(end); // tells the worker that no more will come
    worker.wait()?;
    taken.iter().for_each(|taken| println!("{:.2}", taken.as_secs_f64() * 1e6));
    Ok(())
}

fn decoding(slot: u32, step: u64) -> Row {
    Row {
        slot,
        start: u32::try_from(step).expect("few rounds"),
        count: 1,
        known: 1,
        token_offset: slot,
        flags: ROW_SAMPLES,
        row_offset: slot,
        drafts: 0,
        scores: 0,
        next: 0,
        embeds: 0,
    }
}

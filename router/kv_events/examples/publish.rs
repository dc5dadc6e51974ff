//! A publisher that does what its standard input says, for trying readers against it (`tests/readers.py`).
//!
//!     publish --endpoint tcp://127.0.0.1:0 --replay tcp://127.0.0.1:0 --topic kv --steps 1000 --array
//!
//! It prints where it is bound, then obeys: `publish COUNT` publishes batches of one stored block, whose hash and tokens
//! are the sequence, and answers with the number published so far; `counts` prints the counts. The end of input ends it.

use std::io::{BufRead, stdin};

use pelton_kv_events::{Batch, Encoding, KvEvent, Medium, Publisher, PublisherOptions, Stored};

type Anything = Box<dyn std::error::Error>;

fn main() -> Result<(), Anything> {
    let publisher = Publisher::bind(options()?)?;
    let replay = publisher.replay_endpoint().map_or("none".into(), ToString::to_string);
    println!("{} {replay}", publisher.endpoint());
    for line in stdin().lock().lines() {
        obey(&publisher, &line?)?;
    }
    Ok(())
}

fn options() -> Result<PublisherOptions, Anything> {
    let mut options = PublisherOptions::new("tcp://127.0.0.1:0".parse()?);
    options.queue_max = 10_000; // `publish` is faster than any model
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--endpoint" => options.endpoint = value()?.parse()?,
            "--replay" => options.replay_endpoint = Some(value()?.parse()?),
            "--topic" => options.topic = value()?,
            "--steps" => options.buffer_steps = value()?.parse()?,
            "--rank" => options.data_parallel_rank = Some(value()?.parse()?),
            "--array" => options.encoding = Encoding::Array,
            _ => return Err(format!("unknown: {name}").into()),
        }
    }
    Ok(options)
}

fn obey(publisher: &Publisher, line: &str) -> Result<(), Anything> {
    match line.split_once(' ') {
        Some(("publish", count)) => {
            for _ in 0..count.parse::<u64>()? {
                publisher.publish(batch(publisher.counts().published));
            }
            println!("{}", publisher.counts().published);
        }
        None if line == "counts" => println!("{:?}", publisher.counts()),
        _ => return Err(format!("unknown: {line}").into()),
    }
    Ok(())
}

fn batch(sequence: u64) -> Batch {
    let first = sequence as u32;
    let stored = Stored {
        hashes: vec![sequence],
        parent: sequence.checked_sub(1),
        tokens: (first..first + 16).collect(),
        block_size: 16,
        lora: None,
        medium: Medium::Device,
        extra_keys: vec![],
    };
    Batch { timestamp: sequence as f64, events: vec![KvEvent::Stored(stored)] }
}

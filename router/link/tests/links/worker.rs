//! What the workers of these tests do: draw `drawn(last token)` for every row, and misbehave as `FAULT` says.

use std::{env, thread, time::Duration};

use pelton_frame::{Bounds, Region, Row, STATUS_OK, Waited};
use pelton_link_testing::{Answers, Door, Script, Steps, serve};
use pelton_rpc::v1::{Budget, HandshakeResponse, LoadProgress, LoadRequest, ModelReport};
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::StreamExt;
use tonic::Status;

/// What the step with this number does, and nothing before it.
pub(crate) const FAULTY_STEP: u64 = 3;
pub(crate) const BLOCKS: u32 = 128;
const LONG: Duration = Duration::from_secs(60);

/// The token that follows `last`.
pub(crate) fn drawn(last: u32) -> u32 {
    (last * 31 + 7) % 1000
}

/// `LISTEN`: unix:///path or tcp://host:port. For tcp also `TOKEN`, and `CERT` and `KEY` as PEM.
pub(crate) fn main() {
    let listen = env::var("LISTEN").unwrap();
    let fault = env::var("FAULT").unwrap_or_default();
    if fault == "exits at start" {
        eprintln!("no module named `torch`");
        std::process::exit(3);
    }
    let door = match listen.strip_prefix("tcp://") {
        None => Door::unix(&listen),
        Some(address) => Door::Tcp {
            address: address.to_owned(),
            token: env::var("TOKEN").unwrap(),
            identity: (env::var("CERT").unwrap(), env::var("KEY").unwrap()),
        },
    };
    serve(door, Fake { fault })
}

#[derive(Clone)]
struct Fake {
    fault: String,
}

impl Script for Fake {
    fn greet(&self, hello: &mut HandshakeResponse) {
        match self.fault.as_str() {
            "other version" => hello.protocol = 99,
            // Caught, and nobody listens.
            "deaf" => drop(signal(SignalKind::terminate()).unwrap()),
            _ => {}
        }
    }

    fn load(&self, request: LoadRequest, memory_socket: &str, _epoch: u32) -> Result<Answers<LoadProgress>, Status> {
        if self.fault == "no such model" {
            return Err(Status::failed_precondition("there is no model in /nowhere"));
        }
        let budget = Budget { weights_bytes: 1 << 20, blocks: BLOCKS, block_size: 32, ..Budget::default() };
        // What tests want to know of this process travels in fields that hold any text.
        let stage = format!("reading weights {} {}", std::process::id(), memory_socket);
        let first = LoadProgress { stage, total: 1 << 20, budget: Some(budget), ..LoadProgress::default() };
        if self.fault == "loads for ever" {
            return Ok(Box::pin(tokio_stream::once(Ok(first)).chain(tokio_stream::pending())));
        }
        let report = ModelReport {
            family: memory_socket.to_owned(),
            dtype: request.dtype,
            vocab_size: 1000,
            max_model_len: 4096,
            block_size: 32,
            blocks: BLOCKS,
            budget: Some(budget),
            numerics_id: std::process::id().to_string(),
            invariant: true,
        };
        let last = LoadProgress { stage: "ready".to_owned(), report: Some(report), ..LoadProgress::default() };
        Ok(Box::pin(tokio_stream::iter([Ok(first), Ok(last)])))
    }

    fn believes_the_nonce(&self) -> bool {
        self.fault != "another nonce"
    }

    fn obeys_shutdown(&self) -> bool {
        self.fault != "deaf"
    }

    fn take_steps(&self, steps: Steps<'_>) {
        let Steps { mut end, mut published, .. } = steps;
        end.set_bounds(Bounds { blocks: BLOCKS, block_size: 32, vocab: 1000, positions: 4096 });
        loop {
            let frame = match end.wait(LONG).unwrap() {
                Waited::Step(frame) => frame,
                Waited::Idle => continue,
                Waited::Detached => return,
            };
            let header = *end.header(frame).unwrap();
            if header.step() == FAULTY_STEP {
                match self.fault.as_str() {
                    "aborts in a step" => {
                        eprintln!("the model is on fire");
                        std::process::abort();
                    }
                    "is stuck in a step" => loop {
                        thread::park();
                    },
                    "hangs up in a step" => return,
                    _ => {}
                }
            }
            let (mut rows, mut tokens) = (Vec::new(), Vec::new());
            let memory = end.memory().clone();
            memory.read(frame, Region::Rows, header.rows as usize * Row::WORDS, &mut rows);
            memory.read(frame, Region::Tokens, header.tokens as usize, &mut tokens);
            let last = |row: &[u32]| tokens[(row[4] + row[3] - 1) as usize]; // token_offset + known - 1
            let sampled: Vec<u32> = rows.chunks_exact(Row::WORDS).map(|row| drawn(last(row))).collect();
            memory.write(frame, Region::Sampled, &sampled);
            memory.write(frame, Region::Flags, &vec![0; sampled.len()]);
            memory.write(frame, Region::ChosenLogprob, &vec![0; sampled.len()]);
            end.publish(frame, STATUS_OK, Duration::ZERO).unwrap();
            published();
        }
    }
}

//! What the workers of these tests do: draw `drawn(last token)` for every row, and misbehave as `FAULT` says.

use std::{env, thread, time::Duration};

use pelton_frame::{Bounds, FrameHeader, HostMemory, Load, Memory, Region, Row, STATUS_OK, Save, Waited};
use pelton_link_testing::{Answers, Door, Script, Steps, serve};
use pelton_rpc::v1::{Budget, Full, HandshakeResponse, Kind, LoadProgress, LoadRequest, ModelReport, kind};
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::StreamExt;
use tonic::Status;

/// What the step with this number does, and nothing before it.
pub(crate) const FAULTY_STEP: u64 = 3;
pub(crate) const BLOCKS: u32 = 128;
/// Tokens.
pub(crate) const CONTEXT: u32 = 4096;
/// Bytes of a block's KV.
pub(crate) const BLOCK_BYTES: usize = 100;
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

impl Fake {
    /// What it plans.
    fn context(&self, request: &LoadRequest) -> u32 {
        match (self.fault.as_str(), request.first_context) {
            ("has a longer context" | "has a longer context, late", 0) | ("insists on a longer context", _) => {
                CONTEXT + 64
            }
            (_, 0) => CONTEXT,
            (_, told) => told,
        }
    }
}

impl Script for Fake {
    fn greet(&self, hello: &mut HandshakeResponse) {
        hello.device_name = std::process::id().to_string(); // what tests want to know travels in a field for any text
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
        let kv_bytes_per_block = BLOCK_BYTES as u64;
        let max_model_len = self.context(&request);
        let budget = Budget {
            weights_bytes: 1 << 20,
            blocks: BLOCKS,
            block_size: 32,
            kv_bytes_per_block,
            max_model_len,
            ..Budget::default()
        };
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
            max_model_len,
            block_size: 32,
            blocks: BLOCKS,
            kinds: vec![Kind { sees: Some(kind::Sees::Full(Full {})) }],
            budget: Some(budget),
            numerics_id: "fake".to_owned(),
            invariant: true,
            pooling: None,
            embed_width: 0,
        };
        let last = LoadProgress { stage: "ready".to_owned(), report: Some(report), ..LoadProgress::default() };
        if self.fault == "has a longer context, late" {
            let begun = LoadProgress { budget: None, ..first.clone() };
            let rest = tokio_stream::iter([Ok(first), Ok(last)]);
            let late = tokio_stream::StreamExt::then(rest, |said| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                said
            });
            return Ok(Box::pin(tokio_stream::once(Ok(begun)).chain(late)));
        }
        Ok(Box::pin(tokio_stream::iter([Ok(first), Ok(last)])))
    }

    fn believes_the_nonce(&self) -> bool {
        self.fault != "another nonce"
    }

    fn obeys_shutdown(&self) -> bool {
        self.fault != "deaf"
    }

    fn take_steps(&self, steps: Steps<'_>) {
        let Steps { mut end, mut published, host, .. } = steps;
        let host_blocks = host.as_ref().map_or(0, |host| host.blocks());
        end.set_bounds(Bounds {
            blocks: BLOCKS,
            kinds: 1,
            host_blocks,
            block_size: 32,
            vocab: 1000,
            positions: CONTEXT,
        });
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
                    "is stuck in a step" => {
                        if let Some(host) = &host {
                            host.write(1, &[1; BLOCK_BYTES]); // says that the step has begun
                        }
                        loop {
                            thread::park();
                        }
                    }
                    "hangs up in a step" => return,
                    "saves when it is given up" => {
                        let host = host.as_ref().unwrap();
                        host.write(1, &[1; BLOCK_BYTES]); // the same
                        while !end.memory().is_detached() {
                            thread::yield_now();
                        }
                        host.write(0, &[77; BLOCK_BYTES]);
                        return;
                    }
                    _ => {}
                }
            }
            let (mut rows, mut tokens) = (Vec::new(), Vec::new());
            let memory = end.memory().clone();
            memory.read(frame, Region::Rows, header.rows as usize * Row::WORDS, &mut rows);
            memory.read(frame, Region::Tokens, header.tokens as usize, &mut tokens);
            move_blocks(&memory, frame, &header, host.as_ref());
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

/// A block holds its own number in every byte, and a block that is loaded must hold that of the one it came from.
fn move_blocks(memory: &Memory, frame: u32, header: &FrameHeader, host: Option<&HostMemory>) {
    let (mut saves, mut loads) = (Vec::new(), Vec::new());
    memory.read(frame, Region::Saves, header.saves as usize * Save::WORDS, &mut saves);
    memory.read(frame, Region::Loads, header.loads as usize * Load::WORDS, &mut loads);
    for save in saves.chunks_exact(2) {
        host.unwrap().write(save[1], &[save[0] as u8; BLOCK_BYTES]);
    }
    for load in loads.chunks_exact(2) {
        let mut bytes = Vec::new();
        host.unwrap().read(load[0], &mut bytes);
        assert_eq!(bytes, [load[1] as u8; BLOCK_BYTES]);
    }
}

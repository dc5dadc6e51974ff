//! A worker that computes `model.rs` and misbehaves as its script says. The script stands in `SCRIPT`, as JSON.

use std::{env, thread, time::Duration};

use pelton_frame::{
    Bell, Bounds, FrameHeader, Memory, RESULT_NOT_FINITE, RESULT_UNSAMPLED, Region, ResultHeader, STATUS_FAILED,
    STATUS_OK, Waited,
};
use pelton_link_testing::{Answers, Door, Script, Steps, serve};
use pelton_rpc::v1::{Budget, Full, Kind, LoadProgress, LoadRequest, ModelReport, Pooling, kind};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::model::{BLOCK, BLOCK_BYTES, Drawn, Model, VOCAB};

const LONG: Duration = Duration::from_secs(60);
const LINGER: Duration = Duration::from_millis(400);
/// Where a memory counts the results that were published (see `pelton_frame::Memory`): a worker that lies writes it.
const COMPLETED_OFFSET: u64 = 4 * 64;

/// What a worker of these tests does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Play {
    pub(crate) fault: Fault,
    /// The fault is there in so many of its lives, and in none after them.
    pub(crate) lives: u32,
    /// KV blocks in the first life.
    pub(crate) blocks: u32,
    /// In those after it; 0: it refuses to load then.
    pub(crate) blocks_later: u32,
    /// It gives vectors: of the last token (false), or of all that stand in one row (true).
    pub(crate) vectors_of_all: Option<bool>,
}

/// Where it misbehaves.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Fault {
    Nowhere,
    /// In this step of a life.
    At(u64, Deed),
    /// In every step.
    Always(Deed),
    /// In every step in which this token stands in a row.
    Of(u32, Deed),
    /// The same, of rows that begin behind tokens whose KV is there already.
    OfCached(u32, Deed),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Deed {
    Die,
    Hang,
    /// Stops itself by SIGSTOP.
    Stop,
    /// Says that it could not compute the step.
    Fail,
    /// Answers with a checksum of other words.
    ForgeChecksum,
    /// Answers the step before once more.
    ForgeStep,
    /// Answers for one row more than there are.
    ForgeRows,
    /// Answers a step and says that it has answered two.
    Duplicate,
    /// Draws a token that is none.
    DrawNonsense,
    /// Says that the logits are not finite; for `Fault::Of`, those of the rows with the token.
    NotFinite,
    /// Says that a mask was missing, where no row has one.
    DenyToken,
    /// Takes `LINGER` for it, and says so.
    Linger,
}

/// The ignored test that is the worker.
pub(crate) fn main() {
    let script = env::var("SCRIPT").expect("the rig starts workers");
    serve(
        Door::unix(&env::var("LISTEN").expect("the shell hands it on")),
        serde_json::from_str::<Play>(&script).unwrap(),
    )
}

impl Script for Play {
    fn load(&self, request: LoadRequest, _memory_socket: &str, epoch: u32) -> Result<Answers<LoadProgress>, Status> {
        if self.blocks_in(epoch) == 0 {
            return Err(Status::failed_precondition("the model has gone"));
        }
        let pooling = self.vectors_of_all.map(|is_bidirectional| Pooling {
            width: 2,
            kind: "embedding".to_owned(),
            normalize: true,
            is_bidirectional,
            ..Pooling::default()
        });
        let report = ModelReport {
            family: "scripted".to_owned(),
            dtype: request.dtype,
            vocab_size: VOCAB,
            max_model_len: 256,
            block_size: BLOCK,
            blocks: self.blocks_in(epoch),
            kinds: vec![Kind { sees: Some(kind::Sees::Full(Full {})) }],
            budget: Some(Budget { kv_bytes_per_block: BLOCK_BYTES as u64, ..Budget::default() }),
            numerics_id: "plain tokens".to_owned(),
            invariant: true,
            pooling,
            embed_width: 0,
        };
        let last = LoadProgress { stage: "ready".to_owned(), report: Some(report), ..LoadProgress::default() };
        Ok(Box::pin(tokio_stream::once(Ok(last))))
    }

    fn take_steps(&self, steps: Steps<'_>) {
        let Steps { mut end, bell, host, .. } = steps;
        let host_blocks = host.as_ref().map_or(0, |host| host.blocks());
        let memory = end.memory().clone();
        let (blocks, slots) = (self.blocks_in(memory.epoch()), memory.layout().capacities().slots);
        end.set_bounds(Bounds { blocks, kinds: 1, host_blocks, block_size: BLOCK, vocab: VOCAB, positions: 256 });
        let mut model = Model::new(blocks, slots);
        loop {
            let frame = match end.wait(LONG).unwrap() {
                Waited::Step(frame) => frame,
                Waited::Idle => continue,
                Waited::Detached => return,
            };
            let header = *end.header(frame).unwrap();
            let rows = model.compute(&memory, frame, &header, host.as_ref());
            let deed = self.deed(memory.epoch(), header.step(), &rows);
            match deed {
                Some(Deed::Die) => std::process::abort(),
                Some(Deed::Linger) => thread::sleep(LINGER),
                Some(Deed::Hang) => stand_still(),
                Some(Deed::Stop) => {
                    kill_process(getpid(), Signal::STOP).unwrap();
                    stand_still(); // another thread may be the one that the signal stops first
                }
                _ => {}
            }
            self.write_results(&memory, frame, &rows, deed);
            if let (Some(deed), Some(bell)) = (deed, &bell)
                && let Some(lie) = forged(deed, &header)
            {
                memory.write(frame, Region::ResultHeader, &words(&lie));
                complete(&memory, bell);
                continue; // until it is killed
            }
            let status = if deed == Some(Deed::Fail) { STATUS_FAILED } else { STATUS_OK };
            let took = if deed == Some(Deed::Linger) { LINGER } else { Duration::from_micros(1) };
            end.publish(frame, status, took).unwrap();
            if let (Some(Deed::Duplicate), Some(bell)) = (deed, &bell) {
                complete(&memory, bell);
            }
        }
    }
}

fn stand_still() -> ! {
    loop {
        thread::park();
    }
}

impl Play {
    fn blocks_in(&self, epoch: u32) -> u32 {
        if epoch == 1 { self.blocks } else { self.blocks_later }
    }

    fn deed(&self, epoch: u32, step: u64, rows: &[Drawn]) -> Option<Deed> {
        match self.fault {
            _ if epoch > self.lives => None,
            Fault::At(at, deed) if at == step => Some(deed),
            Fault::Always(deed) => Some(deed),
            Fault::Of(_, deed) | Fault::OfCached(_, deed) if rows.iter().any(|row| self.is_meant(row)) => Some(deed),
            _ => None,
        }
    }

    fn is_meant(&self, row: &Drawn) -> bool {
        match self.fault {
            Fault::Of(token, _) => row.tokens.contains(&token),
            Fault::OfCached(token, _) => row.tokens.contains(&token) && row.start > 0,
            Fault::Nowhere | Fault::At(..) | Fault::Always(_) => true,
        }
    }

    fn write_results(&self, memory: &Memory, frame: u32, rows: &[Drawn], deed: Option<Deed>) {
        let drawn = |row: &Drawn| if deed == Some(Deed::DrawNonsense) { VOCAB } else { row.token };
        let flag = |row: &Drawn| match deed {
            Some(Deed::NotFinite) if self.is_meant(row) => RESULT_NOT_FINITE,
            Some(Deed::DenyToken) if self.is_meant(row) => RESULT_UNSAMPLED,
            _ => 0,
        };
        memory.write(frame, Region::Sampled, &rows.iter().map(drawn).collect::<Vec<_>>());
        memory.write(frame, Region::Flags, &rows.iter().map(flag).collect::<Vec<_>>());
        memory.write(frame, Region::ChosenLogprob, &vec![0; rows.len()]);
        if let Some(of_all) = self.vectors_of_all {
            let vector = |row: &Drawn| row.vectors[usize::from(!of_all)].map(f32::to_bits);
            memory.write(frame, Region::Pooled, rows.iter().map(vector).collect::<Vec<_>>().as_flattened());
        }
    }
}

/// The header of a result that no sound worker writes.
fn forged(deed: Deed, plan: &FrameHeader) -> Option<ResultHeader> {
    let FrameHeader { step_lo, step_hi, epoch, rows, top, draws, .. } = *plan;
    let honest =
        ResultHeader { step_lo, step_hi, epoch, rows, top, draws, status: STATUS_OK, ..ResultHeader::default() };
    match deed {
        Deed::ForgeChecksum => Some(ResultHeader { checksum_lo: 1, ..honest }),
        Deed::ForgeStep => Some(ResultHeader { step_lo: step_lo - 1, ..honest }),
        Deed::ForgeRows => Some(ResultHeader { rows: rows + 1, ..honest }),
        _ => None,
    }
}

fn words(header: &ResultHeader) -> Vec<u32> {
    bytemuck::cast_slice(&[*header]).to_vec()
}

/// Counts one more result, as no safe door of the frame would.
fn complete(memory: &Memory, bell: &Bell) {
    let file = memory.fd().expect("handed over as a file");
    let mut count = [0; 4];
    rustix::io::pread(file, &mut count, COMPLETED_OFFSET).unwrap();
    let count = (u32::from_le_bytes(count) + 1).to_le_bytes();
    rustix::io::pwrite(file, &count, COMPLETED_OFFSET).unwrap();
    bell.ring();
}

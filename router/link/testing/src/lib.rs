//! A worker for tests: it obeys the real contract over real sockets, and a [`Script`] says what it loads, how it takes
//! steps and where it misbehaves.
//!
//! Never here: models, and anything of the router's side. Tests of the link and of the engine both start it as a process.
#![forbid(unsafe_code)]

mod handover;
mod service;

use std::{env, ffi::OsString, path::PathBuf, pin::Pin};

use pelton_frame::{Bell, HostMemory, WorkerEnd};
use pelton_rpc::v1::{HandshakeResponse, LoadProgress, LoadRequest};
use tokio_stream::Stream;
use tonic::Status;

pub use service::{Door, serve};

/// A stream of answers.
pub type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What a worker does within the contract. The defaults are those of a sound one.
pub trait Script: Clone + Send + Sync + 'static {
    /// Changes the handshake's answer.
    fn greet(&self, _hello: &mut HandshakeResponse) {}

    /// Loads. `memory_socket` is where memory is handed over; `epoch` counts the worker's lives.
    fn load(&self, request: LoadRequest, memory_socket: &str, epoch: u32) -> Result<Answers<LoadProgress>, Status>;

    /// Whether the hand-over's nonce is taken for that of the handshake.
    fn believes_the_nonce(&self) -> bool {
        true
    }

    /// Whether `Shutdown` ends it.
    fn obeys_shutdown(&self) -> bool {
        true
    }

    /// Takes the steps of one memory until it is detached; its return hangs up.
    fn take_steps(&self, steps: Steps<'_>);
}

/// What the step loop works with.
pub struct Steps<'a> {
    /// Plans come out, results go in.
    pub end: WorkerEnd,
    /// The router's bell, which `end` rings too. None: frames travel inline.
    pub bell: Option<Bell>,
    /// Host memory that was handed over.
    pub host: Option<HostMemory>,
    /// To be called after each result: carries it away, if frames travel inline.
    pub published: Box<dyn FnMut() + 'a>,
}

/// Program and arguments by which a link starts this very test binary as a worker: its ignored test `test`. The link
/// appends `--listen URL`, which the shell hands on as `LISTEN`, because the test harness would not know the option.
pub fn this_binary(test: &str) -> (PathBuf, Vec<OsString>) {
    let script = r#"LISTEN="$3" exec "$0" --exact "$1" --ignored --nocapture"#;
    let program = env::current_exe().expect("a running test has a file");
    ("/bin/sh".into(), vec!["-c".into(), script.into(), program.into(), test.into()])
}

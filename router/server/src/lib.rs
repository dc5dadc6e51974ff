//! The server: HTTP and gRPC doors, the command line, configuration.
//!
//! In: sockets and arguments. Out: requests for the engine, as token ids, and its answers as text.
//! Never here: scheduling, KV, weights; a worker's death is not even seen.
#![forbid(unsafe_code)]

mod api;
pub mod auth;
mod batches;
mod client;
mod command;
pub mod config;
mod display;
pub mod error;
mod files;
pub mod generate;
mod grpc;
pub mod http;
pub mod hub;
mod json_size;
mod logging;
pub mod machine;
pub mod metrics;
mod nearest;
pub mod offline;
mod renderer;
mod room;
mod sse;

use std::ffi::OsString;
use std::process::ExitCode;

pub use config::Wheel;

/// The command `pelton` of the plain binary. `args` begins with the program's name.
pub fn run(args: Vec<OsString>) -> ExitCode {
    command::run(&args, None)
}

/// The command `pelton` of a wheel, which knows its interpreter and its demo model.
pub fn run_from_wheel(args: Vec<OsString>, wheel: Wheel) -> ExitCode {
    command::run(&args, Some(wheel))
}

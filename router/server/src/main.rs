//! The binary `pelton`: the router without Python, for a machine or pod that has its own workers.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pelton_server::run(std::env::args_os().collect())
}

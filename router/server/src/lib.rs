//! The server: HTTP and gRPC doors, the command line, configuration.
//!
//! In: sockets and arguments. Out: requests for the engine, as token ids, and its answers as text.
//! Never here: scheduling, KV, weights; a worker's death is not even seen.
#![forbid(unsafe_code)]

mod api;
pub mod auth;
pub mod error;
pub mod generate;
mod grpc;
pub mod http;
pub mod metrics;
mod nearest;

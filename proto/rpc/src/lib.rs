//! The gRPC contracts, generated from `proto/pelton/v1/*.proto`. The protos are the documents; nothing is written here.
#![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]

/// Package `pelton.v1`: the public service and the worker service.
pub mod v1 {
    tonic::include_proto!("pelton.v1");
}

/// The descriptors of both services, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Version of the worker contract: both sides must name the same one.
pub const WORKER_PROTOCOL: u32 = 1;

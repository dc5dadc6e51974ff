//! Compiles the protos in pure Rust, so that a build needs no `protoc`.
use prost::Message as _;
use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let protos = ["pelton/v1/worker.proto", "pelton/v1/pelton.proto"];
    println!("cargo:rerun-if-changed=../pelton");
    let descriptors = protox::compile(protos, [".."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}

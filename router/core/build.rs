//! Names the sources of this crate by a number, for snapshots: `snapshot.rs` says why.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=src");
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("src");
    let mut files = Vec::new();
    collect(&folder, &mut files);
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
    for file in files {
        let text = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let name = file.strip_prefix(&folder).expect("a file below the folder").as_os_str().as_encoded_bytes();
        for byte in name.iter().chain(&text) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    println!("cargo::rustc-env=PELTON_CORE_SOURCES={hash:016x}");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

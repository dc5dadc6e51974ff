//! `system_fingerprint`: what answers depend on beside their requests. Equal for two servers of the same build, model and arithmetic.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use pelton_engine::ModelReport;
use ring::digest::{Context, SHA256};

/// Files that decide what a model answers.
const KINDS: [&str; 3] = ["safetensors", "json", "jinja"];
/// Places of a file that are looked at, and bytes of each: files of weights are gigabytes, and another training changes all of them.
const PLACES: u64 = 64;
const PLACE_BYTES: u64 = 4 << 10;

/// What stands in a model's folder, looked at here and there: names, lengths and samples of its files. Whatever cannot be read is left out.
pub(crate) fn sample(folder: &Path) -> [u8; 32] {
    let mut sum = Context::new(&SHA256);
    let mut files: Vec<_> = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().and_then(|kind| kind.to_str()).is_some_and(|kind| KINDS.contains(&kind)));
    files.sort();
    for path in files {
        sum.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        _ = sample_file(&path, &mut sum); // a folder is there, or a file is not: both say what they say by their names
    }
    bytes(sum)
}

fn sample_file(path: &Path, sum: &mut Context) -> io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    sum.update(&length.to_le_bytes());
    let step = length.div_ceil(PLACES).max(PLACE_BYTES);
    let mut piece = Vec::new();
    let mut at = 0;
    while at < length {
        file.seek(SeekFrom::Start(at))?;
        piece.clear();
        (&mut file).take(PLACE_BYTES).read_to_end(&mut piece)?;
        sum.update(&piece);
        at += step;
    }
    Ok(())
}

/// The fingerprint of a loaded model, whose folder was sampled.
pub(crate) fn fingerprint(sampled: &[u8; 32], model: &ModelReport) -> String {
    let mut sum = Context::new(&SHA256);
    sum.update(sampled);
    for part in [&model.family, &model.dtype, &model.numerics_id] {
        sum.update(&(part.len() as u64).to_le_bytes());
        sum.update(part.as_bytes());
    }
    let digest: String = bytes(sum)[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("pelton-{}-{digest}", env!("CARGO_PKG_VERSION"))
}

fn bytes(sum: Context) -> [u8; 32] {
    sum.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn any_other_file_is_another_model() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("written");
        assert_eq!(sample(folder.path()), sample(Path::new("/no/such/folder")));
        let mut weights = vec![0_u8; 1 << 20];
        write("model.safetensors", &weights);
        write("config.json", b"{}");
        let mut seen = vec![sample(folder.path())];
        assert_eq!(seen[0], sample(folder.path()), "the same folder is the same");
        write("README.md", b"nothing that counts");
        assert_eq!(seen[0], sample(folder.path()));
        for change in 0..4 {
            match change {
                0 => write("config.json", b"[]"),
                1 => {
                    weights[(1 << 19) + 1] = 1; // half way, where a place is
                    write("model.safetensors", &weights);
                }
                2 => write("model.safetensors", &weights[1..]),
                _ => write("chat_template.jinja", b""),
            }
            let sampled = sample(folder.path());
            assert!(!seen.contains(&sampled), "change {change}");
            seen.push(sampled);
        }
        fs::create_dir(folder.path().join("odd.json")).expect("made");
        sample(folder.path()); // no file, and no trouble
    }
}

//! Whose blocks these are: two servers may share a block exactly when all of this is equal.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use ring::digest::{Context, SHA256};

/// Files that decide what a model computes.
const KINDS: [&str; 2] = ["safetensors", "json"];
/// Read at once.
const CHUNK: usize = 1 << 20;

/// What a block's bytes depend on, besides its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// See [`digest_of_model`].
    pub model: [u8; 32],
    /// Names the arithmetic.
    pub numerics_id: String,
    /// Tokens of a block.
    pub block_size: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
}

impl Identity {
    /// In one number: the name of the blocks' folder, and a field of each file.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut sum = Context::new(&SHA256);
        sum.update(b"pelton kv blocks 1\n");
        sum.update(&self.model);
        sum.update(&self.block_size.to_le_bytes());
        sum.update(&self.block_bytes.to_le_bytes());
        sum.update(self.numerics_id.as_bytes()); // last: the others have fixed lengths
        bytes(sum)
    }

    /// For people: what `pelton cache list` shows.
    pub(crate) fn about(&self) -> String {
        let Self { model, numerics_id, block_size, block_bytes } = self;
        format!("{numerics_id}, blocks of {block_size} tokens and {block_bytes} bytes, model {}\n", hex(&model[..8]))
    }
}

/// Over the contents of a model's folder: names and bytes of its weights and of its JSON files. Takes as long as reading
/// them: times and sizes of files would be faster to compare, but unpacked images often have all times equal.
pub fn digest_of_model(folder: &Path) -> io::Result<[u8; 32]> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let is_ours = path.extension().and_then(|kind| kind.to_str()).is_some_and(|kind| KINDS.contains(&kind));
        if is_ours && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    let mut sum = Context::new(&SHA256);
    let mut chunk = vec![0; CHUNK];
    for path in files {
        let (name, mut file) = (path.file_name().unwrap_or_default().as_encoded_bytes(), File::open(&path)?);
        sum.update(&(name.len() as u64).to_le_bytes());
        sum.update(name);
        sum.update(&file.metadata()?.len().to_le_bytes());
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                read => sum.update(&chunk[..read]),
            }
        }
    }
    Ok(bytes(sum))
}

fn bytes(sum: Context) -> [u8; 32] {
    sum.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// In hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn any_difference_makes_another_identity() {
        let one =
            Identity { model: [1; 32], numerics_id: "cpu-avx2-float32-1".to_owned(), block_size: 32, block_bytes: 64 };
        let others = [
            Identity { model: [2; 32], ..one.clone() },
            Identity { numerics_id: "cpu-avx2-float32-2".to_owned(), ..one.clone() },
            Identity { block_size: 16, ..one.clone() },
            Identity { block_bytes: 65, ..one.clone() },
        ];
        assert!(others.iter().all(|other| other.digest() != one.digest()));
    }

    #[test]
    fn a_models_digest_follows_its_contents_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let digest = || digest_of_model(folder.path()).unwrap();
        write("config.json", "{}");
        write("model.safetensors", "weights");
        let before = digest();
        write("README.md", "read me");
        write("config.json", "{}"); // another time, the same contents
        assert_eq!(digest(), before);
        write("model.safetensors", "weighty"); // as long as before
        assert_ne!(digest(), before);
        write("model.safetensors", "weights");
        assert_eq!(digest(), before);
        fs::rename(folder.path().join("model.safetensors"), folder.path().join("other.safetensors")).unwrap();
        assert_ne!(digest(), before);
    }
}

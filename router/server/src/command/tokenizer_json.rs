//! The text of a model's `tokenizer.json`. Where the folder has none, `transformers` makes one of the vocabulary that is there, once: it is
//! kept beside the loaded models. Never here: what the text means.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use ring::digest::{Context, SHA256, digest};

use super::python::Module;
use super::{NO_MODULES_OF_THIS_FOLDER, Trouble};
use crate::config::Config;

const NAME: &str = "tokenizer.json";
/// Texts that are kept at most; the one used longest ago goes first.
const KEPT_MAX: usize = 32;
/// Bytes of the checksum's line before a kept text.
const SUM_BYTES: usize = 65;
/// Goes up when more or else is made of the same files.
const FORM: u32 = 2;
/// What one is made of; others of a folder's small files say what it has beside its vocabulary.
const VOCABULARIES: [&str; 4] = ["tekken.json", "vocab.json", "vocab.txt", "vocab.bpe"];

/// Reads it, or makes it: that takes some seconds the first time.
pub(super) fn tokenizer_json(folder: &Path, config: &Config) -> Result<Vec<u8>, Trouble> {
    let failed = |reason: String| Trouble::Failed(format!("{}: the tokenizer: {reason}", folder.display()));
    match fs::read(folder.join(NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found.map_err(|error| failed(format!("{NAME}: {error}"))),
    }
    let files = small_files(folder).map_err(|error| failed(error.to_string()))?;
    let Some(vocabulary) = files.iter().find(|path| is_vocabulary(path)) else {
        return Err(failed(format!(
            "there is no {NAME}, and nothing that one is made of; allowed: it, or a SentencePiece or tiktoken file (*.model, *.tiktoken), \
             tekken.json, vocab.json with merges.txt, or vocab.txt"
        )));
    };
    let mut place = None;
    if let Some(keeping) = Keeping::open(config) {
        let key = key(&files, &makers(config)).map_err(|error| failed(error.to_string()))?;
        if let Some(kept) = keeping.get(&key) {
            return Ok(kept);
        }
        place = Some((keeping, key));
    }
    tracing::info!("there is no {NAME}: transformers makes one of {}", vocabulary.display());
    let text = made(folder, config).map_err(|reason| match reason {
        Reason::NotStarted(trouble) => trouble,
        Reason::Said(said) => failed(format!("there is no {NAME}, and {said}")),
    })?;
    if let Some((keeping, key)) = place {
        keeping.put(&key, &text);
    }
    Ok(text)
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn is_vocabulary(path: &Path) -> bool {
    let name = name_of(path);
    VOCABULARIES.contains(&name) || name.ends_with(".model") || name.ends_with(".tiktoken")
}

/// Files that a tokenizer may be made of, in the order of their names.
fn small_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_small = name_of(&path).ends_with(".json") && !name_of(&path).ends_with(".index.json");
        if path.is_file() && (is_small || is_vocabulary(&path) || name_of(&path) == "merges.txt") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Asks for the versions of the packages that make one, without importing them, which takes seconds.
const QUESTION: &str = "\
import importlib.metadata as metadata
for name in ('transformers', 'tokenizers', 'sentencepiece', 'tiktoken'):
    try: print(name, metadata.version(name))
    except metadata.PackageNotFoundError: pass
";

/// What would make one here; nothing where no Python can be asked.
fn makers(config: &Config) -> Vec<u8> {
    let mut asking = Command::new(&config.worker.python);
    asking.args([NO_MODULES_OF_THIS_FOLDER, "-c", QUESTION]).stdin(Stdio::null()).stderr(Stdio::null());
    asking.output().map_or_else(|_| Vec::new(), |output| output.stdout)
}

/// Of all that the text depends on.
fn key(files: &[PathBuf], makers: &[u8]) -> io::Result<String> {
    let mut hash = Context::new(&SHA256);
    hash.update(format!("{} {FORM} {}\n", env!("CARGO_PKG_VERSION"), makers.len()).as_bytes());
    hash.update(makers);
    for path in files {
        let content = fs::read(path)?;
        hash.update(format!("\n{} {}\n", name_of(path), content.len()).as_bytes());
        hash.update(&content);
    }
    Ok(hex(hash.finish().as_ref()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

enum Reason {
    NotStarted(Trouble),
    Said(String),
}

/// By a process of Python's, which imports `transformers`.
fn made(folder: &Path, config: &Config) -> Result<Vec<u8>, Reason> {
    let mut module = Module::new(config, "pelton.loading.tokenizer_json");
    module.line().arg(folder);
    let output = module.output().map_err(Reason::NotStarted)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Reason::Said(match (output.status.code(), said.lines().rev().find(|line| !line.trim().is_empty())) {
        (Some(1), Some(last)) => last.to_owned(),
        _ => format!("making one went wrong: {}", output.status), // a signal: out of memory, or it took too long
    }))
}

/// The folder of kept texts.
struct Keeping(PathBuf);

impl Keeping {
    /// `None`: nothing is to be kept, or nothing can be: then each start makes it anew.
    fn open(config: &Config) -> Option<Self> {
        if config.worker.model_cache_size.0 == 0 {
            return None;
        }
        let folder = config.worker.model_cache.join("tokenizers");
        let opened = DirBuilder::new().recursive(true).mode(0o700).create(&folder).and_then(|()| fs::metadata(&folder));
        // Whoever may write there says what texts mean.
        match opened {
            Ok(found) if found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0 => {
                Some(Self(folder))
            }
            Ok(_) => {
                tracing::warn!("tokenizers are not kept: {} can be written by others; chmod 700 it", folder.display());
                None
            }
            Err(error) => {
                tracing::warn!("tokenizers are not kept: {}: {error}", folder.display());
                None
            }
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.0.join(format!("{key}.kept"))
    }

    /// What is there, if it is whole.
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.path(key);
        let mut kept = fs::read(&path).ok()?;
        let text = kept.get(SUM_BYTES..)?;
        if kept[..SUM_BYTES] != *sum(text).as_bytes() {
            tracing::warn!("{} is damaged, and made again", path.display());
            return None;
        }
        // Used now. What cannot be said costs its turn.
        _ = fs::File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        kept.drain(..SUM_BYTES);
        Some(kept)
    }

    /// Whole or not at all: it is renamed when it is written.
    fn put(&self, key: &str, text: &[u8]) {
        let part = self.0.join(format!("{key}.{}.part", std::process::id()));
        let written = fs::write(&part, [sum(text).as_bytes(), text].concat())
            .and_then(|()| fs::rename(&part, self.path(key)))
            .and_then(|()| self.sweep());
        if let Err(error) = written {
            tracing::warn!("the tokenizer is not kept: {}: {error}", self.0.display());
            _ = fs::remove_file(&part);
        }
    }

    /// Deletes what is too much, and what others never wrote to the end.
    fn sweep(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let used = entry.metadata()?.modified()?;
            kept.push((used, entry.path()));
        }
        kept.sort();
        let too_many = kept.len().saturating_sub(KEPT_MAX);
        kept.into_iter().take(too_many).try_for_each(|(_, path)| fs::remove_file(path))
    }
}

/// A line.
fn sum(text: &[u8]) -> String {
    hex(digest(&SHA256, text).as_ref()) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Surroundings;

    fn config(cache: &Path, size: &str) -> Config {
        let cache = cache.display().to_string();
        with_python("/no/python", &cache, size)
    }

    fn with_python(python: &str, cache: &str, size: &str) -> Config {
        let said = [("model_cache", cache), ("model_cache_size", size), ("python", python)];
        let said = said.map(|(name, text)| (name.to_owned(), text.to_owned()));
        Config::from_arguments(&said, &Surroundings::default()).expect("the settings are good")
    }

    #[test]
    fn what_is_there_is_read_and_what_is_missing_is_told() {
        let root = tempfile::tempdir().expect("a folder");
        let (folder, config) = (root.path().join("model"), config(root.path(), "1GiB"));
        fs::create_dir(&folder).expect("a folder");
        let said = |config: &Config| match tokenizer_json(&folder, config) {
            Err(Trouble::Failed(said)) => said,
            other => panic!("{other:?}"),
        };
        fs::write(folder.join("config.json"), "{}").expect("a file");
        assert!(said(&config).contains("there is no tokenizer.json, and nothing that one is made of; allowed: "));
        fs::write(folder.join("tekken.json"), "{}").expect("a file");
        assert!(said(&config).contains("cannot run `/no/python -m pelton.loading.tokenizer_json`"));
        fs::write(folder.join(NAME), "{ }").expect("a file");
        assert_eq!(tokenizer_json(&folder, &config).expect("it is there"), b"{ }");
    }

    #[test]
    fn what_was_made_is_kept_until_a_file_changes_or_it_is_damaged() {
        let root = tempfile::tempdir().expect("a folder");
        let (folder, config) = (root.path().join("model"), config(root.path(), "1GiB"));
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("vocab.txt"), "a").expect("a file");
        let key = || key(&small_files(&folder).expect("files"), b"").expect("they are read");
        let (keeping, first) = (Keeping::open(&config).expect("it is ours"), key());
        keeping.put(&first, b"made");
        assert_eq!(tokenizer_json(&folder, &config).expect("it is kept"), b"made");
        fs::write(folder.join("special_tokens_map.json"), "{}").expect("a file");
        assert_ne!(key(), first);
        for damaged in [&b"made"[..], b"", &[&[b'0'; SUM_BYTES][..], b"made"].concat()] {
            fs::write(keeping.path(&first), damaged).expect("a file");
            assert_eq!(keeping.get(&first), None);
        }
        (0..2 * KEPT_MAX).for_each(|nth| keeping.put(&format!("{nth}"), b"made"));
        assert_eq!(fs::read_dir(&keeping.0).expect("a folder").count(), KEPT_MAX);
    }

    #[test]
    fn other_packages_make_it_anew() {
        let root = tempfile::tempdir().expect("a folder");
        let (folder, cache) = (root.path().join("model"), root.path().display().to_string());
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("vocab.txt"), "a").expect("a file");
        // In place of Python: programs that say nothing, and what they are asked.
        let made = |python| {
            let text = tokenizer_json(&folder, &with_python(python, &cache, "1GiB")).expect("it is made");
            String::from_utf8(text).expect("text")
        };
        assert_eq!(made("true"), "");
        assert!(made("echo").starts_with("-P -m pelton.loading.tokenizer_json "));
    }

    #[test]
    fn nothing_is_kept_where_others_may_write_or_where_nothing_shall_be() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().expect("a folder");
        assert!(Keeping::open(&config(root.path(), "0")).is_none());
        assert!(Keeping::open(&config(root.path(), "1GiB")).is_some());
        fs::set_permissions(root.path().join("tokenizers"), fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert!(Keeping::open(&config(root.path(), "1GiB")).is_none());
    }
}

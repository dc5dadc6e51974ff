//! The configuration, in the words of the rooms that it configures.

use std::num::NonZeroUsize;
use std::path::Path;

use pelton_engine::{EngineConfig, LoadOptions, RecordOptions, Tls, Token, WorkerSpec};
use pelton_text::{ChatTemplate, Checkpoint, Pool, Tokenizer};

use crate::auth::ApiKey;
use crate::command::Trouble;
use crate::config::{Config, WorkerAddress};
use crate::generate::ApiLimits;
use crate::machine;

/// Long texts that may wait for the pool; at 4 KiB or more each that is at least 4 MiB of work.
const TEXT_QUEUE: usize = 1024;

/// What the model's files say to the router; the worker reads the weights.
pub(super) struct TextSide {
    pub(super) checkpoint: Checkpoint,
    pub(super) tokenizer: Tokenizer,
    pub(super) template: Option<ChatTemplate>,
}

impl TextSide {
    /// Reads the files. Takes up to a second for a large vocabulary.
    pub(super) fn open(folder: &Path) -> Result<Self, Trouble> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Trouble::Failed(format!("{}: {what}: {error}", folder.display()))
        };
        let checkpoint = Checkpoint::open(folder).map_err(|error| failed("the checkpoint", &error))?;
        let tokenizer = Tokenizer::open(folder).map_err(|error| failed("the tokenizer", &error))?;
        let template = ChatTemplate::open(folder, &checkpoint).map_err(|error| failed("the chat template", &error))?;
        Ok(Self { checkpoint, tokenizer, template })
    }
}

/// What the engine needs to start a worker for the model in `folder`.
pub(crate) fn engine_config(config: &Config, folder: &Path) -> Result<EngineConfig, Trouble> {
    // What this machine has free and how many cores it lends say nothing about a worker elsewhere: 0 lets that one look for itself.
    let is_elsewhere = matches!(config.worker.worker, Some(WorkerAddress::Tcp { .. }));
    let free = || if is_elsewhere { 0 } else { machine::memory().map_or(0, |memory| memory.worker_limit_bytes()) };
    let cores =
        || if is_elsewhere { 0 } else { std::thread::available_parallelism().map_or(0, NonZeroUsize::get) as u32 };
    let load = LoadOptions {
        model_path: folder.to_owned(),
        dtype: config.model.dtype.word().to_owned(),
        max_model_len: config.model.max_model_len.said().map_or(0, |tokens| tokens.0),
        kv_bytes: config.engine.kv_memory.said().map_or(0, |bytes| bytes.0),
        memory_limit_bytes: config.engine.memory_limit.said().map_or_else(free, |bytes| bytes.0),
        block_size: config.engine.block_size.said().map_or(0, |size| size.0),
        threads: config.worker.threads.said().map_or_else(cores, |threads| threads.0),
        slots: config.max_running(),
        token_budget: config.engine.token_budget.0,
        device: config.worker.device.word().to_owned(),
    };
    Ok(EngineConfig {
        workers: vec![worker(config)?],
        load,
        max_running: config.max_running(),
        token_budget: config.engine.token_budget.0,
        itl_target: config.engine.itl_target,
        max_waiting: config.engine.max_waiting.0 as usize,
        prefix_caching: config.engine.prefix_caching,
        record: config
            .engine
            .record
            .clone()
            .map(|file| RecordOptions { file, limit_bytes: config.engine.record_limit.0 }),
    })
}

fn worker(config: &Config) -> Result<WorkerSpec, Trouble> {
    let worker = &config.worker;
    Ok(match &worker.worker {
        None => WorkerSpec::python(&worker.python),
        Some(WorkerAddress::Unix(path)) => WorkerSpec::Unix { path: path.clone() },
        Some(WorkerAddress::Tcp { host, port }) => {
            let file = worker.worker_token_file.as_deref().expect("the configuration was checked");
            let token = Token(read(file)?.trim().to_owned());
            let tls = worker
                .worker_ca
                .as_deref()
                .map(|path| Ok::<_, Trouble>(Tls { ca_pem: read(path)?.into_bytes(), name: None }));
            WorkerSpec::Tcp { address: format!("{host}:{port}"), token, tls: tls.transpose()? }
        }
    })
}

/// What may be asked of the API.
pub(super) fn limits(config: &Config) -> ApiLimits {
    ApiLimits {
        body_bytes: usize::try_from(config.server.body_limit.0).unwrap_or(usize::MAX),
        request_timeout: config.server.request_timeout,
        ..ApiLimits::DEFAULT
    }
}

/// The keys that open the API: those of the settings and those of the file. A file without a key is refused, because it
/// would leave the door open that it was meant to close.
pub(super) fn api_keys(config: &Config) -> Result<Vec<ApiKey>, Trouble> {
    let mut keys: Vec<ApiKey> = config.server.api_key.iter().filter_map(|key| ApiKey::new(key.reveal())).collect();
    if let Some(path) = &config.server.api_key_file {
        let text = read(path)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let before = keys.len();
        keys.extend(lines.filter_map(ApiKey::new));
        if keys.len() == before {
            return Err(Trouble::Failed(format!("`api-key-file` {} has no key; write one a line", path.display())));
        }
    }
    Ok(keys)
}

/// As many threads as cores: text and model rarely work hard at the same moment.
pub(super) fn pool() -> Result<Pool, Trouble> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Pool::new(threads, TEXT_QUEUE).map_err(|error| Trouble::Failed(format!("cannot start threads: {error}")))
}

fn read(path: &Path) -> Result<String, Trouble> {
    std::fs::read_to_string(path).map_err(|error| Trouble::Failed(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Surroundings;

    fn config(arguments: &[(&str, &str)]) -> Config {
        let arguments: Vec<_> = arguments.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Config::from_arguments(&arguments, &Surroundings::default()).expect("valid")
    }

    #[test]
    fn what_is_left_to_pelton_is_zero_or_this_machines() {
        let engine = engine_config(&config(&[("token_budget", "100")]), Path::new("/model")).expect("no file is read");
        assert_eq!((engine.load.max_model_len, engine.load.kv_bytes, engine.load.block_size), (0, 0, 0));
        assert!(engine.load.memory_limit_bytes > 0 && engine.load.threads > 0);
        assert_eq!((engine.max_running, engine.load.slots, engine.token_budget), (100, 100, 100));
        assert!(matches!(&engine.workers[..], [WorkerSpec::Spawn { .. }]));
    }

    #[test]
    fn a_worker_elsewhere_looks_at_its_own_machine() {
        let token = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(token.path(), "secret\n").expect("written");
        let path = token.path().display().to_string();
        let config = config(&[("worker", "tcp://far:7000"), ("worker_token_file", &path)]);
        let engine = engine_config(&config, Path::new("/model")).expect("valid");
        assert_eq!((engine.load.memory_limit_bytes, engine.load.threads), (0, 0));
        let [WorkerSpec::Tcp { address, token, tls: None }] = &engine.workers[..] else {
            panic!("{:?}", engine.workers)
        };
        assert_eq!((address.as_str(), token.0.as_str()), ("far:7000", "secret"));
    }

    #[test]
    fn keys_come_from_both_places_and_a_file_without_a_key_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "# keys\n\n one \ntwo\n").expect("written");
        let path = file.path().display().to_string();
        assert_eq!(api_keys(&config(&[("api_key", "zero"), ("api_key_file", &path)])).expect("valid").len(), 3);
        std::fs::write(file.path(), "# nothing\n").expect("written");
        assert!(matches!(api_keys(&config(&[("api_key_file", &path)])), Err(Trouble::Failed(_))));
        assert!(matches!(api_keys(&config(&[("api_key_file", "/no/such")])), Err(Trouble::Failed(_))));
    }
}

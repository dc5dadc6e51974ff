//! The configuration, in the words of the rooms that it configures.

use std::num::NonZeroUsize;
use std::path::Path;

use pelton_engine::{
    CacheEventOptions, Deadlines, DiskOptions, EngineConfig, FirstContext, LoadOptions, QueueLimits, RecordOptions,
    TierOptions, Tls, Token, WorkerSpec,
};
use pelton_text::Pool;

use crate::auth::ApiKey;
use crate::batches::Batches;
use crate::command::Trouble;
use crate::config::{Config, Device, Secret, Surroundings, UnknownFields, Worker, WorkerAddress};
use crate::display;
use crate::files::{FileLimits, Place};
use crate::generate::ApiLimits;
use crate::http::{Desk, StoreLimits};
use crate::machine;
use crate::renderer::Renderer;

/// Long texts that may wait for the pool; at 4 KiB or more each that is at least 4 MiB of work.
const TEXT_QUEUE: usize = 1024;

/// What the engine needs to start a worker for the model in `folder`.
pub(crate) fn engine_config(config: &Config, folder: &Path) -> Result<EngineConfig, Trouble> {
    let (tiers, share) = (tiers(config), Share::of(config)?);
    refuse_to_share_a_gpu(config, machine::gpus().len())?;
    let load = LoadOptions {
        model_path: folder.to_owned(),
        dtype: config.model.dtype.word().to_owned(),
        max_model_len: config.model.max_model_len.said().map_or(0, |tokens| tokens.0),
        first_context: FirstContext::default(),
        kv_bytes: config.engine.kv_memory.said().map_or(0, |bytes| bytes.0),
        memory_limit_bytes: config.engine.memory_limit.said().map_or(share.memory_bytes, |bytes| bytes.0),
        block_size: config.engine.block_size.said().map_or(0, |size| size.0),
        threads: config.worker.threads.said().map_or(share.threads, |threads| threads.0),
        slots: pelton_engine::slots(config.max_running(), config.drafts_max()),
        token_budget: config.engine.token_budget.0,
        scores: pelton_engine::SCORES_MAX.min(config.engine.token_budget.0),
        device: config.worker.device.word().to_owned(),
        quantize: config.model.quantize.word().to_owned(),
        quantize_skip: config.model.quantize_skip.clone(),
        kv_dtype: config.engine.kv_dtype.word().to_owned(),
        kept_folder: config.worker.model_cache.clone(),
        kept_bytes: config.worker.model_cache_size.0,
        model_backend: config.model.model_backend.word().to_owned(),
        trust_remote_code: config.model.trust_remote_code,
        task: config.model.task.word().to_owned(),
        pooling: config.model.pooling.said().map_or_else(String::new, |pooling| pooling.word().to_owned()),
    };
    Ok(EngineConfig {
        workers: workers(config, load.threads)?,
        load,
        max_running: config.max_running(),
        drafts_max: config.drafts_max(),
        token_budget: config.engine.token_budget.0,
        prompt_embeds: config.server.enable_prompt_embeds,
        itl_target: config.engine.itl_target,
        queue: QueueLimits {
            requests: config.engine.max_waiting.0 as usize,
            tokens: config.engine.max_waiting_tokens.map(|tokens| u64::from(tokens.0)),
            wait: config.engine.max_queue_wait,
        },
        prefix_caching: config.engine.prefix_caching,
        pin_share: config.engine.kv_keep_share.0,
        tenant_cache_share: config.engine.kv_tenant_share.0,
        tiers,
        cache_events: config.engine.kv_events.clone().map(|endpoint| CacheEventOptions {
            endpoint,
            replay_endpoint: config.engine.kv_events_replay.clone(),
            topic: config.engine.kv_events_topic.clone().unwrap_or_default(),
        }),
        record: config
            .engine
            .record
            .clone()
            .map(|file| RecordOptions { file, limit_bytes: config.engine.record_limit.0 }),
        deadlines: Deadlines::default(),
    })
}

/// What each of several workers gets of this machine. 0: it looks for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Share {
    pub(crate) memory_bytes: u64,
    pub(crate) threads: u32,
}

impl Share {
    /// Of what is here now, beside host memory for KV.
    fn of(config: &Config) -> Result<Self, Trouble> {
        // What this machine has free and how many cores it lends say nothing about a worker elsewhere: 0 lets that one look for itself.
        if config.has_worker_elsewhere() {
            return Ok(Self::default());
        }
        let memory = if worker_finds_memory(config) {
            0
        } else {
            let free = machine::memory().map_or(0, |memory| memory.worker_limit_bytes());
            beside(free, tiers(config).host_bytes)?
        };
        let cores = std::thread::available_parallelism().map_or(0, NonZeroUsize::get) as u32;
        Ok(Self::out_of(memory, cores, config.workers()))
    }

    /// Even parts; at least one thread, as the machine shares its cores out as well.
    pub(crate) fn out_of(memory_bytes: u64, cores: u32, workers: u32) -> Self {
        Self { memory_bytes: memory_bytes / u64::from(workers), threads: (cores / workers).max(cores.min(1)) }
    }
}

/// Whether the worker looks for itself how much memory there is: on another machine; and one that stays and may hold an earlier router's
/// model, which counts as taken until it is let go for the next. Several, or host memory for KV beside it, have to share what is free now.
pub(crate) fn worker_finds_memory(config: &Config) -> bool {
    let is_alone = matches!(&config.worker.worker[..], [WorkerAddress::Unix(_)]) && tiers(config).host_bytes == 0;
    config.has_worker_elsewhere() || is_alone
}

/// What of the settings this machine cannot give.
pub(crate) fn refused_here(config: &Config) -> Vec<String> {
    [Share::of(config).map(drop), refuse_to_share_a_gpu(config, machine::gpus().len())]
        .into_iter()
        .filter_map(Result::err)
        .map(|(Trouble::Usage(why) | Trouble::Failed(why))| why)
        .collect()
}

/// What host memory for KV leaves of the memory that workers may take; of unknown memory (0) as much is unknown.
fn beside(memory_bytes: u64, host_bytes: u64) -> Result<u64, Trouble> {
    match memory_bytes.checked_sub(host_bytes) {
        Some(left) if left > 0 || memory_bytes == 0 => Ok(left),
        None if memory_bytes == 0 => Ok(0),
        _ => Err(Trouble::Usage(format!(
            "`kv-host-memory` is {}, and {} are free for it and the workers together; lower it",
            display::bytes(host_bytes),
            display::bytes(memory_bytes)
        ))),
    }
}

fn tiers(config: &Config) -> TierOptions {
    let engine = &config.engine;
    TierOptions {
        host_bytes: engine.kv_host_memory.map_or(0, |bytes| bytes.0),
        disk: engine.kv_disk.clone().map(|folder| DiskOptions { folder, limit_bytes: engine.kv_disk_size.0 }),
    }
}

/// Each would take the first GPU, and all of its memory.
fn refuse_to_share_a_gpu(config: &Config, gpus: usize) -> Result<(), Trouble> {
    if config.worker.workers.0 == 1 || config.worker.device != Device::Auto || gpus == 0 {
        return Ok(());
    }
    Err(Trouble::Usage(format!(
        "`workers` is {} and this machine has a GPU, which they would share; set `device` to cpu, or start a worker for each GPU and \
         name each with `worker`",
        config.worker.workers.0
    )))
}

fn workers(config: &Config, threads: u32) -> Result<Vec<WorkerSpec>, Trouble> {
    let Worker { worker, python, workers, .. } = &config.worker;
    if worker.is_empty() {
        // Which node a card is near to is not known here.
        let nodes = if config.worker.device == Device::Cuda { Vec::new() } else { pelton_cpu::nodes() };
        let nodes: Vec<_> = nodes.into_iter().map(|node| node.processors).collect();
        let on = |processors| {
            let mut spec = WorkerSpec::python(python);
            if let WorkerSpec::Spawn { processors: of_spec, .. } = &mut spec {
                *of_spec = processors;
            }
            spec
        };
        return Ok(near_memory(workers.0 as usize, threads as usize, &nodes).into_iter().map(on).collect());
    }
    worker.iter().map(|address| worker_at(address, &config.worker)).collect()
}

/// Which processors each worker runs on: those of one memory node, where there are several, each gets as many workers, and each has
/// a processor for every thread of them. What threads touch first lies near to them then. Else any, and none is named.
fn near_memory(workers: usize, threads: usize, nodes: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let is_even = nodes.len() > 1
        && workers.is_multiple_of(nodes.len())
        && nodes.iter().all(|node| node.len() >= workers / nodes.len() * threads);
    (0..workers).map(|worker| if is_even { nodes[worker % nodes.len()].clone() } else { Vec::new() }).collect()
}

fn worker_at(address: &WorkerAddress, worker: &Worker) -> Result<WorkerSpec, Trouble> {
    Ok(match address {
        WorkerAddress::Unix(path) => WorkerSpec::Unix { path: path.clone() },
        WorkerAddress::Tcp { host, port } => {
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
        max_connections: connections(config.server.max_connections.0, machine::raise_open_files()),
        keeps_prompts: config.engine.prefix_caching && config.engine.kv_keep_share.0 > 0,
        prompt_embeds: config.server.enable_prompt_embeds,
        passes_unknown: config.server.unknown_fields == UnknownFields::Warn,
        ..ApiLimits::DEFAULT
    }
}

/// Runs templates of requests, if they are let in.
pub(super) fn renderer(config: &Config, around: &Surroundings) -> Result<Option<Renderer>, Trouble> {
    if !config.server.trust_request_chat_template {
        return Ok(None);
    }
    let python = around.wheel.as_ref().map(|wheel| wheel.python.as_path());
    let failed = |error| Trouble::Failed(format!("--trust-request-chat-template: this program is not found: {error}"));
    Renderer::new(python).map(Some).map_err(failed)
}

/// What is kept of responses.
pub(super) fn kept(config: &Config) -> StoreLimits {
    let server = &config.server;
    StoreLimits {
        count: server.response_store_count.0 as usize,
        bytes: usize::try_from(server.response_store_size.0).unwrap_or(usize::MAX),
        lifetime: server.response_store_lifetime,
    }
}

/// Where batches are taken. Claims the folder of files, if one is named; without one, nothing but batches fails where there is none to
/// be had.
pub(super) fn desk(config: &Config) -> Result<Desk, Trouble> {
    let server = &config.server;
    let limits = FileLimits { file_bytes: server.max_file_size.0, all_bytes: server.files_max.0 };
    let open = |place: Place| Batches::open(place, limits).map_err(|error| error.to_string());
    let batches = match &server.files_dir {
        Some(folder) => {
            let place = Place::named(folder).map_err(|error| Trouble::Failed(format!("--files-dir: {error}")))?;
            let failed = |error| Trouble::Failed(format!("--files-dir: {} cannot be read: {error}", folder.display()));
            Ok(open(place).map_err(failed)?)
        }
        None => {
            Place::private(&std::env::temp_dir()).map_err(|error| error.to_string()).and_then(open).map_err(|error| {
                tracing::warn!(%error, "no files and batches are taken; --files-dir FOLDER says where they may be");
                "this server has no folder for files: `files-dir` says where they may be".to_owned()
            })
        }
    };
    Ok(Desk { batches, in_flight: config.batch_in_flight() })
}

/// Files that are no connection: logs, listeners, workers, models, with room to spare.
const OTHER_FILES: u64 = 64;

/// As many connections as were asked for, and as files can be open: to accept more would fail for everybody.
fn connections(asked: u32, open_files: Option<u64>) -> usize {
    let possible =
        open_files.map_or(usize::MAX, |files| usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX));
    (asked as usize).min(possible.max(1))
}

/// The keys that open the API: those of the settings and those of the file. A file without a key is refused, because it
/// would leave the door open that it was meant to close.
pub(super) fn api_keys(config: &Config) -> Result<Vec<ApiKey>, Trouble> {
    Ok(secrets(config)?.iter().filter_map(|key| ApiKey::new(key.reveal())).collect())
}

/// The same as texts: a client sends one of them.
pub(crate) fn secrets(config: &Config) -> Result<Vec<Secret>, Trouble> {
    let mut keys = config.server.api_key.clone();
    if let Some(path) = &config.server.api_key_file {
        let text = read(path)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(lines.map(Secret::new));
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
    fn a_worker_has_slots_for_the_drafts_of_one_more_request_than_run() {
        let slots = |arguments: &[(&str, &str)]| {
            let engine = engine_config(&config(arguments), Path::new("/model")).expect("no file is read");
            (engine.drafts_max, engine.load.slots, engine.slots())
        };
        assert_eq!(slots(&[("max_running", "4"), ("speculate_max", "5")]), (0, 4, 4));
        assert_eq!(slots(&[("max_running", "4"), ("speculate", "ngram")]), (8, 12, 12));
        assert_eq!(slots(&[("max_running", "4"), ("speculate", "ngram"), ("speculate_max", "5")]), (5, 9, 9));
    }

    #[test]
    fn workers_stay_near_their_memory_where_each_node_has_as_many() {
        let nodes = [vec![0, 1], vec![2, 3]];
        let anywhere = |workers| vec![Vec::<usize>::new(); workers];
        assert_eq!(near_memory(2, 2, &nodes), nodes);
        assert_eq!(near_memory(4, 1, &nodes), [&nodes[0][..], &nodes[1], &nodes[0], &nodes[1]]);
        assert_eq!(near_memory(3, 1, &nodes), anywhere(3));
        assert_eq!(near_memory(2, 1, &nodes[..1]), anywhere(2));
        assert_eq!(near_memory(1, 1, &[]), anywhere(1));
        assert_eq!(near_memory(2, 2, &[vec![0, 1], vec![2]]), anywhere(2), "two threads, and one processor");
        assert_eq!(near_memory(2, 4, &nodes), anywhere(2));
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
    fn a_worker_that_stays_looks_for_memory_when_it_has_let_its_model_go() {
        let load = |arguments: &[(&str, &str)]| {
            let engine = engine_config(&config(arguments), Path::new("/model")).expect("valid");
            (engine.load.memory_limit_bytes, engine.load.threads > 0)
        };
        assert_eq!(load(&[("worker", "unix:///a.sock")]), (0, true));
        assert_eq!(load(&[("worker", "unix:///a.sock"), ("memory_limit", "1GiB")]), (1 << 30, true));
        assert!(load(&[("worker", "unix:///a.sock,unix:///b.sock")]).0 > 0);
        assert!(load(&[("worker", "unix:///a.sock"), ("kv_host_memory", "1MiB")]).0 > 0);
    }

    #[test]
    fn several_workers_share_the_machine() {
        let engine =
            |arguments: &[(&str, &str)]| engine_config(&config(arguments), Path::new("/model")).expect("valid");
        let [one, two] = ["1", "2"].map(|workers| engine(&[("workers", workers), ("device", "cpu")]));
        assert_eq!((one.workers.len(), two.workers.len()), (1, 2));
        assert!(two.load.threads >= 1 && two.load.threads <= one.load.threads);
        assert!(two.load.memory_limit_bytes < one.load.memory_limit_bytes);
        let said = engine(&[("workers", "3"), ("device", "cpu"), ("threads", "5"), ("memory_limit", "1GiB")]);
        assert_eq!((said.workers.len(), said.load.threads, said.load.memory_limit_bytes), (3, 5, 1 << 30));
        for (cores, workers, threads) in [(8, 2, 4), (7, 2, 3), (2, 3, 1), (0, 2, 0)] {
            assert_eq!(Share::out_of(9 << 30, cores, workers).threads, threads);
        }
    }

    #[test]
    fn host_memory_for_kv_is_not_given_to_workers_too() {
        assert!(matches!(beside(100, 30), Ok(70)));
        assert!(matches!(beside(0, 30), Ok(0)));
        for host_bytes in [100, 101] {
            assert!(matches!(beside(100, host_bytes), Err(Trouble::Usage(_))));
        }
        let engine = engine_config(
            &config(&[("kv_host_memory", "64MiB"), ("kv_disk", "/kv"), ("kv_disk_size", "1GiB")]),
            Path::new("/model"),
        );
        let disk = Some(DiskOptions { folder: "/kv".into(), limit_bytes: 1 << 30 });
        assert_eq!(engine.expect("valid").tiers, TierOptions { host_bytes: 64 << 20, disk });
    }

    #[test]
    fn several_workers_do_not_share_a_gpu_unasked() {
        let check =
            |device, workers| refuse_to_share_a_gpu(&config(&[("workers", workers), ("device", device)]), 1).is_ok();
        assert_eq!((check("auto", "1"), check("cpu", "2"), check("auto", "2")), (true, true, false));
    }

    #[test]
    fn each_address_is_a_worker() {
        let engine = engine_config(&config(&[("worker", "unix:///a.sock,unix:///b.sock")]), Path::new("/model"));
        let workers = engine.expect("valid").workers;
        let [WorkerSpec::Unix { path: first }, WorkerSpec::Unix { path: second }] = &workers[..] else {
            panic!("{workers:?}")
        };
        assert_eq!((first.as_path(), second.as_path()), (Path::new("/a.sock"), Path::new("/b.sock")));
    }

    #[test]
    fn there_are_no_more_connections_than_files() {
        assert_eq!(connections(4096, None), 4096);
        assert_eq!(connections(4096, Some(1 << 20)), 4096);
        assert_eq!(connections(4096, Some(200)), 136);
        assert_eq!(connections(4096, Some(10)), 1);
    }

    #[test]
    fn keys_come_from_both_places_and_a_file_without_a_key_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "# keys\n\n one \ntwo\n").expect("written");
        let path = file.path().display().to_string();
        let both = config(&[("api_key", "zero"), ("api_key_file", &path)]);
        assert_eq!(api_keys(&both).expect("valid").len(), 3);
        let texts: Vec<String> = secrets(&both).expect("valid").iter().map(|key| key.reveal().to_owned()).collect();
        assert_eq!(texts, ["zero", "one", "two"]);
        std::fs::write(file.path(), "# nothing\n").expect("written");
        assert!(matches!(api_keys(&config(&[("api_key_file", &path)])), Err(Trouble::Failed(_))));
        assert!(matches!(api_keys(&config(&[("api_key_file", "/no/such")])), Err(Trouble::Failed(_))));
    }
}

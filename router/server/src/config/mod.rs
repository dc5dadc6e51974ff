//! Settings: one typed tree, declared once in `tree`, filled from flags, `PELTON_` variables, a TOML file and defaults.
//!
//! Knows every setting, its text, its type and who said it. Never here: what a setting does. Nothing else in Pelton reads
//! the environment; a value passes from here down as a plain field.

mod derived;
mod error;
mod file;
mod flags;
mod page;
mod resolve;
mod setting;
mod tree;
mod units;
mod value;
mod words;

pub use error::ConfigError;
pub use resolve::{Asked, Given, Origin, Surroundings, Values, Wheel, merge, resolve};
pub use setting::{Default, Derived, Scope, Section, Setting, Settings};
pub use tree::{Engine, General, Hub, Log, Model, Server, Worker};
pub use units::{Bytes, Count, Seed, Tokens};
pub use value::{Arity, Auto, Row, Value, Word};
pub use words::{
    BlockSize, Device, Dtype, GenerationConfig, LogFormat, LogLevel, ModelBackend, Pooling, Quantize, Secret,
    Speculate, Task, UnknownFields, Url, WorkerAddress,
};

pub(crate) use page::{explain, flags_page, help};
pub(crate) use setting::settings;

/// Everything that can be set about a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// What is served.
    pub model: Model,
    /// How clients reach it.
    pub server: Server,
    /// How requests are scheduled, and in which memory.
    pub engine: Engine,
    /// What computes.
    pub worker: Worker,
    /// Where models come from.
    pub hub: Hub,
    /// What is written down.
    pub log: Log,
}

/// All settings of the tree, in the order of help and docs.
pub fn server_settings() -> Vec<&'static Setting> {
    [General::ALL, Model::ALL, Server::ALL, Engine::ALL, Worker::ALL, Hub::ALL, Log::ALL]
        .into_iter()
        .flatten()
        .collect()
}

impl Config {
    /// From resolved values; refuses settings that do not go together.
    pub fn new(values: &Values) -> Result<Self, ConfigError> {
        let config = Self {
            model: Model::take(values),
            server: Server::take(values),
            engine: Engine::take(values),
            worker: Worker::take(values),
            hub: Hub::take(values),
            log: Log::take(values),
        };
        config.check()?;
        Ok(config)
    }

    /// From keyword arguments, as of a Python class: names with underscores, and texts.
    pub fn from_arguments(arguments: &[(String, String)], around: &Surroundings) -> Result<Self, ConfigError> {
        let settings = server_settings();
        let mut said: Vec<Given> = Vec::new();
        for (name, text) in arguments {
            let Some(setting) = settings.iter().find(|setting| setting.field == name) else {
                let fields = settings.iter().map(|setting| setting.field);
                let nearest = crate::nearest::nearest(name, fields).map(str::to_owned);
                return Err(ConfigError::UnknownFlag { got: name.clone(), nearest });
            };
            said.push(Given {
                field: setting.field,
                texts: vec![text.clone()],
                origin: Origin::Argument(name.clone()),
            });
        }
        Self::new(&merge(said, &settings, around)?)
    }

    /// Requests in a batch: never more than one step has tokens for.
    pub fn max_running(&self) -> u32 {
        const USUAL: u32 = 256;
        self.engine.max_running.said().map_or(USUAL.min(self.engine.token_budget.0), |count| count.0)
    }

    /// Requests of batches that are under way at once.
    pub fn batch_in_flight(&self) -> usize {
        let half = || self.running_in_all() / 2;
        self.server.batch_in_flight.said().map_or_else(half, |count| count.0).max(1) as usize
    }

    /// Requests that all workers run at once.
    pub fn running_in_all(&self) -> u32 {
        self.max_running().saturating_mul(self.workers())
    }

    /// Drafts of a request in a step at most; 0: none.
    pub fn drafts_max(&self) -> u32 {
        match self.engine.speculate {
            Speculate::Off => 0,
            Speculate::Ngram => self.engine.speculate_max.0,
        }
    }

    /// How many workers serve.
    pub fn workers(&self) -> u32 {
        match self.worker.worker.len() {
            0 => self.worker.workers.0,
            given => u32::try_from(given).expect("a command line is shorter"),
        }
    }

    /// Whether a worker runs on another machine.
    pub fn has_worker_elsewhere(&self) -> bool {
        self.worker.worker.iter().any(|worker| matches!(worker, WorkerAddress::Tcp { .. }))
    }

    fn check_workers(&self) -> Result<(), ConfigError> {
        let conflict = |text: String| Err(ConfigError::Conflict(text));
        let (started, given) = (self.worker.workers.0, &self.worker.worker);
        if started > 1 && !given.is_empty() {
            return conflict(format!(
                "`workers` is {started}: so many are started, and `worker` names {} that run already; leave one of the two out",
                given.len()
            ));
        }
        if started > 1 && self.worker.device == Device::Cuda {
            return conflict(format!(
                "`workers` is {started} and `device` is cuda: they would share the first GPU; start a worker for each GPU \
                 (`CUDA_VISIBLE_DEVICES=1 pelton worker --listen unix:///...`) and name each with `worker`"
            ));
        }
        let twice = given.iter().enumerate().find(|(index, worker)| given[..*index].contains(worker));
        twice.map_or(Ok(()), |(_, worker)| conflict(format!("`worker` names {worker} twice; a worker serves once")))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let conflict = |text: String| Err(ConfigError::Conflict(text));
        if let Auto::Of(running) = self.engine.max_running
            && running.0 > self.engine.token_budget.0
        {
            return conflict(format!(
                "`max-running` is {}, more than the `token-budget` of {}: a step has a token for each running request; lower one or raise the other",
                running.0, self.engine.token_budget.0
            ));
        }
        let engine = &self.engine;
        for (name, is_said) in [
            ("kv-events-replay", engine.kv_events_replay.is_some()),
            ("kv-events-topic", engine.kv_events_topic.is_some()),
        ] {
            if is_said && engine.kv_events.is_none() {
                return conflict(format!("`{name}` needs `kv-events`, which is not set"));
            }
        }
        if engine.kv_disk.is_some() && engine.kv_host_memory.is_none() {
            return conflict(
                "`kv-disk` takes blocks from the host's memory and gives them back there: set `kv-host-memory` too, such as 1GiB"
                    .to_owned(),
            );
        }
        if engine.kv_host_memory.is_some() && !engine.prefix_caching {
            return conflict(
                "`kv-host-memory` keeps the prefix cache, which `prefix-caching` false turns off; leave one out"
                    .to_owned(),
            );
        }
        if engine.kv_events.is_some() && !engine.prefix_caching {
            return conflict(
                "`kv-events` tells of the prefix cache, which `prefix-caching` false turns off; leave one out"
                    .to_owned(),
            );
        }
        if self.server.grpc_port.is_some_and(|port| port != 0 && port == self.server.port) {
            return conflict(format!(
                "`port` and `grpc-port` are both {}; leave `grpc-port` out to serve both on one port",
                self.server.port
            ));
        }
        self.check_workers()?;
        let is_tcp = self.has_worker_elsewhere();
        if is_tcp && self.worker.worker_token_file.is_none() {
            return conflict("a tcp worker asks for a token: set `worker-token-file`".into());
        }
        if !is_tcp && (self.worker.worker_token_file.is_some() || self.worker.worker_ca.is_some()) {
            return conflict(
                "`worker-token-file` and `worker-ca` are for a tcp worker: set `worker` to tcp://HOST:PORT".into(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! What a link is made of. Plain values; nothing is read from the environment here.

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pelton_frame::{Bell, Capacities};
use pelton_rpc::v1::LoadRequest;
use prost::Message as _;

use crate::{FirstContext, HostShare};

/// Where a worker comes from.
#[derive(Debug, Clone)]
pub enum WorkerSpec {
    /// A child process of ours. ` --listen unix:///...` is added to its arguments.
    Spawn {
        /// The program.
        program: PathBuf,
        /// Its arguments.
        arguments: Vec<OsString>,
        /// Added to our environment.
        env: Vec<(OsString, OsString)>,
        /// The processors that it may run on; none named: those of ours.
        processors: Vec<usize>,
    },
    /// A worker on this host that others started: memory is handed over.
    Unix {
        /// Its control socket.
        path: PathBuf,
    },
    /// A worker elsewhere: frames travel inline.
    Tcp {
        /// HOST:PORT.
        address: String,
        /// What it wants to hear.
        token: Token,
        /// None: unencrypted, allowed to a loopback address alone.
        tls: Option<Tls>,
    },
}

impl WorkerSpec {
    /// Pelton's own worker under this interpreter, on any processors. What lies in the folder that it is started in is none of its
    /// modules (`-P`): that may be a model's, or anybody's.
    pub fn python(interpreter: impl Into<PathBuf>) -> Self {
        let arguments = ["-P", "-m", "pelton.worker", "--spawned"].map(OsString::from).to_vec();
        Self::Spawn { program: interpreter.into(), arguments, env: Vec::new(), processors: Vec::new() }
    }
}

/// A secret that is shown nowhere.
#[derive(Clone)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// How a worker elsewhere proves who it is.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Certificates that may sign the worker's, as PEM.
    pub ca_pem: Vec<u8>,
    /// The name in the worker's certificate; none: the host of its address.
    pub name: Option<String>,
}

/// What the worker loads, and within which bounds: the contract's `LoadRequest`.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Folder in Hugging Face layout, on the worker's host.
    pub model_path: PathBuf,
    /// "auto", "bfloat16" or "float32".
    pub dtype: String,
    /// 0: what the model's config says, or less if memory is short.
    pub max_model_len: u32,
    /// What that came to, once a worker has planned it.
    pub first_context: FirstContext,
    /// 0: what the limit leaves.
    pub kv_bytes: u64,
    /// The most the worker may take in all.
    pub memory_limit_bytes: u64,
    /// 0: by device.
    pub block_size: u32,
    /// 0: all cores.
    pub threads: u32,
    /// Rows of a step at most.
    pub slots: u32,
    /// Tokens of a step at most.
    pub token_budget: u32,
    /// Prompt tokens that a step scores at most.
    pub scores: u32,
    /// "auto", "cpu" or "cuda".
    pub device: String,
    /// "auto", "int8", "int8-a16", "int4" or "int4-a16".
    pub quantize: String,
    /// Layers that are not rounded.
    pub quantize_skip: String,
    /// "auto" or "int8".
    pub kv_dtype: String,
    /// Where loaded models are kept for the next start, on the worker's host.
    pub kept_folder: PathBuf,
    /// The most that all of them may take there; 0: none is kept.
    pub kept_bytes: u64,
    /// "auto", "native" or "transformers".
    pub model_backend: String,
    /// Whether Python code in the model's folder may run.
    pub trust_remote_code: bool,
    /// "auto", "generate", "embed" or "classify".
    pub task: String,
    /// "mean", "cls" or "last"; empty: as the checkpoint says.
    pub pooling: String,
}

impl LoadOptions {
    /// In the contract's words, as bytes: for who loads beside a server. Refused in words if a path is not UTF-8.
    pub fn encoded(&self) -> Result<Vec<u8>, String> {
        self.request().map(|request| request.encode_to_vec())
    }

    /// In the contract's words.
    pub(crate) fn request(&self) -> Result<LoadRequest, String> {
        let utf8 = |path: &Path| path.to_str().map(str::to_owned);
        Ok(LoadRequest {
            model_path: utf8(&self.model_path).ok_or("the model's path is not UTF-8")?,
            dtype: self.dtype.clone(),
            max_model_len: self.max_model_len,
            first_context: self.first_context.tokens(),
            kv_bytes: self.kv_bytes,
            memory_limit_bytes: self.memory_limit_bytes,
            block_size: self.block_size,
            threads: self.threads,
            slots: self.slots,
            token_budget: self.token_budget,
            scores: self.scores,
            device: self.device.clone(),
            quantize: self.quantize.clone(),
            quantize_skip: self.quantize_skip.clone(),
            kv_dtype: self.kv_dtype.clone(),
            kept_folder: utf8(&self.kept_folder).unwrap_or_default(), // nothing is kept there, as if it were not set
            kept_bytes: self.kept_bytes,
            model_backend: self.model_backend.clone(),
            trust_remote_code: self.trust_remote_code,
            task: self.task.clone(),
            pooling: self.pooling.clone(),
        })
    }
}

/// Every wait of a link has one of these bounds, and its name stands in the error.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// `connect`: from the start of a child to its control socket, imports of Python packages included.
    pub connect: Duration,
    /// `handshake`: the answer to the first call.
    pub handshake: Duration,
    /// `load-progress`: between two signs of progress.
    pub load_progress: Duration,
    /// `attach`: from the hand-over to the worker's yes.
    pub attach: Duration,
    /// `heartbeat`: an idle worker that shows no sign of life for so long is lost.
    pub heartbeat: Duration,
    /// `step`: allowed to each step in flight while nothing moves in the memory. The engine, which knows what a step
    /// holds, usually acts first; this bound holds even if it does not.
    pub step: Duration,
    /// `let-go`: from the loss of a worker that others started to its word that it touches host memory no more. One that
    /// does not say so is killed.
    pub let_go: Duration,
    /// How often the watch looks. With shared memory that is a look at three words and costs the worker nothing;
    /// a worker elsewhere is asked by a `Health` call.
    pub watch_interval: Duration,
    /// Between a loss and the next start: 0 after the first loss, then longer with each, up to this.
    pub back_off: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(120),
            handshake: Duration::from_secs(10),
            load_progress: Duration::from_secs(300),
            attach: Duration::from_secs(30),
            heartbeat: Duration::from_secs(20),
            step: Duration::from_secs(600),
            let_go: Duration::from_secs(5),
            watch_interval: Duration::from_secs(2),
            back_off: Duration::from_secs(10),
        }
    }
}

/// A whole link.
#[derive(Clone)]
pub struct LinkOptions {
    /// Where the worker comes from.
    pub spec: WorkerSpec,
    /// What it loads.
    pub load: LoadOptions,
    /// What a step may hold. How wide vectors are is for the model to say.
    pub capacities: Capacities,
    /// Rung after every event and every result.
    pub bell: Arc<Bell>,
    /// Where the worker's blocks are kept when it is gone, if anywhere. A worker elsewhere does not reach it.
    pub host: Option<Arc<HostShare>>,
    /// Bounds of all waits.
    pub deadlines: Deadlines,
    /// Failed starts in a row after which a spawned worker is given up. A worker that others start is waited for.
    pub failed_starts_max: u32,
}

impl LinkOptions {
    /// With the default deadlines.
    pub fn new(spec: WorkerSpec, load: LoadOptions, capacities: Capacities, bell: Arc<Bell>) -> Self {
        Self { spec, load, capacities, bell, host: None, deadlines: Deadlines::default(), failed_starts_max: 5 }
    }
}

//! The configuration tree: every setting of the server, declared once. `docs/flags.md` is made from this file.

use std::path::PathBuf;
use std::time::Duration;

use pelton_engine::Endpoint;

use super::setting::settings;
use super::units::{Bytes, Count, Room, Tokens};
use super::value::Auto;
use super::words::{
    BlockSize, Device, Dtype, GenerationConfig, KvDtype, LogFormat, LogLevel, ModelBackend, Pooling, Quantize, Secret,
    Speculate, Task, UnknownFields, Url, WorkerAddress,
};

settings! {
    /// General
    pub section General ("", Everywhere) {
        /// A TOML file with settings; flags and variables come before it.
        config: Option<PathBuf>;
    }
}

settings! {
    /// Model
    pub section Model ("model", Everywhere) {
        /// What to serve: a folder in Hugging Face layout, or ORG/NAME from the hub. Not set: the demo model that comes with
        /// Pelton. It may stand without its flag: `pelton serve ./my-model`.
        model: Option<String>;
        /// The name by which requests ask for the model. May be given several times; the first one is reported.
        /// Not set: the folder's name, or ORG/NAME.
        served_model_name: Vec<String>;
        /// What weights and activations are computed in; `auto` is what the weights are stored in, and float32 for float16
        /// weights, which no kernel computes in and float32 holds exactly.
        dtype: Dtype = "auto";
        /// Weights of 4 or 8 bits, on CPUs. `auto` is as the checkpoint has them (GPTQ, AWQ, compressed-tensors, or not quantised);
        /// `int8` and `int4` round bfloat16, float16 or float32 weights to nearest while they are loaded (a scale for each column, or for
        /// each 64 weights) and multiply them with activations of 8 bits; with `-a16` activations stay as they are, which is closer and,
        /// for long prompts, slower where there is no AMX. For a quantised checkpoint it says which activations: `int4` or `int4-a16` for one of 4 bits.
        quantize: Quantize = "auto";
        /// Layers that `quantize` leaves as they are, as wildcards with commas between, over Pelton's names (`head`, `blocks.0.*`, `*.mlp.down`,
        /// `*.attention.qkv`) or the checkpoint's (`lm_head`, `model.layers.0.*`), each of which has to fit one; `none`: the head is rounded, too,
        /// as it is beside other names. Embeddings and norms never are.
        quantize_skip: String = "head";
        /// Whose definition of the model runs. `native` is Pelton's own: fast, and bit for bit the same in every batch. `transformers` is that
        /// of the Python package, which must be installed where the worker runs: slower, and for many more models (docs/models.md). `auto`
        /// is Pelton's own where there is one.
        model_backend: ModelBackend = "auto";
        /// Whether Python code that the model's folder brings (`auto_map` in config.json) may run, with all rights of the worker. Without
        /// it such a model is refused. Code is not downloaded from the hub: put it into the folder yourself, and read it.
        trust_remote_code: bool = "false";
        /// What the model is for: text, vectors of texts, or classes of texts (docs/embeddings.md). `auto` is what its checkpoint says.
        task: Task = "auto";
        /// How an embedding model makes one vector of the vectors of its tokens; `auto` is what its checkpoint says.
        pooling: Auto<Pooling> = "auto";
        /// Prompt and output of one request together; `auto` is what the model can do (of embedders in folders of sentence-transformers: what these
        /// say), or less if its KV does not fit.
        max_model_len: Auto<Tokens> = "auto";
        /// Whether the sampling that the checkpoint's generation_config.json recommends (`temperature`, `top_k`, `top_p`, `min_p`,
        /// `repetition_penalty`, `max_new_tokens`) holds where a request says nothing: `auto` uses it, `none` leaves OpenAI's defaults. The
        /// tokens that end an answer are taken from there in any case.
        generation_config: GenerationConfig = "auto";
        /// How the model writes reasoning and tool calls: `auto` is what its chat template and its vocabulary say; `none` leaves
        /// all of it in the text; else a name, such as hermes or llama3-json, or the path of a TOML file that declares a form.
        format: String = "auto";
    }
}

settings! {
    /// Server
    pub section Server ("server", Everywhere) {
        /// The address to listen on. Use 0.0.0.0 to be reached from other machines, and then an API key.
        host: String = "127.0.0.1";
        /// The port for HTTP/1.1, HTTP/2 and gRPC.
        port: u16 = "8000";
        /// A port of its own for gRPC. Not set: gRPC is served on `port`.
        grpc_port: Option<u16>;
        /// A key that clients must send (`Authorization: Bearer KEY`). May be given several times. Other users of the machine
        /// can read flags: `api-key-file` is the better place.
        api_key: Vec<Secret>;
        /// A file with one API key a line; empty lines and lines that begin with `#` are skipped.
        api_key_file: Option<PathBuf>;
        /// Connections at the same time. A new one beyond it takes the place of the oldest that has sent no request yet, else of the one that
        /// has been idle for longest; while all have requests under way, it waits. Fewer if the process may open fewer files.
        max_connections: Count<1, 1_000_000> = "4096";
        /// Whether chats may bring a template of their own (`chat_template`). Each such template is a program of the client's: it runs in a
        /// process of its own, within 512 MiB and 10 s.
        trust_request_chat_template: bool = "false";
        /// What becomes of fields of a request that nobody knows: `refuse` answers 400 with the nearest name, `warn` takes the request without
        /// them and names them in the answer's header `x-pelton-unknown-fields`. A known field that is not served is refused in any case.
        unknown_fields: UnknownFields = "refuse";
        /// Whether completions may bring prompts as embeddings (`prompt_embeds`): safetensors, which run no code.
        enable_prompt_embeds: bool = "false";
        /// The largest request body.
        body_limit: Bytes = "32MiB";
        /// The longest that one request may take, from its arrival to its last token; then it ends with status 504. Clients may
        /// ask for less by the headers `x-request-timeout-ms`, `x-envoy-expected-rq-timeout-ms` or gRPC's deadline. Not set: as
        /// long as it takes.
        request_timeout: Option<Duration>;
        /// Responses (`/v1/responses`) that are kept in memory for clients that ask for them again or go on with them; then the oldest
        /// goes, of the API key that keeps most. Each key sees its own. 0: none is kept.
        response_store_count: Count<0, 1_000_000> = "10000";
        /// What they may take in all, with the events of streams in the background. A conversation counts whole in each of its responses.
        response_store_size: Bytes = "256MiB";
        /// How long each is kept at most.
        response_store_lifetime: Duration = "24h";
        /// A folder for files and batches (`/v1/files`, `/v1/batches`): they outlive the server, and batches go on with the next one. They hold
        /// what users wrote. For one server at a time. Not set: a folder of the server's own below the one for temporary files, which
        /// goes with it.
        files_dir: Option<PathBuf>;
        /// What all files may take together, those that batches write among them.
        files_max: Bytes = "4GiB";
        /// The largest file that may be uploaded.
        max_file_size: Bytes = "512MiB";
        /// Requests of all batches that are under way at once; `auto` is half of what all workers run at once (`max-running`), so that others
        /// find as much free.
        batch_in_flight: Auto<Count<1, 65_536>> = "auto";
        /// How long running requests may take to finish after SIGTERM.
        drain_timeout: Duration = "30s";
    }
}

settings! {
    /// Engine
    pub section Engine ("engine", Everywhere) {
        /// Memory for KV blocks of each worker, planned when it loads and taken as requests come near it; `auto` is what weights and activations leave of `memory-limit`, but no more than is likely to be used.
        kv_memory: Auto<Bytes> = "auto";
        /// What KV blocks hold, on CPUs. `auto` is keys and values as they are computed; `int8` rounds them to 8 bits, with a scale for each
        /// token and head: about twice as many tokens in the same memory, for a small change of what the model says.
        kv_dtype: KvDtype = "auto";
        /// Memory of this machine for KV blocks that leave the workers' own: a prompt that comes back finds them there. All workers of
        /// this machine share it, and it stays when one of them is replaced. Not set: what leaves is computed again.
        kv_host_memory: Option<Bytes>;
        /// A folder for KV blocks that leave the host's memory: they outlive the server. The blocks hold what users wrote: `pelton
        /// cache purge FOLDER` empties it. For one server at a time; needs `kv-host-memory`. Not set: nothing is kept on disk.
        kv_disk: Option<PathBuf>;
        /// What that folder may take in all; the longest unused go.
        kv_disk_size: Bytes = "10GiB";
        /// The most that a worker may take in all; `auto` is most of what the cgroup or the machine has free, less `kv-host-memory`,
        /// shared out evenly among the workers.
        memory_limit: Auto<Bytes> = "auto";
        /// Tokens in a KV block; `auto` is 32 on CPUs and 16 on GPUs.
        block_size: Auto<BlockSize> = "auto";
        /// Requests that run at once in each worker; others wait. `auto` is 256, or `token-budget` if that is less.
        max_running: Auto<Count<1, 4096>> = "auto";
        /// Requests that may wait; more are refused with status 429. API keys share a full queue: who has fewer places takes the latest
        /// of who has most.
        max_waiting: Count<1, 1_000_000> = "4096";
        /// Prompt tokens of all requests that wait; more are refused with status 429. A request that finds nobody waiting may always wait.
        /// Not set: as many as `max-waiting` requests have.
        max_waiting_tokens: Option<Tokens>;
        /// How long a new request may be foreseen to wait, by the tokens before it and by the pace of the queue; beyond that it is
        /// refused with status 429. Not set: however long.
        max_queue_wait: Option<Duration>;
        /// Tokens of one step, prompts and outputs together. Smaller: a steadier stream; larger: faster prompts.
        token_budget: Tokens = "2048";
        /// How long a step that draws tokens should take, such as 50ms: prompts are cut so that those who read do not wait longer
        /// for their next token. Not set: prompts take what `token-budget` allows.
        itl_target: Option<Duration>;
        /// Whether tokens are drafted, so that a step may draw several of a request: `ngram` drafts what has followed the request's
        /// latest tokens before, which pays where answers repeat what stands in the prompt or in themselves. The tokens are the same
        /// as with `off`.
        speculate: Speculate = "off";
        /// Drafts of a request in one step at most. Requests with a grammar or with penalties have none.
        speculate_max: Count<1, 64> = "8";
        /// Whether blocks of a finished request serve later ones that begin alike.
        prefix_caching: bool = "true";
        /// How many percent of a worker's KV blocks prompts may take whose clients want them to be kept (`prompt_cache_retention`);
        /// 0: no prompt is kept. A kept block costs others their place in the cache and never their turn.
        kv_keep_share: Count<0, 100> = "25";
        /// How many percent of a worker's KV blocks the requests of one API key may leave in the prefix cache, and of what may be
        /// kept what it may have kept; 100: no bound.
        kv_tenant_share: Count<1, 100> = "100";
        /// Where routers of several servers hear what the prefix cache holds, in vLLM's format: tcp://127.0.0.1:5557 or ipc:///PATH;
        /// further workers take the ports behind it. The tokens of prompts leave the server there. Not set: nobody is told.
        kv_events: Option<Endpoint>;
        /// Where they ask again for what they have missed, such as tcp://127.0.0.1:5657.
        kv_events_replay: Option<Endpoint>;
        /// The topic of each message. Not set: an empty one.
        kv_events_topic: Option<String>;
        /// Record what the scheduler is told, for `pelton replay FILE`: into FILE.000001, FILE.000002 and so on, for their owner
        /// only. They hold what users wrote, as token ids, and no API key. Not set: nothing is recorded.
        record: Option<PathBuf>;
        /// All files of a recording together; the oldest go.
        record_limit: Bytes = "256MiB";
    }
}

settings! {
    /// Worker
    pub section Worker ("worker", Everywhere) {
        /// Where the model runs; `auto` is the first GPU that PyTorch can use, else the processor.
        device: Device = "auto";
        /// How many workers Pelton starts on this machine: each loads the model, and a request goes to the one that has most of its
        /// prompt in its cache and least else to do. On CPUs; several GPUs take a worker each that runs already (`worker`). Where the
        /// machine has several memory nodes (NUMA), each gets as many workers and has a processor for each of their threads, each worker
        /// keeps to one; else each worker's threads are spread over all of them, where these can have equal
        /// shares, and read the weights that lie near to them.
        workers: Count<1, 64> = "1";
        /// Threads of each worker that compute; `auto` is the processor's cores, or the cgroup's share of them, shared out evenly
        /// among the workers.
        threads: Auto<Count<1, 1024>> = "auto";
        /// A worker that runs already: unix:///path/to/worker.sock on this machine, tcp://HOST:PORT on another. May be given
        /// several times: all of them serve. Not set: Pelton starts workers of its own.
        worker: Vec<WorkerAddress>;
        /// A file with the token that a tcp worker asks for.
        worker_token_file: Option<PathBuf>;
        /// The certificate authority (PEM) that signed the certificate of a tcp worker.
        worker_ca: Option<PathBuf>;
        /// Where a worker on CPUs keeps the models that it has loaded, packed and recorded, so that its next start reads them in a
        /// fraction of the time. For its user alone: a folder that others may write is not used.
        model_cache: PathBuf, by super::derived::model_cache as "~/.cache/pelton/models";
        /// The most that all models there may take; those used longest ago go. A model takes about what its weights take. 0: none is
        /// kept.
        model_cache_size: Room = "16GiB";
        /// The Python interpreter that runs the worker.
        python: PathBuf, by super::derived::python as "the one that runs the command, else python3";
    }
}

settings! {
    /// Hub
    pub section Hub ("hub", Everywhere) {
        /// The branch, tag or commit of ORG/NAME.
        revision: String = "main";
        /// The hub that ORG/NAME comes from.
        hub_endpoint: Url = "https://huggingface.co";
        /// Where downloads are kept, in the layout of the hub's own tools.
        hub_cache: PathBuf, by super::derived::hub_cache as "~/.cache/huggingface/hub";
        /// A file with the access token for models that need one.
        hub_token_file: Option<PathBuf>, by super::derived::hub_token_file as "~/.cache/huggingface/token, if there";
        /// Whether to use only what is in the cache.
        offline: bool, by super::derived::offline as "false";
    }
}

settings! {
    /// Log
    pub section Log ("log", Everywhere) {
        /// The least important message that is written.
        log_level: LogLevel = "info";
        /// `text` for people, `json` for collectors.
        log_format: LogFormat = "text";
    }
}

from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HandshakeRequest(_message.Message):
    __slots__ = ("protocol", "records_checksum", "nonce", "epoch")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RECORDS_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    records_checksum: int
    nonce: bytes
    epoch: int
    def __init__(self, protocol: _Optional[int] = ..., records_checksum: _Optional[int] = ..., nonce: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("protocol", "records_checksum", "pid", "device", "device_name", "worker_version", "memory_socket")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RECORDS_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    WORKER_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SOCKET_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    records_checksum: int
    pid: int
    device: str
    device_name: str
    worker_version: str
    memory_socket: str
    def __init__(self, protocol: _Optional[int] = ..., records_checksum: _Optional[int] = ..., pid: _Optional[int] = ..., device: _Optional[str] = ..., device_name: _Optional[str] = ..., worker_version: _Optional[str] = ..., memory_socket: _Optional[str] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("model_path", "dtype", "max_model_len", "kv_bytes", "memory_limit_bytes", "block_size", "threads", "slots", "token_budget", "device", "quantize", "quantize_skip", "kept_folder", "kept_bytes", "model_backend", "trust_remote_code", "task", "pooling", "scores", "kv_dtype", "first_context")
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZE_SKIP_FIELD_NUMBER: _ClassVar[int]
    KEPT_FOLDER_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODEL_BACKEND_FIELD_NUMBER: _ClassVar[int]
    TRUST_REMOTE_CODE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    model_path: str
    dtype: str
    max_model_len: int
    kv_bytes: int
    memory_limit_bytes: int
    block_size: int
    threads: int
    slots: int
    token_budget: int
    device: str
    quantize: str
    quantize_skip: str
    kept_folder: str
    kept_bytes: int
    model_backend: str
    trust_remote_code: bool
    task: str
    pooling: str
    scores: int
    kv_dtype: str
    first_context: int
    def __init__(self, model_path: _Optional[str] = ..., dtype: _Optional[str] = ..., max_model_len: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., block_size: _Optional[int] = ..., threads: _Optional[int] = ..., slots: _Optional[int] = ..., token_budget: _Optional[int] = ..., device: _Optional[str] = ..., quantize: _Optional[str] = ..., quantize_skip: _Optional[str] = ..., kept_folder: _Optional[str] = ..., kept_bytes: _Optional[int] = ..., model_backend: _Optional[str] = ..., trust_remote_code: bool = ..., task: _Optional[str] = ..., pooling: _Optional[str] = ..., scores: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., first_context: _Optional[int] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("stage", "done", "total", "budget", "report")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    stage: str
    done: int
    total: int
    budget: Budget
    report: ModelReport
    def __init__(self, stage: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., budget: _Optional[_Union[Budget, _Mapping]] = ..., report: _Optional[_Union[ModelReport, _Mapping]] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("weights_bytes", "activation_bytes", "kv_bytes", "kv_bytes_per_block", "blocks", "block_size", "max_model_len", "memory_limit_bytes", "blocks_per_request")
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    weights_bytes: int
    activation_bytes: int
    kv_bytes: int
    kv_bytes_per_block: int
    blocks: int
    block_size: int
    max_model_len: int
    memory_limit_bytes: int
    blocks_per_request: int
    def __init__(self, weights_bytes: _Optional[int] = ..., activation_bytes: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., kv_bytes_per_block: _Optional[int] = ..., blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., blocks_per_request: _Optional[int] = ...) -> None: ...

class ModelReport(_message.Message):
    __slots__ = ("family", "dtype", "vocab_size", "max_model_len", "block_size", "blocks", "budget", "numerics_id", "invariant", "kinds", "pooling", "embed_width")
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    INVARIANT_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    EMBED_WIDTH_FIELD_NUMBER: _ClassVar[int]
    family: str
    dtype: str
    vocab_size: int
    max_model_len: int
    block_size: int
    blocks: int
    budget: Budget
    numerics_id: str
    invariant: bool
    kinds: _containers.RepeatedCompositeFieldContainer[Kind]
    pooling: Pooling
    embed_width: int
    def __init__(self, family: _Optional[str] = ..., dtype: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., block_size: _Optional[int] = ..., blocks: _Optional[int] = ..., budget: _Optional[_Union[Budget, _Mapping]] = ..., numerics_id: _Optional[str] = ..., invariant: bool = ..., kinds: _Optional[_Iterable[_Union[Kind, _Mapping]]] = ..., pooling: _Optional[_Union[Pooling, _Mapping]] = ..., embed_width: _Optional[int] = ...) -> None: ...

class Pooling(_message.Message):
    __slots__ = ("width", "kind", "normalize", "is_bidirectional", "labels", "activation")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    IS_BIDIRECTIONAL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    width: int
    kind: str
    normalize: bool
    is_bidirectional: bool
    labels: _containers.RepeatedScalarFieldContainer[str]
    activation: str
    def __init__(self, width: _Optional[int] = ..., kind: _Optional[str] = ..., normalize: bool = ..., is_bidirectional: bool = ..., labels: _Optional[_Iterable[str]] = ..., activation: _Optional[str] = ...) -> None: ...

class Kind(_message.Message):
    __slots__ = ("full", "window")
    FULL_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    full: Full
    window: Window
    def __init__(self, full: _Optional[_Union[Full, _Mapping]] = ..., window: _Optional[_Union[Window, _Mapping]] = ...) -> None: ...

class Full(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Window(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    def __init__(self, tokens: _Optional[int] = ...) -> None: ...

class StepsRequest(_message.Message):
    __slots__ = ("attach", "frame", "mask")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    attach: Attach
    frame: bytes
    mask: bytes
    def __init__(self, attach: _Optional[_Union[Attach, _Mapping]] = ..., frame: _Optional[bytes] = ..., mask: _Optional[bytes] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("nonce", "capacities")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CAPACITIES_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    capacities: Capacities
    def __init__(self, nonce: _Optional[bytes] = ..., capacities: _Optional[_Union[Capacities, _Mapping]] = ...) -> None: ...

class Capacities(_message.Message):
    __slots__ = ("frames", "slots", "tokens", "appends", "copies", "biases", "suppressed", "history", "top_logprobs", "saves", "loads", "pooled_width", "scores", "embeds", "embed_width")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    APPENDS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    POOLED_WIDTH_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    EMBEDS_FIELD_NUMBER: _ClassVar[int]
    EMBED_WIDTH_FIELD_NUMBER: _ClassVar[int]
    frames: int
    slots: int
    tokens: int
    appends: int
    copies: int
    biases: int
    suppressed: int
    history: int
    top_logprobs: int
    saves: int
    loads: int
    pooled_width: int
    scores: int
    embeds: int
    embed_width: int
    def __init__(self, frames: _Optional[int] = ..., slots: _Optional[int] = ..., tokens: _Optional[int] = ..., appends: _Optional[int] = ..., copies: _Optional[int] = ..., biases: _Optional[int] = ..., suppressed: _Optional[int] = ..., history: _Optional[int] = ..., top_logprobs: _Optional[int] = ..., saves: _Optional[int] = ..., loads: _Optional[int] = ..., pooled_width: _Optional[int] = ..., scores: _Optional[int] = ..., embeds: _Optional[int] = ..., embed_width: _Optional[int] = ...) -> None: ...

class StepsResponse(_message.Message):
    __slots__ = ("layout_checksum", "result")
    LAYOUT_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    layout_checksum: int
    result: bytes
    def __init__(self, layout_checksum: _Optional[int] = ..., result: _Optional[bytes] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthResponse(_message.Message):
    __slots__ = ("steps", "running_step_micros", "rss_bytes")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_STEP_MICROS_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    steps: int
    running_step_micros: int
    rss_bytes: int
    def __init__(self, steps: _Optional[int] = ..., running_step_micros: _Optional[int] = ..., rss_bytes: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    def __init__(self, steps: _Optional[int] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShutdownResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

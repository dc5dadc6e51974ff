//! What each route does, as `/openapi.json` tells it. A test holds this list against the routes.

use super::examples::{
    CHAT_EXAMPLES, COMPLETION_EXAMPLES, INPUT_EXAMPLES, MESSAGES_EXAMPLES, RERANK_EXAMPLES, RESPONSE_EXAMPLES,
    SCORE_EXAMPLES,
};
use super::operation::{Answer, Asks, EXPLAIN, Operation, PEERS_PRIORITY, PRIORITY, TIMEOUT, of};
use crate::{
    api::{
        anthropic, batches,
        chat::{self, ChatChunk, ChatResponse},
        completion::{self, CompletionChunk, CompletionResponse},
        explained::Explained,
        pooling::{
            classify::{self, Classifications},
            embeddings::{self, Embeddings, PooledVectors},
            rerank::{self, RerankResponse},
            score::{self, Scores},
        },
        responses::{self, ResponseEvent, ResponseObject},
        scale_out::{self, Rendered, TokensChunk, TokensResponse},
        shape::Shape,
        tokens::{self, DetokenizeResponse, TokenizeResponse},
    },
    batches::BatchObject,
    files::FileObject,
    http::{
        anthropic::{COUNT_TOKENS, MESSAGES, TokenCount},
        files::DeletedFile,
        health::Health,
        models::{EitherModel, EitherModels, Version},
        pages::Listed,
        responses::{DeletedResponse, INPUT_TOKENS, InputTokens},
    },
};

const TERMS: &[&str] = &[PRIORITY, PEERS_PRIORITY, TIMEOUT];
const TERMS_AND_EXPLAIN: &[&str] = &[PRIORITY, PEERS_PRIORITY, TIMEOUT, EXPLAIN];

/// Of what the engine answers.
const GENERATES: &[u16] = &[400, 404, 413, 415, 429, 500, 503, 504];
/// Of what the router answers from a body by itself.
const READS: &[u16] = &[400, 404, 413, 415, 429, 500];
const LOOKS_UP: &[u16] = &[400, 404];
const PROBES: &[u16] = &[503];

const CHUNKS: &str =
    "Events whose data is a chunk; the last one's is `[DONE]`. An error ends them as data `{\"error\": ...}`.";

const OPENAI: &str = "Chats and completions";
const RESPONSES: &str = "Responses";
const ANTHROPIC: &str = "Messages";
const POOLING: &str = "Vectors, classes and scores";
const TOKENS: &str = "Tokens";
const SERVER: &str = "The server";

const RESPONSE_ID: &str = "The response's `id`.";
const FILE_ID: &str = "The file's `id`.";
const BATCH_ID: &str = "The batch's `id`.";
const BATCHES: &str = "Files and batches";

/// Of what batches read and write.
const KEEPS: &[u16] = &[400, 404, 413, 415, 429, 500, 503];

const AFTER: (&str, &str, &str) = ("after", r#"{"type": "string"}"#, "The `id` of the last item of the page before.");
const ORDER: (&str, &str, &str) =
    ("order", r#"{"type": "string", "enum": ["asc", "desc"], "default": "desc"}"#, "Which comes first.");
const OBFUSCATION: (&str, &str, &str) =
    ("include_obfuscation", r#"{"type": "string", "enum": ["false"]}"#, "Padding of events is not served yet.");
const INCLUDE: (&str, &str, &str) = (
    "include",
    r#"{"type": "string", "enum": ["reasoning.encrypted_content"]}"#,
    "What is told beside. Log-probabilities are there if the response was asked for with them.",
);
const LIMIT: (&str, &str, &str) =
    ("limit", r#"{"type": "integer", "minimum": 1, "maximum": 100, "default": 20}"#, "Items at most.");

/// A POST of a JSON body that the engine answers.
const fn generates(
    path: &'static str,
    id: &'static str,
    tag: &'static str,
    about: &'static str,
    asks: Asks,
    answer: Answer,
) -> Operation {
    Operation { method: "post", path, id, tag, about, asks, answer, errors: GENERATES, headers: TERMS_AND_EXPLAIN }
}

/// A POST of a JSON body that the router answers by itself.
const fn reads(
    path: &'static str,
    id: &'static str,
    tag: &'static str,
    about: &'static str,
    asks: Asks,
    answer: Answer,
) -> Operation {
    Operation { method: "post", path, id, tag, about, asks, answer, errors: READS, headers: &[] }
}

/// A GET of what the server is or does.
const fn tells(
    path: &'static str,
    id: &'static str,
    about: &'static str,
    answer: Answer,
    errors: &'static [u16],
) -> Operation {
    Operation { method: "get", path, id, tag: SERVER, about, asks: Asks::Nothing, answer, errors, headers: &[] }
}

/// About one response.
const fn of_response(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    about: &'static str,
    asks: Asks,
    answer: Answer,
) -> Operation {
    Operation { method, path, id, tag: RESPONSES, about, asks, answer, errors: LOOKS_UP, headers: TERMS }
}

/// About files and batches.
const fn keeps(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    about: &'static str,
    asks: Asks,
    answer: Answer,
) -> Operation {
    Operation { method, path, id, tag: BATCHES, about, asks, answer, errors: KEEPS, headers: &[] }
}

pub(super) const OPERATIONS: &[Operation] = &[
    generates(
        "/v1/chat/completions",
        "createChatCompletion",
        OPENAI,
        "Answers a conversation.",
        Asks::Body(&[&chat::CHAT], CHAT_EXAMPLES),
        Answer::JsonOrEvents(of::<Explained<ChatResponse<'static>>>, of::<ChatChunk<'static>>, CHUNKS),
    ),
    generates(
        "/v1/completions",
        "createCompletion",
        OPENAI,
        "Continues prompts.",
        Asks::Body(&[&completion::COMPLETION], COMPLETION_EXAMPLES),
        Answer::JsonOrEvents(of::<Explained<CompletionResponse<'static>>>, of::<CompletionChunk<'static>>, CHUNKS),
    ),
    generates(
        "/v1/responses",
        "createResponse",
        RESPONSES,
        "Answers a conversation, and keeps the answer so that another request can go on with it.",
        Asks::Body(&[&responses::RESPONSE], RESPONSE_EXAMPLES),
        Answer::JsonOrEvents(
            of::<ResponseObject>,
            of::<ResponseEvent>,
            "Named and numbered events, as OpenAI's: `response.created`, `response.in_progress`, items with their parts and deltas, and at the end `response.completed`, `response.incomplete` or `response.failed`.",
        ),
    ),
    reads(
        INPUT_TOKENS,
        "countInputTokens",
        RESPONSES,
        "How many tokens a request for a response has before its answer.",
        Asks::Body(&[&responses::RESPONSE], RESPONSE_EXAMPLES),
        Answer::Json(of::<InputTokens>),
    ),
    of_response(
        "get",
        "/v1/responses/{id}",
        "retrieveResponse",
        "A kept response.",
        Asks::IdAndQuery(
            RESPONSE_ID,
            &[
                (
                    "stream",
                    r#"{"type": "string", "enum": ["true", "false"], "default": "false"}"#,
                    "Whether its events are told, those that were and those that come; of a response that was asked for with `background` and `stream`.",
                ),
                (
                    "starting_after",
                    r#"{"type": "integer", "minimum": 0, "maximum": 18446744073709551615}"#,
                    "The `sequence_number` of the last event that is not told; needs `stream`.",
                ),
                OBFUSCATION,
                INCLUDE,
            ],
        ),
        Answer::JsonOrEvents(
            of::<ResponseObject>,
            of::<ResponseEvent>,
            "The events of `createResponse`, and `error` if the stream cannot go on.",
        ),
    ),
    of_response(
        "delete",
        "/v1/responses/{id}",
        "deleteResponse",
        "Forgets a response, and ends it if it is under way.",
        Asks::Id(RESPONSE_ID),
        Answer::Json(of::<DeletedResponse>),
    ),
    of_response(
        "post",
        "/v1/responses/{id}/cancel",
        "cancelResponse",
        "Ends a response that was asked for in the background.",
        Asks::Id(RESPONSE_ID),
        Answer::Json(of::<ResponseObject>),
    ),
    of_response(
        "get",
        "/v1/responses/{id}/input_items",
        "listInputItems",
        "What a response is an answer to, the latest first.",
        Asks::IdAndQuery(RESPONSE_ID, &[LIMIT, ORDER, AFTER, INCLUDE]),
        Answer::Json(of::<Listed>),
    ),
    generates(
        MESSAGES,
        "createMessage",
        ANTHROPIC,
        "Answers a conversation, in Anthropic's protocol.",
        Asks::Body(&[&anthropic::MESSAGE], MESSAGES_EXAMPLES),
        Answer::JsonOrEvents(
            of::<anthropic::Message<'static>>,
            of::<anthropic::Event<'static>>,
            "Named events, as Anthropic's: `message_start`, blocks with their deltas, `message_delta`, `message_stop`; `ping` while nothing comes; `error`.",
        ),
    ),
    reads(
        COUNT_TOKENS,
        "countMessageTokens",
        ANTHROPIC,
        "How many tokens a conversation has.",
        Asks::Body(&[&anthropic::COUNT], &[("a question", r#"{"messages": [{"role": "user", "content": "Hello"}]}"#)]),
        Answer::Json(of::<TokenCount>),
    ),
    generates(
        "/v1/embeddings",
        "createEmbedding",
        POOLING,
        "Vectors of texts, by models that give embeddings.",
        Asks::Body(&[&embeddings::EMBEDDING], INPUT_EXAMPLES),
        Answer::Json(of::<Embeddings<'static>>),
    ),
    generates(
        "/pooling",
        "pool",
        POOLING,
        "Vectors of texts, by any model that gives some.",
        Asks::Body(&[&embeddings::EMBEDDING], INPUT_EXAMPLES),
        Answer::Json(of::<PooledVectors<'static>>),
    ),
    generates(
        "/classify",
        "classify",
        POOLING,
        "Of each text the likeliest class and the probability of all, by classifiers.",
        Asks::Body(&[&classify::CLASSIFY], INPUT_EXAMPLES),
        Answer::Json(of::<Classifications<'static>>),
    ),
    generates(
        "/score",
        "score",
        POOLING,
        "How well texts suit each other.",
        Asks::Body(SCORES, SCORE_EXAMPLES),
        Answer::Json(of::<Scores<'static>>),
    ),
    generates(
        "/v1/score",
        "scoreV1",
        POOLING,
        "How well texts suit each other.",
        Asks::Body(SCORES, SCORE_EXAMPLES),
        Answer::Json(of::<Scores<'static>>),
    ),
    generates(
        "/rerank",
        "rerank",
        POOLING,
        "Documents, best first.",
        Asks::Body(&[&rerank::RERANK], RERANK_EXAMPLES),
        Answer::Json(of::<RerankResponse<'static>>),
    ),
    generates(
        "/v1/rerank",
        "rerankV1",
        POOLING,
        "Documents, best first.",
        Asks::Body(&[&rerank::RERANK], RERANK_EXAMPLES),
        Answer::Json(of::<RerankResponse<'static>>),
    ),
    generates(
        "/v2/rerank",
        "rerankV2",
        POOLING,
        "Documents, best first.",
        Asks::Body(&[&rerank::RERANK], RERANK_EXAMPLES),
        Answer::Json(of::<RerankResponse<'static>>),
    ),
    reads(
        "/tokenize",
        "tokenize",
        TOKENS,
        "The tokens of a text or of a chat.",
        Asks::Body(
            &[&tokens::TOKENIZE_TEXT, &tokens::TOKENIZE_CHAT],
            &[
                ("a text", r#"{"prompt": "A river", "return_token_strs": true}"#),
                ("a chat", r#"{"messages": [{"role": "user", "content": "Hello"}]}"#),
            ],
        ),
        Answer::Json(of::<TokenizeResponse<'static>>),
    ),
    reads(
        "/detokenize",
        "detokenize",
        TOKENS,
        "The text of tokens.",
        Asks::Body(&[&tokens::DETOKENIZE], &[("two tokens", r#"{"tokens": [300, 301]}"#)]),
        Answer::Json(of::<DetokenizeResponse>),
    ),
    reads(
        "/v1/chat/completions/render",
        "renderChatCompletion",
        TOKENS,
        "The tokens that a chat would be answered from.",
        Asks::Body(&[&chat::CHAT], CHAT_EXAMPLES),
        Answer::Json(of::<Rendered>),
    ),
    reads(
        "/v1/completions/render",
        "renderCompletion",
        TOKENS,
        "The tokens that prompts would be continued from.",
        Asks::Body(&[&completion::COMPLETION], COMPLETION_EXAMPLES),
        Answer::Json(of::<Vec<Rendered>>),
    ),
    generates(
        "/inference/v1/generate",
        "generate",
        TOKENS,
        "Continues tokens by tokens.",
        Asks::Body(
            &[&scale_out::GENERATE],
            &[("three tokens", r#"{"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4}}"#)],
        ),
        Answer::JsonOrEvents(of::<TokensResponse<'static>>, of::<TokensChunk<'static>>, CHUNKS),
    ),
    keeps(
        "post",
        "/v1/files",
        "createFile",
        "Takes a file in, whose lines are requests.",
        Asks::Form(&[
            ("file", r#"{"type": "string", "format": "binary"}"#, "Its bytes."),
            ("purpose", r#"{"type": "string", "enum": ["batch"]}"#, "What it is for."),
            ("expires_after[anchor]", r#"{"type": "string", "enum": ["created_at"]}"#, "From when on it is kept."),
            ("expires_after[seconds]", r#"{"type": "integer", "minimum": 3600, "maximum": 2592000}"#, "How long."),
        ]),
        Answer::Json(of::<FileObject>),
    ),
    keeps(
        "get",
        "/v1/files",
        "listFiles",
        "The files that are kept, the latest first.",
        Asks::Query(&[
            ("purpose", r#"{"type": "string", "enum": ["batch", "batch_output"]}"#, "Only those for this."),
            ("limit", r#"{"type": "integer", "minimum": 1, "maximum": 10000, "default": 10000}"#, "Items at most."),
            ORDER,
            AFTER,
        ]),
        Answer::Json(of::<Listed>),
    ),
    keeps("get", "/v1/files/{id}", "retrieveFile", "About a file.", Asks::Id(FILE_ID), Answer::Json(of::<FileObject>)),
    keeps(
        "get",
        "/v1/files/{id}/content",
        "downloadFile",
        "A file's bytes.",
        Asks::Id(FILE_ID),
        Answer::Text("application/octet-stream"),
    ),
    keeps(
        "delete",
        "/v1/files/{id}",
        "deleteFile",
        "Forgets a file.",
        Asks::Id(FILE_ID),
        Answer::Json(of::<DeletedFile>),
    ),
    keeps(
        "post",
        "/v1/batches",
        "createBatch",
        "Begins to answer the requests of a file.",
        Asks::Body(
            &[&batches::BATCH],
            &[(
                "chats",
                r#"{"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}"#,
            )],
        ),
        Answer::Json(of::<BatchObject>),
    ),
    keeps(
        "get",
        "/v1/batches",
        "listBatches",
        "The batches that are known, the latest first.",
        Asks::Query(&[LIMIT, ORDER, AFTER]),
        Answer::Json(of::<Listed>),
    ),
    keeps(
        "get",
        "/v1/batches/{id}",
        "retrieveBatch",
        "How far a batch is.",
        Asks::Id(BATCH_ID),
        Answer::Json(of::<BatchObject>),
    ),
    keeps(
        "post",
        "/v1/batches/{id}/cancel",
        "cancelBatch",
        "Gives up what is under way of a batch.",
        Asks::Id(BATCH_ID),
        Answer::Json(of::<BatchObject>),
    ),
    tells(
        "/v1/models",
        "listModels",
        "The names by which the model can be asked for. With the header `anthropic-version` they and errors are told in Anthropic's form, in pages (`limit`, `after_id`, `before_id`).",
        Answer::Json(of::<EitherModels<'static>>),
        &[400],
    ),
    Operation {
        method: "get",
        path: "/v1/models/{*id}",
        id: "retrieveModel",
        tag: SERVER,
        about: "One of the names. It may have slashes. With the header `anthropic-version` in Anthropic's form.",
        asks: Asks::Id("The name."),
        answer: Answer::Json(of::<EitherModel<'static>>),
        errors: LOOKS_UP,
        headers: &[],
    },
    tells("/version", "version", "The program's version.", Answer::Json(of::<Version>), &[]),
    tells("/metrics", "metrics", "Counts, sizes and times, for Prometheus.", Answer::Text("text/plain"), &[]),
    tells("/health", "health", "200 while a request would be answered.", Answer::Nothing, PROBES),
    tells("/ping", "ping", "200 while a request would be answered.", Answer::Nothing, PROBES),
    Operation {
        method: "post",
        id: "pingByPost",
        ..tells("/ping", "", "200 while a request would be answered.", Answer::Nothing, PROBES)
    },
    tells("/livez", "isAlive", "200 while the process is worth keeping.", Answer::Json(of::<Health<'static>>), PROBES),
    tells("/readyz", "isReady", "200 while a request would be answered.", Answer::Json(of::<Health<'static>>), PROBES),
    tells(
        "/startupz",
        "hasStarted",
        "200 once the model has been loaded.",
        Answer::Json(of::<Health<'static>>),
        PROBES,
    ),
    tells(
        "/openapi.json",
        "describe",
        "This description.",
        Answer::Json(of::<serde_json::Map<String, serde_json::Value>>),
        &[],
    ),
    tells("/docs", "readDescription", "A page that shows this description.", Answer::Text("text/html"), &[]),
];

const SCORES: &[&Shape] = &[&score::SCORES[0], &score::SCORES[1], &score::SCORES[2], &score::SCORES[3]];

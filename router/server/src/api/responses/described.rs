//! The object `response` as `/openapi.json` tells it. It is written as JSON by `object` and `output`, since it is kept and repeated as
//! such; that it is as described here, the conformance tests see.
#![expect(dead_code, reason = "types that are described and never made")]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

/// A response: what was asked for, how far it is, what has come of it.
#[derive(JsonSchema)]
#[schemars(rename = "Response")]
pub(crate) struct ResponseObject {
    id: String,
    #[schemars(extend("const" = "response"))]
    object: String,
    created_at: u64,
    #[schemars(extend("enum" = ["in_progress", "completed", "incomplete", "failed", "cancelled"]))]
    status: String,
    error: Option<Trouble>,
    /// Why it is incomplete.
    incomplete_details: Option<Cut>,
    model: String,
    output: Vec<OutputItem>,
    background: bool,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    max_tool_calls: Option<u32>,
    top_logprobs: u32,
    temperature: Option<f64>,
    top_p: Option<f64>,
    user: Option<String>,
    previous_response_id: Option<String>,
    text: BTreeMap<String, Value>,
    reasoning: BTreeMap<String, Value>,
    truncation: String,
    prompt_cache_key: Option<String>,
    safety_identifier: Option<String>,
    service_tier: String,
    metadata: BTreeMap<String, String>,
    tools: Vec<BTreeMap<String, Value>>,
    /// A word, the function that is to be called, or those that may be.
    tool_choice: Value,
    parallel_tool_calls: bool,
    store: bool,
    /// `null` until it has ended.
    usage: Option<ResponseUsage>,
}

/// Why a response failed.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseTrouble")]
struct Trouble {
    #[schemars(extend("enum" = ["invalid_prompt", "server_error"]))]
    code: String,
    message: String,
}

/// Why a response is incomplete.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseCut")]
struct Cut {
    #[schemars(extend("enum" = ["max_output_tokens", "repetition"]))]
    reason: String,
}

/// Tokens that a response took.
#[derive(JsonSchema)]
struct ResponseUsage {
    input_tokens: u32,
    input_tokens_details: InputDetails,
    output_tokens: u32,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

/// Tokens of the prompt that were found in the prefix cache.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseInputDetails")]
struct InputDetails {
    cached_tokens: u32,
}

/// Tokens of the answer that were thoughts.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseOutputDetails")]
struct OutputDetails {
    reasoning_tokens: u32,
}

/// A part of an answer.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseOutputItem", tag = "type", rename_all = "snake_case")]
enum OutputItem {
    /// What the model thought.
    Reasoning { id: String, status: String, summary: Vec<Value>, content: Vec<ReasoningText> },
    /// What it says.
    Message { id: String, status: String, role: String, content: Vec<OutputText> },
    /// What is to be called.
    FunctionCall { id: String, status: String, call_id: String, name: String, arguments: String },
}

/// A piece of thought.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseReasoningText")]
struct ReasoningText {
    #[schemars(extend("const" = "reasoning_text"))]
    r#type: String,
    text: String,
}

/// A piece of text.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseOutputText")]
struct OutputText {
    #[schemars(extend("const" = "output_text"))]
    r#type: String,
    text: String,
    annotations: Vec<Value>,
    /// As those of chats; empty unless they were asked for.
    logprobs: Vec<Value>,
}

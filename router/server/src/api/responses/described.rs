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

/// Tokens of the prompt that were found in the prefix cache, and those that were paid for as written to it: none.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseInputDetails")]
struct InputDetails {
    cached_tokens: u32,
    #[schemars(extend("const" = 0))]
    cache_write_tokens: u32,
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
pub(crate) enum OutputItem {
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
pub(crate) struct ReasoningText {
    #[schemars(extend("const" = "reasoning_text"))]
    r#type: String,
    text: String,
}

/// What an item's content has.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseContentPart", untagged)]
pub(crate) enum ContentPart {
    Thought(ReasoningText),
    Text(OutputText),
}

/// What the data of an event is. Its name is its type.
#[derive(JsonSchema)]
#[schemars(tag = "type")]
pub(crate) enum ResponseEvent {
    #[schemars(rename = "response.created")]
    Created { sequence_number: u64, response: ResponseObject },
    #[schemars(rename = "response.in_progress")]
    InProgress { sequence_number: u64, response: ResponseObject },
    /// An item begins, empty.
    #[schemars(rename = "response.output_item.added")]
    ItemAdded { sequence_number: u64, output_index: usize, item: OutputItem },
    /// Its one part begins, empty; calls have none.
    #[schemars(rename = "response.content_part.added")]
    PartAdded { sequence_number: u64, item_id: String, output_index: usize, content_index: usize, part: ContentPart },
    #[schemars(rename = "response.reasoning_text.delta")]
    ThoughtDelta { sequence_number: u64, item_id: String, output_index: usize, content_index: usize, delta: String },
    #[schemars(rename = "response.reasoning_text.done")]
    ThoughtDone { sequence_number: u64, item_id: String, output_index: usize, content_index: usize, text: String },
    #[schemars(rename = "response.output_text.delta")]
    TextDelta {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
        logprobs: Vec<Value>,
    },
    #[schemars(rename = "response.output_text.done")]
    TextDone {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: String,
        logprobs: Vec<Value>,
    },
    #[schemars(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { sequence_number: u64, item_id: String, output_index: usize, delta: String },
    #[schemars(rename = "response.function_call_arguments.done")]
    ArgumentsDone { sequence_number: u64, item_id: String, output_index: usize, name: String, arguments: String },
    #[schemars(rename = "response.content_part.done")]
    PartDone { sequence_number: u64, item_id: String, output_index: usize, content_index: usize, part: ContentPart },
    #[schemars(rename = "response.output_item.done")]
    ItemDone { sequence_number: u64, output_index: usize, item: OutputItem },
    /// The last one, of an answer that came to its end.
    #[schemars(rename = "response.completed")]
    Completed { sequence_number: u64, response: ResponseObject },
    /// The last one, of an answer that was cut or cancelled.
    #[schemars(rename = "response.incomplete")]
    Incomplete { sequence_number: u64, response: ResponseObject },
    /// The last one, of an answer that came to nothing.
    #[schemars(rename = "response.failed")]
    Failed { sequence_number: u64, response: ResponseObject },
    /// The last one of a stream that cannot go on, though its response may.
    #[schemars(rename = "error")]
    BrokenOff { sequence_number: u64, code: String, message: String, param: Option<String> },
}

/// A piece of text.
#[derive(JsonSchema)]
#[schemars(rename = "ResponseOutputText")]
pub(crate) struct OutputText {
    #[schemars(extend("const" = "output_text"))]
    r#type: String,
    text: String,
    annotations: Vec<Value>,
    /// As those of chats; empty unless they were asked for.
    logprobs: Vec<Value>,
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use bytes::BytesMut;
    use schemars::generate::SchemaSettings;

    use super::{
        super::{
            NumberedEvents, broken_off,
            tests::{events, finish, form, parsed},
        },
        *,
    };
    use crate::{
        error::ApiError,
        generate::{CallPiece, Delta, Ending, Part, Said, StopCause},
    };

    /// Of each event that is described, by its type: the fields that it has to have.
    fn described() -> HashMap<String, BTreeSet<String>> {
        let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
        generator.subschema_for::<ResponseEvent>();
        let schemas = generator.take_definitions(true);
        let variants = schemas["ResponseEvent"]["oneOf"].as_array().expect("one of several").clone();
        let fields = |variant: &Value| {
            let required = variant["required"].as_array().expect("a list").iter();
            required.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let kind = |variant: &Value| variant["properties"]["type"]["const"].as_str().expect("a type").to_owned();
        variants.iter().map(|variant| (kind(variant), fields(variant))).collect()
    }

    #[test]
    fn events_are_as_they_are_described() {
        let start = CallPiece::Start { index: 0, id: "call_0".into(), name: "f".into() };
        let arguments = CallPiece::Arguments { index: 0, delta: "{}".into() };
        let parts = [Part::Thought("Hm.".into()), Part::Text("Hi".into()), Part::Call(start), Part::Call(arguments)];
        let said = Delta { said: Said::of(parts), ..Delta::default() };
        let end = |ending| Delta { finish: Some(finish(ending, true)), ..Delta::default() };
        let mut told = events(vec![vec![said.clone(), end(Ending::Stop(StopCause::EndOfText))]]);
        told.extend(events(vec![vec![said, end(Ending::Length)]]));
        let (mut failing, mut out) = (NumberedEvents::new(form()), BytesMut::new());
        failing.error(&ApiError::Internal { log: String::new() }, &mut out);
        told.extend(parsed(&out));
        let broken = broken_off(0, &ApiError::NotKept { what: "response", id: "resp_1".to_owned() });
        told.extend(parsed(&broken));
        let described = described();
        let mut seen = BTreeSet::new();
        for event in &told {
            let kind = event["type"].as_str().expect("a type");
            let fields: BTreeSet<String> = event.as_object().expect("an object").keys().cloned().collect();
            assert_eq!(Some(&fields), described.get(kind), "{kind}");
            seen.insert(kind.to_owned());
        }
        assert_eq!(seen, described.keys().cloned().collect(), "none is described that is never told");
    }
}

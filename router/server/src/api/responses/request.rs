//! Requests: what a response shall be an answer to, and how.

use std::collections::HashMap;

use pelton_grammar::Constraint;
use pelton_text::{ChatInput, GenerationDefaults};
use serde_json::{Map, Value, json};

use super::{
    items::{Input, Item, read_input, turns_of},
    tools::{Asked, read_tools},
};
use crate::{
    api::{
        fields::{Fields, quoted},
        models::read_model,
        sampling::read_options,
        thinking::{read_effort, set_effort},
        tools::Tools,
        turns::{Last, Turns},
        unserved::{Unserved, refuse_all},
    },
    error::ApiError,
    generate::{Constrained, Options, Prompt, Request, now},
};

/// What is not served, as in `unserved`.
const UNSERVED: &[Unserved] = &[
    ("context_management", &["[]"], "compacting the context"),
    ("conversation", &[], "conversations (use `previous_response_id`)"),
    ("guided_choice", &[], "this older form (use `structured_outputs`)"),
    ("guided_grammar", &[], "this older form (use `structured_outputs`)"),
    ("guided_json", &[], "this older form (use `text.format`)"),
    ("guided_regex", &[], "this older form (use `structured_outputs`)"),
    ("moderation", &[], "moderation"),
    ("n", &["1"], "more than one answer"),
    ("prompt", &[], "a prompt that is stored elsewhere"),
    ("response_format", &[], "the form of chats here (use `text.format`)"),
    ("truncation", &["\"disabled\""], "cutting long conversations"),
];

/// A request for a response.
pub(crate) struct ResponsesRequest {
    pub(crate) model: Option<String>,
    /// The response that this one goes on with.
    pub(crate) previous: Option<String>,
    pub(crate) is_stream: bool,
    pub(crate) is_background: bool,
    /// Whether the response is to be kept; `None`: as the server does it.
    pub(crate) store: Option<bool>,
    /// What responses repeat of their request, but for `store`.
    pub(crate) asked: Map<String, Value>,
    pub(crate) shows_logprobs: bool,
    /// The request's own items.
    pub(crate) items: Vec<Item>,
    instructions: Option<String>,
    turns: Turns,
    tools: Tools,
    kwargs: Map<String, Value>,
    options: Options,
}

impl ResponsesRequest {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        refuse_all(&mut fields, UNSERVED)?;
        let mut asked = Map::new();
        let mut repeat = |name: &str, value: Value| drop(asked.insert(name.to_owned(), value));
        let model = read_model(&mut fields)?;
        let Input { turns, items } = read_input(&mut fields)?;
        let mut options = read_options(&mut fields)?;
        options.max_tokens = fields.count("max_output_tokens")?;
        options.logprobs = read_logprobs(&mut fields)?;
        let mut kwargs = Map::new();
        let (format, text) = read_text(&mut fields)?;
        options.constrained = one_of(options.constrained.take(), format)?;
        let is_background = fields.flag("background")?.unwrap_or(false);
        let instructions = fields.text("instructions")?;
        let previous = fields.text("previous_response_id")?;
        let store = fields.flag("store")?;
        let is_stream = read_stream(&mut fields, is_background)?;
        if is_background && store == Some(false) {
            let reason = "needs `store`: true, so that the response can be had later".to_owned();
            return Err(ApiError::Conflict { param: "background".to_owned(), reason });
        }
        repeat("background", is_background.into());
        repeat("instructions", instructions.clone().into());
        repeat("max_output_tokens", options.max_tokens.into());
        repeat("max_tool_calls", fields.count("max_tool_calls")?.into()); // of tools that the server runs: there are none
        repeat("top_logprobs", options.logprobs.unwrap_or(0).into());
        repeat("temperature", number(options.temperature));
        repeat("top_p", number(options.top_p));
        repeat("user", options.user.clone().into());
        repeat("previous_response_id", previous.clone().into());
        repeat("text", text);
        repeat("reasoning", read_reasoning(&mut fields, &mut kwargs)?);
        repeat("truncation", "disabled".into());
        for name in ["prompt_cache_key", "safety_identifier"] {
            repeat(name, fields.text(name)?.into());
        }
        fields.text("service_tier")?;
        repeat("service_tier", "default".into());
        let metadata: Option<HashMap<String, String>> = fields.read("metadata", "an object from texts to texts")?;
        repeat("metadata", json!(metadata.unwrap_or_default()));
        let Asked { tools, shown_tools, shown_choice, is_parallel } = read_tools(&mut fields)?;
        repeat("tools", shown_tools.into());
        repeat("tool_choice", shown_choice);
        repeat("parallel_tool_calls", is_parallel.into());
        fields.finish()?;
        let shows_logprobs = options.logprobs.is_some();
        Ok(Self {
            shows_logprobs,
            model,
            previous,
            is_stream,
            is_background,
            store,
            asked,
            items,
            instructions,
            turns,
            tools,
            kwargs,
            options,
        })
    }

    /// Fills in what the server does where the request says nothing.
    pub(crate) fn fill_in(&mut self, stores: bool, defaults: &GenerationDefaults) {
        self.asked.insert("store".to_owned(), stores.into());
        for (name, default) in [("temperature", defaults.temperature), ("top_p", defaults.top_p)] {
            if self.asked[name].is_null() {
                self.asked[name] = number(default.or(Some(1.0)));
            }
        }
    }

    /// The request that a chat would become, with the conversation so far.
    pub(crate) fn request(&mut self, before: &[Item]) -> Result<Request, ApiError> {
        let mut turns = Turns::default();
        if let Some(instructions) = &self.instructions {
            turns.say("system", vec![instructions.clone()]);
        }
        turns.join(turns_of(before)?);
        turns.join(std::mem::take(&mut self.turns));
        if let Some(id) = turns.stray_result() {
            let allowed = "a `function_call_output` whose `call_id` is that of a `function_call` before it";
            return Err(ApiError::invalid("input", format_args!("an output for the call {}", quoted(id)), allowed));
        }
        if turns.last() == Last::Calls {
            let reason = "ends with a `function_call`; its `function_call_output` must follow".to_owned();
            return Err(ApiError::Conflict { param: "input".to_owned(), reason });
        }
        let (tools, reading) = self.tools.take().unzip();
        let input = ChatInput {
            messages: turns.into_messages(),
            tools,
            documents: None,
            template: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: std::mem::take(&mut self.kwargs),
            now: now(),
        };
        let prompts = vec![Prompt::Chat { input: Box::new(input), add_special: false }];
        Ok(Request { prompts, options: std::mem::take(&mut self.options), echo: false, tools: reading })
    }
}

/// A number with the digits that the client sent.
fn number(number: Option<f32>) -> Value {
    number.and_then(|number| format!("{number:?}").parse().ok()).map_or(Value::Null, Value::Number)
}

/// `include` and `top_logprobs`.
fn read_logprobs(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let mut is_wanted = false;
    for include in fields.read::<Vec<String>>("include", "a list of texts")?.unwrap_or_default() {
        match include.as_str() {
            "message.output_text.logprobs" => is_wanted = true,
            // For clients that keep a conversation themselves: they get its reasoning in the clear.
            "reasoning.encrypted_content" => {}
            other => {
                return Err(ApiError::NotServed {
                    param: fields.at("include"),
                    what: format!("to include {}", quoted(other)).into(),
                });
            }
        }
    }
    let top = fields.count("top_logprobs")?;
    if top.is_some_and(|top| top > 0) && !is_wanted {
        let reason = "is only allowed together with `include`: [\"message.output_text.logprobs\"]".to_owned();
        return Err(ApiError::Conflict { param: fields.at("top_logprobs"), reason });
    }
    Ok(is_wanted.then(|| top.unwrap_or(0)))
}

fn read_stream(fields: &mut Fields<'_>, is_background: bool) -> Result<bool, ApiError> {
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    if let Some(mut options) = fields.object("stream_options")? {
        if options.flag("include_obfuscation")? == Some(true) {
            let param = options.at("include_obfuscation");
            return Err(ApiError::NotServed { param, what: "padding of events".into() });
        }
        options.finish()?;
    }
    if is_stream && is_background {
        let what = "a stream of a response in the background".into();
        return Err(ApiError::NotServed { param: fields.at("stream"), what });
    }
    Ok(is_stream)
}

/// The form that the text has to fit, and `text` as responses repeat it.
fn read_text(fields: &mut Fields<'_>) -> Result<(Option<Constrained>, Value), ApiError> {
    let free = || json!({ "type": "text" });
    let Some(mut text) = fields.object("text")? else { return Ok((None, json!({ "format": free() }))) };
    refuse_all(&mut text, &[("verbosity", &["\"medium\""], "a wish for length")])?;
    let (constrained, shown) = match text.object("format")? {
        None => (None, free()),
        Some(format) => read_format(format)?,
    };
    text.finish()?;
    Ok((constrained, json!({ "format": shown })))
}

fn read_format(mut format: Fields<'_>) -> Result<(Option<Constrained>, Value), ApiError> {
    let allowed = "\"text\", \"json_object\" or \"json_schema\"";
    let Some(kind) = format.one_of("type", &["text", "json_object", "json_schema"], allowed)? else {
        return Err(ApiError::Missing { param: format.at("type"), allowed });
    };
    let mut shown = json!({ "type": kind });
    let constrained = match kind {
        "text" => None,
        "json_object" => Some(Constrained { constraint: Constraint::JsonObject, param: format.at("type") }),
        _ => {
            shown["name"] = format.need::<String>("name", "a text")?.into();
            shown["description"] = format.text("description")?.into();
            let schema: Map<String, Value> = format.need("schema", "a JSON schema, an object")?;
            shown["schema"] = schema.clone().into();
            format.flag("strict")?; // strict or not, the answer fits
            shown["strict"] = true.into();
            Some(Constrained { constraint: Constraint::JsonSchema(schema.into()), param: format.at("schema") })
        }
    };
    format.finish()?;
    Ok((constrained, shown))
}

fn one_of(one: Option<Constrained>, other: Option<Constrained>) -> Result<Option<Constrained>, ApiError> {
    if let (Some(one), Some(other)) = (&one, &other) {
        let reason = format!("cannot go together with `{}`: an answer has one form", other.param);
        return Err(ApiError::Conflict { param: one.param.clone(), reason });
    }
    Ok(one.or(other))
}

/// How hard to think. What is thought is told as it is, so that there is nothing to sum up: `auto` asks for what there is.
fn read_reasoning(fields: &mut Fields<'_>, kwargs: &mut Map<String, Value>) -> Result<Value, ApiError> {
    let Some(mut reasoning) = fields.object("reasoning")? else {
        return Ok(json!({ "effort": null, "summary": null }));
    };
    let effort = read_effort(&mut reasoning, "effort")?;
    if let Some(effort) = effort {
        set_effort(kwargs, effort);
    }
    refuse_all(
        &mut reasoning,
        &[
            ("summary", &["\"auto\""], "summaries of reasoning"),
            ("generate_summary", &["\"auto\""], "summaries of reasoning"),
        ],
    )?;
    reasoning.finish()?;
    Ok(json!({ "effort": effort, "summary": null }))
}

/// An error of the shared checks, by the names that responses use.
pub(crate) fn renamed(error: ApiError) -> ApiError {
    error.renamed(|param| match param {
        "messages" => Some("input"),
        "max_tokens" => Some("max_output_tokens"),
        "logprobs" => Some("top_logprobs"),
        _ => None,
    })
}

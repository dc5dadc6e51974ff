//! Requests: what a response shall be an answer to, and how.

use pelton_text::{ChatInput, GenerationDefaults, Wishes};
use serde_json::{Map, Value, json};

use super::{
    items::{INPUTS, Input, Item, read_input, turns_of},
    text::{TEXT, Text, one_of, read_text},
    tools::{Asked, TOOLS, read_tools},
    truncation::{TRUNCATION, Truncation},
};
use crate::{
    api::{
        chat::{TEMPLATE_KWARGS, read_template_kwargs},
        constrained::STRUCTURED,
        fields::{Fields, quoted},
        metadata::{METADATA, metadata, read_metadata},
        models::{MODEL, read_model},
        sampling::{SAMPLING, read_options},
        shape::{Kind, Most, Shape, optional, with_default},
        thinking::{EFFORT, read_effort, set_effort},
        tools::{Tools, in_tool},
        turns::{Last, Turns},
        unknown::Given,
        unserved::{
            self, PROMPT_CACHE_OPTIONS, SERVICE_TIER, TIER, TIER_USED, Unserved, WITHOUT_EFFECT, read_tier, refuse_all,
            refuse_the_peers,
        },
    },
    error::ApiError,
    generate::{Options, Prompt, Request, now, options::TOLD_IDS, told},
};

/// What is not served, as in `unserved`.
const UNSERVED: &[Unserved] = &[
    ("access_programs", &["[]"], "programs of access"),
    ("background_options", &["{}", r#"{"completion_window":"soonest"}"#], "a window or another run for the background"),
    ("context_management", &["[]"], "compacting the context"),
    ("conversation", &[], "conversations (use `previous_response_id`)"),
    ("enable_response_messages", &["false"], "messages of the model's format"),
    ("guided_choice", &[], "this older form (use `structured_outputs`)"),
    ("guided_grammar", &[], "this older form (use `structured_outputs`)"),
    ("guided_json", &[], "this older form (use `text.format`)"),
    ("guided_regex", &[], "this older form (use `structured_outputs`)"),
    ("image", &[], "images"),
    ("include_reasoning", &["true"], "leaving thoughts out"),
    ("moderation", &[], "moderation"),
    ("n", &["1"], "more than one answer"),
    ("previous_input_messages", &["[]"], "messages of the model's format (use `previous_response_id`)"),
    ("personality", &[], "a choice of personality (say it in `instructions`)"),
    ("prompt", &[], "a prompt that is stored elsewhere"),
    PROMPT_CACHE_OPTIONS,
    ("return_token_ids", &["false"], "token ids"),
    ("response_format", &[], "the form of chats here (use `text.format`)"),
    ("truncate_prompt_tokens", &[], "a prompt without its first tokens (use `truncation`)"),
];

/// The body of a request for a response.
pub(crate) const RESPONSE: Shape = Shape {
    name: "ResponsesRequest",
    about: "What a response shall be an answer to, and how.",
    fields: &[
        &[
            MODEL,
            INPUTS,
            optional(
                "instructions",
                Kind::TEXT,
                "What the model is told before the conversation; not carried over to later responses.",
            ),
            optional("previous_response_id", Kind::TEXT, "A kept response that this one goes on with."),
            optional("max_output_tokens", Kind::Integer(1, Most::Context), "Tokens of the answer at most."),
            optional("include", Kind::List(&Kind::Word(INCLUDES), 0, Most::ANY), "What is told beside the answer."),
            optional(
                "top_logprobs",
                Kind::Integer(0, Most::Logprobs),
                "Needs `include`: [\"message.output_text.logprobs\"].",
            ),
            TEXT,
            optional("reasoning", Kind::Object(&REASONING), "How hard to think."),
            TEMPLATE_KWARGS,
            TRUNCATION,
            with_default(
                "background",
                Kind::Flag,
                "false",
                "Whether the answer is made also without its client; with `stream`, its events can be had again.",
            ),
            with_default("store", Kind::Flag, "true", "Whether the response is kept, as long as there is room."),
            with_default(
                "stream",
                Kind::Flag,
                "false",
                "Whether the response comes as server-sent events while it is made.",
            ),
            optional("stream_options", Kind::Object(&STREAM_OPTIONS), "Nothing is served of them yet."),
            optional("max_tool_calls", Kind::COUNT, "Of tools that the server runs: there are none."),
            optional("prompt_cache_key", Kind::TEXT, WITHOUT_EFFECT),
            optional("safety_identifier", Kind::TEXT, WITHOUT_EFFECT),
            optional(SERVICE_TIER, TIER, WITHOUT_EFFECT),
            metadata("Repeated by the response."),
        ],
        TOOLS,
        SAMPLING,
        STRUCTURED,
    ],
    unserved: &[UNSERVED, unserved::BOTH, unserved::MEDIA, unserved::IDS],
};

pub(crate) const LOGPROBS: &str = "message.output_text.logprobs";
pub(crate) const SEALED: &str = "reasoning.encrypted_content";
const INCLUDES: &[&str] = &[LOGPROBS, SEALED];

const STREAM_OPTIONS: Shape = Shape {
    name: "ResponseStreamOptions",
    about: "Nothing is served of them yet.",
    fields: &[],
    unserved: &[&[("include_obfuscation", &["false"], "padding of events")]],
};
const REASONING: Shape = Shape {
    name: "ResponseReasoning",
    about: "How hard to think.",
    fields: &[&[
        optional("effort", EFFORT, "For templates that know it."),
        optional("summary", Kind::Word(SUMMARIES), "Thoughts are told whole, which is as detailed as can be."),
        optional("generate_summary", Kind::Word(SUMMARIES), "The older name of `summary`."),
    ]],
    unserved: &[REASONING_UNSERVED],
};
const REASONING_UNSERVED: &[Unserved] = &[
    ("context", &["\"auto\""], "choosing whose thoughts the model is shown (its chat template does)"),
    ("mode", &["\"standard\""], "another mode of thinking"),
];
/// `auto` asks for what there is, `detailed` for the most there is, and both are the thoughts themselves. Nothing makes them concise.
const SUMMARIES: &[&str] = &["auto", "detailed"];

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
    verbosity: Option<&'static str>,
    effort: Option<&'static str>,
    truncation: Truncation,
    options: Options,
}

impl ResponsesRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?.spelled(&RESPONSE)?;
        refuse_all(&mut fields, UNSERVED)?;
        refuse_the_peers(&mut fields)?;
        let mut asked = Map::new();
        let mut repeat = |name: &str, value: Value| drop(asked.insert(name.to_owned(), value));
        let model = read_model(&mut fields)?;
        let Input { turns, items } = read_input(&mut fields)?;
        let mut options = read_options(&mut fields)?;
        options.max_tokens = fields.count("max_output_tokens", told::MAX_TOKENS)?;
        options.logprobs = read_logprobs(&mut fields)?;
        if !options.told.is_empty() && options.logprobs.is_none() {
            return Err(needs_logprobs(fields.at(TOLD_IDS)));
        }
        let mut kwargs = read_template_kwargs(&mut fields)?;
        let Text { form, verbosity, shown: text } = read_text(&mut fields)?;
        options.constrained = one_of(options.constrained.take(), form)?;
        let is_background = fields.flag("background")?.unwrap_or(false);
        let instructions = fields.text("instructions")?;
        let previous = fields.text("previous_response_id")?;
        let store = fields.flag("store")?;
        let is_stream = read_stream(&mut fields)?;
        if is_background && store == Some(false) {
            let reason = "needs `store`: true, so that the response can be had later".to_owned();
            return Err(ApiError::Conflict { param: "background".to_owned(), reason });
        }
        repeat("background", is_background.into());
        repeat("instructions", instructions.clone().into());
        repeat("max_output_tokens", options.max_tokens.into());
        repeat("max_tool_calls", fields.count("max_tool_calls", told::COUNT)?.into()); // of tools that the server runs: there are none
        repeat("top_logprobs", options.logprobs.unwrap_or(0).into());
        repeat("temperature", number(options.temperature));
        repeat("top_p", number(options.top_p));
        repeat("user", options.user.clone().into());
        repeat("previous_response_id", previous.clone().into());
        repeat("text", text);
        let effort = read_reasoning(&mut fields, &mut kwargs)?;
        repeat("reasoning", json!({ "effort": effort, "summary": null }));
        let truncation = Truncation::read(&mut fields)?;
        repeat("truncation", truncation.word().into());
        for name in ["prompt_cache_key", "safety_identifier"] {
            repeat(name, fields.text(name)?.into());
        }
        read_tier(&mut fields)?;
        repeat(SERVICE_TIER, TIER_USED.into());
        repeat(METADATA, json!(read_metadata(&mut fields)?.unwrap_or_default()));
        let Asked { tools, shown_tools, shown_choice, is_parallel } = read_tools(&mut fields)?;
        repeat("tools", shown_tools.into());
        repeat("tool_choice", shown_choice);
        repeat("parallel_tool_calls", is_parallel.into());
        fields.finish(&RESPONSE)?;
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
            verbosity,
            effort,
            truncation,
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
            let answers = |item: &Item| {
                let item: Value = serde_json::from_str(item.get()).unwrap_or_default();
                item["type"] == "function_call_output" && item["call_id"] == id
            };
            let at = self.items.iter().position(answers);
            let place = at.map_or_else(|| "input".to_owned(), |at| format!("input[{at}].call_id"));
            return Err(ApiError::invalid(place, format_args!("an output for the call {}", quoted(id)), allowed));
        }
        if turns.last() == Last::Calls {
            let reason = "ends with a `function_call`; its `function_call_output` must follow".to_owned();
            return Err(ApiError::Conflict { param: "input".to_owned(), reason });
        }
        let shortening = (self.truncation == Truncation::Auto).then(|| turns.shortening(self.options.max_tokens));
        let (tools, reading) = self.tools.take().unzip();
        let input = ChatInput {
            messages: turns.into_messages(),
            tools,
            documents: None,
            template: None,
            own_template: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: std::mem::take(&mut self.kwargs),
            verbosity: self.verbosity.map(str::to_owned),
            wishes: Wishes { effort: self.effort.map(str::to_owned), ..Wishes::default() },
            now: now(),
        };
        let prompt = match shortening {
            None => Prompt::Chat { input: Box::new(input), add_special: false },
            Some(shortening) => Prompt::LongChat { input: Box::new(input), shortening },
        };
        Ok(Request { tools: reading, ..Request::new(vec![prompt], std::mem::take(&mut self.options)) })
    }
}

/// A number with the digits that the client sent.
fn number(number: Option<f32>) -> Value {
    number.and_then(|number| format!("{number:?}").parse().ok()).map_or(Value::Null, Value::Number)
}

/// What OpenAI's protocol has beside: of tools that the server runs, and of images.
const UNSERVED_INCLUDES: &[&str] = &[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
];

/// Refuses to include what is not served. Sealed reasoning is: clients that keep a conversation themselves get it in the clear.
pub(crate) fn check_included(param: &str, include: &str, served: &[&'static str]) -> Result<&'static str, ApiError> {
    if let Some(served) = served.iter().find(|known| **known == include) {
        return Ok(served);
    }
    let allowed = served.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" and ");
    if UNSERVED_INCLUDES.contains(&include) {
        return Err(ApiError::not_served(param, quoted(include), allowed, "what tools of the server's found"));
    }
    Err(ApiError::invalid(param, quoted(include), allowed))
}

/// `include` and `top_logprobs`.
fn read_logprobs(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let mut is_wanted = false;
    for include in fields.texts("include", "a list of texts")?.unwrap_or_default() {
        is_wanted |= check_included(&fields.at("include"), &include, INCLUDES)? == LOGPROBS;
    }
    let top = fields.count("top_logprobs", told::LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !is_wanted {
        return Err(needs_logprobs(fields.at("top_logprobs")));
    }
    Ok(is_wanted.then(|| top.unwrap_or(0)))
}

fn needs_logprobs(param: String) -> ApiError {
    let reason = format!("is only allowed together with `include`: [\"{LOGPROBS}\"]");
    ApiError::Conflict { param, reason }
}

fn read_stream(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    if let Some(mut options) = fields.object("stream_options")? {
        if options.flag("include_obfuscation")? == Some(true) {
            let param = options.at("include_obfuscation");
            return Err(ApiError::not_served(param, true, "false", "padding of events"));
        }
        options.finish(&STREAM_OPTIONS)?;
    }
    Ok(is_stream)
}

/// How hard to think.
fn read_reasoning(fields: &mut Fields<'_>, kwargs: &mut Map<String, Value>) -> Result<Option<&'static str>, ApiError> {
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(None) };
    refuse_all(&mut reasoning, REASONING_UNSERVED)?;
    let effort = read_effort(&mut reasoning, "effort")?;
    if let Some(effort) = effort {
        set_effort(kwargs, effort);
    }
    for name in ["summary", "generate_summary"] {
        reasoning.one_of(
            name,
            SUMMARIES,
            "\"auto\" or \"detailed\": thoughts are told whole, and nothing sums them up",
        )?;
    }
    reasoning.finish(&REASONING)?;
    Ok(effort)
}

/// An error of the shared checks, by the names that responses use.
pub(crate) fn renamed(error: ApiError) -> ApiError {
    error.renamed(|param| {
        let name = match param {
            "messages" => "input",
            // Its place among messages: instructions and what was said before stand there, too.
            message if message.starts_with("messages[") => "input",
            "max_tokens" => "max_output_tokens",
            "logprobs" => "top_logprobs",
            "verbosity" => "text.verbosity",
            "reasoning_effort" => "reasoning.effort",
            _ => return in_tool(param, "parameters"),
        };
        Some(name.to_owned())
    })
}

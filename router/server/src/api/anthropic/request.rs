//! Requests: what a message shall be an answer to, and how.

use pelton_grammar::Constraint;
use pelton_text::{ChatInput, Wishes};
use serde_json::{Map, Value};

use super::{
    blocks::{CACHE_CONTROL, MESSAGES, Reader, SYSTEM},
    message::Thoughts,
    tools::{TOOLS, read_tools},
};
use crate::{
    api::{
        chat::{TEMPLATE_KWARGS, read_template_kwargs},
        fields::{Fields, quoted},
        models::{MODEL, read_model},
        sampling::{PRIORITY, SALT, STOP_TEXT},
        shape::{Field, Kind, Most, Shape, needed, optional, with_default},
        thinking::{EFFORT, read_effort, set_effort, switch},
        tools::in_tool,
        turns::Last,
        twice::check_names,
        unknown::Given,
        unserved::{self, Unserved, refuse_all, refuse_the_peers},
    },
    error::ApiError,
    generate::{
        Constrained, Options, PROMPT_CACHE_RETENTION, Prompt, Request, ThoughtLimit, ToolUse, now, options::bounds,
        told,
    },
};

/// Tokens of thinking at least, as for Anthropic.
const BUDGET_MIN: u32 = 1024;
const BUDGET_TOKENS: &str = "thinking.budget_tokens";

/// A conversation that the server keeps, so that turns send only what is new.
pub(super) const THREAD: &str = "thread";

/// What is not served, as in `unserved`.
const UNSERVED: &[Unserved] = &[
    ("container", &[], "containers"),
    ("context_management", &["{}", "{\"edits\":[]}"], "editing the context"),
    ("diagnostics", &["{}", "{\"previous_message_id\":null}"], "comparing prompts"),
    ("inference_geo", &["\"global\""], "a choice of place"),
    ("mcp_servers", &["[]"], "MCP servers"),
    ("speed", &["\"standard\""], "a choice of speed"),
    (THREAD, &[], "keeping a conversation"),
    ("user_profile_id", &[], "profiles of users"),
    ("workspace_id", &[], "workspaces"),
];

/// What both requests have.
const ASKED: &[Field] = &[
    MODEL,
    SYSTEM,
    MESSAGES,
    CACHE_CONTROL,
    optional(
        "thinking",
        Kind::Either(&[Kind::Object(&ENABLED), Kind::Object(&ADAPTIVE), Kind::Object(&DISABLED)]),
        "Whether the model thinks; left out: only with `output_config.effort`, and without being told.",
    ),
    optional("output_format", Kind::Object(&FORMAT), "The older place of `output_config.format`."),
    optional(
        "output_config",
        Kind::Object(&OUTPUT_CONFIG),
        "What the answer's text has to fit, and how hard to think.",
    ),
    TEMPLATE_KWARGS,
];

/// The body of a request for a message.
pub(crate) const MESSAGE: Shape = Shape {
    name: "MessagesRequest",
    about: "A conversation to be answered.",
    fields: &[
        &[
            needed(
                "max_tokens",
                Kind::Integer(1, Most::U32),
                "Tokens of the answer at most; the context may leave less.",
            ),
            with_default(
                "stream",
                Kind::Flag,
                "false",
                "Whether the message comes as server-sent events while it is made.",
            ),
            optional("stop_sequences", Kind::List(&STOP_TEXT, 0, Most::StopTexts), "Texts that end the answer."),
            optional("temperature", Kind::Number(&bounds::TEMPERATURE), "0: always the likeliest token."),
            optional(
                "top_k",
                Kind::Integer(*bounds::TOP_K.start(), Most::Is(*bounds::TOP_K.end())),
                "Only so many likeliest tokens are drawn; 0 and -1: all.",
            ),
            optional(
                "top_p",
                Kind::Number(&bounds::TOP_P),
                "Only the likeliest tokens with this probability together are drawn.",
            ),
            optional(
                "seed",
                Kind::Integer(i64::MIN, Most::ANY),
                "The same seed draws the same answer; -1: none. Pelton's own.",
            ),
            optional("priority", PRIORITY, "Smaller first. Pelton's own."),
            optional("cache_salt", SALT, "Requests with different salts share no cached blocks. Pelton's own."),
            optional("metadata", Kind::Object(&METADATA), "Who asks."),
            optional("service_tier", Kind::Word(TIERS), "Changes no answer."),
        ],
        ASKED,
        TOOLS,
    ],
    unserved: &[UNSERVED, unserved::BOTH, unserved::MEDIA, unserved::IDS],
};
/// The body of a request for a count.
pub(crate) const COUNT: Shape = Shape {
    name: "CountTokensRequest",
    about: "A conversation whose tokens are counted.",
    fields: &[ASKED, TOOLS],
    unserved: &[UNSERVED, unserved::BOTH, unserved::MEDIA, unserved::IDS],
};

const TIERS: &[&str] = &["auto", "standard_only"];
const METADATA: Shape = Shape::new(
    "MessagesMetadata",
    "Who asks.",
    &[&[optional("user_id", Kind::TEXT, "Who of the key's users asks: each gets a share of what the key gets.")]],
);

const THINKING_KINDS: &[&str] = &["enabled", "adaptive", "disabled"];
const DISPLAYS: &[&str] = &["summarized", "omitted"];
const DISPLAY: Field = optional("display", Kind::Word(DISPLAYS), "With `omitted` a block of thoughts has no text.");
const ENABLED: Shape = Shape::new(
    "ThinkingEnabled",
    "The model thinks.",
    &[&[
        needed("type", Kind::Word(&["enabled"]), "Whether it thinks."),
        needed(
            "budget_tokens",
            Kind::Integer(BUDGET_MIN as i64, Most::U32),
            "Tokens of thoughts at most; less than `max_tokens`. Then their end is forced, unless the model's format is on channels.",
        ),
        DISPLAY,
    ]],
);
const ADAPTIVE: Shape = Shape::new(
    "ThinkingAdaptive",
    "The model thinks.",
    &[&[needed("type", Kind::Word(&["adaptive"]), "Whether it thinks."), DISPLAY]],
);
const DISABLED: Shape = Shape::new(
    "ThinkingDisabled",
    "The model does not think.",
    &[&[needed("type", Kind::Word(&["disabled"]), "Whether it thinks.")]],
);
const OUTPUT_CONFIG: Shape = Shape::new(
    "OutputConfig",
    "What the answer's text has to fit, and how hard to think.",
    &[&[
        optional("effort", EFFORT, "Templates that know a switch alone think, but for `none`."),
        optional("format", Kind::Object(&FORMAT), "What the text has to fit."),
    ]],
);
const FORMAT: Shape = Shape::new(
    "OutputFormat",
    "JSON that fits a schema.",
    &[&[needed("type", Kind::Word(&["json_schema"]), "Which form."), needed("schema", Kind::Schema, "The schema.")]],
);

/// A request for a message.
#[derive(Debug)]
pub(crate) struct MessagesRequest {
    pub(crate) model: Option<String>,
    pub(crate) is_stream: bool,
    pub(crate) thoughts: Thoughts,
    /// Of the answer at most, if the context leaves so many.
    pub(crate) max_tokens: u32,
    pub(crate) request: Request,
}

/// A request for the count of its tokens.
#[derive(Debug)]
pub(crate) struct CountRequest {
    pub(crate) model: Option<String>,
    pub(crate) prompt: Prompt,
}

/// What both have.
struct Asked {
    model: Option<String>,
    reader: Reader,
    tools: Option<(Vec<Value>, ToolUse)>,
    thinking: Thinking,
    constrained: Option<Constrained>,
    kwargs: Map<String, Value>,
    effort: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thinking {
    thoughts: Thoughts,
    budget: Option<u32>,
    /// Not left to the model.
    is_demanded: bool,
}

impl MessagesRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?.spelled(&MESSAGE)?;
        let asked = Asked::read(&mut fields)?;
        refuse_all(&mut fields, UNSERVED)?;
        refuse_the_peers(&mut fields)?;
        let max_tokens: u32 = fields.need_count("max_tokens", told::COUNT_FROM_1)?;
        if max_tokens == 0 {
            return Err(ApiError::invalid("max_tokens", 0, told::COUNT_FROM_1));
        }
        if let Some(budget) = asked.thinking.budget.filter(|&budget| budget >= max_tokens) {
            let allowed = format!("less than `max_tokens`, which is {max_tokens}");
            return Err(ApiError::invalid(BUDGET_TOKENS, budget, allowed));
        }
        let mut options = Options {
            max_tokens: Some(max_tokens),
            temperature: fields.number("temperature", &bounds::TEMPERATURE)?,
            top_k: fields.integer("top_k", told::TOP_K)?,
            top_p: fields.number("top_p", &bounds::TOP_P)?,
            seed: fields.integer("seed", told::LONG)?,
            stop: fields.texts("stop_sequences", "a list of texts")?.unwrap_or_default(),
            priority: fields.integer("priority", told::SIGNED)?,
            cache_salt: fields.text("cache_salt")?,
            ..Options::default()
        };
        if let Some(mut metadata) = fields.object("metadata")? {
            options.user = metadata.text("user_id")?;
            metadata.finish(&METADATA)?;
        }
        fields.one_of("service_tier", TIERS, "\"auto\" or \"standard_only\"")?;
        let is_stream = fields.flag("stream")?.unwrap_or(false);
        fields.finish(&MESSAGE)?;
        let (model, thinking) = (asked.model.clone(), asked.thinking);
        options.keep = asked.reader.keep;
        options.constrained = asked.constrained.clone();
        options.thoughts = thinking.budget.map(|tokens| ThoughtLimit { tokens, param: BUDGET_TOKENS.to_owned() });
        let (prompt, tools) = asked.into_prompt()?;
        let request = Request { tools, ..Request::new(vec![prompt], options) };
        Ok(Self { model, is_stream, thoughts: thinking.thoughts, max_tokens, request })
    }
}

impl CountRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?.spelled(&COUNT)?;
        let asked = Asked::read(&mut fields)?;
        refuse_all(&mut fields, UNSERVED)?;
        refuse_the_peers(&mut fields)?;
        fields.finish(&COUNT)?;
        let model = asked.model.clone();
        let (prompt, _) = asked.into_prompt()?;
        Ok(Self { model, prompt })
    }
}

impl Asked {
    fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let model = read_model(fields)?;
        let mut reader = Reader::default();
        reader.cache_control(fields)?;
        reader.system(fields)?;
        reader.messages(fields)?;
        let tools = read_tools(fields, &mut reader)?;
        let mut kwargs = read_template_kwargs(fields)?;
        let thinking = read_thinking(fields, &mut kwargs)?;
        let (constrained, effort) = read_output(fields, &mut kwargs)?;
        switch(&mut kwargs, false); // unless either has said otherwise
        Ok(Self { model, reader, tools, thinking, constrained, kwargs, effort })
    }

    /// A last message of the model's own is continued.
    fn into_prompt(self) -> Result<(Prompt, Option<ToolUse>), ApiError> {
        let last = self.reader.turns.last();
        if last == Last::Calls {
            let reason = "end with a `tool_use` block; the next message must have its `tool_result`".to_owned();
            return Err(ApiError::Conflict { param: "messages".to_owned(), reason });
        }
        let (tools, reading) = self.tools.unzip();
        let input = ChatInput {
            messages: self.reader.turns.into_messages(),
            tools,
            documents: None,
            template: None,
            own_template: None,
            add_generation_prompt: last == Last::Open,
            continue_final_message: last == Last::Answer,
            kwargs: self.kwargs,
            verbosity: None,
            wishes: Wishes {
                effort: self.effort.map(str::to_owned),
                thoughts: self.thinking.is_demanded,
                ..Wishes::default()
            },
            now: now(),
        };
        Ok((Prompt::Chat { input: Box::new(input), add_special: false }, reading))
    }
}

/// Without it a model thinks only if it is told how hard, should its template have a switch; and what it thinks is not told.
fn read_thinking(fields: &mut Fields<'_>, kwargs: &mut Map<String, Value>) -> Result<Thinking, ApiError> {
    let Some(mut thinking) = fields.object("thinking")? else {
        return Ok(Thinking { thoughts: Thoughts::Hidden, budget: None, is_demanded: false });
    };
    let allowed = "\"enabled\", \"adaptive\" or \"disabled\"";
    let Some(kind) = thinking.one_of("type", THINKING_KINDS, allowed)? else {
        return Err(ApiError::Missing { param: thinking.at("type"), allowed });
    };
    let (thinks, mut budget) = (kind != "disabled", None);
    switch(kwargs, thinks);
    if kind == "enabled" {
        let allowed = "an integer, 1024 or above";
        let tokens: u32 = thinking.need_count("budget_tokens", allowed)?;
        if tokens < BUDGET_MIN {
            return Err(ApiError::invalid(thinking.at("budget_tokens"), tokens, allowed));
        }
        // Some templates tell it to the model.
        kwargs.entry("thinking_budget").or_insert(tokens.into());
        budget = Some(tokens);
    }
    let thoughts = if !thinks {
        Thoughts::Hidden
    } else if thinking.one_of("display", DISPLAYS, "\"summarized\" or \"omitted\"")? == Some("omitted") {
        Thoughts::Omitted
    } else {
        Thoughts::Told
    };
    thinking.finish(match kind {
        "enabled" => &ENABLED,
        "adaptive" => &ADAPTIVE,
        _ => &DISABLED,
    })?;
    Ok(Thinking { thoughts, budget, is_demanded: kind == "enabled" })
}

/// `output_config`, and `output_format`, which was its `format` before.
fn read_output(
    fields: &mut Fields<'_>,
    kwargs: &mut Map<String, Value>,
) -> Result<(Option<Constrained>, Option<&'static str>), ApiError> {
    let mut constrained = read_format(fields, "output_format")?;
    let Some(mut config) = fields.object("output_config")? else { return Ok((constrained, None)) };
    let effort = read_effort(&mut config, "effort")?;
    if let Some(effort) = effort {
        set_effort(kwargs, effort);
    }
    if let Some(format) = read_format(&mut config, "format")? {
        if constrained.is_some() {
            let reason = "cannot go together with `output_format`, which says the same".to_owned();
            return Err(ApiError::Conflict { param: config.at("format"), reason });
        }
        constrained = Some(format);
    }
    config.finish(&OUTPUT_CONFIG)?;
    Ok((constrained, effort))
}

fn read_format(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<Constrained>, ApiError> {
    let Some(mut format) = fields.object(name)? else { return Ok(None) };
    let kind: String = format.need("type", "\"json_schema\"")?;
    if kind != "json_schema" {
        return Err(ApiError::invalid(format.at("type"), quoted(&kind), "\"json_schema\""));
    }
    let schema: Map<String, Value> = format.need("schema", "a JSON schema, an object")?;
    let param = format.at("schema");
    if let Some(raw) = format.raw("schema") {
        check_names(&param, raw.get())?;
    }
    format.finish(&FORMAT)?;
    Ok(Some(Constrained { constraint: Constraint::JsonSchema(schema.into()), param }))
}

/// An error of the shared checks, by Anthropic's names.
pub(crate) fn renamed(error: ApiError) -> ApiError {
    error.renamed(|param| {
        let name = match param {
            // Its place in the chat: `system` stands there, too, and results of calls are messages of their own.
            message if message.starts_with("messages[") => "messages",
            "stop" => "stop_sequences",
            "reasoning_effort" => "output_config.effort",
            PROMPT_CACHE_RETENTION => "cache_control.ttl",
            _ => return in_tool(param, "input_schema"),
        };
        Some(name.to_owned())
    })
}

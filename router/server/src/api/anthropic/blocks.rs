//! `system` and `messages`: content in blocks, as turns of a chat.

use std::{collections::HashMap, time::Duration};

use serde_json::{Map, Value, value::RawValue};

use crate::{
    api::{
        fields::{Fields, quoted},
        lists::Items,
        shape::{Field, Kind, Most, Shape, needed, optional},
        turns::Turns,
        unserved::{Unserved, refuse_all},
    },
    error::ApiError,
};

const SOME_MESSAGES: &str = "a list of at least one message";
const ROLES: &str = "\"user\", \"assistant\" or \"system\"";
const CONTENT: &str = "a text, or a list of blocks";
const TEXT_BLOCKS: &str = "a text, or a list of blocks {\"type\": \"text\", \"text\": ...}";

/// What stands before a result that the client marks as an error: templates have no other place for it.
const ERROR_MARK: &str = "Error: ";

/// The client's own form of a call has a place for it, empty but for tools that come in sets.
const TOOLSETS: &[Unserved] = &[("toolset_name", &[], "a set of tools")];

pub(super) const SYSTEM: Field = optional("system", TEXTS, "What the model is told before the conversation.");
pub(super) const MESSAGES: Field = needed(
    "messages",
    Kind::List(
        &Kind::Either(&[Kind::Object(&OF_USER), Kind::Object(&OF_ASSISTANT), Kind::Object(&OF_SYSTEM)]),
        1,
        Most::ANY,
    ),
    "The conversation, the oldest message first. A last one of the assistant's is continued.",
);
pub(super) const CACHE_CONTROL: Field = optional(
    "cache_control",
    Kind::Object(&CACHING),
    "Prompts are cached without it; `1h` keeps the whole prompt for an hour.",
);

const TEXTS: Kind = Kind::Either(&[Kind::TEXT, Kind::List(&Kind::Object(&TEXT), 0, Most::ANY)]);
const OF_USER: Shape = Shape::new(
    "UserMessage",
    "A message of the user's.",
    &[&[
        needed("role", Kind::Word(&["user"]), "Who speaks."),
        needed("content", USER_CONTENT, "Texts, and what calls came to."),
    ]],
);
const OF_ASSISTANT: Shape = Shape::new(
    "AssistantMessage",
    "A message of the assistant's.",
    &[&[
        needed("role", Kind::Word(&["assistant"]), "Who speaks."),
        needed("content", ASSISTANT_CONTENT, "Texts, thoughts, and calls."),
    ]],
);
const OF_SYSTEM: Shape = Shape::new(
    "SystemMessage",
    "What the model is told from here on.",
    &[&[needed("role", Kind::Word(&["system"]), "Who speaks."), needed("content", TEXTS, "What is said.")]],
);
const ROLE_WORDS: &[&str] = &["user", "assistant", "system"];
const USER_CONTENT: Kind =
    Kind::Either(&[Kind::TEXT, Kind::List(&Kind::Either(&[Kind::Object(&TEXT), Kind::Object(&RESULT)]), 0, Most::ANY)]);
const ASSISTANT_CONTENT: Kind = Kind::Either(&[
    Kind::TEXT,
    Kind::List(&Kind::Either(&[Kind::Object(&TEXT), Kind::Object(&THOUGHT), Kind::Object(&CALL)]), 0, Most::ANY),
]);
const TEXT: Shape = Shape {
    name: "TextBlock",
    about: "A text.",
    fields: &[&[
        needed("type", Kind::Word(&["text"]), "What it is."),
        needed("text", Kind::TEXT, "The text."),
        CACHE_CONTROL,
    ]],
    unserved: &[&[("citations", &["[]"], "citing documents")]],
};
const THOUGHT: Shape = Shape::new(
    "ThinkingBlock",
    "What the model thought.",
    &[&[
        needed("type", Kind::Word(&["thinking"]), "What it is."),
        needed("thinking", Kind::TEXT, "The thought."),
        optional("signature", Kind::TEXT, "Whoever signed it."),
    ]],
);
const CALL: Shape = Shape {
    name: "ToolUseBlock",
    about: "A call that the model made.",
    fields: &[&[
        needed("type", Kind::Word(&["tool_use"]), "What it is."),
        needed("id", Kind::TEXT, "By which its result names it."),
        needed("name", Kind::TEXT, "The function's name."),
        needed("input", Kind::AnyObject, "Its arguments."),
        optional("caller", Kind::Object(&CALLER), "Who called."),
        CACHE_CONTROL,
    ]],
    unserved: &[TOOLSETS],
};
const CALLER: Shape =
    Shape::new("Caller", "Who called.", &[&[optional("type", Kind::Word(CALLERS), "The model alone calls.")]]);
const CALLERS: &[&str] = &["direct"];
const RESULT: Shape = Shape {
    name: "ToolResultBlock",
    about: "What a call came to.",
    fields: &[&[
        needed("type", Kind::Word(&["tool_result"]), "What it is."),
        needed("tool_use_id", Kind::TEXT, "The `id` of a `tool_use` block in a message before."),
        optional("content", TEXTS, "What came of it."),
        optional("is_error", Kind::Flag, "Whether that is an error."),
        CACHE_CONTROL,
    ]],
    unserved: &[TOOLSETS],
};
const CACHING: Shape = Shape::new(
    "CacheControl",
    "How long a prompt is kept.",
    &[&[needed("type", Kind::Word(EPHEMERAL), "The only kind."), optional("ttl", Kind::Word(TTLS), "How long.")]],
);
const EPHEMERAL: &[&str] = &["ephemeral"];
const TTLS: &[&str] = &["5m", "1h"];

/// Reads blocks into turns, and collects how long the prompt is to be kept.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) turns: Turns,
    /// The longest that any `cache_control` asks for.
    pub(super) keep: Option<Duration>,
    /// Calls by their ids, and whether a result has come.
    calls: HashMap<String, bool>,
    /// Those of the model's last turn: the paths of their ids, and these.
    latest: Vec<(String, String)>,
    /// Who has spoken last.
    speaker: &'static str,
}

enum Content<'a> {
    Text(String),
    Blocks(Vec<Fields<'a>>),
}

impl Reader {
    /// What the model is told before the conversation.
    pub(super) fn system(&mut self, fields: &mut Fields<'_>) -> Result<(), ApiError> {
        let texts = self.texts(fields, "system")?;
        if !texts.is_empty() {
            self.turns.say("system", texts);
        }
        Ok(())
    }

    /// The conversation.
    pub(super) fn messages(&mut self, fields: &mut Fields<'_>) -> Result<(), ApiError> {
        let Some(messages) = fields.objects("messages")? else {
            return Err(ApiError::Missing { param: fields.at("messages"), allowed: SOME_MESSAGES });
        };
        if messages.is_empty() {
            return Err(ApiError::invalid(fields.at("messages"), "an empty list", SOME_MESSAGES));
        }
        messages.into_iter().try_for_each(|message| self.message(message))?;
        if self.speaker == "assistant" { Ok(()) } else { self.check_answered() }
    }

    /// The model's last calls must have results before it speaks again, and at the end.
    fn check_answered(&mut self) -> Result<(), ApiError> {
        match self.latest.drain(..).find(|(_, id)| !self.calls[id]) {
            None => Ok(()),
            Some((param, id)) => {
                let reason = format!("is {}, and the next message has no `tool_result` block for it", quoted(&id));
                Err(ApiError::Conflict { param, reason })
            }
        }
    }

    fn message(&mut self, mut message: Fields<'_>) -> Result<(), ApiError> {
        let Some(role) = message.one_of("role", ROLE_WORDS, ROLES)? else {
            return Err(ApiError::Missing { param: message.at("role"), allowed: ROLES });
        };
        if role == "system" {
            return self.instruction(message);
        }
        let Some(content) = content(&mut message, "content", CONTENT)? else {
            return Err(ApiError::Missing { param: message.at("content"), allowed: CONTENT });
        };
        message.finish(if role == "user" { &OF_USER } else { &OF_ASSISTANT })?;
        if std::mem::replace(&mut self.speaker, role) != "assistant" && role == "assistant" {
            self.check_answered()?;
        }
        match (role, content) {
            ("user", Content::Text(text)) => self.turns.say_on(vec![text]),
            ("user", Content::Blocks(blocks)) => self.of_user(blocks)?,
            (_, Content::Text(text)) => self.turns.answered(text),
            (_, Content::Blocks(blocks)) => blocks.into_iter().try_for_each(|block| self.of_assistant(block))?,
        }
        Ok(())
    }

    /// What a system says in the midst of a conversation: a turn at its place, which templates tell or refuse as that of a chat.
    fn instruction(&mut self, mut message: Fields<'_>) -> Result<(), ApiError> {
        if message.raw("content").is_none() {
            return Err(ApiError::Missing { param: message.at("content"), allowed: TEXT_BLOCKS });
        }
        let texts = self.texts(&mut message, "content")?;
        message.finish(&OF_SYSTEM)?;
        self.speaker = "system";
        self.turns.say("system", texts);
        Ok(())
    }

    /// Texts and results of calls, which are turns of their own.
    fn of_user(&mut self, blocks: Vec<Fields<'_>>) -> Result<(), ApiError> {
        if blocks.is_empty() {
            self.turns.say_nothing();
        }
        let mut texts = Vec::new();
        for mut block in blocks {
            match kind(&mut block)?.as_str() {
                "text" => texts.push(self.text(block)?),
                "tool_result" => {
                    if !texts.is_empty() {
                        self.turns.say_on(std::mem::take(&mut texts));
                    }
                    self.result(block)?;
                }
                other => return Err(unfit(&block, other, "\"text\" or \"tool_result\"")),
            }
        }
        if !texts.is_empty() {
            self.turns.say_on(texts);
        }
        Ok(())
    }

    fn of_assistant(&mut self, mut block: Fields<'_>) -> Result<(), ApiError> {
        match kind(&mut block)?.as_str() {
            "text" => {
                let text = self.text(block)?;
                self.turns.answered(text);
                Ok(())
            }
            "thinking" => {
                let text: String = block.need("thinking", "a text")?;
                block.text("signature")?; // whoever signed it: a text that is shown to the model needs no proof
                block.finish(&THOUGHT)?;
                self.turns.thought(&text);
                Ok(())
            }
            "tool_use" => self.call(block),
            other => Err(unfit(&block, other, "\"text\", \"thinking\" or \"tool_use\"")),
        }
    }

    fn call(&mut self, mut block: Fields<'_>) -> Result<(), ApiError> {
        let id: String = block.need("id", "a text")?;
        let name: String = block.need("name", "a text")?;
        let object = "an object";
        let input: &RawValue = block.need("input", object)?;
        if serde_json::from_str::<Map<String, Value>>(input.get()).is_err() {
            return Err(block.wrong("input", input, object));
        }
        if let Some(mut caller) = block.object("caller")? {
            caller.one_of("type", CALLERS, "\"direct\"")?;
            caller.finish(&CALLER)?;
        }
        refuse_all(&mut block, TOOLSETS)?;
        self.cache_control(&mut block)?;
        let path = block.at("id");
        block.finish(&CALL)?;
        if self.calls.insert(id.clone(), false).is_some() {
            return Err(ApiError::invalid(path, quoted(&id), "an `id` that no `tool_use` block before it has"));
        }
        self.latest.push((path, id.clone()));
        self.turns.called(&id, &name, input.get());
        Ok(())
    }

    fn result(&mut self, mut block: Fields<'_>) -> Result<(), ApiError> {
        let id: String = block.need("tool_use_id", "a text")?;
        let Some(is_answered) = self.calls.get_mut(&id) else {
            let allowed = "the `id` of a `tool_use` block in a message before";
            return Err(ApiError::invalid(block.at("tool_use_id"), quoted(&id), allowed));
        };
        if std::mem::replace(is_answered, true) {
            let allowed = "the `id` of a `tool_use` block that no other block answers";
            return Err(ApiError::invalid(block.at("tool_use_id"), quoted(&id), allowed));
        }
        let mut texts = self.texts(&mut block, "content")?;
        if block.flag("is_error")? == Some(true) {
            match texts.first_mut() {
                Some(first) => first.insert_str(0, ERROR_MARK),
                None => texts.push(ERROR_MARK.trim_end().to_owned()),
            }
        }
        refuse_all(&mut block, TOOLSETS)?;
        self.cache_control(&mut block)?;
        block.finish(&RESULT)?;
        self.turns.resulted(id, texts);
        Ok(())
    }

    /// A field that is a text, or a list of blocks of text.
    fn texts(&mut self, fields: &mut Fields<'_>, name: &'static str) -> Result<Vec<String>, ApiError> {
        let blocks = match content(fields, name, TEXT_BLOCKS)? {
            None => return Ok(Vec::new()),
            Some(Content::Text(text)) => return Ok(vec![text]),
            Some(Content::Blocks(blocks)) => blocks,
        };
        let texts = blocks.into_iter().map(|mut block| match kind(&mut block)?.as_str() {
            "text" => self.text(block),
            other => Err(unfit(&block, other, "\"text\"")),
        });
        texts.collect()
    }

    fn text(&mut self, mut block: Fields<'_>) -> Result<String, ApiError> {
        let text = block.need("text", "a text")?;
        self.cache_control(&mut block)?;
        if block.read("citations", "a list")?.is_some_and(|Items(citations)| !citations.is_empty()) {
            let (got, allowed) = ("a list of some", "null or an empty list");
            return Err(ApiError::not_served(block.at("citations"), got, allowed, "citing documents"));
        }
        block.finish(&TEXT)?;
        Ok(text)
    }

    /// Prompts are cached anyway, for as long as it happens; an hour is asked for by name, and means the whole prompt.
    pub(super) fn cache_control(&mut self, fields: &mut Fields<'_>) -> Result<(), ApiError> {
        let Some(mut control) = fields.object("cache_control")? else { return Ok(()) };
        let kind = "\"ephemeral\"";
        if control.one_of("type", EPHEMERAL, kind)?.is_none() {
            return Err(ApiError::Missing { param: control.at("type"), allowed: kind });
        }
        if control.one_of("ttl", TTLS, "\"5m\" or \"1h\"")? == Some("1h") {
            self.keep = Some(Duration::from_secs(3600));
        }
        control.finish(&CACHING)
    }
}

fn content<'a>(
    fields: &mut Fields<'a>,
    name: &'static str,
    allowed: &'static str,
) -> Result<Option<Content<'a>>, ApiError> {
    let Some(raw) = fields.raw(name) else { return Ok(None) };
    match raw.get().as_bytes().first() {
        Some(b'"') => Ok(fields.text(name)?.map(Content::Text)),
        Some(b'[') => Ok(fields.objects(name)?.map(Content::Blocks)),
        _ => Err(fields.wrong(name, raw, allowed)),
    }
}

fn kind(block: &mut Fields<'_>) -> Result<String, ApiError> {
    block.need("type", "a text, such as \"text\"")
}

/// Other blocks of Anthropic's protocol.
const UNSERVED_BLOCKS: &[&str] = &[
    "bash_code_execution_tool_result",
    "code_execution_tool_result",
    "compaction",
    "container_upload",
    "document",
    "image",
    "mcp_tool_result",
    "mcp_tool_use",
    "redacted_thinking",
    "search_result",
    "server_tool_use",
    "text_editor_code_execution_tool_result",
    "tool_reference",
    "tool_search_tool_result",
    "web_fetch_tool_result",
    "web_search_tool_result",
];

/// Why a block is not taken: nobody has it yet, or it has no place here.
fn unfit(block: &Fields<'_>, kind: &str, allowed: &'static str) -> ApiError {
    let param = block.at("type");
    if UNSERVED_BLOCKS.contains(&kind) {
        return ApiError::not_served(param, quoted(kind), allowed, "other blocks of Anthropic's");
    }
    ApiError::invalid(param, quoted(kind), allowed)
}

//! `input`: items of a conversation, as turns of a chat and in the full form in which they are kept.

use std::sync::Arc;

use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use super::{new_id, output_text};
use crate::{
    api::{
        fields::{Fields, quoted, shown},
        lists::Items,
        messages::{A_JSON_OBJECT, ARGUMENTS},
        shape::{Field, Kind, Most, Shape, needed, optional},
        turns::Turns,
        unserved::{Unserved, refuse_all},
    },
    error::ApiError,
};

/// An item as it is kept: JSON with all its fields.
pub(crate) type Item = Arc<RawValue>;

const INPUT: &str = "a text, or a list of at least one item";
const ROLES: &str = "\"user\", \"assistant\", \"system\" or \"developer\"";
const CONTENT: &str = "a text, or a list of parts {\"type\": \"input_text\", \"text\": ...}";
const STATE_WORDS: &[&str] = &["in_progress", "completed", "incomplete"];
const ROLE_WORDS: &[&str] = &["user", "assistant", "system", "developer"];
const STATES: &str = "\"in_progress\", \"completed\" or \"incomplete\"";

const ITEM_KINDS: &str = "\"message\", \"function_call\", \"function_call_output\" or \"reasoning\"";
/// Other items of OpenAI's protocol: of tools that the server runs, and what is kept elsewhere.
const UNSERVED_ITEMS: &[&str] = &[
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "computer_call",
    "computer_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "file_search_call",
    "image_generation_call",
    "item_reference",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "shell_call",
    "shell_call_output",
    "web_search_call",
];
const UNSERVED_PARTS: &[&str] = &["input_audio", "input_file", "input_image", "output_audio"];

/// What [`read_input`] reads.
pub(super) const INPUTS: Field = needed(
    "input",
    Kind::Either(&[
        Kind::TEXT,
        Kind::List(
            &Kind::Either(&[
                Kind::Object(&MESSAGE),
                Kind::Object(&CALL),
                Kind::Object(&RESULT),
                Kind::Object(&REASONING),
            ]),
            1,
            Most::ANY,
        ),
    ]),
    "What a user says, or the items of a conversation.",
);

const COMMON: &[Field] = &[
    optional("created_by", Kind::TEXT, "Who made it; for the client's own books."),
    optional("id", Kind::TEXT, "Made up if it is left out or empty."),
    optional("status", Kind::Word(STATE_WORDS), "As answers have it."),
];
const TEXTS: Kind = Kind::Either(&[
    Kind::TEXT,
    Kind::List(&Kind::Either(&[Kind::Object(&TEXT_PART), Kind::Object(&REFUSAL_PART)]), 0, Most::ANY),
]);

const MESSAGE: Shape = Shape::new(
    "ResponseMessage",
    "A message.",
    &[
        &[
            optional("type", Kind::Word(&["message"]), "What it is; may be left out."),
            needed("role", Kind::Word(ROLE_WORDS), "Who speaks."),
            needed("content", TEXTS, "What is said."),
            optional("phase", Kind::TEXT, "Which part of an answer it is, for the client's own books."),
        ],
        COMMON,
    ],
);
const CALL: Shape = Shape {
    name: "ResponseFunctionCall",
    about: "A call that the model made; its output must follow.",
    fields: &[
        &[
            needed("type", Kind::Word(&["function_call"]), "What it is."),
            needed("call_id", Kind::TEXT, "By which its output names it."),
            needed("name", Kind::TEXT, "The function's name."),
            needed("arguments", Kind::TEXT, ARGUMENTS),
            optional("parsed_arguments", Kind::Anything, "What OpenAI's JavaScript client adds; not looked at."),
        ],
        COMMON,
    ],
    unserved: &[CALL_UNSERVED],
};
/// `async_` is what OpenAI's Python client calls `async` where it writes down an answer that was read.
const CALL_UNSERVED: &[Unserved] = &[
    ("async", &["false"], "calls that are not waited for"),
    ("async_", &["false"], "calls that are not waited for"),
    CALLER,
    NAMESPACE,
];
const CALLER: Unserved = ("caller", &[r#"{"type":"direct"}"#], "calls by programs");
const NAMESPACE: Unserved = ("namespace", &[], "functions of a namespace");
const RESULT: Shape = Shape {
    name: "ResponseFunctionCallOutput",
    about: "What a call came to.",
    fields: &[
        &[
            needed("type", Kind::Word(&["function_call_output"]), "What it is."),
            needed("call_id", Kind::TEXT, "The `call_id` of a call before it."),
            needed("output", TEXTS, "What came of it."),
            optional("name", Kind::TEXT, "The function's name; that of the call counts."),
        ],
        COMMON,
    ],
    unserved: &[RESULT_UNSERVED],
};
const RESULT_UNSERVED: &[Unserved] = &[CALLER, NAMESPACE];
const REASONING: Shape = Shape::new(
    "ResponseReasoningItem",
    "What the model thought before, in the clear.",
    &[
        &[
            needed("type", Kind::Word(&["reasoning"]), "What it is."),
            optional(
                "summary",
                Kind::List(&Kind::Object(&SUMMARY_PART), 0, Most::ANY),
                "Counts where there is no `content`.",
            ),
            optional("content", Kind::List(&Kind::Object(&REASONING_PART), 0, Most::ANY), "What was thought."),
            optional(
                "encrypted_content",
                Kind::TEXT,
                "Only beside a `summary` or a `content`: nobody can read it here.",
            ),
        ],
        COMMON,
    ],
);

const PART: &[Field] = &[
    optional("annotations", Kind::List(&Kind::Anything, 0, Most::ANY), "As answers have it; not looked at."),
    optional("logprobs", Kind::List(&Kind::Anything, 0, Most::ANY), "As answers have it; not looked at."),
    optional("parsed", Kind::Anything, "What OpenAI's JavaScript client adds; not looked at."),
    optional("prompt_cache_breakpoint", Kind::Anything, "What begins alike is found without marks; not looked at."),
];
const TEXT_PART: Shape = Shape::new(
    "ResponseTextPart",
    "A text.",
    &[
        &[
            needed("type", Kind::Word(&["input_text", "output_text"]), "What it is."),
            needed("text", Kind::TEXT, "The text."),
        ],
        PART,
    ],
);
const REFUSAL_PART: Shape = Shape::new(
    "ResponseRefusalPart",
    "A refusal.",
    &[&[needed("type", Kind::Word(&["refusal"]), "What it is."), needed("refusal", Kind::TEXT, "The text.")], PART],
);
const SUMMARY_PART: Shape = Shape::new(
    "ResponseSummaryPart",
    "A part of a summary.",
    &[&[needed("type", Kind::Word(&["summary_text"]), "What it is."), needed("text", Kind::TEXT, "The text.")], PART],
);
const REASONING_PART: Shape = Shape::new(
    "ResponseReasoningPart",
    "A part of what was thought.",
    &[&[needed("type", Kind::Word(&["reasoning_text"]), "What it is."), needed("text", Kind::TEXT, "The text.")], PART],
);

/// Items read so far.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) turns: Turns,
    pub(super) items: Vec<Item>,
}

/// A JSON value that is kept.
pub(super) fn item(value: &Value) -> Item {
    to_raw_value(value).expect("JSON values are JSON").into()
}

/// The field `input`.
pub(super) fn read_input(fields: &mut Fields<'_>) -> Result<Input, ApiError> {
    let mut input = Input::default();
    let Some(raw) = fields.raw("input") else {
        return Err(ApiError::Missing { param: fields.at("input"), allowed: INPUT });
    };
    if raw.get().starts_with('"') {
        let text = fields.text("input")?.unwrap_or_default();
        input.keep_message("user", None, &[json!({ "type": "input_text", "text": text })]);
        input.turns.say("user", vec![text]);
        return Ok(input);
    }
    if !raw.get().starts_with('[') {
        return Err(fields.wrong("input", raw, INPUT));
    }
    let items = fields.objects("input")?.unwrap_or_default();
    if items.is_empty() {
        return Err(ApiError::invalid(fields.at("input"), shown(raw), INPUT));
    }
    items.into_iter().try_for_each(|item| input.read(item))?;
    Ok(input)
}

/// Turns of items that were kept.
pub(super) fn turns_of(items: &[Item]) -> Result<Turns, ApiError> {
    let mut input = Input::default();
    for item in items {
        input.read(Fields::of_value("previous_response_id".to_owned(), item)?)?;
    }
    Ok(input.turns)
}

impl Input {
    fn read(&mut self, mut fields: Fields<'_>) -> Result<(), ApiError> {
        let kind = match fields.text("type")? {
            None if fields.raw("role").is_some() => "message".to_owned(),
            None => return Err(ApiError::Missing { param: fields.at("type"), allowed: "a text, such as \"message\"" }),
            Some(kind) => kind,
        };
        let id = fields.text("id")?.filter(|id| !id.is_empty());
        fields.text("created_by")?;
        fields.one_of("status", STATE_WORDS, STATES)?;
        let shape = match kind.as_str() {
            "message" => self.message(&mut fields, id).map(|()| &MESSAGE)?,
            "function_call" => self.call(&mut fields, id).map(|()| &CALL)?,
            "function_call_output" => self.result(&mut fields, id).map(|()| &RESULT)?,
            "reasoning" => self.reasoning(&mut fields, id).map(|()| &REASONING)?,
            other if UNSERVED_ITEMS.contains(&other) => {
                return Err(ApiError::not_served(
                    fields.at("type"),
                    quoted(other),
                    ITEM_KINDS,
                    "other items of OpenAI's",
                ));
            }
            other => return Err(ApiError::invalid(fields.at("type"), quoted(other), ITEM_KINDS)),
        };
        fields.finish(shape)
    }

    fn message(&mut self, fields: &mut Fields<'_>, id: Option<String>) -> Result<(), ApiError> {
        let Some(role) = fields.one_of("role", ROLE_WORDS, ROLES)? else {
            return Err(ApiError::Missing { param: fields.at("role"), allowed: ROLES });
        };
        fields.text("phase")?; // which part of an answer it is, for clients' own books
        let Some(texts) = texts(fields, "content")? else {
            return Err(ApiError::Missing { param: fields.at("content"), allowed: CONTENT });
        };
        let is_answer = role == "assistant";
        let part = |text: &String| match is_answer {
            true => output_text(text, &[]),
            false => json!({ "type": "input_text", "text": text }),
        };
        self.keep_message(role, id, &texts.iter().map(part).collect::<Vec<_>>());
        match is_answer {
            true => texts.into_iter().for_each(|text| self.turns.answered(text)),
            false => self.turns.say(role, texts),
        }
        Ok(())
    }

    fn keep_message(&mut self, role: &str, id: Option<String>, content: &[Value]) {
        let id = id.unwrap_or_else(|| new_id("msg"));
        let message = json!({ "id": id, "type": "message", "status": "completed", "role": role, "content": content });
        self.items.push(item(&message));
    }

    /// Clients send no id, an empty one, or whatever another server gave them (B:A5).
    fn call(&mut self, fields: &mut Fields<'_>, id: Option<String>) -> Result<(), ApiError> {
        refuse_all(fields, CALL_UNSERVED)?;
        let call_id: String = fields.need("call_id", "a text")?;
        let name: String = fields.need("name", "a text")?;
        let arguments: String = fields.need("arguments", A_JSON_OBJECT)?;
        fields.raw("parsed_arguments");
        self.turns.called(&call_id, &name, &arguments);
        let id = id.unwrap_or_else(|| new_id("fc"));
        self.items.push(item(&json!({ "id": id, "type": "function_call", "status": "completed", "call_id": call_id,
                                      "name": name, "arguments": arguments })));
        Ok(())
    }

    fn result(&mut self, fields: &mut Fields<'_>, id: Option<String>) -> Result<(), ApiError> {
        refuse_all(fields, RESULT_UNSERVED)?;
        let call_id: String = fields.need("call_id", "the `call_id` of the call that this answers")?;
        fields.text("name")?;
        let Some(texts) = texts(fields, "output")? else {
            return Err(ApiError::Missing { param: fields.at("output"), allowed: CONTENT });
        };
        let id = id.unwrap_or_else(|| new_id("fco"));
        self.items.push(item(&json!({ "id": id, "type": "function_call_output", "status": "completed",
                                      "call_id": call_id, "output": texts.concat() })));
        self.turns.resulted(call_id, texts);
        Ok(())
    }

    /// What was thought before, in the clear; of what is only summed up, the summary.
    fn reasoning(&mut self, fields: &mut Fields<'_>, id: Option<String>) -> Result<(), ApiError> {
        let summary = parts(fields, "summary", &[&SUMMARY_PART])?;
        let content = parts(fields, "content", &[&REASONING_PART])?;
        let is_sealed = fields.text("encrypted_content")?.is_some_and(|sealed| !sealed.is_empty());
        if is_sealed && content.is_empty() && summary.is_empty() {
            let (param, allowed) = (fields.at("encrypted_content"), "null, or reasoning as `content` beside it");
            return Err(ApiError::not_served(param, "a text", allowed, "reasoning that another server has encrypted"));
        }
        let told = if content.is_empty() { &summary } else { &content };
        self.turns.thought(&told.concat());
        let part = |kind: &str, texts: &[String]| -> Vec<Value> {
            texts.iter().map(|text| json!({ "type": kind, "text": text })).collect()
        };
        self.items.push(item(&json!({
            "id": id.unwrap_or_else(|| new_id("rs")), "type": "reasoning", "status": "completed",
            "summary": part("summary_text", &summary), "content": part("reasoning_text", &content),
        })));
        Ok(())
    }
}

/// A text, or the texts of a list of parts.
fn texts(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<Vec<String>>, ApiError> {
    let Some(raw) = fields.raw(name) else { return Ok(None) };
    match raw.get().as_bytes().first() {
        Some(b'"') => Ok(fields.text(name)?.map(|text| vec![text])),
        Some(b'[') => parts(fields, name, &[&TEXT_PART, &REFUSAL_PART]).map(Some),
        _ => Err(fields.wrong(name, raw, CONTENT)),
    }
}

/// The texts of parts, each of which has one of the shapes.
fn parts(fields: &mut Fields<'_>, name: &'static str, shapes: &[&'static Shape]) -> Result<Vec<String>, ApiError> {
    let mut texts = Vec::new();
    for mut part in fields.objects(name)?.unwrap_or_default() {
        let kind: String = part.need("type", "a text, such as \"input_text\"")?;
        let Some(shape) = shapes.iter().find(|shape| shape.fields[0][0].kind.has_word(&kind)) else {
            let words = shapes.iter().filter_map(|shape| match shape.fields[0][0].kind {
                Kind::Word(words) => Some(words),
                _ => None,
            });
            let allowed = words.flatten().map(|word| quoted(word)).collect::<Vec<_>>().join(", ");
            let param = part.at("type");
            return Err(match UNSERVED_PARTS.contains(&kind.as_str()) {
                true => ApiError::not_served(param, quoted(&kind), allowed, "other parts of OpenAI's"),
                false => ApiError::invalid(param, quoted(&kind), allowed),
            });
        };
        part = part.spelled(shape)?;
        texts.push(part.need(if kind == "refusal" { "refusal" } else { "text" }, "a text")?);
        // Clients send back the answers they got, with what else was told of them.
        for rest in ["annotations", "logprobs"] {
            part.read::<Items<'_>>(rest, "a list")?;
        }
        part.raw("parsed");
        part.raw("prompt_cache_breakpoint");
        part.finish(shape)?;
    }
    Ok(texts)
}

//! `input`: items of a conversation, as turns of a chat and in the full form in which they are kept.

use std::sync::Arc;

use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};

use super::{new_id, output_text};
use crate::{
    api::{
        fields::{Fields, quoted, shown},
        turns::Turns,
    },
    error::ApiError,
};

/// An item as it is kept: JSON with all its fields.
pub(crate) type Item = Arc<RawValue>;

const INPUT: &str = "a text, or a list of at least one item";
const ROLES: &str = "\"user\", \"assistant\", \"system\" or \"developer\"";
const CONTENT: &str = "a text, or a list of parts {\"type\": \"input_text\", \"text\": ...}";
const STATES: &str = "\"in_progress\", \"completed\" or \"incomplete\"";

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
        fields.one_of("status", &["in_progress", "completed", "incomplete"], STATES)?;
        match kind.as_str() {
            "message" => self.message(&mut fields, id)?,
            "function_call" => self.call(&mut fields, id)?,
            "function_call_output" => self.result(&mut fields, id)?,
            "reasoning" => self.reasoning(&mut fields, id)?,
            other => {
                let what = format!("an item of type {}", quoted(other)).into();
                return Err(ApiError::NotServed { param: fields.at("type"), what });
            }
        }
        fields.finish()
    }

    fn message(&mut self, fields: &mut Fields<'_>, id: Option<String>) -> Result<(), ApiError> {
        let Some(role) = fields.one_of("role", &["user", "assistant", "system", "developer"], ROLES)? else {
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
        let call_id: String = fields.need("call_id", "a text")?;
        let name: String = fields.need("name", "a text")?;
        let allowed = "a text that is a JSON object";
        let arguments: String = fields.need("arguments", allowed)?;
        if !arguments.trim().is_empty() && serde_json::from_str::<Map<String, Value>>(&arguments).is_err() {
            let got = format!("the text {}", quoted(&arguments));
            return Err(ApiError::invalid(fields.at("arguments"), got, allowed));
        }
        self.turns.called(&call_id, &name, &arguments);
        let id = id.unwrap_or_else(|| new_id("fc"));
        self.items.push(item(&json!({ "id": id, "type": "function_call", "status": "completed", "call_id": call_id,
                                      "name": name, "arguments": arguments })));
        Ok(())
    }

    fn result(&mut self, fields: &mut Fields<'_>, id: Option<String>) -> Result<(), ApiError> {
        let call_id: String = fields.need("call_id", "the `call_id` of the call that this answers")?;
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
        let summary = parts(fields, "summary", &["summary_text"])?;
        let content = parts(fields, "content", &["reasoning_text"])?;
        let is_sealed = fields.text("encrypted_content")?.is_some_and(|sealed| !sealed.is_empty());
        if is_sealed && content.is_empty() && summary.is_empty() {
            let what = "reasoning that another server has encrypted".into();
            return Err(ApiError::NotServed { param: fields.at("encrypted_content"), what });
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
        Some(b'[') => parts(fields, name, &["input_text", "output_text", "refusal"]).map(Some),
        _ => Err(fields.wrong(name, raw, CONTENT)),
    }
}

fn parts(fields: &mut Fields<'_>, name: &'static str, kinds: &[&str]) -> Result<Vec<String>, ApiError> {
    let mut texts = Vec::new();
    for mut part in fields.objects(name)?.unwrap_or_default() {
        let kind: String = part.need("type", "a text, such as \"input_text\"")?;
        if !kinds.contains(&kind.as_str()) {
            let what = format!("a part of type {} here", quoted(&kind)).into();
            return Err(ApiError::NotServed { param: part.at("type"), what });
        }
        texts.push(part.need(if kind == "refusal" { "refusal" } else { "text" }, "a text")?);
        // Clients send back the answers they got, with what else was told of them.
        for rest in ["annotations", "logprobs"] {
            part.read::<Vec<&RawValue>>(rest, "a list")?;
        }
        part.finish()?;
    }
    Ok(texts)
}

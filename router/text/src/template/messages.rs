//! Messages before they are rendered: what `transformers` does to them, and what the OpenAI API makes necessary.

use minijinja::value::{Serde, Value as Jinja};
use serde_json::{Map, Value};

use super::json::{self, Style};
use super::{ContentForm, TemplateError};

/// What a message's reasoning is called; templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// As `apply_chat_template`: members that are null are left out (templates print "None" otherwise), and reasoning is
/// there under both names that templates read.
pub(super) fn normalise(messages: &[Value]) -> Result<Vec<Value>, TemplateError> {
    if messages.is_empty() {
        return Err(TemplateError::Input { param: "messages", reason: "must have at least one message".into() });
    }
    messages.iter().enumerate().map(|(at, message)| normalise_one(at, message)).collect()
}

fn normalise_one(at: usize, message: &Value) -> Result<Value, TemplateError> {
    let Value::Object(members) = message else {
        return Err(TemplateError::Input { param: "messages", reason: format!("number {at} is no object") });
    };
    let members = members.iter().filter(|(_, value)| !value.is_null());
    let members: Map<String, Value> = members.map(|(key, value)| (key.clone(), value.clone())).collect();
    let Some(reasoning) = REASONING.iter().find_map(|key| members.get(*key)).cloned() else {
        return Ok(Value::Object(members));
    };
    let mut with_reasoning = Map::from_iter([("thinking".to_owned(), reasoning.clone())]);
    with_reasoning.extend(members);
    with_reasoning.insert("reasoning_content".to_owned(), reasoning);
    Ok(Value::Object(with_reasoning))
}

/// What some templates want answers that called tools to be: those that say nothing with an empty content, or with one that is null, and
/// arguments as JSON text.
pub(super) fn otherwise(messages: &[Value]) -> impl Iterator<Item = Vec<Value>> {
    let has_bare = messages.iter().any(is_bare);
    let some_called = messages.iter().any(has_calls);
    let contents = [None, Some(Value::from("")), Some(Value::Null)];
    let ways = [false, true].into_iter().flat_map(move |as_texts| contents.clone().map(|content| (as_texts, content)));
    let changes = move |(as_texts, content): &(bool, Option<Value>)| match content {
        Some(_) => has_bare,
        None => *as_texts && some_called,
    };
    ways.filter(changes).map(move |(as_texts, content)| {
        let mut messages = messages.to_vec();
        if let Some(content) = content {
            messages.iter_mut().filter(|message| is_bare(message)).for_each(|bare| bare["content"] = content.clone());
        }
        if as_texts {
            messages.iter_mut().flat_map(arguments_in).for_each(|arguments| *arguments = as_text(arguments).into());
        }
        messages
    })
}

fn has_calls(message: &Value) -> bool {
    message.get("tool_calls").is_some()
}

/// Whether it is an answer of calls alone.
fn is_bare(message: &Value) -> bool {
    has_calls(message) && message.get("content").is_none_or(|content| content.is_null() || content == "")
}

/// The same without the calls of those that say nothing, or of all if each says something.
pub(super) fn without_calls(mut messages: Vec<Value>) -> Vec<Value> {
    let some_are_bare = messages.iter().any(is_bare);
    for message in messages.iter_mut().filter(|message| !some_are_bare || is_bare(message)) {
        message.as_object_mut().and_then(|members| members.remove("tool_calls"));
    }
    messages
}

/// As templates write JSON.
fn as_text(value: &Value) -> String {
    let style = Style { is_ascii: false, indent: None, separators: None, is_sorted: false };
    let written = || json::dumps(&Jinja::from(Serde(value)), &style).unwrap_or_else(|_| value.to_string());
    value.as_str().map_or_else(written, str::to_owned)
}

/// The arguments of a message's calls.
fn arguments_in(message: &mut Value) -> impl Iterator<Item = &mut Value> {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.into_iter().flatten().filter_map(|call| call.get_mut("function")?.get_mut("arguments"))
}

/// Whether a text has the names of all functions that were called.
pub(super) fn tells_calls(text: &str, messages: &[Value]) -> bool {
    let calls = messages.iter().filter_map(|message| message.get("tool_calls")?.as_array()).flatten();
    let mut names = calls.filter_map(|call| call.get("function")?.get("name")?.as_str());
    names.all(|name| text.contains(name))
}

/// See `ChatTemplate::adapt`.
pub(super) fn adapt(mut message: Value, form: ContentForm) -> Value {
    for arguments in arguments_in(&mut message) {
        // What is no text stays as it was sent: the template may know what to do with it.
        if let Some(text) = arguments.as_str() {
            *arguments = Value::Object(arguments_of(text));
        }
    }
    if form == ContentForm::Texts
        && let Some(content) = message.get_mut("content")
        && let Some(texts) = texts(content)
    {
        *content = Value::String(texts.join("\n"));
    }
    message
}

/// A message's text as a list of one, for templates that know nothing else. An empty one stays: there is nothing to lose.
pub(super) fn wrap(message: &mut Value) {
    if let Some(content) = message.get_mut("content")
        && content.as_str().is_some_and(|text| !text.is_empty())
    {
        *content = serde_json::json!([{ "type": "text", "text": content.take() }]);
    }
}

/// The arguments of a call as an object. Text that is none, as that of a call that was cut, is told under a name of its own, as
/// Anthropic tells its clients to do.
pub fn arguments_of(text: &str) -> Map<String, Value> {
    match serde_json::from_str(text) {
        Ok(arguments) => arguments,
        Err(_) if text.trim().is_empty() => Map::new(),
        Err(_) => Map::from_iter([("INVALID_JSON".to_owned(), text.into())]),
    }
}

/// The texts of content that is a list of nothing but texts.
fn texts(content: &Value) -> Option<Vec<&str>> {
    content.as_array()?.iter().map(|part| (part.get("type")? == "text").then(|| part.get("text")?.as_str())?).collect()
}

/// An answer that is to go on within the last message: a mark is put at the message's end, and the rendered text is
/// cut off there.
pub(super) struct Continuation {
    /// The end of the last message's text.
    text: String,
}

const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl Continuation {
    /// Puts the mark after the last text of the last message.
    pub(super) fn mark(messages: &mut [Value], source: &str) -> Result<Self, TemplateError> {
        let refuse = |reason: &str| TemplateError::Input { param: "continue_final_message", reason: reason.into() };
        if !source.contains("content") {
            return Err(refuse("the chat template does not show `content`"));
        }
        let last = messages.last_mut().ok_or_else(|| refuse("there is no message"))?;
        let content = last.get_mut("content").ok_or_else(|| refuse("the last message has no `content`"))?;
        let text = match content {
            Value::Array(parts) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
            content => Some(content),
        };
        match text {
            Some(Value::String(text)) => {
                let continuation = Self { text: text.clone() };
                text.push_str(MARK);
                Ok(continuation)
            }
            _ => Err(refuse("the last message has no text")),
        }
    }

    /// Cuts the rendered chat where the mark is. A template that trimmed the mark's space has trimmed the message, too.
    pub(super) fn cut(self, mut rendered: String) -> Result<String, TemplateError> {
        let at = rendered.rfind(MARK.trim_end()).filter(|_| rendered.contains(self.text.trim()));
        let Some(at) = at else {
            let reason = "the chat template does not show the last message as it is".into();
            return Err(TemplateError::Input { param: "continue_final_message", reason });
        };
        let is_trimmed = !rendered[at..].starts_with(MARK);
        rendered.truncate(at);
        if is_trimmed {
            rendered.truncate(rendered.trim_end().len());
        }
        Ok(rendered)
    }
}

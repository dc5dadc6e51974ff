//! A chat of `pelton.v1` as the JSON of OpenAI's form, read by the code that reads it for HTTP.
//!
//! So both doors take and refuse the same chats with the same words. Only names differ: what this contract carries as a JSON
//! text has `_json` at its end here.

use pelton_rpc::v1;
use pelton_text::ChatInput;
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};

use crate::{
    api::{chat_of_json, why_no_json},
    error::ApiError,
    generate::ToolUse,
    json_size::check_size,
};

/// What the template is told, and how calls are read.
pub(super) fn read(chat: v1::Chat) -> Result<(ChatInput, Option<ToolUse>), ApiError> {
    let given = |name: &str, text: &str| {
        if text.is_empty() {
            return Ok(Value::Null);
        }
        check_size(name, text)?;
        serde_json::from_str(text).map_err(|error| {
            ApiError::invalid(name, format_args!("no JSON ({})", why_no_json(&error)), "a JSON text, or empty")
        })
    };
    let given_word = |word: String| Some(word).filter(|word| !word.is_empty());
    let choice = match chat.tool_choice.starts_with('{') {
        true => given("chat.tool_choice", &chat.tool_choice)?,
        false => Some(chat.tool_choice).filter(|choice| !choice.is_empty()).into(),
    };
    let body = json!({
        "messages": chat.messages.into_iter().map(message).collect::<Vec<Value>>(),
        "tools": given("chat.tools_json", &chat.tools_json)?,
        "tool_choice": choice,
        "parallel_tool_calls": chat.parallel_tool_calls,
        "add_generation_prompt": chat.add_generation_prompt,
        "continue_final_message": chat.continue_final_message,
        "reasoning_effort": given_word(chat.reasoning_effort),
        "verbosity": given_word(chat.verbosity),
        "chat_template": Some(chat.chat_template).filter(|template| !template.is_empty()),
        "chat_template_kwargs": given("chat.chat_template_kwargs_json", &chat.chat_template_kwargs_json)?,
        "documents": given("chat.documents_json", &chat.documents_json)?,
    });
    let body: Box<RawValue> = to_raw_value(&body).expect("JSON values are JSON");
    chat_of_json("chat", &body).map_err(by_our_names)
}

fn message(message: v1::Message) -> Value {
    let v1::Message { role, content, tool_calls, tool_call_id, name, reasoning_content } = message;
    let calls: Vec<Value> = tool_calls.into_iter().map(call).collect();
    let mut members = Map::from_iter([("role".to_owned(), Value::String(role))]);
    // An answer that only called tools has none.
    if !content.is_empty() || calls.is_empty() {
        members.insert("content".to_owned(), Value::String(content));
    }
    for (name, text) in [("tool_call_id", tool_call_id), ("name", name), ("reasoning_content", reasoning_content)] {
        if !text.is_empty() {
            members.insert(name.to_owned(), Value::String(text));
        }
    }
    if !calls.is_empty() {
        members.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Value::Object(members)
}

fn call(v1::ToolCall { id, name, arguments }: v1::ToolCall) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// The paths of JSON members as paths of this contract's fields.
pub(super) fn by_our_names(error: ApiError) -> ApiError {
    error.renamed(|param| {
        let ours = ["chat.tools", "chat.chat_template_kwargs", "chat.documents"].into_iter().find_map(|name| {
            let rest = param.strip_prefix(name)?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then(|| format!("{name}_json{rest}"))
        });
        ours.or_else(|| param.contains(".function.").then(|| param.replace(".function.", ".")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(role: &str, content: &str) -> v1::Message {
        v1::Message { role: role.into(), content: content.into(), ..v1::Message::default() }
    }

    fn chat(messages: Vec<v1::Message>) -> v1::Chat {
        v1::Chat { messages, ..v1::Chat::default() }
    }

    const TOOL: &str = r#"{"type": "function", "function": {"name": "f"}}"#;

    #[test]
    fn a_chat_says_the_same_as_over_http() {
        let call = v1::ToolCall { id: "1".into(), name: "f".into(), arguments: "{}".into() };
        let asked = v1::Message { tool_calls: vec![call], ..text("assistant", "") };
        let answered = v1::Message { tool_call_id: "1".into(), ..text("tool", "5") };
        let (input, reading) = read(v1::Chat {
            tools_json: format!("[{TOOL}]"),
            parallel_tool_calls: Some(false),
            chat_template_kwargs_json: r#"{"enable_thinking": false}"#.into(),
            reasoning_effort: "low".into(),
            verbosity: "high".into(),
            ..chat(vec![text("user", "hi"), asked, answered])
        })
        .expect("a chat");
        let call = json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } });
        assert_eq!(
            input.messages,
            [
                json!({ "role": "user", "content": "hi" }),
                json!({ "role": "assistant", "tool_calls": [call] }),
                json!({ "role": "tool", "content": "5", "tool_call_id": "1" }),
            ]
        );
        assert_eq!(reading.map(|used| used.reading), Some(crate::generate::ToolReading::Single));
        assert_eq!(input.kwargs["enable_thinking"], false);
        assert_eq!((&input.kwargs["reasoning_effort"], input.verbosity.as_deref()), (&json!("low"), Some("high")));
        let named =
            v1::Chat { tools_json: format!("[{TOOL}]"), tool_choice: TOOL.into(), ..chat(vec![text("user", "hi")]) };
        let demand = read(named).expect("a chat").1.map(|used| used.demand);
        assert_eq!(demand, Some(crate::generate::Demand::Named("f".to_owned())));
        assert!(input.add_generation_prompt && !input.continue_final_message);
        let continued =
            v1::Chat { continue_final_message: true, ..chat(vec![text("user", "hi"), text("assistant", "It turns")]) };
        let (input, reading) = read(continued).expect("a chat");
        assert!(input.continue_final_message && !input.add_generation_prompt);
        assert_eq!(reading, None);
    }

    #[test]
    fn what_is_wrong_is_named_as_in_this_contract() {
        let hi = || vec![text("user", "hi")];
        for (chat, param) in [
            (chat(Vec::new()), "chat.messages"),
            (chat(vec![text("usr", "hi")]), "chat.messages[0].role"),
            (chat(vec![text("tool", "5")]), "chat.messages[0].tool_call_id"),
            (v1::Chat { tools_json: "{".into(), ..chat(hi()) }, "chat.tools_json"),
            (v1::Chat { tools_json: "[1]".into(), ..chat(hi()) }, "chat.tools_json[0]"),
            (v1::Chat { tools_json: format!("[{TOOL}, {TOOL}]"), ..chat(hi()) }, "chat.tools_json[1].function.name"),
            (v1::Chat { tool_choice: "required".into(), ..chat(hi()) }, "chat.tool_choice"),
            (v1::Chat { tool_choice: "{".into(), ..chat(hi()) }, "chat.tool_choice"),
            (v1::Chat { chat_template_kwargs_json: "[]".into(), ..chat(hi()) }, "chat.chat_template_kwargs_json"),
            (v1::Chat { documents_json: "[1]".into(), ..chat(hi()) }, "chat.documents_json[0]"),
            (v1::Chat { continue_final_message: true, ..chat(hi()) }, "chat.continue_final_message"),
            (v1::Chat { reasoning_effort: "some".into(), ..chat(hi()) }, "chat.reasoning_effort"),
            (v1::Chat { verbosity: "some".into(), ..chat(hi()) }, "chat.verbosity"),
        ] {
            match read(chat).expect_err(param) {
                ApiError::Invalid { param: got, .. }
                | ApiError::Missing { param: got, .. }
                | ApiError::Conflict { param: got, .. } => assert_eq!(got, param),
                other => panic!("{other}"),
            }
        }
    }
}

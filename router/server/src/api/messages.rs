//! `messages` of a chat: checked field by field here, brought into the template's form by `pelton_text`.

use std::collections::HashSet;

use serde_json::{Value, value::RawValue};

use super::{
    fields::{Fields, quoted},
    lists::Items,
    shape::{Field, Kind, Most, Shape, needed, optional},
    unserved::refuse_all,
};
use crate::{error::ApiError, generate::told};

const ROLES: &str = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
const CONTENT: &str = "a text, or a list of parts {\"type\": \"text\", \"text\": ...}";

const PART_KINDS: &str = "\"text\" (and \"refusal\", in a message of the assistant's)";
const REFUSAL: &str = "refusal";

const ROLE_WORDS: &[&str] = &["system", "developer", "user", "assistant", "tool"];

/// What a message may have beside what it says; templates do not see it.
const NOT_LOOKED_AT: [&str; 6] =
    ["annotations", CACHE_CONTROL, "parsed", "provider_specific_fields", "reasoning_details", "thinking_blocks"];
/// OpenAI's mark of what to keep: what begins alike is found without marks.
const CACHE_BREAKPOINT: &str = "prompt_cache_breakpoint";
/// Anthropic's mark of what to keep, which its other clients pass on: everything is kept here.
const CACHE_CONTROL: &str = "cache_control";
/// The same of a called function: OpenAI's client adds it to the answers that it reads, which are sent back.
const PARSED_ARGUMENTS: &str = "parsed_arguments";

/// What [`read_messages`] reads.
pub(super) const MESSAGES: Field = needed(
    "messages",
    Kind::List(&Kind::Object(&MESSAGE), 1, Most::ANY),
    "The conversation, the oldest message first.",
);

const MESSAGE: Shape = Shape {
    name: "ChatMessage",
    about: "A message of a chat.",
    fields: &[&[
        needed("role", Kind::Word(ROLE_WORDS), "Who speaks."),
        optional(
            "content",
            Kind::Either(&[
                Kind::TEXT,
                Kind::List(&Kind::Either(&[Kind::Object(&PART), Kind::Object(&REFUSAL_PART)]), 0, Most::ANY),
            ]),
            "What is said. Only an assistant's message may be without.",
        ),
        optional("tool_calls", Kind::List(&Kind::Object(&CALL), 0, Most::ANY), "Calls that the assistant made."),
        optional("tool_call_id", Kind::TEXT, "The call that a message of the role `tool` answers; needed there."),
        optional("name", Kind::TEXT, "Whose message it is, for templates that tell."),
        optional(REFUSAL, Kind::TEXT, "As answers have it: what an assistant said instead of `content`."),
        optional("reasoning", Kind::TEXT, "What the assistant thought."),
        optional("reasoning_content", Kind::TEXT, "The same, by its older name."),
        optional("annotations", Kind::Anything, "As answers have it; not looked at."),
        optional("parsed", Kind::Anything, "What OpenAI's client adds to answers that it parsed; not looked at."),
        optional("provider_specific_fields", Kind::Anything, "What LiteLLM adds to answers; not looked at."),
        optional("thinking_blocks", Kind::Anything, "The same."),
        optional("reasoning_details", Kind::Anything, "What OpenRouter adds to answers; not looked at."),
        optional(CACHE_CONTROL, Kind::Anything, "Anthropic's mark of what to keep; not looked at."),
    ]],
    unserved: &[&[("audio", &[], "spoken content"), ("function_call", &[], "the old form of calling functions")]],
};
const PART: Shape = Shape::new(
    "ContentPart",
    "A part of a message's content.",
    &[&[
        needed("type", Kind::Word(&["text"]), "Text alone is served."),
        needed("text", Kind::TEXT, "The text."),
        optional(CACHE_BREAKPOINT, Kind::Anything, "OpenAI's mark of what to keep; not looked at."),
        optional(CACHE_CONTROL, Kind::Anything, "Anthropic's mark of what to keep; not looked at."),
    ]],
);
const REFUSAL_PART: Shape = Shape::new(
    "RefusalPart",
    "What an assistant said instead of an answer; templates are shown it as a text.",
    &[&[
        needed("type", Kind::Word(&[REFUSAL]), "What it is."),
        needed(REFUSAL, Kind::TEXT, "The text."),
        optional(CACHE_CONTROL, Kind::Anything, "Anthropic's mark of what to keep; not looked at."),
    ]],
);
const CALL: Shape = Shape::new(
    "ToolCall",
    "A call that the assistant made.",
    &[&[
        optional("id", Kind::TEXT, "By which its result names it."),
        optional("index", Kind::COUNT, "As streams have it."),
        optional("type", Kind::Word(&["function"]), "What is called."),
        needed("function", Kind::Object(&CALLED), "The function and its arguments."),
    ]],
);
const CALLED: Shape = Shape::new(
    "CalledFunction",
    "A function and its arguments.",
    &[&[
        needed("name", Kind::TEXT, "The function's name."),
        needed("arguments", Kind::TEXT, ARGUMENTS),
        optional(PARSED_ARGUMENTS, Kind::Anything, "What OpenAI's client adds to calls that it parsed; not looked at."),
    ]],
);

/// Of the arguments of a call.
pub(super) const ARGUMENTS: &str = "A text that holds a JSON object. One that is none, as that of a call that was cut, is shown as `{\"INVALID_JSON\": TEXT}` to the model.";
/// The same, as errors say it.
pub(super) const A_JSON_OBJECT: &str = "a text that holds a JSON object";

/// The messages as the template sees them.
pub(crate) fn read_messages<'a>(fields: &mut Fields<'a>) -> Result<Vec<Value>, ApiError> {
    let allowed = "a list of at least one message";
    let Items(raws) = fields.need("messages", allowed)?;
    if raws.is_empty() {
        return Err(ApiError::invalid(fields.at("messages"), "an empty list", allowed));
    }
    let path = fields.at("messages");
    let one = |(index, raw): (usize, &&'a RawValue)| {
        let path = format!("{path}[{index}]");
        read_message(fields.within(path.clone(), raw)?, path, raw)
    };
    let messages: Vec<Value> = raws.iter().enumerate().map(one).collect::<Result<_, _>>()?;
    check_results(&messages, &path)?;
    Ok(messages)
}

/// Refuses results that answer nothing, as OpenAI does: such a chat has lost the message with the call. Where calls cannot be told by
/// their ids nothing is refused: a client may show them to the template without ids, or as the text of the message before.
fn check_results(messages: &[Value], path: &str) -> Result<(), ApiError> {
    let (mut made, mut may_be_any) = (HashSet::new(), false);
    for (index, message) in messages.iter().enumerate() {
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        match message["role"].as_str() {
            Some("tool") => {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                if !may_be_any && !made.contains(id) {
                    let reason = format!(
                        "is {}, and no message before it has a call of this `id` among its `tool_calls`: a result stands behind the call that it answers",
                        quoted(id)
                    );
                    return Err(ApiError::Conflict { param: format!("{path}[{index}].tool_call_id"), reason });
                }
            }
            Some("assistant") => {
                may_be_any = calls.is_empty() || calls.iter().any(|call| call["id"].as_str().is_none_or(str::is_empty));
                made.extend(calls.iter().filter_map(|call| call["id"].as_str()));
            }
            _ => may_be_any = false,
        }
    }
    Ok(())
}

fn read_message(mut fields: Fields<'_>, path: String, raw: &RawValue) -> Result<Value, ApiError> {
    let Some(role) = fields.one_of("role", ROLE_WORDS, ROLES)? else {
        return Err(ApiError::Missing { param: fields.at("role"), allowed: ROLES });
    };
    check_tool_calls(&mut fields)?;
    match fields.raw("content") {
        Some(content) => check_content(&fields, content, role == "assistant")?,
        // An answer that only called tools has none, nor one that ended while it thought.
        None if role == "assistant" => {}
        None => return Err(ApiError::Missing { param: fields.at("content"), allowed: CONTENT }),
    }
    if role == "tool" && fields.raw("tool_call_id").is_none() {
        return Err(ApiError::Missing {
            param: fields.at("tool_call_id"),
            allowed: "the `id` of the call that this answers",
        });
    }
    for name in ["name", "tool_call_id", "reasoning", "reasoning_content"] {
        fields.text(name)?;
    }
    let refusal = read_refusal(&mut fields, role)?;
    // Clients send back the answers they got, with all their empty fields.
    for table in MESSAGE.unserved {
        refuse_all(&mut fields, table)?;
    }
    for name in NOT_LOOKED_AT {
        fields.raw(name);
    }
    let may_have_more = fields.passes_unknown();
    fields.finish(&MESSAGE)?;
    let unreadable = |_| ApiError::invalid(path, "no valid Unicode", "JSON whose texts are valid Unicode");
    let mut message: Value = serde_json::from_str(raw.get()).map_err(unreadable)?;
    if may_have_more {
        MESSAGE.keep_known(&mut message);
    }
    if let Some(members) = message.as_object_mut() {
        members.retain(|name, value| !NOT_LOOKED_AT.contains(&name.as_str()) && !value.is_null());
        members.remove(REFUSAL);
        if let Some(refusal) = refusal {
            members.insert("content".to_owned(), refusal.into());
        }
        for part in members.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
            if part["type"] == REFUSAL {
                *part = serde_json::json!({ "type": "text", "text": part[REFUSAL].take() });
            }
        }
        // instructor makes such a list of every empty text; templates may look for a first part.
        let has_calls = members.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
        let says_nothing = !members.contains_key("content") && !has_calls;
        if says_nothing || members.get("content").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            members.insert("content".to_owned(), "".into());
        }
        for call in members.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) {
                function.retain(|name, _| name != PARSED_ARGUMENTS);
            }
        }
    }
    Ok(message)
}

/// What an assistant said instead of an answer. No template has a place of its own for it.
fn read_refusal(fields: &mut Fields<'_>, role: &str) -> Result<Option<String>, ApiError> {
    let Some(refusal) = fields.text(REFUSAL)?.filter(|refusal| !refusal.is_empty()) else { return Ok(None) };
    let says_more = fields.raw("content").is_some_and(|content| {
        let is_list = content.get().starts_with('[');
        !(content.get() == "\"\"" || (is_list && content.get()[1..].trim_start().starts_with(']')))
    });
    let reason = match role {
        "assistant" if !says_more => return Ok(Some(refusal)),
        "assistant" => "cannot go together with `content`: an answer is one or the other",
        _ => "is only allowed in a message of the role \"assistant\"",
    };
    Err(ApiError::Conflict { param: fields.at(REFUSAL), reason: reason.to_owned() })
}

fn check_content<'a>(fields: &Fields<'a>, content: &'a RawValue, is_assistants: bool) -> Result<(), ApiError> {
    if content.get().starts_with('"') {
        return serde_json::from_str::<String>(content.get())
            .map(drop)
            .map_err(|_| fields.wrong("content", content, CONTENT));
    }
    let Items(parts) = serde_json::from_str(content.get()).map_err(|_| fields.wrong("content", content, CONTENT))?;
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = fields.within(format!("{}[{index}]", fields.at("content")), part)?;
        let kind: String = part.need("type", PART_KINDS)?;
        let (text, shape) = match kind.as_str() {
            "text" => ("text", &PART),
            REFUSAL if is_assistants => (REFUSAL, &REFUSAL_PART),
            other => return Err(unfit(&part, other)),
        };
        part = part.spelled(shape)?;
        part.need::<String>(text, "a text")?;
        part.raw(CACHE_CONTROL);
        if kind == "text" {
            part.raw(CACHE_BREAKPOINT);
        }
        part.finish(shape)?;
    }
    Ok(())
}

/// Other parts of OpenAI's protocol and the peer's.
const UNSERVED_PARTS: &[&str] = &[
    "audio_embeds",
    "audio_url",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "input_image",
    "video_url",
];

/// Why a part is not taken: nobody has it yet, or nobody knows it.
fn unfit(part: &Fields<'_>, kind: &str) -> ApiError {
    let not_served = |what: &'static str| ApiError::not_served(part.at("type"), quoted(kind), PART_KINDS, what);
    match kind {
        "thinking" => not_served("thoughts as content (send what was thought as `reasoning`)"),
        kind if UNSERVED_PARTS.contains(&kind) => not_served("content that is not text"),
        kind => ApiError::invalid(part.at("type"), quoted(kind), PART_KINDS),
    }
}

fn check_tool_calls(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for mut call in fields.objects("tool_calls")?.unwrap_or_default() {
        call.text("id")?;
        call.count("index", told::COUNT)?;
        call.one_of("type", &["function"], "\"function\"")?;
        let Some(mut function) = call.object("function")? else {
            return Err(ApiError::Missing {
                param: call.at("function"),
                allowed: "an object with `name` and `arguments`",
            });
        };
        function.need::<String>("name", "a text")?;
        function.need::<String>("arguments", A_JSON_OBJECT)?;
        function.raw(PARSED_ARGUMENTS);
        function.finish(&CALLED)?;
        call.finish(&CALL)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages: &str, expected: &str) {
        let body = format!("{{\"messages\": {messages}}}");
        let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
        let param = match read_messages(&mut fields) {
            Ok(_) => String::new(),
            Err(
                ApiError::Invalid { param, .. }
                | ApiError::Missing { param, .. }
                | ApiError::NotServed { param, .. }
                | ApiError::Conflict { param, .. }
                | ApiError::Unknown { param, .. },
            ) => param,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(param, expected, "{messages}");
    }

    #[test]
    fn what_clients_send_is_read() {
        check(r#"[{"role": "user", "content": "hi"}]"#, "");
        check(r#"[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]"#, "");
        check(
            r#"[{"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null, "function_call": null,
                 "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                {"role": "tool", "tool_call_id": "1", "content": "5"}]"#,
            "",
        );
    }

    #[test]
    fn a_result_stands_behind_the_call_that_it_answers() {
        let call =
            r#"{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}"#;
        let result = |id: &str| format!(r#"{{"role": "tool", "tool_call_id": "{id}", "content": "5"}}"#);
        let user = r#"{"role": "user", "content": "hi"}"#;
        let chat = |messages: &[&str]| format!("[{}]", messages.join(","));
        check(&chat(&[user, call, &result("1"), user]), "");
        check(&chat(&[user, call, user, &result("1")]), ""); // it may come late
        check(&chat(&[&result("1"), user]), "messages[0].tool_call_id");
        check(&chat(&[user, &result("1")]), "messages[1].tool_call_id");
        check(&chat(&[user, call, &result("1"), &result("2")]), "messages[3].tool_call_id");
        check(&chat(&[user, &result("1"), call]), "messages[1].tool_call_id");
        // Calls that a client shows as text, or without ids.
        let shown = r#"{"role": "assistant", "content": "<tool_call>f</tool_call>"}"#;
        check(&chat(&[user, shown, &result("1"), &result("2")]), "");
        check(&chat(&[user, shown, user, &result("1")]), "messages[3].tool_call_id");
        check(&chat(&[user, &call.replace(r#""id": "1", "#, ""), &result("1")]), "");
    }

    #[test]
    fn no_parts_are_an_empty_text() {
        let body = r#"{"messages": [{"role": "user", "content": []}]}"#;
        let messages = read_messages(&mut Fields::of_body(body.as_bytes()).expect("an object")).expect("right");
        assert_eq!(messages, [serde_json::json!({ "role": "user", "content": "" })]);
    }

    #[test]
    fn a_refusal_is_what_the_assistant_said() {
        let read = |message: &str| {
            let body = format!(r#"{{"messages": [{message}]}}"#);
            let read = read_messages(&mut Fields::of_body(body.as_bytes()).expect("an object"));
            read.map(|messages| messages[0]["content"].clone()).map_err(|error| error.to_string())
        };
        let said = Ok(serde_json::json!("No."));
        assert_eq!(read(r#"{"role": "assistant", "content": null, "refusal": "No."}"#), said);
        assert_eq!(read(r#"{"role": "assistant", "content": "", "refusal": "No."}"#), said);
        assert_eq!(read(r#"{"role": "assistant", "content": "No.", "refusal": null}"#), said);
        let parts = read(r#"{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}"#);
        assert_eq!(parts, Ok(serde_json::json!([{ "type": "text", "text": "No." }])));
        check(r#"[{"role": "assistant", "content": "Yes.", "refusal": "No."}]"#, "messages[0].refusal");
        check(r#"[{"role": "user", "content": "", "refusal": "No."}]"#, "messages[0].refusal");
        check(
            r#"[{"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}]"#,
            "messages[0].content[0].type",
        );
    }

    #[test]
    fn an_answer_that_ended_while_it_thought_may_be_sent_back() {
        let body = r#"{"messages": [{"role": "assistant", "content": null, "reasoning": "hm", "thinking_blocks": [], "tool_calls": []}]}"#;
        let messages = read_messages(&mut Fields::of_body(body.as_bytes()).expect("an object")).expect("right");
        assert_eq!(
            messages,
            [serde_json::json!({ "role": "assistant", "content": "", "reasoning": "hm", "tool_calls": [] })]
        );
        check(
            r#"[{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}]"#,
            "",
        );
    }

    #[test]
    fn what_clients_add_to_answers_is_not_shown_to_templates() {
        let body = r#"{"messages": [{"role": "assistant", "content": null, "annotations": [], "parsed": {"a": 1},
            "provider_specific_fields": {"refusal": null}, "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}}]}]}"#;
        let messages = read_messages(&mut Fields::of_body(body.as_bytes()).expect("an object")).expect("right");
        let calls = serde_json::json!([{ "id": "1", "function": { "name": "f", "arguments": "{}" } }]);
        assert_eq!(messages, [serde_json::json!({ "role": "assistant", "tool_calls": calls })]);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        check(r#"[]"#, "messages");
        check(r#""hi""#, "messages");
        check(r#"[{"content": "hi"}]"#, "messages[0].role");
        check(r#"[{"role": "usr", "content": "hi"}]"#, "messages[0].role");
        check(r#"[{"role": "user"}]"#, "messages[0].content");
        check(r#"[{"role": "tool", "content": "5"}]"#, "messages[0].tool_call_id");
        check(r#"[{"role": "tool", "content": "5", "tool_call_id": null}]"#, "messages[0].tool_call_id");
        check(r#"[{"role": "user", "content": 5}]"#, "messages[0].content");
        check(r#"[{"role": "user", "content": "\ud800"}]"#, "messages[0].content");
        check(
            r#"[{"role": "user", "content": "hi"}, {"role": "user", "contnt": "hi", "content": ""}]"#,
            "messages[1].contnt",
        );
        check(
            r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]"#,
            "messages[0].content[0].type",
        );
        check(r#"[{"role": "user", "content": [{"type": "text"}]}]"#, "messages[0].content[0].text");
        let part = |kind: &str| {
            let body = format!(r#"{{"messages": [{{"role": "assistant", "content": [{{"type": "{kind}"}}]}}]}}"#);
            read_messages(&mut Fields::of_body(body.as_bytes()).expect("an object")).expect_err("wrong")
        };
        assert!(matches!(part("image_url"), ApiError::NotServed { .. }));
        assert!(part("thinking").to_string().contains("send what was thought as `reasoning`"));
        assert!(matches!(part("imgae_url"), ApiError::Invalid { .. }), "nobody will ever serve it");
        let called = |arguments: &str| {
            format!(
                r#"[{{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": {arguments}}}}}]}}]"#
            )
        };
        check(&called("{}"), "messages[0].tool_calls[0].function.arguments");
        let body = format!(r#"{{"messages": {}}}"#, called("{}"));
        let told = read_messages(&mut Fields::of_body(body.as_bytes()).expect("an object")).expect_err("no text");
        assert!(told.to_string().ends_with("is an object; allowed: a text that holds a JSON object"), "{told}");
        check(&called(r#""{\"cut\": ""#), "");
    }
}

//! Requests as clients send them. What is answered: `told`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pelton_text::GenerationDefaults;
use serde_json::{Value, json};

use super::*;
use crate::{
    error::ApiError,
    generate::{CallPiece, Part, Prompt, Request, Said, Whole},
};

mod told;

pub(super) use told::{events, finish, form, parsed, whole_text};

fn with(fields: Value) -> String {
    let mut body = json!({ "input": "hi" });
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body.to_string()
}

fn read(fields: Value) -> ResponsesRequest {
    ResponsesRequest::read(with(fields).as_bytes()).expect("right")
}

fn messages(request: &Request) -> Value {
    let (Prompt::Chat { input, .. } | Prompt::LongChat { input, .. }) = &request.prompts[0] else { panic!("a chat") };
    input.messages.clone().into()
}

fn refused(fields: Value) -> String {
    let read = ResponsesRequest::read(with(fields).as_bytes());
    match read.and_then(|mut asked| asked.request(&[])) {
        Ok(_) => String::new(),
        Err(
            ApiError::Invalid { param, .. }
            | ApiError::Missing { param, .. }
            | ApiError::NotServed { param, .. }
            | ApiError::Conflict { param, .. }
            | ApiError::Unknown { param, .. },
        ) => param,
        Err(other) => other.to_string(),
    }
}

fn kept(items: &[Item]) -> Vec<Value> {
    items.iter().map(|item| serde_json::from_str(item.get()).expect("JSON")).collect()
}

const CALL: &str = r#"{"type": "function_call", "id": null, "call_id": "1", "name": "add", "arguments": "{\"a\": 5}"}"#;

fn call() -> Value {
    serde_json::from_str(CALL).expect("JSON")
}

#[test]
fn a_conversation_becomes_a_chat() {
    let mut asked = read(json!({
        "instructions": "Be brief.",
        "input": [
            { "role": "user", "content": "What is 5 + 5?" },
            { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "Hm." }],
              "encrypted_content": null, "status": null },
            { "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
              "content": [{ "type": "output_text", "text": "Wait.", "annotations": [], "logprobs": [] }] },
            call(),
            { "type": "function_call_output", "call_id": "1", "output": "10" },
            { "role": "user", "content": [{ "type": "input_text", "text": "Well?" }] },
        ],
    }));
    let expected = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "What is 5 + 5?" },
        { "role": "assistant", "content": "Wait.", "reasoning_content": "Hm.", "tool_calls": [
            { "id": "1", "type": "function", "function": { "name": "add", "arguments": "{\"a\": 5}" } }] },
        { "role": "tool", "content": "10", "tool_call_id": "1" },
        { "role": "user", "content": "Well?" },
    ]);
    let request = asked.request(&[]).expect("right");
    assert_eq!(messages(&request), expected);
    // What is kept of it reads as the same.
    let mut again = read(json!({ "instructions": "Be brief.", "input": kept(&asked.items) }));
    assert_eq!(messages(&again.request(&[]).expect("right")), expected);
    let ids: Vec<Value> = kept(&asked.items).iter().map(|item| item["id"].clone()).collect();
    assert!(ids.iter().all(|id| id.as_str().is_some_and(|id| !id.is_empty())), "{ids:?}");
    assert_eq!(ids[2], "msg_1");
}

#[test]
fn a_call_has_any_id_or_none() {
    // B:A5
    for id in [Value::Null, "".into(), "fc_1".into(), "mcp_1".into(), "whatever".into()] {
        let mut item = call();
        item["id"] = id.clone();
        let output = json!({ "type": "function_call_output", "call_id": "1", "output": "10", "id": id });
        assert_eq!(refused(json!({ "input": [item, output] })), "", "{id}");
    }
}

#[test]
fn what_openais_client_writes_of_an_answer_can_be_sent_back() {
    let with = |fields: Value| {
        let mut item = call();
        item.as_object_mut().expect("an object").extend(fields.as_object().cloned().unwrap_or_default());
        let output = json!({ "type": "function_call_output", "call_id": "1", "output": "10" });
        refused(json!({ "input": [item, output] }))
    };
    let nothing =
        json!({ "async_": null, "async": null, "caller": null, "namespace": null, "created_by": null, "id": null });
    assert_eq!(with(nothing), "");
    assert_eq!(with(json!({ "caller": { "type": "direct" }, "async": false })), "");
    assert_eq!(with(json!({ "async": true })), "input[0].async");
    assert_eq!(with(json!({ "namespace": "a" })), "input[0].namespace");
}

#[test]
fn an_output_has_what_openais_client_knows_of_it() {
    let with = |fields: Value| {
        let mut output = json!({ "type": "function_call_output", "call_id": "1", "output": "10" });
        output.as_object_mut().expect("an object").extend(fields.as_object().cloned().unwrap_or_default());
        refused(json!({ "input": [call(), output] }))
    };
    assert_eq!(with(json!({ "caller": null, "name": null, "namespace": null })), "");
    assert_eq!(with(json!({ "caller": { "type": "direct" }, "name": "add" })), "");
    assert_eq!(with(json!({ "caller": { "type": "program", "caller_id": "1" } })), "input[1].caller");
    assert_eq!(with(json!({ "namespace": "a" })), "input[1].namespace");
    assert_eq!(with(json!({ "name": 5 })), "input[1].name");
}

#[test]
fn what_the_peers_clients_send_is_known() {
    let nothing = json!({ "request_id": null, "kv_transfer_params": null, "vllm_xargs": {}, "mm_processor_kwargs": {},
                          "media_io_kwargs": {}, "return_weight_versions": false });
    assert_eq!(refused(nothing), "");
    for (name, asked) in
        [("request_id", json!("a")), ("vllm_xargs", json!({ "a": 1 })), ("mm_processor_kwargs", json!({ "a": 1 }))]
    {
        let error = ResponsesRequest::read(with(json!({ name: asked })).as_bytes()).err().expect("not served");
        assert!(matches!(&error, ApiError::NotServed { param, .. } if param == name), "{error}");
    }
}

#[test]
fn the_templates_own_variables_go_before_an_effort() {
    let mut asked =
        read(json!({ "reasoning": { "effort": "none" }, "chat_template_kwargs": { "thinking": true, "a": 1 } }));
    let request = asked.request(&[]).expect("right");
    let Prompt::Chat { input, .. } = &request.prompts[0] else { panic!("a chat") };
    assert_eq!(Value::from(input.kwargs.clone()), json!({ "thinking": true, "a": 1, "reasoning_effort": "none" }));
    assert_eq!(refused(json!({ "chat_template_kwargs": [] })), "chat_template_kwargs");
}

#[test]
fn tokens_to_be_told_need_what_responses_call_log_probabilities() {
    let told = |fields: Value| match ResponsesRequest::read(with(fields).as_bytes()) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let expected = "`logprob_token_ids` is only allowed together with `include`: [\"message.output_text.logprobs\"]";
    assert_eq!(told(json!({ "logprob_token_ids": [1] })), expected);
    assert_eq!(told(json!({ "logprob_token_ids": [1], "include": ["message.output_text.logprobs"] })), "");
    assert_eq!(told(json!({ "logprob_token_ids": [] })), "");
}

#[test]
fn a_personality_is_known() {
    assert_eq!(refused(json!({ "personality": null })), "");
    let error =
        ResponsesRequest::read(with(json!({ "personality": "friendly" })).as_bytes()).err().expect("not served");
    assert!(matches!(error, ApiError::NotServed { .. }), "{error}");
}

#[test]
fn a_wrong_schema_is_named_by_its_place_in_the_request() {
    let fault = |param: &str| ApiError::WrongGrammar { param: param.to_owned(), reason: "it is wrong".to_owned() };
    let named = renamed(fault("tools[3].function.parameters/properties/a")).to_string();
    assert_eq!(named, "`tools[3].parameters/properties/a` cannot be used: it is wrong");
    let misplaced = ApiError::Conflict { param: "messages[3].role".to_owned(), reason: "is wrong".to_owned() };
    assert_eq!(renamed(misplaced).to_string(), "`input` is wrong");
    assert!(renamed(fault("text.format.schema/type")).to_string().starts_with("`text.format.schema/type`"));
}

#[test]
fn what_a_client_adds_to_answers_is_not_kept() {
    let mut called = call();
    called["parsed_arguments"] = json!({ "a": 5 });
    let text = json!({ "type": "output_text", "text": "{}", "parsed": {} });
    let output = json!({ "type": "function_call_output", "call_id": "1", "output": "10" });
    let asked = read(json!({ "input": [called, output, { "role": "assistant", "content": [text] }] }));
    let [called, _, said] = &kept(&asked.items)[..] else { panic!("three items") };
    assert_eq!(called.get("parsed_arguments"), None);
    assert_eq!(said["content"][0].get("parsed"), None);
}

#[test]
fn a_response_goes_on_with_what_was_kept() {
    let first = read(json!({ "input": [{ "role": "user", "content": "5 + 5?" }] }));
    let answer = {
        let start = CallPiece::Start { index: 0, id: "1".into(), name: "add".into() };
        let arguments = CallPiece::Arguments { index: 0, delta: "{}".into() };
        Whole { said: Said::of([start, arguments].map(Part::Call)), ..whole_text("") }
    };
    let stored = stored(&first.items, form().whole(answer));
    let output = json!([{ "type": "function_call_output", "call_id": "1", "output": "10" }]);
    let mut second = read(json!({ "input": output, "instructions": "New.", "previous_response_id": "resp_1" }));
    assert_eq!(second.previous.as_deref(), Some("resp_1"));
    let request = second.request(&stored.conversation()).expect("right");
    let roles: Vec<Value> =
        messages(&request).as_array().expect("a list").iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
}

#[test]
fn what_is_wrong_is_named_by_its_path() {
    let tool = json!({ "type": "function", "name": "f", "parameters": {} });
    let said = |content: Value| json!({ "input": [{ "role": "user", "content": content }] });
    let some = |mode: &str, name: &str| json!({ "type": "allowed_tools", "mode": mode, "tools": [{ "type": "function", "name": name }] });
    for (fields, expected) in [
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": [{}] }), "input[0].type"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0].type"),
        (json!({ "input": [{ "role": "tool", "content": "x" }] }), "input[0].role"),
        (said(json!([{ "type": "input_image", "image_url": "x" }])), "input[0].content[0].type"),
        (said(json!([{ "type": "input_text" }])), "input[0].content[0].text"),
        (json!({ "input": [{ "role": "user", "content": "x", "contnt": 1 }] }), "input[0].contnt"),
        (json!({ "input": [{ "type": "function_call", "name": "f", "arguments": "{}" }] }), "input[0].call_id"),
        (
            json!({ "input": [{ "type": "function_call", "call_id": "1", "name": "f", "arguments": {} }] }),
            "input[0].arguments",
        ),
        (json!({ "input": [call()] }), "input"),
        (json!({ "input": [{ "type": "function_call_output", "call_id": "2", "output": "x" }] }), "input[0].call_id"),
        (json!({ "service_tier": "turbo" }), "service_tier"),
        (json!({ "max_tokens": 5 }), "max_tokens"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "n": 2 }), "n"),
        (json!({ "response_format": { "type": "json_object" } }), "response_format"),
        (json!({ "truncation": "middle" }), "truncation"),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "prompt": { "id": "x" } }), "prompt"),
        (json!({ "include": ["file_search_call.results"] }), "include"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "background": true, "store": false }), "background"),
        (json!({ "text": { "format": { "type": "yaml" } } }), "text.format.type"),
        (json!({ "text": { "format": { "type": "json_schema", "name": "x" } } }), "text.format.schema"),
        (json!({ "text": { "verbosity": "terse" } }), "text.verbosity"),
        (
            json!({ "text": { "format": { "type": "json_object" } }, "structured_outputs": { "regex": "a" } }),
            "structured_outputs.regex",
        ),
        (json!({ "reasoning": { "effort": "huge" } }), "reasoning.effort"),
        (json!({ "reasoning": { "summary": "concise" } }), "reasoning.summary"),
        (json!({ "reasoning": { "generate_summary": "concise" } }), "reasoning.generate_summary"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (
            json!({ "tools": [{ "type": "function", "name": "f", "parameters": { "type": ["array", "null"] } }] }),
            "tools[0].parameters",
        ),
        (json!({ "tools": [tool, tool] }), "tools[1].name"),
        (json!({ "tools": [tool], "tool_choice": { "type": "function", "name": "g" } }), "tool_choice.name"),
        (json!({ "tools": [tool], "tool_choice": { "type": "custom" } }), "tool_choice.type"),
        (json!({ "tools": [tool], "tool_choice": { "type": "allowed_tools" } }), "tool_choice.mode"),
        (json!({ "tools": [tool], "tool_choice": some("none", "f") }), "tool_choice.mode"),
        (json!({ "tools": [tool], "tool_choice": some("auto", "g") }), "tool_choice.tools[0].name"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "metadata": { "a": 1 } }), "metadata"),
    ] {
        assert_eq!(refused(fields.clone()), expected, "{fields}");
    }
}

#[test]
fn what_the_official_client_sends_passes_and_is_repeated() {
    let schema = json!({ "type": "object" });
    let mut asked = read(json!({
        "model": "demo", "instructions": "Be brief.", "max_output_tokens": 5, "temperature": 0.7, "stream": true, "store": false,
        "parallel_tool_calls": false, "truncation": "disabled", "service_tier": "auto", "user": "me", "metadata": { "a": "b" },
        "reasoning": { "effort": "low", "summary": "auto" }, "include": ["reasoning.encrypted_content"],
        "text": { "format": { "type": "json_schema", "name": "x", "schema": schema, "strict": true }, "verbosity": "medium" },
        "tools": [{ "type": "function", "name": "f", "description": null, "parameters": schema, "strict": true }],
        "tool_choice": { "type": "function", "name": "f" }, "stream_options": { "include_obfuscation": false },
    }));
    asked.fill_in(false, &GenerationDefaults { top_p: Some(0.5), ..GenerationDefaults::default() });
    let shown = &asked.asked;
    assert_eq!((&shown["temperature"], &shown["top_p"], &shown["store"]), (&json!(0.7), &json!(0.5), &json!(false)));
    assert_eq!(shown["text"]["format"]["schema"], schema);
    assert_eq!(
        shown["tools"][0],
        json!({ "type": "function", "name": "f", "description": null, "parameters": schema, "strict": true })
    );
    assert_eq!(shown["tool_choice"], json!({ "type": "function", "name": "f" }));
    assert_eq!(shown["metadata"], json!({ "a": "b" }));
    let request = asked.request(&[]).expect("right");
    assert_eq!(request.options.max_tokens, Some(5));
    assert_eq!(request.options.constrained.map(|it| it.param).as_deref(), Some("text.format.schema"));
}

#[test]
fn a_conversation_that_is_too_long_may_lose_its_beginning_if_it_is_said_so() {
    let before =
        read(json!({ "input": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }] }));
    for (word, expected) in [(None, None), (Some("disabled"), None), (Some("auto"), Some(vec![0, 3]))] {
        let mut asked = read(json!({ "truncation": word, "instructions": "Be brief.", "max_output_tokens": 9 }));
        assert_eq!(asked.asked["truncation"], word.unwrap_or("disabled"));
        let request = asked.request(&before.items).expect("right");
        assert_eq!(messages(&request).as_array().map(Vec::len), Some(4));
        let shortening = match &request.prompts[0] {
            Prompt::LongChat { shortening, .. } => Some(shortening.clone()),
            _ => None,
        };
        assert_eq!(shortening.as_ref().map(|it| it.starts.clone()), expected, "{word:?}");
        if let Some(shortening) = shortening {
            assert_eq!((shortening.always, shortening.answer), (vec![true, false, false, false], Some(9)));
        }
    }
}

#[test]
fn verbosity_is_told_to_the_template_and_repeated() {
    for (word, shown) in [(None, "medium"), (Some("medium"), "medium"), (Some("low"), "low"), (Some("high"), "high")] {
        let mut asked = read(json!({ "text": { "verbosity": word } }));
        assert_eq!(asked.asked["text"], json!({ "format": { "type": "text" }, "verbosity": shown }));
        let request = asked.request(&[]).expect("right");
        let Prompt::Chat { input, .. } = &request.prompts[0] else { panic!("a chat") };
        assert_eq!(input.verbosity.as_deref(), word);
    }
    assert_eq!(read(json!({})).asked["text"]["verbosity"], "medium");
    let refused = ApiError::Conflict { param: "verbosity".to_owned(), reason: String::new() };
    assert!(matches!(renamed(refused), ApiError::Conflict { param, .. } if param == "text.verbosity"));
}

#[test]
fn thoughts_are_as_detailed_as_can_be_and_nothing_sums_them_up() {
    for summary in [Value::Null, "auto".into(), "detailed".into()] {
        let asked = read(json!({ "reasoning": { "effort": "low", "summary": summary } }));
        assert_eq!(asked.asked["reasoning"], json!({ "effort": "low", "summary": null }));
    }
    let body = with(json!({ "reasoning": { "summary": "concise" } }));
    let refused = ResponsesRequest::read(body.as_bytes()).err().expect("refused").to_string();
    assert!(
        refused.starts_with("`reasoning.summary` is the text \"concise\"; allowed: \"auto\" or \"detailed\""),
        "{refused}"
    );
}

#[test]
fn a_stream_in_the_background_is_asked_for_by_both() {
    let asked = read(json!({ "background": true, "stream": true }));
    assert!(asked.is_background && asked.is_stream);
    assert_eq!(refused(json!({ "background": true, "stream": true, "store": false })), "background");
}

fn stored(input: &[Item], done: Done) -> Arc<store::Packed> {
    let store = Store::new(StoreLimits { count: 1, bytes: 1 << 20, lifetime: Duration::from_secs(1) });
    let now = Instant::now();
    store.keep("x", 1, Stored::new(Value::Null, input.to_vec(), Vec::new()), done, now);
    store.get("x", 1, now).expect("it was kept")
}

//! Requests as clients send them, and streams against whole messages.

use bytes::BytesMut;
use pelton_engine::Usage as AnswerUsage;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{message::Thoughts, *};
use crate::{
    api::stream::Events as _,
    error::ApiError,
    generate::{
        CallPiece, Delta, Demand, Ending, Finish, Part, Prompt, Said, StopCause, Sum, ThoughtLimit, ToolReading,
    },
};

fn with(fields: Value) -> String {
    let mut body = json!({ "max_tokens": 2000, "messages": [{ "role": "user", "content": "hi" }] });
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body.to_string()
}

fn read(fields: Value) -> MessagesRequest {
    MessagesRequest::read(with(fields).as_bytes()).expect("right")
}

fn input(request: &MessagesRequest) -> &pelton_text::ChatInput {
    let Prompt::Chat { input, .. } = &request.request.prompts[0] else { panic!("a chat") };
    input
}

fn refused(fields: Value) -> String {
    match MessagesRequest::read(with(fields).as_bytes()) {
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

#[test]
fn a_conversation_becomes_a_chat() {
    let asked = read(json!({
        "system": [{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }],
        "messages": [
            { "role": "user", "content": "What is 5 + 5?" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "Hm.", "signature": "x" },
                { "type": "text", "text": "Wait.", "citations": null },
                { "type": "tool_use", "id": "1", "name": "add", "input": { "b": 5, "a": 5 }, "caller": { "type": "direct" }, "toolset_name": null },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "1", "is_error": true, "content": [{ "type": "text", "text": "no" }] },
                { "type": "text", "text": "Well?" },
            ] },
        ],
        "tools": [{ "name": "add", "description": "Adds.", "input_schema": { "type": "object" }, "type": "custom" }],
        "tool_choice": { "type": "auto", "disable_parallel_tool_use": true },
    }));
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "What is 5 + 5?" },
        { "role": "assistant", "content": "Wait.", "reasoning_content": "Hm.", "tool_calls": [
            { "id": "1", "type": "function", "function": { "name": "add", "arguments": "{\"b\":5,\"a\":5}" } }] },
        { "role": "tool", "tool_call_id": "1",
          "content": "Error: no" },
        { "role": "user", "content": "Well?" },
    ]);
    let chat = input(&asked);
    assert_eq!(Value::from(chat.messages.clone()), messages);
    let function = json!({ "name": "add", "description": "Adds.", "parameters": { "type": "object" } });
    assert_eq!(chat.tools, Some(vec![json!({ "type": "function", "function": function })]));
    assert!(chat.add_generation_prompt && !chat.continue_final_message);
    assert_eq!(asked.request.tools.as_ref().map(|tools| tools.reading), Some(ToolReading::Single));
    assert_eq!(asked.request.options.keep, None);
}

#[test]
fn a_system_speaks_in_the_midst_of_a_conversation() {
    let block =
        json!({ "type": "text", "text": "Now in French.", "cache_control": { "type": "ephemeral", "ttl": "1h" } });
    let asked = read(json!({ "messages": [
        { "role": "user", "content": "hi" },
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Well?" },
        { "role": "assistant", "content": "I am." },
        { "role": "system", "content": [block] },
    ] }));
    let messages = json!([
        { "role": "user", "content": "hi" },
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Well?" },
        { "role": "assistant", "content": "I am." },
        { "role": "system", "content": "Now in French." },
    ]);
    assert_eq!(Value::from(input(&asked).messages.clone()), messages);
    assert!(input(&asked).add_generation_prompt, "what a system says last is answered");
    assert_eq!(asked.request.options.keep, Some(std::time::Duration::from_secs(3600)));
    let said = |message: Value| refused(json!({ "messages": [message] }));
    assert_eq!(said(json!({ "role": "system" })), "messages[0].content");
    assert_eq!(said(json!({ "role": "system", "content": [{ "type": "image" }] })), "messages[0].content[0].type");
    assert_eq!(said(json!({ "role": "developer", "content": "hi" })), "messages[0].role");
    // It speaks in the place of no result.
    let call = json!({ "role": "assistant", "content": [{ "type": "tool_use", "id": "1", "name": "f", "input": {} }] });
    let unanswered =
        json!({ "messages": [{ "role": "user", "content": "hi" }, call, { "role": "system", "content": "x" }] });
    assert_eq!(refused(unanswered), "messages[1].content[0].id");
    let misplaced = ApiError::Conflict { param: "messages[3].role".to_owned(), reason: "is wrong".to_owned() };
    assert_eq!(renamed(misplaced).to_string(), "`messages` is wrong");
}

#[test]
fn a_last_message_of_the_models_is_continued() {
    let turns = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "I am" }]);
    let asked = read(json!({ "messages": turns }));
    assert!(!input(&asked).add_generation_prompt && input(&asked).continue_final_message);
}

#[test]
fn options_have_anthropics_names() {
    let asked = read(json!({
        "temperature": 0.5, "top_k": 5, "top_p": 0.5, "stop_sequences": ["a"], "metadata": { "user_id": "me" }, "stream": true,
        "system": [{ "type": "text", "text": "x", "cache_control": { "type": "ephemeral", "ttl": "1h" } }],
        "output_config": { "format": { "type": "json_schema", "schema": { "type": "object" } } },
        "service_tier": "auto", "container": null, "mcp_servers": [],
    }));
    let options = &asked.request.options;
    assert_eq!((options.temperature, options.top_k, options.top_p), (Some(0.5), Some(5), Some(0.5)));
    assert_eq!((&options.stop[..], options.user.as_deref()), (&["a".to_owned()][..], Some("me")));
    assert_eq!(options.keep, Some(std::time::Duration::from_secs(3600)));
    assert_eq!(options.constrained.as_ref().map(|it| it.param.as_str()), Some("output_config.format.schema"));
    assert!(asked.is_stream && asked.request.tools.is_none());
}

#[test]
fn thinking_is_off_unless_it_is_asked_for() {
    let thinks = |fields: Value| {
        let asked = read(fields);
        let kwargs = &input(&asked).kwargs;
        assert_eq!(kwargs["enable_thinking"], kwargs["thinking"]);
        (asked.thoughts, kwargs["enable_thinking"].clone(), kwargs.get("thinking_budget").cloned())
    };
    assert_eq!(thinks(json!({})), (Thoughts::Hidden, false.into(), None));
    assert_eq!(thinks(json!({ "thinking": { "type": "disabled" } })), (Thoughts::Hidden, false.into(), None));
    assert_eq!(thinks(json!({ "thinking": { "type": "adaptive" } })), (Thoughts::Told, true.into(), None));
    let enabled = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } });
    assert_eq!(thinks(enabled), (Thoughts::Told, true.into(), Some(1024.into())));
    let silent = json!({ "thinking": { "type": "adaptive", "display": "omitted" } });
    assert_eq!(thinks(silent), (Thoughts::Omitted, true.into(), None));
    // How hard says whether, where nothing else does.
    let effort = |effort: &str| json!({ "output_config": { "effort": effort } });
    assert_eq!(thinks(effort("high")), (Thoughts::Hidden, true.into(), None));
    assert_eq!(thinks(effort("none")), (Thoughts::Hidden, false.into(), None));
    let disabled = json!({ "thinking": { "type": "disabled" }, "output_config": { "effort": "high" } });
    assert_eq!(thinks(disabled), (Thoughts::Hidden, false.into(), None));
}

#[test]
fn a_result_that_is_an_error_says_so_and_turns_that_follow_each_other_are_parted_by_a_blank_line() {
    let call = json!({ "role": "assistant", "content": [{ "type": "tool_use", "id": "1", "name": "f", "input": {} }] });
    let told = |content: Value| {
        let result = json!({ "type": "tool_result", "tool_use_id": "1", "is_error": true, "content": content });
        let users = ["a", "b"].map(|text| json!({ "role": "user", "content": text }));
        let turns = json!([users[0], users[1], call, { "role": "user", "content": [result] }]);
        input(&read(json!({ "messages": turns }))).messages.clone()
    };
    let part = |text: &str| json!({ "type": "text", "text": text });
    assert_eq!(told(json!("no"))[0]["content"], "a\n\nb");
    assert_eq!(told(json!("no"))[2]["content"], "Error: no");
    assert_eq!(told(json!([part("no"), part("way")]))[2]["content"], json!([part("Error: no"), part("way")]));
    assert_eq!(told(json!([]))[2]["content"], "Error:");
}

#[test]
fn the_templates_own_variables_go_before_what_thinking_says() {
    let kwargs = |fields: Value| Value::from(input(&read(fields)).kwargs.clone());
    let asked = json!({ "chat_template_kwargs": { "enable_thinking": true, "a": 1 } });
    assert_eq!(kwargs(asked), json!({ "enable_thinking": true, "a": 1 }));
    let asked = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 },
                        "chat_template_kwargs": { "thinking": false, "thinking_budget": 5 } });
    assert_eq!(kwargs(asked), json!({ "thinking": false, "thinking_budget": 5 }));
    assert_eq!(refused(json!({ "chat_template_kwargs": [] })), "chat_template_kwargs");
}

#[test]
fn what_the_peers_clients_send_is_known() {
    let nothing =
        json!({ "request_id": null, "kv_transfer_params": null, "vllm_xargs": {}, "mm_processor_kwargs": {} });
    assert_eq!(refused(nothing), "");
    for (name, asked) in
        [("request_id", json!("a")), ("kv_transfer_params", json!({})), ("media_io_kwargs", json!({ "a": 1 }))]
    {
        let error = MessagesRequest::read(with(json!({ name: asked })).as_bytes()).expect_err("not served");
        assert!(matches!(&error, ApiError::NotServed { param, .. } if param == name), "{error}");
    }
    let count = json!({ "messages": [{ "role": "user", "content": "hi" }], "vllm_xargs": { "a": 1 } }).to_string();
    assert!(matches!(CountRequest::read(count.as_bytes()), Err(ApiError::NotServed { .. })));
}

#[test]
fn a_budget_of_thoughts_is_a_limit() {
    let limit = |thinking: Value| read(json!({ "thinking": thinking })).request.options.thoughts;
    let expected = ThoughtLimit { tokens: 1024, param: "thinking.budget_tokens".to_owned() };
    assert_eq!(limit(json!({ "type": "enabled", "budget_tokens": 1024 })), Some(expected));
    assert_eq!((limit(json!({ "type": "adaptive" })), limit(json!({ "type": "disabled" }))), (None, None));
}

#[test]
fn a_call_can_be_demanded() {
    let tool = json!({ "name": "f", "input_schema": { "type": "object" } });
    let demand = |choice: Value| {
        let asked = read(json!({ "tools": [tool], "tool_choice": choice }));
        asked.request.tools.map(|tools| (tools.demand, tools.reading))
    };
    assert_eq!(demand(json!({ "type": "any" })), Some((Demand::Any, ToolReading::Parallel)));
    let one = json!({ "type": "tool", "name": "f", "disable_parallel_tool_use": true });
    assert_eq!(demand(one), Some((Demand::Named("f".into()), ToolReading::Single)));
    assert_eq!(demand(json!({ "type": "none" })), None);
}

#[test]
fn what_is_wrong_is_named_by_its_path() {
    let tool = json!({ "name": "f", "input_schema": {} });
    let said = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    let answered = |block: Value| json!({ "messages": [{ "role": "assistant", "content": [block] }] });
    for (fields, expected) in [
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "max_tokens": "5" }), "max_tokens"),
        (json!({ "max_token": 5 }), "max_token"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "developer", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (said(json!(5)), "messages[0].content"),
        (said(json!([{ "type": "image", "source": {} }])), "messages[0].content[0].type"),
        (said(json!([{ "type": "text" }])), "messages[0].content[0].text"),
        (said(json!([{ "type": "text", "text": "x", "txt": 1 }])), "messages[0].content[0].txt"),
        (said(json!([{ "type": "tool_result", "tool_use_id": "1" }])), "messages[0].content[0].tool_use_id"),
        (
            said(json!([{ "type": "text", "text": "x", "cache_control": { "type": "eternal" } }])),
            "messages[0].content[0].cache_control.type",
        ),
        (answered(json!({ "type": "tool_use", "id": "1", "name": "f", "input": [] })), "messages[0].content[0].input"),
        (answered(json!({ "type": "tool_use", "id": "1", "name": "f", "input": {} })), "messages"),
        (answered(json!({ "type": "redacted_thinking", "data": "x" })), "messages[0].content[0].type"),
        (json!({ "system": [{ "type": "image" }] }), "system[0].type"),
        (json!({ "tools": [{ "name": "f" }] }), "tools[0].input_schema"),
        (json!({ "tools": [{ "name": "f", "input_schema": { "enum": [1] } }] }), "tools[0].input_schema"),
        (json!({ "tools": [{ "name": "f g", "input_schema": {} }] }), "tools[0].name"),
        (json!({ "tools": [{ "type": "bash_20250124", "name": "bash" }] }), "tools[0].type"),
        (json!({ "tools": [tool, tool] }), "tools[1].name"),
        (json!({ "tools": [tool], "tool_choice": { "type": "tool", "name": "g" } }), "tool_choice.name"),
        (json!({ "tools": [tool], "tool_choice": "auto" }), "tool_choice"),
        (json!({ "tool_choice": { "type": "any" } }), "tool_choice"),
        (json!({ "thinking": { "type": "enabled" } }), "thinking.budget_tokens"),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 1000 } }), "thinking.budget_tokens"),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 2000 } }), "thinking.budget_tokens"),
        (json!({ "output_config": { "format": { "type": "json_schema" } } }), "output_config.format.schema"),
        (json!({ "mcp_servers": [{}] }), "mcp_servers"),
        (json!({ "thread": { "type": "create" } }), "thread"),
        (json!({ "workspace_id": "x" }), "workspace_id"),
        (json!({ "metadata": { "user": "x" } }), "metadata.user"),
        (json!({ "stop": ["x"] }), "stop"),
    ] {
        assert_eq!(refused(fields.clone()), expected, "{fields}");
    }
}

#[test]
fn what_is_counted_is_what_would_be_asked() {
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "system": "Be brief." });
    let counted = CountRequest::read(body.to_string().as_bytes()).expect("right");
    let Prompt::Chat { input: counted, .. } = counted.prompt else { panic!("a chat") };
    assert_eq!(counted.messages, input(&read(json!({ "system": "Be brief." }))).messages);
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 5 });
    assert!(CountRequest::read(body.to_string().as_bytes()).is_err());
}

#[test]
fn errors_have_anthropics_kinds() {
    for (error, status, kind) in [
        (ApiError::invalid("x", "y", "z"), 400, "invalid_request_error"),
        (ApiError::Unauthorized, 401, "authentication_error"),
        (ApiError::UnknownModel { asked: "x".into(), served: "y".into() }, 404, "not_found_error"),
        (ApiError::BodyTooLarge { limit: 5 }, 413, "request_too_large"),
        (ApiError::TextQueueFull, 429, "rate_limit_error"),
        (ApiError::Internal { log: "secret".into() }, 500, "api_error"),
        (ApiError::Unavailable { reason: "loading".into(), retry_after_s: 1 }, 529, "overloaded_error"),
        (ApiError::DeadlineExceeded { allowed: std::time::Duration::from_secs(1) }, 504, "timeout_error"),
    ] {
        let body = ErrorBody::new(&error, "req_1");
        assert_eq!(body.status.as_u16(), status);
        let expected =
            json!({ "type": "error", "error": { "type": kind, "message": error.to_string() }, "request_id": "req_1" });
        assert_eq!(serde_json::to_value(&body).expect("plain"), expected);
    }
}

#[test]
fn who_asks_for_a_thread_is_told_to_go_on_without() {
    let error = ApiError::not_served("thread", "an object", "null", "keeping a conversation");
    let body = serde_json::to_value(ErrorBody::new(&error, "req_1")).expect("plain");
    let details = json!({ "error_code": "thread_unsupported_request", "unsupported": ["thread"] });
    assert_eq!(body["error"]["details"], details);
}

fn form() -> MessageForm {
    let (id, model) = ("msg_1".to_owned(), "demo".to_owned());
    MessageForm { id, model, thoughts: Thoughts::Told, max_tokens: 5, prompt: 3, request_id: "1".to_owned() }
}

fn finish(ending: Ending, has_calls: bool) -> Delta {
    let usage = AnswerUsage { prompt: 3, cached: 2, completion: 5 };
    let finish = Finish { ending, has_calls, usage, reasoning_tokens: None, explanation: None };
    Delta { finish: Some(finish), ..Delta::default() }
}

fn events(deltas: Vec<Vec<Delta>>) -> Vec<Value> {
    events_in(form(), deltas)
}

/// The values of a stream's events, each of which is called by its type.
fn events_in(form: MessageForm, deltas: Vec<Vec<Delta>>) -> Vec<Value> {
    let (mut events, mut out) = (MessageEvents::new(form), BytesMut::new());
    deltas.into_iter().for_each(|deltas| events.deltas(deltas, &mut out));
    events.end(&mut out);
    let text = String::from_utf8(out.to_vec()).expect("UTF-8");
    let event = |event: &str| {
        let (name, data) =
            event.strip_prefix("event: ").and_then(|event| event.split_once("\ndata: ")).expect("a name");
        let value: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(value["type"], name);
        value
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// What a client puts together.
fn put_together(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut blocks: Vec<Value> = Vec::new();
    let mut open = None;
    for event in &events[1..] {
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert_eq!((open, &event["index"]), (None, &json!(blocks.len())));
                open = Some(String::new());
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert_eq!(event["index"], blocks.len() - 1);
                let (arguments, block) = (open.as_mut().expect("open"), blocks.last_mut().expect("one"));
                let delta = event["delta"].as_object().expect("an object");
                for (name, value) in delta.iter().filter(|(name, _)| *name != "type") {
                    let grows = if name == "partial_json" { "input_json" } else { name.as_str() };
                    assert_eq!(delta["type"], format!("{grows}_delta"));
                    let more = value.as_str().expect("a text");
                    match name.as_str() {
                        "partial_json" => arguments.push_str(more),
                        name => block[name] = (block[name].as_str().expect("a text").to_owned() + more).into(),
                    }
                }
            }
            "content_block_stop" => {
                let arguments = open.take().expect("open");
                if !arguments.is_empty() {
                    blocks.last_mut().expect("one")["input"] = super::cut::input_of(&arguments).into();
                }
            }
            "message_delta" => {
                assert_eq!(open, None);
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => assert_eq!(event, events.last().expect("one")),
            other => panic!("{other}"),
        }
    }
    message["content"] = blocks.into();
    message
}

fn whole(deltas: Vec<Delta>) -> Value {
    whole_in(&form(), deltas)
}

fn whole_in(form: &MessageForm, deltas: Vec<Delta>) -> Value {
    let mut sum = Sum::default();
    deltas.into_iter().for_each(|delta| sum.add(delta));
    serde_json::to_value(form.whole(sum.whole())).expect("plain")
}

fn text(text: &str) -> Delta {
    Delta { said: Said::text(text), ..Delta::default() }
}

fn calls(calls: &[(usize, &str)]) -> Delta {
    let piece = |&(index, delta): &(usize, &str)| match delta {
        "" => CallPiece::Start { index, id: format!("call_{index}"), name: "f".into() },
        delta => CallPiece::Arguments { index, delta: delta.into() },
    };
    Delta { said: Said::of(calls.iter().map(piece).map(Part::Call)), ..Delta::default() }
}

proptest! {
    #[test]
    fn a_stream_adds_up_to_the_whole_message_wherever_it_is_cut(
        thoughts in prop::collection::vec("[a-é\"\n]{0,3}", 0..4),
        texts in prop::collection::vec("[a-é\"\n]{0,3}", 0..4),
        between in prop::collection::vec("[a\n]{0,2}", 0..3),
        has_calls: bool,
        is_cut: bool,
        cuts in prop::collection::vec(1..4_usize, 20),
    ) {
        let thought = |text: String| Delta { said: Said::of([Part::Thought(text)]), ..Delta::default() };
        let mut all: Vec<Delta> = thoughts.into_iter().map(thought).chain(texts.iter().map(|it| text(it))).collect();
        if has_calls {
            all.extend([calls(&[(0, ""), (0, "{\"a\"")]), calls(&[(0, ": 1}")])]);
            all.extend(between.iter().map(|it| text(it)));
            all.extend([calls(&[(1, "")]), calls(&[(1, if is_cut { "{\"b\": [1, \"x" } else { "{}" })])]);
        }
        all.push(finish(if is_cut { Ending::Length } else { Ending::Stop(StopCause::EndOfText) }, has_calls));
        let mut rest: std::collections::VecDeque<Delta> = all.clone().into();
        let cut = cuts.into_iter().map(|cut| rest.drain(..cut.min(rest.len())).collect()).collect();
        prop_assert_eq!(put_together(&events(cut)), whole(all));
    }
}

#[test]
fn text_between_calls_is_a_block_of_its_own() {
    let mut all = vec![calls(&[(0, ""), (0, "{\"a\"")]), calls(&[(0, ": 1}")]), text("\n"), calls(&[(1, "")])];
    all.push(finish(Ending::Stop(StopCause::EndOfText), true));
    let got = put_together(&events(all.iter().cloned().map(|delta| vec![delta]).collect()));
    assert_eq!(got, whole(all));
    let kinds: Vec<&Value> = got["content"].as_array().expect("a list").iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["tool_use", "text", "tool_use"]);
    assert_eq!(got["content"][0]["input"], json!({ "a": 1 }));
    assert_eq!(got["content"][2]["input"], json!({}));
}

#[test]
fn texts_are_one_block_with_a_line_each_where_what_parts_them_is_hidden() {
    let parts = |parts: Vec<Part>| Delta { said: Said::of(parts), ..Delta::default() };
    let thought = || Part::Thought("Hm.".into());
    let said = |text: &str| Part::Text(text.into());
    let all = vec![
        parts(vec![said("a"), thought(), said("b")]),
        parts(vec![Part::Dropped]),
        parts(vec![said("c"), said("d")]),
        finish(Ending::Stop(StopCause::EndOfText), false),
    ];
    for (thoughts, expected) in [(Thoughts::Hidden, vec!["a\nb\ncd"]), (Thoughts::Told, vec!["a", "b\ncd"])] {
        let form = || MessageForm { thoughts, ..form() };
        let streamed = put_together(&events_in(form(), all.iter().cloned().map(|delta| vec![delta]).collect()));
        let blocks = streamed["content"].as_array().expect("a list").iter();
        assert_eq!(blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>(), expected);
        assert_eq!(whole_in(&form(), all.clone()), streamed);
    }
}

#[test]
fn the_end_says_why_and_what_it_took() {
    let stopped = Ending::Stop(StopCause::Text("###".into()));
    for (ending, has_calls, reason, sequence) in [
        (Ending::Length, false, "max_tokens", Value::Null),
        (Ending::Stop(StopCause::EndOfText), false, "end_turn", Value::Null),
        (Ending::Stop(StopCause::EndOfText), true, "tool_use", Value::Null),
        (stopped, false, "stop_sequence", "###".into()),
    ] {
        let shown = whole(vec![text("x"), finish(ending, has_calls)]);
        assert_eq!((&shown["stop_reason"], &shown["stop_sequence"]), (&reason.into(), &sequence));
        let usage = json!({ "input_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 5 });
        assert_eq!(shown["usage"], usage);
    }
    let more = MessageForm { max_tokens: 6, ..form() };
    let shown = whole_in(&more, vec![text("x"), finish(Ending::Length, false)]);
    assert_eq!(shown["stop_reason"], "model_context_window_exceeded", "it came to fewer tokens than were asked for");
}

#[test]
fn a_call_that_was_cut_has_what_came_to_its_end() {
    let shown = whole(vec![calls(&[(0, ""), (0, "{\"a\": 1, \"b\": \"x")]), finish(Ending::Length, true)]);
    assert_eq!(shown["content"][0]["input"], json!({ "a": 1 }));
}

#[test]
fn thoughts_are_told_only_if_they_are_wanted() {
    let thought = Delta { said: Said::of([Part::Thought("Hm.".into())]), ..Delta::default() };
    let all = vec![thought, text("Hi"), finish(Ending::Stop(StopCause::EndOfText), false)];
    let hi = json!({ "type": "text", "text": "Hi", "citations": null });
    let thinking = |text: &str| json!({ "type": "thinking", "thinking": text, "signature": "unsigned" });
    for (thoughts, expected) in [
        (Thoughts::Told, vec![thinking("Hm."), hi.clone()]),
        (Thoughts::Omitted, vec![thinking(""), hi.clone()]),
        (Thoughts::Hidden, vec![hi.clone()]),
    ] {
        let form = || MessageForm { thoughts, ..form() };
        let streamed = put_together(&events_in(form(), vec![all.clone()]));
        assert_eq!(streamed["content"], Value::from(expected), "{thoughts:?}");
        assert_eq!(whole_in(&form(), all.clone()), streamed);
    }
}

#[test]
fn a_thought_that_was_omitted_is_taken_back() {
    let omitted = json!({ "type": "thinking", "thinking": "", "signature": "unsigned" });
    let answer = json!({ "role": "assistant", "content": [omitted, { "type": "text", "text": "Hi" }] });
    let turns = json!([{ "role": "user", "content": "hi" }, answer, { "role": "user", "content": "Well?" }]);
    let asked = read(json!({ "messages": turns }));
    assert_eq!(input(&asked).messages[1], json!({ "role": "assistant", "content": "Hi" }));
}

#[test]
fn calls_have_ids_of_their_own_and_results_in_the_next_message() {
    let call = |id: &str| json!({ "type": "tool_use", "id": id, "name": "f", "input": {} });
    let result = |id: &str| json!({ "type": "tool_result", "tool_use_id": id });
    let text = json!({ "type": "text", "text": "x" });
    let says = |role: &str, content: Value| json!({ "role": role, "content": content });
    let calls = |ids: &[&str]| says("assistant", ids.iter().map(|id| call(id)).collect());
    let results = |ids: &[&str]| says("user", ids.iter().map(|id| result(id)).collect());
    let user = says("user", json!([text]));
    for (turns, expected) in [
        (json!([user, calls(&["1", "2"]), results(&["2", "1"])]), ""),
        (json!([user, calls(&["1"]), results(&["1"]), calls(&["2"]), results(&["2"]), user]), ""),
        // Turns of one speaker that follow each other are one.
        (json!([user, calls(&["1"]), calls(&["2"]), results(&["1"]), user, results(&["2"])]), ""),
        (json!([user, calls(&["1", "1"]), results(&["1"])]), "messages[1].content[1].id"),
        (json!([user, calls(&["1"]), results(&["1"]), calls(&["1"]), results(&["1"])]), "messages[3].content[0].id"),
        (json!([user, calls(&["1", "2"]), results(&["1"])]), "messages[1].content[1].id"),
        (json!([user, calls(&["1"]), user]), "messages[1].content[0].id"),
        (json!([user, calls(&["1"]), results(&["1", "1"])]), "messages[2].content[1].tool_use_id"),
        (json!([user, calls(&["1"]), user, calls(&["2"]), results(&["1", "2"])]), "messages[1].content[0].id"),
    ] {
        assert_eq!(refused(json!({ "messages": turns })), expected, "{turns}");
    }
}

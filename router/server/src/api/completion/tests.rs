//! What completions ask for, and what they are told.

use pelton_engine::{TokenLogprobs, Usage as AnswerUsage};
use serde_json::{Value, json};

use super::*;
use crate::{
    api::read_events,
    generate::{Ending, Said, Sum, TokenKind, testing::tokenizer},
};

fn refused(body: &str) -> String {
    match CompletionRequest::read(body.as_bytes()) {
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
fn every_form_of_prompt_is_read() {
    let prompts = |prompt: &str| {
        let read = CompletionRequest::read(format!("{{\"prompt\": {prompt}}}").as_bytes()).expect("a valid request");
        let shown = read.request.prompts.into_iter().map(|prompt| match prompt {
            Prompt::Text { text, .. } => text,
            Prompt::Ids(ids) => format!("{ids:?}"),
            Prompt::Between { text, suffix, .. } => format!("{text}...{suffix}"),
            Prompt::Embeds { param, base64 } => format!("{param} {base64}"),
            Prompt::Chat { .. } | Prompt::LongChat { .. } => unreachable!("completions are no chats"),
        });
        shown.collect::<Vec<_>>()
    };
    assert_eq!(prompts(r#""a""#), ["a"]);
    assert_eq!(prompts(r#"["a", "b"]"#), ["a", "b"]);
    assert_eq!(prompts("[ 1, 2]"), ["[1, 2]"]);
    assert_eq!(prompts("[[1], [2, 3]]"), ["[1]", "[2, 3]"]);
    let between = CompletionRequest::read(br#"{"prompt": ["a", "b"], "suffix": "c"}"#).expect("right").request.prompts;
    assert!(matches!(&between[..], [Prompt::Between { .. }, Prompt::Between { text, suffix, add_special: true }]
        if text == "b" && suffix == "c"));
    assert_eq!(refused(r#"{"prompt": [1], "suffix": "c"}"#), "suffix");
}

#[test]
fn embeddings_come_before_the_other_prompts_and_need_none() {
    let prompts = |fields: &str| {
        let read = CompletionRequest::read(format!("{{{fields}}}").as_bytes()).expect("a valid request");
        let shown = read.request.prompts.into_iter().map(|prompt| match prompt {
            Prompt::Embeds { param, base64 } => format!("{param} {base64}"),
            Prompt::Text { text, .. } => text,
            _ => unreachable!("there is no other"),
        });
        shown.collect::<Vec<_>>()
    };
    assert_eq!(prompts(r#""prompt_embeds": "AA==""#), ["prompt_embeds AA=="]);
    assert_eq!(prompts(r#""prompt_embeds": "AA==", "prompt": """#), ["prompt_embeds AA=="]);
    assert_eq!(prompts(r#""prompt_embeds": "AA==", "prompt": null"#), ["prompt_embeds AA=="]);
    assert_eq!(
        prompts(r#""prompt": ["a", "b"], "prompt_embeds": ["AA==", "AQ=="]"#),
        ["prompt_embeds[0] AA==", "prompt_embeds[1] AQ==", "a", "b"]
    );
    for wrong in ["5", "{}", "[]", "\"\"", "[\"\"]", "[\"AA==\", \"\"]", "[\"AA==\", 5]", "true"] {
        assert_eq!(refused(&format!("{{\"prompt\": \"a\", \"prompt_embeds\": {wrong}}}")), "prompt_embeds", "{wrong}");
    }
    for (beside, param) in [
        (r#""echo": true"#, "echo"),
        (r#""suffix": "a", "prompt": "b""#, "suffix"),
        (r#""prompt_logprobs": 0"#, "prompt_logprobs"),
        (r#""truncate_prompt_tokens": 5"#, "truncate_prompt_tokens"),
        (r#""return_prompt_text": true"#, "return_prompt_text"),
        (r#""prompt": []"#, "prompt"),
    ] {
        assert_eq!(refused(&format!("{{\"prompt_embeds\": \"AA==\", {beside}}}")), param);
    }
    assert_eq!(refused(r#"{"prompt_embeds": null}"#), "prompt");
}

#[test]
fn no_other_form_of_prompt_is() {
    for prompt in [
        "\"\"",
        "[]",
        "[\"\"]",
        "[[]]",
        "[[1], []]",
        "[1, \"a\"]",
        "[\"a\", 1]",
        "5",
        "{}",
        "[-1]",
        "[1.5]",
        "[4294967296]",
    ] {
        assert_eq!(refused(&format!("{{\"prompt\": {prompt}}}")), "prompt", "{prompt}");
    }
    assert_eq!(refused("{}"), "prompt");
}

#[test]
fn a_wrong_item_of_a_prompt_is_shown() {
    for (prompt, expected) in [
        ("[1.5]", "a list whose item 0 is 1.5"),
        ("[1, -1]", "a list whose item 1 is -1"),
        ("[-1]", "a list whose item 0 is -1"),
        ("[1, \"a\"]", "a list whose item 1 is the text \"a\""),
        ("[\"a\", 1]", "a list whose item 1 is 1"),
        ("[[1], [2, 4294967296]]", "a list whose item 1 is a list whose item 1 is 4294967296"),
        ("[[1], []]", "a list whose item 1 is empty"),
        ("[\"\", \"a\"]", "a list whose item 0 is empty"),
        ("[\"\"]", "a list whose item 0 is empty"),
        ("[[]]", "a list whose item 0 is empty"),
        ("\"\"", "the text \"\""),
        ("[]", "an empty list"),
        ("[{}]", "a list whose item 0 is an object"),
        ("true", "true"),
    ] {
        let body = format!("{{\"prompt\": {prompt}}}");
        let error = CompletionRequest::read(body.as_bytes()).expect_err("a wrong prompt").to_string();
        assert!(error.starts_with(&format!("`prompt` is {expected}; allowed: ")), "{prompt}: {error}");
    }
}

#[test]
fn a_wrong_field_is_named() {
    for (fields, expected) in [
        (r#""max_tokens": "5""#, "max_tokens"),
        (r#""temperature": "hot""#, "temperature"),
        (r#""stop": 5"#, "stop"),
        (r#""stop": ["a", 5]"#, "stop"),
        (r#""stream": "yes""#, "stream"),
        (r#""stream_options": {"include_usage": true}"#, "stream_options"),
        (r#""stream": true, "stream_options": {"usage": true}"#, "stream_options.usage"),
        (r#""logit_bias": {"a": 1}"#, "logit_bias"),
        (r#""logit_bias": {"1": "b"}"#, "logit_bias"),
        (r#""logit_bias": {"7": 1, "07": 2}"#, "logit_bias"),
        (r#""seed": 1.5"#, "seed"),
        (r#""seed": 9223372036854775808"#, "seed"),
        (r#""stop_token_ids": [-1]"#, "stop_token_ids"),
        (r#""n": -1"#, "n"),
        (r#""prompt_cache_retention": "1h""#, "prompt_cache_retention"),
        (r#""prompt_cache_retention": 24"#, "prompt_cache_retention"),
        (r#""logprobs": true"#, "logprobs"),
        (r#""prompt_logprobs": -1"#, "prompt_logprobs"),
        (r#""best_of": 2, "n": 3"#, "best_of"),
        (r#""best_of": 2, "stream": true"#, "best_of"),
        (r#""suffix": "a", "echo": true"#, "suffix"),
        (r#""suffix": 5"#, "suffix"),
        (r#""best_of": 2, "use_beam_search": true"#, "best_of"),
        (r#""messages": []"#, "messages"),
        (r#""request_id": "a b""#, "request_id"),
        (r#""temprature": 1"#, "temprature"),
        (r#""model": 5"#, "model"),
        (r#""user": 5"#, "user"),
        (r#""response_format": {"type": "yaml"}"#, "response_format.type"),
    ] {
        assert_eq!(refused(&format!("{{\"prompt\": \"a\", {fields}}}")), expected, "{fields}");
    }
}

#[test]
fn what_clients_send_without_effect_passes() {
    let body = r#"{"model": "demo", "prompt": "a", "user": "me", "best_of": 2, "suffix": null, "n": 2, "seed": -5, "stop": "x",
                   "logit_bias": {"7": -1.5}, "stream": true, "stream_options": {"include_usage": true}}"#;
    assert_eq!(refused(body), "");
}

fn form(has_logprobs: bool) -> CompletionForm {
    let head = Head {
        id: "cmpl-1".into(),
        object: "text_completion",
        created: 1,
        model: "demo".into(),
        system_fingerprint: None,
    };
    let prompt = |ids: &[u32], text: Option<&str>| PreparedPrompt {
        ids: ids.into(),
        embeds: None,
        text: text.map(str::to_owned),
        chat: None,
    };
    let prompts = vec![prompt(&[1, 2], Some("one ")), prompt(&[3], None)];
    let tokenizer = tokenizer();
    CompletionForm {
        head,
        tokenizer,
        logprobs: has_logprobs.then_some(1),
        prompt_logprobs: None,
        shown: ShownTokens::default(),
        echo: true,
        prompts,
        drawn_per_prompt: 1,
        answers_per_prompt: 1,
    }
}

fn drawn(token: u32, text_offset: usize) -> Drawn {
    let logprobs = TokenLogprobs { chosen: -0.5, top: vec![(66, -0.25), (token, -0.5)] };
    Drawn { token, text_offset, logprobs: Some(Box::new(logprobs)), kind: TokenKind::Text, said: 0 }
}

fn deltas() -> Vec<Delta> {
    let usage = |prompt| AnswerUsage { prompt, cached: 0, completion: 1 };
    let end = |choice, prompt| {
        let finish = Finish {
            ending: Ending::Length,
            has_calls: false,
            usage: usage(prompt),
            reasoning_tokens: None,
            explanation: None,
        };
        Delta { choice, finish: Some(finish), ..Delta::default() }
    };
    let text = |choice, text: &str| {
        let score = TokenScore { rank: 1, logprobs: TokenLogprobs { chosen: -0.125, top: vec![(2, -0.125)] } };
        let scores = if choice == 0 { vec![score] } else { Vec::new() };
        Delta { choice, said: Said::text(text), scores, tokens: vec![drawn(65, 0)], ..Delta::default() }
    };
    vec![text(0, "A"), text(1, "A"), end(1, 1), end(0, 2)]
}

#[test]
fn a_prompt_is_echoed_once_and_before_its_own_answer() {
    let mut events = CompletionEvents::new(form(false), StreamOptions::default());
    let mut out = BytesMut::new();
    events.deltas(deltas(), &mut out);
    events.end(&mut out);
    let chunks = read_events(&out);
    let text = |index: usize| -> String {
        let choices = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index);
        choices.map(|choice| choice["text"].as_str().expect("a text")).collect()
    };
    assert_eq!((text(0).as_str(), text(1).as_str()), ("one A", "A"));
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[test]
fn a_whole_answer_has_the_shape_that_clients_read() {
    let mut sums = [Sum::default(), Sum::default()];
    deltas().into_iter().for_each(|delta| sums[delta.choice].add(delta));
    let form = form(true);
    let shown = serde_json::to_value(form.whole(sums.map(Sum::whole).into())).expect("plain");
    let logprobs = json!({ "tokens": ["A"], "token_logprobs": [-0.5], "top_logprobs": [{ "A": -0.5, "B": -0.25 }], "text_offset": [0] });
    let echoed = json!({
        "tokens": ["\u{1}", "\u{2}", "A"], "token_logprobs": [null, -0.125, -0.5],
        "top_logprobs": [null, { "\u{2}": -0.125 }, { "A": -0.5, "B": -0.25 }], "text_offset": [0, 1, 4],
    });
    let choice = |index: usize, text: &str, logprobs: &Value| json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": "length", "stop_reason": null });
    let expected = json!({
        "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "demo",
        "choices": [choice(0, "one A", &echoed), choice(1, "A", &logprobs)],
        "usage": { "prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 0 } },
    });
    assert_eq!(shown, expected);
}

#[test]
fn usage_comes_where_it_is_asked_for() {
    let run = |include_usage, continuous_usage| {
        let options = StreamOptions { include_usage, continuous_usage, ..StreamOptions::default() };
        let mut events = CompletionEvents::new(form(false), options);
        let mut out = BytesMut::new();
        events.deltas(deltas(), &mut out);
        events.end(&mut out);
        let totals = read_events(&out).into_iter().map(|chunk| chunk["usage"]["total_tokens"].as_u64());
        totals.collect::<Vec<_>>()
    };
    assert_eq!(run(false, false), [None, None, None, None]);
    assert_eq!(run(true, false), [None, None, None, None, Some(5)]);
    assert_eq!(run(false, true), [Some(3), Some(2), Some(2), Some(3)]);
}

#[test]
fn no_answers_stay_none_whatever_is_drawn() {
    let read =
        CompletionRequest::read(br#"{"prompt": "a", "n": 0, "best_of": 3}"#).expect("its numbers are checked later");
    assert_eq!(read.request.options.n, 0, "which is refused");
}

#[test]
fn of_more_answers_the_likeliest_are_told_and_all_are_paid_for() {
    let form = CompletionForm { drawn_per_prompt: 3, answers_per_prompt: 2, ..form(false) };
    let answer = |text: &str, chosen: &[f32]| {
        let logprobs = |chosen| Some(Box::new(TokenLogprobs { chosen, top: Vec::new() }));
        let tokens = chosen.iter().map(|&chosen| Drawn { logprobs: logprobs(chosen), ..drawn(65, 0) }).collect();
        let finish = Finish {
            ending: Ending::Length,
            has_calls: false,
            usage: AnswerUsage { prompt: 2, cached: 0, completion: 5 },
            reasoning_tokens: None,
            explanation: None,
        };
        Whole { said: Said::text(text), scores: Vec::new(), tokens, finish }
    };
    let of_first = [answer("a", &[-1.0, -1.0]), answer("b", &[-0.5, -0.5, -0.6]), answer("c", &[-0.9])];
    let of_second = [answer("d", &[-0.1]), answer("e", &[]), answer("f", &[-0.2])];
    let shown = serde_json::to_value(form.whole(of_first.into_iter().chain(of_second).collect())).expect("plain");
    let told: Vec<_> = shown["choices"].as_array().expect("a list").iter().map(|choice| &choice["text"]).collect();
    assert_eq!(told, ["one b", "one c", "d", "f"]);
    assert_eq!(shown["usage"]["completion_tokens"], 30);
    assert_eq!(shown["choices"][3]["index"], 3);
    assert_eq!(shown["choices"][0]["logprobs"], Value::Null, "nobody asked for them");
}

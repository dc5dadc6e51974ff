//! `/v1/completions`: its request, its response, its stream.

use bytes::BytesMut;
use pelton_engine::{TokenId, TokenScore};
use pelton_text::{Detokenizer, Tokenizer};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    StopReason, StreamOptions,
    constrained::{FORMATS, STRUCTURED},
    fields::{Fields, ids, shown, shown_item},
    finish_reason,
    logprobs::CompletionLogprobs,
    models::{MODEL, read_model},
    prompt_logprobs::{PROMPT_LOGPROBS, PromptLogprobs},
    sampling::{N, REQUEST_ID, SAMPLING, STREAM, one_or_many, read_options, read_request_id, read_stream},
    shape::{Kind, Most, Shape, needed, optional, with_default},
    stop_reason,
    stream::{Events, Head, Shown, done, event},
    unserved::{self, BOOKS, refuse_in_completion},
    usage::{Usage, UsageSum},
};
use crate::{
    error::ApiError,
    generate::{Delta, Drawn, Finish, Generation, PreparedPrompt, Prompt, Request, Whole},
};

/// The body of a completion request.
pub(crate) const COMPLETION: Shape = Shape {
    name: "CompletionRequest",
    about: "Prompts to be continued.",
    fields: &[
        &[
            MODEL,
            needed("prompt", PROMPTS, "One prompt or several, each as text or as token ids."),
            with_default(
                "max_tokens",
                Kind::Integer(0, Most::Context),
                "16",
                "Tokens of an answer at most; 0 only together with `echo`: true.",
            ),
            optional(
                "logprobs",
                Kind::Integer(0, Most::Logprobs),
                "How many likeliest tokens are told beside each drawn one.",
            ),
            PROMPT_LOGPROBS,
            with_default(
                "echo",
                Kind::Flag,
                "false",
                "Whether each answer begins with its prompt; with `logprobs`, so do they.",
            ),
            with_default(
                "add_special_tokens",
                Kind::Flag,
                "true",
                "Whether the tokenizer adds its special tokens to texts.",
            ),
            with_default("return_token_ids", Kind::Flag, "false", "Whether the tokens of prompt and answer are told."),
            REQUEST_ID,
        ],
        N,
        SAMPLING,
        STREAM,
        STRUCTURED,
        FORMATS,
        BOOKS,
    ],
    unserved: &[unserved::BOTH, unserved::COMPLETION],
};

const SOME_TEXT: Kind = Kind::Text(1..=u64::MAX);
const SOME_IDS: Kind = Kind::TokenIds(1, Most::ANY);
/// What [`parse_prompts`] reads.
pub(super) const PROMPTS: Kind =
    Kind::Either(&[SOME_TEXT, Kind::List(&SOME_TEXT, 1, Most::ANY), SOME_IDS, Kind::List(&SOME_IDS, 1, Most::ANY)]);

/// A completion request, its types checked.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) model: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) return_token_ids: bool,
    /// As it was asked for: the engine tells as many as `echo` needs.
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) request: Request,
}

impl CompletionRequest {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        refuse_in_completion(&mut fields)?;
        let model = read_model(&mut fields)?;
        let add_special = fields.flag("add_special_tokens")?.unwrap_or(true);
        let prompts = read_prompts(&mut fields, add_special)?;
        let mut options = read_options(&mut fields)?;
        options.max_tokens = fields.count("max_tokens")?;
        options.logprobs = fields.count("logprobs")?;
        let echo = fields.flag("echo")?.unwrap_or(false);
        let prompt_logprobs = fields.count("prompt_logprobs")?;
        options.prompt_logprobs = prompt_logprobs.max(options.logprobs.filter(|_| echo));
        let stream = read_stream(&mut fields)?;
        let return_token_ids = fields.flag("return_token_ids")?.unwrap_or(false);
        let request_id = read_request_id(&mut fields)?;
        fields.finish(&COMPLETION)?;
        let request = Request { prompts, options, echo, tools: None };
        Ok(Self { model, request_id, stream, return_token_ids, prompt_logprobs, request })
    }
}

const PROMPT: &str =
    "a text, a list of texts, a list of token ids, or a list of lists of token ids; none of them empty";

fn read_prompts(fields: &mut Fields<'_>, add_special: bool) -> Result<Vec<Prompt>, ApiError> {
    let Some(raw) = fields.raw("prompt") else {
        return Err(ApiError::Missing { param: fields.at("prompt"), allowed: PROMPT });
    };
    let wrong = |got: String| ApiError::invalid(fields.at("prompt"), got, PROMPT);
    let prompts = parse_prompts(raw, add_special).map_err(wrong)?;
    let is_empty = |prompt: &Prompt| match prompt {
        Prompt::Text { text, .. } => text.is_empty(),
        Prompt::Ids(ids) => ids.is_empty(),
        Prompt::Chat { .. } => false,
    };
    match prompts.iter().position(is_empty) {
        None if !prompts.is_empty() => Ok(prompts),
        Some(index) if prompts.len() > 1 => Err(wrong(format!("a list whose item {index} is empty"))),
        _ => Err(wrong(shown(raw))),
    }
}

/// The error says what is there instead.
pub(super) fn parse_prompts(raw: &RawValue, add_special: bool) -> Result<Vec<Prompt>, String> {
    let text = raw.get();
    // What the list's first item is says what all of them must be.
    let first = text.strip_prefix('[').map_or("", str::trim_start);
    if first.starts_with('[') {
        let wrong = || shown_item::<Vec<TokenId>>(raw).unwrap_or_else(|| shown(raw));
        let lists: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| wrong())?;
        return lists.into_iter().map(|list| ids(list).map(Prompt::Ids).ok_or_else(wrong)).collect();
    }
    if first.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        let wrong = || shown_item::<TokenId>(raw).unwrap_or_else(|| shown(raw));
        return ids(raw).map(|ids| vec![Prompt::Ids(ids)]).ok_or_else(wrong);
    }
    let texts = one_or_many(raw).ok_or_else(|| shown_item::<String>(raw).unwrap_or_else(|| shown(raw)))?;
    Ok(texts.into_iter().map(|text| Prompt::Text { text, add_special }).collect())
}

/// A whole response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CompletionResponse<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<Choice<'a>>,
    usage: Usage,
}

/// A choice, whole or a piece of one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CompletionChoice")]
struct Choice<'a> {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    #[schemars(extend("enum" = ["stop", "length", "tool_calls", null]))]
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
}

/// A piece of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CompletionChunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<Choice<'a>>,
    /// `null` on every chunk but the last, if usage is wanted at the end; OpenAI's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Shown<Usage>,
}

/// How choices are shown, in streams and whole.
pub(crate) struct CompletionForm {
    pub(crate) head: Head,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) logprobs: Option<u32>,
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) skip_special: bool,
    pub(crate) return_token_ids: bool,
    pub(crate) prompts: Vec<PreparedPrompt>,
    pub(crate) answers_per_prompt: usize,
}

impl CompletionForm {
    pub(crate) fn new(head: Head, tokenizer: Tokenizer, request: &CompletionRequest, generation: &Generation) -> Self {
        Self {
            head,
            tokenizer,
            logprobs: request.request.options.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            skip_special: request.request.options.skip_special,
            return_token_ids: request.return_token_ids,
            prompts: generation.prompts().to_vec(),
            answers_per_prompt: request.request.options.n as usize,
        }
    }

    fn prompt_of(&self, choice: usize) -> &PreparedPrompt {
        &self.prompts[choice / self.answers_per_prompt]
    }

    fn usage(&self) -> UsageSum {
        UsageSum::new(self.prompts.iter().map(|prompt| prompt.ids.len()), self.answers_per_prompt)
    }

    /// `is_first`: nothing of the choice was shown before.
    fn choice(
        &self,
        index: usize,
        is_first: bool,
        text: String,
        scores: &[TokenScore],
        tokens: &[Drawn],
        finish: Option<&Finish>,
    ) -> Choice<'_> {
        let prompt = self.prompt_of(index);
        let echo = prompt.text.as_deref().filter(|_| is_first).unwrap_or_default();
        let prompt_logprobs = self.prompt_logprobs.filter(|_| is_first);
        Choice {
            index,
            text: if echo.is_empty() { text } else { format!("{echo}{text}") },
            logprobs: self.logprobs.map(|top| self.choice_logprobs(prompt, is_first, top, scores, tokens)),
            finish_reason: finish.map(finish_reason),
            stop_reason: finish.and_then(stop_reason),
            token_ids: self.return_token_ids.then(|| tokens.iter().map(|drawn| drawn.token).collect()),
            prompt_token_ids: (self.return_token_ids && is_first).then_some(&*prompt.ids),
            prompt_logprobs: prompt_logprobs.map(|top| PromptLogprobs::new(&self.tokenizer, &prompt.ids, scores, top)),
        }
    }

    fn choice_logprobs(
        &self,
        prompt: &PreparedPrompt,
        is_first: bool,
        top: u32,
        scores: &[TokenScore],
        tokens: &[Drawn],
    ) -> CompletionLogprobs {
        let mut shown = CompletionLogprobs::default();
        if prompt.text.is_some() && is_first {
            let texts = Detokenizer::new(self.tokenizer.clone(), self.skip_special);
            shown.echo(&self.tokenizer, texts, &prompt.ids, scores, top);
        }
        let echoed = prompt.text.as_ref().map_or(0, |text| text.chars().count());
        shown.add(&self.tokenizer, tokens, echoed);
        shown
    }

    pub(crate) fn whole(&self, answers: Vec<Whole>) -> CompletionResponse<'_> {
        let mut usage = self.usage();
        let mut choices = Vec::with_capacity(answers.len());
        for (index, answer) in answers.into_iter().enumerate() {
            usage.finished(index, &answer.finish);
            let Whole { text, scores, tokens, finish, .. } = answer;
            choices.push(self.choice(index, true, text, &scores, &tokens, Some(&finish)));
        }
        CompletionResponse { head: &self.head, choices, usage: usage.total() }
    }
}

/// A completion's stream.
pub(crate) struct CompletionEvents {
    form: CompletionForm,
    options: StreamOptions,
    usage: UsageSum,
    has_begun: Vec<bool>,
}

impl CompletionEvents {
    pub(crate) fn new(form: CompletionForm, options: StreamOptions) -> Self {
        let has_begun = vec![false; form.prompts.len() * form.answers_per_prompt];
        Self { usage: form.usage(), form, options, has_begun }
    }
}

impl Events for CompletionEvents {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        for delta in deltas {
            let Delta { choice: index, text, scores, tokens, finish, .. } = delta;
            self.usage.drawn(index, tokens.len());
            if let Some(finish) = &finish {
                self.usage.finished(index, finish);
            }
            let shows_tokens = (self.form.logprobs.is_some() || self.form.return_token_ids) && !tokens.is_empty();
            // Text that is held back makes no chunk, unless its tokens are wanted.
            if text.is_empty() && finish.is_none() && !shows_tokens && scores.is_empty() {
                continue;
            }
            let is_first = !std::mem::replace(&mut self.has_begun[index], true);
            let usage = match self.options {
                StreamOptions { continuous_usage: true, .. } => Some(Some(self.usage.of_choice(index))),
                StreamOptions { include_usage: true, .. } => Some(None),
                _ => None,
            };
            let choices = vec![self.form.choice(index, is_first, text, &scores, &tokens, finish.as_ref())];
            event(out, &CompletionChunk { head: &self.form.head, choices, usage });
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        if self.options.include_usage {
            event(
                out,
                &CompletionChunk { head: &self.form.head, choices: Vec::new(), usage: Some(Some(self.usage.total())) },
            );
        }
        done(out);
    }
}

#[cfg(test)]
mod tests {
    use pelton_engine::{TokenLogprobs, Usage as AnswerUsage};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::read_events,
        generate::{Ending, Sum, testing::tokenizer},
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
            let read =
                CompletionRequest::read(format!("{{\"prompt\": {prompt}}}").as_bytes()).expect("a valid request");
            let shown = read.request.prompts.into_iter().map(|prompt| match prompt {
                Prompt::Text { text, .. } => text,
                Prompt::Ids(ids) => format!("{ids:?}"),
                Prompt::Chat { .. } => unreachable!("completions are no chats"),
            });
            shown.collect::<Vec<_>>()
        };
        assert_eq!(prompts(r#""a""#), ["a"]);
        assert_eq!(prompts(r#"["a", "b"]"#), ["a", "b"]);
        assert_eq!(prompts("[ 1, 2]"), ["[1, 2]"]);
        assert_eq!(prompts("[[1], [2, 3]]"), ["[1]", "[2, 3]"]);
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
            (r#""best_of": 2"#, "best_of"),
            (r#""suffix": "x""#, "suffix"),
            (r#""messages": []"#, "messages"),
            (r#""request_id": "a b""#, "request_id"),
            (r#""temprature": 1"#, "temprature"),
            (r#""model": """#, "model"),
            (r#""model": 5"#, "model"),
            (r#""user": 5"#, "user"),
            (r#""response_format": {"type": "yaml"}"#, "response_format.type"),
        ] {
            assert_eq!(refused(&format!("{{\"prompt\": \"a\", {fields}}}")), expected, "{fields}");
        }
    }

    #[test]
    fn what_clients_send_without_effect_passes() {
        let body = r#"{"model": "demo", "prompt": "a", "user": "me", "best_of": 1, "suffix": null, "n": 2, "seed": -5, "stop": "x",
                       "logit_bias": {"7": -1.5}, "stream": true, "stream_options": {"include_usage": true}}"#;
        assert_eq!(refused(body), "");
    }

    fn form(has_logprobs: bool) -> CompletionForm {
        let head = Head { id: "cmpl-1".into(), object: "text_completion", created: 1, model: "demo".into() };
        let prompt = |ids: &[u32], text: Option<&str>| PreparedPrompt {
            ids: ids.into(),
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
            skip_special: true,
            return_token_ids: false,
            prompts,
            answers_per_prompt: 1,
        }
    }

    fn drawn(token: u32, text_offset: usize) -> Drawn {
        let logprobs = TokenLogprobs { chosen: -0.5, top: vec![(66, -0.25), (token, -0.5)] };
        Drawn { token, text_offset, text: "A".to_owned(), logprobs: Some(Box::new(logprobs)), is_reasoning: false }
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
            Delta { choice, text: text.into(), scores, tokens: vec![drawn(65, 0)], ..Delta::default() }
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
            let mut events = CompletionEvents::new(form(false), StreamOptions { include_usage, continuous_usage });
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
}

//! Log-probabilities as OpenAI's clients read them. The raw model's, before temperature, penalties and bias.
//!
//! `bytes` are exact, from the vocabulary. `token` is those bytes as UTF-8, with U+FFFD where they are none: a token may
//! end within a character, and then no text is right.

use std::borrow::Cow;

use pelton_engine::TokenId;
use pelton_text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::generate::Drawn;

/// What stands for a probability of zero, whose logarithm JSON cannot write. The peer's value.
const IMPOSSIBLE: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

fn text_of(tokenizer: &Tokenizer, token: TokenId) -> Cow<'_, str> {
    String::from_utf8_lossy(tokenizer.token_bytes(token).unwrap_or_default())
}

/// `logprobs` of a chat's choice.
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs<'a> {
    content: Vec<Entry<'a>>,
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    chosen: Candidate<'a>,
    top_logprobs: Vec<Candidate<'a>>,
}

#[derive(Debug, Serialize)]
struct Candidate<'a> {
    token: Cow<'a, str>,
    logprob: f32,
    bytes: &'a [u8],
}

impl<'a> ChatLogprobs<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, tokens: &[Drawn]) -> Self {
        let candidate = |token, logprob| Candidate {
            token: text_of(tokenizer, token),
            logprob: finite(logprob),
            bytes: tokenizer.token_bytes(token).unwrap_or_default(),
        };
        let entry = |drawn: &Drawn| {
            let logprobs = drawn.logprobs.as_deref()?;
            let top_logprobs = logprobs.top.iter().map(|&(token, logprob)| candidate(token, logprob)).collect();
            Some(Entry { chosen: candidate(drawn.token, logprobs.chosen), top_logprobs })
        };
        Self { content: tokens.iter().filter_map(entry).collect(), refusal: None }
    }
}

/// `logprobs` of a completion's choice: four lists, one entry per token.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionLogprobs<'a> {
    tokens: Vec<Cow<'a, str>>,
    token_logprobs: Vec<f32>,
    /// The chosen token and the likeliest ones, by text: of two tokens with the same text the likelier counts.
    top_logprobs: Vec<Map<String, Value>>,
    text_offset: Vec<usize>,
}

impl<'a> CompletionLogprobs<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, tokens: &[Drawn]) -> Self {
        let mut logprobs =
            Self { tokens: Vec::new(), token_logprobs: Vec::new(), top_logprobs: Vec::new(), text_offset: Vec::new() };
        for drawn in tokens {
            let Some(of_token) = drawn.logprobs.as_deref() else { continue };
            let text = text_of(tokenizer, drawn.token);
            let mut top = Map::from_iter([(text.to_string(), finite(of_token.chosen).into())]);
            for &(token, logprob) in &of_token.top {
                top.entry(text_of(tokenizer, token)).or_insert_with(|| finite(logprob).into());
            }
            logprobs.tokens.push(text);
            logprobs.token_logprobs.push(finite(of_token.chosen));
            logprobs.top_logprobs.push(top);
            logprobs.text_offset.push(drawn.text_offset);
        }
        logprobs
    }
}

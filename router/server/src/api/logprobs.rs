//! Log-probabilities as OpenAI's clients read them. The raw model's, before temperature, penalties and bias.
//!
//! `bytes` are exact, from the vocabulary. `token` is those bytes as UTF-8, with U+FFFD where they are none: a token may
//! end within a character, and then no text is right.

use std::borrow::Cow;

use pelton_engine::{TokenId, TokenScore};
use pelton_text::{Detokenizer, Tokenizer};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::generate::Drawn;

/// What stands for a probability of zero, whose logarithm JSON cannot write. The peer's value.
const IMPOSSIBLE: f32 = -9999.0;

pub(super) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

pub(super) fn text_of(tokenizer: &Tokenizer, token: TokenId) -> Cow<'_, str> {
    String::from_utf8_lossy(tokenizer.token_bytes(token).unwrap_or_default())
}

/// `logprobs` of a chat's choice.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogprobs<'a> {
    content: Vec<Entry<'a>>,
    refusal: Option<()>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatLogprob")]
struct Entry<'a> {
    #[serde(flatten)]
    chosen: Candidate<'a>,
    top_logprobs: Vec<Candidate<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LogprobCandidate")]
struct Candidate<'a> {
    token: Cow<'a, str>,
    logprob: f32,
    bytes: &'a [u8],
}

impl<'a> ChatLogprobs<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, tokens: &[Drawn]) -> Self {
        Self::named(tokenizer, tokens, |token| text_of(tokenizer, token))
    }

    /// The same for clients that read no text: `token` is `token_id:123`.
    pub(crate) fn by_id(tokenizer: &'a Tokenizer, tokens: &[Drawn]) -> Self {
        Self::named(tokenizer, tokens, |token| name_of(token).into())
    }

    fn named(tokenizer: &'a Tokenizer, tokens: &[Drawn], name: impl Fn(TokenId) -> Cow<'a, str>) -> Self {
        let candidate = |token, logprob| Candidate {
            token: name(token),
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
///
/// With `echo` the prompt's tokens come first; before the first of them there is nothing to go by.
/// A token has one name, drawn or not: its own text or, where that is none, `bytes:\xe2\x82`, OpenAI's form. So a token that ends an answer
/// is named, too, and where tokens end within characters, names do not add up to the text; `text_offset` says where each begins in it.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    /// The drawn token first, then the likeliest others.
    #[schemars(with = "Vec<Option<std::collections::BTreeMap<String, f32>>>")]
    top_logprobs: Vec<Option<ByText>>,
    text_offset: Vec<usize>,
    /// Whether tokens are named by their ids.
    #[serde(skip)]
    by_id: bool,
}

/// An object from texts to log-probabilities, in this order; no text twice.
///
/// Not a map of JSON values: those hold an f32 as an f64, which is written with other digits than the same f32 in
/// `token_logprobs`.
#[derive(Debug)]
struct ByText(Vec<(String, f32)>);

impl ByText {
    fn add(&mut self, text: String, logprob: f32) {
        // Two tokens may have the same text: the likelier one counts, and comes first.
        if self.0.iter().all(|(known, _)| *known != text) {
            self.0.push((text, finite(logprob)));
        }
    }
}

impl Serialize for ByText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

impl CompletionLogprobs {
    /// Without tokens. `by_id`: they are named `token_id:123`.
    pub(crate) fn named(by_id: bool) -> Self {
        Self { by_id, ..Self::default() }
    }

    /// A token's name where it stands in no text; `exact`: what else it would be.
    fn name(&self, token: TokenId, exact: impl FnOnce() -> String) -> String {
        if self.by_id { name_of(token) } else { exact() }
    }

    /// Adds a prompt that is echoed as a text. A special token has the text that it has there: its name if the client wrote it, and
    /// none if the tokenizer added it. `top`: how many of the likeliest are shown.
    pub(crate) fn echo(
        &mut self,
        tokenizer: &Tokenizer,
        mut echoed: &str,
        prompt: &[TokenId],
        scores: &[TokenScore],
        top: u32,
    ) {
        let mut texts = Detokenizer::new(tokenizer.clone(), true);
        let mut offset = 0;
        let mut scores = std::iter::once(None).chain(scores.iter().map(Some));
        for (at, &token) in prompt.iter().enumerate() {
            let mut text = texts.push(token);
            echoed = echoed.strip_prefix(text.as_str()).unwrap_or(echoed);
            if let Some(name) = tokenizer.id_to_token(token).filter(|_| tokenizer.is_special(token))
                && let Some(behind) = echoed.strip_prefix(name.as_str())
            {
                (text, echoed) = (text + &name, behind);
            }
            if at + 1 == prompt.len() {
                text.push_str(&texts.finish());
            }
            let logprobs = scores.next().flatten().map(|score| &score.logprobs);
            self.top_logprobs.push(logprobs.map(|logprobs| {
                let mut shown = ByText(Vec::with_capacity(top as usize + 1));
                shown.add(self.name(token, || exact_text_of(tokenizer, token)), logprobs.chosen);
                for &(other, logprob) in logprobs.top.iter().take(top as usize).filter(|(other, _)| *other != token) {
                    shown.add(self.name(other, || exact_text_of(tokenizer, other)), logprob);
                }
                shown
            }));
            self.token_logprobs.push(logprobs.map(|logprobs| finite(logprobs.chosen)));
            self.text_offset.push(offset);
            offset += text.chars().count();
            self.tokens.push(self.name(token, || text));
        }
    }

    /// Adds tokens of an answer, which has so many characters before it.
    pub(crate) fn add(&mut self, tokenizer: &Tokenizer, tokens: &[Drawn], before: usize) {
        for drawn in tokens {
            let Some(logprobs) = drawn.logprobs.as_deref() else { continue };
            let mut top = ByText(Vec::with_capacity(logprobs.top.len() + 1));
            let name = |token| self.name(token, || exact_text_of(tokenizer, token));
            let own = name(drawn.token);
            top.add(own.clone(), logprobs.chosen);
            for &(token, logprob) in logprobs.top.iter().filter(|(token, _)| *token != drawn.token) {
                top.add(name(token), logprob);
            }
            self.tokens.push(own);
            self.token_logprobs.push(Some(finite(logprobs.chosen)));
            self.top_logprobs.push(Some(top));
            self.text_offset.push(before + drawn.text_offset);
        }
    }
}

/// A token by its id.
fn name_of(token: TokenId) -> String {
    format!("token_id:{token}")
}

fn exact_text_of(tokenizer: &Tokenizer, token: TokenId) -> String {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |shown, byte| shown + &format!("\\x{byte:02x}")),
    }
}

#[cfg(test)]
mod tests {
    use pelton_engine::TokenLogprobs;

    use super::*;
    use crate::generate::{
        TokenKind,
        testing::{END, tokenizer},
    };

    #[test]
    fn the_tokens_of_an_echo_add_up_to_its_text() {
        let tokenizer = tokenizer();
        let shown = |echoed: &str, prompt: &[TokenId]| {
            let mut shown = CompletionLogprobs::default();
            shown.echo(&tokenizer, echoed, prompt, &[], 0);
            (shown.tokens, shown.text_offset)
        };
        let told = |tokens: &[&str], offsets: &[usize]| {
            (tokens.iter().map(|&text| text.to_owned()).collect::<Vec<_>>(), offsets.to_vec())
        };
        assert_eq!(shown("AB", &[END, 65, 66]), told(&["", "A", "B"], &[0, 0, 1]), "the tokenizer added it");
        assert_eq!(shown("<end>AB", &[END, 65, 66]), told(&["<end>", "A", "B"], &[0, 5, 6]), "the client wrote it");
        assert_eq!(shown("A<end>B", &[65, END, 66]), told(&["A", "<end>", "B"], &[0, 1, 6]));
        assert_eq!(shown("<end>A", &[END, END, 65, END]), told(&["<end>", "", "A", ""], &[0, 5, 5, 6]));
    }

    #[test]
    fn the_same_token_has_the_same_number_in_every_list() {
        let logprobs = TokenLogprobs { chosen: -0.634_254_63, top: vec![(66, -0.1), (65, -0.634_254_63)] };
        let drawn =
            Drawn { token: 65, text_offset: 0, logprobs: Some(Box::new(logprobs)), kind: TokenKind::Text, said: 0 };
        let mut shown = CompletionLogprobs::default();
        shown.add(&tokenizer(), &[drawn], 0);
        let shown = serde_json::to_string(&shown).expect("plain");
        assert_eq!(
            shown,
            r#"{"tokens":["A"],"token_logprobs":[-0.63425463],"top_logprobs":[{"A":-0.63425463,"B":-0.1}],"text_offset":[0]}"#
        );
    }

    #[test]
    fn a_drawn_token_is_named_as_candidates_are() {
        for (token, name) in [(65, "A"), (END, "<end>"), (0x8e, "bytes:\\x8e")] {
            let drawn = |token, others| Drawn {
                token,
                text_offset: 3,
                logprobs: Some(Box::new(TokenLogprobs { chosen: -1.0, top: others })),
                kind: TokenKind::Text,
                said: 0,
            };
            let mut shown = CompletionLogprobs::default();
            shown.add(&tokenizer(), &[drawn(token, vec![(66, -0.5)]), drawn(66, vec![(token, -0.5)])], 2);
            assert_eq!(shown.tokens, [name, "B"]);
            let names = |at: usize| -> Vec<&str> {
                let top = shown.top_logprobs[at].as_ref().expect("there are some");
                top.0.iter().map(|(name, _)| name.as_str()).collect()
            };
            assert_eq!((names(0), names(1)), (vec![name, "B"], vec!["B", name]));
            assert_eq!(shown.text_offset, [5, 5]);
        }
    }
}

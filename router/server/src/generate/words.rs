//! Words that an answer may and may not use, as the tokens that grammars know.

use std::sync::Arc;

use pelton_engine::{Grammar, TokenId};
use pelton_grammar::Words;

use super::{
    options::{ModelFacts, STOP_STRING_BYTES_MAX, in_vocabulary, within},
    serving::Serving,
};
use crate::error::ApiError;

/// Entries of `bad_words` at most. (B:SA2)
pub(crate) const BAD_WORDS_MAX: usize = 128;
/// Bytes of all of them at most: each is tokenised, twice.
const BAD_WORDS_BYTES_MAX: usize = 16 << 10;
pub(crate) const ALLOWED_TOKEN_IDS: &str = "allowed_token_ids";
pub(crate) const BAD_WORDS: &str = "bad_words";

/// What the answers to a prompt are drawn within if some words are not for them.
pub(super) fn limit_words(grammar: Option<Grammar>, words: &Words, facts: &ModelFacts<'_>) -> Option<Grammar> {
    if words.is_empty() {
        return grammar;
    }
    Some(match grammar {
        // The form alone says when it is complete.
        Some(grammar) if grammar.has_form() => grammar.with_words(words.allowing(facts.eos_ids)),
        Some(grammar) => grammar.with_words(words.clone()),
        None => Grammar::of_words(words.clone()),
    })
}

/// What an answer may be made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WordRules {
    /// The only tokens; `None`: all.
    pub allowed: Option<Vec<TokenId>>,
    /// What is never said, neither at the beginning of a word nor within one, as far as it takes the tokens of this text.
    pub bad: Vec<String>,
}

impl WordRules {
    pub(super) fn is_empty(&self) -> bool {
        self.allowed.is_none() && self.bad.is_empty()
    }

    pub(super) fn check(&self, facts: &ModelFacts<'_>) -> Result<(), ApiError> {
        if let Some(allowed) = &self.allowed {
            within(ALLOWED_TOKEN_IDS, allowed.len(), " ids", 1..=facts.vocab_size as usize, || {
                format!("1 to {} ids", facts.vocab_size)
            })?;
            allowed.iter().try_for_each(|&token| in_vocabulary(ALLOWED_TOKEN_IDS, token, facts))?;
        }
        within(BAD_WORDS, self.bad.len(), " texts", 0..=BAD_WORDS_MAX, || format!("at most {BAD_WORDS_MAX} texts"))?;
        let bytes = self.bad.iter().map(String::len).sum::<usize>();
        within(BAD_WORDS, bytes, " bytes of text in all", 0..=BAD_WORDS_BYTES_MAX, || {
            format!("at most {BAD_WORDS_BYTES_MAX} bytes in all")
        })?;
        self.bad.iter().try_for_each(|word| {
            within(BAD_WORDS, word.len(), " bytes of text", 1..=STOP_STRING_BYTES_MAX, || {
                format!("texts of 1 to {STOP_STRING_BYTES_MAX} bytes")
            })
        })
    }
}

impl Serving {
    /// The words as tokens, where it delays nobody else.
    pub(super) async fn words(self: &Arc<Self>, rules: &WordRules) -> Result<Words, ApiError> {
        if *rules == WordRules::default() {
            return Ok(Words::default());
        }
        let (serving, rules) = (Arc::clone(self), rules.clone());
        let work = move || {
            let mut bad = Vec::new();
            for word in &rules.bad {
                bad.extend(serving.runs_of(word)?);
            }
            Ok(Words::new(rules.allowed.as_deref(), bad))
        };
        self.on_pool(work).await
    }

    /// The tokens of a word, and those of the same word behind a space: most vocabularies write these in one token.
    fn runs_of(&self, word: &str) -> Result<Vec<Vec<TokenId>>, ApiError> {
        let encode = |text: &str| {
            self.tokenizer
                .encode(text, false)
                .map_err(|error| ApiError::Conflict { param: BAD_WORDS.to_owned(), reason: error.to_string() })
        };
        let bare = word.trim_start_matches(' ');
        if bare.is_empty() {
            return Ok(vec![encode(word)?]);
        }
        let (within, behind) = (encode(bare)?, encode(&format!(" {bare}"))?);
        // A space in a token of its own: who may not say the word may not say it behind a space.
        let is_said_by_it = behind.ends_with(&within);
        Ok(std::iter::once(within).chain((!is_said_by_it).then_some(behind)).collect())
    }
}

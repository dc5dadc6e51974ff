//! Words that an answer may and may not use, as the tokens that grammars know.

use std::{collections::HashSet, sync::Arc};

use pelton_engine::{Grammar, TokenId};
use pelton_grammar::{Mask, Stuck, Words};

use super::{
    Request,
    constrain::form_of,
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
fn limited(grammar: Option<Grammar>, words: &Words, facts: &ModelFacts<'_>) -> Option<Grammar> {
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

    /// The error where these words leave no token for a place of the answer. `form`: what says what else the answer has to fit.
    pub(super) fn nothing_left(&self, form: Option<&str>, place: &str) -> ApiError {
        let param = if self.bad.is_empty() { ALLOWED_TOKEN_IDS } else { BAD_WORDS };
        let other = Some(ALLOWED_TOKEN_IDS).filter(|_| param == BAD_WORDS && self.allowed.is_some());
        let others: Vec<String> = other.into_iter().chain(form).map(|name| format!("`{name}`")).collect();
        let beside = if others.is_empty() { String::new() } else { format!(" together with {}", others.join(" and ")) };
        ApiError::Conflict { param: param.to_owned(), reason: format!("leaves no token {place}{beside}") }
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
    /// What the answers to a prompt are drawn within if some words are not for them. Refuses words with which no answer can begin.
    pub(super) async fn limit_words(
        &self,
        grammar: Option<Grammar>,
        words: &Words,
        request: &Request,
        facts: &ModelFacts<'_>,
    ) -> Result<Option<Grammar>, ApiError> {
        let grammar = limited(grammar, words, facts);
        let Some(within) = grammar.clone().filter(|_| !words.is_empty()) else { return Ok(grammar) };
        let (rules, form) = (request.options.words.clone(), within.has_form().then(|| form_of(request)));
        let count = facts.vocab_size as usize;
        let work = move || {
            let may_begin = match within.begin().mask() {
                Ok(Mask::AllBut(tokens)) => tokens.iter().collect::<HashSet<_>>().len() < count,
                mask => mask != Err(Stuck::NoWord), // another fault comes up in its place
            };
            if may_begin { Ok(()) } else { Err(rules.nothing_left(form.as_deref(), "to begin an answer with")) }
        };
        self.on_pool(work).await?;
        Ok(grammar)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_nothing_is_named_with_what_it_leaves_nothing_of() {
        let check = |allowed: bool, bad: bool, form: Option<&str>, expected: &str| {
            let rules =
                WordRules { allowed: allowed.then(|| vec![5]), bad: Vec::from_iter(bad.then(|| "x".to_owned())) };
            assert_eq!(rules.nothing_left(form, "there").to_string(), expected);
        };
        check(
            true,
            false,
            Some("guided_regex"),
            "`allowed_token_ids` leaves no token there together with `guided_regex`",
        );
        check(true, true, None, "`bad_words` leaves no token there together with `allowed_token_ids`");
        check(false, true, None, "`bad_words` leaves no token there");
        let all = "`bad_words` leaves no token there together with `allowed_token_ids` and `tools`";
        check(true, true, Some("tools"), all);
    }
}

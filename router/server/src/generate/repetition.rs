//! Finds an answer that goes round in circles: its end is a run of tokens, several times over.

use std::collections::VecDeque;

use pelton_engine::TokenId;

use super::options::within;
use crate::error::ApiError;

/// Tokens of a run at most: each token is compared with so many before it.
pub(crate) const PATTERN_MAX: u32 = 1024;
pub(crate) const REPETITION: &str = "repetition_detection";

/// What counts as going round in circles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repetition {
    /// Tokens of the shortest run.
    pub min_pattern: u32,
    /// Tokens of the longest run.
    pub max_pattern: u32,
    /// How often it comes in a row.
    pub min_count: u32,
}

impl Repetition {
    pub(super) fn check(&self) -> Result<(), ApiError> {
        let Self { min_pattern, max_pattern, min_count } = *self;
        let at = |member: &str| format!("{REPETITION}.{member}");
        within(&at("max_pattern_size"), max_pattern, "", 1..=PATTERN_MAX, || {
            format!("an integer from 0 (off) to {PATTERN_MAX}")
        })?;
        within(&at("min_pattern_size"), min_pattern, "", 1..=max_pattern, || {
            format!("an integer from 0 to `max_pattern_size`, which is {max_pattern}")
        })?;
        within(&at("min_count"), min_count, "", 2..=u32::MAX, || "an integer from 2 to 4294967295".to_owned())
    }
}

/// One answer's circles.
pub(super) struct Circles {
    asked: Repetition,
    /// The latest tokens, the last one first.
    latest: VecDeque<TokenId>,
    /// How many of the last tokens each equal the one `min_pattern + index` before it.
    equal: Vec<u64>,
}

impl Circles {
    pub(super) fn new(asked: Repetition) -> Self {
        let lengths = (asked.max_pattern - asked.min_pattern + 1) as usize;
        Self { asked, latest: VecDeque::new(), equal: vec![0; lengths] }
    }

    /// Takes the next token. Whether the answer's end is now a run as often as was asked.
    pub(super) fn take(&mut self, token: TokenId) -> bool {
        let Repetition { min_pattern, max_pattern, min_count } = self.asked;
        let mut is_found = false;
        for (length, equal) in (min_pattern..).zip(&mut self.equal) {
            *equal = if self.latest.get(length as usize - 1) == Some(&token) { *equal + 1 } else { 0 };
            is_found |= *equal >= u64::from(length) * u64::from(min_count - 1);
        }
        self.latest.push_front(token);
        self.latest.truncate(max_pattern as usize);
        is_found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As it is defined.
    fn is_circle(tokens: &[TokenId], asked: Repetition) -> bool {
        let count = asked.min_count as usize;
        (asked.min_pattern as usize..=asked.max_pattern as usize).any(|length| {
            tokens.len() >= length * count && {
                let end = &tokens[tokens.len() - length * count..];
                end.chunks(length).all(|run| run == &end[..length])
            }
        })
    }

    proptest! {
        #[test]
        fn a_circle_is_found_with_the_token_that_closes_it(
            tokens in proptest::collection::vec(0_u32..3, 0..80),
            min_pattern in 1_u32..4,
            more in 0_u32..5,
            min_count in 2_u32..5,
        ) {
            let asked = Repetition { min_pattern, max_pattern: min_pattern + more, min_count };
            let mut circles = Circles::new(asked);
            for taken in 0..tokens.len() {
                prop_assert_eq!(circles.take(tokens[taken]), is_circle(&tokens[..=taken], asked), "at {}", taken);
            }
        }
    }

    #[test]
    fn wrong_numbers_are_named() {
        let refused = |min_pattern, max_pattern, min_count| {
            let error = Repetition { min_pattern, max_pattern, min_count }.check().err()?;
            Some(error.to_string().split('`').nth(1)?.to_owned())
        };
        assert_eq!(refused(1, 1, 2), None);
        assert_eq!(refused(1024, 1024, u32::MAX), None);
        assert_eq!(refused(1, 1025, 2).as_deref(), Some("repetition_detection.max_pattern_size"));
        assert_eq!(refused(3, 2, 2).as_deref(), Some("repetition_detection.min_pattern_size"));
        assert_eq!(refused(1, 2, 1).as_deref(), Some("repetition_detection.min_count"));
    }
}

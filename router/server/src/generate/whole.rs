//! A whole answer: the sum of its deltas, and nothing else.

use pelton_engine::TokenScore;

use super::{Delta, Drawn, Finish, Generation, Said};
use crate::error::ApiError;

/// A complete answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Whole {
    /// What it says.
    pub said: Said,
    /// Of the prompt's tokens from the second one on, if they were asked for.
    pub scores: Vec<TokenScore>,
    /// Its tokens.
    pub tokens: Vec<Drawn>,
    /// How it ended.
    pub finish: Finish,
}

/// An answer that is being added up.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    said: Said,
    scores: Vec<TokenScore>,
    tokens: Vec<Drawn>,
    finish: Option<Finish>,
}

impl Sum {
    pub(crate) fn add(&mut self, delta: Delta) {
        assert!(self.finish.is_none(), "nothing follows the end of an answer");
        self.said.append(delta.said);
        self.scores.extend(delta.scores);
        self.tokens.extend(delta.tokens);
        self.finish = delta.finish;
    }

    pub(crate) fn whole(self) -> Whole {
        let finish = self.finish.expect("an answer without an end is an error, and was returned as one");
        let Self { said, scores, tokens, .. } = self;
        Whole { said, scores, tokens, finish }
    }
}

impl Generation {
    /// Waits for all answers.
    pub async fn whole(mut self) -> Result<Vec<Whole>, ApiError> {
        let mut sums: Vec<Sum> = (0..self.choices()).map(|_| Sum::default()).collect();
        loop {
            let deltas = self.next().await?;
            if deltas.is_empty() {
                return Ok(sums.into_iter().map(Sum::whole).collect());
            }
            for delta in deltas {
                sums[delta.choice].add(delta);
            }
        }
    }
}

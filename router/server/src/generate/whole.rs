//! A whole answer: the sum of its deltas, and nothing else.

use pelton_engine::TokenScore;

use super::{CallPiece, Delta, Drawn, Finish, Generation};
use crate::error::ApiError;

/// A complete answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Whole {
    /// What the model thought before it.
    pub reasoning: String,
    /// Its text.
    pub text: String,
    /// Its tool calls.
    pub calls: Vec<Call>,
    /// Of the prompt's tokens from the second one on, if they were asked for.
    pub scores: Vec<TokenScore>,
    /// Its tokens.
    pub tokens: Vec<Drawn>,
    /// How it ended.
    pub finish: Finish,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Unique in the world.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// A JSON text.
    pub arguments: String,
}

/// An answer that is being added up.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    reasoning: String,
    text: String,
    calls: Vec<Call>,
    scores: Vec<TokenScore>,
    tokens: Vec<Drawn>,
    finish: Option<Finish>,
}

impl Sum {
    pub(crate) fn add(&mut self, delta: Delta) {
        assert!(self.finish.is_none(), "nothing follows the end of an answer");
        self.reasoning.push_str(&delta.reasoning);
        self.text.push_str(&delta.text);
        self.scores.extend(delta.scores);
        self.tokens.extend(delta.tokens);
        for piece in delta.calls {
            match piece {
                CallPiece::Start { index, id, name } => {
                    assert_eq!(index, self.calls.len(), "calls begin in order");
                    self.calls.push(Call { id, name, arguments: String::new() });
                }
                CallPiece::Arguments { index, delta } => self.calls[index].arguments.push_str(&delta),
            }
        }
        self.finish = delta.finish;
    }

    pub(crate) fn whole(self) -> Whole {
        let finish = self.finish.expect("an answer without an end is an error, and was returned as one");
        let Self { reasoning, text, calls, scores, tokens, .. } = self;
        Whole { reasoning, text, calls, scores, tokens, finish }
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

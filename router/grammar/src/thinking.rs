//! A bound on thoughts: once so many tokens of an answer were reasoning, the mark that ends it is forced, token by token.
//!
//! ```text
//!   thoughts ... thoughts │ close[0] close[1] ... │ the answer
//!     `tokens` of them    │ nothing else allowed  │ as if the model had ended them
//! ```
//!
//! What is reasoning, the one who reads the answer says ([`Watch`]), so that both mean the same. All follows from the tokens alone.

use std::{fmt, sync::Arc};

/// Tokens over the budget that complete a character, at most: UTF-8 has up to 3 bytes behind the first.
const COMPLETING_MAX: u32 = 3;

/// Reads an answer along, to tell where its reasoning is.
pub trait Watch: Send {
    /// The next token.
    fn take(&mut self, token: u32);
    /// Whether what comes now is reasoning.
    fn is_reasoning(&self) -> bool;
    /// Whether the text ends within a character.
    fn is_within_character(&self) -> bool;
}

/// See the top of the file. Cheap to clone.
#[derive(Clone)]
pub struct Budget {
    /// How many tokens of reasoning an answer has at most, the marks around it not counted.
    pub tokens: u32,
    /// The mark that ends it, as tokens; at least one.
    pub close: Arc<[u32]>,
    /// Makes the reader of one answer.
    pub watch: Arc<dyn Fn() -> Box<dyn Watch> + Send + Sync>,
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("tokens", &self.tokens).field("close", &self.close).finish_non_exhaustive()
    }
}

/// One answer's thoughts.
pub struct Thinking {
    budget: Budget,
    watch: Box<dyn Watch>,
    /// Tokens that were reasoning.
    spent: u32,
    /// The latest tokens, fewer than the mark has.
    latest: Vec<u32>,
    /// Nothing but the latest token could have come.
    was_forced: bool,
}

impl Thinking {
    /// Before its first token.
    pub fn new(budget: Budget) -> Self {
        assert!(!budget.close.is_empty(), "no mark of no tokens ends anything");
        let watch = (budget.watch)();
        Self { budget, watch, spent: 0, latest: Vec::new(), was_forced: false }
    }

    /// The next token.
    pub fn take(&mut self, token: u32) {
        self.was_forced = self.forced() == Some(token);
        let was_reasoning = self.watch.is_reasoning();
        self.watch.take(token);
        if was_reasoning && self.watch.is_reasoning() {
            self.spent = self.spent.saturating_add(1);
        }
        self.latest.push(token);
        if self.latest.len() >= self.budget.close.len() {
            self.latest.remove(0);
        }
    }

    /// Whether the tokens end within the mark, or with it, and no choice was left: what there is of it is no thought.
    pub fn is_closing(&self) -> bool {
        self.was_forced || self.begun().is_some_and(|count| count > 0)
    }

    /// The token that has to come next, if one has.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.begun().map(|count| self.budget.close[count])
    }

    /// Of a mark that has to go on, or to begin, the tokens that there are.
    fn begun(&self) -> Option<usize> {
        let left = i64::from(self.budget.tokens) - i64::from(self.spent);
        let completes = self.watch.is_within_character() && left > -i64::from(COMPLETING_MAX);
        if !self.watch.is_reasoning() || left > 0 || completes {
            return None;
        }
        // The model may have begun the mark by itself.
        let is_begun = |count: &usize| self.latest.ends_with(&self.budget.close[..*count]);
        Some((0..=self.latest.len()).rev().find(is_begun).expect("everything ends with nothing"))
    }
}

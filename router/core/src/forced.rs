//! Tokens that a request has no choice about: its mask leaves one of each. They are known without being drawn, and stand in one row.
//!
//! Somebody else knows them ([`Core::force`]), and later than the first of them is planned. So a request whose run is long enough to be
//! worth a pause is held back until nothing of it is in flight; then what is left of the run is known, as if it had been drawn. Nothing
//! depends on when a run is told of: each of its tokens would have been drawn within a mask that allows it alone.

use serde::{Deserialize, Serialize};

use crate::core::Core;
use crate::live::LiveRequest;
use crate::{RequestId, TokenId};

/// A request that waits misses one step, perhaps two. Fewer tokens than this save no more than that.
const WORTH_A_PAUSE: u32 = 3;

/// A run of tokens without a choice.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Forced {
    start: u32, // so many tokens of the request stand before it
    tokens: Vec<TokenId>,
}

impl Core {
    /// The first `drawn` tokens that a request draws can be followed by these alone. Nothing happens if it has ended. Whoever tells how
    /// likely its tokens were, or counts them for penalties, does so where they are drawn: such a request has no runs.
    pub fn force(&mut self, request: RequestId, drawn: u32, tokens: Vec<TokenId>) {
        if let Some(key) = self.requests.find(request) {
            self.requests.get_mut(key).force(drawn, tokens);
        }
    }
}

impl LiveRequest {
    fn force(&mut self, drawn: u32, tokens: Vec<TokenId>) {
        assert!(self.masked && !self.sampling.has_penalties() && self.sampling.logprobs.is_none(), "it has runs");
        assert!(drawn <= self.drawn(), "what is not known yet forces nothing");
        self.forced = Some(Forced { start: self.prompt_len + drawn, tokens });
    }

    /// Whether it is worth a pause: behind so many tokens, those in flight among them, many more are certain.
    pub(crate) fn is_worth_a_pause(&self, tokens: u32) -> bool {
        self.forced.as_ref().is_some_and(|run| run.end().saturating_sub(tokens) >= WORTH_A_PAUSE)
    }

    /// What is certain behind its known tokens. They are known from now on: the caller pushes them.
    pub(crate) fn take_forced(&mut self) -> Vec<TokenId> {
        let Some(mut run) = self.forced.take() else { return Vec::new() };
        let drawn = &self.tokens[run.start as usize..];
        if drawn.iter().zip(&run.tokens).any(|(drawn, forced)| drawn != forced) {
            return Vec::new(); // a worker that draws against its masks is found out by whoever makes these
        }
        run.tokens.drain(..drawn.len().min(run.tokens.len()));
        // Whoever draws leaves no stop token before `min_tokens`, as long as there is a choice: that is the worker's to say.
        let left = self.suppress_until().saturating_sub(self.known()) as usize;
        let stops = run.tokens.iter().take(left).position(|token| self.stop.stop_ids.contains(token));
        run.tokens.truncate(stops.unwrap_or(run.tokens.len()));
        run.tokens
    }
}

impl Forced {
    fn end(&self) -> u32 {
        self.start + u32::try_from(self.tokens.len()).expect("a run is shorter than a context")
    }
}

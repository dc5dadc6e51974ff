//! What goes into the engine for one request, and what comes out.

use std::{sync::Arc, time::Duration};

use pelton_core::{
    CacheScope, Explanation, FinishReason, Goal, Party, RequestId, Sampling, StopRule, TokenId, TokenLogprobs,
    TokenScore,
};
use pelton_grammar::{Grammar, Stuck};
use tokio::sync::mpsc::{UnboundedReceiver, error::TryRecvError};

use crate::{
    embeds::Embeds,
    inbox::{Command, Inbox},
};

/// A request for the engine: everything is checked and tokenised already.
#[derive(Debug, Clone)]
pub struct Submission {
    /// At least one token, each below the vocabulary size; prompt and `max_tokens` fit the context together, or the prompt alone
    /// if it becomes a vector.
    pub prompt: Arc<[TokenId]>,
    /// What the prompt's first tokens only hold the places of, if they do; `scope` names it (see [`crate::Engine::scope_of`]).
    pub embeds: Option<Arc<Embeds>>,
    /// What it gives: what the model does (see [`crate::goal`]). For a vector, `sampling` and `stop` mean nothing.
    pub goal: Goal,
    /// How tokens are drawn. A missing seed was drawn by the caller.
    pub sampling: Sampling,
    /// When it ends.
    pub stop: StopRule,
    /// What its tokens are drawn within; `None`: anything.
    pub grammar: Option<Grammar>,
    /// With whom it may share blocks.
    pub scope: CacheScope,
    /// How long its prompt is to stay in the prefix cache, if there is room.
    pub keep: Option<Duration>,
    /// Smaller first.
    pub priority: i32,
    /// Who is charged for it.
    pub party: Party,
    /// How long after its submission it ends, whatever it has drawn by then.
    pub timeout: Option<Duration>,
}

/// One message of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// The request has entered a batch for the first time. Told once, before anything else.
    Admitted {
        /// Prompt tokens that were found in the prefix cache.
        cached: u32,
    },
    /// A token. The stop token that ends a request comes too, right before `Finished`.
    Token {
        /// Which.
        token: TokenId,
        /// If asked for.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// Prompt tokens behind those told of before, from the second one on, each told once, before anything is drawn.
    Scored(Box<[TokenScore]>),
    /// The vector that the request was there for, as the model makes it; `Finished` follows.
    Vector(Box<[f32]>),
    /// The last message of a request that ended by itself.
    Finished {
        /// Why.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
        /// What it went through.
        explanation: Box<Explanation>,
    },
    /// What the request went through until now. Told when asked for.
    Explained(Box<Explanation>),
    /// The last message of a request that failed.
    Failed(Failure),
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// In the prompt.
    pub prompt: u32,
    /// Of those, found in the prefix cache when the request was first admitted.
    pub cached: u32,
    /// Generated, the stop token included.
    pub completion: u32,
}

/// Why the engine does not take a request or cannot end it. The server turns it into a status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The model is not loaded yet. 503.
    #[error("{0}")]
    Unavailable(String),
    /// The engine drains, or has ended before the answer has. 503.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Too much waits. 429, with the seconds after which to try again.
    #[error("{bound}")]
    QueueFull {
        /// Of what.
        bound: QueueBound,
        /// Seconds until those who wait now will have been let in.
        retry_after_s: u32,
    },
    /// The request could not be served even alone. 400.
    #[error(
        "the request needs {needed} KV blocks of {block_size} tokens; the server has {blocks}: shorten the prompt or `max_tokens`"
    )]
    NeverFits {
        /// Blocks needed.
        needed: usize,
        /// Blocks there are.
        blocks: usize,
        /// Tokens in a block.
        block_size: u32,
    },
    /// The request's time is over. 504.
    #[error("the request was not finished within its {} s", .after.as_secs_f64())]
    Expired {
        /// The time that it had.
        after: Duration,
    },
    /// What the request constrains its answer by is too costly in the midst of it. 400.
    #[error("{0}")]
    Grammar(String),
    /// The words that the request rules out leave nothing of what its answer may go on with. 400.
    #[error("of the tokens that fit, none may be used")]
    NoWord,
    /// Our fault or the worker's, after all that could be tried. 500.
    #[error("{0}")]
    Internal(String),
}

impl Failure {
    /// Of a grammar that cannot go on.
    pub(crate) fn stuck(why: &Stuck) -> Self {
        match why {
            Stuck::NoWord => Self::NoWord,
            Stuck::Because(_) => Self::Grammar(why.to_string()),
            Stuck::TooCostly { log } => {
                tracing::debug!(%log, "a grammar cannot go on");
                Self::Grammar(why.to_string())
            }
        }
    }
}

/// Why the queue takes no request more: the bound, what it got, what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueBound {
    /// See [`crate::QueueLimits::requests`].
    #[error("{waiting} requests are waiting already and there would be {asked} more; allowed (`max-waiting`): {limit}")]
    Requests {
        /// Requests that wait.
        waiting: u64,
        /// Answers that the request asks for: each waits by itself.
        asked: u64,
        /// The bound.
        limit: usize,
    },
    /// See [`crate::QueueLimits::tokens`].
    #[error(
        "{waiting} prompt tokens are waiting already and there would be {asked} more; allowed (`max-waiting-tokens`): {limit}"
    )]
    Tokens {
        /// Prompt tokens that wait.
        waiting: u64,
        /// Those of the request.
        asked: u64,
        /// The bound.
        limit: u64,
    },
    /// See [`crate::QueueLimits::wait`].
    #[error(
        "the request would wait for about {:.1} s; allowed (`max-queue-wait`): {} s",
        .foreseen.as_secs_f64(), .limit.as_secs_f64()
    )]
    Wait {
        /// What is foreseen.
        foreseen: Duration,
        /// The bound.
        limit: Duration,
    },
    /// The queue is full, and its tenant had most of it.
    #[error(
        "the queue is full, and another API key that had fewer requests in it than this one's {waiting} needed the place"
    )]
    Share {
        /// Requests of its tenant that waited, this one included.
        waiting: u64,
    },
}

/// The stream of one request's outputs. Dropping it before its end aborts the request.
pub struct Answer {
    request: RequestId,
    outputs: UnboundedReceiver<Output>,
    inbox: Inbox,
    is_over: bool,
}

impl Answer {
    pub(crate) fn new(request: RequestId, outputs: UnboundedReceiver<Output>, inbox: Inbox) -> Self {
        Self { request, outputs, inbox, is_over: false }
    }

    /// The next output; `None` after the last one.
    pub async fn next(&mut self) -> Option<Output> {
        if self.is_over {
            return None;
        }
        let output = self.outputs.recv().await;
        Some(self.passed(output.unwrap_or_else(engine_is_gone)))
    }

    /// The next output if it is here already.
    pub fn try_next(&mut self) -> Option<Output> {
        if self.is_over {
            return None;
        }
        match self.outputs.try_recv() {
            Ok(output) => Some(self.passed(output)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(self.passed(engine_is_gone())),
        }
    }

    /// The next output, for a caller that is a thread and not a task.
    pub fn blocking_next(&mut self) -> Option<Output> {
        if self.is_over {
            return None;
        }
        let output = self.outputs.blocking_recv();
        Some(self.passed(output.unwrap_or_else(engine_is_gone)))
    }

    /// Ends the request from outside: its text reached a stop string. Nothing more comes.
    pub fn finish(&mut self) {
        if !self.is_over {
            self.is_over = true;
            self.inbox.send(Command::Finish(self.request));
        }
    }

    /// Asks what the request went through. The answer is among the outputs: `Explained`, or `Finished` if it ended before.
    pub fn explain(&mut self) {
        self.inbox.send(Command::Explain(self.request));
    }

    fn passed(&mut self, output: Output) -> Output {
        self.is_over = matches!(output, Output::Finished { .. } | Output::Failed(_));
        output
    }
}

fn engine_is_gone() -> Output {
    Output::Failed(Failure::ShuttingDown)
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.is_over {
            self.inbox.send(Command::Abort(self.request));
        }
    }
}

//! Beam search: the likeliest answers that are found by going on, token by token, with the likeliest beginnings.
//!
//! Every token of a beam is a request of its own to the engine: the prompt, and what the beam has. All of it but the last token lies
//! in the prefix cache, found to the token, so that a step computes one token for each beam, together with everybody else's. What it
//! finds is handed on like any answer's outputs, at the end.
//!
//! Never here: which beams go on (`beams/frontier.rs`).

mod frontier;

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use pelton_engine::{
    Answer, Engine, Explanation, Failure, GoingOn, Output, Sampling, StopRule, Submission, TokenLogprobs, Usage,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{AbortHandle, spawn},
};

use self::frontier::{Beam, Frontier, Rules};
use super::{
    options::{ModelFacts, Options},
    repetition::REPETITION,
    words::{ALLOWED_TOKEN_IDS, BAD_WORDS},
};
use crate::error::ApiError;

/// In the prompts and answers of all beams at most: every step goes through all of them.
const TOKENS_MAX: u64 = 1 << 20;

/// How answers are searched for, instead of drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamSearch {
    /// 0: scores are log-probabilities; 1: those of a token on average; larger: longer answers are better.
    pub length_penalty: f32,
    /// Whether it ends as soon as there are enough complete answers, though better ones might come.
    pub early_stopping: bool,
}

impl Default for BeamSearch {
    fn default() -> Self {
        Self { length_penalty: 1.0, early_stopping: false }
    }
}

/// Refuses what a search cannot do: nothing is drawn, and nothing holds a text back to look for its end.
pub(super) fn check(options: &Options, submission: &Submission, facts: &ModelFacts<'_>) -> Result<(), ApiError> {
    let differs = |value: Option<f32>, neutral: f32| value.is_some_and(|value| value != neutral);
    let without_part = [
        // At 0 nothing is drawn, and at 1 probabilities are the model's: both are so here.
        ("temperature", differs(options.temperature, 0.0) && differs(options.temperature, 1.0)),
        ("top_k", options.top_k.is_some_and(|top_k| top_k > 0)),
        ("top_p", differs(options.top_p, 1.0)),
        ("min_p", differs(options.min_p, 0.0)),
        ("repetition_penalty", differs(options.repetition_penalty, 1.0)),
        ("presence_penalty", differs(options.presence_penalty, 0.0)),
        ("frequency_penalty", differs(options.frequency_penalty, 0.0)),
        ("logit_bias", !options.logit_bias.is_empty()),
        (ALLOWED_TOKEN_IDS, options.words.allowed.is_some()),
        (BAD_WORDS, !options.words.bad.is_empty()),
        (REPETITION, options.repetition.is_some()),
        ("stop", !options.stop.is_empty()),
    ];
    if let Some((param, _)) = without_part.iter().find(|(_, is_asked)| *is_asked) {
        let reason = "has no part in a beam search: leave it out, or `use_beam_search`".to_owned();
        return Err(ApiError::Conflict { param: (*param).to_owned(), reason });
    }
    if submission.grammar.is_some() {
        let reason =
            "cannot search for answers of a given form: formats, tools that are called by grammar, budgets of thoughts";
        return Err(ApiError::Conflict { param: "use_beam_search".to_owned(), reason: reason.to_owned() });
    }
    // A worker tells of so many continuations of a beam, and each token that ends answers may take the place of one.
    let (told, ends) = (facts.limits.max_logprobs.min(facts.vocab_size) as usize, submission.stop.stop_ids.len());
    if ends >= told {
        let allowed =
            format!("fewer than {told} tokens that end the answer, the model's own included, with `use_beam_search`");
        return Err(ApiError::invalid("stop_token_ids", format_args!("{ends} tokens in all"), allowed));
    }
    if options.n as usize > told - ends {
        let allowed = format!("1 to {} with `use_beam_search`: each answer is a beam", told - ends);
        return Err(ApiError::invalid("n", options.n, allowed));
    }
    let tokens = (submission.prompt.len() as u64 + u64::from(submission.stop.max_tokens)) * u64::from(options.n);
    if tokens > TOKENS_MAX {
        let got = format!("{tokens} tokens of prompts and answers of all {} beams", options.n);
        let allowed = format!("so many that these are at most {TOKENS_MAX}, with `use_beam_search`");
        return Err(ApiError::invalid("max_tokens", got, allowed));
    }
    Ok(())
}

/// Starts a search for `width` answers, which come best first. The first step is submitted at once, so that a full queue is told of
/// at once, too.
pub(super) fn search(engine: &Engine, base: Submission, asked: BeamSearch, width: u32) -> Result<Vec<Found>, Failure> {
    let rules = Rules { asked, width: width as usize, stop: base.stop.clone() };
    let mut search = Search {
        engine: engine.go_on(),
        began: Instant::now(),
        frontier: Frontier::new(rules),
        base,
        usage: Usage::default(),
        explanation: None,
    };
    let first = engine.submit(search.submissions()?)?;
    search.base.keep = None; // the first one keeps the prompt, and scores it
    search.base.sampling.prompt_logprobs = None;
    // Once begun it does not wait for each token behind all those of its like.
    search.base.priority = search.base.priority.saturating_sub(1);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..width).map(|_| unbounded_channel()).unzip();
    let task = spawn(async move {
        let told = search.run(first, &senders).await;
        search.tell(told, senders);
    });
    let task = Arc::new(AbortOnDrop(task.abort_handle()));
    Ok(receivers.into_iter().map(|outputs| Found { outputs, _task: Arc::clone(&task) }).collect())
}

/// One of a search's answers. The search ends when nobody waits for any of them.
pub(super) struct Found {
    outputs: UnboundedReceiver<Output>,
    _task: Arc<AbortOnDrop>,
}

impl Found {
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Output> {
        let lost = || Output::Failed(Failure::Internal("a beam search ended without an answer".to_owned()));
        self.outputs.poll_recv(context).map(|output| output.unwrap_or_else(lost))
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Search {
    engine: GoingOn,
    began: Instant,
    /// What is asked of the answers; each step asks the engine for one token.
    base: Submission,
    frontier: Frontier,
    usage: Usage,
    explanation: Option<Box<Explanation>>,
}

impl Search {
    async fn run(&mut self, first: Vec<Answer>, senders: &[UnboundedSender<Output>]) -> Result<(), Failure> {
        let mut answers = first;
        loop {
            let mut next = Vec::with_capacity(answers.len());
            for answer in &mut answers {
                next.push(self.token(answer, senders).await?);
            }
            if !self.frontier.advance(&next) {
                return Ok(());
            }
            answers = self.engine.submit(self.submissions()?)?;
        }
    }

    /// What asks for that which follows each beam.
    fn submissions(&self) -> Result<Vec<Submission>, Failure> {
        let timeout = self.base.timeout.map(|allowed| allowed.saturating_sub(self.began.elapsed()));
        if let Some(after) = self.base.timeout.filter(|_| timeout == Some(Duration::ZERO)) {
            return Err(Failure::Expired { after });
        }
        let sampling = Sampling {
            logprobs: Some(self.frontier.looked_at()),
            prompt_logprobs: self.base.sampling.prompt_logprobs,
            ..Sampling::greedy()
        };
        let stop = StopRule { max_tokens: 1, min_tokens: 0, stop_ids: [].into() };
        let one = |beam: &Beam| Submission {
            prompt: self.base.prompt.iter().chain(&beam.tokens).copied().collect(),
            sampling: sampling.clone(),
            stop: stop.clone(),
            timeout,
            ..self.base.clone()
        };
        Ok(self.frontier.going().iter().map(one).collect())
    }

    /// Waits for what follows a beam. What comes before the first token of all is passed on.
    async fn token(
        &mut self,
        answer: &mut Answer,
        senders: &[UnboundedSender<Output>],
    ) -> Result<Arc<TokenLogprobs>, Failure> {
        let mut next = None;
        loop {
            match answer.next().await {
                Some(Output::Token { logprobs, .. }) => next = logprobs,
                Some(Output::Failed(failure)) => return Err(failure),
                Some(Output::Finished { usage, explanation, .. }) => {
                    if self.explanation.is_none() {
                        (self.usage, self.explanation) = (usage, Some(explanation));
                    }
                    return Ok(Arc::from(next.expect("a token comes before the end, with what was asked for")));
                }
                Some(output) if self.explanation.is_none() => {
                    // Nobody who has left is told.
                    senders.iter().for_each(|sender| drop(sender.send(output.clone())));
                }
                Some(_) => {}
                None => unreachable!("an answer's last output is its end"),
            }
        }
    }

    /// Hands on what was found, as if it had been drawn.
    fn tell(self, told: Result<(), Failure>, senders: Vec<UnboundedSender<Output>>) {
        let Self { frontier, base, usage, explanation, .. } = self;
        let found = match (told, explanation) {
            (Ok(()), Some(explanation)) => Ok((frontier.found(), explanation)),
            (Ok(()), None) => unreachable!("every step of a search has a request"),
            (Err(failure), _) => Err(failure),
        };
        for (index, sender) in senders.into_iter().enumerate() {
            let outputs = match &found {
                Ok((beams, explanation)) => outputs(&beams[index], usage, explanation, base.sampling.logprobs),
                Err(failure) => vec![Output::Failed(failure.clone())],
            };
            outputs.into_iter().for_each(|output| drop(sender.send(output)));
        }
    }
}

/// What the engine would have told of an answer.
fn outputs(beam: &Beam, usage: Usage, explanation: &Explanation, logprobs: Option<u32>) -> Vec<Output> {
    let mut outputs = Vec::with_capacity(beam.tokens.len() + 1);
    for (&token, (chosen, next)) in beam.tokens.iter().zip(&beam.logprobs) {
        let logprobs = logprobs.map(|top| {
            let top = next.top.iter().take(top as usize).copied().collect();
            Box::new(TokenLogprobs { chosen: *chosen, top })
        });
        outputs.push(Output::Token { token, logprobs });
    }
    let usage = Usage { completion: beam.len(), ..usage };
    outputs.push(Output::Finished { reason: beam.reason, usage, explanation: Box::new(explanation.clone()) });
    outputs
}

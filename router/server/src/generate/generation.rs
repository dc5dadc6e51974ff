//! All answers of one request, as they come.
//!
//! Dropping a [`Generation`] before its end aborts what still runs: a client that leaves costs nothing more.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pelton_engine::{Answer, Failure, Output, Submission, TokenScore, Usage};

use super::{
    Options, PreparedPrompt, Request, Terms,
    beams::{self, Found},
    checked::{Checked, length, refuse_vectors},
    constrain::form_of,
    follow::{Delta, Ending, Finish, Followed, Follower},
    serving::Serving,
};
use crate::{
    error::ApiError,
    metrics::{RequestClock, Siblings},
};

/// Answers under way.
pub struct Generation {
    prompts: Vec<PreparedPrompt>,
    answers_per_prompt: usize,
    choices: Vec<Choice>,
    timeout: Option<Duration>,
    /// What it is if words that are ruled out leave nothing in the midst of an answer.
    no_word: ApiError,
    /// The parameter that constrains answers.
    form: Option<String>,
    /// Of each prompt, if its first answer alone brings them: the others wait for them, and tell them too.
    scores: Option<Vec<Option<Vec<TokenScore>>>>,
}

/// One answer, and where it comes from.
struct Choice {
    source: Source,
    follower: Follower,
    clock: RequestClock,
    explains: bool,
    /// It has not told the prompt's scores, which come from the first answer to it.
    lacks_scores: bool,
}

enum Source {
    Engine(Answer),
    /// It has ended by a stop string, and the engine was asked what it went through.
    Explaining(Answer, Finish),
    /// An answer of no tokens: only the prompt is shown.
    Nothing(Usage),
    /// It is searched for.
    Search(Found),
    Over,
}

impl Serving {
    /// Starts a request: checks, renders, tokenises and submits it.
    pub async fn generate(self: &Arc<Self>, mut request: Request, terms: Terms) -> Result<Generation, ApiError> {
        let terms = terms.within(self.limits.request_timeout);
        let model = self.ready()?;
        refuse_vectors(&model)?;
        let facts = self.facts(&model);
        let Checked { prompts, submissions, rules, has_a_form } = self.checked(&mut request, &terms, &facts).await?;
        let n = request.options.n;
        let rules = rules.iter().flat_map(|rules| std::iter::repeat_n(rules, n as usize));
        let sources = self.sources(&request.options, submissions)?;
        let shares_scores = request.options.prompt_logprobs.is_some() && request.options.beams.is_none();
        let siblings: Vec<_> = prompts.iter().map(|_| Siblings::new(n)).collect();
        let choices = sources.into_iter().zip(rules).enumerate().map(|(index, (source, rules))| {
            let is_first = index.is_multiple_of(n as usize);
            let clock = RequestClock::new(&self.metrics, terms.arrival, rules.max_tokens);
            Choice {
                source,
                follower: Follower::new(&self.tokenizer, Arc::clone(rules)),
                clock: clock.among(&siblings[index / n as usize]),
                explains: false,
                lacks_scores: shares_scores && !is_first,
            }
        });
        let choices = choices.collect();
        // A prompt of one token has none.
        let scores = |prompt: &PreparedPrompt| (prompt.ids.len() == 1).then(Vec::new);
        let scores = shares_scores.then(|| prompts.iter().map(scores).collect());
        let form = has_a_form.then(|| form_of(&request));
        let no_word = request.options.words.nothing_left(form.as_deref(), "where an answer had to go on");
        Ok(Generation {
            prompts,
            answers_per_prompt: n as usize,
            choices,
            timeout: terms.timeout,
            no_word,
            form,
            scores,
        })
    }

    /// Where the answers to prompts come from, `n` to each.
    fn sources(&self, options: &Options, submissions: Vec<Submission>) -> Result<Vec<Source>, ApiError> {
        let n = options.n;
        if submissions.iter().all(|submission| submission.stop.max_tokens == 0) {
            // An echo alone asks the engine for nothing.
            let nothing = submissions.iter().map(|submission| Usage { prompt: length(submission), ..Usage::default() });
            return Ok(nothing.flat_map(|usage| (0..n).map(move |_| Source::Nothing(usage))).collect());
        }
        if let Some(asked) = options.beams {
            let found = submissions.into_iter().map(|submission| beams::search(&self.engine, submission, asked, n));
            let found: Vec<_> = found.collect::<Result<_, _>>()?;
            return Ok(found.into_iter().flatten().map(Source::Search).collect());
        }
        let one = |submission: &Submission, index| {
            let mut submission = submission.clone();
            submission.sampling.seed = submission.sampling.seed.wrapping_add(u64::from(index));
            submission.sampling.prompt_logprobs = submission.sampling.prompt_logprobs.filter(|_| index == 0);
            submission
        };
        let all = submissions.iter().flat_map(|submission| (0..n).map(move |index| one(submission, index)));
        Ok(self.engine.submit(all.collect())?.into_iter().map(Source::Engine).collect())
    }
}

impl Generation {
    /// Every answer's end shall tell what it went through. To be said before the first `next`.
    pub fn explain(&mut self) {
        self.choices.iter_mut().for_each(|choice| choice.explains = true);
    }

    /// The prompts, as they were tokenised.
    pub fn prompts(&self) -> &[PreparedPrompt] {
        &self.prompts
    }

    /// How many answers there are.
    pub fn choices(&self) -> usize {
        self.choices.len()
    }

    /// Which prompt an answer belongs to.
    pub fn prompt_of(&self, choice: usize) -> usize {
        choice / self.answers_per_prompt
    }

    /// Whether every answer is complete.
    pub fn is_over(&self) -> bool {
        self.choices.iter().all(|choice| matches!(choice.source, Source::Over))
    }

    /// Waits until something has come, and returns all that has: at most one delta per answer, none that is empty.
    /// No deltas at all: every answer is complete. Safe to cancel.
    pub async fn next(&mut self) -> Result<Vec<Delta>, ApiError> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<Delta>, ApiError>> {
        let mut deltas = Vec::new();
        let mut is_going = false;
        for (index, choice) in self.choices.iter_mut().enumerate() {
            let mut delta = Delta { choice: index, ..Delta::default() };
            let scores = self.scores.as_mut().map(|scores| &mut scores[index / self.answers_per_prompt]);
            if choice.lacks_scores {
                let Some(Some(scores)) = &scores else {
                    is_going = true;
                    continue;
                };
                (delta.scores, choice.lacks_scores) = (scores.clone(), false);
            }
            if let Err(failure) = choice.poll_into(context, &mut delta) {
                // Nobody left: the others end with this one.
                self.choices.iter_mut().for_each(|choice| choice.clock.failed());
                return Poll::Ready(Err(match (failure, self.timeout) {
                    // The engine knows what was left of it.
                    (Failure::Expired { .. }, Some(allowed)) => ApiError::DeadlineExceeded { allowed },
                    (Failure::NoWord, _) => self.no_word.clone(),
                    (Failure::Grammar(reason), _) => match self.form.clone() {
                        Some(param) => ApiError::CostlyGrammar { param, reason },
                        None => Failure::Grammar(reason).into(),
                    },
                    (failure, _) => failure.into(),
                }));
            }
            is_going |= !matches!(choice.source, Source::Over);
            if let Some(scores) = scores.filter(|scores| scores.is_none() && !delta.scores.is_empty()) {
                *scores = Some(delta.scores.clone());
            }
            if !delta.is_empty() {
                deltas.push(delta);
            }
        }
        if deltas.is_empty() && is_going { Poll::Pending } else { Poll::Ready(Ok(deltas)) }
    }
}

impl Choice {
    /// Takes all that is here. Registers for more if the answer is not over.
    fn poll_into(&mut self, context: &mut Context<'_>, delta: &mut Delta) -> Result<(), Failure> {
        loop {
            let output = match &mut self.source {
                Source::Over => return Ok(()),
                Source::Nothing(usage) => {
                    let (ending, usage) = (Ending::Length, *usage);
                    let (reasoning_tokens, explanation) = (None, None);
                    delta.finish = Some(Finish { ending, has_calls: false, usage, reasoning_tokens, explanation });
                    self.over(delta);
                    return Ok(());
                }
                Source::Explaining(..) => {
                    if self.poll_explanation(context, delta).is_ready() {
                        self.over(delta);
                    }
                    return Ok(());
                }
                // The future holds no state of its own: dropped while pending, it loses nothing.
                Source::Engine(answer) => pin!(answer.next())
                    .poll(context)
                    .map(|output| output.expect("an answer is over after its last output alone")),
                Source::Search(found) => found.poll_next(context),
            };
            let Poll::Ready(output) = output else {
                self.clock.drawn(delta.tokens.len());
                return Ok(());
            };
            if matches!(output, Output::Admitted { .. }) {
                self.clock.admitted();
            }
            match self.follower.push(output, delta).inspect_err(|_| self.clock.failed())? {
                Followed::Going => {}
                Followed::Enough if self.explains => self.ask_for_explanation(delta),
                Followed::Enough => {
                    if let Source::Engine(answer) = &mut self.source {
                        answer.finish();
                    }
                    self.over(delta);
                }
                Followed::Over => self.over(delta),
            }
        }
    }

    fn ask_for_explanation(&mut self, delta: &mut Delta) {
        let finish = delta.finish.take().expect("the follower has seen the end");
        if let Source::Engine(mut answer) = std::mem::replace(&mut self.source, Source::Over) {
            answer.explain();
            self.source = Source::Explaining(answer, finish);
        }
    }

    /// Waits for the explanation, past tokens that nobody shows any more. Without one the answer is complete as well.
    fn poll_explanation(&mut self, context: &mut Context<'_>, delta: &mut Delta) -> Poll<()> {
        let Source::Explaining(answer, finish) = &mut self.source else { return Poll::Ready(()) };
        let explanation = loop {
            match ready!(pin!(answer.next()).poll(context)) {
                Some(Output::Explained(explanation) | Output::Finished { explanation, .. }) => break Some(explanation),
                Some(Output::Admitted { .. } | Output::Scored(_) | Output::Token { .. } | Output::Vector(_)) => {}
                Some(Output::Failed(_)) | None => break None,
            }
        };
        answer.finish();
        delta.finish = Some(Finish { explanation, ..finish.clone() });
        Poll::Ready(())
    }

    fn over(&mut self, delta: &Delta) {
        self.source = Source::Over;
        self.clock.drawn(delta.tokens.len());
        if let Some(finish) = &delta.finish {
            self.clock.finished(finish);
        }
    }
}

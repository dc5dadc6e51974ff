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

use pelton_engine::{Answer, Failure, Gives, Grammar, ModelReport, Output, StopRule, Submission, TokenScore, Usage};
use pelton_text::{Certain, Format, Reading, Tools};
use serde_json::Value;

use super::{
    ChatStart, Options, PreparedPrompt, Prompt, Request, Terms,
    beams::{self, Found},
    constrain::form_of,
    follow::{Delta, Ending, Finish, Followed, Follower},
    options::ModelFacts,
    rules::TextRules,
    serving::Serving,
};
use crate::{error::ApiError, metrics::RequestClock};

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

/// How many log-probabilities of prompts the answers to a request tell at most.
const PROMPT_LOGPROBS_MAX: u64 = 1 << 22;

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
        request.options.check_rest(&facts)?;
        self.check_choices(&request)?;
        if request.tools.is_some() && !self.format.as_ref().is_some_and(Format::has_calls) {
            let reason = "cannot be used: the model's chat template asks for tool calls in no form that is read here";
            return Err(ApiError::Conflict { param: "tools".to_owned(), reason: reason.to_owned() });
        }
        let is_chat = request.prompts.iter().any(super::Prompt::is_chat);
        let offered = offered(&request.prompts);
        let tools = request.tools.as_ref().map(|_| Arc::new(Tools::new(&offered)));
        let purpose = request.purpose();
        let tokenized = self.tokenize(std::mem::take(&mut request.prompts), purpose);
        let prompts = self.in_time(&terms, tokenized).await?;
        let words = self.in_time(&terms, self.words(&request.options.words)).await?;
        let certain = self.certain(&request, &offered);
        let n = request.options.n;
        let (mut scores_told, mut has_a_form) = (0, false);
        let (mut submissions, mut all_rules) = (Vec::new(), Vec::new());
        for prompt in &prompts {
            let grammar = self.in_time(&terms, self.grammar(&request, &offered, prompt)).await?;
            let form = self.form(&request, prompt, tools.clone(), certain);
            let grammar = self.limit_thoughts(grammar, &request, prompt, form.as_ref(), &facts)?;
            has_a_form |= grammar.as_ref().is_some_and(Grammar::has_form);
            let limited = self.limit_words(grammar, &words, &request, &facts);
            let grammar = self.in_time(&terms, limited).await?;
            let mut submission = self.submission(&request, &terms, prompt, is_chat, grammar, &facts)?;
            all_rules.push(Arc::new(self.rules(&request, form, &submission, &facts)));
            if submission.stop.max_tokens == 0 && submission.sampling.prompt_logprobs.is_some() {
                // The engine ends a request by what it draws. This one token costs nothing, and nobody sees it.
                submission.stop = StopRule { max_tokens: 1, min_tokens: 0, stop_ids: [].into() };
                submission.grammar = None;
            }
            scores_told += scores_of(&submission, n);
            check_scores(scores_told)?;
            if request.options.beams.is_some() {
                beams::check(&request.options, &submission, &facts)?;
            }
            submissions.push(submission);
        }
        let rules = all_rules.iter().flat_map(|rules| std::iter::repeat_n(rules, n as usize));
        let sources = self.sources(&request.options, submissions)?;
        let shares_scores = request.options.prompt_logprobs.is_some() && request.options.beams.is_none();
        let choices = sources.into_iter().zip(rules).enumerate().map(|(index, (source, rules))| Choice {
            source,
            follower: Follower::new(&self.tokenizer, Arc::clone(rules)),
            clock: RequestClock::new(&self.metrics, terms.arrival, n, rules.max_tokens),
            explains: false,
            lacks_scores: shares_scores && !index.is_multiple_of(n as usize),
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

    /// Work on a request's text. What comes after it, the engine ends in time.
    pub(super) async fn in_time<T>(
        &self,
        terms: &Terms,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let (Some(left), Some(allowed)) = (terms.left(), terms.timeout) else { return work.await };
        tokio::time::timeout(left, work).await.unwrap_or_else(|_| {
            self.metrics.expired_in_text();
            Err(ApiError::DeadlineExceeded { allowed })
        })
    }

    fn check_choices(&self, request: &Request) -> Result<(), ApiError> {
        let most = self.limits.max_choices;
        let prompts = request.prompts.len();
        if prompts == 0 || prompts > most {
            return Err(ApiError::invalid("prompt", format_args!("{prompts} prompts"), format!("1 to {most} prompts")));
        }
        if prompts.saturating_mul(request.options.n as usize) > most {
            let got = format!("{}, for each of {prompts} prompts", request.options.n);
            return Err(ApiError::invalid("n", got, format!("at most {most} answers to one request")));
        }
        Ok(())
    }

    /// How the answers to a chat are split into their parts.
    fn form(
        &self,
        request: &Request,
        prompt: &PreparedPrompt,
        tools: Option<Arc<Tools>>,
        certain: Certain,
    ) -> Option<(Format, Reading)> {
        let ChatStart { in_reasoning, .. } = prompt.chat?;
        let shows_special = !request.options.skip_special;
        let reading = Reading { starts_in_reasoning: in_reasoning, tools, shows_special, certain };
        self.format.clone().map(|format| (format, reading))
    }

    fn rules(
        &self,
        request: &Request,
        form: Option<(Format, Reading)>,
        submission: &Submission,
        facts: &ModelFacts<'_>,
    ) -> TextRules {
        let options = &request.options;
        TextRules {
            stop: options.stop.clone(),
            include_stop: options.include_stop,
            stop_ids: Arc::clone(&submission.stop.stop_ids),
            eos_ids: facts.eos_ids.to_vec(),
            max_tokens: submission.stop.max_tokens,
            min_tokens: options.min_tokens,
            repetition: options.repetition,
            skip_special: options.skip_special,
            tools: request.tools.as_ref().map(|tools| tools.reading),
            form,
            prompt: length(submission),
        }
    }
}

/// How many log-probabilities of its prompt the answers tell.
fn scores_of(submission: &Submission, n: u32) -> u64 {
    let top = submission.sampling.prompt_logprobs;
    top.map_or(0, |top| submission.prompt.len() as u64 * (u64::from(top) + 1) * u64::from(n))
}

fn check_scores(told: u64) -> Result<(), ApiError> {
    if told <= PROMPT_LOGPROBS_MAX {
        return Ok(());
    }
    let got = format!("{told} log-probabilities of prompts and more, with those of all answers");
    Err(ApiError::invalid("prompt_logprobs", got, format!("at most {PROMPT_LOGPROBS_MAX} in all")))
}

fn length(submission: &Submission) -> u32 {
    u32::try_from(submission.prompt.len()).expect("the prompt fits the context")
}

/// A model that gives vectors writes nothing.
fn refuse_vectors(model: &ModelReport) -> Result<(), ApiError> {
    let (gives, instead) = match model.pooling.as_ref().map(|pooling| &pooling.gives) {
        None => return Ok(()),
        Some(Gives::Embedding { .. }) => ("embeddings, and no text", "/v1/embeddings, /score or /rerank"),
        Some(Gives::Classes { .. }) => ("classes, and no text", "/classify, /score or /rerank"),
    };
    let refused = "this request".to_owned();
    Err(ApiError::WrongModelKind { gives, refused, instead: instead.to_owned() })
}

/// The tools of a request's chats.
fn offered(prompts: &[Prompt]) -> Vec<Value> {
    let of_chat = |prompt: &Prompt| match prompt {
        Prompt::Chat { input, .. } | Prompt::LongChat { input, .. } => input.tools.clone(),
        Prompt::Text { .. } | Prompt::Between { .. } | Prompt::Ids(_) | Prompt::Embeds { .. } => None,
    };
    prompts.iter().filter_map(of_chat).flatten().collect()
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

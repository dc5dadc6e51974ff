//! A request as the engine is asked: everything that it may be refused for before it runs.
//!
//! What is answered and what is only rendered come through here, so that both are refused for the same, in the same words.

use std::sync::Arc;

use pelton_engine::{Gives, Grammar, ModelReport, StopRule, Submission, TokenId};
use pelton_grammar::Constraint;
use pelton_text::{Certain, Detokenizer, Format, Reading, Tools};
use serde_json::Value;

use super::{
    ChatStart, Demand, PreparedPrompt, Prompt, Request, Terms, beams, options::ModelFacts, rules::TextRules,
    serving::Serving,
};
use crate::error::ApiError;

/// How many log-probabilities of prompts the answers to a request tell at most.
const PROMPT_LOGPROBS_MAX: u64 = 1 << 22;

/// A request that nothing is wrong with.
pub(super) struct Checked {
    pub(super) prompts: Vec<PreparedPrompt>,
    /// Of each prompt.
    pub(super) submissions: Vec<Submission>,
    /// Of each prompt, how its answers are read.
    pub(super) rules: Vec<Arc<TextRules>>,
    /// Whether something constrains an answer's form.
    pub(super) has_a_form: bool,
}

impl Serving {
    /// The prompts of a request that is answered elsewhere. It is refused for what its answers would be refused for here, as far as that is
    /// known of a model that may still load.
    pub(crate) async fn render(self: &Arc<Self>, mut request: Request) -> Result<Vec<PreparedPrompt>, ApiError> {
        let loaded = self.status.borrow().model.clone();
        loaded.as_ref().map_or(Ok(()), refuse_vectors)?;
        for prompt in &request.prompts {
            if let Prompt::Embeds { param, .. } = prompt {
                let reason = "has no tokens that could be told; `/v1/completions` answers it".to_owned();
                return Err(ApiError::Conflict { param: param.clone(), reason });
            }
        }
        let facts = self.facts_so_far();
        Ok(self.checked(&mut request, &Terms::now(), &facts).await?.prompts)
    }

    /// Checks, renders and tokenises a request, and takes its prompts.
    pub(super) async fn checked(
        self: &Arc<Self>,
        request: &mut Request,
        terms: &Terms,
        facts: &ModelFacts<'_>,
    ) -> Result<Checked, ApiError> {
        request.options.check_rest(facts)?;
        self.check_choices(request)?;
        if request.tools.is_some() && !self.format.as_ref().is_some_and(Format::has_calls) {
            let reason = "cannot be used: the model's chat template asks for tool calls in no form that is read here";
            return Err(ApiError::Conflict { param: "tools".to_owned(), reason: reason.to_owned() });
        }
        let is_chat = request.prompts.iter().any(Prompt::is_chat);
        let offered = offered(&request.prompts);
        let tools = request.tools.as_ref().map(|_| Arc::new(Tools::new(&offered)));
        let purpose = request.purpose();
        let tokenized = self.tokenize(std::mem::take(&mut request.prompts), purpose);
        let prompts = self.in_time(terms, tokenized).await?;
        let words = self.in_time(terms, self.words(&request.options.words)).await?;
        let certain = self.certain(request, &offered);
        let n = request.options.n;
        let (mut scores_told, mut has_a_form) = (0, false);
        let (mut submissions, mut all_rules) = (Vec::new(), Vec::new());
        for prompt in &prompts {
            let grammar = self.in_time(terms, self.grammar(request, &offered, prompt)).await?;
            let form = self.form(request, prompt, tools.clone(), certain);
            let limited = self.limit_thoughts(grammar, request, prompt, form.as_ref(), facts);
            let grammar = self.in_time(terms, limited).await?;
            has_a_form |= grammar.as_ref().is_some_and(Grammar::has_form);
            let limited = self.limit_words(grammar, &words, request, facts);
            let grammar = self.in_time(terms, limited).await?;
            let mut submission = self.submission(request, terms, prompt, is_chat, grammar, facts)?;
            all_rules.push(Arc::new(self.rules(request, form, prompt, &submission, facts)));
            if submission.stop.max_tokens == 0 && submission.sampling.prompt_logprobs.is_some() {
                // The engine ends a request by what it draws. This one token costs nothing, and nobody sees it.
                submission.stop = StopRule { max_tokens: 1, min_tokens: 0, stop_ids: [].into() };
                submission.grammar = None;
            }
            scores_told += scores_of(&submission, n);
            check_scores(scores_told)?;
            if request.options.beams.is_some() {
                beams::check(&request.options, &submission, facts)?;
            }
            submissions.push(submission);
        }
        Ok(Checked { prompts, submissions, rules: all_rules, has_a_form })
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
        let ChatStart { in_reasoning, is_continued, .. } = prompt.chat?;
        let shows_special = !request.options.skip_special;
        let is_demanded = request.tools.as_ref().is_some_and(|tools| tools.demand != Demand::Nothing);
        let has_form = match request.options.constrained.as_ref().map(|wish| &wish.constraint) {
            Some(Constraint::Tags(form)) => !is_demanded && !form.has_free_text(),
            // It may have control tokens.
            Some(Constraint::Grammar(_)) | None => false,
            Some(_) => !is_demanded,
        };
        let starts_in_reasoning = in_reasoning;
        let reading = Reading { starts_in_reasoning, is_continued, tools, shows_special, certain, has_form };
        self.format.clone().map(|format| (format, reading))
    }

    fn rules(
        &self,
        request: &Request,
        form: Option<(Format, Reading)>,
        prompt: &PreparedPrompt,
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
            thoughts: submission.grammar.as_ref().and_then(Grammar::thinking).cloned(),
            prompt: length(submission),
            behind: behind(prompt),
        }
    }
}

/// The tokens from whose text its answers go on.
fn behind(prompt: &PreparedPrompt) -> Vec<TokenId> {
    let is_text = prompt.embeds.is_none() && prompt.chat.is_none_or(|chat| chat.is_continued);
    let kept = if is_text { prompt.ids.len().min(Detokenizer::BEHIND) } else { 0 };
    prompt.ids[prompt.ids.len() - kept..].to_vec()
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

pub(super) fn length(submission: &Submission) -> u32 {
    u32::try_from(submission.prompt.len()).expect("the prompt fits the context")
}

/// A model that gives vectors writes nothing.
pub(super) fn refuse_vectors(model: &ModelReport) -> Result<(), ApiError> {
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

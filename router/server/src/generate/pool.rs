//! Texts to vectors: tokenised, submitted side by side, waited for. What a vector becomes is the API's business.

use std::sync::Arc;

use pelton_engine::{
    Answer, CacheScope, Failure, ModelReport, Output, Party, Pooling, Sampling, StopRule, Submission, TokenId, goal,
};
use pelton_text::{Texts, TokenBounds};

use super::{Terms, options::in_vocabulary, prepare::check_countable, serving::Serving};
use crate::{error::ApiError, metrics::RequestClock};

/// What becomes a vector, and how a request calls it: "input\[3\]".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolInput {
    /// Its path in the request.
    pub param: String,
    /// What it is.
    pub content: PoolContent,
}

/// See [`PoolInput`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolContent {
    /// A text.
    Text(String),
    /// Its tokens.
    Ids(Vec<TokenId>),
    /// Two texts that the model compares.
    Pair(Arc<str>, String),
}

/// How many of its first tokens are taken of what is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// It is refused.
    Never,
    /// As many as the model takes.
    ToModel,
    /// So many.
    To(u32),
}

/// What is to become vectors, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRequest {
    /// At least one; a vector of each is given, in their order.
    pub inputs: Vec<PoolInput>,
    /// Whether the tokenizer adds its special tokens to texts.
    pub add_special: bool,
    /// What happens to inputs that are too long.
    pub truncation: Truncation,
    /// Of a text, or of the second one of a pair, only so many tokens are taken.
    pub last_text_max: Option<u32>,
    /// Smaller first.
    pub priority: Option<i32>,
    /// Requests with different salts share no cached blocks.
    pub cache_salt: Option<String>,
    /// Who asks, as the client says.
    pub user: Option<String>,
}

/// A vector, as the model makes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Pooled {
    /// Neither normalised, nor cut, nor activated.
    pub vector: Box<[f32]>,
    /// Tokens that it was made of.
    pub tokens: u32,
}

impl Serving {
    /// What the loaded model gives instead of text. `route` names who asks.
    pub(crate) fn pooling(&self, route: &str) -> Result<Pooling, ApiError> {
        self.ready()?.pooling.ok_or_else(|| ApiError::WrongModelKind {
            gives: "text, and no vectors",
            refused: route.to_owned(),
            instead: "/v1/completions, or a server with an embedding model or a classifier".to_owned(),
        })
    }

    /// A vector of each input, or the first error. Dropped before its end it aborts what still runs.
    pub(crate) async fn pool(self: &Arc<Self>, request: PoolRequest, terms: Terms) -> Result<Vec<Pooled>, ApiError> {
        let terms = terms.within(self.limits.request_timeout);
        let model = self.ready()?;
        let (priority, user) = (request.priority.unwrap_or(terms.priority), self.user(request.user.as_deref()));
        let mut scope = CacheScope::default();
        scope.salt = self.cache_salt(request.cache_salt.as_deref());
        let tokenized = self.in_time(&terms, self.tokenize_inputs(request, &model)).await?;
        let submission = |prompt: Arc<[TokenId]>| Submission {
            prompt,
            embeds: None,
            goal: goal(&model),
            sampling: Sampling::greedy(),
            stop: StopRule { max_tokens: 0, min_tokens: 0, stop_ids: [].into() },
            grammar: None,
            scope: scope.clone(),
            keep: None,
            priority,
            party: Party { tenant: terms.tenant, user },
            timeout: terms.left(),
        };
        let answers = self.engine.submit(tokenized.into_iter().map(submission).collect())?;
        let clock = || RequestClock::new(&self.metrics, terms.arrival, 0);
        // All of them before the first wait: what is not waited for yet is counted as left if this is dropped.
        let under_way: Vec<(Answer, RequestClock)> = answers.into_iter().map(|answer| (answer, clock())).collect();
        let mut pooled = Vec::with_capacity(under_way.len());
        let mut under_way = under_way.into_iter();
        while let Some((answer, clock)) = under_way.next() {
            match follow(answer, clock).await {
                Ok(vector) => pooled.push(vector),
                Err(failure) => {
                    // Nobody left: the others end with this one.
                    under_way.for_each(|(_, mut clock)| clock.failed());
                    return Err(match (failure, terms.timeout) {
                        (Failure::Expired { .. }, Some(allowed)) => ApiError::DeadlineExceeded { allowed },
                        (failure, _) => failure.into(),
                    });
                }
            }
        }
        Ok(pooled)
    }

    async fn tokenize_inputs(
        self: &Arc<Self>,
        request: PoolRequest,
        model: &ModelReport,
    ) -> Result<Vec<Arc<[TokenId]>>, ApiError> {
        let bytes = request.inputs.iter().map(|input| input.content.bytes()).sum();
        let (serving, model) = (Arc::clone(self), model.clone());
        let work = move || {
            let PoolRequest { inputs, add_special, truncation, last_text_max, .. } = request;
            let within = Within { add_special, truncation, last_text_max };
            inputs.into_iter().map(|input| serving.tokenize_input(input, within, &model)).collect()
        };
        self.on_text(bytes, work).await
    }

    fn tokenize_input(
        &self,
        input: PoolInput,
        within: Within,
        model: &ModelReport,
    ) -> Result<Arc<[TokenId]>, ApiError> {
        let PoolInput { param, content } = input;
        let limit = model.max_model_len;
        let most = match within.truncation {
            Truncation::Never => None,
            Truncation::ToModel => Some(limit),
            Truncation::To(tokens) => Some(tokens.min(limit)),
        };
        let bounds = TokenBounds {
            last_text: within.last_text_max.map(|tokens| tokens as usize),
            all: most.map(|tokens| tokens as usize),
        };
        let encode = |texts| {
            let encoded = self.tokenizer.encode_within(texts, within.add_special, bounds);
            encoded.map_err(|error| ApiError::Conflict { param: param.clone(), reason: error.to_string() })
        };
        let (first, last) = content.texts();
        let is_cut = within.truncation != Truncation::Never;
        for (text, is_cut) in [(first, is_cut), (last, is_cut || within.last_text_max.is_some())] {
            match text {
                Some(text) if is_cut => check_countable(&param, text)?,
                Some(text) => self.check_length(&param, text)?,
                None => {}
            }
        }
        let ids = match content {
            PoolContent::Text(text) => encode(Texts::One(&text))?,
            PoolContent::Pair(first, second) => encode(Texts::Pair(&first, &second))?,
            PoolContent::Ids(mut ids) => {
                let facts = self.facts(model);
                ids.iter().try_for_each(|&token| in_vocabulary(&param, token, &facts))?;
                ids.truncate(most.map_or(usize::MAX, |tokens| tokens as usize));
                ids
            }
        };
        if let Truncation::To(tokens) = within.truncation
            && ids.len() > tokens as usize
        {
            let allowed = format!("{} and more: an input has so many special tokens", ids.len());
            return Err(ApiError::invalid("truncate_prompt_tokens", tokens, allowed));
        }
        match ids.len() {
            0 => Err(ApiError::invalid(param, "empty", "at least one token")),
            tokens if tokens > limit as usize => Err(ApiError::InputTooLong { param, tokens, limit }),
            _ => Ok(ids.into()),
        }
    }
}

/// How texts are tokenised.
#[derive(Debug, Clone, Copy)]
struct Within {
    add_special: bool,
    truncation: Truncation,
    last_text_max: Option<u32>,
}

impl PoolContent {
    /// Its texts, the second of two last.
    fn texts(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::Text(text) => (Some(text), None),
            Self::Ids(_) => (None, None),
            Self::Pair(first, last) => (Some(first), Some(last)),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Ids(ids) => ids.len(),
            Self::Pair(first, second) => first.len() + second.len(),
        }
    }
}

async fn follow(mut answer: Answer, mut clock: RequestClock) -> Result<Pooled, Failure> {
    let mut made = None;
    loop {
        match answer.next().await.expect("an answer is over after its last output alone") {
            Output::Admitted { .. } => clock.admitted(),
            Output::Vector(vector) => made = Some(vector),
            Output::Finished { usage, .. } => {
                clock.pooled(usage.prompt);
                let vector = made.expect("a vector comes before its request's end");
                return Ok(Pooled { vector, tokens: usage.prompt });
            }
            Output::Token { .. } | Output::Scored(_) | Output::Explained(_) => {}
            Output::Failed(failure) => {
                clock.failed();
                return Err(failure);
            }
        }
    }
}

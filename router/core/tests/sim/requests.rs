//! What clients of a world ask for.

use pelton_core::{
    CacheScope, CoreConfig, Goal, Kind, Micros, NewPin, NewRequest, Party, PinId, RequestId, RowResult, Sampling, Span,
    SpanKind, StopRule, TokenId,
};

use super::model::VOCAB_SIZE;
use super::random::Random;

pub(crate) fn text(random: &mut Random, len: u32) -> Vec<TokenId> {
    (0..len).map(|_| random.within(0..=VOCAB_SIZE - 1)).collect()
}

/// A request that begins as others do: with a common text, or with all of an earlier request and its answer.
pub(crate) fn request(
    random: &mut Random,
    id: RequestId,
    now: Micros,
    texts: &[Vec<TokenId>],
    earlier: Option<(Vec<TokenId>, CacheScope)>,
    config: &CoreConfig,
) -> NewRequest {
    let goal = goal(random, config);
    let longest = match goal {
        Goal::Tokens => config.max_model_len - 1, // one token must be drawn
        Goal::VectorOfLast => config.max_model_len,
        Goal::VectorOfAll => config.max_model_len.min(config.token_budget).min(config.limits.tokens),
    };
    let (mut prompt, mut scope) = match earlier.filter(|_| random.once_in(3)) {
        Some(earlier) => earlier,
        None => {
            let common = random.pick(texts).expect("a world has texts");
            let prompt = common[..random.within(0..=longest.min(common.len() as u32)) as usize].to_vec();
            (prompt, CacheScope::salted(u64::from(random.once_in(8))))
        }
    };
    let rest = random.within(1..=12);
    prompt.extend(text(random, rest));
    prompt.truncate(random.within(1..=longest).max(longest / 2) as usize);
    if random.once_in(8) {
        scope.adapter = 1;
    }
    if random.once_in(4) {
        scope = scope.with_spans(spans(random, &mut prompt)).expect("one after the other");
    }
    scope = within(scope, prompt.len() as u32);
    scope = match goal {
        Goal::Tokens if id.0 % 4 == 1 => embedded(scope, &mut prompt),
        Goal::Tokens => scope,
        Goal::VectorOfLast | Goal::VectorOfAll => of_media(scope),
    };

    let bias_max = config.limits.biases.min(2);
    let stop_ids = text(random, 2);
    let mut sampling = Sampling::greedy();
    sampling.seed = u64::from(random.within(0..=2));
    sampling.logprobs = random.once_in(4).then_some(1);
    if sampling.logprobs.is_some() && config.limits.suppressed > 2 {
        sampling.told = vec![3]; // beside two stop tokens there is room for it
    }
    sampling.prompt_logprobs = (goal == Goal::Tokens && id.0 % 5 == 3).then_some(1);
    sampling.logit_bias = (0..random.within(0..=bias_max)).map(|token| (token, 0.5)).collect();
    if random.once_in(3) {
        sampling.presence_penalty = 0.5;
    }
    if random.once_in(2) {
        sampling.top_k = random.within(1..=5);
    }
    NewRequest {
        id,
        prompt: prompt.into(),
        generated: Vec::new(),
        scored: 0,
        goal,
        sampling,
        stop: StopRule {
            max_tokens: random.within(1..=40),
            min_tokens: if random.once_in(2) { 0 } else { random.within(1..=20) },
            stop_ids: stop_ids[..random.within(0..=2) as usize].into(),
        },
        // A state cannot be taken back by a token, as a row is whose mask does not come in time.
        masked: goal == Goal::Tokens
            && !config.kinds.iter().any(|kind| matches!(kind, Kind::State { .. }))
            && random.once_in(3),
        scope,
        priority: if random.once_in(4) { random.within(0..=2) as i32 - 1 } else { 0 },
        arrival: now,
        party: Party { tenant: u64::from(random.within(0..=1)), user: u64::from(random.within(0..=2)) },
        deadline: random.once_in(12).then(|| {
            let within = if random.once_in(3) { 100_000_000 } else { 8_000 };
            Micros(now.0 + u64::from(random.within(1..=within)))
        }),
    }
}

/// Some want vectors: of all tokens where the KV of such tokens finds neither a cache nor a window.
fn goal(random: &mut Random, config: &CoreConfig) -> Goal {
    let may_be_of_all = !config.prefix_caching && config.kinds.iter().all(|kind| *kind == Kind::Full);
    match random.within(0..=3) {
        0 if may_be_of_all => Goal::VectorOfAll,
        1 => Goal::VectorOfLast,
        _ => Goal::Tokens,
    }
}

/// Some places of a prompt, held by tokens that look like any others.
fn spans(random: &mut Random, prompt: &mut [TokenId]) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut start = random.within(0..=4);
    while start < prompt.len() as u32 && spans.len() < 3 {
        let tokens = random.within(1..=6).min(prompt.len() as u32 - start);
        prompt[start as usize..][..tokens as usize].fill(0);
        spans.push(Span { start, tokens, digest: [random.within(0..=1) as u8; 16], kind: SpanKind::Media });
        start += tokens + random.within(0..=8);
    }
    spans
}

/// The same with embeddings from the prompt's start to the end of its first span, if it has one.
fn embedded(scope: CacheScope, prompt: &mut [TokenId]) -> CacheScope {
    let mut spans = scope.spans().to_vec();
    let Some(first) = spans.first_mut() else { return scope };
    let end = first.start + first.tokens;
    prompt[..end as usize].fill(0);
    *first = Span { start: end / 2, tokens: end - end / 2, kind: SpanKind::Embeddings, ..*first };
    let before = Span { start: 0, tokens: end / 2, ..*first };
    spans.extend((end > 1).then_some(before));
    scope.with_spans(spans).expect("they fill the place before")
}

/// The same without embeddings.
fn of_media(scope: CacheScope) -> CacheScope {
    let spans = scope.spans().iter().map(|span| Span { kind: SpanKind::Media, ..*span }).collect();
    scope.with_spans(spans).expect("they were apart")
}

/// Of a scope what concerns so many tokens: none of a span's parts stands for a part of an answer.
fn within(scope: CacheScope, tokens: u32) -> CacheScope {
    let whole = |span: &&Span| span.start + span.tokens <= tokens;
    let spans = scope.spans().iter().filter(whole).copied().collect();
    scope.with_spans(spans).expect("they were apart")
}

/// A wish to keep the start of a common text for a while.
pub(crate) fn pin(random: &mut Random, id: PinId, now: Micros, texts: &[Vec<TokenId>]) -> NewPin {
    let text = random.pick(texts).expect("a world has texts");
    NewPin {
        id,
        tokens: text[..random.within(0..=text.len() as u32) as usize].into(),
        scope: CacheScope::salted(u64::from(random.once_in(8))),
        party: Party { tenant: u64::from(random.within(0..=1)), user: 0 },
        until: Micros(now.0 + u64::from(random.within(1..=20_000))),
    }
}

/// A token that no row asked for.
pub(crate) fn row_result() -> RowResult {
    RowResult { token: 0, logprobs: None }
}

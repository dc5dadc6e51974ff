//! What clients of a world ask for.

use pelton_core::{
    CoreConfig, Micros, NewPin, NewRequest, Party, PinId, RequestId, RowResult, Sampling, StopRule, TokenId,
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
    earlier: Option<Vec<TokenId>>,
    config: &CoreConfig,
) -> NewRequest {
    let longest = config.max_model_len - 1; // one token must be drawn
    let mut prompt = match earlier.filter(|_| random.once_in(3)) {
        Some(earlier) => earlier,
        None => {
            let common = random.pick(texts).expect("a world has texts");
            common[..random.within(0..=longest.min(common.len() as u32)) as usize].to_vec()
        }
    };
    let rest = random.within(1..=12);
    prompt.extend(text(random, rest));
    prompt.truncate(random.within(1..=longest).max(longest / 2) as usize);

    let bias_max = config.limits.biases.min(2);
    let stop_ids = text(random, 2);
    let mut sampling = Sampling::greedy();
    sampling.seed = u64::from(random.within(0..=2));
    sampling.logprobs = random.once_in(4).then_some(1);
    sampling.logit_bias = (0..random.within(0..=bias_max)).map(|token| (token, 0.5)).collect();
    if random.once_in(3) {
        sampling.presence_penalty = 0.5;
    }
    NewRequest {
        id,
        prompt: prompt.into(),
        generated: Vec::new(),
        sampling,
        stop: StopRule {
            max_tokens: random.within(1..=40),
            min_tokens: if random.once_in(2) { 0 } else { random.within(1..=20) },
            stop_ids: stop_ids[..random.within(0..=2) as usize].into(),
        },
        cache_salt: u64::from(random.once_in(8)),
        priority: if random.once_in(4) { random.within(0..=2) as i32 - 1 } else { 0 },
        arrival: now,
        party: Party { tenant: u64::from(random.within(0..=1)), user: u64::from(random.within(0..=2)) },
        deadline: random.once_in(12).then(|| Micros(now.0 + u64::from(random.within(1..=8_000)))),
    }
}

/// A wish to keep the start of a common text for a while.
pub(crate) fn pin(random: &mut Random, id: PinId, now: Micros, texts: &[Vec<TokenId>]) -> NewPin {
    let text = random.pick(texts).expect("a world has texts");
    NewPin {
        id,
        tokens: text[..random.within(0..=text.len() as u32) as usize].into(),
        cache_salt: u64::from(random.once_in(8)),
        party: Party { tenant: u64::from(random.within(0..=1)), user: 0 },
        until: Micros(now.0 + u64::from(random.within(1..=20_000))),
    }
}

/// A token that no row asked for.
pub(crate) fn row_result() -> RowResult {
    RowResult { token: 0, logprobs: None }
}

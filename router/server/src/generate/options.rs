//! What a client may ask of the drawing and the ending of tokens, and what becomes of it for one model.
//!
//! Every door (HTTP, gRPC, Python) fills the same [`Options`]; ranges, vocabulary and defaults are checked here, once.
//! Defaults: the request's value, else the model's `generation_config.json`, else OpenAI's.

use std::{fmt::Display, ops::RangeInclusive, sync::Arc, time::Duration};

use pelton_engine::{Sampling, TokenId};
use pelton_text::GenerationDefaults;

use super::{
    beams::BeamSearch, constrain::Constrained, repetition::Repetition, serving::ApiLimits, thinking::ThoughtLimit,
    words::WordRules,
};
use crate::error::ApiError;

/// Entries of `logit_bias` at most: what a frame has room for. (B:SA2)
pub(crate) const LOGIT_BIAS_MAX: usize = 1024;
/// How requests call what stands between special tokens.
pub(crate) const SPACES: &str = "spaces_between_special_tokens";
/// How requests call the tokens whose log-probabilities they want.
pub(crate) const TOLD_IDS: &str = "logprob_token_ids";
/// Entries of `stop_token_ids` at most. (B:SA2)
pub(crate) const STOP_TOKEN_IDS_MAX: usize = 128;
/// Characters of `cache_salt` at most.
pub(crate) const CACHE_SALT_MAX: usize = 128;
/// How the wish to keep a prompt is called.
pub(crate) const PROMPT_CACHE_RETENTION: &str = "prompt_cache_retention";
/// The longest that a prompt is kept.
pub(crate) const KEEP_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of one stop string at most: so much text is held back while it might begin.
pub(crate) const STOP_STRING_BYTES_MAX: usize = 1024;
/// Temperatures between 0 and this are raised to it: below, the division overflows before the result differs from greedy.
const TEMPERATURE_MIN: f32 = 0.01;
/// `max_tokens` of a completion that names none; a chat's is the room left. OpenAI's defaults.
pub(crate) const COMPLETION_MAX_TOKENS: u32 = 16;

/// What numbers a client may ask for; `/openapi.json` tells the same.
pub(crate) mod bounds {
    use std::ops::RangeInclusive;

    pub(crate) const TEMPERATURE: RangeInclusive<f32> = 0.0..=2.0;
    /// -1 and 0: all.
    pub(crate) const TOP_K: RangeInclusive<i64> = -1..=u32::MAX as i64;
    /// Above 0.
    pub(crate) const TOP_P: RangeInclusive<f32> = f32::MIN_POSITIVE..=1.0;
    pub(crate) const MIN_P: RangeInclusive<f32> = 0.0..=1.0;
    /// Logits are divided by it or multiplied: beyond this they could leave 32 bits, which would look like a broken worker.
    pub(crate) const REPETITION_PENALTY: RangeInclusive<f32> = 0.001..=1000.0;
    /// For presence and for frequency.
    pub(crate) const PENALTY: RangeInclusive<f32> = -2.0..=2.0;
    pub(crate) const LOGIT_BIAS: RangeInclusive<f32> = -100.0..=100.0;
    /// The power of a length by which beams are scored.
    pub(crate) const LENGTH_PENALTY: RangeInclusive<f32> = -10.0..=10.0;
}

/// What integers may be, in words: for what is none, and is told so before anybody knows the model.
pub(crate) mod told {
    pub(crate) const N: &str = "an integer from 1 to 128";
    pub(crate) const LOGPROBS: &str = "an integer from 0 to 20";
    pub(crate) const TOP_K: &str = "-1 or 0 (all tokens), or an integer from 1 to 4294967295";
    pub(crate) const MAX_TOKENS: &str = "an integer from 1 to the model's context";
    /// With `echo`, the prompt alone may be asked for.
    pub(crate) const MAX_TOKENS_OR_0: &str = "an integer from 1 to the model's context, or 0 together with `echo`";
    pub(crate) const MIN_TOKENS: &str = "an integer from 0 to `max_tokens`";
    /// What has no other bounds than its bits.
    pub(crate) const COUNT: &str = "an integer from 0 to 4294967295";
    pub(crate) const COUNT_FROM_1: &str = "an integer from 1 to 4294967295";
    pub(crate) const SIGNED: &str = "an integer from -2147483648 to 2147483647";
    pub(crate) const LONG: &str = "an integer from -9223372036854775808 to 9223372036854775807";
}

/// What a client asked for. `None`: nothing, so that a default applies.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Answers per prompt.
    pub n: u32,
    /// Tokens of an answer at most.
    pub max_tokens: Option<u32>,
    /// Tokens before which neither a stop token nor a stop string ends the answer.
    pub min_tokens: u32,
    /// 0: greedy.
    pub temperature: Option<f32>,
    /// 0 and -1: all.
    pub top_k: Option<i64>,
    /// 1: all.
    pub top_p: Option<f32>,
    /// 0: all.
    pub min_p: Option<f32>,
    /// 1: off.
    pub repetition_penalty: Option<f32>,
    /// 0: off.
    pub presence_penalty: Option<f32>,
    /// 0: off.
    pub frequency_penalty: Option<f32>,
    /// Each id at most once.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// `None` and -1: drawn by the server.
    pub seed: Option<i64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Tokens that end the answer, beside the model's own.
    pub stop_token_ids: Vec<TokenId>,
    /// Whether the model's own end tokens do not end the answer.
    pub ignore_eos: bool,
    /// Whether the text shows what ended it.
    pub include_stop: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special: bool,
    /// Whether nothing stands between special tokens that are shown.
    pub joins_special: bool,
    /// How many likeliest tokens to tell beside the chosen one.
    pub logprobs: Option<u32>,
    /// The tokens to tell in the place of the likeliest; none: the likeliest.
    pub told: Vec<TokenId>,
    /// The same of the prompt's tokens, from the second one on.
    pub prompt_logprobs: Option<u32>,
    /// `Some`: the likeliest `n` answers are searched for; nothing is drawn.
    pub beams: Option<BeamSearch>,
    /// What the text has to fit.
    pub constrained: Option<Constrained>,
    /// Tokens and words to use and not to use.
    pub words: WordRules,
    /// What ends an answer that goes round in circles; `None`: nothing.
    pub repetition: Option<Repetition>,
    /// How long the model may think; `None`: as long as it likes.
    pub thoughts: Option<ThoughtLimit>,
    /// Smaller first; `None`: as the request's terms say.
    pub priority: Option<i32>,
    /// Who of the tenant's users asks: each gets a share of what the tenant gets.
    pub user: Option<String>,
    /// Requests with different salts share no cached blocks.
    pub cache_salt: Option<String>,
    /// How long the prompt is to stay in the prefix cache; `None`: as long as it happens to.
    pub keep: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            n: 1,
            max_tokens: None,
            min_tokens: 0,
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            presence_penalty: None,
            frequency_penalty: None,
            logit_bias: Vec::new(),
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            include_stop: false,
            skip_special: true,
            joins_special: false,
            logprobs: None,
            told: Vec::new(),
            prompt_logprobs: None,
            beams: None,
            constrained: None,
            words: WordRules::default(),
            repetition: None,
            thoughts: None,
            priority: None,
            user: None,
            cache_salt: None,
            keep: None,
        }
    }
}

/// What options are checked against.
#[derive(Debug, Clone)]
pub(crate) struct ModelFacts<'a> {
    pub(crate) vocab_size: u32,
    pub(crate) max_model_len: u32,
    pub(crate) eos_ids: &'a [TokenId],
    pub(crate) defaults: &'a GenerationDefaults,
    pub(crate) limits: &'a ApiLimits,
    /// Whether the tokenizer puts something between tokens.
    pub(crate) separates_tokens: bool,
}

impl Options {
    /// How tokens are drawn, with `seed` in place of a missing one.
    pub(crate) fn sampling(&self, facts: &ModelFacts<'_>, seed: u64) -> Result<Sampling, ApiError> {
        let defaults = facts.defaults;
        let temperature = self.temperature.or(defaults.temperature).unwrap_or(1.0);
        let top_k = self.top_k.or(defaults.top_k.map(i64::from)).unwrap_or(0);
        let sampling = Sampling {
            temperature: if temperature > 0.0 { temperature.max(TEMPERATURE_MIN) } else { temperature },
            // More than the vocabulary is all of it.
            top_k: u32::try_from(top_k.max(0)).unwrap_or(0).min(facts.vocab_size),
            top_p: self.top_p.or(defaults.top_p).unwrap_or(1.0),
            min_p: self.min_p.or(defaults.min_p).unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.filter(|&seed| seed != -1).map_or(seed, i64::cast_unsigned),
            logprobs: self.shown_logprobs(),
            told: self.told.clone(),
            prompt_logprobs: self.prompt_logprobs,
        };
        number("temperature", sampling.temperature, bounds::TEMPERATURE, "a number from 0 to 2")?;
        integer("top_k", top_k, bounds::TOP_K, told::TOP_K)?;
        number("top_p", sampling.top_p, bounds::TOP_P, "a number above 0, at most 1")?;
        number("min_p", sampling.min_p, bounds::MIN_P, "a number from 0 to 1")?;
        number(
            "repetition_penalty",
            sampling.repetition_penalty,
            bounds::REPETITION_PENALTY,
            "a number from 0.001 to 1000",
        )?;
        number("presence_penalty", sampling.presence_penalty, bounds::PENALTY, "a number from -2 to 2")?;
        number("frequency_penalty", sampling.frequency_penalty, bounds::PENALTY, "a number from -2 to 2")?;
        self.check_logit_bias(facts)?;
        let max = facts.limits.max_logprobs;
        if let Some(beams) = self.beams {
            number("length_penalty", beams.length_penalty, bounds::LENGTH_PENALTY, "a number from -10 to 10")?;
        }
        for (param, count) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            within(param, count.unwrap_or(0), "", 0..=max, || format!("an integer from 0 to {max}"))?;
        }
        self.check_told(facts)?;
        Ok(sampling)
    }

    /// How many tokens are told beside the chosen one.
    pub(crate) fn shown_logprobs(&self) -> Option<u32> {
        let told = u32::try_from(self.told.len()).unwrap_or(u32::MAX);
        self.logprobs.map(|likeliest| if told > 0 { told } else { likeliest })
    }

    fn check_told(&self, facts: &ModelFacts<'_>) -> Result<(), ApiError> {
        let conflict = |reason: &str| ApiError::Conflict { param: TOLD_IDS.to_owned(), reason: reason.to_owned() };
        if self.told.is_empty() {
            return Ok(());
        }
        if self.logprobs.is_none() {
            return Err(conflict("is only allowed together with `logprobs`"));
        }
        if self.beams.is_some() {
            return Err(conflict("cannot go together with `use_beam_search`, which tells the likeliest"));
        }
        let (count, max) = (self.told.len(), facts.limits.max_logprobs);
        within(TOLD_IDS, count, " ids", 0..=max as usize, || format!("at most {max} ids"))?;
        self.told.iter().try_for_each(|&token| in_vocabulary(TOLD_IDS, token, facts))
    }

    fn check_logit_bias(&self, facts: &ModelFacts<'_>) -> Result<(), ApiError> {
        let count = self.logit_bias.len();
        within("logit_bias", count, " entries", 0..=LOGIT_BIAS_MAX, || format!("at most {LOGIT_BIAS_MAX} entries"))?;
        for &(token, bias) in &self.logit_bias {
            in_vocabulary("logit_bias", token, facts)?;
            // NaN is in no range.
            if !bounds::LOGIT_BIAS.contains(&bias) {
                let got = format_args!("{bias} for token {token}");
                return Err(ApiError::invalid("logit_bias", got, "numbers from -100 to 100"));
            }
        }
        Ok(())
    }

    /// Checks what ends an answer, and returns the tokens that do. With a grammar the model's own always do: nothing else
    /// says that a text is complete.
    pub(crate) fn stop_ids(&self, has_grammar: bool, facts: &ModelFacts<'_>) -> Result<Arc<[TokenId]>, ApiError> {
        let max = facts.limits.max_stop_strings;
        within("stop", self.stop.len(), " texts", 0..=max, || format!("at most {max} texts"))?;
        for text in &self.stop {
            within("stop", text.len(), " bytes of text", 1..=STOP_STRING_BYTES_MAX, || {
                format!("texts of 1 to {STOP_STRING_BYTES_MAX} bytes")
            })?;
        }
        let count = self.stop_token_ids.len();
        within("stop_token_ids", count, " ids", 0..=STOP_TOKEN_IDS_MAX, || {
            format!("at most {STOP_TOKEN_IDS_MAX} ids")
        })?;
        for &token in &self.stop_token_ids {
            in_vocabulary("stop_token_ids", token, facts)?;
        }
        let mut ids = self.stop_token_ids.clone();
        if !self.ignore_eos || has_grammar {
            ids.extend_from_slice(facts.eos_ids);
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids.into())
    }

    /// Checks what is left: words, repetitions, counts of answers, scheduling.
    pub(crate) fn check_rest(&self, facts: &ModelFacts<'_>) -> Result<(), ApiError> {
        self.words.check(facts)?;
        self.repetition.map_or(Ok(()), |repetition| repetition.check())?;
        if self.joins_special && !self.skip_special && facts.separates_tokens {
            let what = "joining special tokens without the spaces that this model's tokenizer puts between tokens";
            return Err(ApiError::not_served(SPACES, false, "true", what));
        }
        let max = facts.limits.max_n;
        within("n", self.n, "", 1..=max, || format!("an integer from 1 to {max}"))?;
        self.cache_salt.as_deref().map_or(Ok(()), check_salt)?;
        if let Some(keep) = self.keep {
            if !facts.limits.keeps_prompts {
                let what = "keeping prompts (this server's prefix cache is off, or `kv-keep-share` is 0)";
                let got = format_args!("{} seconds", keep.as_secs());
                return Err(ApiError::not_served(PROMPT_CACHE_RETENTION, got, "null", what));
            }
            let (seconds, most) = (keep.as_secs(), KEEP_MAX.as_secs());
            within(PROMPT_CACHE_RETENTION, seconds, " seconds", 0..=most, || format!("at most {most} seconds"))?;
        }
        Ok(())
    }

    /// Tokens that an answer to a prompt of `prompt` tokens may have at most.
    ///
    /// A wish beyond the room that the context leaves is cut to it, as clients ask for a round number and mean "enough";
    /// the answer then ends with `length`. A wish beyond the whole context is refused.
    pub(crate) fn max_tokens(
        &self,
        prompt: usize,
        is_chat: bool,
        echo: bool,
        facts: &ModelFacts<'_>,
    ) -> Result<u32, ApiError> {
        let limit = facts.max_model_len;
        let room = match u32::try_from(prompt).ok().and_then(|prompt| limit.checked_sub(prompt)) {
            Some(room) if room > 0 => room,
            // Nothing is drawn, and nothing asked of the engine. What is told of a prompt's tokens takes a drawn one.
            Some(0) if echo && self.max_tokens == Some(0) && self.prompt_logprobs.is_none() => 0,
            _ => {
                let param = if is_chat { "messages" } else { "prompt" };
                return Err(ApiError::PromptTooLong {
                    param: param.to_owned(),
                    prompt: prompt as u64,
                    limit: u64::from(limit),
                });
            }
        };
        if let Some(asked) = self.max_tokens {
            let least = if echo { 0 } else { 1 };
            within("max_tokens", asked, "", least..=limit, || {
                format!("an integer from {least} to {limit}, the model's context")
            })?;
        }
        let default = if is_chat { room } else { COMPLETION_MAX_TOKENS };
        let most = self.max_tokens.or(facts.defaults.max_new_tokens).unwrap_or(default);
        within("min_tokens", self.min_tokens, "", 0..=most, || {
            format!("an integer from 0 to `max_tokens`, which is {most}")
        })?;
        Ok(most.min(room))
    }
}

/// Refuses a model's own defaults that every request without values of its own would be refused for.
pub(crate) fn check_defaults(defaults: &GenerationDefaults) -> Result<(), ApiError> {
    let facts = ModelFacts {
        vocab_size: u32::MAX,
        max_model_len: u32::MAX,
        eos_ids: &[],
        defaults,
        limits: &ApiLimits::DEFAULT,
        separates_tokens: false,
    };
    Options::default().sampling(&facts, 0)?;
    let most = defaults.max_new_tokens.unwrap_or(1);
    within("max_new_tokens", most, "", 1..=u32::MAX, || "a whole number from 1".to_owned())
}

/// Refuses a `cache_salt` that is none, or long.
pub(crate) fn check_salt(salt: &str) -> Result<(), ApiError> {
    let allowed = || format!("1 to {CACHE_SALT_MAX} characters");
    within("cache_salt", salt.chars().count(), " characters", 1..=CACHE_SALT_MAX, allowed)
}

/// Whether a token id exists. (B:SA3)
pub(crate) fn in_vocabulary(param: &str, token: TokenId, facts: &ModelFacts<'_>) -> Result<(), ApiError> {
    if token < facts.vocab_size {
        return Ok(());
    }
    Err(ApiError::invalid(
        param,
        format_args!("token id {token}"),
        format!("token ids from 0 to {}", facts.vocab_size - 1),
    ))
}

fn number(param: &str, got: f32, range: RangeInclusive<f32>, allowed: &'static str) -> Result<(), ApiError> {
    // NaN is in no range.
    if range.contains(&got) { Ok(()) } else { Err(ApiError::invalid(param, got, allowed)) }
}

fn integer(param: &str, got: i64, range: RangeInclusive<i64>, allowed: &'static str) -> Result<(), ApiError> {
    if range.contains(&got) { Ok(()) } else { Err(ApiError::invalid(param, got, allowed)) }
}

/// Refuses what is out of range.
pub(super) fn within<T: PartialOrd + Display>(
    param: &str,
    got: T,
    unit: &str,
    range: RangeInclusive<T>,
    allowed: impl FnOnce() -> String,
) -> Result<(), ApiError> {
    if range.contains(&got) { Ok(()) } else { Err(ApiError::invalid(param, format_args!("{got}{unit}"), allowed())) }
}

#[cfg(test)]
mod tests;

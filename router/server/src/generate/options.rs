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
        integer("top_k", top_k, bounds::TOP_K, "-1 or 0 (all tokens), or at least 1")?;
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
        within("stop", self.stop.len(), " texts", 0..=max, || format!("a text, or a list of at most {max} texts"))?;
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
            let what =
                "joining special tokens without the spaces that this model's tokenizer puts between tokens".into();
            return Err(ApiError::NotServed { param: SPACES.to_owned(), what });
        }
        let max = facts.limits.max_n;
        within("n", self.n, "", 1..=max, || format!("an integer from 1 to {max}"))?;
        if let Some(salt) = &self.cache_salt {
            within("cache_salt", salt.chars().count(), " characters", 1..=CACHE_SALT_MAX, || {
                format!("1 to {CACHE_SALT_MAX} characters")
            })?;
        }
        if let Some(keep) = self.keep {
            if !facts.limits.keeps_prompts {
                let what = "keeping prompts: this server's prefix cache is off, or `kv-keep-share` is 0";
                return Err(ApiError::NotServed { param: PROMPT_CACHE_RETENTION.to_owned(), what: what.into() });
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
mod tests {
    use super::*;

    const LIMITS: ApiLimits = ApiLimits::DEFAULT;

    fn facts(defaults: &GenerationDefaults) -> ModelFacts<'_> {
        let eos_ids = &[2, 3];
        ModelFacts { vocab_size: 100, max_model_len: 64, eos_ids, defaults, limits: &LIMITS, separates_tokens: true }
    }

    /// The parameter that is refused, if one is.
    fn refused(options: &Options) -> Option<String> {
        let defaults = GenerationDefaults::default();
        let facts = facts(&defaults);
        let all = options
            .sampling(&facts, 0)
            .map(drop)
            .and_then(|()| options.stop_ids(false, &facts).map(drop))
            .and_then(|()| options.check_rest(&facts))
            .and_then(|()| options.max_tokens(10, false, false, &facts).map(drop));
        match all {
            Ok(()) => None,
            Err(ApiError::Invalid { param, .. } | ApiError::Conflict { param, .. }) => Some(param),
            Err(other) => panic!("{other}"),
        }
    }

    fn check(change: impl FnOnce(&mut Options), expected: Option<&str>) {
        let mut options = Options::default();
        change(&mut options);
        assert_eq!(refused(&options).as_deref(), expected, "{options:?}");
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        check(|_| {}, None);
        check(|o| o.temperature = Some(2.0), None);
        check(|o| o.temperature = Some(2.1), Some("temperature"));
        check(|o| o.temperature = Some(-0.1), Some("temperature"));
        check(|o| o.temperature = Some(f32::NAN), Some("temperature"));
        check(|o| o.top_p = Some(0.0), Some("top_p"));
        check(|o| o.top_p = Some(1.0), None);
        check(|o| o.top_k = Some(-1), None);
        check(|o| o.top_k = Some(-2), Some("top_k"));
        check(|o| o.min_p = Some(1.1), Some("min_p"));
        check(|o| o.repetition_penalty = Some(0.0), Some("repetition_penalty"));
        check(|o| o.repetition_penalty = Some(f32::INFINITY), Some("repetition_penalty"));
        check(|o| o.repetition_penalty = Some(f32::MIN_POSITIVE), Some("repetition_penalty"));
        check(|o| o.repetition_penalty = Some(0.001), None);
        check(|o| o.presence_penalty = Some(-2.5), Some("presence_penalty"));
        check(|o| o.frequency_penalty = Some(2.5), Some("frequency_penalty"));
        check(|o| o.logprobs = Some(20), None);
        check(|o| o.logprobs = Some(21), Some("logprobs"));
        check(|o| (o.logprobs, o.told) = (Some(0), vec![3; 20]), None);
        check(|o| (o.logprobs, o.told) = (Some(0), vec![3; 21]), Some("logprob_token_ids"));
        check(|o| (o.logprobs, o.told) = (Some(5), vec![u32::MAX]), Some("logprob_token_ids"));
        check(|o| o.told = vec![3], Some("logprob_token_ids"));
        check(
            |o| (o.logprobs, o.told, o.beams) = (Some(1), vec![3], Some(BeamSearch::default())),
            Some("logprob_token_ids"),
        );
        check(|o| o.prompt_logprobs = Some(20), None);
        check(|o| o.prompt_logprobs = Some(21), Some("prompt_logprobs"));
        check(|o| o.n = 0, Some("n"));
        check(|o| o.n = 129, Some("n"));
        check(|o| o.cache_salt = Some(String::new()), Some("cache_salt"));
        check(|o| o.keep = Some(KEEP_MAX), None);
        check(|o| o.keep = Some(KEEP_MAX + Duration::from_secs(1)), Some(PROMPT_CACHE_RETENTION));
        check(|o| o.stop = vec![String::new()], Some("stop"));
        check(|o| o.stop = vec!["x".into(); 5], Some("stop"));
        check(|o| o.max_tokens = Some(0), Some("max_tokens"));
        check(|o| o.max_tokens = Some(64), None);
        check(|o| o.max_tokens = Some(65), Some("max_tokens"));
        check(|o| o.min_tokens = 17, Some("min_tokens"));
    }

    #[test]
    fn lists_of_ids_are_bounded_and_within_the_vocabulary() {
        // B:SA2
        check(|o| o.logit_bias = vec![(1, 0.0); 1024], None);
        check(|o| o.logit_bias = vec![(1, 0.0); 1025], Some("logit_bias"));
        check(|o| o.stop_token_ids = vec![1; 128], None);
        check(|o| o.stop_token_ids = vec![1; 129], Some("stop_token_ids"));
        // B:SA3
        check(|o| o.logit_bias = vec![(99, 1.0)], None);
        check(|o| o.logit_bias = vec![(100, 1.0)], Some("logit_bias"));
        check(|o| o.stop_token_ids = vec![100], Some("stop_token_ids"));
        check(|o| o.logit_bias = vec![(1, 100.5)], Some("logit_bias"));
        check(|o| o.words.allowed = Some(vec![0, 99]), None);
        check(|o| o.words.allowed = Some(vec![]), Some("allowed_token_ids"));
        check(|o| o.words.allowed = Some(vec![0, 100]), Some("allowed_token_ids"));
        check(|o| o.words.bad = vec!["x".into(); 128], None);
        check(|o| o.words.bad = vec!["x".into(); 129], Some("bad_words"));
        check(|o| o.words.bad = vec![String::new()], Some("bad_words"));
    }

    #[test]
    fn the_request_goes_before_the_model_and_the_model_before_openai() {
        let model = GenerationDefaults { temperature: Some(0.5), top_k: Some(20), ..GenerationDefaults::default() };
        let asked = Options { temperature: Some(0.25), ..Options::default() };
        let sampling = asked.sampling(&facts(&model), 7).expect("valid");
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed), (0.25, 20, 1.0, 7));
        let sampling = Options::default().sampling(&facts(&model), 7).expect("valid");
        assert_eq!(sampling.temperature, 0.5);
    }

    #[test]
    fn defaults_that_would_refuse_every_request_are_refused_themselves() {
        let with = |change: fn(&mut GenerationDefaults)| {
            let mut defaults = GenerationDefaults::default();
            change(&mut defaults);
            check_defaults(&defaults).map_err(|error| error.to_string())
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|d| d.temperature = Some(0.0)), Ok(()));
        assert_eq!(with(|d| (d.top_k, d.top_p, d.max_new_tokens) = (Some(50), Some(0.9), Some(2048))), Ok(()));
        for (change, name) in [
            ((|d| d.temperature = Some(-5.0)) as fn(&mut GenerationDefaults), "`temperature` is -5"),
            (|d| d.top_k = Some(-2), "`top_k` is -2"),
            (|d| d.top_p = Some(0.0), "`top_p` is 0"),
            (|d| d.min_p = Some(2.0), "`min_p` is 2"),
            (|d| d.repetition_penalty = Some(0.0), "`repetition_penalty` is 0"),
            (|d| d.max_new_tokens = Some(0), "`max_new_tokens` is 0"),
        ] {
            let refused = with(change).expect_err(name);
            assert!(refused.contains(name), "{refused}");
        }
    }

    #[test]
    fn a_seed_is_kept_and_minus_one_is_none() {
        let defaults = GenerationDefaults::default();
        for (asked, expected) in [(None, 7), (Some(-1), 7), (Some(5), 5), (Some(-2), u64::MAX - 1)] {
            let options = Options { seed: asked, ..Options::default() };
            assert_eq!(options.sampling(&facts(&defaults), 7).expect("valid").seed, expected);
        }
    }

    #[test]
    fn the_models_end_tokens_count_unless_ignored() {
        let defaults = GenerationDefaults::default();
        let mut options = Options { stop_token_ids: vec![9, 2], ..Options::default() };
        assert_eq!(*options.stop_ids(false, &facts(&defaults)).expect("valid"), [2, 3, 9]);
        options.ignore_eos = true;
        assert_eq!(*options.stop_ids(false, &facts(&defaults)).expect("valid"), [2, 9]);
        assert_eq!(*options.stop_ids(true, &facts(&defaults)).expect("valid"), [2, 3, 9]);
    }

    #[test]
    fn an_answer_gets_the_room_that_the_prompt_leaves() {
        let defaults = GenerationDefaults::default();
        let facts = facts(&defaults);
        let asked = |max_tokens| Options { max_tokens, ..Options::default() };
        assert_eq!(asked(None).max_tokens(10, false, false, &facts), Ok(16));
        assert_eq!(asked(None).max_tokens(10, true, false, &facts), Ok(54));
        assert_eq!(asked(None).max_tokens(60, false, false, &facts), Ok(4));
        assert_eq!(asked(Some(64)).max_tokens(10, false, false, &facts), Ok(54));
        assert_eq!(asked(Some(0)).max_tokens(10, false, true, &facts), Ok(0));
        for prompt in [64, 65, usize::MAX] {
            assert!(matches!(
                asked(Some(1)).max_tokens(prompt, false, false, &facts),
                Err(ApiError::PromptTooLong { .. })
            ));
        }
    }
}

//! The fields that chats and completions share.

use std::time::Duration;

use serde_json::value::RawValue;

use super::{
    constrained::read_constrained,
    fields::{Fields, quoted},
    shape::{Field, Kind, Most, Shape, needed, optional, with_default},
    thinking::{BUDGET, QWENS_BUDGET, THINKING_BUDGET, read_budget},
};
use crate::{
    error::ApiError,
    generate::{
        ALLOWED_TOKEN_IDS, BAD_WORDS, BAD_WORDS_MAX, BeamSearch, Cut, KEEP_MAX, Options, PATTERN_MAX,
        PROMPT_CACHE_RETENTION, REPETITION, Repetition, Side, TRUNCATE, TRUNCATION_SIDE, WordRules,
        options::{
            CACHE_SALT_MAX, LOGIT_BIAS_MAX, SPACES, STOP_STRING_BYTES_MAX, STOP_TOKEN_IDS_MAX, TOLD_IDS, bounds, told,
        },
    },
};

/// What [`read_options`] reads, but for `n` and what an answer has to fit.
pub(super) const SAMPLING: &[Field] = &[
    with_default(
        "min_tokens",
        Kind::Integer(0, Most::Context),
        "0",
        "Tokens before which nothing ends the answer; at most `max_tokens`.",
    ),
    optional("temperature", Kind::Number(&bounds::TEMPERATURE), "0: always the likeliest token."),
    optional(
        "top_k",
        Kind::Integer(*bounds::TOP_K.start(), Most::Is(*bounds::TOP_K.end())),
        "Only so many likeliest tokens are drawn; 0 and -1: all.",
    ),
    optional(
        "top_p",
        Kind::Number(&bounds::TOP_P),
        "Only the likeliest tokens with this probability together are drawn.",
    ),
    optional(
        "min_p",
        Kind::Number(&bounds::MIN_P),
        "Only tokens with this share of the likeliest one's probability are drawn.",
    ),
    optional(
        "repetition_penalty",
        Kind::Number(&bounds::REPETITION_PENALTY),
        "Divides the logits of tokens that were there; 1: off.",
    ),
    optional("presence_penalty", Kind::Number(&bounds::PENALTY), "Taken off the logits of tokens that were drawn."),
    optional(
        "frequency_penalty",
        Kind::Number(&bounds::PENALTY),
        "Taken off the logits of tokens for each time they were drawn.",
    ),
    optional(
        "logit_bias",
        Kind::ByToken(&bounds::LOGIT_BIAS, Most::Is(LOGIT_BIAS_MAX as i64)),
        "What is added to the logits of these tokens.",
    ),
    optional("seed", Kind::Integer(i64::MIN, Most::ANY), "The same seed draws the same answer; -1: none."),
    optional(
        "stop",
        Kind::Either(&[STOP_TEXT, Kind::List(&STOP_TEXT, 0, Most::StopTexts)]),
        "Texts that end the answer.",
    ),
    optional(
        "stop_token_ids",
        Kind::TokenIds(0, Most::Is(STOP_TOKEN_IDS_MAX as i64)),
        "Tokens that end the answer, beside the model's own.",
    ),
    optional(
        TOLD_IDS,
        Kind::TokenIds(0, Most::Logprobs),
        "With `logprobs`: the tokens whose log-probabilities are told, in this order, in the place of the likeliest.",
    ),
    optional(
        ALLOWED_TOKEN_IDS,
        Kind::TokenIds(1, Most::ANY),
        "The only tokens of the answer; what ends a form is allowed with it.",
    ),
    optional(
        BAD_WORDS,
        Kind::List(&STOP_TEXT, 0, Most::Is(BAD_WORDS_MAX as i64)),
        "Words whose tokens never come in a row, neither within a word nor behind a space.",
    ),
    optional(REPETITION, Kind::Object(&CIRCLES), "Ends an answer that goes round in circles, with `repetition`."),
    with_default("ignore_eos", Kind::Flag, "false", "Whether the model's own end does not end the answer."),
    with_default("include_stop_str_in_output", Kind::Flag, "false", "Whether the text shows what ended it."),
    with_default("skip_special_tokens", Kind::Flag, "true", "Whether special tokens are left out of the text."),
    with_default(
        SPACES,
        Kind::Flag,
        "true",
        "Whether special tokens that are shown stand apart by what the tokenizer puts between tokens; most put nothing.",
    ),
    optional(
        THINKING_BUDGET,
        BUDGET,
        "Tokens of reasoning at most, the marks around it not counted; then its end is forced, and the answer goes on. -1: no limit. \
         For models whose reasoning is told from their answer.",
    ),
    optional(QWENS_BUDGET, BUDGET, "Qwen's name of `thinking_token_budget`."),
    with_default(
        "use_beam_search",
        Kind::Flag,
        "false",
        "Whether the `n` likeliest answers are searched for, with so many beams, instead of drawn.",
    ),
    with_default(
        "length_penalty",
        Kind::Number(&bounds::LENGTH_PENALTY),
        "1.0",
        "With `use_beam_search`: answers are compared by their log-probability over their length to this power.",
    ),
    with_default(
        "early_stopping",
        Kind::Flag,
        "false",
        "With `use_beam_search`: whether the first `n` complete answers will do, though better ones might come.",
    ),
    optional("priority", PRIORITY, "Smaller first."),
    optional("user", Kind::TEXT, "Who of the key's users asks: each gets a share of what the key gets."),
    optional("cache_salt", SALT, "Requests with different salts share no cached blocks."),
    optional(
        PROMPT_CACHE_RETENTION,
        Kind::Word(&["in_memory", "in-memory", "24h"]),
        "How long the prompt is to stay in the prefix cache.",
    ),
];

/// What [`read_cut`] reads.
pub(super) const CUT: &[Field] = &[
    optional(
        TRUNCATE,
        Kind::Integer(-1, Most::Context),
        "A longer prompt is cut to so many tokens; -1: to the context less one. Unset: a prompt that does not fit is refused.",
    ),
    with_default(
        TRUNCATION_SIDE,
        Kind::Word(&["left", "right"]),
        "\"left\"",
        "With `truncate_prompt_tokens`: on which side a prompt is cut.",
    ),
];

pub(super) const PROMPT_TEXT: &str = "return_prompt_text";

/// What [`read_shown`] reads.
pub(super) const SHOWN: &[Field] = &[
    with_default("return_token_ids", Kind::Flag, "false", "Whether the tokens of prompt and answer are told."),
    with_default(PROMPT_TEXT, Kind::Flag, "false", "Whether the prompt is told as the text that was tokenised."),
    with_default(
        "return_tokens_as_token_ids",
        Kind::Flag,
        "false",
        "Whether log-probabilities name tokens by their ids, as `token_id:123`.",
    ),
];

/// How many answers.
pub(super) const N: &[Field] = &[with_default("n", Kind::Integer(1, Most::Answers), "1", "Answers to each prompt.")];

/// What [`read_stream`] reads.
pub(super) const STREAM: &[Field] = &[
    with_default("stream", Kind::Flag, "false", "Whether the answer comes as server-sent events while it is made."),
    optional("stream_options", Kind::Object(&STREAM_OPTIONS), "Only together with `stream`: true."),
    with_default(
        STREAM_INTERVAL,
        Kind::Integer(1, Most::U32),
        "1",
        "Tokens of an answer in a chunk at least, but for the first and the last; only together with `stream`: true.",
    ),
];

/// What [`read_request_id`] reads.
pub(super) const REQUEST_ID: Field =
    optional("request_id", Kind::Id(1..=128), "The client's own id, which the response's id is made of.");

pub(super) const PRIORITY: Kind = Kind::Integer(i32::MIN as i64, Most::Is(i32::MAX as i64));
pub(super) const SALT: Kind = Kind::Text(1..=CACHE_SALT_MAX as u64);
pub(super) const STOP_TEXT: Kind = Kind::Text(1..=STOP_STRING_BYTES_MAX as u64);

const STREAM_INTERVAL: &str = "stream_interval";

const STREAM_OPTIONS: Shape = Shape {
    name: "StreamOptions",
    about: "What a stream shows beside its text.",
    fields: &[&[
        with_default("include_usage", Kind::Flag, "false", "Usage on a last chunk of its own."),
        with_default("continuous_usage_stats", Kind::Flag, "false", "Usage so far on every chunk."),
    ]],
    unserved: &[&[("include_obfuscation", &["false"], "padding of chunks")]],
};

const CIRCLES: Shape = Shape::new(
    "RepetitionDetection",
    "What counts as going round in circles: the answer's end is a run of tokens, several times over.",
    &[&[
        needed(
            "max_pattern_size",
            Kind::Integer(0, Most::Is(PATTERN_MAX as i64)),
            "Tokens of the longest run; 0: off.",
        ),
        with_default(
            "min_pattern_size",
            Kind::Integer(0, Most::Is(PATTERN_MAX as i64)),
            "0",
            "Tokens of the shortest run; 0: one.",
        ),
        optional(
            "min_count",
            Kind::Integer(0, Most::U32),
            "How often it comes in a row: at least 2, and needed, if `max_pattern_size` is not 0.",
        ),
    ]],
);

/// How a stream comes, and what it shows beside its chunks of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    /// Usage on a last chunk of its own.
    pub(crate) include_usage: bool,
    /// Usage so far on every chunk.
    pub(crate) continuous_usage: bool,
    /// Tokens of an answer in a chunk at least.
    pub(crate) interval: u32,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { include_usage: false, continuous_usage: false, interval: 1 }
    }
}

/// What an answer shows beside its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ShownTokens {
    /// The tokens of prompt and answer.
    pub(crate) ids: bool,
    /// The prompt's text.
    pub(crate) prompt_text: bool,
    /// Ids in place of texts where tokens are named.
    pub(crate) names_by_id: bool,
}

pub(super) fn read_shown(fields: &mut Fields<'_>) -> Result<ShownTokens, ApiError> {
    Ok(ShownTokens {
        ids: fields.flag("return_token_ids")?.unwrap_or(false),
        prompt_text: fields.flag(PROMPT_TEXT)?.unwrap_or(false),
        names_by_id: fields.flag("return_tokens_as_token_ids")?.unwrap_or(false),
    })
}

/// How a prompt is cut that is too long.
pub(super) fn read_cut(fields: &mut Fields<'_>) -> Result<Option<Cut>, ApiError> {
    let (side, tokens) = (fields.text(TRUNCATION_SIDE)?, fields.integer(TRUNCATE, CUT_LENGTHS)?);
    cut_of(tokens, side.as_deref(), |name| fields.at(name))
}

const CUT_LENGTHS: &str = "-1 (the context less one), or an integer from 1 on, at most the model's context";

/// The same in any protocol, whose names `at` gives.
pub(crate) fn cut_of(
    tokens: Option<i64>,
    side: Option<&str>,
    at: impl Fn(&'static str) -> String,
) -> Result<Option<Cut>, ApiError> {
    let keeps = match side {
        None | Some("left") => Side::End,
        Some("right") => Side::Beginning,
        Some(other) => {
            return Err(ApiError::invalid(at(TRUNCATION_SIDE), quoted(other), "\"left\" or \"right\""));
        }
    };
    match tokens {
        None => Ok(None),
        Some(-1) => Ok(Some(Cut { tokens: None, keeps })),
        Some(tokens) => match u32::try_from(tokens) {
            Ok(tokens) if tokens > 0 => Ok(Some(Cut { tokens: Some(tokens), keeps })),
            _ => Err(ApiError::invalid(at(TRUNCATE), tokens, CUT_LENGTHS)),
        },
    }
}

/// Everything of [`Options`] but what chats and completions spell differently: `max_tokens` and `logprobs`.
pub(crate) fn read_options(fields: &mut Fields<'_>) -> Result<Options, ApiError> {
    Ok(Options {
        n: fields.count("n", told::N)?.unwrap_or(1),
        max_tokens: None,
        min_tokens: fields.count("min_tokens", told::MIN_TOKENS)?.unwrap_or(0),
        temperature: fields.number("temperature", &bounds::TEMPERATURE)?,
        top_k: fields.integer("top_k", told::TOP_K)?,
        top_p: fields.number("top_p", &bounds::TOP_P)?,
        min_p: fields.number("min_p", &bounds::MIN_P)?,
        repetition_penalty: fields.number("repetition_penalty", &bounds::REPETITION_PENALTY)?,
        presence_penalty: fields.number("presence_penalty", &bounds::PENALTY)?,
        frequency_penalty: fields.number("frequency_penalty", &bounds::PENALTY)?,
        logit_bias: read_logit_bias(fields)?,
        seed: fields.integer("seed", told::LONG)?,
        stop: read_stop(fields)?,
        stop_token_ids: fields.token_ids("stop_token_ids")?.unwrap_or_default(),
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        include_stop: fields.flag("include_stop_str_in_output")?.unwrap_or(false),
        skip_special: fields.flag("skip_special_tokens")?.unwrap_or(true),
        joins_special: !fields.flag(SPACES)?.unwrap_or(true),
        logprobs: None,
        told: fields.token_ids(TOLD_IDS)?.unwrap_or_default(),
        prompt_logprobs: None,
        beams: read_beams(fields)?,
        constrained: read_constrained(fields)?,
        words: WordRules {
            allowed: fields.token_ids(ALLOWED_TOKEN_IDS)?,
            bad: fields.texts(BAD_WORDS, "a list of texts")?.unwrap_or_default(),
        },
        repetition: read_repetition(fields)?,
        thoughts: read_budget(fields)?,
        priority: fields.integer("priority", told::SIGNED)?,
        user: fields.text("user")?,
        cache_salt: fields.text("cache_salt")?,
        keep: read_retention(fields)?,
    })
}

/// What is asked of beams without asking for them has to be what asks for nothing.
fn read_beams(fields: &mut Fields<'_>) -> Result<Option<BeamSearch>, ApiError> {
    let is_asked = fields.flag("use_beam_search")?.unwrap_or(false);
    let neutral = BeamSearch::default();
    let asked = BeamSearch {
        length_penalty: fields.number("length_penalty", &bounds::LENGTH_PENALTY)?.unwrap_or(neutral.length_penalty),
        early_stopping: fields.flag("early_stopping")?.unwrap_or(neutral.early_stopping),
    };
    if is_asked {
        return Ok(Some(asked));
    }
    if asked == neutral {
        return Ok(None);
    }
    let param = if asked.early_stopping { "early_stopping" } else { "length_penalty" };
    let reason = "is only allowed together with `use_beam_search`: true".to_owned();
    Err(ApiError::Conflict { param: fields.at(param), reason })
}

/// `None`: nothing is asked for.
fn read_repetition(fields: &mut Fields<'_>) -> Result<Option<Repetition>, ApiError> {
    let Some(mut asked) = fields.object(REPETITION)? else { return Ok(None) };
    let size = "an integer from 0 (off) to 1024"; // `PATTERN_MAX`
    let max_pattern = asked.count("max_pattern_size", size)?;
    let min_pattern = asked.count("min_pattern_size", "an integer from 0 to `max_pattern_size`")?.unwrap_or(0).max(1);
    let allowed = "an integer from 2 to 4294967295, with a `max_pattern_size` above 0";
    let min_count = asked.integer("min_count", allowed)?;
    let missing = |param, allowed| ApiError::Missing { param, allowed };
    let [of_pattern, of_count] = ["max_pattern_size", "min_count"].map(|member| asked.at(member));
    asked.finish(&CIRCLES)?; // a member by a wrong name is told by that, not as missing
    // Without it nothing would be looked for: 0 says so.
    let max_pattern = max_pattern.ok_or_else(|| missing(of_pattern, size))?;
    let min_count = match min_count {
        Some(count) => count,
        None if max_pattern == 0 => 0,
        None => return Err(missing(of_count, allowed)),
    };
    Ok((max_pattern > 0).then_some(Repetition { min_pattern, max_pattern, min_count }))
}

/// `in_memory` asks for what happens anyway.
fn read_retention(fields: &mut Fields<'_>) -> Result<Option<Duration>, ApiError> {
    match fields.text(PROMPT_CACHE_RETENTION)?.as_deref() {
        None | Some("in_memory" | "in-memory") => Ok(None),
        Some("24h") => Ok(Some(KEEP_MAX)),
        Some(other) => Err(ApiError::invalid(fields.at(PROMPT_CACHE_RETENTION), quoted(other), "`in_memory` or `24h`")),
    }
}

/// `stream` and `stream_options`; `None`: the answer is wanted whole.
pub(crate) fn read_stream(fields: &mut Fields<'_>) -> Result<Option<StreamOptions>, ApiError> {
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    let alone = |param: String| {
        let reason = "is only allowed together with `stream`: true".to_owned();
        Err(ApiError::Conflict { param, reason })
    };
    let allowed = told::COUNT_FROM_1;
    let interval = fields.integer(STREAM_INTERVAL, allowed)?.unwrap_or(1);
    match interval {
        0 => return Err(ApiError::invalid(fields.at(STREAM_INTERVAL), interval, allowed)),
        1 => {}
        _ if !is_stream => return alone(fields.at(STREAM_INTERVAL)),
        _ => {}
    }
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(is_stream.then(|| StreamOptions { interval, ..StreamOptions::default() }));
    };
    let read = StreamOptions {
        include_usage: options.flag("include_usage")?.unwrap_or(false),
        continuous_usage: options.flag("continuous_usage_stats")?.unwrap_or(false),
        interval,
    };
    // OpenAI's padding against eavesdroppers who measure chunks: `false` asks for none, and none is added.
    if options.flag("include_obfuscation")? == Some(true) {
        let param = options.at("include_obfuscation");
        return Err(ApiError::not_served(param, true, "false", "padding of chunks"));
    }
    options.finish(&STREAM_OPTIONS)?;
    if !is_stream {
        return alone(fields.at("stream_options"));
    }
    Ok(Some(read))
}

/// The client's own id for its request, which the response's id is made of.
pub(crate) fn read_request_id(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let Some(id) = fields.text("request_id")? else { return Ok(None) };
    if is_plain_id(&id) {
        return Ok(Some(id));
    }
    Err(ApiError::invalid(fields.at("request_id"), quoted(&id), PLAIN_ID))
}

/// What [`is_plain_id`] asks for.
pub(crate) const PLAIN_ID: &str = "1 to 128 visible ASCII characters";

/// Whether a client's id can stand in headers, logs and responses.
pub(crate) fn is_plain_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.chars().all(|c| c.is_ascii_graphic())
}

fn read_stop(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let Some(raw) = fields.raw("stop") else { return Ok(Vec::new()) };
    one_or_many(raw).ok_or_else(|| fields.wrong_item::<String>("stop", raw, "a text or a list of texts"))
}

/// A text, or a list of texts.
pub(crate) fn one_or_many(raw: &RawValue) -> Option<Vec<String>> {
    if raw.get().starts_with('"') {
        return serde_json::from_str(raw.get()).ok().map(|text| vec![text]);
    }
    serde_json::from_str(raw.get()).ok()
}

fn read_logit_bias(fields: &mut Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let allowed = "an object from token ids to numbers from -100 to 100";
    let Some(entries) = fields.numbers("logit_bias", allowed)? else { return Ok(Vec::new()) };
    let mut biases = Vec::with_capacity(entries.len());
    for (key, bias) in entries {
        // Not a sign, which Rust would read.
        let digits = Some(key.as_ref()).filter(|key| key.bytes().all(|byte| byte.is_ascii_digit()));
        let Some(token) = digits.and_then(|digits| digits.parse::<u32>().ok()) else {
            let got = format!("an object with the key {}", quoted(&key));
            return Err(ApiError::invalid(fields.at("logit_bias"), got, allowed));
        };
        biases.push((token, bias));
    }
    // "7" and "07" are the same token.
    biases.sort_unstable_by_key(|&(token, _)| token);
    if let Some(twice) = biases.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let reason = format!("names token {} twice", twice[0].0);
        return Err(ApiError::Conflict { param: fields.at("logit_bias"), reason });
    }
    Ok(biases)
}

//! The fields that chats and completions share.

use std::time::Duration;

use serde_json::value::RawValue;

use super::{
    constrained::read_constrained,
    fields::{Fields, quoted},
};
use crate::{
    error::ApiError,
    generate::{KEEP_MAX, Options, PROMPT_CACHE_RETENTION},
};

/// What a stream shows beside its chunks of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StreamOptions {
    /// Usage on a last chunk of its own.
    pub(crate) include_usage: bool,
    /// Usage so far on every chunk.
    pub(crate) continuous_usage: bool,
}

/// Everything of [`Options`] but what chats and completions spell differently: `max_tokens` and `logprobs`.
pub(crate) fn read_options(fields: &mut Fields<'_>) -> Result<Options, ApiError> {
    let integer = "an integer";
    Ok(Options {
        n: fields.count("n")?.unwrap_or(1),
        max_tokens: None,
        min_tokens: fields.count("min_tokens")?.unwrap_or(0),
        temperature: fields.number("temperature")?,
        top_k: fields.read("top_k", integer)?,
        top_p: fields.number("top_p")?,
        min_p: fields.number("min_p")?,
        repetition_penalty: fields.number("repetition_penalty")?,
        presence_penalty: fields.number("presence_penalty")?,
        frequency_penalty: fields.number("frequency_penalty")?,
        logit_bias: read_logit_bias(fields)?,
        seed: fields.read("seed", "an integer of 64 bits")?,
        stop: read_stop(fields)?,
        stop_token_ids: fields.token_ids("stop_token_ids")?.unwrap_or_default(),
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        include_stop: fields.flag("include_stop_str_in_output")?.unwrap_or(false),
        skip_special: fields.flag("skip_special_tokens")?.unwrap_or(true),
        logprobs: None,
        constrained: read_constrained(fields)?,
        priority: fields.read("priority", "an integer of 32 bits")?,
        user: fields.text("user")?,
        cache_salt: fields.text("cache_salt")?,
        keep: read_retention(fields)?,
    })
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
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(is_stream.then(StreamOptions::default));
    };
    let read = StreamOptions {
        include_usage: options.flag("include_usage")?.unwrap_or(false),
        continuous_usage: options.flag("continuous_usage_stats")?.unwrap_or(false),
    };
    // OpenAI's padding against eavesdroppers who measure chunks: `false` asks for none, and none is added.
    if options.flag("include_obfuscation")? == Some(true) {
        let param = options.at("include_obfuscation");
        return Err(ApiError::NotServed { param, what: "padding of chunks".into() });
    }
    options.finish()?;
    if !is_stream {
        let reason = "is only allowed together with `stream`: true".to_owned();
        return Err(ApiError::Conflict { param: fields.at("stream_options"), reason });
    }
    Ok(Some(read))
}

/// The client's own id for its request, which the response's id is made of.
pub(crate) fn read_request_id(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let Some(id) = fields.text("request_id")? else { return Ok(None) };
    if is_plain_id(&id) {
        return Ok(Some(id));
    }
    Err(ApiError::invalid(fields.at("request_id"), quoted(&id), "1 to 128 visible ASCII characters"))
}

/// Whether a client's id can stand in headers, logs and responses.
pub(crate) fn is_plain_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.chars().all(|c| c.is_ascii_graphic())
}

fn read_stop(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let Some(raw) = fields.raw("stop") else { return Ok(Vec::new()) };
    one_or_many(raw).ok_or_else(|| fields.wrong("stop", raw, "a text or a list of texts"))
}

/// A text, or a list of texts.
pub(crate) fn one_or_many(raw: &RawValue) -> Option<Vec<String>> {
    if raw.get().starts_with('"') {
        return serde_json::from_str(raw.get()).ok().map(|text| vec![text]);
    }
    serde_json::from_str(raw.get()).ok()
}

fn read_logit_bias(fields: &mut Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let allowed = "an object from token ids to numbers";
    let Some(entries) = fields.read::<std::collections::BTreeMap<String, f32>>("logit_bias", allowed)? else {
        return Ok(Vec::new());
    };
    let mut biases = Vec::with_capacity(entries.len());
    for (key, bias) in entries {
        let Ok(token) = key.parse::<u32>() else {
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

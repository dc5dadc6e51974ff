//! Whether and how hard a model is to think, as variables of its chat template (B:A3), and how long at most.

use pelton_text::THINKING_SWITCHES;
use serde_json::{Map, Value};

use super::{
    fields::Fields,
    shape::{Kind, Most},
};
use crate::{error::ApiError, generate::ThoughtLimit};

const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// What [`read_effort`] reads.
pub(super) const EFFORT: Kind = Kind::Word(EFFORTS);

/// What [`read_budget`] reads: vLLM's name, and Qwen's.
pub(super) const THINKING_BUDGET: &str = "thinking_token_budget";
pub(super) const QWENS_BUDGET: &str = "thinking_budget";
pub(super) const BUDGET: Kind = Kind::Integer(-1, Most::U32);

/// How long at most.
pub(super) fn read_budget(fields: &mut Fields<'_>) -> Result<Option<ThoughtLimit>, ApiError> {
    let allowed = "-1 (no limit), or an integer from 0 to 4294967295";
    let mut limit = None;
    for name in [THINKING_BUDGET, QWENS_BUDGET] {
        let Some(tokens) = fields.integer::<i64>(name, allowed)? else { continue };
        let param = fields.at(name);
        if limit.is_some() {
            let reason = format!("cannot go together with `{THINKING_BUDGET}`, which says the same");
            return Err(ApiError::Conflict { param, reason });
        }
        if !(-1..=i64::from(u32::MAX)).contains(&tokens) {
            return Err(ApiError::invalid(param, tokens, allowed));
        }
        limit = Some((tokens, param));
    }
    // -1 asks for what happens anyway.
    Ok(limit.and_then(|(tokens, param)| Some(ThoughtLimit { tokens: u32::try_from(tokens).ok()?, param })))
}

/// How hard, in a field of this name. OpenAI's words, and `max`, which Anthropic has and the peer takes.
pub(super) fn read_effort(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<&'static str>, ApiError> {
    let allowed = "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"";
    fields.one_of(name, EFFORTS, allowed)
}

/// Tells the template an effort, which switches thinking on or off in templates that know a switch alone. What the request says of
/// the template's variables itself goes before it.
pub(super) fn set_effort(kwargs: &mut Map<String, Value>, effort: &'static str) {
    kwargs.entry("reasoning_effort").or_insert(effort.into());
    switch(kwargs, effort != "none");
}

/// Switches thinking on or off, in templates that can, unless the request's own variables do.
pub(super) fn switch(kwargs: &mut Map<String, Value>, thinks: bool) {
    if THINKING_SWITCHES.iter().any(|switch| kwargs.contains_key(*switch)) {
        return;
    }
    kwargs.extend(THINKING_SWITCHES.map(|switch| (switch.to_owned(), thinks.into())));
}

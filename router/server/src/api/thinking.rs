//! Whether and how hard a model is to think, as variables of its chat template (B:A3).

use serde_json::{Map, Value};

use super::{fields::Fields, shape::Kind};
use crate::error::ApiError;

/// What templates call the switch for thinking.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// What [`read_effort`] reads.
pub(super) const EFFORT: Kind = Kind::Word(EFFORTS);

/// How hard, in a field of this name.
pub(super) fn read_effort(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<&'static str>, ApiError> {
    let allowed = "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"";
    fields.one_of(name, EFFORTS, allowed)
}

/// Tells the template an effort, which switches thinking on or off in templates that know a switch alone. What the request says of
/// the template's variables itself goes before it.
pub(super) fn set_effort(kwargs: &mut Map<String, Value>, effort: &'static str) {
    kwargs.entry("reasoning_effort").or_insert(effort.into());
    if !SWITCHES.iter().any(|switch| kwargs.contains_key(*switch)) {
        switch(kwargs, effort != "none");
    }
}

/// Switches thinking on or off, in templates that can.
pub(super) fn switch(kwargs: &mut Map<String, Value>, thinks: bool) {
    kwargs.extend(SWITCHES.map(|switch| (switch.to_owned(), thinks.into())));
}

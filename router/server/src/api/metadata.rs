//! `metadata`: what a client notes beside its request, within OpenAI's bounds.

use std::collections::HashMap;

use super::{
    fields::{Fields, quoted},
    shape::{Field, Kind, optional},
};
use crate::error::ApiError;

pub(super) const METADATA: &str = "metadata";
const NAMES_MAX: usize = 16;
/// Characters of a name.
const NAME_MAX: usize = 64;
/// Characters of what is noted by it.
const TEXT_MAX: usize = 512;
const ALLOWED: &str = "at most 16 names of at most 64 characters, with texts of at most 512";

/// What [`read_metadata`] reads.
pub(super) const fn metadata(about: &'static str) -> Field {
    optional(METADATA, Kind::Map(&Kind::Text(0..=TEXT_MAX as u64), NAMES_MAX, NAME_MAX), about)
}

pub(super) fn read_metadata(fields: &mut Fields<'_>) -> Result<Option<HashMap<String, String>>, ApiError> {
    let Some(noted) = fields.named_texts(METADATA)? else { return Ok(None) };
    let wrong = |got: String| Err(ApiError::invalid(fields.at(METADATA), got, ALLOWED));
    if noted.len() > NAMES_MAX {
        return wrong(format!("an object of {} names", noted.len()));
    }
    for (name, text) in &noted {
        let (name_length, text_length) = (name.chars().count(), text.chars().count());
        if name_length > NAME_MAX {
            return wrong(format!("an object with the name {}, which has {name_length} characters", quoted(name)));
        }
        if text_length > TEXT_MAX {
            return wrong(format!("an object whose {} has {text_length} characters", quoted(name)));
        }
    }
    Ok(Some(noted))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    fn check(metadata: Value, expected: Result<usize, &str>) {
        let body = json!({ METADATA: metadata }).to_string();
        let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
        let read = read_metadata(&mut fields).map(|noted| noted.map_or(0, |noted| noted.len()));
        let expected = expected.map_err(|got| format!("`metadata` is {got}; allowed: {ALLOWED}"));
        assert_eq!(read.map_err(|error| error.to_string()), expected, "{body}");
    }

    #[test]
    fn bounds_are_openais() {
        let names =
            |count: usize| -> Map<String, Value> { (0..count).map(|at| (at.to_string(), "x".into())).collect() };
        check(Value::Null, Ok(0));
        check(names(16).into(), Ok(16));
        check(names(17).into(), Err("an object of 17 names"));
        check(json!({ "é".repeat(64): "é".repeat(512) }), Ok(1));
        let long = format!("an object with the name \"{}…\", which has 65 characters", "a".repeat(60));
        check(json!({ "a".repeat(65): "" }), Err(&long));
        check(json!({ "a": "b", "c": "x".repeat(513) }), Err("an object whose \"c\" has 513 characters"));
    }
}

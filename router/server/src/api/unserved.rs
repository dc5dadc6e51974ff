//! Parameters that OpenAI's or the peer's clients may send and that Pelton does not serve yet, or that need nothing.
//!
//! A parameter that would change the answer is refused by name unless its value changes nothing. To ignore it would be
//! a lie that somebody finds out in production.

use super::{
    fields::{Fields, shown},
    metadata::{METADATA, metadata, read_metadata},
    shape::{Field, Kind, optional},
};
use crate::error::ApiError;

/// A parameter, the JSON values of it that ask for nothing (`null` always does), and what any other value asks for.
pub(crate) type Unserved = (&'static str, &'static [&'static str], &'static str);

/// In chats and completions.
pub(super) const BOTH: &[Unserved] = &[
    ("ec_transfer_params", &[], "moving encodings between servers"),
    ("kv_transfer_params", &[], "moving KV between servers"),
    ("return_weight_versions", &["false"], "versions of weights (a server has one, named by `system_fingerprint`)"),
    ("vllm_xargs", &["{}"], "passing arguments to the worker"),
];

/// Of media, wherever a model is given more than token ids.
pub(super) const MEDIA: &[Unserved] =
    &[("media_io_kwargs", &["{}"], "media"), ("mm_processor_kwargs", &["{}"], "media")];

/// Where answers have ids of their protocol's form, or none to choose.
pub(super) const IDS: &[Unserved] = &[("request_id", &[], "naming an answer (use the header `x-request-id`)")];

/// How prompts are cached, by OpenAI's newest name: what is found is found anyway.
pub(super) const PROMPT_CACHE_OPTIONS: Unserved = (
    "prompt_cache_options",
    &["{}", r#"{"mode":"implicit"}"#],
    "choosing what is cached (use `prompt_cache_retention`)",
);

/// In chats.
pub(super) const CHAT: &[Unserved] = &[
    ("audio", &[], "spoken answers"),
    ("function_call", &["\"none\"", "\"auto\""], "the old form of calling functions (use `tools`)"),
    ("functions", &["[]"], "the old form of calling functions (use `tools`)"),
    ("modalities", &["[\"text\"]"], "answers that are not text"),
    ("moderation", &[], "moderation"),
    ("prediction", &[], "a predicted answer"),
    PROMPT_CACHE_OPTIONS,
    ("store", &["false"], "storing answers"),
    ("web_search_options", &[], "searching the web"),
];

/// What OpenAI's protocol has for the client's own books. It changes no answer.
pub(super) const BOOKS: &[Field] = &[
    optional("prompt_cache_key", Kind::TEXT, WITHOUT_EFFECT),
    optional("safety_identifier", Kind::TEXT, WITHOUT_EFFECT),
    optional(SERVICE_TIER, TIER, WITHOUT_EFFECT),
    optional("session_id", Kind::TEXT, WITHOUT_EFFECT),
    metadata(WITHOUT_EFFECT),
];

pub(super) const WITHOUT_EFFECT: &str = "For the client's own books; changes no answer.";

/// What OpenAI calls the way in which a request is processed.
pub(super) const SERVICE_TIER: &str = "service_tier";
/// What [`read_tier`] reads.
pub(super) const TIER: Kind = Kind::Word(TIERS);
const TIERS: &[&str] = &["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"];
/// The only one there is: what answers tell, as OpenAI's tell the one that was used.
pub(super) const TIER_USED: &str = "default";

/// Whether an answer has to tell its tier.
pub(crate) fn read_tier(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    let allowed = "\"auto\", \"default\", \"flex\", \"scale\", \"priority\", \"fast\" or \"ultrafast\"";
    Ok(fields.one_of(SERVICE_TIER, TIERS, allowed)?.is_some())
}

/// Refuses what a completion cannot have.
pub(crate) fn refuse_in_completion(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    refuse(fields, &[BOTH])
}

/// Refuses what a chat cannot have.
pub(crate) fn refuse_in_chat(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    refuse(fields, &[BOTH, MEDIA, CHAT])
}

/// Refuses what no answer can have.
pub(crate) fn refuse_sampling(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    refuse_all(fields, BOTH)
}

/// Refuses what the peer's clients may send in the protocols that are not vLLM's own.
pub(super) fn refuse_the_peers(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    [BOTH, MEDIA, IDS].into_iter().try_for_each(|table| refuse_all(fields, table))
}

fn refuse(fields: &mut Fields<'_>, tables: &[&[Unserved]]) -> Result<(), ApiError> {
    for table in tables {
        refuse_all(fields, table)?;
    }
    for field in BOOKS.iter().filter(|field| ![METADATA, SERVICE_TIER].contains(&field.name)) {
        fields.text(field.name)?;
    }
    read_metadata(fields)?;
    Ok(())
}

/// Refuses what stands in a table.
pub(super) fn refuse_all(fields: &mut Fields<'_>, table: &[Unserved]) -> Result<(), ApiError> {
    for &(name, without_effect, what) in table {
        let Some(raw) = fields.raw(name) else { continue };
        // Compared without spaces: no value here has a space within a text.
        let value: String = raw.get().split_ascii_whitespace().collect();
        if !without_effect.contains(&value.as_str()) {
            return Err(ApiError::not_served(fields.at(name), shown(raw), or(without_effect), what));
        }
    }
    Ok(())
}

/// What a parameter may be, `null` first.
fn or(without_effect: &[&str]) -> String {
    let Some((last, others)) = without_effect.split_last() else { return "null".to_owned() };
    let others: String = others.iter().map(|value| format!(", {value}")).collect();
    format!("null{others} or {last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: Option<&str>) {
        let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
        let param = match refuse_in_chat(&mut fields).and_then(|()| read_tier(&mut fields)) {
            Ok(_) => None,
            Err(
                ApiError::NotServed { param, .. } | ApiError::Invalid { param, .. } | ApiError::Missing { param, .. },
            ) => Some(param),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(param.as_deref(), expected, "{body}");
        if expected.is_none() {
            fields.finish_part().expect("everything was known");
        }
    }

    #[test]
    fn what_would_change_the_answer_is_refused_by_name() {
        check(r#"{"audio": {"voice": "alloy"}}"#, Some("audio"));
        check(r#"{"store": true}"#, Some("store"));
        check(r#"{"modalities": ["text", "audio"]}"#, Some("modalities"));
        check(r#"{"vllm_xargs": {"a": 1}}"#, Some("vllm_xargs"));
        check(r#"{"kv_transfer_params": {}}"#, Some("kv_transfer_params"));
        check(r#"{"ec_transfer_params": {}}"#, Some("ec_transfer_params"));
        check(r#"{"return_weight_versions": true}"#, Some("return_weight_versions"));
        check(r#"{"service_tier": "turbo"}"#, Some("service_tier"));
    }

    #[test]
    fn a_refusal_says_what_passes() {
        let told = |body: &str| {
            let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
            refuse_in_chat(&mut fields).expect_err("it is not served").to_string()
        };
        let expected = "`audio` is an object; allowed: null; not served yet: spoken answers";
        assert_eq!(told(r#"{"audio": {"voice": "alloy"}}"#), expected);
        let expected = "`store` is true; allowed: null or false; not served yet: storing answers";
        assert_eq!(told(r#"{"store": true}"#), expected);
        let expected = "`function_call` is the text \"f\"; allowed: null, \"none\" or \"auto\"; not served yet: the old form of calling functions (use `tools`)";
        assert_eq!(told(r#"{"function_call": "f"}"#), expected);
    }

    #[test]
    fn what_changes_nothing_passes() {
        check(r#"{"audio": null, "store": false, "modalities": [ "text" ]}"#, None);
        check(r#"{"metadata": null, "service_tier": null, "prompt_cache_key": null}"#, None);
        check(r#"{"metadata": {"a": "b"}, "service_tier": "auto", "safety_identifier": "x"}"#, None);
        check(r#"{"return_weight_versions": false, "service_tier": "flex", "kv_transfer_params": null}"#, None);
    }

    #[test]
    fn what_changes_nothing_still_has_a_type() {
        for Field { name, .. } in BOOKS.iter().filter(|field| field.name != METADATA) {
            for wrong in ["5", "true", "{}", "[\"a\"]"] {
                check(&format!("{{\"{name}\": {wrong}}}"), Some(name));
            }
        }
        for wrong in ["\"a\"", "[]", "5", r#"{"a": 1}"#, r#"{"a": null}"#] {
            check(&format!("{{\"metadata\": {wrong}}}"), Some("metadata"));
        }
    }
}

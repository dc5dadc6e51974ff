//! `Sampling` of `pelton.v1` to options.

use pelton_engine::TokenId;
use pelton_grammar::Constraint;
use pelton_rpc::v1;

use crate::{
    api::{set_spaces, structural_tag_of_json, twice::check_names, why_no_json},
    error::ApiError,
    generate::{BeamSearch, Constrained, Options, Repetition, ThoughtLimit, WordRules},
    json_size::check_size,
};

/// Fields of `Sampling` that the shared checks call by their last word.
pub(super) const NAMES: [&str; 23] = [
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "logprobs",
    "prompt_logprobs",
    "allowed_token_ids",
    "bad_words",
    "logprob_token_ids",
    "repetition_detection",
    "thinking_token_budget",
    "spaces_between_special_tokens",
];

pub(super) fn options(sampling: v1::Sampling) -> Result<Options, ApiError> {
    let mut logit_bias: Vec<(TokenId, f32)> = sampling.logit_bias.into_iter().collect();
    logit_bias.sort_unstable_by_key(|&(token, _)| token);
    let mut constrained = sampling.constraint.map(constrained).transpose()?.flatten();
    let at = |name: &'static str| format!("sampling.{name}");
    set_spaces(constrained.as_mut(), sampling.disable_any_whitespace, sampling.whitespace_pattern, at)?;
    Ok(Options {
        constrained,
        max_tokens: sampling.max_tokens,
        min_tokens: sampling.min_tokens.unwrap_or(0),
        temperature: sampling.temperature,
        top_k: sampling.top_k.map(i64::from),
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        logit_bias,
        seed: sampling.seed,
        stop: sampling.stop,
        stop_token_ids: sampling.stop_token_ids,
        ignore_eos: sampling.ignore_eos,
        include_stop: sampling.include_stop_str_in_output,
        skip_special: sampling.skip_special_tokens.unwrap_or(true),
        joins_special: !sampling.spaces_between_special_tokens.unwrap_or(true),
        logprobs: sampling.logprobs,
        told: sampling.logprob_token_ids,
        prompt_logprobs: sampling.prompt_logprobs,
        beams: sampling.beam_search.map(|asked| BeamSearch {
            length_penalty: asked.length_penalty.unwrap_or(BeamSearch::default().length_penalty),
            early_stopping: asked.early_stopping,
        }),
        words: WordRules {
            allowed: Some(sampling.allowed_token_ids).filter(|ids| !ids.is_empty()),
            bad: sampling.bad_words,
        },
        repetition: sampling.repetition_detection.filter(|asked| asked.max_pattern_size > 0).map(|asked| Repetition {
            min_pattern: asked.min_pattern_size.max(1),
            max_pattern: asked.max_pattern_size,
            min_count: asked.min_count,
        }),
        thoughts: sampling
            .thinking_token_budget
            .map(|tokens| ThoughtLimit { tokens, param: "sampling.thinking_token_budget".to_owned() }),
        ..Options::default()
    })
}

/// `None`: nothing is asked for.
fn constrained(asked: v1::sampling::Constraint) -> Result<Option<Constrained>, ApiError> {
    use v1::sampling::Constraint as Asked;
    let (name, constraint) = match asked {
        Asked::JsonObject(false) => return Ok(None),
        Asked::JsonObject(true) => ("json_object", Constraint::JsonObject),
        Asked::Regex(regex) => ("regex", Constraint::Regex(regex)),
        Asked::Choice(choice) => ("choice", Constraint::Choice(choice.texts)),
        Asked::Grammar(grammar) => ("grammar", Constraint::Grammar(grammar)),
        Asked::StructuralTag(tag) => {
            return structural_tag_of_json("sampling.structural_tag".to_owned(), tag).map(Some);
        }
        Asked::JsonSchema(schema) => {
            check_size("sampling.json_schema", &schema)?;
            check_names("sampling.json_schema", &schema)?;
            let schema = serde_json::from_str(&schema).map_err(|error| {
                ApiError::invalid(
                    "sampling.json_schema",
                    format_args!("no JSON ({})", why_no_json(&error)),
                    "a JSON schema",
                )
            })?;
            ("json_schema", Constraint::JsonSchema(schema))
        }
    };
    Ok(Some(Constrained { constraint, param: format!("sampling.{name}") }))
}

#[cfg(test)]
mod tests {
    use pelton_grammar::Spaces;
    use v1::sampling::Constraint as Asked;

    use super::*;

    #[test]
    fn a_constraint_arrives_or_is_refused_by_name() {
        let of = |constraint| constrained(constraint).expect("right").map(|read| (read.constraint, read.param));
        let schema = of(Asked::JsonSchema("{\"type\": \"null\"}".into())).expect("a schema");
        let expected = Constraint::JsonSchema(serde_json::json!({ "type": "null" }));
        assert_eq!(schema, (expected, "sampling.json_schema".to_owned()));
        assert_eq!(of(Asked::JsonObject(false)), None);
        let choice = of(Asked::Choice(v1::Choice { texts: vec!["a".into()] })).expect("a choice");
        assert_eq!(choice.0, Constraint::Choice(vec!["a".into()]));
        let error = constrained(Asked::JsonSchema("{".into())).expect_err("no JSON");
        assert!(matches!(error, ApiError::Invalid { param, .. } if param == "sampling.json_schema"));
    }

    #[test]
    fn what_stands_between_a_documents_tokens_arrives_or_is_refused_by_name() {
        let asked = |constraint, disable_any_whitespace, pattern: Option<&str>| {
            let whitespace_pattern = pattern.map(str::to_owned);
            options(v1::Sampling { constraint, disable_any_whitespace, whitespace_pattern, ..v1::Sampling::default() })
        };
        let spaces = |disabled, pattern| {
            let asked = asked(Some(Asked::JsonSchema("{}".into())), disabled, pattern).expect("right");
            match asked.constrained.expect("a schema").constraint {
                Constraint::Spaced(_, spaces) => Some(spaces),
                _ => None,
            }
        };
        assert_eq!(spaces(false, None), None);
        assert_eq!(spaces(true, None), Some(Spaces::None));
        assert_eq!(spaces(false, Some(" ?")), Some(Spaces::Matching(" ?".into())));
        for (constraint, disabled, pattern, expected) in [
            (Some(Asked::JsonObject(true)), true, Some(" ?"), "sampling.whitespace_pattern"),
            (Some(Asked::JsonObject(true)), false, Some("x"), "sampling.whitespace_pattern"),
            (Some(Asked::Regex("a".into())), false, Some(" ?"), "sampling.whitespace_pattern"),
            (None, true, None, "sampling.disable_any_whitespace"),
        ] {
            match asked(constraint, disabled, pattern).expect_err(expected) {
                ApiError::Conflict { param, .. } | ApiError::WrongGrammar { param, .. } => assert_eq!(param, expected),
                other => panic!("{other}"),
            }
        }
    }
}

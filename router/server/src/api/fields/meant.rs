//! What an unknown field was meant to be: a name that is nearly the same, or the name that this API has for what another one calls so.

use crate::nearest::nearest;

/// What mean the same: the names of OpenAI's APIs, Anthropic's, and other servers'.
const SAME: [&[&str]; 5] = [
    &[
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "max_new_tokens",
        "max_tokens_to_sample",
        "n_predict",
    ],
    &["messages", "input", "prompt", "contents"],
    &["stop", "stop_sequences", "stop_strings"],
    &["instructions", "system", "system_instruction"],
    &["reasoning_effort", "reasoning", "thinking"],
];

/// The one of the known names that was meant, as far as can be told.
pub(super) fn meant<'a>(got: &str, known: &[&'a str]) -> Option<&'a str> {
    let same = SAME.iter().filter(|names| names.contains(&got)).flat_map(|names| names.iter());
    let mut same = same.filter_map(|name| known.iter().find(|known| *known == name));
    nearest(got, known.iter().copied()).or_else(|| same.next().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_apis_are_understood() {
        let chat = ["messages", "max_tokens", "max_completion_tokens", "stop", "user"];
        for (got, expected) in [
            ("max_output_tokens", Some("max_completion_tokens")),
            ("n_predict", Some("max_completion_tokens")),
            ("max_token", Some("max_tokens")),
            ("stop_sequences", Some("stop")),
            ("input", Some("messages")),
            ("system", None),
            ("colour", None),
        ] {
            assert_eq!(meant(got, &chat), expected, "{got}");
        }
    }
}

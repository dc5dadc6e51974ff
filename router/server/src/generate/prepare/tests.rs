use serde_json::json;

use super::*;

#[test]
fn what_calls_are_given_is_bounded_in_all_of_them_together() {
    let call = |values: usize| json!({ "function": { "name": "f", "arguments": format!("[{}]", vec!["1"; values - 1].join(",")) } });
    let chat = |values: &[usize]| {
        let calls: Vec<Value> = values.iter().map(|&values| call(values)).collect();
        [json!({ "role": "user", "content": "hi" }), json!({ "role": "assistant", "tool_calls": calls })]
    };
    assert_eq!(check_arguments(&chat(&[VALUES_MAX / 2, VALUES_MAX / 2])), Ok(()));
    let error = check_arguments(&chat(&[VALUES_MAX / 2, VALUES_MAX / 2 + 1])).expect_err("too many").to_string();
    assert!(error.starts_with("`messages` is a chat whose calls have 131073 values in their arguments"), "{error}");
    let of = |text: String| [json!({ "role": "assistant", "tool_calls": [{ "function": { "arguments": text } }] })];
    assert_eq!(check_arguments(&of("x".repeat(2 * VALUES_MAX))), Ok(()), "a long text is one value");
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert_eq!(check_arguments(&of(deep(64))), Ok(()));
    let error = check_arguments(&of(deep(10_000))).expect_err("too deep").to_string();
    assert!(error.ends_with("arguments are 10000 levels deep; allowed: at most 64 levels"), "{error}");
    assert_eq!(check_arguments(&of("[".repeat(10_000))), Ok(()), "a model that went on and on, and was cut");
}

#[test]
fn what_is_counted_has_a_bound_of_its_own() {
    assert_eq!(check_countable("prompt", &"a".repeat(COUNTED_BYTES_MAX)), Ok(()));
    let error = check_countable("prompt", &"a".repeat(COUNTED_BYTES_MAX + 1)).expect_err("too long");
    assert_eq!(error.to_string(), "`prompt` is 8388609 bytes of text; allowed: at most 8388608 bytes of text at once");
}

#[test]
fn ids_are_gone_through_as_texts_are_and_are_no_more_than_the_context_has() {
    assert_eq!(Prompt::Ids(vec![7; 1000]).bytes(), 1000);
    assert_eq!(fitting("prompt", vec![7; 8], 8), Ok(vec![7; 8]), "an echo alone needs no room for an answer");
    let error = ApiError::PromptTooLong { param: "prompt".to_owned(), prompt: 9, limit: 8 };
    assert_eq!(fitting("prompt", vec![7; 9], 8), Err(error));
}

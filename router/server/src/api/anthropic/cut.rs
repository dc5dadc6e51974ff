//! The arguments of a call that was cut, as far as they go.
//!
//! Anthropic's clients put a call together from a stream's pieces and read it with a parser that leaves out what has not come to its end.
//! A whole message shows the same, so that it is the fold of its stream.

use pelton_text::arguments_of;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// The members that are complete; of a list or an object that is open, what is complete in it. A text that is not the beginning of an
/// object is shown as templates are shown it ([`arguments_of`]): no client reads it, and it should not be lost.
pub(super) fn input_of(arguments: &str) -> Map<String, Value> {
    serde_json::from_str(&ended(arguments)).unwrap_or_else(|_| arguments_of(arguments))
}

/// The text as far as its last complete value, and then the ends of what is open.
fn ended(text: &str) -> String {
    let mut open = Vec::new(); // the ends of what is open, the innermost last
    let mut is_name = false; // a text here would be a member's name, no value
    let (mut at, mut end) = (0, 0);
    while at < text.len() {
        let token = first_token(&text[at..]);
        at += token.len();
        let first = token.as_bytes()[0];
        let is_value = match first {
            b'{' | b'[' => {
                open.push(if first == b'{' { '}' } else { ']' });
                true
            }
            b'}' | b']' => open.pop().is_some(),
            first if MARKS.contains(&first) => false,
            // A number at the end might have gone on: clients take it if it is one so far.
            _ if at == text.len() && serde_json::from_str::<IgnoredAny>(token).is_err() => break,
            _ => !is_name,
        };
        if is_value {
            end = at;
        }
        match first {
            b'{' | b',' => is_name = open.last() == Some(&'}'),
            b':' | b'[' => is_name = false,
            _ => {}
        }
    }
    let ends: String = open.into_iter().rev().collect();
    format!("{}{ends}", &text[..end])
}

/// What stands between values.
const MARKS: &[u8] = b",: \t\r\n";

/// A bracket, a mark, a text, or what stands before the next of these. A text at the end may have no end itself.
fn first_token(text: &str) -> &str {
    let is_alone = |byte: u8| b"{}[]".contains(&byte) || MARKS.contains(&byte);
    let mut is_escaped = false;
    let ends_text = |byte: &u8| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    };
    let bytes = text.as_bytes();
    let length = match bytes[0] {
        b'"' => bytes[1..].iter().position(ends_text).map(|end| end + 2),
        first if is_alone(first) => Some(1),
        _ => bytes.iter().position(|byte| is_alone(*byte) || *byte == b'"'),
    };
    &text[..length.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// What `jiter` 0.14, by which Anthropic's client for Python reads, makes of the same (`from_json(..., partial_mode=True)`).
    #[test]
    fn a_call_that_was_cut_has_its_complete_members() {
        for (arguments, expected) in [
            ("", json!({})),
            ("{", json!({})),
            ("{\"a", json!({})),
            ("{\"a\"", json!({})),
            ("{\"a\":", json!({})),
            ("{\"a\": \"x", json!({})),
            ("{\"a\": \"x\\", json!({})),
            ("{\"a\": \"x\\\"", json!({})),
            ("{\"a\": \"x\"", json!({ "a": "x" })),
            ("{\"a\": \"x\", ", json!({ "a": "x" })),
            ("{\"a\": \"x\", \"b\": 12", json!({ "a": "x", "b": 12 })),
            ("{\"a\": 1.", json!({})),
            ("{\"a\": -", json!({})),
            ("{\"a\": 1e", json!({})),
            ("{\"a\": 1e5", json!({ "a": 1e5 })),
            ("{\"a\": tru", json!({})),
            ("{\"a\": true", json!({ "a": true })),
            ("{\"a\": [", json!({ "a": [] })),
            ("{\"a\": [1, 2,", json!({ "a": [1, 2] })),
            ("{\"a\": [1, \"x", json!({ "a": [1] })),
            ("{\"a\": [[1], [2", json!({ "a": [[1], [2]] })),
            ("{\"a\": {\"b\": 1, \"c\": \"", json!({ "a": { "b": 1 } })),
            ("{\"a\": {\"b", json!({ "a": {} })),
            ("{\"é}\": \"{[\", \"b", json!({ "é}": "{[" })),
            ("{\"a\": 12, \"a\": \"t", json!({ "a": 12 })),
        ] {
            assert_eq!(Value::Object(input_of(arguments)), expected, "{arguments}");
        }
    }

    #[test]
    fn what_is_no_object_is_not_lost() {
        for text in ["x y", "[1, 2", "{\"a\": 01, \"b\"", "{\"a\" 1}", "{a: 1}", "}", "{\"a\": \"\n\", \"b\": 1}"] {
            assert_eq!(Value::Object(input_of(text)), json!({ "INVALID_JSON": text }));
        }
    }

    proptest! {
        #[test]
        fn an_object_that_is_cut_anywhere_is_a_part_of_itself(
            texts in prop::collection::vec("[a-c\\\\\"é{}\\[\\],: ]{0,4}", 1..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let members = texts.iter().enumerate().map(|(at, text)| {
                (at.to_string(), json!([text, { text: { "n": null } }, true]))
            });
            let whole = Value::Object(members.collect());
            let text = whole.to_string();
            let at = (0..=cut.index(text.len() + 1)).rev().find(|at| text.is_char_boundary(*at)).expect("0 is one");
            let input = Value::Object(input_of(&text[..at]));
            prop_assert!(is_part(&input, &whole), "{input}");
            prop_assert_eq!(Value::Object(input_of(&text)), whole);
        }
    }

    /// Whether a value is another without some of its last items and members.
    fn is_part(part: &Value, whole: &Value) -> bool {
        match (part, whole) {
            (Value::Array(part), Value::Array(whole)) => {
                part.len() <= whole.len() && part.iter().zip(whole).all(|(part, whole)| is_part(part, whole))
            }
            (Value::Object(part), Value::Object(whole)) => {
                part.iter().all(|(name, part)| whole.get(name).is_some_and(|whole| is_part(part, whole)))
            }
            _ => part == whole,
        }
    }
}

//! What `serde_json` does not do for us: why a text is no JSON, in our own words, and values with the digits of their types.

use serde::Serialize;
use serde_json::{
    Value,
    error::{Category, Error},
};

/// What the parser's messages begin with, and what they mean to who sends JSON.
const WORDS: [(&str, &str); 13] = [
    ("trailing comma", "a comma stands before a bracket that closes"),
    ("trailing characters", "something follows the value"),
    ("key must be a string", "a name is a text in quotes"),
    ("expected value", "no value begins like this"),
    ("expected ident", "a word is none of true, false and null"),
    ("expected `:`", "a colon belongs here"),
    ("expected `,`", "a comma or a closing bracket belongs here"),
    ("invalid escape", "JSON has no such escape"),
    ("invalid number", "a number is not written like this"),
    ("number out of range", "a number is too large"),
    ("control character", "a control character within a text has to be escaped"),
    ("recursion limit", "values nest too deep"),
    ("invalid type", "a value is of another type than it has to be"),
];

/// Where and why.
pub(crate) fn why_no_json(error: &Error) -> String {
    let said = error.to_string();
    let why = match error.classify() {
        Category::Eof => "it ends within a value",
        _ if ["surrogate", "hex escape", "unicode code point"].iter().any(|part| said.contains(part)) => {
            "this is no valid Unicode"
        }
        _ => WORDS.iter().find(|(begin, _)| said.starts_with(begin)).map_or("this is no JSON", |(_, why)| why),
    };
    match (error.line(), error.column()) {
        (0, _) => why.to_owned(),
        (line, column) => format!("line {line}, column {column}: {why}"),
    }
}

/// A value whose numbers are written as their types write them. In a [`Value`] made directly an f32 is an f64, with other digits than the
/// same f32 has wherever it is written at once.
pub(crate) fn value_of(value: &impl Serialize) -> Result<Value, Error> {
    serde_json::from_str(&serde_json::to_string(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_digits_of_its_type() {
        assert_eq!(value_of(&[-0.123_f32]).expect("numbers are JSON").to_string(), "[-0.123]");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, expected) in [
            ("", "line 1, column 0: it ends within a value"),
            ("{\"a\": [1", "line 1, column 8: it ends within a value"),
            ("{\"a\": 1,}", "line 1, column 9: a comma stands before a bracket that closes"),
            ("{}\n}", "line 2, column 1: something follows the value"),
            ("{1: 2}", "line 1, column 2: a name is a text in quotes"),
            ("{\"a\": x}", "line 1, column 7: no value begins like this"),
            ("{\"a\": trux}", "line 1, column 10: a word is none of true, false and null"),
            ("{\"a\" 1}", "line 1, column 6: a colon belongs here"),
            ("[1 2]", "line 1, column 4: a comma or a closing bracket belongs here"),
            ("\"\\x\"", "line 1, column 3: JSON has no such escape"),
            ("[1.]", "line 1, column 4: a number is not written like this"),
            ("\"\n\"", "line 2, column 0: a control character within a text has to be escaped"),
            ("\"\\ud800\"", "line 1, column 8: this is no valid Unicode"),
        ] {
            let error = serde_json::from_str::<Value>(text).expect_err(text);
            assert_eq!(why_no_json(&error), expected, "{text}: {error}");
        }
    }
}

//! How much a JSON text holds, seen before anything is made of it.
//!
//! Two bytes of JSON can be a value, and what is made of a value takes hundreds: a body within its limit could fill the memory. And
//! whatever reads nested values recurses. So both are counted first, in one pass that keeps nothing.

use memchr::memchr2;

use crate::error::ApiError;

/// Lists and objects within each other at most. Tool schemas are the deepest that clients mean; this bounds recursion.
pub(crate) const LEVELS_MAX: usize = 64;

/// Values of a request at most: texts, numbers, lists, objects, at any depth. A message has 3 to 14, a tool some 50: this is a chat of 9,000
/// calls with their results, or 2,500 tools. Until a chat is rendered or a schema compiled each takes 0.7 to 0.9 KiB: a request some 110 MiB
/// at worst.
pub(crate) const VALUES_MAX: usize = 1 << 17;

/// What a JSON text holds, if it is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JsonSize {
    /// Lists and objects within each other.
    pub(crate) levels: usize,
    /// Values, the whole among them.
    pub(crate) values: usize,
    /// Commas between the items of the list, or the members of the object, that the whole is.
    pub(crate) outer_commas: usize,
    /// Lists and objects.
    lists: usize,
    /// There is neither a text nor a name in it.
    is_numbers: bool,
}

impl JsonSize {
    pub(crate) fn of(json: &[u8]) -> Self {
        let (mut depth, mut levels, mut lists, mut filled, mut commas) = (0_usize, 0, 0, 0, 0);
        let (mut outer_commas, mut is_numbers) = (0, true);
        let (mut at, mut before) = (0, b' ');
        while let Some(&byte) = json.get(at) {
            match byte {
                b'"' => {
                    is_numbers = false;
                    at = end_of_text(json, at + 1);
                }
                b'[' | b'{' => {
                    lists += 1;
                    depth += 1;
                    levels = levels.max(depth);
                }
                b']' | b'}' => {
                    depth = depth.saturating_sub(1);
                    filled += usize::from(!matches!(before, b'[' | b'{'));
                }
                b',' => {
                    commas += 1;
                    outer_commas += usize::from(depth == 1);
                }
                _ => {}
            }
            if !byte.is_ascii_whitespace() {
                before = byte;
            }
            at += 1;
        }
        // What is filled has one value more than commas.
        Self { levels, values: 1 + commas + filled, outer_commas, lists, is_numbers }
    }

    /// What counts towards [`VALUES_MAX`]. Numbers alone are token ids, which become 4 bytes each, or they are refused.
    pub(crate) fn counted(&self) -> usize {
        if self.is_numbers { self.lists } else { self.values }
    }
}

/// Where the quote is behind a text that begins at `at`.
fn end_of_text(json: &[u8], mut at: usize) -> usize {
    loop {
        match memchr2(b'"', b'\\', json.get(at..).unwrap_or_default()) {
            None => return json.len(),
            Some(found) if json[at + found] == b'"' => return at + found,
            Some(found) => at += found + 2,
        }
    }
}

/// Refuses a part of a request that is too deep, or too much by itself. It is none in which token ids may stand.
pub(crate) fn check_size(param: &str, json: &str) -> Result<(), ApiError> {
    let size = JsonSize::of(json.as_bytes());
    if size.levels > LEVELS_MAX {
        return Err(too_deep(param, size));
    }
    if size.values > VALUES_MAX {
        return Err(too_much(param, size));
    }
    Ok(())
}

/// The whole request has a level more.
pub(crate) fn too_deep(param: &str, size: JsonSize) -> ApiError {
    let allowed = format!("at most {LEVELS_MAX} within each other, the request itself among them");
    ApiError::invalid(param, format_args!("{} lists and objects within each other", size.levels), allowed)
}

pub(crate) fn too_much(param: &str, size: JsonSize) -> ApiError {
    let allowed =
        format!("at most {VALUES_MAX} texts, numbers, lists and objects in a request, its lists of token ids aside");
    let JsonSize { outer_commas, values, .. } = size;
    ApiError::invalid(param, format_args!("{} items, {values} values in all", outer_commas + 1), allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_values_are_counted() {
        for (json, levels, values) in [
            ("5", 0, 1),
            ("\"a,[{\"", 0, 1),
            (r#""a\\\"[,""#, 0, 1),
            ("[]", 1, 1),
            ("[ ]", 1, 1),
            ("[1]", 1, 2),
            ("[1, 2, 3]", 1, 4),
            ("[[], [[]]]", 3, 4),
            ("{}", 1, 1),
            (r#"{"a": 1}"#, 1, 2),
            (r#"{"a": {}, "b": [1, "x"]}"#, 2, 5),
            (r#"[{"role": "user", "content": "hi, you"}, {"role": "user", "content": ""}]"#, 2, 7),
        ] {
            let size = JsonSize::of(json.as_bytes());
            assert_eq!((size.levels, size.values), (levels, values), "{json}");
        }
    }

    #[test]
    fn of_numbers_alone_the_lists_count() {
        for (json, values) in
            [("[1, 2, 3]", 1), ("[[1, 2], [3]]", 3), ("[1, \"a\"]", 3), ("[1, {}]", 2), ("[{\"a\": 1}, 2]", 4)]
        {
            assert_eq!(JsonSize::of(json.as_bytes()).counted(), values, "{json}");
        }
    }

    #[test]
    fn what_is_no_json_is_counted_to_its_end() {
        for json in ["", "\"", "\"\\", "[[[", "]]]", "{\"a", "[\"\\\"", "\"\\\\\\"] {
            assert!(JsonSize::of(json.as_bytes()).levels <= 3, "{json}");
        }
        assert_eq!(JsonSize::of(&[b'['; 1_000_000]).levels, 1_000_000);
    }

    #[test]
    fn a_part_is_refused_by_its_name() {
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!(check_size("p", &deep(LEVELS_MAX)), Ok(()));
        let error = check_size("p", &deep(LEVELS_MAX + 1)).expect_err("too deep").to_string();
        assert!(error.starts_with("`p` is 65 lists and objects within each other; allowed: at most 64"), "{error}");
        let ones = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert_eq!(check_size("p", &ones(VALUES_MAX - 1)), Ok(()));
        let error = check_size("p", &ones(VALUES_MAX)).expect_err("too many").to_string();
        assert!(
            error.starts_with("`p` is 131072 items, 131073 values in all; allowed: at most 131072 texts"),
            "{error}"
        );
    }
}

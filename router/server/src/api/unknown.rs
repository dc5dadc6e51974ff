//! Fields that nobody knows. They are refused, unless the server lets them pass (`--unknown-fields warn`): then the answer's header names them.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::HeaderValue;

/// Names in a header at most; others are counted.
const NAMES_MAX: usize = 16;
/// Bytes of a header at most, but for the count of what it leaves out: proxies bound all headers together, some by 4 KiB.
const HEADER_BYTES_MAX: usize = 1024;

/// A request's body, not yet read.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    bytes: Bytes,
    passed: Option<Arc<Passed>>,
}

impl Body {
    /// `passed`: where unknown fields are noted; `None`: they are refused.
    pub(crate) fn new(bytes: Bytes, passed: Option<Arc<Passed>>) -> Self {
        Self { bytes, passed }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// What a parser is given.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) passed: Option<&'a Passed>,
}

impl<'a> From<&'a Body> for Given<'a> {
    fn from(body: &'a Body) -> Self {
        Self { bytes: &body.bytes, passed: body.passed.as_deref() }
    }
}

/// Of what is no client's body nobody would see the header: unknown fields are refused.
impl<'a> From<&'a [u8]> for Given<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { bytes, passed: None }
    }
}

impl<'a> From<&'a Bytes> for Given<'a> {
    fn from(bytes: &'a Bytes) -> Self {
        Self { bytes, passed: None }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Given<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self { bytes, passed: None }
    }
}

/// The unknown fields of one request: whoever reads it notes them, whoever answers it tells them.
#[derive(Debug, Default)]
pub(crate) struct Passed(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    first: Vec<String>,
    others: usize,
}

impl Passed {
    /// `path` within the body, bounded in length.
    pub(super) fn note(&self, path: &str) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.first.len() == NAMES_MAX {
            names.others += 1;
            return;
        }
        // The client's own text: a header is printable ASCII, and commas stand between its items.
        let plain = |c: char| if c.is_ascii_graphic() && c != ',' { c } else { '?' };
        names.first.push(path.chars().map(plain).collect());
    }

    /// What the answer's header says; `None`: every field was known.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut told, mut others) = (String::new(), names.others);
        for name in &names.first {
            let comma = if told.is_empty() { "" } else { ", " };
            if told.len() + comma.len() + name.len() > HEADER_BYTES_MAX {
                others += 1;
                continue;
            }
            told += comma;
            told += name;
        }
        if others > 0 {
            told += &format!("{}{others} more", if told.is_empty() { "" } else { ", and " });
        }
        if told.is_empty() { None } else { HeaderValue::from_str(&told).ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::chat::ChatRequest, error::ApiError, generate::Prompt};

    fn header(names: &[&str]) -> Option<String> {
        let passed = Passed::default();
        names.iter().for_each(|name| passed.note(name));
        passed.header().map(|value| value.to_str().expect("printable ASCII").to_owned())
    }

    #[test]
    fn what_passed_is_told_in_plain_characters() {
        assert_eq!(header(&[]), None);
        assert_eq!(header(&["foo", "messages[0].bar"]).as_deref(), Some("foo, messages[0].bar"));
        assert_eq!(header(&["a,b\r\nx: y", "\u{e9}\0"]).as_deref(), Some("a?b??x:?y, ??"));
    }

    #[test]
    fn what_nobody_knows_passes_at_any_level_and_is_shown_to_no_template() {
        let body = r#"{"messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "colour": "red"}], "mood": "good"},
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}", "cost": 3}, "at": 5}]},
            {"role": "tool", "content": "5", "tool_call_id": "1"}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"any": "thing"}, "price": 1}, "kind": 2}],
            "stream": true, "stream_options": {"include_usages": true}, "response_format": {"type": "text", "x": 1}, "max_token": 5}"#;
        let passed = Arc::<Passed>::default();
        let read = ChatRequest::read(&Body::new(body.into(), Some(Arc::clone(&passed)))).expect("all of it passes");
        let told = passed.header().expect("something was unknown");
        let mut names: Vec<&str> = told.to_str().expect("ASCII").split(", ").collect();
        names.sort_unstable();
        let expected = [
            "max_token",
            "messages[0].content[0].colour",
            "messages[0].mood",
            "messages[1].tool_calls[0].at",
            "messages[1].tool_calls[0].function.cost",
            "response_format.x",
            "stream_options.include_usages",
            "tools[0].function.price",
            "tools[0].kind",
        ];
        assert_eq!(names, expected);
        let Prompt::Chat { input, .. } = &read.request.prompts[0] else { panic!("a chat") };
        let shown = serde_json::to_string(&(&input.messages, &input.tools)).expect("JSON");
        for unknown in ["colour", "mood", "cost", "\"at\"", "price", "kind"] {
            assert!(!shown.contains(unknown), "{unknown} in {shown}");
        }
        assert!(shown.contains(r#"{"any":"thing"}"#), "a schema stays as it is: {shown}");
        // Without a place to note them, the first one is refused.
        assert!(matches!(ChatRequest::read(body.as_bytes()), Err(ApiError::Unknown { .. })));
    }

    #[test]
    fn what_is_known_and_not_served_passes_nowhere() {
        let body = br#"{"messages": [{"role": "user", "content": "hi"}], "audio": {"voice": "alloy"}}"#;
        let body = Body::new(Bytes::from_static(body), Some(Arc::default()));
        assert!(matches!(ChatRequest::read(&body), Err(ApiError::NotServed { .. })));
    }

    #[test]
    fn a_header_is_bounded_in_names_and_in_length() {
        let many: Vec<String> = (0..100_000).map(|number| format!("n{number}")).collect();
        let many = header(&many.iter().map(String::as_str).collect::<Vec<_>>()).expect("a header");
        assert!(many.starts_with("n0, n1, ") && many.ends_with("n15, and 99984 more"), "{many}");
        let long = "x".repeat(400);
        let two = header(&[&long, &long, &long, "y"]).expect("a header");
        assert!(two.len() < 1100 && two.ends_with("x, y, and 1 more"), "{two}");
        assert_eq!(header(&["x".repeat(2000).as_str()]).as_deref(), Some("1 more"));
    }
}

//! API keys: who may ask.
//!
//! Knows keys and the headers that carry them. Never here: what a key's owner may do, or how much of it.

use http::HeaderMap;
use subtle::{Choice, ConstantTimeEq as _};

/// A key that opens the API. Its text is shown nowhere.
#[derive(Clone)]
pub struct ApiKey(Box<[u8]>);

impl ApiKey {
    /// From its text; `None` if the text is empty, which would let everybody in.
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.as_bytes().into()))
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// Whether the headers carry one of `keys`, or there are no keys to be had. gRPC metadata are headers too.
///
/// All keys are compared, each in a time that depends on its length alone, so that a clock tells nothing of their text.
pub(crate) fn is_allowed(keys: &[ApiKey], headers: &HeaderMap) -> bool {
    if keys.is_empty() {
        return true;
    }
    let Some(presented) = presented(headers) else { return false };
    let matches = keys.iter().fold(Choice::from(0), |found, key| found | key.0.ct_eq(presented));
    matches.into()
}

/// `Authorization: Bearer KEY` (the scheme in any case), else `x-api-key: KEY`.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(value) = headers.get(http::header::AUTHORIZATION) {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        return scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key);
    }
    headers.get("x-api-key").map(http::HeaderValue::as_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &str)], expected: bool) {
        let keys = ["first", "second"].map(|text| ApiKey::new(text).expect("not empty"));
        let headers =
            headers.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().expect("a header")));
        assert_eq!(is_allowed(&keys, &headers.collect()), expected);
    }

    #[test]
    fn a_key_is_taken_from_either_header() {
        check(&[("authorization", "Bearer first")], true);
        check(&[("authorization", "bearer second")], true);
        check(&[("x-api-key", "second")], true);
    }

    #[test]
    fn anything_else_is_refused() {
        check(&[], false);
        check(&[("authorization", "Bearer ")], false);
        check(&[("authorization", "Bearer firs")], false);
        check(&[("authorization", "Bearer first ")], false);
        check(&[("authorization", "Basic first")], false);
        check(&[("authorization", "Bearer wrong"), ("x-api-key", "first")], false);
        check(&[("x-api-key", "")], false);
    }

    #[test]
    fn without_keys_everybody_is_let_in() {
        assert!(is_allowed(&[], &HeaderMap::new()));
    }

    #[test]
    fn an_empty_key_is_no_key() {
        assert!(ApiKey::new("").is_none());
    }
}

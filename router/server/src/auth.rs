//! API keys: who may ask.
//!
//! Knows keys and the headers that carry them. Never here: what a key's owner may do, or how much of it.

use std::hash::Hasher as _;

use http::HeaderMap;
use siphasher::sip::SipHasher24;
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

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

/// All keys that open the API.
pub(crate) struct Keys {
    /// Each with its owner.
    keys: Vec<(ApiKey, Tenant)>,
}

/// Whose key a request came with: the same number for the same key as long as the secret is the same. 0: there are no keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tenant(pub(crate) u64);

impl Keys {
    /// Without keys, everybody is let in. `secret` turns keys into numbers that nobody can turn back.
    pub(crate) fn new(keys: Vec<ApiKey>, secret: [u8; 16]) -> Self {
        let tenant = |key: &ApiKey| {
            let mut hasher = SipHasher24::new_with_key(&secret);
            hasher.write(&key.0);
            Tenant(hasher.finish().max(1))
        };
        Self { keys: keys.into_iter().map(|key| (key.clone(), tenant(&key))).collect() }
    }

    /// Whether anybody needs one.
    pub(crate) fn are_there(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Who asks, if the headers carry one of the keys or there are no keys to be had. gRPC metadata are headers too.
    ///
    /// All keys are compared, each in a time that depends on its length alone, so that a clock tells nothing of their text.
    pub(crate) fn tenant_of(&self, headers: &HeaderMap) -> Option<Tenant> {
        if self.keys.is_empty() {
            return Some(Tenant::default());
        }
        let presented = presented(headers)?;
        let (mut found, mut tenant) = (Choice::from(0), 0);
        for (key, owner) in &self.keys {
            let is_it = key.0.ct_eq(presented);
            tenant.conditional_assign(&owner.0, is_it);
            found |= is_it;
        }
        bool::from(found).then_some(Tenant(tenant))
    }
}

/// `Authorization: Bearer KEY` (the scheme in any case), else `x-api-key: KEY`. Another scheme is somebody else's: a proxy in between, say,
/// that wants a password of its own.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get_all(http::header::AUTHORIZATION).iter().find_map(|value| bearer(value.as_bytes()));
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii()))
}

/// What follows the scheme `Bearer`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"Bearer";
    let (scheme, key) = value.split_at_checked(SCHEME.len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(SCHEME) && key.first().is_none_or(u8::is_ascii_whitespace);
    is_bearer.then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new(["first", "second"].map(|text| ApiKey::new(text).expect("not empty")).into(), [7; 16])
    }

    fn tenant(keys: &Keys, headers: &[(&'static str, &str)]) -> Option<Tenant> {
        let headers =
            headers.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().expect("a header")));
        keys.tenant_of(&headers.collect())
    }

    fn check(headers: &[(&'static str, &str)], expected: bool) {
        assert_eq!(tenant(&keys(), headers).is_some(), expected);
    }

    #[test]
    fn a_key_is_taken_from_either_header() {
        check(&[("authorization", "Bearer first")], true);
        check(&[("authorization", "bearer second")], true);
        check(&[("authorization", "Bearer  first")], true);
        check(&[("authorization", "Bearer first ")], true);
        check(&[("x-api-key", "second")], true);
        check(&[("x-api-key", " second ")], true);
    }

    #[test]
    fn a_scheme_that_is_not_ours_stands_in_no_keys_way() {
        check(&[("authorization", "Basic dXNlcjpwYXNz"), ("x-api-key", "first")], true);
        check(&[("authorization", "Bearerfirst"), ("x-api-key", "first")], true);
        check(&[("authorization", ""), ("x-api-key", "first")], true);
        check(&[("authorization", "Basic dXNlcjpwYXNz"), ("x-api-key", "wrong")], false);
        let mut both = HeaderMap::new();
        for value in ["Basic dXNlcjpwYXNz", "Bearer first"] {
            both.append(http::header::AUTHORIZATION, http::HeaderValue::from_static(value));
        }
        assert!(keys().tenant_of(&both).is_some());
    }

    #[test]
    fn anything_else_is_refused() {
        check(&[], false);
        check(&[("authorization", "Bearer ")], false);
        check(&[("authorization", "Bearer firs")], false);
        check(&[("authorization", "Bearerfirst")], false);
        check(&[("authorization", "Bearer")], false);
        check(&[("authorization", "Basic first")], false);
        check(&[("authorization", "Bearer wrong"), ("x-api-key", "first")], false);
        check(&[("authorization", "Bearer"), ("x-api-key", "first")], false);
        check(&[("x-api-key", "")], false);
    }

    #[test]
    fn without_keys_everybody_is_let_in() {
        assert_eq!(Keys::new(Vec::new(), [7; 16]).tenant_of(&HeaderMap::new()), Some(Tenant(0)));
    }

    #[test]
    fn a_key_is_one_tenant_whichever_header_it_comes_in() {
        let keys = keys();
        let first = tenant(&keys, &[("authorization", "Bearer first")]);
        assert!(first.is_some_and(|tenant| tenant != Tenant(0)));
        assert_eq!(first, tenant(&keys, &[("x-api-key", "first")]));
        assert_ne!(first, tenant(&keys, &[("x-api-key", "second")]));
        assert_eq!(first, tenant(&super::tests::keys(), &[("x-api-key", "first")]), "with the same secret");
        let other = Keys::new(keys.keys.into_iter().map(|(key, _)| key).collect(), [8; 16]);
        assert_ne!(first, tenant(&other, &[("x-api-key", "first")]), "with another secret");
    }

    #[test]
    fn an_empty_key_is_no_key() {
        assert!(ApiKey::new("").is_none());
    }
}

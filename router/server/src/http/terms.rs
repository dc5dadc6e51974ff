//! Headers that say how urgent a request is and how long it may take. gRPC metadata are headers too.
//!
//! | header | |
//! |---|---|
//! | `x-request-priority` | an integer of 32 bits, smaller first; the field `priority` goes before it |
//! | `x-vllm-priority` | the peer's name of the same; ours goes before it |
//! | `x-request-timeout-ms` | from the request's arrival to its last token |
//! | `x-envoy-expected-rq-timeout-ms` | the same, said by a proxy; ours goes before it |
//! | `grpc-timeout` | the same, said by gRPC clients; only there |

use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use http::{Extensions, HeaderMap, request::Parts};

use super::App;
use crate::{
    auth::Tenant,
    error::{ApiError, shortened},
    generate::Terms,
};

pub(super) const PRIORITY: &str = "x-request-priority";
const PEERS_PRIORITY: &str = "x-vllm-priority";
const TIMEOUT: &str = "x-request-timeout-ms";
const ENVOY_TIMEOUT: &str = "x-envoy-expected-rq-timeout-ms";
const GRPC_TIMEOUT: &str = "grpc-timeout";

impl FromRequestParts<App> for Terms {
    type Rejection = ApiError;

    /// Before the body: the time that it takes to arrive counts.
    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        read(&parts.headers, &parts.extensions)
    }
}

/// The terms of a request that is here now.
pub(crate) fn read(headers: &HeaderMap, extensions: &Extensions) -> Result<Terms, ApiError> {
    // Envoy says nothing where it knows no bound; some proxies like it say 0.
    let envoys = milliseconds(headers, ENVOY_TIMEOUT, 0)?.filter(|timeout| !timeout.is_zero());
    Ok(Terms {
        arrival: Instant::now(),
        tenant: extensions.get::<Tenant>().copied().unwrap_or_default().0,
        priority: priority(headers, PRIORITY)?.or(priority(headers, PEERS_PRIORITY)?).unwrap_or(0),
        timeout: milliseconds(headers, TIMEOUT, 1)?.or(envoys),
    })
}

/// What a gRPC client says of its deadline.
pub(crate) fn grpc_timeout(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    header(headers, GRPC_TIMEOUT, "1 to 8 digits and a unit: H, M, S, m, u or n", |text| {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let count: u64 = digits.parse().ok().filter(|_| digits.len() <= 8 && !digits.starts_with('+'))?;
        Some(match unit {
            "H" => Duration::from_secs(count * 3600),
            "M" => Duration::from_secs(count * 60),
            "S" => Duration::from_secs(count),
            "m" => Duration::from_millis(count),
            "u" => Duration::from_micros(count),
            "n" => Duration::from_nanos(count),
            _ => return None,
        })
    })
}

fn priority(headers: &HeaderMap, name: &'static str) -> Result<Option<i32>, ApiError> {
    header(headers, name, "an integer from -2147483648 to 2147483647", |text| text.parse().ok())
}

fn milliseconds(headers: &HeaderMap, name: &'static str, least: u64) -> Result<Option<Duration>, ApiError> {
    let allowed =
        if least == 0 { "a whole number of milliseconds" } else { "a whole number of milliseconds, at least 1" };
    header(headers, name, allowed, |text| text.parse().ok().filter(|&count| count >= least).map(Duration::from_millis))
}

fn header<T>(
    headers: &HeaderMap,
    name: &'static str,
    allowed: &'static str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    match read(text.trim()) {
        Some(value) => Ok(Some(value)),
        None => Err(ApiError::invalid(name, format_args!("\"{}\"", shortened(&text)), allowed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(given: &[(&'static str, &str)]) -> HeaderMap {
        given
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().expect("a header")))
            .collect()
    }

    /// Priority and timeout in milliseconds, or the header that is refused.
    fn check(given: &[(&'static str, &str)], expected: Result<(i32, Option<u128>), &str>) {
        let got = match read(&headers(given), &Extensions::new()) {
            Ok(terms) => Ok((terms.priority, terms.timeout.map(|timeout| timeout.as_millis()))),
            Err(ApiError::Invalid { param, .. }) => Err(param),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(got, expected.map_err(str::to_owned), "{given:?}");
    }

    #[test]
    fn terms_are_read_from_headers() {
        check(&[], Ok((0, None)));
        check(&[(PRIORITY, "-7"), (TIMEOUT, "250")], Ok((-7, Some(250))));
        check(&[(PEERS_PRIORITY, "3")], Ok((3, None)));
        check(&[(PEERS_PRIORITY, "3"), (PRIORITY, "4")], Ok((4, None)));
        check(&[(ENVOY_TIMEOUT, "100")], Ok((0, Some(100))));
        check(&[(ENVOY_TIMEOUT, "0")], Ok((0, None)));
        check(&[(ENVOY_TIMEOUT, "100"), (TIMEOUT, "250")], Ok((0, Some(250))));
        check(&[(TIMEOUT, " 250 ")], Ok((0, Some(250))));
    }

    #[test]
    fn what_is_no_number_is_refused_by_the_headers_name() {
        for priority in ["", "high", "1.5", "2147483648"] {
            check(&[(PRIORITY, priority)], Err(PRIORITY));
            check(&[(PEERS_PRIORITY, priority)], Err(PEERS_PRIORITY));
        }
        for timeout in ["", "0", "-1", "1.5", "5s", "99999999999999999999"] {
            check(&[(TIMEOUT, timeout)], Err(TIMEOUT));
        }
        check(&[(ENVOY_TIMEOUT, "soon")], Err(ENVOY_TIMEOUT));
    }

    #[test]
    fn a_grpc_timeout_has_a_unit() {
        for (text, expected) in [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("5u", Some(Duration::from_micros(5))),
            ("0n", Some(Duration::ZERO)),
            ("", None),
            ("m", None),
            ("5", None),
            ("5s", None),
            ("+5S", None),
            ("999999999m", None),
            ("5é", None),
        ] {
            assert_eq!(grpc_timeout(&headers(&[(GRPC_TIMEOUT, text)])).ok().flatten(), expected, "{text}");
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), Ok(None));
    }
}

//! HTTP/1.1 asks for a `Host` header, once, and for its absence to be refused (RFC 9112, section 3.2).

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, Version, header};

use crate::error::ApiError;

/// Refuses what names no host.
pub(super) async fn check(request: Request, next: Next) -> Response {
    if is_named(request.version(), request.headers()) {
        next.run(request).await
    } else {
        ApiError::NoHost.into_response()
    }
}

/// HTTP/1.0 does not know the header, and HTTP/2 has it elsewhere.
fn is_named(version: Version, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    version != Version::HTTP_11 || (hosts.next().is_some_and(|host| !host.is_empty()) && hosts.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_1_1_needs_a_host() {
        let headers = |hosts: &[&str]| -> HeaderMap {
            hosts.iter().map(|host| (header::HOST, host.parse().expect("a header"))).collect()
        };
        for (version, hosts, expected) in [
            (Version::HTTP_11, &["x"][..], true),
            (Version::HTTP_11, &[], false),
            (Version::HTTP_11, &[""], false),
            (Version::HTTP_10, &[], true),
            (Version::HTTP_2, &[], true),
        ] {
            assert_eq!(is_named(version, &headers(hosts)), expected, "{version:?} {hosts:?}");
        }
        let mut twice = headers(&["x"]);
        twice.append(header::HOST, "y".parse().expect("a header"));
        assert!(!is_named(Version::HTTP_11, &twice));
    }
}

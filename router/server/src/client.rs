//! The HTTP client of `hub`, `chat` and `bench`: hyper's, with TLS where the address says https.
//!
//! Knows how to send one request and to follow redirects. Never here: retries, and what an answer means.

use std::time::Duration;

use ::http::header::{AUTHORIZATION, HOST, LOCATION};
use ::http::{Request, Response, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// Nobody answered, or the connection broke.
    #[error("{authority}: {reason}")]
    Connection { authority: String, reason: String },
    /// The answer was an endless chain of redirects, or one that makes no sense.
    #[error("{uri}: {reason}")]
    Redirect { uri: String, reason: &'static str },
    /// The answer's body broke off or was too long.
    #[error("the answer broke off: {0}")]
    Body(String),
}

/// A client with a pool of connections. Clones share it.
#[derive(Clone)]
pub(crate) struct Client {
    inner: hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// More than any real chain, few enough to notice a circle soon.
const REDIRECTS_MAX: usize = 8;
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

impl Client {
    /// A client that keeps connections for the next request, as `keep_alive` says.
    pub(crate) fn new(keep_alive: bool) -> Self {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_WITHIN));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls())
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let idle = if keep_alive { usize::MAX } else { 0 };
        let inner = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(idle)
            .build(connector);
        Self { inner }
    }

    /// Sends one request; any status is an answer.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ClientError> {
        let authority = request.uri().authority().map_or_else(String::new, ToString::to_string);
        self.inner
            .request(request)
            .await
            .map_err(|error| ClientError::Connection { authority, reason: innermost(&error) })
    }

    /// Sends a GET and follows redirects. Credentials stay with the host that they were meant for.
    pub(crate) async fn get(&self, request: &Request<()>) -> Result<Response<Incoming>, ClientError> {
        let mut uri = request.uri().clone();
        for _ in 0..REDIRECTS_MAX {
            let mut next = Request::get(uri.clone()).body(Full::default()).expect("a URI and nothing else");
            *next.headers_mut() = request.headers().clone();
            next.headers_mut().remove(HOST);
            if uri.authority() != request.uri().authority() || uri.scheme() != request.uri().scheme() {
                next.headers_mut().remove(AUTHORIZATION);
            }
            let response = self.send(next).await?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            uri = location
                .and_then(|location| join(&uri, location))
                .ok_or_else(|| ClientError::Redirect { uri: uri.to_string(), reason: "a redirect to nowhere" })?;
        }
        Err(ClientError::Redirect { uri: uri.to_string(), reason: "too many redirects" })
    }
}

/// A whole body of at most `limit` bytes.
pub(crate) async fn read_body(body: Incoming, limit: usize) -> Result<Bytes, ClientError> {
    let body = Limited::new(body, limit).collect().await.map_err(|error| ClientError::Body(error.to_string()))?;
    Ok(body.to_bytes())
}

/// The system's certificates. A machine without any can still speak http, and https then fails with the handshake's own words.
fn tls() -> rustls::ClientConfig {
    use hyper_rustls::ConfigBuilderExt as _;
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = || {
        rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("ring has the default versions")
    };
    match builder().with_native_roots() {
        Ok(config) => config.with_no_client_auth(),
        Err(_) => builder().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth(),
    }
}

/// Where a redirect leads, seen from `base`: an absolute address, or a path.
fn join(base: &Uri, location: &str) -> Option<Uri> {
    let target: Uri = location.parse().ok()?;
    if target.scheme().is_some() {
        return matches!(target.scheme_str(), Some("http" | "https")).then_some(target);
    }
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(if location.starts_with('/') {
        target.path_and_query()?.clone()
    } else {
        let folder = &base.path()[..=base.path().rfind('/')?];
        format!("{folder}{location}").parse().ok()?
    });
    Uri::from_parts(parts).ok()
}

/// The reason at the bottom: "Connection refused", not "client error (Connect)".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_may_be_absolute_or_paths() {
        let base: Uri = "https://hub.example/org/name/resolve/main/config.json".parse().expect("a URI");
        for (location, expected) in [
            ("https://cdn.example/x?sig=1", Some("https://cdn.example/x?sig=1")),
            ("/api/resolve-cache/x", Some("https://hub.example/api/resolve-cache/x")),
            ("other.json", Some("https://hub.example/org/name/resolve/main/other.json")),
            ("ftp://old.example/x", None),
        ] {
            assert_eq!(join(&base, location).map(|uri| uri.to_string()).as_deref(), expected, "{location}");
        }
    }
}

//! What surrounds every request: its id, its measurement, its right to be answered.

use std::time::Instant;

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, Version, header};

use super::{App, anthropic, leftover::Leftover};
use crate::{api::is_plain_id, error::ApiError};

pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Answered without a key: what probes, collectors and browsers ask, which can carry none.
const OPEN: [&str; 7] = ["/health", "/ping", "/livez", "/readyz", "/startupz", "/metrics", "/docs"];
/// The same over gRPC.
const OPEN_GRPC: &str = "/grpc.health.v1.Health/";

/// The request's id: the client's, if it is a plain one, else our own.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

impl RequestId {
    fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
        Self(
            given.filter(|id| is_plain_id(id)).map_or_else(|| uuid::Uuid::now_v7().simple().to_string(), str::to_owned),
        )
    }
}

/// What surrounds answers even where there is no model to ask yet: the request's id, and the form of the protocol that it speaks.
pub(crate) fn introduced(router: Router) -> Router {
    router.layer(from_fn(anthropic::speak)).layer(from_fn(identify))
}

/// Gives every request an id and every response the id of its request, unless a call has named itself and its answer says so; and says which response is the last of its connection.
pub(super) async fn identify(mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers());
    let echoed = HeaderValue::from_str(&id.0).expect("ids are visible ASCII");
    request.extensions_mut().insert(id);
    let (request, leftover) = match request.version() {
        Version::HTTP_2 | Version::HTTP_3 => (request, None), // a body stands in nobody's way
        _ => Leftover::of(request),
    };
    let mut response = next.run(request).await;
    response.headers_mut().entry(&REQUEST_ID).or_insert(echoed);
    if let Some(leftover) = leftover
        && !leftover.drained().await
    {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Counts and times every request until its response begins.
pub(super) async fn measure(State(app): State<App>, request: Request, next: Next) -> Response {
    let begin = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    // Any word is a method: those that nobody uses are one series.
    let method = match request.method().as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS") => known.to_owned(),
        _ => "other".to_owned(),
    };
    let given = request.extensions().get::<RequestId>().map_or_else(String::new, |id| id.0.clone());
    let response = next.run(request).await;
    let own = response.headers().get(&REQUEST_ID).and_then(|id| id.to_str().ok());
    let id = own.unwrap_or(&given);
    let status = response.status().as_u16();
    app.serving.metrics.http_answered(&route, &method, status, begin.elapsed());
    tracing::debug!(id, method, route, status, duration_us = begin.elapsed().as_micros() as u64, "answered");
    response
}

/// Refuses whoever has no key, and notes whose key it is.
pub(super) async fn authorize(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_open = is_open(path) || path.starts_with(OPEN_GRPC);
    match app.keys.tenant_of(request.headers()) {
        None if !is_open => rejection(&request, ApiError::Unauthorized),
        tenant => {
            request.extensions_mut().insert(tenant.unwrap_or_default());
            next.run(request).await
        }
    }
}

/// Whether nobody needs a key for this route.
pub(super) fn is_open(path: &str) -> bool {
    OPEN.contains(&path)
}

/// An error in the protocol that the request speaks.
pub(crate) fn rejection(request: &Request, error: ApiError) -> Response {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let is_grpc = content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    if is_grpc { tonic::Status::from(error).into_http() } else { error.into_response() }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, routing::get};
    use tower::ServiceExt as _;

    use super::*;

    #[test]
    fn a_plain_id_is_kept_and_any_other_replaced() {
        let id = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(&REQUEST_ID, HeaderValue::from_bytes(value.as_bytes()).expect("a header"));
            RequestId::of(&headers).0
        };
        assert_eq!(id("abc-123"), "abc-123");
        for replaced in ["", "a b", "é", &"x".repeat(129)] {
            assert_ne!(id(replaced), replaced);
            assert_eq!(id(replaced).len(), 32);
        }
    }

    #[test]
    fn an_answer_has_its_requests_id_or_its_own() {
        let router = Router::new().route("/", get(|| async { "" }));
        let router = introduced(router.route("/own", get(|| async { ([("x-request-id", "own")], "") })));
        let id = |path: &str| {
            let request = Request::builder().uri(path).header("x-request-id", "given").body(Body::empty());
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let Ok(response) = runtime.block_on(router.clone().oneshot(request.expect("a request")));
            response.headers()[&REQUEST_ID].clone()
        };
        assert_eq!((id("/"), id("/own")), (HeaderValue::from_static("given"), HeaderValue::from_static("own")));
    }
}

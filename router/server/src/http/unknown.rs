//! The header that names a request's unknown fields, where these pass (`--unknown-fields warn`).

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::HeaderName;

use super::App;
use crate::api::unknown::Passed;

static UNKNOWN_FIELDS: HeaderName = HeaderName::from_static("x-pelton-unknown-fields");

/// Names what passed, also in the header of a stream: a request is read before its answer begins.
pub(super) async fn tell(State(app): State<App>, mut request: Request, next: Next) -> Response {
    if !app.serving.limits.passes_unknown {
        return next.run(request).await;
    }
    let passed = Arc::<Passed>::default();
    request.extensions_mut().insert(Arc::clone(&passed));
    let mut response = next.run(request).await;
    if let Some(names) = passed.header() {
        response.headers_mut().insert(UNKNOWN_FIELDS.clone(), names);
    }
    response
}

/// Where a request's unknown fields are noted. One that comes from within has no header to name them in.
pub(super) fn noted(request: &Request) -> Arc<Passed> {
    request.extensions().get::<Arc<Passed>>().cloned().unwrap_or_default()
}

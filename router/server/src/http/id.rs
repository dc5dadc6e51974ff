//! What a path names.

use axum::extract::{FromRequestParts, Path};
use http::request::Parts;

use crate::error::{ApiError, shortened};

/// The `{id}` of a path. What is no text is refused in our own form, not in axum's.
pub(super) struct Id(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(id)) => Ok(Self(id)),
            Err(_) => Err(ApiError::invalid("id", shortened(parts.uri.path()), "a text in UTF-8, percent-encoded")),
        }
    }
}

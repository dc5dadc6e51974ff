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
            Err(_) => {
                let path = parts.uri.path();
                let id = path.split('/').find(|part| part.contains('%')).unwrap_or(path);
                Err(ApiError::invalid("id", shortened(id), "a text in UTF-8, percent-encoded"))
            }
        }
    }
}

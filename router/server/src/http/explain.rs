//! The header `x-explain`: whether an answer shall come with what its request went through.

use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::error::ApiError;

/// `1` asks for it; `0`, like no header, does not.
pub(super) struct Explains(pub(super) bool);

impl Explains {
    /// Where an answer's form has no place for it.
    pub(super) fn refuse(self) -> Result<(), ApiError> {
        let refused = || ApiError::not_served("x-explain", 1, "0", "explaining what such a request went through");
        if self.0 { Err(refused()) } else { Ok(()) }
    }
}

impl<S: Sync> FromRequestParts<S> for Explains {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match parts.headers.get("x-explain").map(http::HeaderValue::as_bytes) {
            None | Some(b"0") => Ok(Self(false)),
            Some(b"1") => Ok(Self(true)),
            Some(other) => Err(ApiError::invalid("x-explain", String::from_utf8_lossy(other), "0 or 1")),
        }
    }
}

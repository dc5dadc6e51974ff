//! A request's JSON body, read whole within bounds of size and time.

use axum::{
    body::Body,
    extract::{FromRequest, Request},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt as _;

use super::App;
use crate::error::ApiError;

/// The bytes of a body that is declared as JSON, or not declared at all.
pub(super) struct JsonBody(pub(super) Bytes);

impl FromRequest<App> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        check_type(request.headers())?;
        let limits = &app.serving.limits;
        let declared = request
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if declared.is_some_and(|length| length > limits.body_bytes) {
            return Err(ApiError::BodyTooLarge { limit: limits.body_bytes });
        }
        read(request.into_body(), limits.body_bytes, limits.stall_timeout).await.map(Self)
    }
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(declared) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let got = String::from_utf8_lossy(declared.as_bytes()).to_ascii_lowercase();
    let essence = got.split(';').next().unwrap_or_default().trim();
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json { Ok(()) } else { Err(ApiError::WrongMediaType { got: got.chars().take(100).collect() }) }
}

/// Bytes that come slower than one piece per `stall` are not waited for.
async fn read(mut body: Body, limit: usize, stall: std::time::Duration) -> Result<Bytes, ApiError> {
    let mut whole = BytesMut::new();
    let broken = |reason: String| ApiError::BodyBroken { reason };
    loop {
        let frame = tokio::time::timeout(stall, body.frame()).await;
        let frame = frame.map_err(|_| broken(format!("nothing more came for {} s", stall.as_secs())))?;
        let Some(frame) = frame else { return Ok(whole.freeze()) };
        let Ok(piece) = frame.map_err(|error| broken(error.to_string()))?.into_data() else { continue };
        if whole.len() + piece.len() > limit {
            return Err(ApiError::BodyTooLarge { limit });
        }
        whole.extend_from_slice(&piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_by_any_of_its_names_is_taken() {
        for (declared, is_taken) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/vnd.api+json", true),
            ("application/x-www-form-urlencoded", false),
            ("text/plain", false),
            ("application/jsonx", false),
        ] {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, declared.parse().expect("a header"))]);
            assert_eq!(check_type(&headers).is_ok(), is_taken, "{declared}");
        }
        assert!(check_type(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn a_body_is_read_up_to_its_limit() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let read = |limit| runtime.block_on(read(Body::from("12345"), limit, std::time::Duration::from_secs(60)));
        assert_eq!(read(5), Ok(Bytes::from("12345")));
        assert_eq!(read(4), Err(ApiError::BodyTooLarge { limit: 4 }));
    }
}

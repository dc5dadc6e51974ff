//! A request's body, read within bounds of time; if it is JSON, whole and within a bound of size.
//!
//! Two bounds of time: a client that sends nothing is not waited for, and neither is one that sends a byte now and then. The
//! second bound grows with what has come, so that a large body on a slow line gets through.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{FromRequest, Request},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt as _;

use tokio::time::Instant;

use super::{App, unknown};
use crate::{
    api::unknown::Body as Whole,
    error::{ApiError, shortened},
};

/// A body that is declared as JSON, or not declared at all.
pub(super) struct JsonBody(pub(super) Whole);

impl FromRequest<App> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        check_encoding(request.headers())?;
        check_type(request.headers())?;
        let limits = &app.serving.limits;
        if declared_length(request.headers()).is_some_and(|length| length > limits.body_bytes as u64) {
            return Err(ApiError::BodyTooLarge { limit: limits.body_bytes });
        }
        let pace = Pace { stall: limits.stall_timeout, whole: WHOLE };
        let passed = limits.passes_unknown.then(|| unknown::noted(&request));
        let bytes = read(request.into_body(), limits.body_bytes, pace).await?;
        Ok(Self(Whole::new(bytes, passed)))
    }
}

/// How long a body will be, if its client knows: one that waits for `100 Continue` need not send what would be refused.
pub(super) fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Nothing is unpacked here: a small body could hide a huge one.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    for declared in headers.get_all(header::CONTENT_ENCODING) {
        let got = String::from_utf8_lossy(declared.as_bytes());
        let is_plain = |name: &str| name.trim().is_empty() || name.trim().eq_ignore_ascii_case("identity");
        if !got.split(',').all(is_plain) {
            return Err(ApiError::WrongEncoding { got: shortened(&got) });
        }
    }
    Ok(())
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(declared) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let got = String::from_utf8_lossy(declared.as_bytes()).to_ascii_lowercase();
    let essence = got.split(';').next().unwrap_or_default().trim();
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json {
        Ok(())
    } else {
        Err(ApiError::WrongMediaType { got: got.chars().take(100).collect(), allowed: "application/json" })
    }
}

/// How slowly a body may come.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Between two pieces.
    stall: Duration,
    /// From the first to the last, but for what [`RATE`] adds.
    whole: Duration,
}

/// For bodies of any size.
const WHOLE: Duration = Duration::from_secs(30);
/// Bytes that buy a second more: 128 kbit/s, with which the default's 32 MiB may take 35 minutes.
const RATE: usize = 16 << 10;

/// A body's pieces, each waited for within bounds.
pub(super) struct Pieces {
    body: Body,
    pace: Pace,
    begin: Instant,
    bytes: usize,
}

impl Pieces {
    /// Those of a request that goes at the pace of all requests.
    pub(super) fn of(body: Body, app: &App) -> Self {
        Self::new(body, Pace { stall: app.serving.limits.stall_timeout, whole: WHOLE })
    }

    fn new(body: Body, pace: Pace) -> Self {
        Self { body, pace, begin: Instant::now(), bytes: 0 }
    }

    /// The next one; `None`: that was all.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let broken = |reason: String| ApiError::BodyBroken { reason };
        loop {
            let allowed = self.pace.whole + Duration::from_secs((self.bytes / RATE) as u64);
            let until = (self.begin + allowed).min(Instant::now() + self.pace.stall);
            let frame = tokio::time::timeout_at(until, self.body.frame()).await.map_err(|_| {
                let (bytes, seconds) = (self.bytes, self.begin.elapsed().as_secs_f64());
                broken(format!("{bytes} bytes came in {seconds:.1} s, and it is not waited for any longer"))
            })?;
            let Some(frame) = frame else { return Ok(None) };
            let Ok(piece) = frame.map_err(|error| broken(error.to_string()))?.into_data() else { continue };
            self.bytes += piece.len();
            return Ok(Some(piece));
        }
    }
}

async fn read(body: Body, limit: usize, pace: Pace) -> Result<Bytes, ApiError> {
    let (mut whole, mut pieces) = (BytesMut::new(), Pieces::new(body, pace));
    while let Some(piece) = pieces.next().await? {
        if whole.len() + piece.len() > limit {
            return Err(ApiError::BodyTooLarge { limit });
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt as _, stream};

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
    fn a_packed_body_is_refused_by_the_name_of_its_packing() {
        for (declared, is_taken) in [
            ("identity", true),
            ("Identity", true),
            ("", true),
            ("gzip", false),
            ("identity, br", false),
            ("zstd", false),
        ] {
            let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, declared.parse().expect("a header"))]);
            let checked = check_encoding(&headers);
            assert_eq!(checked.is_ok(), is_taken, "{declared}");
            assert!(checked.map_or_else(|error| error.to_string(), |()| declared.to_owned()).contains(declared));
        }
        assert!(check_encoding(&HeaderMap::new()).is_ok());
    }

    const PATIENT: Pace = Pace { stall: Duration::from_secs(3600), whole: Duration::from_secs(3600) };

    fn run(body: Body, limit: usize, pace: Pace) -> Result<Bytes, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(read(body, limit, pace))
    }

    #[test]
    fn a_body_is_read_up_to_its_limit() {
        assert_eq!(run(Body::from("12345"), 5, PATIENT), Ok(Bytes::from("12345")));
        assert_eq!(run(Body::from("12345"), 4, PATIENT), Err(ApiError::BodyTooLarge { limit: 4 }));
    }

    #[test]
    fn a_body_that_does_not_come_is_not_waited_for() {
        for pace in [Pace { stall: Duration::ZERO, ..PATIENT }, Pace { whole: Duration::ZERO, ..PATIENT }] {
            let begun = stream::iter([Ok::<_, Infallible>("1")]).chain(stream::pending());
            let error = run(Body::from_stream(begun), 5, pace).expect_err("it never ends").to_string();
            assert!(error.contains("1 bytes came"), "{error}");
        }
    }

    #[test]
    fn what_has_come_buys_time() {
        let large = "x".repeat(RATE * 3600);
        let begun = stream::iter([Ok::<_, Infallible>(large)]).chain(stream::once(async {
            tokio::task::yield_now().await;
            Ok("the end".to_owned())
        }));
        let pace = Pace { whole: Duration::ZERO, ..PATIENT };
        assert_eq!(run(Body::from_stream(begun), usize::MAX, pace).map(|whole| whole.len()), Ok(RATE * 3600 + 7));
    }
}

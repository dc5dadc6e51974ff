//! A request's body, read within bounds of time; if it is JSON, whole and within a bound of size.
//!
//! Two bounds of time: a client that sends nothing is not waited for, and neither is one that sends a byte now and then. The
//! second bound grows with what has come, so that a large body on a slow line gets through.
//!
//! All bodies together have a bound of memory: many clients may send large ones at once, and one connection thousands of small ones.

use std::{error::Error, io, time::Duration};

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
    room::{BodyRooms, Place, SMALL_BODY},
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
        let passed = limits.passes_unknown.then(|| unknown::noted(&request));
        let held = Held::new(limits.body_bytes, &app.serving.body_rooms)?;
        let bytes = read(Pieces::of(request.into_body(), app), held).await?;
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
pub(crate) struct Pieces {
    body: Body,
    pace: Pace,
    begin: Instant,
    bytes: usize,
}

impl Pieces {
    /// Those of a request that goes at the pace of all requests.
    pub(crate) fn of(body: Body, app: &App) -> Self {
        Self::new(body, Pace { stall: app.serving.limits.stall_timeout, whole: WHOLE })
    }

    fn new(body: Body, pace: Pace) -> Self {
        Self { body, pace, begin: Instant::now(), bytes: 0 }
    }

    /// The next one; `None`: that was all.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let broken = |reason: String| ApiError::BodyBroken { reason };
        loop {
            let allowed = self.pace.whole + Duration::from_secs((self.bytes / RATE) as u64);
            let until = (self.begin + allowed).min(Instant::now() + self.pace.stall);
            let frame = tokio::time::timeout_at(until, self.body.frame()).await.map_err(|_| {
                let (bytes, seconds) = (self.bytes, self.begin.elapsed().as_secs_f64());
                broken(format!("{bytes} bytes came in {seconds:.1} s, and it is not waited for any longer"))
            })?;
            let Some(frame) = frame else { return Ok(None) };
            let Ok(piece) = frame.map_err(|error| broken(why_broken(&error).to_owned()))?.into_data() else { continue };
            self.bytes += piece.len();
            return Ok(Some(piece));
        }
    }
}

/// What hyper says, in words of our own: a connection that ended, or bytes that are not framed as they should.
fn why_broken(error: &axum::Error) -> &'static str {
    let mut cause: Option<&dyn Error> = error.source();
    while let Some(error) = cause {
        let of_hyper = error.downcast_ref::<hyper::Error>();
        let of_io = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if of_hyper.is_some_and(hyper::Error::is_incomplete_message) || of_io == Some(io::ErrorKind::UnexpectedEof) {
            return "its connection was closed before all of it was sent";
        }
        if matches!(of_io, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)) {
            return "what was sent is not cut into chunks as `transfer-encoding: chunked` asks for";
        }
        cause = error.source();
    }
    "its connection or its stream was broken off"
}

async fn read(mut pieces: Pieces, mut held: Held<'_>) -> Result<Bytes, ApiError> {
    while let Some(piece) = pieces.next().await? {
        held.add(&piece)?;
    }
    Ok(held.whole())
}

/// What has come of a body, within its own bound and within that of all bodies.
pub(crate) struct Held<'a> {
    bytes: BytesMut,
    limit: usize,
    rooms: &'a BodyRooms,
    /// In the room of what has come.
    place: Place,
}

/// Bytes that give their place back with their last copy.
struct Placed {
    bytes: BytesMut,
    _place: Place,
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<'a> Held<'a> {
    /// Takes a place before anything has come: requests whose bodies do not come are many, too.
    pub(crate) fn new(limit: usize, rooms: &'a BodyRooms) -> Result<Self, ApiError> {
        let place = rooms.small.take(1).ok_or_else(|| ApiError::BodiesFull { limit: rooms.small.all() })?;
        Ok(Self { bytes: BytesMut::new(), limit, rooms, place })
    }

    pub(crate) fn add(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        let length = self.bytes.len() + piece.len();
        if length > self.limit {
            return Err(ApiError::BodyTooLarge { limit: self.limit });
        }
        let room = if length <= SMALL_BODY { &self.rooms.small } else { &self.rooms.large };
        let has_place = if length > SMALL_BODY && self.bytes.len() <= SMALL_BODY {
            room.take(length).map(|place| self.place = place).is_some()
        } else {
            room.widen(&mut self.place, length)
        };
        if !has_place {
            return Err(ApiError::BodiesFull { limit: room.all() });
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// What has come.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All of it. Its place is taken until the last copy is dropped.
    pub(crate) fn whole(self) -> Bytes {
        Bytes::from_owner(Placed { bytes: self.bytes, _place: self.place })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt as _, stream};

    use super::*;
    use crate::room::Room;

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
        let rooms = BodyRooms { small: Room::new(usize::MAX), large: Room::new(usize::MAX) };
        runtime.block_on(read(Pieces::new(body, pace), Held::new(limit, &rooms)?))
    }

    #[test]
    fn a_body_is_read_up_to_its_limit() {
        assert_eq!(run(Body::from("12345"), 5, PATIENT), Ok(Bytes::from("12345")));
        assert_eq!(run(Body::from("12345"), 4, PATIENT), Err(ApiError::BodyTooLarge { limit: 4 }));
    }

    #[test]
    fn large_bodies_share_a_room_and_small_ones_another() {
        let rooms = BodyRooms { small: Room::new(100 << 10), large: Room::new(200 << 10) };
        let held = |bytes: usize| {
            let mut held = Held::new(usize::MAX, &rooms)?;
            let piece = vec![b'x'; 1000];
            (0..bytes / piece.len()).try_for_each(|_| held.add(&piece)).map(|()| held.whole())
        };
        let first = held(140_000).expect("all is free");
        assert_eq!(rooms.small.free(), rooms.small.all(), "it has left that room");
        assert_eq!(held(70_000), Err(ApiError::BodiesFull { limit: 200 << 10 }));
        let small = held(64_000).expect("large ones are not in its way");
        assert_eq!(small.len(), 64_000);
        assert_eq!(held(64_000), Err(ApiError::BodiesFull { limit: 100 << 10 }), "small ones are");
        drop(small);
        let part = first.slice(..10);
        drop(first);
        assert!(held(70_000).is_err(), "a part of it is held yet");
        drop(part);
        assert!(held(70_000).is_ok());
        for room in [&rooms.small, &rooms.large] {
            assert_eq!(room.free(), room.all());
        }
    }

    #[test]
    fn requests_whose_bodies_do_not_come_have_a_bound_too() {
        let rooms = BodyRooms { small: Room::new(3 << 10), large: Room::new(3 << 10) };
        let held: Vec<_> = std::iter::from_fn(|| Held::new(9, &rooms).ok()).take(9).collect();
        assert_eq!(held.len(), 3);
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

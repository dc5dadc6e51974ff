//! What an answer leaves unread of its request's body: many are given before the body has come (an unknown route, a header
//! that is wrong), and on HTTP/1 the next request comes behind that body.
//!
//! A small rest is read and thrown away, and the connection goes on. Before a larger one, or one that does not come, the
//! connection has to end. hyper would end it without a word, and a client whose next request is under way by then cannot
//! know whether it was served; so the answer says it.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{body::Body, extract::Request};
use bytes::Bytes;
use http::header;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;

/// So much of a body is read for nothing.
const REST_MAX: u64 = 64 << 10;
/// And so long it is waited for, while the answer waits, too.
const PATIENCE: Duration = Duration::from_millis(250);

/// A request's body, as whoever answers has it. What is not read of it is given back.
struct Lent {
    /// `None` from its end on.
    body: Option<Body>,
    owner: Option<oneshot::Sender<Rest>>,
}

/// What is left of a body.
enum Rest {
    Unread(Body),
    /// Nobody knows where it ends.
    Broken,
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        if let Poll::Ready(None | Some(Err(_))) = frame {
            self.body = None;
            let owner = self.owner.take();
            if let (Poll::Ready(Some(Err(_))), Some(owner)) = (&frame, owner) {
                _ = owner.send(Rest::Broken); // as in `drop`
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(body), Some(owner)) = (self.body.take(), self.owner.take())
            && !body.is_end_stream()
        {
            // Nobody waits for it if the answer itself was given up.
            _ = owner.send(Rest::Unread(body));
        }
    }
}

/// What may come back of a body.
pub(super) struct Leftover {
    rest: oneshot::Receiver<Rest>,
    /// Its client sends it only if it is asked to, which reading does.
    is_held_back: bool,
}

impl Leftover {
    /// Lends out the body of `request`, if it has one.
    pub(super) fn of(request: Request) -> (Request, Option<Self>) {
        if request.body().is_end_stream() {
            return (request, None);
        }
        let is_held_back = request.headers().contains_key(header::EXPECT);
        let (owner, back) = oneshot::channel();
        let request = request.map(|body| Body::new(Lent { body: Some(body), owner: Some(owner) }));
        (request, Some(Self { rest: back, is_held_back }))
    }

    /// Whether nothing is left before the next request, now that the answer is ready.
    pub(super) async fn drained(mut self) -> bool {
        match self.rest.try_recv() {
            Ok(Rest::Unread(body)) => !self.is_held_back && read_rest(body).await,
            Ok(Rest::Broken) => false,
            Err(oneshot::error::TryRecvError::Closed) => true,
            Err(oneshot::error::TryRecvError::Empty) => false, // the answer is still reading it
        }
    }
}

async fn read_rest(mut body: Body) -> bool {
    if body.size_hint().lower() > REST_MAX {
        return false;
    }
    let reading = async {
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
            if bytes > REST_MAX {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt as _, stream};

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(future)
    }

    fn pieces(count: usize, bytes: usize) -> impl futures::Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
        stream::iter(vec![Ok(Bytes::from(vec![0; bytes])); count])
    }

    #[test]
    fn a_small_rest_is_read_and_a_large_one_is_not() {
        for (count, bytes, expected) in [(1, 1, true), (3, 20_000, true), (64, 1024, true), (65, 1024, false)] {
            let (request, leftover) = Leftover::of(Request::new(Body::from_stream(pieces(count, bytes))));
            drop(request);
            assert_eq!(run(leftover.expect("it has a body").drained()), expected, "{count} of {bytes}");
        }
    }

    #[test]
    fn a_rest_that_does_not_come_is_not_waited_for_and_one_held_back_is_not_asked_for() {
        let stalled = || Body::from_stream(pieces(1, 9).chain(stream::pending()));
        let (request, leftover) = Leftover::of(Request::new(stalled()));
        drop(request);
        assert!(!run(leftover.expect("it has a body").drained()));

        let waiting = Request::builder().header(header::EXPECT, "100-continue").body(Body::from("{}")).expect("plain");
        let (request, leftover) = Leftover::of(waiting);
        drop(request);
        assert!(!run(leftover.expect("it has a body").drained()));
    }

    #[test]
    fn nothing_is_left_of_what_was_read_or_was_not_there() {
        assert!(Leftover::of(Request::new(Body::empty())).1.is_none());
        let (request, leftover) = Leftover::of(Request::new(Body::from_stream(pieces(2, 40_000))));
        let leftover = leftover.expect("it has a body");
        run(async {
            assert_eq!(request.into_body().collect().await.expect("it comes").to_bytes().len(), 80_000);
            assert!(leftover.drained().await);
        });
    }

    #[test]
    fn behind_a_body_that_is_broken_nothing_can_come() {
        let broken = stream::iter([Ok(Bytes::from("{")), Err(std::io::Error::other("no chunk"))]);
        let (request, leftover) = Leftover::of(Request::new(Body::from_stream(broken)));
        run(async {
            request.into_body().collect().await.expect_err("it is broken");
            assert!(!leftover.expect("it has a body").drained().await);
        });
    }

    #[test]
    fn a_body_that_is_still_read_is_not_at_its_end() {
        let (_reading, leftover) = Leftover::of(Request::new(Body::from("{}")));
        assert!(!run(leftover.expect("it has a body").drained()));
    }
}

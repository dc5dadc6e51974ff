//! Requests that come from within, as those of a batch: answered by the very handlers that answer clients, on the same terms.
//!
//! They yield to clients' requests. Each has a low priority, so it is admitted behind them and preempted before them. Only so many are
//! under way at once, so that others find slots free. And few of them wait in the engine's queue at a time, since its bounds, and the wait
//! that it foresees, count all who wait: while more wait than a few, whoever they are, none is sent there, but for one. That one keeps their
//! turn, which comes in the end however busy the server is (`docs/scheduling.md`, "due").

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use pelton_engine::Failure;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt as _;

use super::{App, around::RequestId, routes, terms};
use crate::{
    auth::Tenant,
    error::{ApiError, EngineError},
    generate::Serving,
};

/// Behind every client that does not ask to wait. From 31 on a request is due after 16 minutes, the longest there is.
const PRIORITY: &str = "100";
/// Requests in the engine's queue beyond which none of ours joins them: enough that no step runs short of short requests.
const WAITING_MAX: u64 = 16;
/// How long a request waits before it looks again how many there are.
const HOLD: Duration = Duration::from_millis(2);
/// The longest wait before what was refused for want of room, or while a worker starts, is tried again.
const RETRY_MAX_S: u32 = 5;

/// See the top of the file.
pub(crate) struct InnerDoor {
    router: Router,
    serving: Arc<Serving>,
    slots: Arc<Semaphore>,
    in_flight: u32,
    /// Requests that hold a slot.
    under_way: Arc<AtomicUsize>,
}

/// The right to have a request under way, with all answers that it draws at once.
pub(crate) struct Slot {
    under_way: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
}

/// What a request was answered with.
#[derive(Debug)]
pub(crate) struct InnerAnswer {
    pub(crate) status: StatusCode,
    /// Of the request, as the log has it.
    pub(crate) request_id: String,
    /// JSON.
    pub(crate) body: Bytes,
}

impl InnerDoor {
    /// At most so many answers are under way, or one request of more.
    pub(crate) fn new(app: &App, in_flight: usize) -> Self {
        Self {
            router: routes::inner_router(app),
            serving: Arc::clone(&app.serving),
            slots: Arc::new(Semaphore::new(in_flight)),
            in_flight: u32::try_from(in_flight).expect("settings have a bound"),
            under_way: Arc::default(),
        }
    }

    /// The largest body of a request.
    pub(crate) fn body_bytes(&self) -> usize {
        self.serving.limits.body_bytes
    }

    /// What the model is called.
    pub(crate) fn model_name(&self) -> &str {
        self.serving.model_name()
    }

    /// Waits for its turn: those who wait for slots get them in the order in which they came. A request of more answers than there are
    /// slots takes all of them.
    pub(crate) async fn slot(&self, answers: u32) -> Slot {
        let count = answers.clamp(1, self.in_flight);
        let permit = Arc::clone(&self.slots).acquire_many_owned(count).await.expect("never closed");
        while self.under_way.load(Relaxed) > 0 && self.serving.engine.stats().queue.requests >= WAITING_MAX {
            tokio::time::sleep(HOLD).await;
        }
        self.under_way.fetch_add(1, Relaxed);
        Slot { under_way: Arc::clone(&self.under_way), _permit: permit }
    }

    /// Answers one request. What is refused for want of room is asked again. `None`: the server ends.
    pub(crate) async fn ask(&self, url: &'static str, body: Bytes, tenant: u64, _slot: &Slot) -> Option<InnerAnswer> {
        loop {
            let had_all_room = self.has_all_room();
            let id = uuid::Uuid::now_v7().simple().to_string();
            let mut request = Request::new(Body::from(body.clone()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = http::Uri::from_static(url);
            request.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
            request.headers_mut().insert(terms::PRIORITY, header::HeaderValue::from_static(PRIORITY));
            request.extensions_mut().insert(RequestId(id.clone()));
            request.extensions_mut().insert(Tenant(tenant));
            let Ok(response) = self.router.clone().oneshot(request).await;
            let error = response.extensions().get::<ApiError>();
            if matches!(error, Some(ApiError::Engine(EngineError(Failure::ShuttingDown)))) {
                return None;
            }
            let Some(wait_s) = error.and_then(|error| wait_s(error, had_all_room && self.has_all_room())) else {
                let status = response.status();
                let body = response.into_body().collect().await.expect("whole answers do not break off").to_bytes();
                return Some(InnerAnswer { status, request_id: id, body });
            };
            tokio::time::sleep(Duration::from_secs(wait_s.min(RETRY_MAX_S).into())).await;
        }
    }

    /// Whether nobody holds embeddings.
    fn has_all_room(&self) -> bool {
        let room = &self.serving.embeds_room;
        room.free() == room.all()
    }
}

/// In how many seconds what was refused is asked again; `None`: never. `had_all_room`: no other request took any of it, so that what
/// found too little never finds enough.
fn wait_s(error: &ApiError, had_all_room: bool) -> Option<u32> {
    match error {
        ApiError::Engine(EngineError(Failure::QueueFull { retry_after_s, .. }))
        | ApiError::Unavailable { retry_after_s, .. } => Some(*retry_after_s),
        // There is room for several bodies of any size that is allowed.
        ApiError::TextQueueFull | ApiError::BodiesFull { .. } => Some(1),
        ApiError::NoRoom { .. } if !had_all_room => Some(1),
        _ => None,
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use pelton_engine::QueueBound;

    use super::*;

    #[test]
    fn what_found_no_room_is_asked_again_unless_it_had_all_of_it() {
        let bound = QueueBound::Requests { waiting: 9, asked: 1, limit: 9 };
        let no_room = || ApiError::NoRoom { reason: String::new() };
        for (error, had_all_room, expected) in [
            (Failure::QueueFull { bound, retry_after_s: 7 }.into(), true, Some(7)),
            (ApiError::Unavailable { reason: String::new(), retry_after_s: 2 }, true, Some(2)),
            (ApiError::TextQueueFull, true, Some(1)),
            (ApiError::BodiesFull { limit: 1 }, true, Some(1)),
            (no_room(), false, Some(1)),
            (no_room(), true, None),
            (ApiError::BodyTooLarge { limit: 1 }, false, None),
            (Failure::Internal("it broke".into()).into(), false, None),
        ] {
            assert_eq!(wait_s(&error, had_all_room), expected, "{error}");
        }
    }
}

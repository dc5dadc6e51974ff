//! What the port says before there is a model to ask: alive, not ready, and why.
//!
//! It accepts on a duplicate of the listening socket. When the API takes over, a connection that nobody has accepted yet is
//! accepted there; none is refused.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::doors::Doors;
use crate::command::Trouble;
use crate::error::ApiError;

/// The small server of the start.
pub(super) struct Starting {
    told: Told,
    closing: CancellationToken,
    serving: JoinHandle<()>,
}

/// How far the start is.
#[derive(Clone)]
pub(super) struct Told(Arc<watch::Sender<Step>>);

#[derive(Clone, Default)]
struct Step {
    stage: String,
    done: u64,
    total: u64,
}

impl Told {
    /// For whoever asks next.
    pub(super) fn tell(&self, stage: &str, done: u64, total: u64) {
        self.0.send_replace(Step { stage: stage.to_owned(), done, total });
    }
}

impl Starting {
    /// Answers from now on.
    pub(super) fn answer(doors: &Doors) -> Result<Self, Trouble> {
        let failed = |error: std::io::Error| Trouble::Failed(format!("cannot listen: {error}"));
        let listener = doors.http.try_clone().and_then(tokio::net::TcpListener::from_std).map_err(failed)?;
        let step = Step { stage: "finding the model".into(), ..Step::default() };
        let told = Told(Arc::new(watch::Sender::new(step)));
        let router = Router::new()
            .route("/livez", get(alive))
            .route("/readyz", get(not_ready))
            .route("/startupz", get(not_ready))
            .fallback(unavailable)
            .with_state(told.clone());
        let closing = CancellationToken::new();
        let closed = closing.clone().cancelled_owned();
        let serving = tokio::spawn(async move {
            // An error of one connection ends that connection; accepting goes on until it is closed.
            _ = axum::serve(listener, router).with_graceful_shutdown(closed).await;
        });
        Ok(Self { told, closing, serving })
    }

    pub(super) fn told(&self) -> Told {
        self.told.clone()
    }

    /// Accepts nothing more; answers under way are finished, and all of them are short.
    pub(super) async fn end(mut self) {
        self.closing.cancel();
        _ = (&mut self.serving).await;
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn alive() -> Response {
    axum::Json(serde_json::json!({ "status": "loading" })).into_response()
}

async fn not_ready(State(told): State<Told>) -> Response {
    let Step { stage, done, total } = told.0.borrow().clone();
    let share = if total == 0 { serde_json::Value::Null } else { serde_json::json!(done as f64 / total as f64) };
    let body = serde_json::json!({
        "status": "loading",
        "reason": reason(&stage),
        "progress": { "stage": stage, "done_bytes": done, "total_bytes": total, "share": share },
    });
    let mut response = unavailable(State(told)).await;
    let (mut parts, _) = std::mem::take(&mut response).into_parts();
    parts.headers.remove(::http::header::CONTENT_LENGTH);
    Response::from_parts(parts, axum::body::Body::from(body.to_string()))
}

async fn unavailable(State(told): State<Told>) -> Response {
    let reason = reason(&told.0.borrow().stage);
    ApiError::Unavailable { reason, retry_after_s: 2 }.into_response()
}

fn reason(stage: &str) -> String {
    format!("the model is loading ({stage})")
}

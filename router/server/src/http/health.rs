//! Probes and `/metrics`. None of them waits for anything.
//!
//! | | 200 while | for |
//! |---|---|---|
//! | `/livez` | the process is worth keeping | restarting it |
//! | `/startupz` | the model has been loaded once | giving it time |
//! | `/readyz`, `/health`, `/ping` | a request would be answered | sending requests |
//!
//! While a worker is being replaced requests are taken and answered a little later, so that counts as ready.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::{StatusCode, header};
use pelton_engine::{Phase, Status};
use schemars::JsonSchema;
use serde::Serialize;

use super::App;
use crate::{
    error::{ApiError, EnvelopeError},
    generate::{Serving, seconds_since_1970},
};

pub(super) async fn metrics(State(App { serving, .. }): State<App>) -> Response {
    let stats = serving.engine.stats();
    let text = serving.metrics.show(&stats, &serving.status.borrow(), seconds_since_1970());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

pub(super) async fn health(State(App { serving, .. }): State<App>) -> Result<StatusCode, ApiError> {
    serving.ready().map(|_| StatusCode::OK)
}

pub(super) async fn live(State(App { serving, .. }): State<App>) -> Response {
    let is_alive = !matches!(serving.status.borrow().phase, Phase::Failed { .. });
    report(&serving, is_alive)
}

pub(super) async fn ready(State(App { serving, .. }): State<App>) -> Response {
    let is_ready = is_ready(&serving.status.borrow());
    report(&serving, is_ready)
}

pub(super) async fn started(State(App { serving, .. }): State<App>) -> Response {
    let has_started = serving.status.borrow().model.is_some();
    report(&serving, has_started)
}

/// Whether a request would be answered.
pub(crate) fn is_ready(status: &Status) -> bool {
    matches!(status.phase, Phase::Ready | Phase::Recovering { .. })
}

fn report(serving: &Serving, is_well: bool) -> Response {
    let mut body = describe(&serving.status.borrow());
    if is_well {
        return Json(body).into_response();
    }
    let error = match serving.ready() {
        Err(error) => error,
        // The phase changed between two looks: the next probe will see it.
        Ok(_) => ApiError::Unavailable { reason: "the server has just changed its state".to_owned(), retry_after_s: 1 },
    };
    let (parts, _) = error.clone().into_response().into_parts();
    body.error = Some(error.envelope().error);
    let mut response = Json(body).into_response();
    *response.status_mut() = parts.status;
    if let Some(after) = parts.headers.get(header::RETRY_AFTER) {
        response.headers_mut().insert(header::RETRY_AFTER, after.clone());
    }
    response
}

/// The engine's phase, with its reason and its progress.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Health<'a> {
    #[schemars(extend("enum" = ["ready", "recovering", "loading", "draining", "ended", "failed"]))]
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
    /// Why this is no 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<EnvelopeError<'a>>,
}

/// How far loading is.
#[derive(Debug, Serialize, JsonSchema)]
struct Progress {
    stage: String,
    done_bytes: u64,
    total_bytes: u64,
    /// `null` as long as nobody knows the total.
    share: Option<f64>,
}

fn describe<'a>(status: &Status) -> Health<'a> {
    let (status, reason, progress) = match &status.phase {
        Phase::Ready => ("ready", None, None),
        Phase::Recovering { reason } => ("recovering", Some(reason.clone()), None),
        Phase::Draining => ("draining", None, None),
        Phase::Ended => ("ended", None, None),
        Phase::Failed { reason } => ("failed", Some(reason.clone()), None),
        &Phase::Loading { ref stage, done, total } => {
            let share = (total > 0).then(|| done as f64 / total as f64);
            let progress = Progress { stage: stage.clone(), done_bytes: done, total_bytes: total, share };
            ("loading", Some(format!("the model is loading ({stage})")), Some(progress))
        }
    };
    Health { status, reason, progress, error: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(phase: Phase) -> Status {
        Status { phase, budget: None, model: None }
    }

    #[test]
    fn a_server_that_recovers_takes_requests_and_one_that_loads_does_not() {
        assert!(is_ready(&status(Phase::Ready)));
        assert!(is_ready(&status(Phase::Recovering { reason: "killed".into() })));
        for phase in [
            Phase::Loading { stage: "weights".into(), done: 1, total: 2 },
            Phase::Draining,
            Phase::Ended,
            Phase::Failed { reason: "no memory".into() },
        ] {
            assert!(!is_ready(&status(phase)));
        }
    }

    #[test]
    fn loading_tells_how_far_it_is() {
        let shown = describe(&status(Phase::Loading { stage: "weights".into(), done: 1, total: 4 }));
        assert_eq!(shown.progress.expect("it loads").share, Some(0.25));
        let shown = describe(&status(Phase::Loading { stage: "starting".into(), done: 0, total: 0 }));
        assert_eq!(shown.progress.expect("it loads").share, None);
    }
}

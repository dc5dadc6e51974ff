//! What the ports say before there is a model to ask: alive, not ready, and why, each request in the protocol that it speaks.
//!
//! It accepts on duplicates of the listening sockets. When the API takes over, a connection that nobody has accepted yet is
//! accepted there; none is refused.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use ::http::header;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use futures::future::OptionFuture;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::doors::Doors;
use crate::command::Trouble;
use crate::error::ApiError;
use crate::http::around::{introduced, rejection};

/// Soon enough for a model from the cache, rare enough for a download.
const RETRY_AFTER_S: u32 = 2;
/// Many times what an answer takes here. Whoever has not sent a whole request by then keeps nobody from the model.
const END_MAX: Duration = Duration::from_secs(1);

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

    fn error(&self) -> ApiError {
        ApiError::Unavailable { reason: reason(&self.0.borrow().stage), retry_after_s: RETRY_AFTER_S }
    }
}

impl Starting {
    /// Answers from now on.
    pub(super) fn answer(doors: &Doors) -> Result<Self, Trouble> {
        let failed = |error: std::io::Error| Trouble::Failed(format!("cannot listen: {error}"));
        let listen = |door: &TcpListener| door.try_clone().and_then(tokio::net::TcpListener::from_std).map_err(failed);
        let (http, grpc) = (listen(&doors.http)?, doors.grpc.as_ref().map(listen).transpose()?);
        let step = Step { stage: "finding the model".into(), ..Step::default() };
        let told = Told(Arc::new(watch::Sender::new(step)));
        let router = Router::new()
            .route("/livez", get(alive))
            .route("/readyz", get(not_ready))
            .route("/startupz", get(not_ready))
            .fallback(unavailable)
            .with_state(told.clone());
        let router = introduced(router);
        let closing = CancellationToken::new();
        let closed = closing.clone();
        let serving = tokio::spawn(async move {
            let serve = |listener| {
                let closed = closed.clone().cancelled_owned();
                axum::serve(listener, router.clone()).with_graceful_shutdown(closed).into_future()
            };
            // An error of one connection ends that connection; accepting goes on until it is closed.
            _ = tokio::join!(serve(http), OptionFuture::from(grpc.map(serve)));
        });
        Ok(Self { told, closing, serving })
    }

    pub(super) fn told(&self) -> Told {
        self.told.clone()
    }

    /// Accepts nothing more; answers under way are finished, and all of them are short. A connection on which no whole request has come
    /// is left to itself: what comes there late is told that the model is loading, and then the connection closes.
    pub(super) async fn end(mut self) {
        self.closing.cancel();
        _ = tokio::time::timeout(END_MAX, &mut self.serving).await;
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn alive() -> Response {
    axum::Json(json!({ "status": "loading" })).into_response()
}

async fn not_ready(State(told): State<Told>) -> Response {
    let Step { stage, done, total } = told.0.borrow().clone();
    let share = if total == 0 { Value::Null } else { json!(done as f64 / total as f64) };
    let error = told.error();
    let mut body = serde_json::to_value(error.envelope()).expect("envelopes are plain");
    body["status"] = json!("loading");
    body["reason"] = json!(reason(&stage));
    body["progress"] = json!({ "stage": stage, "done_bytes": done, "total_bytes": total, "share": share });
    let refusal = error.into_response();
    (refusal.status(), [(header::RETRY_AFTER, RETRY_AFTER_S.to_string())], axum::Json(body)).into_response()
}

async fn unavailable(State(told): State<Told>, request: Request) -> Response {
    rejection(&request, told.error())
}

fn reason(stage: &str) -> String {
    format!("the model is loading ({stage})")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;
    use hyper_util::client::legacy;
    use hyper_util::rt::TokioExecutor;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpStream;

    use super::*;
    use crate::client::{Client, read_body};
    use crate::config::{Config, Surroundings};

    async fn ask(url: &str, path: &str) -> (u16, Value) {
        let request = ::http::Request::get(format!("{url}{path}")).body(Full::<Bytes>::default()).expect("a request");
        let response = Client::new(false).send(request).await.expect("an answer");
        let status = response.status().as_u16();
        let body = read_body(response.into_body(), 1 << 20).await.expect("a body");
        (status, serde_json::from_slice(&body).expect("JSON"))
    }

    fn doors() -> Doors {
        let arguments = ["port", "grpc_port"].map(|name| (name.to_owned(), "0".to_owned()));
        let config = Config::from_arguments(&arguments, &Surroundings::default()).expect("valid");
        Doors::open(&config).expect("a free port")
    }

    #[tokio::test]
    async fn the_port_answers_before_there_is_a_model_and_refuses_nobody_when_it_changes_hands() {
        let doors = doors();
        let url = doors.url();
        let starting = Starting::answer(&doors).expect("listening");
        assert_eq!(ask(&url, "/livez").await.0, 200);
        starting.told().tell("downloading model.safetensors", 1, 4);
        let (status, body) = ask(&url, "/readyz").await;
        assert_eq!((status, &body["progress"]["share"]), (503, &json!(0.25)));
        assert_eq!(body["reason"], "the model is loading (downloading model.safetensors)");
        let (status, body) = ask(&url, "/v1/chat/completions").await;
        assert_eq!(status, 503);
        assert!(body["error"]["message"].as_str().expect("a message").contains("loading"), "{body}");

        starting.end().await;
        // Nobody accepts at this moment; the client waits.
        let waiting = tokio::spawn(async move { ask(&url, "/later").await });
        let api = Router::new().fallback(|| async { axum::Json(json!("the API")) });
        let listener = doors.listeners().expect("still open").http;
        tokio::spawn(async move { axum::serve(listener, api).await });
        assert_eq!(waiting.await.expect("no panic"), (200, json!("the API")));
    }

    #[tokio::test]
    async fn each_protocol_is_told_in_its_own_form_and_by_its_id() {
        let doors = doors();
        let starting = Starting::answer(&doors).expect("listening");
        let id = |response: &::http::Response<_>| response.headers()["x-request-id"].clone();

        let request = ::http::Request::post(format!("{}/v1/messages", doors.url())).header("x-request-id", "mine");
        let request = request.body(Full::<Bytes>::from("{}")).expect("a request");
        let response = Client::new(false).send(request).await.expect("an answer");
        assert_eq!((response.status().as_u16(), id(&response)), (529, "mine".parse().expect("a header")));
        assert_eq!(response.headers()["retry-after"], "2");
        let body = read_body(response.into_body(), 1 << 20).await.expect("a body");
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("overloaded_error")));

        let own_port = doors.grpc.as_ref().expect("open").local_addr().expect("bound");
        for url in [doors.url(), format!("http://{own_port}")] {
            let client = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http();
            let request = ::http::Request::post(format!("{url}/pelton.v1.Pelton/Generate"))
                .header("content-type", "application/grpc")
                .body(Full::<Bytes>::from(vec![0; 5]))
                .expect("a request");
            let response = client.request(request).await.expect("an answer");
            let status = tonic::Status::from_header_map(response.headers()).expect("a status without a body");
            assert_eq!((response.status().as_u16(), status.code()), (200, tonic::Code::Unavailable));
            assert!(status.message().contains("loading"), "{status:?}");
            assert_eq!(response.headers()["content-type"], "application/grpc");
            assert_eq!(id(&response).len(), 32);
        }
        starting.end().await;
    }

    #[tokio::test]
    async fn a_request_that_never_ends_does_not_keep_the_start_from_its_end() {
        let doors = doors();
        let url = doors.url();
        let address = url.strip_prefix("http://").expect("plain HTTP");
        let starting = Starting::answer(&doors).expect("listening");
        let mut unfinished = TcpStream::connect(address).await.expect("listening");
        unfinished.write_all(b"GET /livez HTTP/1.1\r\n").await.expect("connected");
        // Connections are accepted in turn: the one before is, too.
        assert_eq!(ask(&url, "/livez").await.0, 200);
        starting.end().await;
    }
}

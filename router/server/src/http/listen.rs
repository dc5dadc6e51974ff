//! The listeners: accept, serve, stop.
//!
//! The end of a server:
//!   1. `shutdown` resolves: the engine takes no new requests, and batches begin none. The port goes on answering: probes are told that it drains, and
//!      new requests to go elsewhere.
//!   2. Answers under way go on until they are complete, for as long as the drain may take, or until `hurry` is cancelled.
//!   3. The engine ends. What is left of the answers ends with an error, in its stream or as its response.
//!   4. Nothing more is accepted. Connections close as their last bytes leave; those whose reader is too slow are cut.

use std::{
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{Router, body::Body};
use bytes::Bytes;
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{
    App,
    connection::{Connection, Patience},
    routes,
    slots::{Slot, Slots, UnderWay},
};

/// How long a client may take to say which protocol it speaks, and then to send its request's head: over HTTP/1 also between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a silent HTTP/2 peer is asked whether it still lives, and how long it may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests of one HTTP/2 connection at the same time; a gateway may put all of its traffic on one.
const HTTP2_STREAMS_MAX: u32 = 4096;
/// How long to wait after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the log hears of such accepts.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(5);
/// For an answer's last bytes to leave once the drain has ended.
const LAST_BYTES: Duration = Duration::from_millis(500);
/// The same where the connection is to make room, and for its client to hear that no more requests are taken there.
const GOODBYE: Duration = Duration::from_secs(5);

/// Where clients come in.
pub struct Listeners {
    /// HTTP/1.1 and HTTP/2; gRPC too, unless it has its own.
    pub http: TcpListener,
    /// gRPC alone.
    pub grpc: Option<TcpListener>,
}

/// Serves until `shutdown` resolves, then drains for at most `drain`, or until `hurry` is cancelled. The engine has ended when
/// this returns.
pub async fn serve(
    app: App,
    listeners: Listeners,
    shutdown: impl Future<Output = ()>,
    drain: Duration,
    hurry: CancellationToken,
) {
    let slots = Slots::new(app.serving.limits.max_connections);
    let ends = Ends::default();
    let batches = app.batches().ok().cloned();
    let stop = CancellationToken::new();
    let batching = batches.clone().map(|batches| tokio::spawn(batches.run(app.inner_door(), stop.clone())));
    let deadline = accept_until(&app, listeners, (&slots, &ends), async {
        shutdown.await;
        stop.cancel();
        let deadline = Instant::now() + drain;
        tokio::select! {
            () = app.serving.engine.drain(drain) => {}
            () = hurry.cancelled() => {}
        }
        app.serving.engine.shutdown().await;
        if let Some(batching) = batching {
            // A panic there has been reported there. All that it waits for has ended with the engine.
            _ = batching.await;
        }
        deadline
    });
    let left = deadline.await.saturating_duration_since(Instant::now());
    let patience = if hurry.is_cancelled() { LAST_BYTES } else { left.max(LAST_BYTES) };
    ends.closing.cancel();
    let in_time = async { tokio::time::timeout(patience, slots.all_free()).await.is_ok() };
    let is_closed = tokio::select! {
        is_closed = in_time => is_closed,
        () = async { hurry.cancelled().await; tokio::time::sleep(LAST_BYTES).await } => false,
    };
    if !is_closed {
        tracing::warn!("the drain has ended: connections that are left are cut");
    }
    ends.cut.cancel();
    if let Some(batches) = batches {
        batches.close();
    }
}

/// Accepts, and serves what is accepted, until `end` resolves.
async fn accept_until<T>(
    app: &App,
    Listeners { http, grpc }: Listeners,
    (slots, ends): (&Arc<Slots>, &Ends),
    end: impl Future<Output = T>,
) -> T {
    let limits = &app.serving.limits;
    let door = |router, is_grpc_alone| Door {
        router,
        // A stream that stalls is told from others by `generate`, in whose time it is cut; the connection follows.
        patience: Patience { opening: HEAD_TIMEOUT, write: limits.stall_timeout * 2 },
        is_grpc_alone,
        slots: Arc::clone(slots),
    };
    let main = door(routes::http_router(app, grpc.is_none()), false);
    let other = door(routes::grpc_router(app), true);
    let accepting = async {
        match grpc {
            None => main.accept(http, ends).await,
            Some(grpc) => tokio::join!(main.accept(http, ends), other.accept(grpc, ends)).0,
        }
    };
    tokio::select! {
        never = pin!(accepting) => match never {},
        ended = end => ended,
    }
}

/// Never happens: accepting goes on until it is dropped.
enum Never {}

/// How all connections end.
#[derive(Clone, Default)]
struct Ends {
    /// Each as soon as it is idle.
    closing: CancellationToken,
    /// At once.
    cut: CancellationToken,
}

/// What a listener's connections get.
struct Door {
    router: Router,
    patience: Patience,
    is_grpc_alone: bool,
    slots: Arc<Slots>,
}

impl Door {
    async fn accept(&self, listener: TcpListener, ends: &Ends) -> Never {
        let server = self.server();
        let mut complaints = Complaints::default();
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if is_of_process(&error) {
                        complaints.add(&error, Instant::now());
                        self.slots.give_up_first();
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    continue;
                }
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a client left before it was served");
                continue;
            }
            let slot = self.slots.take().await;
            self.spawn(&server, stream, Arc::new(slot), ends.clone());
        }
    }

    fn server(&self) -> auto::Builder<TokioExecutor> {
        let mut server = auto::Builder::new(TokioExecutor::new());
        server.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        server
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(HTTP2_STREAMS_MAX);
        if self.is_grpc_alone { server.http2_only() } else { server }
    }

    fn spawn(&self, server: &auto::Builder<TokioExecutor>, stream: TcpStream, slot: Arc<Slot>, ends: Ends) {
        let connection = Connection::new(stream, self.patience);
        let written = connection.written();
        let io = TokioIo::new(connection);
        let (router, speaker) = (self.router.clone(), Arc::clone(&slot));
        let service = service_fn(move |request: http::Request<Incoming>| {
            let (router, under_way) = (router.clone(), speaker.begin());
            async move {
                let Ok(response) = router.oneshot(request).await;
                Ok::<_, std::convert::Infallible>(response.map(|body| Answer { body, _under_way: under_way }))
            }
        });
        let serving = server.serve_connection(io, service).into_owned();
        tokio::spawn(async move {
            let mut serving = pin!(serving);
            let served = async {
                tokio::select! {
                    end = serving.as_mut() => return end,
                    () = ends.closing.cancelled() => {}
                    () = slot.given_up().cancelled() => {}
                }
                // What is under way is answered.
                serving.as_mut().graceful_shutdown();
                serving.await
            };
            tokio::select! {
                () = ends.cut.cancelled() => {}
                () = overstays(&slot, &written) => tracing::debug!("an idle connection gave up its place"),
                end = served => if let Err(error) = end {
                    // A client that leaves is no event.
                    tracing::debug!(%error, "a connection ended early");
                }
            }
        });
    }
}

/// Resolves when a connection that was given up is to be waited for no longer.
async fn overstays(slot: &Slot, written: &AtomicU64) {
    slot.given_up().cancelled().await;
    if slot.is_silent() {
        return;
    }
    let mut before = written.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(GOODBYE).await;
        let now = written.load(Ordering::Relaxed);
        // A request may have been on its way; and an answer is when its body was taken, until its last byte has gone out.
        if slot.is_idle() && now == before {
            return;
        }
        before = now;
    }
}

/// An answer's body; its request is under way until all of it is taken, or nobody wants it.
struct Answer {
    body: Body,
    _under_way: UnderWay,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Errors of one connection are skipped; those of the process, such as a lack of descriptors, would come again at once.
fn is_of_process(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Says now and then how many accepts have failed.
#[derive(Default)]
struct Complaints {
    last: Option<Instant>,
    unsaid: u64,
}

impl Complaints {
    fn add(&mut self, error: &io::Error, now: Instant) {
        self.unsaid += 1;
        if let Some(times) = self.due(now) {
            tracing::warn!(%error, times, "cannot accept connections");
        }
    }

    /// How many are to be told now.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < COMPLAINT_INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::client::conn::{http1, http2};
    use tokio::{sync::Notify, task::JoinHandle};

    use super::*;

    /// A client's connection: its end, and what keeps the client from ending it.
    struct Open {
        end: JoinHandle<()>,
        _sender: Box<dyn Send>,
    }

    /// What is answered on a connection of its own, which stays open.
    async fn ask(address: SocketAddr, is_http2: bool, path: &'static str) -> (Bytes, Open) {
        let io = TokioIo::new(TcpStream::connect(address).await.expect("listening"));
        let uri = format!("http://{address}{path}");
        let request = http::Request::get(uri).header("host", "x").body(Empty::<Bytes>::new()).expect("a request");
        let (answer, open) = if is_http2 {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.expect("connected");
            let end = tokio::spawn(async move { _ = connection.await });
            (sender.send_request(request).await, Open { end, _sender: Box::new(sender) })
        } else {
            let (mut sender, connection) = http1::handshake(io).await.expect("connected");
            let end = tokio::spawn(async move { _ = connection.await });
            (sender.send_request(request).await, Open { end, _sender: Box::new(sender) })
        };
        let body = answer.expect("an answer").into_body().collect().await.expect("all of it");
        (body.to_bytes(), open)
    }

    #[tokio::test]
    async fn who_is_idle_makes_room_and_who_is_served_is_served_to_the_end() {
        for is_http2 in [false, true] {
            let [begun, go_on] = [(); 2].map(|()| Arc::new(Notify::new()));
            let (begins, goes_on) = (Arc::clone(&begun), Arc::clone(&go_on));
            let slow = get(async move || {
                begins.notify_one();
                goes_on.notified().await;
                "x".repeat(1 << 20)
            });
            let router = Router::new().route("/slow", slow).route("/fast", get(async || "fast"));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("bound");
            let patience = Patience { opening: HEAD_TIMEOUT, write: HEAD_TIMEOUT };
            let door = Door { router, patience, is_grpc_alone: false, slots: Slots::new(1) };
            tokio::spawn(async move { match door.accept(listener, &Ends::default()).await {} });

            let first = tokio::spawn(ask(address, is_http2, "/slow"));
            begun.notified().await;
            let second = tokio::spawn(ask(address, is_http2, "/fast"));
            go_on.notify_one();
            let (answer, open) = first.await.expect("no panic");
            assert_eq!(answer.len(), 1 << 20);
            open.end.await.expect("no panic");
            assert_eq!(second.await.expect("no panic").0, "fast");
        }
    }

    #[test]
    fn accepts_that_fail_are_told_in_sum() {
        let (mut complaints, begin) = (Complaints::default(), Instant::now());
        let told: Vec<Option<u64>> = [0, 1, 4, 5, 6, 11]
            .into_iter()
            .map(|second| {
                complaints.unsaid += 1;
                complaints.due(begin + Duration::from_secs(second))
            })
            .collect();
        assert_eq!(told, [Some(1), None, None, Some(3), None, Some(2)]);
    }

    #[test]
    fn a_client_that_leaves_before_it_is_accepted_is_no_lack_of_the_process() {
        assert!(!is_of_process(&io::ErrorKind::ConnectionAborted.into()));
        assert!(is_of_process(&io::Error::from_raw_os_error(24)), "too many open files");
    }
}

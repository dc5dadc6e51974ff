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
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::Router;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{
    App,
    connection::{Connection, Patience},
    routes,
    slots::{Slot, Slots},
};

/// How long a client may take to say which protocol it speaks, and then to send its request's head.
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
    let connections = GracefulShutdown::new();
    let cut = CancellationToken::new();
    let batches = app.batches().ok().cloned();
    let stop = CancellationToken::new();
    let batching = batches.clone().map(|batches| tokio::spawn(batches.run(app.inner_door(), stop.clone())));
    let deadline = accept_until(&app, listeners, (&connections, &cut), async {
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
    let in_time = async { tokio::time::timeout(patience, connections.shutdown()).await.is_ok() };
    let is_closed = tokio::select! {
        is_closed = in_time => is_closed,
        () = async { hurry.cancelled().await; tokio::time::sleep(LAST_BYTES).await } => false,
    };
    if !is_closed {
        tracing::warn!("the drain has ended: connections that are left are cut");
    }
    cut.cancel();
    if let Some(batches) = batches {
        batches.close();
    }
}

/// Accepts, and serves what is accepted, until `end` resolves.
async fn accept_until<T>(
    app: &App,
    Listeners { http, grpc }: Listeners,
    (connections, cut): (&GracefulShutdown, &CancellationToken),
    end: impl Future<Output = T>,
) -> T {
    let limits = &app.serving.limits;
    let slots = Slots::new(limits.max_connections);
    let door = |router, is_grpc_alone| Door {
        router,
        // A stream that stalls is told from others by `generate`, in whose time it is cut; the connection follows.
        patience: Patience { opening: HEAD_TIMEOUT, write: limits.stall_timeout * 2 },
        is_grpc_alone,
        slots: Arc::clone(&slots),
    };
    let main = door(routes::http_router(app, grpc.is_none()), false);
    let other = door(routes::grpc_router(app), true);
    let accepting = async {
        match grpc {
            None => main.accept(http, connections, cut).await,
            Some(grpc) => tokio::join!(main.accept(http, connections, cut), other.accept(grpc, connections, cut)).0,
        }
    };
    tokio::select! {
        never = pin!(accepting) => match never {},
        ended = end => ended,
    }
}

/// Never happens: accepting goes on until it is dropped.
enum Never {}

/// What a listener's connections get.
struct Door {
    router: Router,
    patience: Patience,
    is_grpc_alone: bool,
    slots: Arc<Slots>,
}

impl Door {
    async fn accept(&self, listener: TcpListener, connections: &GracefulShutdown, cut: &CancellationToken) -> Never {
        let server = self.server();
        let mut complaints = Complaints::default();
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if is_of_process(&error) {
                        complaints.add(&error, Instant::now());
                        self.slots.give_up_oldest();
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
            self.spawn(&server, stream, slot, connections, cut.clone());
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

    fn spawn(
        &self,
        server: &auto::Builder<TokioExecutor>,
        stream: TcpStream,
        slot: Slot,
        connections: &GracefulShutdown,
        cut: CancellationToken,
    ) {
        let io = TokioIo::new(Connection::new(stream, self.patience));
        let (given_up, slot) = (slot.given_up(), Arc::new(slot));
        let speaker = Arc::clone(&slot);
        let service = tower::util::MapRequest::new(self.router.clone(), move |request: http::Request<Incoming>| {
            speaker.speaks();
            request
        });
        let serving = server.serve_connection(io, TowerToHyperService::new(service)).into_owned();
        let serving = connections.watch(serving);
        tokio::spawn(async move {
            tokio::select! {
                () = cut.cancelled() => {}
                () = given_up.cancelled() => tracing::debug!("a silent connection gave up its place"),
                end = serving => if let Err(error) = end {
                    // A client that leaves is no event.
                    tracing::debug!(%error, "a connection ended early");
                }
            }
            // Not before the socket is closed.
            drop(slot);
        });
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
    use super::*;

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

//! The listeners: accept, serve, stop.
//!
//! The end of a server:
//!   1. `shutdown` resolves: nothing more is accepted, and the engine takes no new requests.
//!   2. Answers under way go on until they are complete. Idle connections are closed.
//!   3. At the drain's deadline what is left is cut.

use std::{io, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{App, connection::Connection, routes};

/// How long a client may take to send its request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a silent HTTP/2 peer is asked whether it still lives, and how long it may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests of one HTTP/2 connection at the same time; a gateway may put all of its traffic on one.
const HTTP2_STREAMS_MAX: u32 = 4096;
/// How long to wait after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where clients come in.
pub struct Listeners {
    /// HTTP/1.1 and HTTP/2; gRPC too, unless it has its own.
    pub http: TcpListener,
    /// gRPC alone.
    pub grpc: Option<TcpListener>,
}

/// Serves until `shutdown` resolves, then drains for at most `drain`. The engine has been drained when this returns, and
/// is still to be shut down by its owner.
pub async fn serve(app: App, listeners: Listeners, shutdown: impl Future<Output = ()>, drain: Duration) {
    let connections = GracefulShutdown::new();
    let cut = CancellationToken::new();
    let Listeners { http, grpc } = listeners;
    let main = Door {
        router: routes::http_router(&app, grpc.is_none()),
        stall: app.serving.limits.stall_timeout,
        is_grpc_alone: false,
    };
    let other =
        Door { router: routes::grpc_router(&app), stall: app.serving.limits.stall_timeout, is_grpc_alone: true };
    let accepting = async {
        match grpc {
            None => main.accept(http, &connections, &cut).await,
            Some(grpc) => tokio::join!(main.accept(http, &connections, &cut), other.accept(grpc, &connections, &cut)).0,
        }
    };
    tokio::select! {
        never = accepting => match never {},
        () = shutdown => {}
    }
    let closing = tokio::time::timeout(drain, connections.shutdown());
    let (_, closed) = tokio::join!(app.serving.engine.drain(drain), closing);
    if closed.is_err() {
        tracing::warn!("the drain's deadline has passed: connections are cut");
    }
    cut.cancel();
}

/// Never happens: accepting goes on until it is dropped.
enum Never {}

/// What a listener's connections get.
struct Door {
    router: Router,
    stall: Duration,
    is_grpc_alone: bool,
}

impl Door {
    async fn accept(&self, listener: TcpListener, connections: &GracefulShutdown, cut: &CancellationToken) -> Never {
        let server = self.server();
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    pause_after(&error).await;
                    continue;
                }
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a client left before it was served");
                continue;
            }
            self.spawn(&server, stream, connections, cut.clone());
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
        connections: &GracefulShutdown,
        cut: CancellationToken,
    ) {
        // A stream that stalls is told from others by `generate`, in whose time it is cut; the connection follows.
        let io = TokioIo::new(Connection::new(stream, self.stall * 2));
        let serving = server.serve_connection(io, TowerToHyperService::new(self.router.clone())).into_owned();
        let serving = connections.watch(serving);
        tokio::spawn(async move {
            tokio::select! {
                () = cut.cancelled() => {}
                end = serving => if let Err(error) = end {
                    // A client that leaves is no event.
                    tracing::debug!(%error, "a connection ended early");
                }
            }
        });
    }
}

/// Errors of one connection are skipped; those of the process would come again at once.
async fn pause_after(error: &io::Error) {
    let is_of_connection = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    );
    if !is_of_connection {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

//! Lets readers in: binds an endpoint, accepts connections, keeps their number bounded, takes what they leave.

use std::future::Future;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::Endpoint;
use crate::counts::{Counters, count};
use crate::zmtp::{Fault, Stream};

/// Readers at a time on one socket. Each costs a task, a file descriptor and a chunk of history: 256 × 64 KiB = 16 MiB.
/// Gateways connect a few times each; one that is refused tries again by itself.
pub(crate) const CONNECTIONS_MAX: usize = 256;

/// After this much silence the system asks whether the host on the other side still lives, so that its place comes free.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// How long accepting rests after it failed: out of file descriptors, trying at once again would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound endpoint.
pub(crate) struct Door {
    endpoint: Endpoint,
    listener: Listener,
}

enum Listener {
    Tcp(TcpListener),
    Ipc(UnixListener, #[expect(dead_code, reason = "held to be dropped")] SocketFile),
}

impl Door {
    /// Binds the endpoint, in a runtime.
    pub(crate) async fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address).await?;
                Ok(Self { endpoint: Endpoint::Tcp(listener.local_addr()?), listener: Listener::Tcp(listener) })
            }
            Endpoint::Ipc(path) => {
                remove_stale(path).await?;
                let listener = Listener::Ipc(UnixListener::bind(path)?, SocketFile(path.clone()));
                Ok(Self { endpoint: endpoint.clone(), listener })
            }
        }
    }

    /// Where it is, with the port that the system gave.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Serves every reader who comes until `closing` is ready, then waits for those who are there.
    pub(crate) async fn keep<Served>(
        self,
        counters: Arc<Counters>,
        serve: impl Fn(Box<dyn Stream>) -> Served,
        closing: impl Future<Output = ()>,
    ) where
        Served: Future<Output = Result<(), Fault>> + Send + 'static,
    {
        let Self { endpoint, listener } = self;
        let mut readers = JoinSet::new();
        tokio::pin!(closing);
        loop {
            tokio::select! {
                () = &mut closing => break,
                Some(ended) = readers.join_next() => leave(&endpoint, &counters, ended.expect(NO_PANIC)),
                accepted = listener.accept() => match accepted {
                    Ok(_) if readers.len() >= CONNECTIONS_MAX => count(&counters.refused),
                    Ok(stream) => {
                        counters.connections.fetch_add(1, Relaxed);
                        readers.spawn(serve(stream));
                    }
                    Err(error) => {
                        tracing::warn!(%endpoint, %error, "no reader could be let in");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        while let Some(ended) = readers.join_next().await {
            leave(&endpoint, &counters, ended.expect(NO_PANIC));
        }
    }
}

const NO_PANIC: &str = "a reader's task neither panics nor is aborted before this one";

/// A process that was killed leaves its socket file, and binding it anew fails. It goes if it is a socket that nobody
/// listens on.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// A socket's file, removed with it.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "the socket file could not be removed");
        }
    }
}

fn leave(endpoint: &Endpoint, counters: &Counters, ended: Result<(), Fault>) {
    counters.connections.fetch_sub(1, Relaxed);
    match ended {
        Ok(()) | Err(Fault::Closed | Fault::Io(_)) => {}
        Err(fault) => {
            count(&counters.faults);
            tracing::debug!(%endpoint, %fault, "a connection was ended");
        }
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
                Ok(Box::new(stream))
            }
            Self::Ipc(listener, _) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

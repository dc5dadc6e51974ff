//! What can go wrong with a link: `LinkError` before it starts, `Trouble` in a worker's life.

use std::{fmt, io, path::PathBuf, time::Duration};

use pelton_frame::{FrameError, LayoutError, MemoryError};

/// Options that no link can be started with.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Not HOST:PORT.
    #[error("worker address `{0}` is not HOST:PORT")]
    Address(String),
    /// A token would travel readable by others.
    #[error(
        "worker `{0}` is on another host, and its token and all prompts would travel unencrypted: give its CA certificate"
    )]
    NotEncrypted(String),
    /// The token cannot stand in a header.
    #[error("the worker's token has characters that no HTTP header can carry; allowed: printable ASCII")]
    Token,
    /// The file that should hold CA certificates holds none.
    #[error("there is no certificate in PEM form to check worker `{0}` by")]
    NoCertificate(String),
    /// The certificate or the name cannot be used.
    #[error("TLS to worker `{address}`: {error}")]
    Tls {
        /// Which worker.
        address: String,
        /// Why.
        error: tonic::transport::Error,
    },
    /// No memory for these capacities.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No thread or no event loop.
    #[error("cannot start the supervisor: {0}")]
    System(#[from] io::Error),
}

/// Why one life of a worker ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("the wait `{wait}` has passed its deadline of {} s", allowed.as_secs_f32())]
    Deadline { wait: &'static str, allowed: Duration },
    #[error("the worker {0}")]
    Ended(Ending),
    #[error("{}", said(call, status))]
    Call { call: &'static str, status: tonic::Status },
    #[error("{call} failed: {error}")]
    System { call: &'static str, error: io::Error },
    #[error("cannot start {}: {error}", program.display())]
    Spawn { program: PathBuf, error: io::Error },
    #[error("cannot connect to the worker at {address}: {error}")]
    Connect { address: String, error: String },
    #[error("{0}")]
    Contract(String),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the worker refuses the memory: {0}")]
    Refused(String),
    #[error("the worker has closed its memory socket: it cannot go on, and its log says why")]
    HungUp,
    #[error("the stream of steps has ended")]
    StreamEnded,
    #[error("no step has moved for {} s with {in_flight} in flight", still.as_secs())]
    Stalled { still: Duration, in_flight: u32 },
    #[error("the worker has shown no sign of life for {} s", still.as_secs())]
    Silent { still: Duration },
    #[error("somebody has stopped the worker's process {} s ago", still.as_secs())]
    Stopped { still: Duration },
    #[error("it has planned a context of {planned} tokens, and another worker of {first}: it loads again, for {first}")]
    OtherContext { first: u32, planned: u32 },
    #[error("{0}")]
    Replaced(String),
}

impl Trouble {
    /// Whether the next try would end in the same way: what is wrong is the model, the versions or the machine.
    pub(crate) fn is_final(&self) -> bool {
        use tonic::Code::{
            FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unauthenticated, Unimplemented,
        };
        match self {
            Self::Contract(_) => true,
            Self::Spawn { error, .. } => {
                matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
            }
            Self::Call { status, .. } => matches!(
                status.code(),
                FailedPrecondition | InvalidArgument | NotFound | ResourceExhausted | Unauthenticated | Unimplemented
            ),
            _ => false,
        }
    }

    pub(crate) fn call(call: &'static str) -> impl Fn(tonic::Status) -> Self {
        move |status| Self::Call { call, status }
    }

    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::System { call, error: error.into() }
    }
}

/// A worker's refusal is written for whoever starts it, and stands alone; any other status is shown with the call that met it.
fn said(call: &str, status: &tonic::Status) -> String {
    match status.code() {
        tonic::Code::FailedPrecondition => status.message().to_owned(),
        code => format!(
            "the worker's call `{call}` failed: {} ({code:?}){}",
            status.message(),
            advice(call, status.message())
        ),
    }
}

/// What the first words to a worker elsewhere fail on, if one side alone speaks TLS.
fn advice(call: &str, said: &str) -> &'static str {
    match call {
        "Handshake" if said.contains("InvalidContentType") => "; it seems to speak no TLS, which `worker-ca` asks for",
        "Handshake" if said == "transport error" => {
            "; if it speaks TLS, `worker-ca` has to name its certificate authority"
        }
        _ => "",
    }
}

/// How a process ended, and what it said last.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) how: String,
    pub(crate) was_killed: bool, // by SIGKILL
    pub(crate) last_lines: Vec<String>,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.how)?;
        // The first line is whole by itself.
        if self.last_lines.is_empty() { Ok(()) } else { write!(f, "\nits last words:\n{}", self.last_lines.join("\n")) }
    }
}

/// Waits for `work`, but not longer than `allowed`. Every wait of a link goes through here and has a name.
pub(crate) async fn within<T>(
    wait: &'static str,
    allowed: Duration,
    work: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    tokio::time::timeout(allowed, work).await.unwrap_or(Err(Trouble::Deadline { wait, allowed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_shown_in_the_workers_own_words_and_a_fault_with_its_call() {
        let trouble = |status| Trouble::call("Load")(status).to_string();
        assert_eq!(trouble(tonic::Status::failed_precondition("/m has no config.json")), "/m has no config.json");
        assert_eq!(
            trouble(tonic::Status::internal("KeyError: x")),
            "the worker's call `Load` failed: KeyError: x (Internal)"
        );
    }
}

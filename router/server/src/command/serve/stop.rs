//! SIGTERM and SIGINT.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::command::Trouble;

/// The two signals by which people and orchestrators end a server.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// From now on neither signal kills the process.
    pub(crate) fn listen() -> Result<Self, Trouble> {
        let on = |kind| signal(kind).map_err(|error| Trouble::Failed(format!("cannot listen for signals: {error}")));
        Ok(Self { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
    }

    /// Resolves at the next signal.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

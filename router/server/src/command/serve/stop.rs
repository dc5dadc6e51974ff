//! SIGTERM and SIGINT.

use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::command::Trouble;

/// The two signals by which people and orchestrators end a server.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
    first: Option<Instant>,
}

/// A signal this soon after another is the same wish, told twice: wrappers send it to the process and to its group.
const SAME_WISH: Duration = Duration::from_millis(500);

impl Stop {
    /// From now on neither signal kills the process.
    pub(crate) fn listen() -> Result<Self, Trouble> {
        let on = |kind| signal(kind).map_err(|error| Trouble::Failed(format!("cannot listen for signals: {error}")));
        Ok(Self { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())?, first: None })
    }

    /// Resolves at the next signal.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        self.first.get_or_insert_with(Instant::now);
    }

    /// Resolves when somebody insists.
    pub(crate) async fn asked_again(&mut self) {
        loop {
            self.asked().await;
            if self.first.is_some_and(|first| first.elapsed() > SAME_WISH) {
                return;
            }
        }
    }
}

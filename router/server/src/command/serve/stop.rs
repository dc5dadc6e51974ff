//! SIGTERM, SIGINT and SIGHUP.

use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::command::Trouble;

/// The signals by which people, orchestrators and terminals that are closed end a server.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
    /// None: somebody (`nohup`) has the server live on without its terminal.
    hangup: Option<Signal>,
    first: Option<Instant>,
}

/// A signal this soon after another is the same wish, told twice: wrappers send it to the process and to its group.
const SAME_WISH: Duration = Duration::from_millis(500);

impl Stop {
    /// From now on none of them kills the process.
    pub(crate) fn listen() -> Result<Self, Trouble> {
        let on = |kind| signal(kind).map_err(|error| Trouble::Failed(format!("cannot listen for signals: {error}")));
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: if ignores_hangup() { None } else { Some(on(SignalKind::hangup())?) },
            first: None,
        })
    }

    /// Resolves at the next signal.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            Some(()) = async { self.hangup.as_mut()?.recv().await } => {}
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

/// Whether this process was started to live on without its terminal.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

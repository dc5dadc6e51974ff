//! The engine's handle to a supervisor, and how one is started.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
    thread::{Builder, JoinHandle},
    time::Duration,
};

use crossbeam_channel::Receiver;
use pelton_frame::Layout;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::{LinkError, LinkEvent, LinkOptions, client, supervisor::Supervisor};

/// What the supervisor is told.
pub(crate) enum Command {
    Replace(String),
    Shutdown(Duration),
}

/// A running supervisor. Dropping it kills its worker.
pub struct LinkHandle {
    commands: UnboundedSender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Starts a supervisor and returns at once; its worker starts and loads behind it.
pub fn start(options: LinkOptions) -> Result<(LinkHandle, Receiver<LinkEvent>), LinkError> {
    let layout = Layout::new(options.capacities)?;
    let route = client::Route::new(&options.spec)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (commands, inbox) = unbounded_channel();
    let (events, outbox) = crossbeam_channel::unbounded();
    let (bell, last_word) = (options.bell.clone(), events.clone());
    let supervisor = Supervisor::new(options, route, layout, events, inbox);
    // This thread forks the worker and lives as long as it: parent-death signals follow the thread, not the process.
    let thread = Builder::new().name("pelton-link".to_owned()).spawn(move || {
        let run = AssertUnwindSafe(|| runtime.block_on(supervisor.run())); // whatever it leaves is dropped unseen
        if catch_unwind(run).is_err() {
            let reason = "the supervisor has met a bug of ours; see the log".to_owned();
            let _ = last_word.send(LinkEvent::GaveUp { reason }); // an engine that has gone wants to know nothing
            bell.ring();
        }
    })?;
    Ok((LinkHandle { commands, thread: Mutex::new(Some(thread)) }, outbox))
}

impl LinkHandle {
    /// Ends this life of the worker and starts the next: the engine found a stall or garbage. `LinkEvent::Lost` follows.
    /// Means nothing while no worker is attached.
    pub fn replace(&self, reason: String) {
        self.tell(Command::Replace(reason));
    }

    /// Ends the worker and waits until no process is left. It may finish its steps and end by itself within `deadline`;
    /// then it is killed. A worker that others started is let go and lives on.
    pub fn shutdown(&self, deadline: Duration) {
        self.tell(Command::Shutdown(deadline));
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.join().expect("the thread catches its panics");
        }
    }

    fn tell(&self, command: Command) {
        // A supervisor that has ended has given up before, and has told so.
        let _ = self.commands.send(command);
    }
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

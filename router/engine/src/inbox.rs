//! How other threads reach the engine thread: a queue and the bell that wakes it.

use std::sync::Arc;

use crossbeam_channel::Sender;
use pelton_core::RequestId;
use pelton_frame::Bell;
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use crate::{Output, Submission, queue::Place};

/// What the engine thread is told.
pub(crate) enum Command {
    /// A new request, its place in the queue, and where its outputs go.
    Submit(RequestId, Box<Submission>, Place, UnboundedSender<Output>),
    /// The client has left.
    Abort(RequestId),
    /// What the request went through is to be told, before it is finished from outside.
    Explain(RequestId),
    /// The text has reached a stop string.
    Finish(RequestId),
    /// No new requests will come. Told when none is left.
    Drain(oneshot::Sender<()>),
    /// Ends every request that is left, then the workers, then the thread.
    Shutdown,
    /// An assertion fires.
    #[cfg(feature = "plant-faults")]
    PlantBug,
}

/// A cloneable door to the engine thread. Never blocks: the queue is bounded by the engine's own limit on requests.
#[derive(Clone)]
pub(crate) struct Inbox {
    commands: Sender<Command>,
    bell: Arc<Bell>,
}

impl Inbox {
    pub(crate) fn new(commands: Sender<Command>, bell: Arc<Bell>) -> Self {
        Self { commands, bell }
    }

    /// Sends and wakes. After the engine's end this does nothing: every answer has been told of the end.
    pub(crate) fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.bell.ring();
        }
    }
}

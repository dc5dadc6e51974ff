//! The publisher: a queue in front, one thread behind it that encodes and serves the sockets.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::counts::{Counters, count};
use crate::door::Door;
use crate::history::{History, ended};
use crate::zmtp::{FrameKind, put_frame};
use crate::{Batch, Counts, Encoding, Endpoint, publish_socket, replay_socket, wire};

/// How long the end waits for subscribers to take what was published.
const LINGER: Duration = Duration::from_secs(1);

/// Where and how to publish.
#[derive(Debug, Clone)]
pub struct PublisherOptions {
    /// Of the PUB socket, which binds. Tokens of prompts leave the process here: bind where only their readers can connect.
    pub endpoint: Endpoint,
    /// Of the ROUTER socket, which binds. None: no replay.
    pub replay_endpoint: Option<Endpoint>,
    /// First frame of every message; readers subscribe to a prefix of it.
    pub topic: String,
    /// How events are written.
    pub encoding: Encoding,
    /// Batches kept, for replay and for subscribers that fall behind. At least one is.
    pub buffer_steps: usize,
    /// Bytes that they may take together; the newest is kept whatever its size.
    pub buffer_bytes_max: usize,
    /// Batches that may wait for the publisher's thread; at least one.
    pub queue_max: usize,
    /// Told with every batch. None: nil on the wire.
    pub data_parallel_rank: Option<u32>,
}

impl PublisherOptions {
    /// vLLM's buffer, an empty topic, no replay.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            replay_endpoint: None,
            topic: String::new(),
            encoding: Encoding::Map,
            buffer_steps: 10_000,
            buffer_bytes_max: 256 << 20, // 10,000 steps of 8192 new tokens would be 10,000 × 40 KiB = 400 MiB
            queue_max: 1024,             // 1024 × 8192 tokens × 4 bytes = 32 MiB
            data_parallel_rank: None,
        }
    }
}

/// Why there is no publisher.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The endpoint is taken or not ours.
    #[error("KV events cannot be published at {endpoint}: {source}")]
    Endpoint {
        /// Which.
        endpoint: Endpoint,
        /// What the system says.
        source: io::Error,
    },
    /// The system gave no thread, or no runtime for it.
    #[error("KV events have no thread: {0}")]
    Thread(io::Error),
}

/// What became of a batch. Its sequence is spent either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// It is on its way under this sequence.
    Queued(u64),
    /// The queue was full: readers will see that this sequence is missing, and no replay has it.
    Dropped(u64),
}

/// Publishes KV events. Dropping it ends it: what is queued is still sent, as far as subscribers take it within a second.
#[derive(Debug)]
pub struct Publisher {
    queue: Mutex<Queue>,
    endpoint: Endpoint,
    replay_endpoint: Option<Endpoint>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

/// Sequence and queue, under one lock, so that batches are queued in the order of their sequences.
#[derive(Debug)]
struct Queue {
    next: u64,
    sender: Option<mpsc::Sender<Numbered>>, // taken at the end
}

#[derive(Debug)]
struct Numbered {
    sequence: u64,
    batch: Batch,
}

impl Publisher {
    /// Binds the sockets and starts. Readers can connect as soon as this returns.
    pub fn bind(options: PublisherOptions) -> Result<Self, BindError> {
        let (sender, queue) = mpsc::channel(options.queue_max.max(1));
        let counters = Arc::new(Counters::default());
        let counted = counters.clone();
        // The thread binds, so that nothing of its runtime is ever dropped in the runtime of a caller, which would panic.
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("kv-events".into())
            .spawn(move || run(options, queue, &counted, |bound| tell.send(bound).expect("bind() waits for it")))
            .map_err(BindError::Thread)?;
        let (endpoint, replay_endpoint) = told.recv().expect("the thread tells what it bound before all else")?;
        let queue = Mutex::new(Queue { next: 0, sender: Some(sender) });
        Ok(Self { queue, endpoint, replay_endpoint, counters, thread: Some(thread) })
    }

    /// Publishes a batch under the next sequence; the first has 0. Never waits for a reader or the network.
    ///
    /// The first batch of a process should be `Cleared`: readers may still believe in blocks of the one before. So should
    /// the one after a dropped batch, with what is stored behind it, where a reader's false belief matters.
    ///
    /// # Panics
    /// When a stored event's blocks are not full or its extra keys are not one list per block.
    pub fn publish(&self, batch: Batch) -> Published {
        batch.assert_whole();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = queue.next;
        queue.next += 1;
        count(&self.counters.published);
        let sender = queue.sender.as_ref().expect("taken at the end only");
        if sender.try_send(Numbered { sequence, batch }).is_ok() {
            return Published::Queued(sequence);
        }
        count(&self.counters.dropped);
        Published::Dropped(sequence)
    }

    /// Where the PUB socket is bound, with the port that the system gave.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where the ROUTER socket is bound.
    pub fn replay_endpoint(&self) -> Option<&Endpoint> {
        self.replay_endpoint.as_ref()
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = queue.sender.as_ref().expect("taken at the end only");
        self.counters.read((sender.max_capacity() - sender.capacity()) as u64)
    }

    /// Ends it, as dropping does, and tells the last counts.
    pub fn close(mut self) -> Counts {
        self.end();
        self.counters.read(0)
    }

    fn end(&mut self) {
        self.queue.get_mut().unwrap_or_else(PoisonError::into_inner).sender = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that publishes KV events panicked");
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.end();
    }
}

/// The endpoints as they are bound: PUB, ROUTER.
type Bound = (Endpoint, Option<Endpoint>);

/// The thread: binds and tells, then moves batches from the queue into the history until the queue ends. Then the history
/// ends too, which ends its readers.
fn run(
    options: PublisherOptions,
    mut queue: mpsc::Receiver<Numbered>,
    counters: &Arc<Counters>,
    tell: impl FnOnce(Result<Bound, BindError>),
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tell(Err(BindError::Thread(error))),
    };
    runtime.block_on(async {
        let (publish, replay) = match doors(&options).await {
            Ok(doors) => doors,
            Err(error) => return tell(Err(error)),
        };
        tell(Ok((publish.endpoint().clone(), replay.as_ref().map(|door| door.endpoint().clone()))));
        let topic: Arc<str> = options.topic.into();
        let (history, reader) = watch::channel(History::new(options.buffer_steps, options.buffer_bytes_max));
        let publishing = tokio::spawn(keep_publishing(publish, topic.clone(), reader.clone(), counters.clone()));
        let replaying = replay.map(|door| tokio::spawn(keep_replaying(door, reader, counters.clone())));
        while let Some(Numbered { sequence, batch }) = queue.recv().await {
            let payload = wire::encode(&batch, options.data_parallel_rank, options.encoding);
            let message = frames(&topic, sequence, &payload);
            history.send_modify(|history| history.append(sequence, message));
            counters.kept.store(history.borrow().len() as u64, Relaxed);
            counters.kept_bytes.store(history.borrow().bytes() as u64, Relaxed);
        }
        drop(history);
        let everybody = async {
            publishing.await.expect(NO_PANIC);
            if let Some(replaying) = replaying {
                replaying.await.expect(NO_PANIC);
            }
        };
        if timeout(LINGER, everybody).await.is_err() {
            tracing::warn!("a reader of KV events did not take the last ones in time");
        }
    });
}

const NO_PANIC: &str = "the task of a socket neither panics nor is aborted";

async fn doors(options: &PublisherOptions) -> Result<(Door, Option<Door>), BindError> {
    let publish = door(&options.endpoint).await?;
    let replay = match &options.replay_endpoint {
        Some(endpoint) => Some(door(endpoint).await?),
        None => None,
    };
    Ok((publish, replay))
}

async fn door(endpoint: &Endpoint) -> Result<Door, BindError> {
    Door::bind(endpoint).await.map_err(|source| BindError::Endpoint { endpoint: endpoint.clone(), source })
}

async fn keep_publishing(door: Door, topic: Arc<str>, history: watch::Receiver<History>, counters: Arc<Counters>) {
    let mut closing = history.clone();
    let counted = counters.clone();
    let serve = move |stream| publish_socket::serve(stream, topic.clone(), history.clone(), counters.clone());
    door.keep(counted, serve, ended(&mut closing)).await;
}

async fn keep_replaying(door: Door, history: watch::Receiver<History>, counters: Arc<Counters>) {
    let mut closing = history.clone();
    let counted = counters.clone();
    let serve = move |stream| replay_socket::serve(stream, history.clone(), counters.clone());
    door.keep(counted, serve, ended(&mut closing)).await;
}

/// The message of a batch: topic, sequence, payload.
fn frames(topic: &str, sequence: u64, payload: &[u8]) -> Bytes {
    let mut frames = BytesMut::with_capacity(9 + topic.len() + 10 + 9 + payload.len());
    put_frame(&mut frames, FrameKind::Part, topic.as_bytes());
    put_frame(&mut frames, FrameKind::Part, &sequence.to_be_bytes());
    frames.reserve(9 + payload.len());
    put_frame(&mut frames, FrameKind::Last, payload);
    frames.freeze()
}

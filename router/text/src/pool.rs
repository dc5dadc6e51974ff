//! A few threads for work that would hold up an event loop: long tokenisation, rendering of long chats.
//!
//! Bounded: beyond `queue` jobs that wait, a job is refused instead of kept. A job that panics fails alone; its thread
//! and its caller go on. A job whose caller has gone is not begun.

use std::any::Any;
use std::future::Future;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::{Receiver, Sender, TrySendError};
use futures::channel::oneshot;

/// Why a job gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// Too much is waiting; try again later.
    #[error("{queue} texts are waiting to be processed already; try again later")]
    Full {
        /// The bound.
        queue: usize,
    },
    /// The job panicked: our fault.
    #[error("text processing failed: {0}")]
    Panicked(String),
}

/// The threads, which end when the last clone is dropped and the queue is empty.
#[derive(Debug, Clone)]
pub struct Pool {
    jobs: Sender<Job>,
    queue: usize,
}

type Job = Box<dyn FnOnce() + Send>;

impl Pool {
    /// Starts `threads`; at most `queue` jobs wait for them.
    pub fn new(threads: NonZeroUsize, queue: usize) -> std::io::Result<Self> {
        let (jobs, waiting) = crossbeam_channel::bounded(queue);
        for number in 0..threads.get() {
            let waiting: Receiver<Job> = waiting.clone();
            let thread = std::thread::Builder::new().name(format!("pelton-text-{number}"));
            thread.spawn(move || waiting.into_iter().for_each(|job| job()))?;
        }
        Ok(Self { jobs, queue })
    }

    /// Runs `job` on one of the threads. Dropping the future drops a job that has not begun.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, PoolError>> + Send + 'static {
        let (sender, result) = oneshot::channel();
        let job = Box::new(move || {
            if !sender.is_canceled() {
                // The caller may go while the job runs; then nobody wants the result.
                drop(sender.send(caught(job)));
            }
        });
        let queue = self.queue;
        let accepted = match self.jobs.try_send(job) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(PoolError::Full { queue }),
            Err(TrySendError::Disconnected(_)) => Err(PoolError::Panicked("no thread is left".into())),
        };
        async move {
            accepted?;
            result.await.unwrap_or_else(|_| Err(PoolError::Panicked("the job was lost".into())))
        }
    }

    /// Runs `job` here and now if it is about a text of fewer bytes than `inline_bytes`, else as `run` does.
    pub async fn run_sized<T: Send + 'static>(
        &self,
        bytes: usize,
        inline_bytes: usize,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        if bytes < inline_bytes { caught(job) } else { self.run(job).await }
    }
}

fn caught<T>(job: impl FnOnce() -> T) -> Result<T, PoolError> {
    // Unwind safe: the job owns all that it touches, and what it leaves behind is dropped here.
    catch_unwind(AssertUnwindSafe(job)).map_err(|panic| PoolError::Panicked(message(panic.as_ref())))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn block_on<T>(result: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers").block_on(result)
    }

    fn pool(threads: usize, queue: usize) -> Pool {
        Pool::new(NonZeroUsize::new(threads).expect("tests use at least one"), queue).expect("threads can be started")
    }

    #[test]
    fn results_come_back_from_many_threads() {
        let pool = pool(3, 100);
        let results: Vec<_> = (0..100).map(|number| pool.run(move || number * 2)).collect();
        for (number, result) in results.into_iter().enumerate() {
            assert_eq!(block_on(result), Ok(number * 2));
        }
    }

    #[test]
    fn a_panic_fails_its_own_job_and_nothing_else() {
        let pool = pool(1, 8);
        for round in 0..3 {
            let failed = block_on(pool.run(move || -> u32 { panic!("round {round}") }));
            assert_eq!(failed, Err(PoolError::Panicked(format!("round {round}"))));
            assert_eq!(
                block_on(pool.run_sized(0, 1, || -> u32 { panic!("inline") })),
                Err(PoolError::Panicked("inline".into()))
            );
            assert_eq!(block_on(pool.run(|| 7)), Ok(7), "the only thread must have lived on");
        }
    }

    #[test]
    fn beyond_the_bound_a_job_is_refused_at_once() {
        let pool = pool(1, 2);
        let (begun, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let running = pool.run(move || {
            begun.send(()).expect("the test waits for this");
            may_go_on.recv().expect("the test sends this");
        });
        has_begun.recv().expect("the job begins");
        let waiting = [(); 2].map(|()| pool.run(|| ()));
        assert_eq!(block_on(pool.run(|| ())), Err(PoolError::Full { queue: 2 }));
        assert_eq!(block_on(pool.run_sized(9, 10, || 5)), Ok(5), "a short text needs no thread");
        assert_eq!(block_on(pool.run_sized(10, 10, || 5)), Err(PoolError::Full { queue: 2 }));
        go_on.send(()).expect("the job waits for this");
        assert_eq!(block_on(running), Ok(()));
        for job in waiting {
            assert_eq!(block_on(job), Ok(()));
        }
    }

    #[test]
    fn a_job_whose_caller_has_gone_is_not_begun() {
        let pool = pool(1, 4);
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let running = pool.run(move || may_go_on.recv().expect("the test sends this"));
        let (begun, has_begun) = mpsc::channel();
        drop(pool.run(move || begun.send(())));
        go_on.send(()).expect("the job waits for this");
        block_on(running).expect("the first job ends well");
        block_on(pool.run(|| ())).expect("the job after the dropped one ends well");
        assert_eq!(has_begun.recv(), Err(mpsc::RecvError), "the dropped job went with its sender");
    }

    #[test]
    fn threads_end_with_the_pool() {
        let pool = pool(2, 4);
        let (sender, all_gone) = mpsc::channel::<()>();
        let (first, second) = (sender.clone(), sender);
        block_on(pool.run(move || drop(first))).expect("runs");
        let last = pool.run(move || drop(second));
        drop(pool);
        assert_eq!(block_on(last), Ok(()), "what was accepted is still done");
        assert_eq!(all_gone.recv(), Err(mpsc::RecvError));
    }
}

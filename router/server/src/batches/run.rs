//! The life of batches: each is checked, run and ended by a task of its own.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    Batches, RUNNING_OF_TENANT,
    answer::Unanswered,
    batch::{Batch, Status},
    lines::Form,
    outputs::Outputs,
    usage::Usage,
    work::{Ended, Work},
};
use crate::{
    api::batches::{ENDPOINTS, LineError},
    files::{FileError, now_us},
    http::InnerDoor,
};

/// How often files are looked at that may be too old.
const SWEEP: Duration = Duration::from_secs(600);

impl Batches {
    /// Runs batches until `stop`, and then until none is under way: what runs comes to its end or to the engine's.
    pub(crate) async fn run(self: Arc<Self>, door: InnerDoor, stop: CancellationToken) {
        let to_run = self.to_run.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let mut to_run = to_run.expect("batches are run once");
        let (door, mut running) = (Arc::new(door), JoinSet::new());
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(id) = to_run.recv() => {
                    running.spawn(Arc::clone(&self).one(id, Arc::clone(&door), stop.clone()));
                }
                Some(_) = running.join_next() => {} // a panic there has been reported there
                _ = sweep.tick() => self.files().sweep(),
            }
        }
        while running.join_next().await.is_some() {}
    }

    /// One batch from where it is to its end.
    async fn one(self: Arc<Self>, id: String, door: Arc<InnerDoor>, stop: CancellationToken) {
        let Some((batch, cancel)) = self.kept().get(&id).map(|entry| (entry.batch.clone(), entry.cancel.clone()))
        else {
            return;
        };
        if batch.status == Status::Cancelling {
            cancel.cancel(); // it was, before a restart
        }
        let turns = {
            let mut turns = self.turns.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            Arc::clone(turns.entry(batch.tenant).or_insert_with(|| Arc::new(Semaphore::new(RUNNING_OF_TENANT))))
        };
        let _turn = tokio::select! {
            turn = turns.acquire() => Some(turn.expect("never closed")),
            _ = cut(&batch, &cancel) => None, // its end needs no turn
            () = stop.cancelled() => return,
        };
        match self.go_on(&id, &door, &cancel, &stop).await {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, batch = id, "a batch failed");
                let message = match &error {
                    FileError::Disk(_) => "the server cannot read or write its files; its log says more".to_owned(),
                    other => other.to_string(),
                };
                let error = LineError::of_batch("file_error", message);
                self.end(&id, Status::Failed, |batch| batch.errors.push(error)).await;
            }
        }
    }

    async fn go_on(
        self: &Arc<Self>,
        id: &str,
        door: &Arc<InnerDoor>,
        cancel: &CancellationToken,
        stop: &CancellationToken,
    ) -> Result<(), FileError> {
        let batch = self.batch(id);
        let input = match self.files().read(&batch.input_file_id, batch.tenant) {
            Ok(input) => input,
            Err(FileError::Unknown { .. }) => {
                let error = LineError::of_batch("input_file_not_found", "the input file is not there any more");
                self.end(id, Status::Failed, |batch| batch.errors.push(error)).await;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let endpoint = ENDPOINTS.iter().copied().find(|endpoint| *endpoint == batch.endpoint);
        let form = Form { endpoint, body_bytes: door.body_bytes() };
        let mut work = Work::new(input.path(), form, batch.tenant);
        if batch.drafts.is_none() {
            match work.check().await? {
                Ok(total) => self.begin(id, total, door.model_name()).await,
                Err(errors) => {
                    self.end(id, Status::Failed, |batch| batch.errors = errors).await;
                    return Ok(());
                }
            }
        }
        let batch = self.batch(id);
        let mut outputs = Outputs::open(self, &batch).await?;
        let paths = outputs.drafts().map(crate::files::Draft::path);
        let [completed, failed] = work.resume(paths.each_ref().map(std::path::PathBuf::as_path)).await?;
        let usage = if completed == 0 { None } else { Some(usage_of(paths[0].clone()).await?) };
        self.change(id, |batch| {
            (batch.counts.completed, batch.counts.failed) = (completed, failed);
            batch.usage = usage;
        });

        let status = match self.work(&batch, &mut work, &mut outputs, (door, cancel, stop)).await {
            Ok(Some(status)) => status,
            Ok(None) => {
                outputs.leave();
                return Ok(());
            }
            // What was written until now is a file all the same.
            Err(error) => {
                self.keep(id, outputs).await?;
                return Err(error);
            }
        };
        self.turn(id, Status::Finalizing).await;
        self.keep(id, outputs).await?;
        self.end(id, status, |_| ()).await;
        Ok(())
    }

    /// Every request gets its line. `None`: not all of them, as the server ends.
    async fn work(
        &self,
        batch: &Batch,
        work: &mut Work,
        outputs: &mut Outputs,
        (door, cancel, stop): (&Arc<InnerDoor>, &CancellationToken, &CancellationToken),
    ) -> Result<Option<Status>, FileError> {
        let (why, status) = match work.answer(door, outputs, stop, cut(batch, cancel)).await? {
            Ended::Stopped => return Ok(None),
            Ended::Cut if cancel.is_cancelled() => (Unanswered::CANCELLED, Status::Cancelled),
            Ended::Cut => (Unanswered::EXPIRED, Status::Expired),
            Ended::Whole => (Unanswered::LOST, Status::Completed),
        };
        let left = work.refuse(outputs, &why).await?;
        if left > 0 && status == Status::Completed {
            tracing::error!(batch = batch.id, requests = left, "requests of a batch were lost");
        }
        Ok(Some(status))
    }

    /// All lines are requests: from now on there are outputs.
    async fn begin(&self, id: &str, total: u64, model: &str) {
        let draft = || format!("file-{}", uuid::Uuid::new_v4().simple());
        self.change(id, |batch| {
            batch.counts.total = total;
            batch.model = Some(model.to_owned());
            batch.drafts = Some((draft(), draft()));
        });
        self.turn(id, Status::InProgress).await;
    }

    /// Makes files of the outputs.
    async fn keep(&self, id: &str, outputs: Outputs) -> Result<(), FileError> {
        let [answers, errors] = outputs.keep(&self.batch(id)).await?;
        self.change(id, |batch| (batch.output_file_id, batch.error_file_id) = (answers, errors));
        Ok(())
    }

    async fn turn(&self, id: &str, status: Status) {
        let batch = self.change(id, |batch| {
            batch.turn(status, now_us() / 1_000_000);
            batch.clone()
        });
        self.save_or_warn(&batch).await;
    }

    /// The last status. One that was cancelled at the last moment has been cancelled.
    async fn end(&self, id: &str, status: Status, change: impl FnOnce(&mut Batch)) {
        let batch = self.change(id, |batch| {
            let is_cancelled = batch.status == Status::Cancelling && status == Status::Completed;
            change(batch);
            batch.turn(if is_cancelled { Status::Cancelled } else { status }, now_us() / 1_000_000);
            batch.clone()
        });
        self.save_or_warn(&batch).await;
        let (total, failed) = (batch.counts.total, batch.counts.failed);
        tracing::info!(batch = id, status = batch.status.word(), requests = total, failed, "a batch has ended");
    }

    /// Changes a batch that is run, which nobody forgets meanwhile.
    pub(super) fn change<T>(&self, id: &str, change: impl FnOnce(&mut Batch) -> T) -> T {
        change(&mut self.kept().get_mut(id).expect("only what has ended is forgotten").batch)
    }

    fn batch(&self, id: &str) -> Batch {
        self.change(id, |batch| batch.clone())
    }
}

/// What the answers took that an earlier server has written.
async fn usage_of(answers: PathBuf) -> io::Result<Usage> {
    tokio::task::spawn_blocking(move || Usage::of_output(&answers)).await.expect("reading does not panic")
}

/// Resolves when the batch is to end, whatever is left of it: it was cancelled, or its window is over.
async fn cut(batch: &Batch, cancel: &CancellationToken) {
    let left_us = (batch.expires_at * 1_000_000).saturating_sub(now_us());
    // Nothing is left to do with whether it was one or the other: the token tells.
    _ = tokio::time::timeout(Duration::from_micros(left_us), cancel.cancelled()).await;
}

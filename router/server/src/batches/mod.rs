//! Batches: files of requests that are answered when there is room, and files of their answers.
//!
//! In: a file of requests (`files`) and what is to be done with it. Out: files of answers and of errors. Each request goes through the door
//! that clients' requests go through (`http::inner`). `batches/ID.json` in the folder of files holds a batch's state as of its latest
//! status; how far it is within that status, its outputs tell. So a server that is killed goes on where its outputs end.
//! Never here: what a request means, HTTP.

mod answer;
mod batch;
mod lines;
mod outputs;
mod run;
mod usage;
mod work;

use std::{
    collections::{HashMap, HashSet},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use self::batch::Status;
pub(crate) use self::{
    answer::{Sink, Unanswered, answered, unanswered},
    batch::{Batch, BatchObject},
    lines::Form,
    work::{Ended, Work},
};
use crate::{
    api::batches::BatchRequest,
    error::{ApiError, shortened},
    files::{FileLimits, Files, LIFETIME_S, Place, names, now_us, read_json, remove, write_json},
};

/// Batches of a key that are kept, those that have ended among them: then the oldest of these are forgotten. Each takes some
/// kilobytes.
const OF_TENANT_MAX: usize = 1000;
/// Batches of a key that run at once; others wait for their turn. Each has three files open and a thread that reads.
const RUNNING_OF_TENANT: usize = 4;

/// All batches, and the files that they read and write.
#[derive(Debug)]
pub(crate) struct Batches {
    files: Arc<Files>,
    folder: PathBuf,
    /// Given back at the end.
    place: Mutex<Option<Place>>,
    kept: Mutex<HashMap<String, Entry>>,
    /// Who waits for a turn, by tenant.
    turns: Mutex<HashMap<u64, Arc<Semaphore>>>,
    /// Ids of batches that are to be run.
    waiting: mpsc::UnboundedSender<String>,
    /// Taken by `run`.
    to_run: Mutex<Option<mpsc::UnboundedReceiver<String>>>,
    /// Makes a tenant of a key: the same as long as the folder is there.
    pub(crate) secret: [u8; 16],
}

#[derive(Debug)]
struct Entry {
    batch: Batch,
    cancel: CancellationToken,
}

impl Batches {
    /// What lies at `place`. Batches that have not ended go on once somebody calls `run`.
    pub(crate) fn open(place: Place, limits: FileLimits) -> io::Result<Arc<Self>> {
        let folder = place.batches();
        let mut batches = Vec::new();
        for name in names(&folder)? {
            let path = folder.join(&name);
            match name.strip_suffix(".json").and_then(|id| read_json::<Batch>(&path).filter(|batch| batch.id == id)) {
                Some(batch) if !is_over(&batch) => batches.push(batch),
                _ => remove(&path)?,
            }
        }
        batches.sort_by_key(|batch| batch.created_us);
        let unfinished = || batches.iter().filter(|batch| !batch.status.is_final());
        let drafts: HashSet<String> = unfinished()
            .filter_map(|batch| batch.drafts.clone())
            .flat_map(|(output, errors)| [output, errors])
            .collect();
        let files = Files::open(&place, limits, &drafts)?;
        let (waiting, to_run) = mpsc::unbounded_channel();
        for batch in unfinished() {
            _ = waiting.send(batch.id.clone()); // its receiver is here
        }
        let entry = |batch: Batch| (batch.id.clone(), Entry { batch, cancel: CancellationToken::new() });
        Ok(Arc::new(Self {
            files,
            folder,
            secret: place.secret(),
            place: Mutex::new(Some(place)),
            kept: Mutex::new(batches.into_iter().map(entry).collect()),
            turns: Mutex::default(),
            waiting,
            to_run: Mutex::new(Some(to_run)),
        }))
    }

    pub(crate) fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// A new batch of a tenant's.
    pub(crate) async fn create(self: &Arc<Self>, asked: BatchRequest, tenant: u64) -> Result<Batch, ApiError> {
        self.files.get(&asked.input_file_id, tenant).map_err(|_| {
            let got = format!("\"{}\"", shortened(&asked.input_file_id));
            ApiError::invalid("input_file_id", got, "the `id` of a file that is kept for this key")
        })?;
        self.make_room(tenant)?;
        let id = format!("batch_{}", uuid::Uuid::new_v4().simple());
        let batch = Batch::new(id.clone(), tenant, asked, now_us());
        let entry = Entry { batch: batch.clone(), cancel: CancellationToken::new() };
        self.kept().insert(id.clone(), entry);
        if let Err(error) = self.save(&batch).await {
            self.kept().remove(&id);
            return Err(ApiError::Internal { log: format!("a batch cannot be written: {error}") });
        }
        // Nobody takes it once the server ends: then it goes on with the next one.
        _ = self.waiting.send(id);
        Ok(batch)
    }

    /// A tenant's batch.
    pub(crate) fn get(&self, id: &str, tenant: u64) -> Result<Batch, ApiError> {
        let kept = self.kept();
        let entry = kept.get(id).filter(|entry| entry.batch.tenant == tenant);
        entry.map(|entry| entry.batch.clone()).ok_or_else(|| unknown(id))
    }

    /// All of a tenant's batches, the oldest first.
    pub(crate) fn list(&self, tenant: u64) -> Vec<Batch> {
        let kept = self.kept();
        let mut batches: Vec<Batch> =
            kept.values().filter(|entry| entry.batch.tenant == tenant).map(|entry| entry.batch.clone()).collect();
        batches.sort_by(|one, other| (one.created_us, &one.id).cmp(&(other.created_us, &other.id)));
        batches
    }

    /// Ends a tenant's batch: no request of it is begun any more, and those under way are given up.
    pub(crate) async fn cancel(&self, id: &str, tenant: u64) -> Result<Batch, ApiError> {
        let batch = {
            let mut kept = self.kept();
            let entry = kept.get_mut(id).filter(|entry| entry.batch.tenant == tenant).ok_or_else(|| unknown(id))?;
            if entry.batch.status.is_final() {
                let reason = format!("names a batch that is {} already", entry.batch.status.word());
                return Err(ApiError::Conflict { param: "batch_id".to_owned(), reason });
            }
            if entry.batch.status != Status::Cancelling {
                entry.batch.turn(Status::Cancelling, now_us() / 1_000_000);
            }
            entry.cancel.cancel();
            entry.batch.clone()
        };
        self.save_or_warn(&batch).await;
        Ok(batch)
    }

    /// Room for one more batch of a tenant.
    fn make_room(&self, tenant: u64) -> Result<(), ApiError> {
        let mut kept = self.kept();
        let over: Vec<String> =
            kept.values().filter(|entry| is_over(&entry.batch)).map(|entry| entry.batch.id.clone()).collect();
        for id in over {
            self.forget(&mut kept, &id);
        }
        let count = kept.values().filter(|entry| entry.batch.tenant == tenant).count();
        if count < OF_TENANT_MAX {
            return Ok(());
        }
        let ended = kept.values().filter(|entry| entry.batch.tenant == tenant && entry.batch.status.is_final());
        let Some(id) = ended.min_by_key(|entry| entry.batch.created_us).map(|entry| entry.batch.id.clone()) else {
            let reason = format!("{OF_TENANT_MAX} batches of this key have not ended; wait for one, or cancel one");
            return Err(ApiError::NoRoom { reason });
        };
        self.forget(&mut kept, &id);
        Ok(())
    }

    fn forget(&self, kept: &mut HashMap<String, Entry>, id: &str) {
        kept.remove(id);
        if let Err(error) = remove(&self.folder.join(format!("{id}.json"))) {
            tracing::warn!(%error, batch = id, "what is known of a batch cannot be removed");
        }
    }

    async fn save(&self, batch: &Batch) -> io::Result<()> {
        let (path, batch) = (self.folder.join(format!("{}.json", batch.id)), batch.clone());
        tokio::task::spawn_blocking(move || write_json(&path, &batch)).await.expect("writing does not panic")
    }

    /// The same where nothing better can be done than to go on: what is lost is a status after a restart.
    async fn save_or_warn(&self, batch: &Batch) {
        if let Err(error) = self.save(batch).await {
            tracing::warn!(%error, batch = batch.id, "a batch's state cannot be written");
        }
    }

    /// Gives the folder back. What goes with the server is removed.
    pub(crate) fn close(&self) {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(place) = place else { return };
        let left = self.kept().values().filter(|entry| !entry.batch.status.is_final()).count();
        if left > 0 && place.is_kept() {
            tracing::info!(batches = left, "unfinished batches go on with the next start");
        } else if left > 0 {
            tracing::warn!(
                batches = left,
                "unfinished batches are lost; with `--files-dir FOLDER` they go on with the next start"
            );
        }
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // A panic under the lock is an assertion's, before anything is changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(id: &str) -> ApiError {
    ApiError::NotKept { what: "batch", id: shortened(id) }
}

/// As long as a file is kept.
fn is_over(batch: &Batch) -> bool {
    batch.status.is_final() && batch.created_us / 1_000_000 + 2 * LIFETIME_S <= now_us() / 1_000_000
}

#[cfg(test)]
mod tests;

//! The disk's thread: carries out the core's orders, so that the engine thread never waits for a disk.
//!
//! Reads go before writes, since a request waits for them. Orders of one place come one by one (the core's promise), so
//! their order is kept. A disk that fails is left alone for a minute; what it should have kept is computed again.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, select, unbounded};
use pelton_core::{BlockKey, DiskEntry, DiskFault, DiskOrder, DiskPlace, HostBlockId};
use pelton_frame::{Bell, HostMemory};
use pelton_kv_store::{Entry, Folder, Identity, ReadError, Record, Store, digest_of_model};
use pelton_link::ModelReport;

/// How long a disk that has failed to write is left alone.
const REST: Duration = Duration::from_secs(60);
/// How long the end waits for the thread, once nothing is to be finished any more.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Where blocks are kept on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// The folder; made if it is not there, and used by one server at a time.
    pub folder: PathBuf,
    /// What it may take in all.
    pub limit_bytes: u64,
}

/// The engine's handle to the thread.
pub(crate) struct Disk {
    /// Dropped to end the thread, once it has done what is there.
    senders: Option<Senders>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
    is_cut: Arc<AtomicBool>,
    /// Orders of an earlier core have another number, and their answers mean nothing.
    life: u32,
}

struct Senders {
    reads: Sender<Job>,
    others: Sender<Job>,
}

/// What the engine thread hears.
pub(crate) enum Answer {
    /// The folder was looked through. None: it cannot be used, and that was logged.
    Opened(Option<Opened>),
    /// An order was carried out, or could not be.
    Done { life: u32, place: DiskPlace, was_write: bool, result: Result<(), DiskFault> },
}

/// What there is on disk.
pub(crate) struct Opened {
    pub(crate) places: u32,
    pub(crate) entries: Vec<DiskEntry>,
}

enum Job {
    Open { numerics_id: String, block_size: u32, block_bytes: u64 },
    Order { life: u32, order: DiskOrder, memory: Arc<HostMemory> },
    Rest,
}

impl Disk {
    /// Starts the thread. It reads the model's files first, to know whose blocks are its own.
    pub(crate) fn start(folder: Folder, limit_bytes: u64, model: PathBuf, bell: Arc<Bell>) -> std::io::Result<Self> {
        let ((reads, read_jobs), (others, other_jobs)) = (unbounded(), unbounded());
        let (tell, answers) = unbounded();
        let is_cut = Arc::new(AtomicBool::new(false));
        let desk = Desk {
            tell,
            bell,
            is_cut: Arc::clone(&is_cut),
            store: None,
            scratch: Vec::new(),
            rests_until: None,
            complained: None,
        };
        let thread = thread::Builder::new().name("pelton-disk".to_owned()).spawn(move || {
            let (tell, bell) = (desk.tell.clone(), Arc::clone(&desk.bell));
            let run = || desk.run(folder, limit_bytes, &model, &read_jobs, &other_jobs);
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                // Orders are caught one by one: it was the folder, for which the engine waits.
                tracing::error!("an assertion failed on the thread of --kv-disk: the server goes on without it");
                let _ = tell.send(Answer::Opened(None));
                bell.ring();
            }
        })?;
        let senders = Some(Senders { reads, others });
        Ok(Self { senders, answers, thread: Some(thread), is_cut, life: 0 })
    }

    /// Has the folder looked through for blocks of the model that is loaded.
    pub(crate) fn open(&self, report: &ModelReport) {
        self.send_other(Job::Open {
            numerics_id: report.numerics_id.clone(),
            block_size: report.block_size,
            block_bytes: report.budget.kv_bytes_per_block,
        });
    }

    /// Takes an order. The core sees to it that few writes wait.
    pub(crate) fn order(&self, order: DiskOrder, memory: &Arc<HostMemory>) {
        let is_read = matches!(order, DiskOrder::Read { .. });
        let job = Job::Order { life: self.life, order, memory: Arc::clone(memory) };
        if is_read { self.send_read(job) } else { self.send_other(job) }
    }

    /// The next answer that means something.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        while let Ok(answer) = self.answers.try_recv() {
            if matches!(&answer, Answer::Done { life, .. } if *life != self.life) {
                continue;
            }
            return Some(answer);
        }
        None
    }

    /// There is a new core: what the one before has ordered is nobody's business any more.
    pub(crate) fn forget(&mut self) {
        self.life += 1;
    }

    /// Blocks are of other weights from now on than its folder's name says: every order fails, and what is there stays.
    pub(crate) fn rest(&self) {
        self.send_read(Job::Rest); // before whatever is to be written
    }

    /// Lets the thread finish what it was given, within `deadline`, and ends it.
    pub(crate) fn finish(&mut self, deadline: Duration) {
        self.senders = None;
        let until = Instant::now() + deadline;
        while self.answers.recv_deadline(until).is_ok() {} // ends with the thread, or in time
        self.is_cut.store(true, Relaxed);
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + ENDS_WITHIN;
        while !thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            let _ = thread.join(); // a panic there has been reported there
        } else {
            // It hangs in a call of the system, or reads a large model. A file of its own is whole or has no name.
            tracing::warn!("the thread of --kv-disk is left behind: it did not end within {ENDS_WITHIN:?}");
        }
    }

    fn send_read(&self, job: Job) {
        let _ = self.senders.as_ref().map(|senders| senders.reads.send(job));
    }

    fn send_other(&self, job: Job) {
        let _ = self.senders.as_ref().map(|senders| senders.others.send(job));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.finish(Duration::ZERO);
    }
}

/// The thread's own.
struct Desk {
    tell: Sender<Answer>,
    bell: Arc<Bell>,
    is_cut: Arc<AtomicBool>,
    store: Option<Store>,
    scratch: Vec<u8>,
    rests_until: Option<Instant>,
    complained: Option<Instant>, // of blocks that could not be read
}

impl Desk {
    fn run(mut self, folder: Folder, limit_bytes: u64, model: &Path, reads: &Receiver<Job>, others: &Receiver<Job>) {
        let model = digest_of_model(model)
            .inspect_err(|error| tracing::warn!("--kv-disk is not used: {}: {error}", model.display()));
        let mut folder = Some(folder);
        while let Some(job) = next(reads, others) {
            if self.is_cut.load(Relaxed) {
                return;
            }
            self.take(job, &mut folder, limit_bytes, model.as_ref().ok());
        }
    }

    fn take(&mut self, job: Job, folder: &mut Option<Folder>, limit_bytes: u64, model: Option<&[u8; 32]>) {
        match job {
            Job::Open { numerics_id, block_size, block_bytes } => {
                let identity = model.map(|&model| Identity { model, numerics_id, block_size, block_bytes });
                let opened = folder
                    .take()
                    .zip(identity)
                    .and_then(|(folder, identity)| self.open(folder, &identity, limit_bytes));
                self.answer(Answer::Opened(opened));
            }
            Job::Rest => self.store = None,
            Job::Order { life, order, memory } => {
                let awaited = match order {
                    DiskOrder::Write { place, .. } => Some((place, true)),
                    DiskOrder::Read { place, .. } => Some((place, false)),
                    DiskOrder::Erase { .. } => None,
                };
                let done = catch_unwind(AssertUnwindSafe(|| self.follow(order, &memory)));
                let result = done.unwrap_or_else(|_| {
                    // Whoever waits for this order is answered, and so is everybody after it.
                    tracing::error!("an assertion failed on the thread of --kv-disk: the server goes on without it");
                    self.store = None;
                    Err(DiskFault::Failed)
                });
                if let Some((place, was_write)) = awaited {
                    self.answer(Answer::Done { life, place, was_write, result });
                }
            }
        }
    }

    fn follow(&mut self, order: DiskOrder, memory: &HostMemory) -> Result<(), DiskFault> {
        match order {
            DiskOrder::Write { place, from, key, parent, tokens, salt } => {
                let parent = parent.map(|parent| parent.0);
                self.write(place, from, &Record { key: key.0, parent, tokens, salt }, memory)
            }
            DiskOrder::Read { place, to, key } => self.read(place, to, key, memory),
            DiskOrder::Erase { place } => {
                self.erase(place);
                Ok(())
            }
        }
    }

    fn open(&mut self, folder: Folder, identity: &Identity, limit_bytes: u64) -> Option<Opened> {
        let path = folder.path().display().to_string();
        match folder.open(identity, limit_bytes) {
            Ok((store, entries)) => {
                let places = store.places();
                tracing::info!("{path} holds {} of at most {places} KV blocks of this model", entries.len());
                if places == 0 {
                    tracing::warn!("--kv-disk-size is less than one block: nothing is kept in {path}");
                }
                self.store = Some(store);
                Some(Opened { places, entries: entries.into_iter().map(entry).collect() })
            }
            Err(error) => {
                tracing::warn!("--kv-disk {path} cannot be used, and the server goes on without it: {error}");
                None
            }
        }
    }

    /// A place that could not be written is empty: the block that was there was given up, and another start is not to find it.
    fn write(
        &mut self,
        place: DiskPlace,
        from: HostBlockId,
        record: &Record,
        memory: &HostMemory,
    ) -> Result<(), DiskFault> {
        if self.rests_until.is_some_and(|until| Instant::now() < until) {
            self.erase(place);
            return Err(DiskFault::Failed);
        }
        let store = self.store.as_mut().ok_or(DiskFault::Failed)?;
        memory.read(from.0, &mut self.scratch);
        match store.write(place.0, record, &self.scratch) {
            Ok(()) => {
                if self.rests_until.take().is_some() {
                    tracing::info!("KV blocks are written to disk again");
                }
                Ok(())
            }
            Err(error) => {
                if self.rests_until.is_none() {
                    tracing::warn!(
                        "KV blocks cannot be written to disk; they are computed again when they are needed: {error}"
                    );
                }
                self.rests_until = Some(Instant::now() + REST);
                self.erase(place);
                Err(DiskFault::Failed)
            }
        }
    }

    fn read(&mut self, place: DiskPlace, to: HostBlockId, key: BlockKey, memory: &HostMemory) -> Result<(), DiskFault> {
        let store = self.store.as_mut().ok_or(DiskFault::Failed)?;
        match store.read(place.0, &key.0, &mut self.scratch) {
            Ok(()) => {
                memory.write(to.0, &self.scratch);
                Ok(())
            }
            Err(error) => {
                if self.complained.is_none_or(|last| last.elapsed() >= REST) {
                    self.complained = Some(Instant::now());
                    tracing::warn!("a KV block on disk is computed again, and others may be: {error}");
                } else {
                    tracing::debug!("a KV block on disk is computed again: {error}");
                }
                Err(match error {
                    ReadError::Damaged { .. } => DiskFault::Damaged,
                    ReadError::System { .. } => DiskFault::Failed,
                })
            }
        }
    }

    fn erase(&mut self, place: DiskPlace) {
        if let Some(Err(error)) = self.store.as_mut().map(|store| store.erase(place.0)) {
            // It is written over, or met by the next start's scan and then by the checks of its reading.
            tracing::debug!("a KV block on disk cannot be removed: {error}");
        }
    }

    fn answer(&self, answer: Answer) {
        let _ = self.tell.send(answer); // an engine that has gone wants to know nothing
        self.bell.ring();
    }
}

/// The next job, reads first. None: nobody will have another one.
fn next(reads: &Receiver<Job>, others: &Receiver<Job>) -> Option<Job> {
    let waited = || select! { recv(reads) -> job => job, recv(others) -> job => job };
    // Both senders go together: then what is left of the other jobs is still done.
    reads.try_recv().ok().or_else(|| waited().ok()).or_else(|| others.try_recv().ok())
}

fn entry(entry: Entry) -> DiskEntry {
    let Entry { place, record: Record { key, parent, tokens, salt }, last_used } = entry;
    DiskEntry { place: DiskPlace(place), key: BlockKey(key), parent: parent.map(BlockKey), tokens, salt, last_used }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_ends_in_an_assertion_is_answered_and_so_are_those_after_it() {
        let (home, model) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        std::fs::write(model.path().join("model.safetensors"), b"weights").expect("written");
        let folder = Folder::claim(home.path()).expect("it is free");
        let bell = Arc::new(Bell::create().expect("a bell"));
        let mut disk = Disk::start(folder, 1 << 20, model.path().to_owned(), bell).expect("a thread");
        disk.senders
            .as_ref()
            .expect("it runs")
            .others
            .send(Job::Open { numerics_id: "plain".to_owned(), block_size: 4, block_bytes: 64 })
            .expect("it listens");
        let Ok(Answer::Opened(Some(opened))) = disk.answers.recv() else { panic!("it is opened first") };
        assert!(opened.places > 0);
        let memory = Arc::new(HostMemory::create(2, 64).expect("small"));
        let write = |place, from| DiskOrder::Write {
            place: DiskPlace(place),
            from: HostBlockId(from),
            key: BlockKey(u128::from(place).to_le_bytes()),
            parent: None,
            tokens: vec![1, 2, 3, 4].into(),
            salt: 0,
        };
        for (place, from, expected) in [(0, 1, Ok(())), (1, 99, Err(DiskFault::Failed)), (0, 1, Err(DiskFault::Failed))]
        {
            disk.order(write(place, from), &memory);
            let Ok(Answer::Done { place: told, result, .. }) = disk.answers.recv() else { panic!("it is answered") };
            assert_eq!((told, result), (DiskPlace(place), expected));
        }
        disk.finish(Duration::from_secs(1));
    }
}

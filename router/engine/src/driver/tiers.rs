//! What is kept below the devices: the host memory of the core that there is, and the disk behind it.
//!
//! Invariant: `Core::worker_lost` is told of a worker that reached host memory only when it touches it no more, since the
//! core gives its blocks to others at once. Until the link says so ([`LinkEvent::Lost`]) the worker is *condemned*.
//!
//! Invariant: what is kept here is of one model's weights, and workers with others do not reach it (`weights.rs`).
//!
//! With a disk, the first workers wait to be attached until its folder has been looked through.
//!
//! [`LinkEvent::Lost`]: pelton_link::LinkEvent::Lost

use std::{sync::Arc, time::Duration};

use pelton_core::DiskEntry;
use pelton_frame::{Bell, HostMemory, MaskWriter, RouterEnd};
use pelton_kv_store::Folder;
use pelton_link::HostShare;

use super::{Driver, begin::Below};
use crate::{
    EngineConfig, Failure, ModelReport, Phase,
    disk::{Answer, Disk, Opened},
    group::Group,
    weights::{Files, LOOK_WITHIN, Weights},
};

/// What is kept of blocks that leave the devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierOptions {
    /// Bytes in the host's memory, shared by all workers of this host; 0: none.
    pub host_bytes: u64,
    /// Where on disk, if anywhere. It needs host memory above it.
    pub disk: Option<crate::disk::DiskOptions>,
}

/// A worker that has loaded its model.
pub(super) struct Arrival {
    pub(super) index: usize,
    pub(super) port: RouterEnd,
    pub(super) masks: Arc<MaskWriter>,
    pub(super) report: ModelReport,
    pub(super) host: Option<Arc<HostMemory>>,
    /// What it has read. None: it reaches no host memory, or nobody knows.
    pub(super) files: Option<Files>,
}

/// See the top of the file.
pub(super) struct Tiers {
    /// None: no tier is wanted.
    pub(super) share: Option<Arc<HostShare>>,
    /// In which the core's host blocks lie.
    memory: Option<Arc<HostMemory>>,
    weights: Option<Weights>, // as `share`
    disk: DiskState,
}

enum DiskState {
    None,
    /// No worker has said yet what blocks are like.
    Waits(Disk),
    /// Its folder is looked through; meanwhile these wait.
    Opens(Disk, Vec<Arrival>),
    /// With what it held, until a core takes that over.
    Serves(Disk, Option<Opened>),
}

impl Tiers {
    pub(super) fn start(config: &EngineConfig, folder: Option<Folder>, bell: &Arc<Bell>) -> Result<Self, Failure> {
        let share = (config.tiers.host_bytes > 0).then(|| Arc::new(HostShare::new(config.tiers.host_bytes)));
        let disk = match (folder, &config.tiers.disk) {
            (Some(folder), Some(options)) => {
                let model = config.load.model_path.clone();
                let disk = Disk::start(folder, options.limit_bytes, model, Arc::clone(bell));
                DiskState::Waits(disk.map_err(|error| Failure::Internal(format!("cannot start a thread: {error}")))?)
            }
            _ => DiskState::None,
        };
        let weights = share.as_ref().map(|_| Weights::new(config.load.model_path.clone()));
        Ok(Self { share, memory: None, weights, disk })
    }

    /// For the first core: how much there is, and what an earlier life of the router has left on disk.
    pub(super) fn begin(&mut self, report: &ModelReport) -> (Below, Vec<DiskEntry>) {
        let host_blocks = self.make_memory(report);
        match &mut self.disk {
            DiskState::Serves(_, opened) if host_blocks > 0 => {
                let Opened { places, entries } = opened.take().expect("there is one first core");
                (Below { host_blocks, disk_places: places }, entries)
            }
            _ => (Below { host_blocks, disk_places: 0 }, Vec::new()),
        }
    }

    fn make_memory(&mut self, report: &ModelReport) -> u32 {
        self.memory = self.share.as_ref().and_then(|share| share.memory(report));
        self.memory.as_ref().map_or(0, |memory| memory.blocks())
    }

    /// Whether this worker maps the memory of the core.
    pub(super) fn is_reached(&self, host: Option<&Arc<HostMemory>>) -> bool {
        self.memory.as_ref().zip(host).is_some_and(|(ours, theirs)| Arc::ptr_eq(ours, theirs))
    }

    /// A worker is about to read its weights.
    pub(super) fn will_read(&mut self, index: usize) {
        if let Some(weights) = &mut self.weights {
            weights.about_to_be_read(index);
        }
    }

    /// A worker has read its weights. Which, if that matters and can be known.
    pub(super) fn were_read(&mut self, index: usize, host: Option<&Arc<HostMemory>>) -> Option<Files> {
        let weights = self.weights.as_mut()?;
        if host.is_none() {
            weights.forget(index);
            return None;
        }
        weights.were_read(index)
    }

    /// A core after a bug: nothing that the old one knew may be believed, and the old workers may still write to the old
    /// memory. The disk rests until the next start: what is at its places nobody knows.
    pub(super) fn start_again(&mut self, report: &ModelReport) -> Below {
        if let Some(share) = &self.share {
            share.renew();
        }
        if let Some(weights) = &mut self.weights {
            weights.begin_anew();
        }
        if let DiskState::Serves(disk, _) = &mut self.disk {
            disk.forget();
        }
        Below { host_blocks: self.make_memory(report), disk_places: 0 }
    }

    /// Lets the disk write what it was given.
    pub(super) fn finish(&mut self, deadline: Duration) {
        if let DiskState::Waits(disk) | DiskState::Opens(disk, _) | DiskState::Serves(disk, _) = &mut self.disk {
            disk.finish(deadline);
        }
    }

    /// A worker that waits for the disk has gone.
    pub(super) fn left(&mut self, index: usize) {
        if let Some(weights) = &mut self.weights {
            weights.forget(index);
        }
        if let DiskState::Opens(_, arrivals) = &mut self.disk {
            arrivals.retain(|arrival| arrival.index != index);
        }
    }
}

impl Driver {
    /// Whether a worker reaches what is kept here. If that is of other weights than the worker's it begins anew, unless others use it.
    pub(super) fn reaches_host(&mut self, index: usize, host: Option<&Arc<HostMemory>>, files: Option<Files>) -> bool {
        if !self.tiers.is_reached(host) {
            return false;
        }
        let weights = self.tiers.weights.as_mut().expect("there is host memory");
        if weights.are(files.as_ref()) {
            return true;
        }
        let why = match files {
            Some(_) => "are others than before".to_owned(),
            None => format!("were replaced while they were read, or cannot be looked at within {LOOK_WITHIN:?}"),
        };
        if self.groups.iter().any(Group::reaches_host) {
            tracing::warn!(group = index, "the model's files {why}: this worker reaches no host memory");
            return false;
        }
        tracing::warn!(
            "the model's files {why}: KV blocks in host memory are dropped, and the disk rests until the next start"
        );
        weights.become_those(files);
        if let DiskState::Serves(disk, _) = &mut self.tiers.disk {
            disk.rest();
        }
        self.core.as_mut().expect("its memory is there").clear_tiers();
        true
    }

    /// A worker has loaded its model: it serves, at once or when the disk is ready.
    pub(super) fn arrive(&mut self, arrival: Arrival) -> Result<(), String> {
        match std::mem::replace(&mut self.tiers.disk, DiskState::None) {
            DiskState::Waits(disk) => {
                disk.open(&arrival.report);
                self.set_phase(Phase::Loading { stage: "looking through --kv-disk".to_owned(), done: 0, total: 0 });
                self.tiers.disk = DiskState::Opens(disk, vec![arrival]);
                Ok(())
            }
            DiskState::Opens(disk, mut arrivals) => {
                arrivals.push(arrival);
                self.tiers.disk = DiskState::Opens(disk, arrivals);
                Ok(())
            }
            other => {
                self.tiers.disk = other;
                self.attach(arrival)
            }
        }
    }

    /// Takes in what the disk has done. Whether there was anything, or why the engine must end.
    pub(super) fn hear_disk(&mut self) -> Result<bool, String> {
        let mut has_heard = false;
        loop {
            let answer = match &mut self.tiers.disk {
                DiskState::Opens(disk, _) | DiskState::Serves(disk, _) => disk.answer(),
                DiskState::None | DiskState::Waits(_) => None,
            };
            let Some(answer) = answer else { return Ok(has_heard) };
            has_heard = true;
            match answer {
                Answer::Opened(opened) => self.disk_opened(opened)?,
                Answer::Done { place, was_write, result, .. } => {
                    let stats = &mut self.stats;
                    let count = match (was_write, &result) {
                        (_, Err(_)) => &mut stats.disk_faults,
                        (true, Ok(())) => &mut stats.disk_writes,
                        (false, Ok(())) => &mut stats.disk_reads,
                    };
                    *count += 1;
                    self.core.as_mut().expect("orders come from a core").disk_done(place, result);
                }
            }
        }
    }

    fn disk_opened(&mut self, opened: Option<Opened>) -> Result<(), String> {
        let DiskState::Opens(disk, arrivals) = std::mem::replace(&mut self.tiers.disk, DiskState::None) else {
            return Ok(()); // a core after a bug has no disk
        };
        if opened.is_some() {
            self.tiers.disk = DiskState::Serves(disk, opened);
        }
        arrivals.into_iter().try_for_each(|arrival| self.attach(arrival))
    }

    /// Hands the core's orders to the disk.
    pub(super) fn order_disk(&mut self) {
        let Some(core) = self.core.as_mut() else { return };
        let orders = core.disk_orders();
        let (DiskState::Serves(disk, _), Some(memory)) = (&mut self.tiers.disk, &self.tiers.memory) else {
            assert!(orders.is_empty(), "a core without places orders nothing");
            return;
        };
        for order in orders {
            disk.order(order, memory);
        }
    }
}

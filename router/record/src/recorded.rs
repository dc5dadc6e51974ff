//! The core's door with a recorder beside it: the same calls, each told to the recorder first.
//!
//! What only reads the core is reached through `Deref`; what changes it is here, and nothing changes it unrecorded.
//! Without a recorder each call costs one look at an `Option`.

use std::ops::Deref;

use pelton_core::{
    CacheChange, CommitError, Core, DiskEntry, DiskFault, DiskOrder, DiskPlace, Event, GroupId, Micros, NewPin,
    NewRequest, PinId, PinRefusal, Plan, Refusal, RequestId, StepResults, TokenId, Trust,
};

use crate::call::Call;
use crate::recorder::{Handed, Recorder};
use crate::writer::Entry;

/// See the top of the file.
pub struct RecordedCore {
    core: Core,
    recording: Option<Recording>,
}

struct Recording {
    recorder: Recorder,
    has_begun: bool,
    lost: u64, // calls since the disk was too slow; while it is not 0 nothing is handed over
}

impl Deref for RecordedCore {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl RecordedCore {
    /// A core and what records it, if anything does.
    pub fn new(core: Core, recorder: Option<Recorder>) -> Self {
        let recording = recorder.map(|recorder| Recording { recorder, has_begun: false, lost: 0 });
        Self { core, recording }
    }

    /// See [`Core::add_group`].
    pub fn add_group(&mut self, group: GroupId, blocks: u32, reaches_host: bool) {
        self.note(|| Call::AddGroup { group, blocks, reaches_host });
        self.core.add_group(group, blocks, reaches_host);
    }

    /// See [`Core::submit`].
    pub fn submit(&mut self, new: NewRequest) -> Result<(), Refusal> {
        self.note(|| Call::Submit(Box::new(new.clone())));
        self.core.submit(new)
    }

    /// See [`Core::abort`].
    pub fn abort(&mut self, request: RequestId) {
        self.note(|| Call::Abort(request));
        self.core.abort(request);
    }

    /// See [`Core::finish`].
    pub fn finish(&mut self, request: RequestId) {
        self.note(|| Call::Finish(request));
        self.core.finish(request);
    }

    /// See [`Core::hold`].
    pub fn hold(&mut self, request: RequestId) {
        self.note(|| Call::Hold(request));
        self.core.hold(request);
    }

    /// See [`Core::release`].
    pub fn release(&mut self, request: RequestId) {
        self.note(|| Call::Release(request));
        self.core.release(request);
    }

    /// See [`Core::force`].
    pub fn force(&mut self, request: RequestId, drawn: u32, tokens: Vec<TokenId>) {
        self.note(|| Call::Force { request, drawn, tokens: tokens.clone() });
        self.core.force(request, drawn, tokens);
    }

    /// See [`Core::withdraw`].
    pub fn withdraw(&mut self, request: RequestId, trust: Trust) {
        self.note(|| Call::Withdraw { request, trust });
        self.core.withdraw(request, trust);
    }

    /// See [`Core::pin`].
    pub fn pin(&mut self, new: NewPin) -> Result<(), PinRefusal> {
        self.note(|| Call::Pin(Box::new(new.clone())));
        self.core.pin(new)
    }

    /// See [`Core::unpin`].
    pub fn unpin(&mut self, pin: PinId) {
        self.note(|| Call::Unpin(pin));
        self.core.unpin(pin);
    }

    /// See [`Core::tick`].
    pub fn tick(&mut self, now: Micros) {
        self.note(|| Call::Tick(now));
        self.core.tick(now);
    }

    /// See [`Core::clock`].
    pub fn clock(&mut self, now: Micros) {
        self.note(|| Call::Clock(now));
        self.core.clock(now);
    }

    /// See [`Core::plan`].
    pub fn plan(&mut self, group: GroupId, now: Micros) -> Option<Plan> {
        self.note(|| Call::Plan { group, now });
        let plan = self.core.plan(group, now);
        if let Some(recording) = self.recording.take() {
            self.recording = recording.add(match &plan {
                Some(plan) => Entry::Planned(plan.clone()),
                None => Entry::Call(Call::Planned(None)),
            });
        }
        plan
    }

    /// See [`Core::commit`].
    pub fn commit(&mut self, group: GroupId, results: StepResults) -> Result<(), CommitError> {
        self.note(|| Call::commit(group, &results));
        self.core.commit(group, results)
    }

    /// See [`Core::worker_lost`].
    pub fn worker_lost(&mut self, group: GroupId) {
        self.note(|| Call::WorkerLost(group));
        self.core.worker_lost(group);
    }

    /// See [`Core::remove_group`].
    pub fn remove_group(&mut self, group: GroupId) {
        self.note(|| Call::RemoveGroup(group));
        self.core.remove_group(group);
    }

    /// See [`Core::worker_back`].
    pub fn worker_back(&mut self, group: GroupId, blocks: u32, reaches_host: bool) {
        self.note(|| Call::WorkerBack { group, blocks, reaches_host });
        self.core.worker_back(group, blocks, reaches_host);
    }

    /// See [`Core::disk_orders`].
    pub fn disk_orders(&mut self) -> Vec<DiskOrder> {
        if !self.core.has_disk_orders() {
            return Vec::new(); // asked in every turn: a recording has no call that did nothing
        }
        self.note(|| Call::DiskOrders);
        self.core.disk_orders()
    }

    /// See [`Core::disk_done`].
    pub fn disk_done(&mut self, place: DiskPlace, result: Result<(), DiskFault>) {
        self.note(|| Call::DiskDone { place, result });
        self.core.disk_done(place, result);
    }

    /// See [`Core::restore_disk`].
    pub fn restore_disk(&mut self, entries: Vec<DiskEntry>) {
        self.note(|| Call::RestoreDisk(entries.clone()));
        self.core.restore_disk(entries);
    }

    /// See [`Core::clear_tiers`].
    pub fn clear_tiers(&mut self) {
        self.note(|| Call::ClearTiers);
        self.core.clear_tiers();
    }

    /// See [`Core::events`]. Not recorded: what they tell follows from the calls.
    pub fn events(&mut self) -> impl Iterator<Item = Event> + '_ {
        self.core.events()
    }

    /// See [`Core::cache_changes`]. Not recorded, as events are not.
    pub fn cache_changes(&mut self, group: GroupId) -> Vec<CacheChange> {
        self.core.cache_changes(group)
    }

    /// Tells of a call before it is made, in a new segment if it is time for one.
    fn note(&mut self, call: impl FnOnce() -> Call) {
        if let Some(recording) = self.recording.take() {
            self.recording =
                recording.begin_if_due(&self.core).and_then(|recording| recording.add(Entry::Call(call())));
        }
    }
}

impl Recording {
    /// None: the recording has ended.
    fn begin_if_due(mut self, core: &Core) -> Option<Self> {
        let is_due = !self.has_begun || self.lost > 0 || self.recorder.wants_segment();
        if !is_due || !self.recorder.has_room() {
            return Some(self);
        }
        let is_continued = self.has_begun && self.lost == 0;
        match self.recorder.begin(core.snapshot(), is_continued, self.lost) {
            Handed::Over => {
                (self.has_begun, self.lost) = (true, 0);
                Some(self)
            }
            Handed::Lost => Some(self),
            Handed::Ended => None,
        }
    }

    /// None: the recording has ended.
    fn add(mut self, entry: Entry) -> Option<Self> {
        if !self.has_begun || self.lost > 0 {
            self.lost += 1;
            return Some(self);
        }
        match self.recorder.hand_over(entry) {
            Handed::Over => Some(self),
            Handed::Lost => {
                tracing::warn!("the disk is too slow for the recording: it has a gap");
                self.lost = 1;
                Some(self)
            }
            Handed::Ended => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use pelton_core::{CoreConfig, Kind, Limits};

    use super::*;
    use crate::RecordOptions;
    use crate::replay::replay;

    fn core() -> Core {
        let limits = Limits {
            slots: 4,
            tokens: 64,
            appends: 64,
            saves: 0,
            loads: 0,
            copies: 4,
            states: 0,
            biases: 4,
            suppressed: 4,
            history: 64,
            scores: 8,
            embeds: 0,
        };
        Core::new(CoreConfig {
            block_size: 4,
            kinds: vec![Kind::Full],
            max_model_len: 64,
            limits,
            max_running: 4,
            max_waiting: 16,
            token_budget: 64,
            itl_target_us: None,
            hash_key: [1, 2],
            host_blocks: 0,
            disk_places: 0,
            drafts_max: 0,
            prefix_caching: true,
            pin_share: 0,
            tenant_cache_share: 100,
            tells_cache_changes: false,
        })
    }

    #[test]
    fn a_disk_that_is_too_slow_leaves_a_gap_that_is_told_and_a_segment_that_begins_behind_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("incident");
        let options = RecordOptions { file: file.clone(), limit_bytes: 8 << 20 };
        let (recorder, writer, entries) = Recorder::without_thread(options, 8).expect("a folder of ours");
        let mut core = RecordedCore::new(core(), Some(recorder));
        core.add_group(GroupId(0), 16, false);
        for now in 0..20 {
            core.tick(Micros(now)); // the snapshot, `add_group` and six of these fill the backlog
        }
        let writer = thread::spawn(move || writer.run(&entries));
        while core.recording.as_ref().is_some_and(|recording| recording.lost > 0) {
            core.tick(Micros(20)); // until the writer has caught up: then a segment begins
            thread::yield_now();
        }
        drop(core);
        writer.join().expect("it writes");
        let replay = replay(&file).expect("recorded above");
        assert!(replay.is_exact() && replay.segments == 2, "{replay:?}");
        assert!(replay.notes.len() == 1 && replay.notes[0].1.starts_with("a gap before it: "), "{:?}", replay.notes);
        assert!(replay.calls < 9 + 20);
    }

    #[test]
    fn a_disk_that_holds_more_than_is_ever_called_otherwise_does_not_end_the_recording() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("incident");
        let recorder = Recorder::start(RecordOptions { file: file.clone(), limit_bytes: 1 << 30 }).expect("ours");
        let mut core = RecordedCore::new(core(), Some(recorder));
        // As many bytes as 350,000 blocks have; the core refuses what is of another size.
        let tokens = vec![TokenId::MAX; 14 << 20].into();
        let entry = DiskEntry {
            place: DiskPlace(0),
            key: pelton_core::BlockKey([0; 16]),
            parent: None,
            tokens,
            salt: 0,
            last_used: 0,
        };
        core.restore_disk(vec![entry]);
        core.add_group(GroupId(0), 16, false);
        drop(core);
        let replay = replay(&file).expect("recorded above");
        assert!(replay.is_exact() && replay.notes.is_empty(), "{replay:?}");
        assert!(replay.calls >= 2, "{replay:?}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_told_at_once_and_a_bound_that_is_too_small_ends_the_recording_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("missing/incident");
        assert!(Recorder::start(RecordOptions { file, limit_bytes: 1 << 20 }).is_err());
        let file = folder.path().join("incident");
        let recorder = Recorder::start(RecordOptions { file, limit_bytes: 1_000 }).expect("a folder of ours");
        let mut core = RecordedCore::new(core(), Some(recorder));
        core.add_group(GroupId(0), 16, false);
        while core.recording.is_some() {
            core.tick(Micros(1)); // until the writer is seen to have ended
            thread::yield_now();
        }
        assert_eq!(core.plan(GroupId(0), Micros(2)), None, "the core goes on");
    }
}

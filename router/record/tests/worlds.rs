//! Worlds of the simulator, recorded and replayed.

#[path = "../../core/tests/sim/mod.rs"]
mod sim;

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use pelton_core::{CoreConfig, Explanation, RequestId};
use pelton_record::{End, RecordOptions, RecordedCore, Recorder, Replay, replay};

thread_local! {
    /// What the next core records to.
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// The recorded core, made as the simulator makes one.
pub(crate) struct Core {
    core: RecordedCore,
    recorder: Recorder,
}

impl Core {
    pub(crate) fn new(config: CoreConfig) -> Self {
        let recorder = RECORDER.take().expect("set by `record`");
        Self { core: RecordedCore::new(pelton_core::Core::new(config), Some(recorder.clone())), recorder }
    }
}

impl Deref for Core {
    type Target = RecordedCore;

    fn deref(&self) -> &RecordedCore {
        &self.core
    }
}

impl DerefMut for Core {
    /// A world lives faster than a busy disk writes, and what would be lost then is not what is tested here.
    fn deref_mut(&mut self) -> &mut RecordedCore {
        while !self.recorder.has_room() {
            thread::sleep(Duration::from_millis(1));
        }
        &mut self.core
    }
}

/// Lives through a world and records it. The recording is whole when this returns.
fn record(seed: u64, actions: usize, file: &Path, limit_bytes: u64) -> sim::Seen {
    let recorder = Recorder::start(RecordOptions { file: file.to_owned(), limit_bytes }).expect("a folder of ours");
    RECORDER.set(Some(recorder));
    sim::live(seed, actions)
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("incident");
    (folder, file)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    files
}

fn exact(file: &Path) -> Replay {
    let replay = replay(file).expect("recorded above");
    assert!(replay.is_exact() && replay.notes.is_empty() && replay.assertions.is_empty(), "{replay:?}");
    replay
}

#[test]
fn a_recorded_world_replays_bit_for_bit_and_every_request_has_its_story() {
    let mut seen = sim::Seen::default();
    for seed in 0..100 {
        let (_folder, file) = folder();
        let lived = record(seed, 1_000, &file, 64 << 20);
        let replay = exact(&file);
        assert!(replay.plans >= lived.steps, "each plan was compared");
        let stories = replay.stories.values();
        let count = |is: fn(&End) -> bool| stories.clone().filter(|story| is(&story.end)).count() as u64;
        let drew = lived.finished_by_length + lived.finished_by_stop;
        let gave_vectors = lived.vectors_of_last + lived.vectors_of_all;
        assert_eq!(count(|end| matches!(end, End::Finished(_))), drew + gave_vectors);
        assert_eq!(count(|end| *end == End::Stopped), lived.finished_from_outside);
        assert_eq!(count(|end| *end == End::Expired), lived.expired);
        assert_eq!(count(|end| *end == End::Open || *end == End::Unseen), 0);
        assert_eq!(replay.stories.len() as u64, lived.requests + lived.refused_at_once);
        let taken = |of: fn(&Explanation) -> u64| stories.clone().map(|story| of(&story.explanation)).sum::<u64>();
        assert_eq!(taken(|told| u64::from(told.preempted.times)), lived.preemptions);
        assert_eq!(taken(|told| u64::from(told.preempted_others.times)), lived.preemptions);
        assert_eq!(taken(|told| u64::from(told.cached)), lived.cached_tokens);
        assert_eq!(taken(|told| u64::from(told.replayed)), lived.replays);
        seen.add(&lived);
    }
    assert!(
        seen.steps > 0 && seen.preemptions > 0 && seen.kills > 0 && seen.aborted_while_running > 0 && seen.garbage > 0,
        "{seen:?}"
    );
}

/// The bound is small, so that the oldest go; and a segment with all that may wait for the disk fits into half of it.
#[test]
fn the_oldest_segments_go_and_what_is_left_replays() {
    let (folder, file) = folder();
    let limit = 400 << 10;
    record(3, 120_000, &file, limit);
    let files = files(folder.path());
    let bytes: u64 = files.iter().map(|file| file.metadata().expect("listed").len()).sum();
    assert!(files.len() > 1 && bytes <= limit, "{bytes} bytes in {files:?}");
    assert!(!folder.path().join("incident.000001").exists(), "the first segment is gone");
    let replay = replay(&file).expect("recorded above");
    assert!(replay.is_exact() && replay.segments == files.len() as u64, "{:?}", replay.damage);
    assert_eq!(replay.notes.len(), 1, "one says that there was something before: {:?}", replay.notes);
    assert!(replay.stories.values().all(|story| story.end != End::Unseen && story.end != End::Open));
    for file in files {
        let alone = pelton_record::replay(&file).expect("each is a recording");
        assert!(alone.is_exact() && alone.segments == 1 && alone.plans > 0, "{}: {:?}", file.display(), alone.notes);
    }
}

#[test]
fn files_are_for_their_owner_only_and_of_an_earlier_process_they_stay() {
    use std::os::unix::fs::PermissionsExt as _;
    let (folder, file) = folder();
    record(1, 200, &file, 8 << 20);
    record(2, 200, &file, 8 << 20);
    let files = files(folder.path());
    assert_eq!(files.len(), 2);
    for file in files {
        assert_eq!(file.metadata().expect("listed").permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
    let replay = exact(&file);
    assert_eq!(replay.runs.len(), 2);
    assert!(replay.stories.contains_key(&(0, RequestId(0))) && replay.stories.contains_key(&(1, RequestId(0))));
}

#[test]
fn a_file_cut_anywhere_is_read_up_to_the_cut() {
    let (folder, file) = folder();
    record(5, 20_000, &file, 8 << 20);
    let whole = std::fs::read(&files(folder.path())[0]).expect("recorded above");
    let calls = exact(&file).calls;
    let mut most = 0;
    for part in 0..60 {
        let length = whole.len() * part / 60;
        let cut = folder.path().join("cut");
        std::fs::write(&cut, &whole[..length]).expect("a folder of ours");
        let replay = replay(&cut).expect("it is there");
        assert!(replay.differences.is_empty() && replay.calls < calls);
        assert!(!replay.damage.is_empty() || !replay.notes.is_empty(), "a cut at {length} is told of");
        assert!(replay.calls >= most, "a longer file has more");
        most = replay.calls;
    }
    assert!(most > 0);
}

#[test]
fn a_flipped_bit_is_found_and_ends_what_is_believed() {
    let (folder, file) = folder();
    record(6, 400, &file, 8 << 20);
    let whole = std::fs::read(&files(folder.path())[0]).expect("recorded above");
    let calls = exact(&file).calls;
    for part in 0..200 {
        let at = (whole.len() - 1) * part / 199;
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (part % 8);
        let damaged = folder.path().join("damaged");
        std::fs::write(&damaged, &bytes).expect("a folder of ours");
        let replay = replay(&damaged).expect("it is there");
        assert!(!replay.damage.is_empty(), "a flipped bit in byte {at} is found");
        assert!(replay.differences.is_empty() && replay.assertions.is_empty() && replay.calls < calls + 1);
    }
}

//! Whose weights the blocks below the devices are of, as the files of the model show it: a worker that comes back reads them anew,
//! and somebody may have replaced them meanwhile. What a worker reports is equal then, but for the weights.
//!
//! Whoever reaches host memory reads the same files as this process sees, and they are looked at twice: before the worker reads
//! them, where it says that it is about to, and when it has. Files that differ then are of nobody knows which weights.
//! Never here: what is in the files (`digest_of_model` reads it, once, for the disk).

use std::{
    collections::BTreeMap,
    fs::{DirEntry, Metadata},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, bounded};

/// What decides what a model computes, in its folder and in those of its modules.
const KINDS: [&str; 3] = ["safetensors", "json", "py"];
/// The engine thread waits for a look no longer, once in a worker's life. A file system that has just given a worker its weights needs
/// some microseconds for each file; one that hangs costs what is kept, and no request.
pub(crate) const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// Names, sizes and times of files. The time of the last change of all is one of them: who copies a file over another may give it the
/// other's times but for that one. What is equal was not written to. Numbers of files say nothing: some file systems give new ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files(Vec<(PathBuf, u64, [i64; 4])>);

/// See the top of the file.
pub(crate) struct Weights {
    folder: PathBuf,
    /// What is kept is of these. None: of nobody knows which, or a look is under way.
    kept: Option<Files>,
    /// That look: nobody waits for it before it matters.
    first: Option<Receiver<Files>>,
    /// By worker, as they were when it was about to read them.
    before: BTreeMap<usize, Receiver<Files>>,
}

impl Weights {
    /// What will be kept is of the files that are there now.
    pub(crate) fn new(folder: PathBuf) -> Self {
        let mut weights = Self { folder, kept: None, first: None, before: BTreeMap::new() };
        weights.begin_anew();
        weights
    }

    /// The same of a core that has begun anew.
    pub(crate) fn begin_anew(&mut self) {
        (self.kept, self.first) = (None, Some(self.look()));
    }

    /// A worker is about to read them. It says so more than once; the first time counts.
    pub(crate) fn about_to_be_read(&mut self, index: usize) {
        if !self.before.contains_key(&index) {
            let look = self.look();
            self.before.insert(index, look);
        }
    }

    /// A worker reads them no more, or nobody asks which.
    pub(crate) fn forget(&mut self, index: usize) {
        self.before.remove(&index);
    }

    /// Which files a worker has read, that has. None: they were replaced meanwhile, or cannot be looked at.
    pub(crate) fn were_read(&mut self, index: usize) -> Option<Files> {
        let before = self.before.remove(&index);
        let files = self.look().recv_timeout(LOOK_WITHIN).ok()?;
        // One that had loaded them already may not have said that it is about to: it has compared them itself.
        before
            .is_none_or(|before| before.recv_timeout(LOOK_WITHIN).is_ok_and(|before| before == files))
            .then_some(files)
    }

    /// Whether what is kept is of these.
    pub(crate) fn are(&mut self, files: Option<&Files>) -> bool {
        if let Some(first) = self.first.take() {
            self.kept = first.recv_timeout(LOOK_WITHIN).ok();
        }
        files.is_some() && self.kept.as_ref() == files
    }

    /// Nothing is kept of others, from now on.
    pub(crate) fn become_those(&mut self, files: Option<Files>) {
        (self.kept, self.first) = (files, None);
    }

    /// On a thread of its own: a file system may hang.
    fn look(&self) -> Receiver<Files> {
        let (tell, looked) = bounded(1);
        let folder = self.folder.clone();
        // Without a thread, or without anybody who waits, nothing is known.
        let _ = thread::Builder::new().name("pelton-weights".to_owned()).spawn(move || tell.send(look(&folder)));
        looked
    }
}

fn look(folder: &Path) -> Files {
    let mut files = Vec::new();
    for entry in entries(folder) {
        let path = entry.path();
        match path.metadata() {
            Ok(found) if found.is_dir() => files.extend(entries(&path).filter_map(|entry| file(entry.path()))),
            _ => files.extend(file(path)),
        }
    }
    files.sort();
    Files(files)
}

fn entries(folder: &Path) -> impl Iterator<Item = DirEntry> {
    folder.read_dir().into_iter().flatten().flatten()
}

/// Whatever cannot be read is left out: it is no file of a model that a worker has loaded.
fn file(path: PathBuf) -> Option<(PathBuf, u64, [i64; 4])> {
    let is_ours = path.extension().and_then(|kind| kind.to_str()).is_some_and(|kind| KINDS.contains(&kind));
    let found = is_ours.then(|| path.metadata().ok())?.filter(Metadata::is_file)?;
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    Some((path, found.size(), times))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn files_that_are_written_to_are_others_whatever_their_times_say() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("1_Pooling")).expect("made");
        for name in ["model.safetensors", "config.json", "1_Pooling/config.json"] {
            fs::write(path(name), "as before").expect("written");
        }
        let mut weights = Weights::new(folder.path().to_owned());
        let same = weights.were_read(0);
        assert!(weights.are(same.as_ref()));
        fs::write(path("README.md"), "nothing that counts").expect("written");
        let same = weights.were_read(0);
        assert!(weights.are(same.as_ref()));

        let written = fs::metadata(path("model.safetensors")).and_then(|found| found.modified()).expect("readable");
        fs::write(path("other"), "as ever..").expect("written");
        File::options().write(true).open(path("other")).and_then(|file| file.set_modified(written)).expect("set");
        fs::rename(path("other"), path("model.safetensors")).expect("renamed");
        let others = weights.were_read(0);
        assert!(others.is_some() && !weights.are(others.as_ref()), "as long and as old, and another file");
        weights.become_those(others.clone());
        assert!(weights.are(others.as_ref()));
        fs::remove_file(path("1_Pooling/config.json")).expect("removed");
        let without = weights.were_read(0);
        assert!(without.is_some() && !weights.are(without.as_ref()));
    }

    #[test]
    fn files_that_are_replaced_while_a_worker_reads_them_are_of_nobody_knows_which_weights() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        fs::write(&path, "as before").expect("written");
        let mut weights = Weights::new(folder.path().to_owned());
        let looked = weights.look();
        let before = looked.recv().expect("it looks");
        let seen = |before: Files| {
            let (tell, looked) = bounded(1);
            tell.send(before).expect("there is room");
            looked
        };
        weights.before.insert(1, seen(before.clone()));
        assert!(weights.are(Some(&before)));
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "others").expect("written");
        weights.about_to_be_read(1); // once more, with its report
        assert_eq!(weights.were_read(1), None);
        assert!(!weights.are(None));
        weights.before.insert(1, seen(before.clone()));
        weights.forget(1);
        weights.about_to_be_read(1);
        let others = weights.were_read(1);
        assert!(others.is_some_and(|others| others != before), "who has left says nothing of who comes");
        weights.become_those(None);
        assert!(!weights.are(Some(&before)) && !weights.are(None), "what is of unknown weights is of no others");
    }
}

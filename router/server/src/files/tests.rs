//! Files are kept within bounds, for their owner, and over restarts.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

const LIMITS: FileLimits = FileLimits { file_bytes: 10, all_bytes: 25 };

struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn open(&self, drafts: &[&str]) -> (Place, Arc<Files>) {
        let place = Place::named(self.folder.path()).expect("free");
        let drafts = drafts.iter().map(|id| (*id).to_owned()).collect();
        let files = Files::open(&place, LIMITS, &drafts).expect("readable");
        (place, files)
    }

    fn names(&self) -> Vec<String> {
        names(&self.folder.path().join("files")).expect("readable")
    }
}

fn about(tenant: u64, lifetime_s: u64) -> About {
    About { tenant, filename: "../name".to_owned(), purpose: Purpose::Batch, lifetime_s }
}

async fn keep(files: &Arc<Files>, tenant: u64, bytes: &[u8]) -> Result<FileRecord, FileError> {
    let mut draft = files.draft().await?;
    draft.write_bounded(bytes).await?;
    draft.keep(about(tenant, 3600)).await
}

#[tokio::test]
async fn a_file_is_its_owners_and_outlives_the_server() {
    let home = Home::new();
    let record = {
        let (_place, files) = home.open(&[]);
        let record = keep(&files, 1, b"hello").await.expect("room");
        for path in [files.path(&record.id), files.record_path(&record.id)] {
            assert_eq!(fs::metadata(path).expect("there").permissions().mode() & 0o777, 0o600);
        }
        record
    };
    let (_place, files) = home.open(&[]);
    assert_eq!(files.get(&record.id, 1), Ok(record.clone()));
    assert_eq!(files.list(1, Some(Purpose::Batch)), std::slice::from_ref(&record));
    assert_eq!(fs::read(files.read(&record.id, 1).expect("there").path()).expect("there"), b"hello");
    let unknown = || FileError::Unknown { id: record.id.clone() };
    assert_eq!(files.get(&record.id, 2), Err(unknown()));
    assert_eq!(files.delete(&record.id, 2), Err(unknown()));
    assert!(files.list(2, None).is_empty() && files.list(1, Some(Purpose::BatchOutput)).is_empty());
    assert_eq!(files.delete(&record.id, 1), Ok(()));
    assert_eq!(home.names(), [""; 0]);
}

#[tokio::test]
async fn bounds_hold_for_one_and_for_all_and_what_is_refused_leaves_nothing() {
    let home = Home::new();
    let (_place, files) = home.open(&[]);
    assert_eq!(keep(&files, 1, &[b'x'; 11]).await, Err(FileError::TooLarge { limit: 10 }));
    let first = keep(&files, 1, &[b'x'; 10]).await.expect("room");
    let second = keep(&files, 2, &[b'x'; 10]).await.expect("room");
    assert_eq!(keep(&files, 1, &[b'x'; 6]).await, Err(FileError::Full { limit: 25 }));
    assert_eq!(home.names().len(), 4);
    files.delete(&first.id, 1).expect("there");
    keep(&files, 1, &[b'x'; 6]).await.expect("room again");
    files.delete(&second.id, 2).expect("there");
    assert_eq!(files.kept().bytes, 6);
}

#[tokio::test]
async fn what_is_read_stays_and_what_is_too_old_goes() {
    let home = Home::new();
    let (_place, files) = home.open(&[]);
    let mut draft = files.draft().await.expect("room");
    draft.write(b"old").await.expect("room");
    let old = draft.keep(about(1, 0)).await.expect("kept");
    let record = keep(&files, 1, b"read").await.expect("room");
    assert_eq!(files.list(1, None), std::slice::from_ref(&record), "{old:?}");
    let readers = [files.read(&record.id, 1).expect("there"), files.read(&record.id, 1).expect("there")];
    assert_eq!(files.delete(&record.id, 1), Err(FileError::InUse));
    files.kept().records.get_mut(&record.id).expect("there").expires_at = 0;
    let [first, second] = readers;
    drop(first);
    assert!(files.get(&record.id, 1).is_ok());
    drop(second);
    assert!(files.get(&record.id, 1).is_err());
    assert_eq!((files.kept().bytes, home.names().len()), (0, 0));
}

#[tokio::test]
async fn of_a_server_that_was_killed_only_whole_files_are_left() {
    let home = Home::new();
    let whole = {
        let (_place, files) = home.open(&[]);
        let whole = keep(&files, 1, b"whole").await.expect("room");
        let damaged = keep(&files, 1, b"damaged").await.expect("room");
        fs::write(files.path(&damaged.id), "other").expect("written");
        fs::write(files.record_path("file-torn"), "{").expect("written");
        fs::write(files.path("file-nobody"), "bytes").expect("written");
        fs::write(files.path("file-draft"), "one\ntwo\nthr").expect("written");
        whole
    };
    let (_place, files) = home.open(&["file-draft"]);
    let mut left = ["file-draft".to_owned(), whole.id.clone(), format!("{}.json", whole.id)];
    left.sort();
    assert_eq!(home.names(), left);
    let mut draft = files.reopen("file-draft").await.expect("there");
    draft.write(b"3\n").await.expect("room");
    let record = draft.keep(about(1, 60)).await.expect("kept");
    assert_eq!(fs::read(files.path(&record.id)).expect("there"), b"one\ntwo\n3\n", "the torn line is cut off");
    assert_eq!((record.bytes, files.kept().bytes), (10, 15));
}

#[tokio::test]
async fn a_draft_that_is_left_can_be_taken_up_and_another_leaves_nothing() {
    let home = Home::new();
    let (_place, files) = home.open(&[]);
    let mut left = files.reopen("file-left").await.expect("made");
    left.write(b"line\n").await.expect("room");
    left.leave();
    drop(files.draft().await.expect("room"));
    assert_eq!((home.names(), files.kept().bytes), (vec!["file-left".to_owned()], 0));
    let again = files.reopen("file-left").await.expect("there");
    assert!(!again.is_empty());
    assert_eq!(files.kept().bytes, 5);
}

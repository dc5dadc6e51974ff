//! A folder over many lives: what was written comes back, what was not is never believed.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use pelton_kv_store::{Entry, Folder, FolderError, Identity, ReadError, Record, Store, list, purge};
use proptest::prelude::*;

const TOKENS: u32 = 4;
const BYTES: u64 = 50;
/// Of a file: head, tokens, payload, two checksums.
const FILE: u64 = 104 + 4 * TOKENS as u64 + 16 + BYTES + 16;

fn identity(numerics_id: &str) -> Identity {
    Identity { model: [3; 32], numerics_id: numerics_id.to_owned(), block_size: TOKENS, block_bytes: BYTES }
}

fn open(path: &Path, numerics_id: &str, places: u64) -> (Store, Vec<Entry>) {
    Folder::claim(path).unwrap().open(&identity(numerics_id), places * FILE).unwrap()
}

fn record(seed: u8) -> Record {
    Record { key: [seed; 16], parent: (seed > 0).then_some([seed - 1; 16]), tokens: [seed.into(); 4].into(), salt: 9 }
}

fn payload(seed: u8) -> Vec<u8> {
    vec![seed; BYTES as usize]
}

/// All files of blocks below a folder.
fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files(&entry));
        } else if entry.extension().is_some_and(|kind| kind == "kv") {
            found.push(entry);
        }
    }
    found
}

#[test]
fn blocks_outlive_the_store_and_only_their_owner_reads_them() {
    let home = tempfile::tempdir().unwrap();
    let (mut store, entries) = open(home.path(), "a", 4);
    assert_eq!((store.places(), entries), (4, vec![]));
    store.write(2, &record(1), &payload(1)).unwrap();
    store.write(0, &record(2), &payload(2)).unwrap();
    store.erase(0).unwrap();
    store.erase(0).unwrap(); // what is empty stays empty
    assert!(files(home.path()).iter().all(|file| fs::metadata(file).unwrap().permissions().mode() & 0o777 == 0o600));
    drop(store);

    let (mut store, entries) = open(home.path(), "a", 4);
    let [Entry { place: 2, record: found, last_used }] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!(*found, record(1));
    assert!(*last_used > 0);
    let mut bytes = Vec::new();
    store.read(2, &[1; 16], &mut bytes).unwrap();
    assert_eq!(bytes, payload(1));
    assert!(matches!(store.read(3, &[1; 16], &mut bytes), Err(ReadError::System { .. })));
    assert!(matches!(store.read(2, &[7; 16], &mut bytes), Err(ReadError::Damaged { what: "it is another block", .. })));
    assert!(files(home.path()).is_empty(), "what was found wrong is removed");
}

#[test]
fn a_change_of_any_byte_of_a_file_is_found_at_the_latest_when_it_is_read() {
    let home = tempfile::tempdir().unwrap();
    drop(open(home.path(), "a", 1).0.write(0, &record(1), &payload(1)));
    let file = files(home.path()).remove(0);
    let sound = fs::read(&file).unwrap();
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&file, &damaged).unwrap();
        let (mut store, entries) = open(home.path(), "a", 1);
        let mut bytes = Vec::new();
        assert!(entries.is_empty() || store.read(0, &[1; 16], &mut bytes).is_err(), "byte {at}");
        assert!(bytes.is_empty() && !file.exists(), "byte {at}");
    }
    for length in 0..sound.len() {
        fs::write(&file, &sound[..length]).unwrap();
        assert!(open(home.path(), "a", 1).1.is_empty(), "cut to {length}");
    }
    fs::write(&file, &sound).unwrap();
    assert_eq!(open(home.path(), "a", 1).1.len(), 1, "and undamaged it is there");
}

#[test]
fn a_block_of_another_model_is_not_seen_even_in_our_folder() {
    let home = tempfile::tempdir().unwrap();
    drop(open(home.path(), "a", 4).0.write(0, &record(1), &payload(1)));
    let (store, entries) = open(home.path(), "b", 4);
    assert!(entries.is_empty());
    drop(store);
    let theirs = files(home.path()).remove(0);
    let about = |text: &str| list(home.path()).unwrap().into_iter().find(|kept| kept.about.starts_with(text)).unwrap();
    assert_eq!((about("a,").blocks, about("b,").blocks, about("a,").bytes), (1, 0, FILE));
    let ours = home.path().join(about("b,").name).join("00000000.kv");
    fs::copy(&theirs, &ours).unwrap();
    assert!(open(home.path(), "b", 4).1.is_empty());
    assert!(!ours.exists() && theirs.exists());
}

#[test]
fn a_smaller_limit_keeps_what_was_used_last_and_moves_it_to_the_places_there_are() {
    let home = tempfile::tempdir().unwrap();
    let (mut store, _) = open(home.path(), "a", 8);
    for place in 0..8 {
        store.write(place, &record(place as u8), &payload(place as u8)).unwrap();
    }
    drop(store);
    for (age, place) in [7, 1, 5, 3, 0, 2, 4, 6].into_iter().enumerate() {
        let name = format!("{:08x}.kv", place);
        let file = files(home.path()).into_iter().find(|file| file.ends_with(&name)).unwrap();
        let time = SystemTime::now() - Duration::from_secs(100 * (age as u64 + 1));
        fs::File::open(file).unwrap().set_modified(time).unwrap();
    }
    let (mut store, entries) = open(home.path(), "a", 3);
    let places: BTreeMap<u32, u8> = entries.iter().map(|entry| (entry.place, entry.record.key[0])).collect();
    assert_eq!(places.values().copied().collect::<std::collections::BTreeSet<_>>(), [1, 5, 7].into());
    assert!(places.keys().all(|place| *place < 3));
    let mut bytes = Vec::new();
    for (place, seed) in places {
        store.read(place, &[seed; 16], &mut bytes).unwrap();
        assert_eq!(bytes, payload(seed));
    }
    assert_eq!(files(home.path()).len(), 3);
}

#[test]
fn models_share_the_limit_and_the_longest_unused_gives_way() {
    let home = tempfile::tempdir().unwrap();
    for (age, model) in ["old", "older", "new"].into_iter().enumerate() {
        let (mut store, _) = open(home.path(), model, 1_000);
        for place in 0..2 {
            store.write(place, &record(1), &payload(1)).unwrap();
        }
        let before = files(home.path());
        for file in before
            .iter()
            .filter(|file| fs::metadata(file).unwrap().modified().unwrap().elapsed().unwrap() < Duration::from_secs(50))
        {
            let time = SystemTime::now() - Duration::from_secs([200, 300, 100][age]);
            fs::File::open(file).unwrap().set_modified(time).unwrap();
        }
    }
    let (store, _) = open(home.path(), "ours", 8);
    let left: Vec<String> = list(home.path()).unwrap().into_iter().map(|kept| kept.about).collect();
    assert!(left.iter().any(|about| about.starts_with("new,")) && left.iter().any(|about| about.starts_with("old,")));
    assert!(!left.iter().any(|about| about.starts_with("older,")), "{left:?}");
    assert_eq!(store.places(), 8 - 4);
}

#[test]
fn what_a_write_has_left_in_the_middle_is_removed_and_what_is_not_ours_stays() {
    let home = tempfile::tempdir().unwrap();
    drop(open(home.path(), "a", 4).0.write(0, &record(1), &payload(1)));
    let folder = files(home.path())[0].parent().unwrap().to_owned();
    for name in ["00000001.kv.tmp", "notes.txt", "12.kv"] {
        fs::write(folder.join(name), "something").unwrap();
    }
    assert_eq!(open(home.path(), "a", 4).1.len(), 1);
    let exists = |name| folder.join(name).exists();
    assert!(!exists("00000001.kv.tmp") && exists("notes.txt") && exists("12.kv") && exists("00000000.kv"));
}

/// As where a disk is full, or mounted to be read alone: what is there is of use.
#[test]
fn what_cannot_be_written_or_removed_at_the_start_costs_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    drop(open(home.path(), "a", 4).0.write(0, &record(1), &payload(1)));
    let folder = files(home.path())[0].parent().unwrap().to_owned();
    for name in ["about.tmp", "00000001.kv.tmp"] {
        fs::create_dir(folder.join(name)).unwrap(); // no file can be put or taken away there
    }
    assert_eq!(open(home.path(), "a", 4).1.len(), 1);
}

#[test]
fn a_folder_that_is_removed_under_us_takes_no_more_and_gives_no_more() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("kv");
    let (mut store, _) = open(&path, "a", 4);
    store.write(0, &record(1), &payload(1)).unwrap();
    fs::remove_dir_all(&path).unwrap();
    // Another server may have made a new one of this name: nothing of ours lands there.
    let (_other, _) = open(&path, "a", 4);
    assert!(store.write(1, &record(2), &payload(2)).is_err());
    assert!(matches!(store.read(0, &[1; 16], &mut Vec::new()), Err(ReadError::System { .. })));
    store.erase(0).unwrap();
    assert!(files(&path).is_empty());
}

#[test]
fn purging_leaves_no_block_and_no_key_and_touches_no_folder_in_use() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("kv");
    assert!(purge(&path).is_err() && !path.exists(), "nothing is made by purging");
    let (mut store, _) = open(&path, "a", 4);
    store.write(0, &record(1), &payload(1)).unwrap();
    assert!(matches!(purge(&path), Err(FolderError::InUse { .. })));
    drop(store);
    fs::write(path.join("notes.txt"), "of somebody else").unwrap();
    let key = fs::read(path.join("hash-key")).unwrap();
    let purged = purge(&path).unwrap();
    assert_eq!((purged.len(), purged[0].blocks, purged[0].bytes), (1, 1, FILE));
    let left: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    let (_store, entries) = open(&path, "a", 4);
    assert!(entries.is_empty());
    assert_ne!(fs::read(path.join("hash-key")).unwrap(), key);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))] // each makes many files

    /// Against a plain map: writes, reads and erasures at random places, with a restart now and then.
    #[test]
    fn it_is_a_map_of_places_over_any_number_of_lives(
        calls in prop::collection::vec((0..5u32, 0..4u32, any::<u8>()), 0..60),
    ) {
        let home = tempfile::tempdir().unwrap();
        let mut model: BTreeMap<u32, u8> = BTreeMap::new();
        let (mut store, _) = open(home.path(), "a", 4);
        for (call, place, seed) in calls {
            match call {
                0 | 1 => {
                    store.write(place, &record(seed), &payload(seed)).unwrap();
                    model.insert(place, seed);
                }
                2 => {
                    store.erase(place).unwrap();
                    model.remove(&place);
                }
                3 => {
                    let mut bytes = Vec::new();
                    match model.get(&place) {
                        Some(seed) => {
                            store.read(place, &[*seed; 16], &mut bytes).unwrap();
                            prop_assert_eq!(bytes, payload(*seed));
                        }
                        None => prop_assert!(store.read(place, &[seed; 16], &mut bytes).is_err()),
                    }
                }
                _ => {
                    drop(store);
                    let entries;
                    (store, entries) = open(home.path(), "a", 4);
                    let found: BTreeMap<u32, u8> =
                        entries.iter().map(|entry| (entry.place, entry.record.key[0])).collect();
                    prop_assert_eq!(&found, &model);
                    prop_assert!(entries.iter().all(|entry| entry.record == record(entry.record.key[0])));
                }
            }
        }
    }
}

//! Whatever is written is read again; whatever is changed is noticed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use pelton_cpu::{Cpu, Isa};
use proptest::prelude::*;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::{CHUNK_BYTES, Damage, KeptFile, write};

struct Kept {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn keep(header: &[u8], blobs: &[&[u8]]) -> Kept {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, part) = (folder.path().join("kept"), folder.path().join("kept.part"));
    let bytes = write(&path, &part, header, blobs).expect("written");
    assert_eq!(bytes, fs::metadata(&path).expect("there").len());
    assert!(!part.exists());
    Kept { _folder: folder, path }
}

/// Everything, or why not.
fn read_all(kept: &Kept, threads: usize) -> Result<(Vec<u8>, Vec<Vec<u8>>), Damage> {
    let file = KeptFile::open(&kept.path)?;
    let mut cpu = Cpu::new(Isa::best(), threads);
    let blobs = (0..file.lengths().len()).map(|at| Ok(file.read(at, &mut cpu)?.as_slice::<u8>().to_vec()));
    Ok((file.header().to_vec(), blobs.collect::<Result<_, Damage>>()?))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read(
        header in prop::collection::vec(any::<u8>(), 0..200),
        blobs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..10_000), 0..6),
        threads in 1..4_usize,
    ) {
        let blobs: Vec<_> = blobs.iter().map(Vec::as_slice).collect();
        let (read_header, read_blobs) = read_all(&keep(&header, &blobs), threads).expect("whole");
        prop_assert_eq!(read_header, header);
        prop_assert_eq!(read_blobs, blobs);
    }

    #[test]
    fn any_changed_bit_is_noticed(at in any::<prop::sample::Index>(), bit in 0..8_u32) {
        let kept = keep(b"header", &[&[1; 5000], &[], &[2; 300]]);
        let mut bytes = fs::read(&kept.path).expect("there");
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        fs::write(&kept.path, &bytes).expect("written");
        // Padding alone means nothing: what is read then is what was written.
        if let Ok((header, blobs)) = read_all(&kept, 2) {
            prop_assert_eq!((header, blobs), (b"header".to_vec(), vec![vec![1; 5000], vec![], vec![2; 300]]));
        }
    }

    #[test]
    fn any_other_length_is_noticed(cut in any::<prop::sample::Index>()) {
        let kept = keep(b"header", &[&[1; 5000], &[2; 300]]);
        let bytes = fs::read(&kept.path).expect("there");
        fs::write(&kept.path, &bytes[..cut.index(bytes.len())]).expect("written");
        prop_assert!(read_all(&kept, 2).is_err());
        fs::write(&kept.path, [&bytes[..], &[0]].concat()).expect("written");
        prop_assert!(read_all(&kept, 2).is_err());
    }

    #[test]
    fn no_bytes_are_trusted(front in prop::collection::vec(any::<u64>(), 0..20), is_marked in any::<bool>()) {
        let kept = keep(b"", &[]);
        let mut bytes: Vec<u8> = front.iter().flat_map(|number| number.to_le_bytes()).collect();
        if is_marked && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(b"PELKEPT1");
        }
        fs::write(&kept.path, &bytes).expect("written");
        prop_assert!(read_all(&kept, 1).is_err());
    }
}

#[test]
fn a_blob_of_several_chunks_is_read_by_several_threads() {
    let blob: Vec<u8> = (0..3 * CHUNK_BYTES + 17).map(|at| (at * 31 % 251) as u8).collect();
    let kept = keep(b"", &[&blob]);
    for threads in [1, 2, 8] {
        assert!(read_all(&kept, threads).expect("whole").1 == [&blob[..]]);
    }
    let mut bytes = fs::read(&kept.path).expect("there");
    *bytes.last_mut().expect("some") ^= 1;
    fs::write(&kept.path, bytes).expect("written");
    for threads in [1, 2, 8] {
        assert!(matches!(read_all(&kept, threads), Err(Damage::Content("a part of it has been damaged"))));
    }
}

#[test]
fn a_file_is_its_users_own_and_links_are_not_followed() {
    let kept = keep(b"header", &[]);
    assert_eq!(fs::metadata(&kept.path).expect("there").permissions().mode() & 0o777, 0o600);
    let link = kept.path.with_extension("link");
    symlink(&kept.path, &link).expect("linked");
    assert!(KeptFile::open(&link).is_err());
    let target = kept.path.with_extension("target");
    symlink(&target, kept.path.with_extension("part")).expect("linked");
    assert!(write(&kept.path, &kept.path.with_extension("part"), b"", &[]).is_err());
    assert!(!target.exists());
}

#[test]
fn a_part_that_is_written_is_locked_and_nobody_elses_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, part) = (folder.path().join("kept"), folder.path().join("kept.part"));
    let blob = vec![1; 32 << 20];
    let is_locked = || {
        let file = fs::File::open(&part).ok().filter(|file| file.metadata().is_ok_and(|found| found.len() > 0));
        file.is_some_and(|file| flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK))
    };
    let was_seen = (0..100).any(|_| {
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&path, &part, b"", &[&blob]).expect("written"));
            let mut was_seen = false;
            while !writer.is_finished() {
                was_seen |= is_locked();
            }
            was_seen
        })
    });
    assert!(was_seen);
    fs::write(&part, "another's").expect("written");
    assert!(write(&path, &part, b"", &[]).is_err());
    assert_eq!(fs::read(&part).expect("there"), b"another's");
}

#[test]
fn what_would_be_refused_when_it_is_read_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let [path, part] = ["a", "b"].map(|name| folder.path().join(name));
    let header = vec![b' '; crate::HEADER_BYTES_MAX as usize + 1];
    let error = write(&path, &part, &header, &[]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

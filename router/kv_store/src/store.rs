//! The blocks of one model in a folder, by place.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::{OFlags, Timespec, Timestamps, UTIME_OMIT},
    io::Errno,
};

use crate::{
    Folder, Identity, ReadError, Record,
    file::{self, file_bytes, head, head_bytes, payload, read_head, tail},
    folder::{names, open, remove, replace},
    identity::hex,
    upkeep::{ABOUT, make_room},
};

pub(crate) const KIND: &str = ".kv";

/// What a scan has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub place: u32,
    /// What.
    pub record: Record,
    /// When it was written or read last, in nanoseconds since 1970.
    pub last_used: u64,
}

/// See the top of the file. For one thread.
#[derive(Debug)]
pub struct Store {
    dir: OwnedFd,
    identity: [u8; 32],
    block_size: u32,
    block_bytes: u64,
    places: u32,
    scratch: Vec<u8>,
    _folder: Folder, // keeps the lock
}

impl Folder {
    /// The blocks of this model that are there, and places for as many as fit. The folder takes `limit_bytes` at most, those
    /// of other models included: these give way, the oldest first, when they have more than half. A file that is no whole
    /// block of this model is removed.
    pub fn open(self, identity: &Identity, limit_bytes: u64) -> io::Result<(Store, Vec<Entry>)> {
        let digest = identity.digest();
        let name = hex(&digest[..16]);
        let others = make_room(&self.dir, &name, limit_bytes / 2)?;
        match rustix::fs::mkdirat(&self.dir, &name, rustix::fs::Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let dir = open(&self.dir, &name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        // For people: blocks are of use without it.
        if let Err(error) = replace(&dir, ABOUT, &[identity.about().as_bytes()]) {
            tracing::warn!("the model of the KV folder `{name}` cannot be written there: {error}");
        }
        let each = file_bytes(identity.block_size as usize, identity.block_bytes);
        let store = Store {
            dir,
            identity: digest,
            block_size: identity.block_size,
            block_bytes: identity.block_bytes,
            places: u32::try_from(limit_bytes.saturating_sub(others) / each).unwrap_or(u32::MAX),
            scratch: Vec::new(),
            _folder: self,
        };
        let entries = store.scan()?;
        Ok((store, entries))
    }
}

impl Store {
    /// Places are below this.
    pub fn places(&self) -> u32 {
        self.places
    }

    /// Puts a block at its place, in the stead of what was there.
    pub fn write(&mut self, place: u32, record: &Record, payload: &[u8]) -> io::Result<()> {
        assert!(place < self.places && payload.len() as u64 == self.block_bytes, "the caller knows both");
        assert_eq!(record.tokens.len(), self.block_size as usize, "blocks are full");
        let head = head(record, &self.identity, self.block_bytes);
        let tail = tail(&head, payload);
        replace(&self.dir, &file_name(place), &[&head, payload, &tail])
    }

    /// Reads the block of this name from its place. One that is not there as it was written is removed.
    pub fn read(&mut self, place: u32, key: &[u8; 16], into: &mut Vec<u8>) -> Result<(), ReadError> {
        let system = |error| ReadError::System { place, error };
        let name = file_name(place);
        let mut file = File::from(open(&self.dir, &name, OFlags::RDONLY).map_err(system)?);
        let most = file_bytes(self.block_size as usize, self.block_bytes);
        self.scratch.clear();
        Read::by_ref(&mut file).take(most + 1).read_to_end(&mut self.scratch).map_err(system)?;
        let contents = read_head(&self.scratch, self.scratch.len() as u64, &self.identity).and_then(|head| {
            if head.record.key != *key {
                return Err("it is another block");
            }
            self.check_size(&head)?;
            payload(&self.scratch, &head)
        });
        match contents {
            Ok(payload) => {
                into.clear();
                into.extend_from_slice(payload);
                touch(&file);
                Ok(())
            }
            Err(what) => {
                let _ = remove(&self.dir, &name); // told as damaged either way; a scan meets it again
                Err(ReadError::Damaged { place, what })
            }
        }
    }

    /// Empties a place.
    pub fn erase(&mut self, place: u32) -> io::Result<()> {
        remove(&self.dir, &file_name(place))
    }

    /// Reads all heads. What is no block of this model goes; what lies beyond the last place moves to a free one, or goes.
    fn scan(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for name in names(&self.dir)? {
            if name == ABOUT {
                continue;
            }
            match name.strip_suffix(KIND).and_then(place_of) {
                Some(place) => match self.entry(place) {
                    Ok(entry) => entries.push(entry),
                    // It may be sound: another start finds it again.
                    Err(error @ ReadError::System { .. }) => {
                        tracing::warn!("a file of the KV folder cannot be read: {error}");
                    }
                    Err(error @ ReadError::Damaged { .. }) => {
                        tracing::debug!("a file of the KV folder is removed: {error}");
                        self.tidy(&name);
                    }
                },
                None if name.ends_with(".tmp") => self.tidy(&name),
                None => tracing::warn!("`{name}` in the KV folder is not ours; it stays"),
            }
        }
        self.fit(&mut entries);
        Ok(entries)
    }

    /// Removes a file that is of no use, if it can be.
    fn tidy(&self, name: &str) {
        if let Err(error) = remove(&self.dir, name) {
            tracing::warn!("`{name}` in the KV folder cannot be removed: {error}");
        }
    }

    fn entry(&self, place: u32) -> Result<Entry, ReadError> {
        let system = |error| ReadError::System { place, error };
        let damaged = |what| ReadError::Damaged { place, what };
        let mut file = File::from(open(&self.dir, &file_name(place), OFlags::RDONLY).map_err(system)?);
        let status = file.metadata().map_err(system)?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file)
            .take(head_bytes(self.block_size as usize) as u64)
            .read_to_end(&mut bytes)
            .map_err(system)?;
        let head = read_head(&bytes, status.len(), &self.identity).map_err(damaged)?;
        self.check_size(&head).map_err(damaged)?;
        let modified = status.modified().map_err(system)?;
        let last_used = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Ok(Entry { place, record: head.record, last_used: u64::try_from(last_used).unwrap_or(u64::MAX) })
    }

    fn check_size(&self, head: &file::Head) -> Result<(), &'static str> {
        let is_whole = head.record.tokens.len() == self.block_size as usize;
        if is_whole && head.payload_bytes as u64 == self.block_bytes { Ok(()) } else { Err("it is of another size") }
    }

    /// After the limit was lowered: the least recently used go first, and what cannot be moved.
    fn fit(&self, entries: &mut Vec<Entry>) {
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.last_used));
        for entry in entries.iter().skip(self.places as usize) {
            self.tidy(&file_name(entry.place));
        }
        entries.truncate(self.places as usize);
        let taken: std::collections::BTreeSet<u32> = entries.iter().map(|entry| entry.place).collect();
        let mut free = (0..self.places).filter(|place| !taken.contains(place));
        entries.retain_mut(|entry| {
            if entry.place < self.places {
                return true;
            }
            let place = free.next().expect("there are as many places as entries, and this one has none");
            let moved = rustix::fs::renameat(&self.dir, file_name(entry.place), &self.dir, file_name(place));
            match moved {
                Ok(()) => entry.place = place,
                Err(error) => tracing::warn!("`{}` in the KV folder cannot be moved: {error}", file_name(entry.place)),
            }
            moved.is_ok()
        });
        entries.sort_by_key(|entry| entry.place);
    }
}

/// Says that the block was of use now. If that fails, it counts as older than it is.
fn touch(file: &File) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec {
            tv_sec: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(now.subsec_nanos()),
        },
    };
    let _ = rustix::fs::futimens(file, &times);
}

fn file_name(place: u32) -> String {
    format!("{place:08x}{KIND}")
}

fn place_of(stem: &str) -> Option<u32> {
    (stem.len() == 8).then(|| u32::from_str_radix(stem, 16).ok()).flatten()
}

//! One block as a file.
//!
//! ```text
//!   head       104 bytes   magic, version, count of tokens, identity, key, parent, salt, bytes of the payload
//!   tokens     4 each
//!   checksum   16 bytes    of all before: a scan reads no further
//!   payload
//!   checksum   16 bytes    of all before
//! ```
//!
//! All numbers are little-endian. Checksums are the first half of SHA-256: against damage, not against whoever may write here.

use ring::digest::{Context, SHA256};

const MAGIC: [u8; 8] = *b"PELTONKV";
const VERSION: u32 = 1;
const HEAD: usize = 104;
const SUM: usize = 16;
/// More than any block has; keeps a damaged count from asking for memory.
const TOKENS_MAX: u32 = 1 << 16;

/// What a block is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its name: follows from all below, by the folder's hash key.
    pub key: [u8; 16],
    /// The name of the block before it; none before the first.
    pub parent: Option<[u8; 16]>,
    /// Its tokens.
    pub tokens: Box<[u32]>,
    /// The salt of the requests that can find it.
    pub salt: u64,
}

/// The record of a file whose head has been checked, and where its payload lies.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) record: Record,
    pub(crate) payload_at: usize,
    pub(crate) payload_bytes: usize,
}

/// Bytes of a file with so many tokens and such a payload.
pub(crate) fn file_bytes(tokens: usize, payload: u64) -> u64 {
    head_bytes(tokens) as u64 + payload + SUM as u64
}

/// Bytes before the payload.
pub(crate) fn head_bytes(tokens: usize) -> usize {
    HEAD + 4 * tokens + SUM
}

/// What stands before the payload.
pub(crate) fn head(record: &Record, identity: &[u8; 32], payload_bytes: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(head_bytes(record.tokens.len()));
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(u32::try_from(record.tokens.len()).expect("a block has few tokens").to_le_bytes());
    bytes.extend(identity);
    bytes.extend(record.key);
    bytes.extend(record.parent.unwrap_or_default());
    bytes.extend(u64::from(record.parent.is_some()).to_le_bytes());
    bytes.extend(record.salt.to_le_bytes());
    bytes.extend(payload_bytes.to_le_bytes());
    assert_eq!(bytes.len(), HEAD);
    record.tokens.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
    bytes.extend(sum(&[&bytes]));
    bytes
}

/// What stands after the payload.
pub(crate) fn tail(head: &[u8], payload: &[u8]) -> [u8; SUM] {
    sum(&[head, payload])
}

/// Reads what stands before a payload, from the first bytes of a file of `file_len` bytes.
pub(crate) fn read_head(bytes: &[u8], file_len: u64, identity: &[u8; 32]) -> Result<Head, &'static str> {
    let mut at = Cursor(bytes);
    if at.take::<8>()? != MAGIC {
        return Err("it is no block");
    }
    if u32::from_le_bytes(at.take()?) != VERSION {
        return Err("it is of another version");
    }
    let count = u32::from_le_bytes(at.take()?);
    let is_ours = at.take::<32>()? == *identity;
    let (key, parent) = (at.take()?, at.take()?);
    let has_parent = u64::from_le_bytes(at.take()?);
    let (salt, payload_bytes) = (u64::from_le_bytes(at.take()?), u64::from_le_bytes(at.take()?));
    if count > TOKENS_MAX || has_parent > 1 {
        return Err("its head is damaged");
    }
    let payload_at = head_bytes(count as usize);
    let words = at.0.get(..4 * count as usize).ok_or("it ends too early")?;
    let expected = bytes.get(payload_at - SUM..payload_at).ok_or("it ends too early")?;
    if expected != sum(&[&bytes[..payload_at - SUM]]) {
        return Err("its head is damaged");
    }
    if !is_ours {
        return Err("it is of another model");
    }
    if file_len != file_bytes(count as usize, payload_bytes) {
        return Err("it has another length than it says");
    }
    let tokens =
        words.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("cut into fours"))).collect();
    let parent = (has_parent == 1).then_some(parent);
    let payload_bytes = usize::try_from(payload_bytes).expect("a file of this length is there");
    Ok(Head { record: Record { key, parent, tokens, salt }, payload_at, payload_bytes })
}

/// The payload of a whole file whose head was read.
pub(crate) fn payload<'a>(bytes: &'a [u8], head: &Head) -> Result<&'a [u8], &'static str> {
    let end = head.payload_at + head.payload_bytes;
    let (before, after) = bytes.split_at_checked(end).ok_or("it ends too early")?;
    if after != sum(&[before]) {
        return Err("its contents are damaged");
    }
    Ok(&before[head.payload_at..])
}

fn sum(parts: &[&[u8]]) -> [u8; SUM] {
    let mut sum = Context::new(&SHA256);
    parts.iter().for_each(|part| sum.update(part));
    sum.finish().as_ref()[..SUM].try_into().expect("half of 32 bytes")
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("it ends too early")?;
        self.0 = rest;
        Ok(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDENTITY: [u8; 32] = [9; 32];

    fn whole(record: &Record, payload: &[u8]) -> Vec<u8> {
        let head = head(record, &IDENTITY, payload.len() as u64);
        let tail = tail(&head, payload);
        [&head, payload, &tail].concat()
    }

    fn read(bytes: &[u8]) -> Result<(Record, Vec<u8>), &'static str> {
        let head = read_head(bytes, bytes.len() as u64, &IDENTITY)?;
        let payload = payload(bytes, &head)?.to_vec();
        Ok((head.record, payload))
    }

    prop_compose! {
        fn any_record()(
            key in any::<[u8; 16]>(), parent in any::<Option<[u8; 16]>>(),
            tokens in prop::collection::vec(any::<u32>(), 0..40), salt in any::<u64>(),
        ) -> Record {
            Record { key, parent, tokens: tokens.into(), salt }
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(record in any_record(), payload in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = whole(&record, &payload);
            prop_assert_eq!(bytes.len() as u64, file_bytes(record.tokens.len(), payload.len() as u64));
            prop_assert_eq!(read(&bytes), Ok((record, payload)));
        }

        #[test]
        fn any_bytes_are_refused_and_nothing_else_happens(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(read(&bytes).is_err());
            prop_assert!(read(&[&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat()).is_err());
        }
    }

    #[test]
    fn a_change_of_any_byte_and_a_cut_anywhere_are_refused() {
        let record = Record { key: [1; 16], parent: Some([2; 16]), tokens: [7, 8, 9].into(), salt: 5 };
        let bytes = whole(&record, b"keys and values");
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xFF] {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                assert!(read(&damaged).is_err(), "byte {at} ^ {change}");
            }
            assert!(read(&bytes[..at]).is_err(), "cut at {at}");
        }
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
        assert!(read_head(&bytes, bytes.len() as u64, &[8; 32]).is_err_and(|what| what.contains("another model")));
    }
}

//! Whether a record of the log is one, by all its checksums. `aerobee_store.records.record_scan` says what that is, and
//! looks itself where the answer here is no.

use crate::bytes::{hex8, hex16};
use crate::records::{
    BORN_V6, CHECKSUM, CHECKSUM_SIZE, CRC_MASK, HOST_V6, MAGIC_V1, MAGIC_V2, PROPERTY_CRC, PROPERTY_CRC_SIZE,
    STORE_V6,
};

const HOST_V4: usize = 8;
const CHECKSUM_COVERS_MIN: usize = 36; // up to the physical offset, which it names

/// The bytes of a record, and how far they have been read.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn i32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn i64(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(i16::from_be_bytes(self.take(2)?.try_into().ok()?)).ok()
    }
}

/// Whether these are a whole record of this topic that was written at this place. `is_sealed`: it has to have the
/// checksum over all of it.
pub fn is_sound(record: &[u8], physical_offset: i64, topic: &[u8], is_sealed: bool) -> bool {
    right(record, physical_offset)
        .is_some_and(|found| found.topic == topic && is_proven(record, &found, is_sealed))
}

/// What there is to know of a record that is whole and was written at this place; None says nothing.
pub fn sound(record: &[u8], physical_offset: i64) -> Option<Sound<'_>> {
    right(record, physical_offset).filter(|found| is_proven(record, found, false))
}

/// Physical offsets: from where on records need no proof, and from where on each has to have the checksum over all of it.
pub type Trust = (i64, i64);

/// What there is to know of a record that is whole, was written at this place, and is proven where it has to be.
pub fn trusted(record: &[u8], physical_offset: i64, (proven_from, sealed_from): Trust) -> Option<Sound<'_>> {
    if physical_offset >= proven_from {
        return parts(record, physical_offset);
    }
    right(record, physical_offset).filter(|found| is_proven(record, found, physical_offset >= sealed_from))
}

/// A record by its parts.
pub struct Sound<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub sys_flag: i32,
    pub stored: i64, // ms since the epoch
    pub properties: &'a [u8],
}

/// Whether the checksum over all of it holds, or there is none and none has to be.
fn is_proven(record: &[u8], found: &Sound, is_sealed: bool) -> bool {
    match checksum_at(record) {
        Some(at) => is_sealed_at(record, at, found.physical_offset),
        None => !is_sealed && !has(found.properties, CHECKSUM),
    }
}

/// A record whose lengths, place and body are right.
fn right(record: &[u8], physical_offset: i64) -> Option<Sound<'_>> {
    apart(record, physical_offset)
        .filter(|(_, body, body_crc)| crc32fast::hash(body) & CRC_MASK == *body_crc)
        .map(|(found, _, _)| found)
}

/// A record whose lengths and place are right; its body is not looked at.
pub fn parts(record: &[u8], physical_offset: i64) -> Option<Sound<'_>> {
    apart(record, physical_offset).map(|(found, _, _)| found)
}

/// The parts of a record whose lengths and place are right, its body, and the checksum of that.
fn apart(record: &[u8], physical_offset: i64) -> Option<(Sound<'_>, &[u8], u32)> {
    let mut reader = Reader { rest: record };
    let is_whole = usize::try_from(reader.i32()?).ok()? == record.len();
    let magic = reader.u32()?;
    let body_crc = reader.u32()?;
    let queue_id = reader.i32()?;
    reader.i32()?; // flag
    let queue_offset = reader.i64()?;
    let is_there = reader.i64()? == physical_offset;
    let sys_flag = reader.i32()?;
    reader.i64()?; // born
    reader.take(if sys_flag & BORN_V6 != 0 { HOST_V6 } else { HOST_V4 })?;
    let stored = reader.i64()?;
    reader.take(if sys_flag & STORE_V6 != 0 { HOST_V6 } else { HOST_V4 })?;
    reader.take(12)?; // how often it came back, where a transaction was prepared
    let body_size = usize::try_from(reader.i32()?).ok()?;
    let body = reader.take(body_size)?;
    let topic_size = match magic {
        MAGIC_V1 => usize::try_from(reader.take(1)?[0] as i8).ok()?,
        MAGIC_V2 => reader.length()?,
        _ => return None,
    };
    let topic = reader.take(topic_size)?;
    let properties_size = reader.length()?;
    let properties = reader.rest;
    let is_right = is_whole
        && is_there
        && properties.len() == properties_size
        && stored > 0
        && queue_id >= 0
        && queue_offset >= 0;
    let found = Sound { topic, queue_id, queue_offset, physical_offset, sys_flag, stored, properties };
    is_right.then_some((found, body, body_crc))
}

/// Where the checksum over all of a record stands: at its end, or before RocketMQ's own.
fn checksum_at(record: &[u8]) -> Option<usize> {
    let last = record.len().checked_sub(CHECKSUM_SIZE)?;
    if record[last..].starts_with(CHECKSUM) {
        return Some(last);
    }
    let at = last.checked_sub(PROPERTY_CRC_SIZE)?;
    let entry = &record[at..];
    (entry.starts_with(CHECKSUM) && entry[CHECKSUM_SIZE..].starts_with(PROPERTY_CRC)).then_some(at)
}

/// One that was copied from another place says nothing of this record: it is not for here.
fn is_sealed_at(record: &[u8], at: usize, physical_offset: i64) -> bool {
    let value = &record[at + CHECKSUM.len()..at + CHECKSUM_SIZE];
    at >= CHECKSUM_COVERS_MIN
        && value[..16] == hex16(physical_offset as u64)
        && value[16..24] == hex8(crc32c::crc32c(&record[..at]))
        && value[24] == 2
}

fn has(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

//! Records of another broker's log, on their way into ours as they are: proven, and what dispatch needs of them.
//! `aerobee_store.replicas.raw_log` says what that is, and looks itself at the record that ends the walk here.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::javahash;
use crate::proof;
use crate::records::SCHEDULE_TOPIC;

const TRANSACTION: i32 = 12;
const PREPARED: i32 = 4;
const ROLLBACK: i32 = 12;
const SIZE_MIN: usize = 91;
const VALUE_END: u8 = 2;
/// Runs among which looking is quicker than hashing.
const FEW: usize = 16;

/// Entries whose queue offsets follow each other: topic, queue id, first queue offset, how many, their bytes, physical
/// offset of the first record, physical offset behind the last one.
pub type Run<'py> = (Bound<'py, PyBytes>, i32, i64, usize, Bound<'py, PyBytes>, i64, i64);
/// Keys of records of one store time: how many records, hashes, a physical offset for each, that of the first, the time.
pub type Keys<'py> = (usize, Bound<'py, PyBytes>, Bound<'py, PyBytes>, i64, i64);
/// Where the walk ended, the newest store time, and what was found.
pub type Walked<'py> = (usize, i64, Vec<Run<'py>>, Vec<Keys<'py>>);

struct RunMade<'a> {
    topic: &'a [u8],
    queue_id: i32,
    first: i64,
    count: usize,
    entries: Vec<u8>,
    begin: i64,
    end: i64,
}

struct KeysMade {
    record_count: usize,
    hashes: Vec<u8>,
    places: Vec<u8>,
    begin: i64,
    stored: i64,
}

#[derive(Default)]
struct Wanted<'a> {
    tags: Option<&'a [u8]>,
    unique_key: Option<&'a [u8]>,
    keys: Option<&'a [u8]>,
}

/// The values that dispatch asks for: of several with one name the last that is not empty.
fn wanted(properties: &[u8]) -> Wanted<'_> {
    let mut found = Wanted::default();
    let mut rest = properties;
    while !rest.is_empty() {
        let end = value_end(rest);
        let property = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        // A name ends with the first NAME_END, and none of these has one in it.
        if let Some(value) = property.strip_prefix(b"UNIQ_KEY\x01").filter(|value| !value.is_empty()) {
            found.unique_key = Some(value);
        } else if let Some(value) = property.strip_prefix(b"TAGS\x01").filter(|value| !value.is_empty()) {
            found.tags = Some(value);
        } else if let Some(value) = property.strip_prefix(b"KEYS\x01").filter(|value| !value.is_empty()) {
            found.keys = Some(value);
        }
    }
    found
}

/// Where the first VALUE_END stands, or the end. Eight bytes at a time: byte by byte this took half of a walk over small
/// messages.
fn value_end(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut at = 0;
    while let Some(eight) = text.get(at..at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok()) {
        let differs = u64::from_le_bytes(eight) ^ (ONES * u64::from(VALUE_END));
        let zeros = differs.wrapping_sub(ONES) & !differs & (ONES << 7); // the lowest bit is that of the first zero
        if zeros != 0 {
            return at + zeros.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    text[at..].iter().position(|&byte| byte == VALUE_END).map_or(text.len(), |more| at + more)
}

/// What is known of the topic of the record before.
struct Topic<'a> {
    name: &'a [u8],
    key_hash: u32, // of `topic#`
}

#[derive(Default)]
struct Walk<'a> {
    runs: Vec<RunMade<'a>>,
    open: HashMap<(&'a [u8], i32), usize>, // the last run of each queue
    keys: Vec<KeysMade>,
    newest: i64,
}

impl<'a> Walk<'a> {
    fn enter(&mut self, record: &proof::Sound<'a>, size: usize, tags: Option<&[u8]>) {
        let tag = tags.map_or(0, |tags| javahash::signed(javahash::extended(0, tags)));
        let of_queue = (record.topic, record.queue_id);
        let newest = if self.runs.len() <= FEW {
            self.runs.iter().rposition(|run| run.queue_id == record.queue_id && run.topic == record.topic)
        } else {
            self.open.get(&of_queue).copied()
        };
        let known = newest.filter(|&at| {
            let run = &self.runs[at];
            run.first + run.count as i64 == record.queue_offset
        });
        let at = known.unwrap_or_else(|| {
            self.runs.push(RunMade {
                topic: record.topic,
                queue_id: record.queue_id,
                first: record.queue_offset,
                count: 0,
                entries: Vec::new(),
                begin: record.physical_offset,
                end: 0,
            });
            self.open.insert(of_queue, self.runs.len() - 1);
            self.runs.len() - 1
        });
        let run = &mut self.runs[at];
        run.entries.extend_from_slice(&record.physical_offset.to_be_bytes());
        run.entries.extend_from_slice(&(size as i32).to_be_bytes());
        run.entries.extend_from_slice(&i64::from(tag).to_be_bytes());
        run.count += 1;
        run.end = record.physical_offset + size as i64;
    }

    fn index(&mut self, record: &proof::Sound, topic: &Topic, unique_key: Option<&[u8]>, keys: Option<&[u8]>) {
        let pieces = keys.unwrap_or_default().split(|&byte| byte == b' ').filter(|piece| !piece.is_empty());
        let mut added = false;
        for key in unique_key.into_iter().chain(pieces) {
            let is_same = self.keys.last().is_some_and(|last| last.stored == record.stored);
            if !is_same {
                self.keys.push(KeysMade {
                    record_count: 0,
                    hashes: Vec::new(),
                    places: Vec::new(),
                    begin: record.physical_offset,
                    stored: record.stored,
                });
            }
            let Some(block) = self.keys.last_mut() else { return };
            let hash = javahash::of_key(javahash::extended(topic.key_hash, key));
            block.hashes.extend_from_slice(&hash.to_ne_bytes());
            block.places.extend_from_slice(&record.physical_offset.to_ne_bytes());
            block.record_count += usize::from(!added);
            added = true;
        }
    }
}

/// The sound and usual records that follow each other from `begin` of `content` on, whose first byte lies at `base` of
/// the log. None when there is none to begin with.
pub fn walked<'py>(
    py: Python<'py>,
    content: &[u8],
    begin: usize,
    base: i64,
    is_indexed: bool,
) -> Option<Walked<'py>> {
    let mut walk = Walk::default();
    let mut topic = Topic { name: &[], key_hash: 0 };
    let mut at = begin;
    while let Some(record) = next_record(content, at) {
        let Some(place) = base.checked_add(at as i64) else { break };
        let Some(sound) = proof::sound(record, place) else { break };
        if sound.topic.is_empty() || !sound.topic.is_ascii() || sound.topic == SCHEDULE_TOPIC {
            break; // Python reads what such a text means, and when a delayed message is due
        }
        if topic.name != sound.topic {
            let key_hash = javahash::extended(javahash::extended(0, sound.topic), b"#");
            topic = Topic { name: sound.topic, key_hash };
        }
        let kind = sound.sys_flag & TRANSACTION;
        let found = wanted(sound.properties);
        if kind != PREPARED && kind != ROLLBACK {
            walk.enter(&sound, record.len(), found.tags);
        }
        if is_indexed && kind != ROLLBACK {
            walk.index(&sound, &topic, found.unique_key, found.keys);
        }
        walk.newest = walk.newest.max(sound.stored);
        at += record.len();
    }
    (at > begin).then(|| (at, walk.newest, runs_of(py, walk.runs), keys_of(py, walk.keys)))
}

/// The bytes of a record, as its size says; None when they are not all there.
fn next_record(content: &[u8], at: usize) -> Option<&[u8]> {
    let rest = content.get(at..)?;
    let size = usize::try_from(i32::from_be_bytes(rest.get(..4)?.try_into().ok()?)).ok()?;
    if size < SIZE_MIN { None } else { rest.get(..size) }
}

fn runs_of<'py>(py: Python<'py>, runs: Vec<RunMade>) -> Vec<Run<'py>> {
    runs.into_iter()
        .map(|run| {
            let (topic, entries) = (PyBytes::new(py, run.topic), PyBytes::new(py, &run.entries));
            (topic, run.queue_id, run.first, run.count, entries, run.begin, run.end)
        })
        .collect()
}

fn keys_of<'py>(py: Python<'py>, keys: Vec<KeysMade>) -> Vec<Keys<'py>> {
    keys.into_iter()
        .map(|block| {
            let (hashes, places) = (PyBytes::new(py, &block.hashes), PyBytes::new(py, &block.places));
            (block.record_count, hashes, places, block.begin, block.stored)
        })
        .collect()
}

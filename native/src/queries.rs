//! Queries by key: what one asks, where the index says that such records are, and an answer made of those.
//!
//! `aerobee_store.index.index_file` draws the index, `aerobee_store.reading.query` says which records are found.
//! Whatever takes more than one look at the index, or a look at the disk, is unusual.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySet, PyString};

use crate::answers::Listed;
use crate::indexing::{ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE};
use crate::javahash;
use crate::json::{Json, is_text, whole};
use crate::mapped::Mapped;
use crate::proof::{self, Trust};
use crate::requests::{Cursor, I32, JSON, MSGPACK, ROCKETMQ};

const HEADER_SIZE_MAX: usize = 1024;
/// Records that are looked at for one query.
const PLACES_MAX: usize = 64;
/// Entries of the index that are followed for one query.
const STEPS_MAX: usize = 512;
/// Bytes of records in one answer.
const BODY_SIZE_MAX: usize = 1 << 20;
/// Whole seconds are what the index knows: it is asked for one more, and the records say which they are.
const TIME_STEP_MS: i64 = 1000;
const RECORD_HEAD_SIZE: usize = 8; // size and magic

/// What one request asks.
#[derive(Default)]
pub struct Asked {
    /// Codec of its header, and of the answer.
    pub codec: u8,
    /// Number of the request on its connection.
    pub opaque: i32,
    /// Of the client.
    pub version: i32,
    /// Messages that are wanted.
    pub count: i32,
    /// The key is the unique one: it is up to the broker how many messages are given.
    pub is_unique: bool,
    topic: Vec<u8>,
    key: Vec<u8>,
    begin: i64,
    end: i64,
    /// Where the index says that there may be one, ascending.
    pub places: Vec<i64>,
    /// What was not known to be in memory: the number of a file of the index or LOG, position or physical offset, size.
    pub lacking: Option<(i32, i64, i64)>,
    seen: u8,
}

/// Stands for the log where a file of the index has its number.
const LOG: i32 = -1;

const COUNT: u8 = 1;
const BEGIN: u8 = 2;
const END: u8 = 4;
const TOPIC: u8 = 8;
const KEY: u8 = 16;
const ALL: u8 = 31;
const UNIQUE: u8 = 32;
const OPAQUE: u8 = 64;

impl Asked {
    fn once(&mut self, which: u8) -> Option<()> {
        if self.seen & which != 0 {
            return None;
        }
        self.seen |= which;
        Some(())
    }

    /// Take note of a field; None when it was there before, or says something unusual. Others mean nothing here.
    fn note(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        match name {
            b"topic" => {
                self.once(TOPIC)?;
                self.topic.extend_from_slice(value);
            }
            b"key" => {
                self.once(KEY)?;
                self.key.extend_from_slice(value);
            }
            b"maxNum" => {
                self.once(COUNT)?;
                self.count = i32::try_from(whole(value)?).ok()?;
            }
            b"beginTimestamp" => {
                self.once(BEGIN)?;
                self.begin = whole(value)?;
            }
            b"endTimestamp" => {
                self.once(END)?;
                self.end = whole(value)?;
            }
            b"_UNIQUE_KEY_QUERY" => {
                self.once(UNIQUE)?;
                self.is_unique = match value {
                    b"true" => true,
                    b"false" => false,
                    _ => return None,
                };
            }
            _ => {}
        }
        Some(())
    }

    /// Read the header of a QUERY_MESSAGE; None when it is unusual.
    pub fn read(&mut self, codec: u8, header: &[u8]) -> Option<()> {
        let (mut topic, mut key, mut places) =
            (std::mem::take(&mut self.topic), std::mem::take(&mut self.key), std::mem::take(&mut self.places));
        topic.clear();
        key.clear();
        places.clear();
        *self = Asked { codec, topic, key, places, ..Asked::default() };
        if header.len() > HEADER_SIZE_MAX {
            return None;
        }
        match codec {
            JSON => self.json(header)?,
            ROCKETMQ => self.binary(header)?,
            MSGPACK => self.packed(header)?,
            _ => return None,
        }
        // Several words are no key, and no words are none.
        let is_key = !self.key.is_empty() && !self.key.contains(&b' ');
        (self.seen & ALL == ALL && is_key && !self.topic.is_empty()).then_some(())
    }

    fn json(&mut self, header: &[u8]) -> Option<()> {
        if !header.starts_with(b"{\"code\":12,") {
            return None;
        }
        let mut json = Json::new(header, 10);
        let mut has_fields = false;
        let (mut has_flag, mut has_version) = (false, false);
        loop {
            match json.next()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
            let name = json.plain()?;
            json.expect(b':')?;
            match name {
                b"extFields" if !has_fields => {
                    has_fields = true;
                    self.json_fields(&mut json)?;
                }
                b"opaque" => {
                    self.once(OPAQUE)?;
                    self.opaque = i32::try_from(json.number()?).ok()?;
                }
                b"flag" if !has_flag => {
                    has_flag = true;
                    (json.number()? == 0).then_some(())?;
                }
                b"version" if !has_version => {
                    has_version = true;
                    self.version = i32::try_from(json.number()?).ok()?;
                }
                b"language" => json.name_or_number()?,
                b"remark" | b"serializeTypeCurrentRPC" => {
                    json.plain()?;
                }
                _ => return None,
            }
        }
        json.is_over().then_some(())
    }

    fn json_fields(&mut self, json: &mut Json) -> Option<()> {
        json.expect(b'{')?;
        loop {
            let name = json.plain()?;
            json.expect(b':')?;
            let value = json.plain()?;
            self.note(name, value)?;
            match json.next()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    fn put(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        (is_text(name) && is_text(value)).then_some(())?;
        self.note(name, value)
    }

    fn binary(&mut self, header: &[u8]) -> Option<()> {
        let mut cursor = Cursor::new(header);
        if cursor.i16()? != 12 {
            return None;
        }
        cursor.u8()?; // language
        self.version = i32::from(cursor.i16()?);
        self.opaque = cursor.i32()?;
        (cursor.i32()? == 0).then_some(())?; // flag
        cursor.binary_fields(|name, value| self.put(name, value))
    }

    fn packed(&mut self, header: &[u8]) -> Option<()> {
        if !header.starts_with(&[0x97, 12]) {
            return None;
        }
        let mut cursor = Cursor::new(header);
        cursor.u8()?;
        let mut numbers = [0; 5]; // code, flag, opaque, version, language
        for number in &mut numbers {
            *number = cursor.packed_number()?;
            I32.contains(number).then_some(())?;
        }
        self.opaque = numbers[2] as i32;
        self.version = numbers[3] as i32;
        (numbers[1] == 0).then_some(())?;
        cursor.packed_fields(|name, value| self.put(name, value))
    }

    /// Look into the files of the index, newest first, for at most PLACES_MAX places; None when that is too much for one
    /// look, or not in memory (then `lacking` says what), or gives nothing.
    pub fn look_up(&mut self, index: &[IndexFile]) -> PyResult<Option<()>> {
        let hash = javahash::of_key(javahash::extended(
            javahash::extended(javahash::extended(0, &self.topic), b"#"),
            &self.key,
        ));
        let begin = self.begin.saturating_sub(TIME_STEP_MS);
        let mut steps = STEPS_MAX;
        for (number, file) in index.iter().enumerate() {
            if self.places.len() >= PLACES_MAX {
                break;
            }
            let (view, slots, limit, first_ms, last_ms, known) = file;
            let matches = (begin < *first_ms && self.end > *last_ms)
                || (*first_ms <= begin && begin <= *last_ms)
                || (*first_ms <= self.end && self.end <= *last_ms);
            if matches {
                let chain = Chain {
                    py: view.py(),
                    file: Mapped::of(view)?,
                    slots: *slots,
                    limit: *limit,
                    first_ms: *first_ms,
                    known: known.as_ref(),
                };
                match chain.collect(hash, (begin, self.end), &mut steps, &mut self.places)? {
                    Followed::ToItsEnd => {}
                    Followed::TooFar => return Ok(None),
                    Followed::To(position, size) => {
                        self.lacking = i32::try_from(number).ok().map(|number| (number, position, size));
                        return Ok(None);
                    }
                }
            }
            if *first_ms < begin {
                break;
            }
        }
        self.places.sort_unstable();
        self.places.dedup();
        Ok((!self.places.is_empty()).then_some(()))
    }
}

/// One file of the index, mapped: how many slots it has, the number behind its last entry, the store times of its first
/// and last record, and which pages of it are in memory, by its blocks (none: all of them are).
pub type IndexFile<'py> = (Bound<'py, PyAny>, i64, i64, i64, i64, Option<Bound<'py, PyDict>>);

/// How far a chain was followed.
enum Followed {
    ToItsEnd,
    TooFar,
    /// These bytes are not known to be in memory: position, size.
    To(i64, i64),
}

/// The entries of one file that share a slot, from the newest on.
struct Chain<'a, 'py> {
    py: Python<'py>,
    file: Mapped,
    slots: i64,
    limit: i64,
    first_ms: i64,
    known: Option<&'a Bound<'py, PyDict>>,
}

fn i32_at(bytes: &[u8], at: usize) -> i64 {
    i64::from(i32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

/// Blocks of the index and of the log, as `aerobee_store.reading.residency` has them. Of the former it knows each page.
const INDEX_BITS: u32 = 20;
const LOG_BITS: u32 = 18;

/// Whether the page of this byte of a file of the index is known to be in memory.
fn has_page(known: &Bound<PyDict>, at: usize) -> PyResult<bool> {
    let Some(pages) = known.get_item(at >> INDEX_BITS)? else { return Ok(false) };
    let pages = pages.cast::<PyBytes>()?.as_bytes();
    let page = (at & ((1 << INDEX_BITS) - 1)) * pages.len() >> INDEX_BITS;
    Ok(pages.get(page).is_some_and(|&there| there != 0))
}

/// Whether the pages of a slot or an entry are, which are two at most.
fn has_pages(known: Option<&Bound<PyDict>>, at: usize, size: usize) -> PyResult<bool> {
    let Some(known) = known else { return Ok(true) };
    Ok(has_page(known, at)? && has_page(known, at + size - 1)?)
}

/// Whether the blocks of these bytes of the log are known to be in memory.
fn holds(known: Option<&Bound<PySet>>, at: i64, size: i64) -> PyResult<bool> {
    let Some(known) = known else { return Ok(true) };
    let (first, last) = (at >> LOG_BITS, (at + size - 1) >> LOG_BITS);
    Ok(known.contains(first)? && (first == last || known.contains(last)?))
}

impl Chain<'_, '_> {
    /// As `IndexFile.collect`. Where it does not come to the end, that has to do it.
    fn collect(
        &self,
        hash: i64,
        (begin, end): (i64, i64),
        steps: &mut usize,
        places: &mut Vec<i64>,
    ) -> PyResult<Followed> {
        if self.slots <= 0 {
            return Err(PyValueError::new_err("a file of the index has slots"));
        }
        let entries_at = HEADER_SIZE + self.slots as usize * SLOT_SIZE;
        if self.file.len() < entries_at + self.limit.max(0) as usize * ENTRY_SIZE {
            return Ok(Followed::TooFar);
        }
        let slot_at = HEADER_SIZE + (hash % self.slots) as usize * SLOT_SIZE;
        if !has_pages(self.known, slot_at, SLOT_SIZE)? {
            return Ok(Followed::To(slot_at as i64, SLOT_SIZE as i64));
        }
        let cells = self.file.cells(self.py)?;
        let mut entry = i32_at(&cells.array::<SLOT_SIZE>(slot_at)?, 0);
        while 0 < entry && entry < self.limit && places.len() < PLACES_MAX {
            let at = entries_at + entry as usize * ENTRY_SIZE;
            if *steps == 0 {
                return Ok(Followed::TooFar);
            }
            if !has_pages(self.known, at, ENTRY_SIZE)? {
                return Ok(Followed::To(at as i64, ENTRY_SIZE as i64));
            }
            *steps -= 1;
            let fields: [u8; ENTRY_SIZE] = cells.array(at)?;
            let (entry_hash, seconds, previous) = (i32_at(&fields, 0), i32_at(&fields, 12), i32_at(&fields, 16));
            let place = i32_at(&fields, 4) << 32 | i32_at(&fields, 8) & 0xffff_ffff;
            if seconds < 0 {
                break;
            }
            let stored = self.first_ms.saturating_add(if entry > 1 { seconds * 1000 } else { 0 });
            if entry_hash == hash && begin <= stored && stored <= end && places.last() != Some(&place) {
                places.push(place);
            }
            if stored < begin || previous >= entry {
                break;
            }
            entry = previous;
        }
        Ok(Followed::ToItsEnd)
    }
}

/// A file of the log, mapped: its first byte, the one behind the last that is written, and the blocks of the log that are
/// in memory (none: all of them are).
pub type LogFile<'py> = (Bound<'py, PyAny>, i64, i64, Option<Bound<'py, PySet>>);

/// Of a message that was found: queue, number in it, physical offset, size.
pub type Named = (i32, i64, i64, i64);

/// The whole answer, the topic, and its messages and those that were left out as too many, oldest first.
pub type Answer<'py> = (Bound<'py, PyBytes>, Bound<'py, PyString>, Vec<Named>);

/// A record, and the message that it is.
struct Record {
    bytes: Vec<u8>,
    named: Named,
}

impl Asked {
    /// The answer with the newest `count` of the messages at the places that are what was asked for, in these files of
    /// the log, oldest first; None when there is none, or anything is unusual.
    pub fn answer<'py>(
        &mut self,
        py: Python<'py>,
        log: &[LogFile<'py>],
        count: usize,
        updated: (i64, i64),
        trust: Trust,
    ) -> PyResult<Option<Answer<'py>>> {
        let mut found: Vec<Record> = Vec::new();
        let mut size = 0;
        let mut files = log.iter();
        let mut open: Option<(&LogFile<'py>, Mapped)> = None;
        for &place in &self.places {
            while open.as_ref().is_none_or(|((_, _, limit, _), _)| place >= *limit) {
                let Some(file) = files.next() else { return Ok(None) };
                open = Some((file, Mapped::of(&file.0)?));
            }
            let Some(((_, base, limit, known), file)) = open.as_ref() else { return Ok(None) };
            let record = match copied(py, file, place, (*base, *limit), known.as_ref())? {
                Copied::Record(bytes) => bytes,
                Copied::None => return Ok(None),
                Copied::NotKnown(size) => {
                    self.lacking = Some((LOG, place, size));
                    return Ok(None);
                }
            };
            size += record.len();
            if size > BODY_SIZE_MAX {
                return Ok(None);
            }
            let Some(parts) = proof::trusted(&record, place, trust) else { return Ok(None) };
            let Some(is_asked_for) = self.is_in(&parts) else { return Ok(None) };
            if is_asked_for && self.begin <= parts.stored && parts.stored <= self.end {
                let named = (parts.queue_id, parts.queue_offset, place, record.len() as i64);
                found.push(Record { bytes: record, named });
            }
        }
        if found.is_empty() || count == 0 {
            return Ok(None);
        }
        let given = &found[found.len().saturating_sub(count)..];
        let size = given.iter().map(|record| record.bytes.len()).sum();
        let mut header = Vec::with_capacity(256);
        if !(Listed { opaque: self.opaque, updated }).write(&mut header, self.codec, size) {
            return Ok(None);
        }
        let answer = PyBytes::new_with(py, header.len() + size, |out| {
            let mut at = header.len();
            out[..at].copy_from_slice(&header);
            for record in given {
                out[at..at + record.bytes.len()].copy_from_slice(&record.bytes);
                at += record.bytes.len();
            }
            Ok(())
        })?;
        let Ok(topic) = std::str::from_utf8(&self.topic) else { return Ok(None) };
        let named = found.iter().map(|record| record.named).collect();
        Ok(Some((answer, PyString::new(py, topic), named)))
    }

    /// Whether a record is of the topic and has the key; None when that takes a closer look.
    fn is_in(&self, parts: &proof::Sound) -> Option<bool> {
        (is_text(parts.topic) && is_text(parts.properties)).then_some(())?;
        if parts.topic != self.topic {
            return Some(false);
        }
        if value(parts.properties, b"UNIQ_KEY\x01") == Some(&self.key) {
            return Some(true);
        }
        let keys = value(parts.properties, b"KEYS\x01");
        Some(keys.is_some_and(|keys| keys.split(|&byte| byte == b' ').any(|key| key == self.key)))
    }
}

/// The value of the last property that begins so and has one.
fn value<'a>(properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    properties.rsplit(|&byte| byte == 2).filter_map(|piece| piece.strip_prefix(name)).find(|value| !value.is_empty())
}

/// What stands at a place of the log.
enum Copied {
    Record(Vec<u8>),
    None,
    /// So many bytes there are not known to be in memory.
    NotKnown(i64),
}

/// The record at this place of the log.
fn copied(
    py: Python,
    file: &Mapped,
    place: i64,
    (base, limit): (i64, i64),
    known: Option<&Bound<PySet>>,
) -> PyResult<Copied> {
    if place < base || place > limit - RECORD_HEAD_SIZE as i64 {
        return Ok(Copied::None);
    }
    if !holds(known, place, RECORD_HEAD_SIZE as i64)? {
        return Ok(Copied::NotKnown(RECORD_HEAD_SIZE as i64));
    }
    let at = (place - base) as usize;
    let size = i32_at(&file.cells(py)?.array::<4>(at)?, 0);
    if size < RECORD_HEAD_SIZE as i64 || size > limit - place || size > BODY_SIZE_MAX as i64 {
        return Ok(Copied::None);
    }
    if !holds(known, place, size)? {
        return Ok(Copied::NotKnown(size));
    }
    let mut record = vec![0; size as usize];
    file.copy(py, at, &mut record)?;
    Ok(Copied::Record(record))
}

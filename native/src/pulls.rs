//! Pulls: what changes from one request of a reader to the next, and an answer made of queue entries and the log.
//!
//! A reader asks for the same again and again, but for three numbers, and for two texts where it signs. The rest of its
//! header is a key, byte by byte, to what Python has once read in it; so no field has two meanings, and none is read here
//! but those.

use std::cmp::Ordering;
use std::collections::HashMap;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::answers::Found;
use crate::json::{Json, is_text, whole};
use crate::mapped::Mapped;
use crate::proof::{self, Trust};
use crate::records::{MAGIC_V1, MAGIC_V2};
use crate::requests::{Cursor, I32, JSON, MSGPACK, ROCKETMQ};

/// Bytes of a key; headers that are longer are unusual.
const KEY_SIZE_MAX: usize = 1024;
/// Keys of one generation. There are two: who did not ask while so many others came is forgotten.
const KNOWN_MAX: usize = 2048;
const ENTRY_SIZE: usize = 20;
const BODY_SIZE_MAX: usize = 1 << 29;
const HEAD_SIZE: usize = 36; // of a record: up to its physical offset

/// What changes.
#[derive(Default)]
pub struct Varying<'a> {
    /// Number of the message that the reader wants next.
    pub offset: i64,
    /// What it has done with, if it says so.
    pub commit_offset: i64,
    /// Number of the request on its connection.
    pub opaque: i32,
    /// Who has asked has signed so, if it has signed.
    pub signature: Option<&'a [u8]>,
    /// When, and for which connection, if it says so.
    pub freshness: Option<&'a [u8]>,
    seen: u8,
}

const OFFSET: u8 = 1;
const COMMIT_OFFSET: u8 = 2;
const OPAQUE: u8 = 4;
const ALL: u8 = 7;
const SIGNATURE: u8 = 8;
const FRESHNESS: u8 = 16;

impl<'a> Varying<'a> {
    /// Take note of a number; None when it was there before.
    fn set(&mut self, which: u8, value: i64) -> Option<()> {
        if self.seen & which != 0 {
            return None;
        }
        self.seen |= which;
        match which {
            OFFSET => self.offset = value,
            COMMIT_OFFSET => self.commit_offset = value,
            _ => self.opaque = i32::try_from(value).ok()?,
        }
        Some(())
    }

    /// Take note of a field by its text; None when it was there before, or is no such text. Binary codecs have two
    /// meanings for none.
    fn note(&mut self, which: u8, value: &'a [u8]) -> Option<()> {
        if which <= ALL {
            return self.set(which, whole(value)?);
        }
        if self.seen & which != 0 || value.is_empty() {
            return None;
        }
        self.seen |= which;
        *(if which == SIGNATURE { &mut self.signature } else { &mut self.freshness }) = Some(value);
        Some(())
    }
}

fn of_field(name: &[u8]) -> Option<u8> {
    match name {
        b"queueOffset" => Some(OFFSET),
        b"commitOffset" => Some(COMMIT_OFFSET),
        b"Signature" => Some(SIGNATURE),
        b"AccessFreshness" => Some(FRESHNESS),
        _ => None,
    }
}

/// What changes in a header of PULL_MESSAGE or LITE_PULL_MESSAGE, and the rest in `key`; None when it is unusual.
pub fn read<'a>(codec: u8, header: &'a [u8], key: &mut Vec<u8>) -> Option<Varying<'a>> {
    key.clear();
    if header.len() > KEY_SIZE_MAX {
        return None;
    }
    key.push(codec);
    let mut varying = Varying::default();
    match codec {
        JSON => json(header, key, &mut varying)?,
        ROCKETMQ => binary(header, key, &mut varying)?,
        MSGPACK => packed(header, key, &mut varying)?,
        _ => return None,
    }
    (varying.seen & ALL == ALL).then_some(varying)
}

/// Puts into the key what stands between what changes. A zero byte, which JSON has nowhere, stands for each of those.
struct Rest<'a, 'k> {
    header: &'a [u8],
    key: &'k mut Vec<u8>,
    from: usize,
}

impl Rest<'_, '_> {
    fn cut(&mut self, begin: usize, end: usize) {
        self.key.extend_from_slice(&self.header[self.from..begin]);
        self.key.push(0);
        self.from = end;
    }
}

fn json<'a>(header: &'a [u8], key: &mut Vec<u8>, varying: &mut Varying<'a>) -> Option<()> {
    let code = header.strip_prefix(b"{\"code\":")?;
    let at = 8 + if code.starts_with(b"11,") {
        2
    } else if code.starts_with(b"361,") {
        3
    } else {
        return None;
    };
    let mut json = Json::new(header, at);
    let mut rest = Rest { header, key, from: 0 };
    loop {
        match json.next()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
        let name = json.plain()?;
        json.expect(b':')?;
        match name {
            b"extFields" => json_fields(&mut json, &mut rest, varying)?,
            b"opaque" => {
                let begin = json.place();
                varying.set(OPAQUE, json.number()?)?;
                rest.cut(begin, json.place());
            }
            b"flag" | b"version" => {
                json.number()?;
            }
            b"language" => json.name_or_number()?,
            b"remark" | b"serializeTypeCurrentRPC" => {
                json.plain()?;
            }
            _ => return None,
        }
    }
    rest.cut(header.len(), header.len());
    json.is_over().then_some(())
}

fn json_fields<'a>(json: &mut Json<'a>, rest: &mut Rest, varying: &mut Varying<'a>) -> Option<()> {
    json.expect(b'{')?;
    loop {
        let name = json.plain()?;
        json.expect(b':')?;
        let begin = json.place() + 1;
        let value = json.plain()?;
        if let Some(which) = of_field(name) {
            varying.note(which, value)?;
            rest.cut(begin, json.place() - 1);
        }
        match json.next()? {
            b',' => {}
            b'}' => return Some(()),
            _ => return None,
        }
    }
}

/// A field that does not change, or the name of one that does, in a form that stands for one field only.
fn put<'a>(key: &mut Vec<u8>, name: &[u8], value: &'a [u8], varying: &mut Varying<'a>) -> Option<()> {
    let which = of_field(name);
    key.extend_from_slice(&(name.len() as u32).to_be_bytes());
    key.extend_from_slice(name);
    match which {
        Some(which) => {
            is_text(value).then_some(())?;
            varying.note(which, value)?;
            key.push(0);
        }
        None => {
            key.push(1);
            key.extend_from_slice(&(value.len() as u32).to_be_bytes());
            key.extend_from_slice(value);
        }
    }
    Some(())
}

fn binary<'a>(header: &'a [u8], key: &mut Vec<u8>, varying: &mut Varying<'a>) -> Option<()> {
    let mut cursor = Cursor::new(header);
    let fixed = cursor.take(5)?; // code, language, version
    if !matches!(fixed[..2], [0, 11] | [1, 0x69]) {
        return None;
    }
    key.extend_from_slice(fixed);
    varying.set(OPAQUE, i64::from(cursor.i32()?))?;
    key.extend_from_slice(cursor.take(4)?); // flag
    cursor.binary_fields(|name, value| put(key, name, value, varying))
}

fn packed<'a>(header: &'a [u8], key: &mut Vec<u8>, varying: &mut Varying<'a>) -> Option<()> {
    if !(header.starts_with(&[0x97, 11]) || header.starts_with(&[0x97, 0xcd, 1, 0x69])) {
        return None;
    }
    let mut cursor = Cursor::new(header);
    cursor.u8()?;
    for which in [0, 0, OPAQUE, 0, 0] {
        // code, flag, opaque, version, language
        let value = cursor.packed_number()?;
        if which == OPAQUE {
            varying.set(OPAQUE, value)?;
        } else {
            I32.contains(&value).then_some(())?;
            key.extend_from_slice(&value.to_be_bytes());
        }
    }
    cursor.packed_fields(|name, value| put(key, name, value, varying))
}

/// What Python has read in headers, by their keys.
#[derive(Default)]
pub struct Known {
    young: HashMap<Vec<u8>, Py<PyAny>>,
    old: HashMap<Vec<u8>, Py<PyAny>>,
    /// Of the request in hand.
    pub key: Vec<u8>,
}

impl Known {
    /// What was learned of the key in hand.
    pub fn get<'py>(&mut self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        if let Some(found) = self.young.get(&self.key) {
            return Some(found.bind(py).clone());
        }
        let found = self.old.remove(&self.key)?;
        let bound = found.bind(py).clone();
        self.add(found);
        Some(bound)
    }

    /// For Python's search for garbage.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.young.values().chain(self.old.values()).try_for_each(|what| visit.call(what))
    }

    /// Have this for the key in hand from now on.
    pub fn add(&mut self, what: Py<PyAny>) {
        if self.young.len() >= KNOWN_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(self.key.clone(), what);
    }
}

/// What records have to say of themselves that this process has not written: topic, queue, number of the first entry; and
/// which of them are to be proven.
pub type Old<'py> = (Bound<'py, PyBytes>, i32, i64, Trust);

/// Entries of a queue and the file of the log that they lead to, mapped; its first byte, and the one behind the last that
/// is written; records of one answer, and their bytes; the range of the queue; what is asked of old records.
pub type Nearby<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, i64, i64, i64, i64, i64, i64, Option<Old<'py>>);

/// What a reader may get at once, and what it wants.
struct Bounds<'a> {
    begin: i64,
    limit: i64,
    count: i64,
    size: i64,
    tags: Option<&'a [u8]>, // i32 of this machine, from the least on; none: all messages
}

/// Where a record lies in its file, its size, and which of the entries leads to it.
#[derive(Clone, Copy)]
struct Record {
    place: usize,
    size: usize,
    number: i64,
}

/// Records that were chosen, and how many entries were looked at for them.
struct Chosen {
    records: Vec<Record>,
    size: usize,
    passed: i64,
}

fn is_wanted(tags: &[u8], tag: i32) -> bool {
    let word = |at: usize| i32::from_ne_bytes([tags[at], tags[at + 1], tags[at + 2], tags[at + 3]]);
    let (mut low, mut high) = (0, tags.len() / 4);
    while low < high {
        let middle = (low + high) / 2;
        match word(4 * middle).cmp(&tag) {
            Ordering::Equal => return true,
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    false
}

/// The records of the first entries, as `reading.get_message` chooses them; None when it has to look itself.
fn choose(entries: &[u8], bounds: &Bounds) -> Option<Chosen> {
    let mut chosen = Chosen { records: Vec::with_capacity(32), size: 0, passed: 0 };
    for entry in entries.chunks_exact(ENTRY_SIZE) {
        let place = i64::from_be_bytes(entry[..8].try_into().ok()?);
        let size = i64::from(i32::from_be_bytes(entry[8..12].try_into().ok()?));
        let (count, sum) = (chosen.records.len() as i64, chosen.size as i64);
        if count > 0 && (count >= bounds.count || sum + size > bounds.size) {
            break;
        }
        chosen.passed += 1;
        if let Some(tags) = bounds.tags {
            let tag = i64::from_be_bytes(entry[12..].try_into().ok()?);
            if !is_wanted(tags, tag as i32) {
                continue;
            }
        }
        if size < HEAD_SIZE as i64 || place < bounds.begin || place > bounds.limit - size {
            return None;
        }
        chosen.records.push(Record {
            place: usize::try_from(place - bounds.begin).ok()?,
            size: size as usize,
            number: chosen.passed - 1,
        });
        chosen.size += size as usize;
    }
    (!chosen.records.is_empty() && chosen.size <= BODY_SIZE_MAX).then_some(chosen)
}

/// Records that lie side by side, together.
fn runs(records: &[Record]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::with_capacity(records.len());
    for &Record { place, size, .. } in records {
        match runs.last_mut() {
            Some((begin, length)) if *begin + *length == place => *length += size,
            _ => runs.push((place, size)),
        }
    }
    runs
}

/// Copy all records, one behind the other.
fn copy_all(py: Python, file: &Mapped, chosen: &Chosen, out: &mut [u8]) -> PyResult<()> {
    let mut at = 0;
    for (begin, length) in runs(&chosen.records) {
        file.copy(py, begin, &mut out[at..at + length])?;
        at += length;
    }
    Ok(())
}

/// Whether each record is one, and the one that its entry says.
fn are_right(chosen: &Chosen, begin: i64, mut body: &[u8]) -> bool {
    chosen.records.iter().all(|&Record { place, size, .. }| {
        let (record, rest) = body.split_at(size);
        body = rest;
        let word = |at: usize| u32::from_be_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        let stored = u64::from(word(28)) << 32 | u64::from(word(32));
        word(0) as usize == size
            && matches!(word(4), MAGIC_V1 | MAGIC_V2)
            && stored as i64 == begin + place as i64
    })
}

/// Whether a record that lies there is sound, and the one that its entry says.
fn is_the_one(record: &[u8], physical_offset: i64, number: i64, (topic, queue_id, first, trust): &Old) -> bool {
    proof::trusted(record, physical_offset, *trust).is_some_and(|found| {
        found.topic == topic.as_bytes()
            && found.queue_id == *queue_id
            && first.checked_add(number) == Some(found.queue_offset)
    })
}

/// Whether all of them are.
fn are_the_ones(chosen: &Chosen, begin: i64, mut body: &[u8], old: &Old) -> bool {
    chosen.records.iter().all(|&Record { place, size, number }| {
        let (record, rest) = body.split_at(size);
        body = rest;
        is_the_one(record, begin + place as i64, number, old)
    })
}

/// Memory that is kept between calls.
#[derive(Default)]
pub struct Rooms {
    entries: Vec<u8>,
    header: Vec<u8>,
    records: Vec<u8>,
}

/// Whether a record of so many bytes that lies there in a file is the one that should be there.
pub fn is_sound(
    rooms: &mut Rooms,
    view: &Bound<PyAny>,
    (at, size): (usize, usize),
    physical_offset: i64,
    topic: &[u8],
    is_sealed: bool,
) -> PyResult<bool> {
    if size > BODY_SIZE_MAX {
        return Ok(false);
    }
    rooms.records.resize(size, 0);
    Mapped::of(view)?.copy(view.py(), at, &mut rooms.records)?;
    Ok(proof::is_sound(&rooms.records, physical_offset, topic, is_sealed))
}

/// Whether these entries lead to records of a file that are sound, and those that the entries say.
pub fn are_sound<'py>(
    py: Python<'py>,
    rooms: &mut Rooms,
    entries: &Bound<'py, PyAny>,
    (view, begin, limit): (Bound<'py, PyAny>, i64, i64),
    old: &Old<'py>,
) -> PyResult<bool> {
    let packed = PyBuffer::<u8>::get(entries)?;
    rooms.entries.resize(packed.len_bytes(), 0);
    packed.copy_to_slice(py, &mut rooms.entries)?;
    let bounds = Bounds { begin, limit, count: i64::MAX, size: BODY_SIZE_MAX as i64, tags: None };
    let Some(chosen) = choose(&rooms.entries, &bounds) else { return Ok(false) };
    if chosen.records.len() * ENTRY_SIZE != rooms.entries.len() {
        return Ok(false);
    }
    let file = Mapped::of(&view)?;
    for &Record { place, size, number } in &chosen.records {
        rooms.records.resize(size, 0);
        file.copy(py, place, &mut rooms.records)?;
        if !is_the_one(&rooms.records, begin + place as i64, number, old) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The answer as a whole frame, how many messages it has, their bytes, and how many entries were looked at; None when
/// nothing is found, or anything is unusual. `found` is filled in but for the next offset.
pub fn gather<'py>(
    py: Python<'py>,
    rooms: &mut Rooms,
    nearby: &Nearby<'py>,
    tags: Option<&[u8]>,
    codec: u8,
    mut found: Found,
) -> PyResult<Option<(Bound<'py, PyBytes>, usize, usize, i64)>> {
    let (entries, view, begin, limit, count, size, _, _, old) = nearby;
    let bounds = Bounds { begin: *begin, limit: *limit, count: *count, size: *size, tags };
    if bounds.begin < 0 || bounds.limit < bounds.begin {
        return Err(PyValueError::new_err("a file of the log begins at 0 or later, and ends behind that"));
    }
    let packed = PyBuffer::<u8>::get(entries)?;
    rooms.entries.resize(packed.len_bytes(), 0);
    packed.copy_to_slice(py, &mut rooms.entries)?;
    let Some(chosen) = choose(&rooms.entries, &bounds) else { return Ok(None) };
    let Some(next) = found.next_offset.checked_add(chosen.passed) else { return Ok(None) };
    found.next_offset = next;
    rooms.header.clear();
    if !found.write(&mut rooms.header, codec, chosen.size) {
        return Ok(None);
    }
    let header_size = rooms.header.len();
    let file = Mapped::of(view)?;
    let mut is_right = true;
    let answer = PyBytes::new_with(py, header_size + chosen.size, |out| {
        let (header, body) = out.split_at_mut(header_size);
        header.copy_from_slice(&rooms.header);
        copy_all(py, &file, &chosen, body)?;
        is_right = match old {
            Some(old) => are_the_ones(&chosen, bounds.begin, body, old),
            None => bounds.tags.is_none() || are_right(&chosen, bounds.begin, body),
        };
        Ok(())
    })?;
    Ok(is_right.then(|| (answer, chosen.records.len(), chosen.size, next)))
}

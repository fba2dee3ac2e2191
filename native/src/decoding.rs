//! Records of an answer, each made into an object of Python's. The layout is drawn in `aerobee_proto.records`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::bytes::{hex8, hex16};
use crate::records::{CHECKSUM, CHECKSUM_SIZE, CRC_MASK, MAGIC_V1, MAGIC_V2};

/// Everything before the body, with IPv4 hosts.
const HEAD_SIZE: usize = 88;
const HOSTS_V6: i32 = 0x30;

/// One record: where its parts lie, and the numbers of its head.
struct Layout<'a> {
    head: &'a [u8],
    body: &'a [u8],
    topic: &'a [u8],
    properties: &'a [u8],
    version: u8,
    size: usize,
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn i64_at(bytes: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// `size` bytes from `at` on, and where they end.
fn part(record: &[u8], at: usize, size: i64) -> Option<(&[u8], usize)> {
    let end = at.checked_add(usize::try_from(size).ok()?)?;
    Some((record.get(at..end)?, end))
}

fn length(record: &[u8], at: usize) -> Option<i64> {
    Some(i64::from(i16::from_be_bytes(record.get(at..at + 2)?.try_into().ok()?)))
}

/// The record at the front of `bytes`; None when there is none whole, or its hosts are not IPv4.
fn layout(bytes: &[u8]) -> Option<Layout<'_>> {
    let size = usize::try_from(i32_at(bytes, 0)?).ok()?;
    let record = bytes.get(..size)?;
    let head = record.get(..HEAD_SIZE)?;
    let version = match u32::from_be_bytes(head[4..8].try_into().ok()?) {
        MAGIC_V1 => 1,
        MAGIC_V2 => 2,
        _ => return None,
    };
    if i32_at(head, 36)? & HOSTS_V6 != 0 {
        return None;
    }
    let (body, topic_length_at) = part(record, HEAD_SIZE, i64::from(i32_at(head, 84)?))?;
    let (topic_length, topic_at) = if version == 1 {
        (i64::from(*record.get(topic_length_at)? as i8), topic_length_at + 1)
    } else {
        (length(record, topic_length_at)?, topic_length_at + 2)
    };
    let (topic, topic_end) = part(record, topic_at, topic_length)?;
    let (properties, end) = part(record, topic_end + 2, length(record, topic_end)?)?;
    (end == size).then_some(Layout { head, body, topic, properties, version, size })
}

/// Whether body and record are what their checksums say. False also where that takes a closer look.
fn is_sound(bytes: &[u8], record: &Layout) -> Option<bool> {
    if (crc32fast::hash(record.body) & CRC_MASK) as i32 != i32_at(record.head, 8)? {
        return Some(false);
    }
    let properties = record.properties;
    if !properties.windows(CHECKSUM.len()).any(|window| window == CHECKSUM) {
        return Some(true);
    }
    let Some(entry_at) = properties.len().checked_sub(CHECKSUM_SIZE) else {
        return Some(false);
    };
    let crc = crc32c::crc32c(bytes.get(..record.size - CHECKSUM_SIZE)?);
    let (name, rest) = properties[entry_at..].split_at(CHECKSUM.len());
    Some(
        name == CHECKSUM
            && rest[..16] == hex16(i64_at(record.head, 28)? as u64)
            && rest[16..24] == hex8(crc)
            && rest[24] == 2,
    )
}

/// What was made of the same bytes lately.
struct Last<'a, 'py> {
    of: &'a [u8],
    made: Option<Bound<'py, PyAny>>,
}

impl<'a, 'py> Last<'a, 'py> {
    fn made_of(&mut self, bytes: &'a [u8], maker: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match &self.made {
            Some(made) if self.of == bytes => Ok(made.clone()),
            _ => {
                let made = maker.call1((PyBytes::new(maker.py(), bytes),))?;
                self.of = bytes;
                self.made = Some(made.clone());
                Ok(made)
            }
        }
    }
}

/// The records that fill `body`, made by `make` of their seventeen fields in the order of `StoredRecord`; `host` and
/// `topic` make what those two are of their bytes. None when one of them is not sound, or unusual.
pub fn decoded<'py>(
    body: &Bound<'py, PyBytes>,
    make: &Bound<'py, PyAny>,
    host: &Bound<'py, PyAny>,
    topic: &Bound<'py, PyAny>,
    is_checked: bool,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let py = body.py();
    let found = PyList::empty(py);
    let nothing = Last { of: &[], made: None };
    let (mut topics, mut born_hosts, mut store_hosts) =
        (nothing, Last { of: &[], made: None }, Last { of: &[], made: None });
    let mut left = body.as_bytes();
    while !left.is_empty() {
        let Some(record) = layout(left) else { return Ok(None) };
        if is_checked && is_sound(left, &record) != Some(true) {
            return Ok(None);
        }
        let Ok(properties) = std::str::from_utf8(record.properties) else { return Ok(None) };
        let Some(fields) = numbers(record.head) else { return Ok(None) };
        let (queue_id, flag, queue_offset, physical_offset, sys_flag, born, store, times, prepared, crc) = fields;
        let fields = [
            topics.made_of(record.topic, topic)?,
            queue_id.into_pyobject(py)?.into_any(),
            flag.into_pyobject(py)?.into_any(),
            queue_offset.into_pyobject(py)?.into_any(),
            physical_offset.into_pyobject(py)?.into_any(),
            sys_flag.into_pyobject(py)?.into_any(),
            born.into_pyobject(py)?.into_any(),
            born_hosts.made_of(&record.head[48..56], host)?,
            store.into_pyobject(py)?.into_any(),
            store_hosts.made_of(&record.head[64..72], host)?,
            times.into_pyobject(py)?.into_any(),
            prepared.into_pyobject(py)?.into_any(),
            PyBytes::new(py, record.body).into_any(),
            PyString::new(py, properties).into_any(),
            record.size.into_pyobject(py)?.into_any(),
            crc.into_pyobject(py)?.into_any(),
            record.version.into_pyobject(py)?.into_any(),
        ];
        found.append(make.call1(PyTuple::new(py, fields)?)?)?;
        left = &left[record.size..];
    }
    Ok(Some(found))
}

type Numbers = (i32, i32, i64, i64, i32, i64, i64, i32, i64, u32);

fn numbers(head: &[u8]) -> Option<Numbers> {
    Some((
        i32_at(head, 12)?,
        i32_at(head, 16)?,
        i64_at(head, 20)?,
        i64_at(head, 28)?,
        i32_at(head, 36)?,
        i64_at(head, 40)?,
        i64_at(head, 56)?,
        i32_at(head, 72)?,
        i64_at(head, 76)?,
        i32_at(head, 8)? as u32,
    ))
}

//! What Python calls. Names and order of what is returned are told in `aerobee_broker.native.engine`.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::types::{PyBytes, PyList, PyTuple};
use pyo3::{create_exception, intern, prelude::*};

use crate::answers::{Common, Found, Stored};
use crate::judging::Judge;
use crate::mapped::Mapped;
use crate::proof::Trust;
use crate::records::{Form, Message};
use crate::requests::{self, SEND_BATCH_MESSAGE};
use crate::{copying, decoding, indexing, javahash, properties, pulls, queries};

create_exception!(aerobee_native, EngineFault, PyRuntimeError, "The engine has a fault.");

/// The messages of one call are about as many at most: one batch may go beyond.
const MESSAGES_MAX: usize = 4096;
/// Messages of one batch that are stored in one turn, and bytes of their properties: more go in steps, in Python.
const BATCH_MESSAGES_MAX: usize = 1000;
const BATCH_PROPERTIES_MAX: usize = 128 * 1024;
/// The records of a batch may be so much longer than the longest body.
const RECORD_EXTRA_MAX: usize = 65_536;
const TRANSACTION_OR_BATCH: i32 = 0xC | 0x80; // sys flags of messages that ask for more

/// What is known of a topic.
struct Topic {
    name: Vec<u8>,
    // Known of its records as soon as it has a queue.
    magic: u32,
    prefix: Vec<u8>,
    key_hash: u32, // of `topic#`
    queues: Vec<Option<Queue>>,
    // Known while its route holds.
    route: Option<Route>,
    // Of the call in hand.
    call: u64,
    messages: i64,
    requests: i64,
    size: i64,
}

struct Queue {
    queue: Py<PyAny>,
    call: u64,
    touched: usize, // in that call
}

struct Route {
    generation: u64,
    counters: Py<PyAny>,
    queue_id_limit: i32,
    sys_flag: i32,
}

/// A queue that gets entries in the call in hand.
#[derive(Default)]
struct Touched {
    topic: usize,
    queue_id: usize,
    first: i64,
    next: i64,
    entries: Vec<u8>,
}

/// Where a send goes.
struct Destination {
    topic: usize,
    queue_id: usize,
    sys_flag: i32,
}

/// One message, ready to be stored.
struct One<'a> {
    flag: i32,
    body: &'a [u8],
    text: std::ops::Range<usize>, // its properties
    size: usize,                  // bytes of its record
    properties: properties::Properties,
}

/// The messages in the body of a batch: `aerobee_proto.batch` draws them.
struct Entries<'a> {
    rest: &'a [u8],
}

const ENTRY_HEAD_SIZE: usize = 20;

impl<'a> Entries<'a> {
    /// Flag, body and properties of the next message; None when its lengths do not add up.
    fn next(&mut self) -> Option<(i32, &'a [u8], &'a [u8])> {
        let word = |at: usize| Some(i32::from_be_bytes(self.rest.get(at..at + 4)?.try_into().ok()?));
        let size = usize::try_from(word(0)?).ok()?;
        let flag = word(12)?;
        let body_end = ENTRY_HEAD_SIZE + usize::try_from(word(16)?).ok()?;
        let (entry, rest) = self.rest.split_at_checked(size)?;
        let body = entry.get(ENTRY_HEAD_SIZE..body_end)?;
        let length = entry.get(body_end..body_end + 2)?.try_into().ok()?;
        let properties = &entry[body_end + 2..];
        if usize::try_from(i16::from_be_bytes(length)).ok()? != properties.len() {
            return None;
        }
        self.rest = rest;
        Some((flag, body, properties))
    }
}

/// What one call has made so far; kept between calls for its memory.
#[derive(Default)]
struct Made {
    messages: usize,
    records: Vec<u8>,
    touched: Vec<Touched>, // only the first `touched_count` are of this call
    touched_count: usize,
    counted: Vec<usize>, // topics
    hashes: Vec<u8>,
    places: Vec<u8>,
    answers: Vec<u8>,
    answer_count: usize,
    at_once: Vec<u8>, // answers that do not wait for the disk
    at_once_count: usize,
}

impl Made {
    fn clear(&mut self) {
        self.messages = 0;
        self.records.clear();
        self.touched_count = 0;
        self.counted.clear();
        self.hashes.clear();
        self.places.clear();
        self.answers.clear();
        self.answer_count = 0;
        self.at_once.clear();
        self.at_once_count = 0;
    }
}

/// What was learned of a pull, where it ends, its three numbers, its signature and its freshness.
type FoundPull<'py> = (
    Option<Bound<'py, PyAny>>,
    usize,
    i64,
    i64,
    i32,
    Option<Bound<'py, PyBytes>>,
    Option<Bound<'py, PyBytes>>,
);

/// Where a query ends, the version of its client, how many messages it wants, whether its key is the unique one, and the
/// places to look at.
type FoundQuery = (usize, i32, i32, bool, Vec<i64>);

/// See `aerobee_broker.native.engine.NativeEngine`.
#[pyclass]
pub struct Engine {
    form: Form,
    is_indexed: bool,
    frame_size_max: usize,
    record_size_max: usize,
    // Replaced with the settings.
    body_size_max: usize,
    suffix: Vec<u8>,
    common: Common,
    // Places by name; a place that is free holds an empty name.
    places: HashMap<Vec<u8>, usize>,
    topics: Vec<Topic>,
    free: Vec<usize>,
    generation: u64,
    call: u64,
    made: Made,
    text: Vec<u8>,
    texts: Vec<u8>, // properties of a batch
    pulls: pulls::Known,
    rooms: pulls::Rooms,
    keys: indexing::Rooms,
    asked: queries::Asked, // by the last query
    fault: Option<String>, // met where nobody waits for a result: raised by the next `take`
}

/// Run this; what it said where it panicked.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let told = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        told.unwrap_or_default()
    })
}

/// The records that fill an answer; `decoding::decoded` says how they are made. EngineFault: made in Python then.
#[pyfunction]
pub fn stored_records<'py>(
    body: &Bound<'py, PyBytes>,
    make: &Bound<'py, PyAny>,
    host: &Bound<'py, PyAny>,
    topic: &Bound<'py, PyAny>,
    is_checked: bool,
) -> PyResult<Option<Bound<'py, PyList>>> {
    guarded(|| decoding::decoded(body, make, host, topic, is_checked))
        .unwrap_or_else(|fault| Err(EngineFault::new_err(fault)))
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, store_host, record_checksum, property_crc, is_indexed, frame_size_max, record_size_max))]
    fn new(
        store_host: Vec<u8>,
        record_checksum: bool,
        property_crc: bool,
        is_indexed: bool,
        frame_size_max: usize,
        record_size_max: usize,
    ) -> PyResult<Self> {
        if !matches!(store_host.len(), 8 | 20) || frame_size_max > 1 << 30 || record_size_max > 1 << 30 {
            return Err(PyValueError::new_err("an address has 8 or 20 bytes, and sizes are below 1 GiB"));
        }
        let id_prefix = store_host.iter().map(|byte| format!("{byte:02X}")).collect::<String>().into_bytes();
        let form = Form { has_checksum: record_checksum, has_property_crc: property_crc, store_host };
        Ok(Engine {
            form,
            is_indexed,
            frame_size_max,
            record_size_max,
            body_size_max: 0,
            suffix: Vec::new(),
            common: Common { id_prefix, ..Common::default() },
            places: HashMap::new(),
            topics: Vec::new(),
            free: Vec::new(),
            generation: 0,
            call: 0,
            made: Made::default(),
            text: Vec::new(),
            texts: Vec::new(),
            pulls: pulls::Known::default(),
            rooms: pulls::Rooms::default(),
            keys: indexing::Rooms::default(),
            asked: queries::Asked::default(),
            fault: None,
        })
    }

    /// What Python's search for garbage has to know: queues and counters lead back to the broker that has this engine.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for topic in &self.topics {
            for queue in topic.queues.iter().flatten() {
                visit.call(&queue.queue)?;
            }
            if let Some(route) = &topic.route {
                visit.call(&route.counters)?;
            }
        }
        self.pulls.traverse(&visit)
    }

    fn __clear__(&mut self) {
        self.places.clear();
        self.topics.clear();
        self.free.clear();
        self.pulls = pulls::Known::default();
    }

    /// Take over settings, those of each message and of each answer; routes are forgotten. `region_in_json` stands
    /// between quotes.
    fn use_settings(
        &mut self,
        body_size_max: usize,
        suffix: Vec<u8>,
        trace_on: &str,
        region: &str,
        region_in_json: Vec<u8>,
    ) {
        self.body_size_max = body_size_max;
        self.suffix = suffix;
        self.common.trace_on = trace_on.as_bytes().to_vec();
        self.common.region = region.as_bytes().to_vec();
        self.common.region_in_json = region_in_json;
        self.clear_routes();
    }

    /// Messages may be sent to this topic, to the queues below the limit.
    fn add_route(&mut self, topic: &str, counters: Py<PyAny>, queue_id_limit: i32, sys_flag: i32) {
        self.noting(|this| {
            let generation = this.generation;
            let at = this.place_of(topic.as_bytes());
            this.topics[at].route = Some(Route { generation, counters, queue_id_limit, sys_flag });
        });
    }

    /// No topic is known to be one that may be sent to.
    fn clear_routes(&mut self) {
        self.generation += 1;
    }

    /// A queue of plain entries, got ready; records of its topic begin their last part with `prefix`.
    fn add_queue(&mut self, topic: &str, queue_id: usize, queue: Py<PyAny>, magic: u32, prefix: Vec<u8>) {
        self.noting(|this| {
            let at = this.place_of(topic.as_bytes());
            let topic = &mut this.topics[at];
            topic.magic = magic;
            topic.prefix = prefix;
            if topic.queues.len() <= queue_id {
                topic.queues.resize_with(queue_id + 1, || None);
            }
            topic.queues[queue_id] = Some(Queue { queue, call: 0, touched: 0 });
        });
    }

    /// The topic is gone, its queues and its route with it.
    fn forget_topic(&mut self, topic: &str) {
        self.noting(|this| {
            if let Some(at) = this.places.remove(topic.as_bytes()) {
                this.topics[at] = Topic::named(&[]);
                this.free.push(at);
            }
        });
    }

    /// Whether all requests that begin in `data`, the first at this place, are of kinds that `take`, `pull` or `query`
    /// serve.
    fn serves_all(&self, data: &Bound<'_, PyBytes>, at: usize) -> PyResult<bool> {
        guarded(|| requests::are_served(data.as_bytes(), at, self.frame_size_max)).map_err(EngineFault::new_err)
    }

    /// Make what the usual sends from a place of `data` on come to, so many at most (`part`); None when there is none.
    /// `place` is the end of the log and the place behind the last byte that a record may take; `judge` lets each of
    /// them in.
    #[pyo3(signature = (data, part, place, now_ms, born_host, judge=None))]
    fn take<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        part: (usize, usize),
        place: (i64, i64),
        now_ms: i64,
        born_host: &Bound<'py, PyBytes>,
        judge: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        if let Some(fault) = &self.fault {
            return Err(EngineFault::new_err(fault.clone()));
        }
        let (begin, limit) = place;
        let judge = Judge(judge.as_ref());
        let progress = Progress {
            born_host: born_host.as_bytes(),
            judge,
            now_ms,
            limit,
            offset: begin,
            last_topic: NOWHERE,
        };
        guarded(|| self.taken(py, data.as_bytes(), part, progress))
            .unwrap_or_else(|fault| Err(EngineFault::new_err(fault)))
    }

    /// The pull at this place of `data`; None when there is none, or an unusual one. What it comes to, but for the
    /// values that change, is what was learned of such a request; nothing where that is nothing yet.
    fn pull<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        at: usize,
    ) -> PyResult<Option<FoundPull<'py>>> {
        guarded(|| {
            let (codec, header, body, end) = requests::frame(data.as_bytes(), at, self.frame_size_max)?;
            if !body.is_empty() {
                return None;
            }
            let varying = pulls::read(codec, header, &mut self.pulls.key)?;
            let text = |value: Option<&[u8]>| value.map(|value| PyBytes::new(py, value));
            let (signature, freshness) = (text(varying.signature), text(varying.freshness));
            let known = self.pulls.get(py);
            Some((known, end, varying.offset, varying.commit_offset, varying.opaque, signature, freshness))
        })
        .map_err(EngineFault::new_err)
    }

    /// Requests that differ from the last one in those values alone come to this.
    fn learn_pull(&mut self, what: Py<PyAny>) -> PyResult<()> {
        guarded(|| self.pulls.add(what)).map_err(EngineFault::new_err)
    }

    /// Whether the record at this place of a file of the log is whole, of this topic, and was written at this physical
    /// offset; `is_sealed`: it has to have the checksum over all of it. A no says nothing.
    fn is_sound(
        &mut self,
        view: &Bound<'_, PyAny>,
        place: (usize, usize),
        physical_offset: i64,
        topic: &[u8],
        is_sealed: bool,
    ) -> PyResult<bool> {
        guarded(|| pulls::is_sound(&mut self.rooms, view, place, physical_offset, topic, is_sealed))
            .unwrap_or_else(|fault| Err(EngineFault::new_err(fault)))
    }

    /// Whether all these packed entries lead to records of a file of the log (its view, its first byte, and the one behind
    /// the last that is written) that are sound, and those that the entries say. A no says nothing.
    fn are_sound<'py>(
        &mut self,
        py: Python<'py>,
        entries: &Bound<'py, PyAny>,
        file: (Bound<'py, PyAny>, i64, i64),
        old: pulls::Old<'py>,
    ) -> PyResult<bool> {
        guarded(|| pulls::are_sound(py, &mut self.rooms, entries, file, &old))
            .unwrap_or_else(|fault| Err(EngineFault::new_err(fault)))
    }

    /// The sound and usual records from `begin` of `content` on, whose first byte lies at the physical offset `base`: where
    /// they end, their newest store time, their queue entries by runs, their keys. None when there is none.
    fn walk<'py>(
        &mut self,
        py: Python<'py>,
        content: &[u8],
        begin: usize,
        base: i64,
        is_indexed: bool,
    ) -> PyResult<Option<copying::Walked<'py>>> {
        guarded(|| copying::walked(py, content, begin, base, is_indexed)).map_err(EngineFault::new_err)
    }

    /// What these keys come to as the next entries of a file of the index, as `indexing::Chained` names it: `file` is its
    /// view, and the other fields of `indexing::File`. None when there is none, or they do not fit.
    fn chain_keys<'py>(
        &mut self,
        py: Python<'py>,
        file: (Bound<'py, PyAny>, usize, i32, i32, i64),
        blocks: Vec<indexing::Block<'py>>,
    ) -> PyResult<Option<indexing::Chained<'py>>> {
        let (view, slot_count, next_entry, entry_limit, begin_timestamp) = file;
        let view = &Mapped::of(&view)?;
        let file = indexing::File { view, slot_count, next_entry, entry_limit, begin_timestamp };
        guarded(|| indexing::chained(py, &mut self.keys, &file, &blocks))
            .unwrap_or_else(|fault| Err(EngineFault::new_err(fault)))
    }

    /// The answer to a pull of what is nearby, as `pulls::Nearby` names it: the whole frame, messages, bytes of records,
    /// and where to go on. None when nothing is found there, or anything is unusual.
    fn gather<'py>(
        &mut self,
        py: Python<'py>,
        nearby: pulls::Nearby<'py>,
        tags: Option<&[u8]>,
        offset: i64,
        suggested: i64,
        to: (u8, i32),
    ) -> PyResult<Option<(Bound<'py, PyBytes>, usize, usize, i64)>> {
        let (codec, opaque) = to;
        let found = Found { opaque, suggested, next_offset: offset, max_offset: nearby.7, min_offset: nearby.6 };
        guarded(|| pulls::gather(py, &mut self.rooms, &nearby, tags, codec, found))
            .unwrap_or_else(|fault| Err(EngineFault::new_err(fault)))
    }

    /// The query by key at this place of `data`: where it ends, the version of the client, how many messages are wanted,
    /// whether it is the unique key, and the places where the index has one, ascending, at least one. None when there is
    /// none, or anything is unusual.
    fn query(
        &mut self,
        data: &Bound<'_, PyBytes>,
        at: usize,
        index: Vec<queries::IndexFile<'_>>,
    ) -> PyResult<Option<FoundQuery>> {
        guarded(|| {
            let asked = &mut self.asked;
            let Some((codec, header, body, end)) = requests::frame(data.as_bytes(), at, self.frame_size_max) else {
                return Ok(None);
            };
            if !body.is_empty() || asked.read(codec, header).is_none() || asked.look_up(&index)?.is_none() {
                return Ok(None);
            }
            Ok(Some((end, asked.version, asked.count, asked.is_unique, asked.places.clone())))
        })
        .unwrap_or_else(|fault| Err(EngineFault::new_err(fault)))
    }

    /// What the last query, or its answer, needs and was not known to be in memory, as `queries::Asked::lacking`; told once.
    fn lacking(&mut self) -> Option<(i32, i64, i64)> {
        self.asked.lacking.take()
    }

    /// The answer to the last query, with at most so many messages, all of them in these files of the log. `updated` is the
    /// place and the store time of the newest message in the index, `trust` which records are to be proven. None when none
    /// is found, or anything is unusual.
    fn answer_query<'py>(
        &mut self,
        py: Python<'py>,
        log: Vec<queries::LogFile<'py>>,
        count: usize,
        updated: (i64, i64),
        trust: Trust,
    ) -> PyResult<Option<queries::Answer<'py>>> {
        guarded(|| self.asked.answer(py, &log, count, updated, trust))
            .unwrap_or_else(|fault| Err(EngineFault::new_err(fault)))
    }
}

/// Where a call has got to.
struct Progress<'a> {
    born_host: &'a [u8],
    judge: Judge<'a>,
    now_ms: i64,
    limit: i64,
    offset: i64,
    last_topic: usize,
}

const NOWHERE: usize = usize::MAX;

impl Engine {
    /// Take note of what is known; a fault of ours is told by the next `take`.
    fn noting(&mut self, work: impl FnOnce(&mut Self)) {
        if let Err(fault) = guarded(|| work(self)) {
            self.fault = Some(fault);
        }
    }

    fn place_of(&mut self, topic: &[u8]) -> usize {
        if let Some(&at) = self.places.get(topic) {
            return at;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.topics.push(Topic::named(&[]));
            self.topics.len() - 1
        });
        self.topics[at] = Topic::named(topic);
        self.places.insert(topic.to_vec(), at);
        at
    }

    fn taken<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        (mut at, count_max): (usize, usize),
        mut progress: Progress,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        if !matches!(progress.born_host.len(), 8 | 20) {
            return Ok(None);
        }
        self.call += 1;
        self.made.clear();
        let (mut code, mut version, mut count) = (0, 0, 0);
        let mut text = std::mem::take(&mut self.text);
        while count < count_max && self.made.messages < MESSAGES_MAX {
            let Some((codec, header, body, end)) = requests::frame(data, at, self.frame_size_max) else { break };
            let Some(found) = requests::code(codec, header) else { break };
            if count > 0 && found != code {
                break;
            }
            let Some(send) = requests::read(codec, found, header, &mut text) else { break };
            let is_usual = if found == SEND_BATCH_MESSAGE {
                self.batch(py, &mut progress, codec, &send, body, &text)?
            } else {
                self.message(py, &mut progress, codec, &send, body, &mut text)?
            };
            if !is_usual {
                break;
            }
            (code, version) = (found, send.version);
            count += 1;
            at = end;
        }
        self.text = text;
        if count == 0 {
            return Ok(None);
        }
        self.result(py, at, count, version, code).map(Some)
    }

    /// Where a send goes, if that is usual.
    fn destination(&self, progress: &Progress, send: &requests::Send) -> Option<Destination> {
        let topic_at = match self.topics.get(progress.last_topic) {
            Some(last) if last.name == send.topic => progress.last_topic,
            _ => self.places.get(send.topic).copied()?,
        };
        let topic = &self.topics[topic_at];
        let route = topic.route.as_ref()?;
        if route.generation != self.generation || !(0..route.queue_id_limit).contains(&send.queue_id) {
            return None;
        }
        let sys_flag = send.sys_flag | route.sys_flag;
        let queue_id = send.queue_id as usize;
        topic.queues.get(queue_id)?.as_ref()?;
        (sys_flag & TRANSACTION_OR_BATCH == 0).then_some(Destination { topic: topic_at, queue_id, sys_flag })
    }

    /// Bytes of a record; None when no record can be so large.
    fn record_size(
        &self,
        progress: &Progress,
        goes: &Destination,
        body: usize,
        properties: usize,
    ) -> Option<usize> {
        let prefix = self.topics[goes.topic].prefix.len();
        self.form
            .size(progress.born_host.len(), prefix, body, properties + self.suffix.len())
            .filter(|size| *size <= self.record_size_max)
    }

    /// The queue of a record among those that the call in hand touches.
    fn touch(&mut self, py: Python<'_>, goes: &Destination) -> PyResult<usize> {
        let made = &mut self.made;
        let Some(Some(queue)) = self.topics[goes.topic].queues.get_mut(goes.queue_id) else {
            unreachable!("it has been looked for");
        };
        if queue.call != self.call {
            let next: i64 = queue.queue.bind(py).getattr(intern!(py, "next_offset"))?.extract()?;
            queue.call = self.call;
            queue.touched = made.touched_count;
            if made.touched.len() == made.touched_count {
                made.touched.push(Touched::default());
            }
            let touched = &mut made.touched[made.touched_count];
            made.touched_count += 1;
            (touched.topic, touched.queue_id) = (goes.topic, goes.queue_id);
            (touched.first, touched.next) = (next, next);
            touched.entries.clear();
        }
        Ok(queue.touched)
    }

    /// Write one record and what belongs to it; its number in the queue.
    fn add(
        &mut self,
        progress: &mut Progress,
        goes: &Destination,
        touched: usize,
        send: &requests::Send,
        one: &One,
        text: &[u8],
    ) -> i64 {
        let made = &mut self.made;
        let topic = &self.topics[goes.topic];
        let touched = &mut made.touched[touched];
        let queue_offset = touched.next;
        touched.next += 1;
        let record = Message {
            magic: topic.magic,
            topic: &topic.prefix,
            queue_id: send.queue_id,
            flag: one.flag,
            queue_offset,
            physical_offset: progress.offset,
            sys_flag: goes.sys_flag,
            born_timestamp: send.born_timestamp,
            born_host: progress.born_host,
            store_timestamp: progress.now_ms,
            reconsume_times: send.reconsume_times,
            body: one.body,
            properties: &text[one.text.clone()],
            suffix: &self.suffix,
        };
        self.form.write(&mut made.records, one.size, &record);
        let tags = one.properties.tags.clone();
        let tag = tags.map_or(0, |tags| javahash::signed(javahash::extended(0, &text[tags])));
        touched.entries.extend_from_slice(&progress.offset.to_be_bytes());
        touched.entries.extend_from_slice(&(one.size as i32).to_be_bytes());
        touched.entries.extend_from_slice(&i64::from(tag).to_be_bytes());
        if self.is_indexed {
            let unique_key = &text[one.properties.unique_key.clone()];
            let keys = one.properties.keys.clone().map_or(&[][..], |keys| &text[keys]);
            for key in std::iter::once(unique_key).chain(keys.split(|&b| b == b' ')) {
                if !key.is_empty() {
                    let hash = javahash::of_key(javahash::extended(topic.key_hash, key));
                    made.hashes.extend_from_slice(&hash.to_ne_bytes());
                    made.places.extend_from_slice(&progress.offset.to_ne_bytes());
                }
            }
        }
        made.messages += 1;
        progress.offset += one.size as i64;
        queue_offset
    }

    /// Count one request, and answer it.
    fn end(
        &mut self,
        progress: &mut Progress,
        goes: &Destination,
        send: &requests::Send,
        codec: u8,
        is_without_wait: bool,
        stored: &Stored,
        size: i64,
    ) {
        let made = &mut self.made;
        let topic = &mut self.topics[goes.topic];
        if topic.call != self.call {
            (topic.call, topic.messages, topic.requests, topic.size) = (self.call, 0, 0, 0);
            made.counted.push(goes.topic);
        }
        topic.messages += stored.places.len() as i64;
        topic.requests += 1;
        topic.size += size;
        if !send.is_oneway {
            let (out, number) = if is_without_wait {
                (&mut made.at_once, &mut made.at_once_count)
            } else {
                (&mut made.answers, &mut made.answer_count)
            };
            *number += 1;
            self.common.write(out, codec, stored);
        }
        progress.last_topic = goes.topic;
    }

    /// One message, if it is usual in every way; whether it was. Nothing is changed otherwise.
    fn message(
        &mut self,
        py: Python<'_>,
        progress: &mut Progress,
        codec: u8,
        send: &requests::Send,
        body: &[u8],
        text: &mut Vec<u8>,
    ) -> PyResult<bool> {
        let sent_size = text.len();
        let Some(properties) = properties::read(text, 0) else { return Ok(false) };
        if body.is_empty() || body.len() > self.body_size_max {
            return Ok(false);
        }
        let Some(goes) = self.destination(progress, send) else { return Ok(false) };
        let Some(size) = self.record_size(progress, &goes, body.len(), text.len()) else { return Ok(false) };
        if progress.offset + size as i64 > progress.limit {
            return Ok(false);
        }
        if !progress.judge.lets_in(codec, send, &text[..sent_size], body)? {
            return Ok(false);
        }
        let touched = self.touch(py, &goes)?;
        let place = progress.offset;
        let one = One { flag: send.flag, body, text: 0..text.len(), size, properties };
        let queue_offset = self.add(progress, &goes, touched, send, &one, text);
        let stored = Stored {
            opaque: send.opaque,
            queue_id: send.queue_id,
            queue_offset,
            unique_key: &text[one.properties.unique_key.clone()],
            places: &[place],
        };
        self.end(progress, &goes, send, codec, one.properties.is_without_wait, &stored, size as i64);
        Ok(true)
    }

    /// One batch, whole or not at all; whether it was usual. `text` has the properties of all its messages.
    fn batch(
        &mut self,
        py: Python<'_>,
        progress: &mut Progress,
        codec: u8,
        send: &requests::Send,
        body: &[u8],
        text: &[u8],
    ) -> PyResult<bool> {
        let Some(goes) = self.destination(progress, send) else { return Ok(false) };
        let Some(common) = properties::Common::read(text) else { return Ok(false) };
        if body.is_empty() || body.len() > self.body_size_max {
            return Ok(false);
        }
        let mut texts = std::mem::take(&mut self.texts);
        texts.clear();
        let read = self.batch_entries(progress, &goes, body, &common, &mut texts);
        let is_let_in = read.is_none() || progress.judge.lets_in(codec, send, text, body)?;
        let outcome = match read {
            None => Ok(false),
            Some(_) if !is_let_in => Ok(false),
            Some((ones, size)) => self.touch(py, &goes).map(|touched| {
                let mut places = Vec::with_capacity(ones.len());
                let mut keys = Vec::new();
                let mut first = 0;
                for (number, one) in ones.iter().enumerate() {
                    places.push(progress.offset);
                    let queue_offset = self.add(progress, &goes, touched, send, one, &texts);
                    if number == 0 {
                        first = queue_offset;
                    } else {
                        keys.push(b',');
                    }
                    keys.extend_from_slice(&texts[one.properties.unique_key.clone()]);
                }
                let stored = Stored {
                    opaque: send.opaque,
                    queue_id: send.queue_id,
                    queue_offset: first,
                    unique_key: common.get(b"UNIQ_KEY").unwrap_or(&keys),
                    places: &places,
                };
                let is_without_wait = common.get(b"WAIT") == Some(b"false");
                self.end(progress, &goes, send, codec, is_without_wait, &stored, size as i64);
                true
            }),
        };
        self.texts = texts;
        outcome
    }

    /// The messages of a batch, their properties in `texts`, and the bytes of their records; None when anything about
    /// them is unusual, or when they do not fit together.
    fn batch_entries<'a>(
        &self,
        progress: &Progress,
        goes: &Destination,
        body: &'a [u8],
        common: &properties::Common,
        texts: &mut Vec<u8>,
    ) -> Option<(Vec<One<'a>>, usize)> {
        let key = common.get(b"UNIQ_KEY");
        if key.is_some_and(|key| !key.iter().all(u8::is_ascii_alphanumeric)) {
            return None;
        }
        let mut ones = Vec::new();
        let mut size = 0;
        let mut entries = Entries { rest: body };
        while !entries.rest.is_empty() {
            let (flag, body, own) = entries.next()?;
            if ones.len() == BATCH_MESSAGES_MAX || !crate::json::is_text(own) {
                return None;
            }
            let begin = texts.len();
            if begin + own.len() > BATCH_PROPERTIES_MAX {
                return None; // before each of them is looked at
            }
            texts.extend_from_slice(own);
            common.join(texts, begin)?;
            let properties = properties::read(texts, begin)?;
            let of_one = self.record_size(progress, goes, body.len(), texts.len() - begin)?;
            size += of_one;
            ones.push(One { flag, body, text: begin..texts.len(), size: of_one, properties });
        }
        let fits = texts.len() <= BATCH_PROPERTIES_MAX
            && size <= self.record_size_max.min(self.body_size_max + RECORD_EXTRA_MAX)
            && progress.offset + size as i64 <= progress.limit;
        fits.then_some((ones, size))
    }

    fn result<'py>(
        &self,
        py: Python<'py>,
        position: usize,
        count: usize,
        version: i32,
        code: i32,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let made = &self.made;
        let touched = PyList::empty(py);
        for one in &made.touched[..made.touched_count] {
            let Some(queue) = &self.topics[one.topic].queues[one.queue_id] else { continue };
            touched.append((queue.queue.bind(py), one.first, PyBytes::new(py, &one.entries)))?;
        }
        let counted = PyList::empty(py);
        for &at in &made.counted {
            let topic = &self.topics[at];
            let Some(route) = &topic.route else { continue };
            counted.append((route.counters.bind(py), topic.messages, topic.requests, topic.size))?;
        }
        (
            position,
            count,
            made.messages,
            PyBytes::new(py, &made.records),
            touched,
            counted,
            PyBytes::new(py, &made.hashes),
            PyBytes::new(py, &made.places),
            (PyBytes::new(py, &made.answers), made.answer_count),
            (PyBytes::new(py, &made.at_once), made.at_once_count),
            version,
            code,
        )
            .into_pyobject(py)
    }
}

impl Topic {
    fn named(name: &[u8]) -> Self {
        let key_hash = javahash::extended(javahash::extended(0, name), b"#");
        Topic {
            name: name.to_vec(),
            magic: 0,
            prefix: Vec::new(),
            key_hash,
            queues: Vec::new(),
            route: None,
            call: 0,
            messages: 0,
            requests: 0,
            size: 0,
        }
    }
}

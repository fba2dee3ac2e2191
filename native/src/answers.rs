//! Answers to sends, pulls and queries by key, as frames.

use crate::bytes::{decimal, hex16, push_decimal};
use crate::requests::{JSON, MSGPACK, ROCKETMQ};

const VERSION: i16 = 479;
const PYTHON: u8 = 3;

/// What all answers have in common.
#[derive(Default)]
pub struct Common {
    /// The part of a message's id that says which broker has it.
    pub id_prefix: Vec<u8>,
    /// TRACE_ON, `true` or `false`.
    pub trace_on: Vec<u8>,
    /// MSG_REGION.
    pub region: Vec<u8>,
    /// The same as JSON has it, without its quotes.
    pub region_in_json: Vec<u8>,
}

/// One message that was stored.
pub struct Stored<'a> {
    pub opaque: i32,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub unique_key: &'a [u8], // letters, digits and commas
    pub places: &'a [i64], // physical offsets: one, or those of all messages of a batch
}

impl Common {
    /// The answer in this codec, behind what `out` holds.
    pub fn write(&self, out: &mut Vec<u8>, codec: u8, stored: &Stored) {
        let begin = out.len();
        out.extend_from_slice(&[0; 8]);
        match codec {
            JSON => self.json(out, stored),
            ROCKETMQ => self.binary(out, stored),
            MSGPACK => self.packed(out, stored),
            _ => unreachable!("only known codecs are read"),
        }
        end_header(out, begin, codec, 0);
    }

    fn json(&self, out: &mut Vec<u8>, stored: &Stored) {
        out.extend_from_slice(b"{\"code\":0,\"extFields\":{\"queueId\":\"");
        push_decimal(out, i64::from(stored.queue_id));
        out.extend_from_slice(b"\",\"transactionId\":\"");
        out.extend_from_slice(stored.unique_key);
        out.extend_from_slice(b"\",\"msgId\":\"");
        self.message_id(out, stored);
        out.extend_from_slice(b"\",\"TRACE_ON\":\"");
        out.extend_from_slice(&self.trace_on);
        out.extend_from_slice(b"\",\"MSG_REGION\":\"");
        out.extend_from_slice(&self.region_in_json);
        out.extend_from_slice(b"\",\"queueOffset\":\"");
        push_decimal(out, stored.queue_offset);
        out.extend_from_slice(b"\"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
        push_decimal(out, i64::from(stored.opaque));
        out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
    }

    /// The ids of its messages, separated by commas.
    fn message_id(&self, out: &mut Vec<u8>, stored: &Stored) {
        for (number, place) in stored.places.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            out.extend_from_slice(&self.id_prefix);
            out.extend_from_slice(&hex16(*place as u64));
        }
    }

    fn binary(&self, out: &mut Vec<u8>, stored: &Stored) {
        let size_at = begin_binary(out, stored.opaque, b"");
        self.each_field(stored, |name, value| push_binary_field(out, name, value));
        end_binary(out, size_at);
    }

    fn packed(&self, out: &mut Vec<u8>, stored: &Stored) {
        begin_packed(out, stored.opaque, b"");
        out.push(0x86); // six fields
        self.each_field(stored, |name, value| {
            push_packed_text(out, name);
            push_packed_text(out, value);
        });
    }

    fn each_field(&self, stored: &Stored, mut field: impl FnMut(&[u8], &[u8])) {
        let mut digits = [0; 20];
        field(b"queueId", decimal(i64::from(stored.queue_id), &mut digits));
        field(b"transactionId", stored.unique_key);
        let mut id = Vec::with_capacity(64);
        self.message_id(&mut id, stored);
        field(b"msgId", &id);
        field(b"TRACE_ON", &self.trace_on);
        field(b"MSG_REGION", &self.region);
        field(b"queueOffset", decimal(stored.queue_offset, &mut digits));
    }
}

/// The messages of a pull.
pub struct Found {
    /// Number of the request on its connection.
    pub opaque: i32,
    /// Broker id that the next pull should go to.
    pub suggested: i64,
    /// Where to go on.
    pub next_offset: i64,
    /// One past the last message of the queue.
    pub max_offset: i64,
    /// The first message of the queue.
    pub min_offset: i64,
}

impl Found {
    /// The words and the header of the answer in this codec, for a body of so many bytes; false where there is none.
    pub fn write(&self, out: &mut Vec<u8>, codec: u8, body_size: usize) -> bool {
        write(out, codec, body_size, (self.opaque, b"FOUND", 6), |field| self.each_field(field))
    }

    fn each_field(&self, field: Field) {
        let mut digits = [0; 20];
        field(b"suggestWhichBrokerId", decimal(self.suggested, &mut digits));
        field(b"groupSysFlag", b"0");
        field(b"nextBeginOffset", decimal(self.next_offset, &mut digits));
        field(b"maxOffset", decimal(self.max_offset, &mut digits));
        field(b"minOffset", decimal(self.min_offset, &mut digits));
        field(b"topicSysFlag", b"0");
    }
}

/// The messages that a query by key has found.
pub struct Listed {
    /// Number of the request on its connection.
    pub opaque: i32,
    /// Physical offset and store time of the newest message whose keys are known.
    pub updated: (i64, i64),
}

impl Listed {
    /// As of `Found`.
    pub fn write(&self, out: &mut Vec<u8>, codec: u8, body_size: usize) -> bool {
        write(out, codec, body_size, (self.opaque, b"", 2), |field| self.each_field(field))
    }

    fn each_field(&self, field: Field) {
        let mut digits = [0; 20];
        field(b"indexLastUpdatePhyoffset", decimal(self.updated.0, &mut digits));
        field(b"indexLastUpdateTimestamp", decimal(self.updated.1, &mut digits));
    }
}

/// What takes each field of an answer.
type Field<'f> = &'f mut dyn FnMut(&[u8], &[u8]);

/// The words and the header of an answer of success with these: its number, its remark (an empty one is none), and how
/// many fields it has.
fn write(
    out: &mut Vec<u8>,
    codec: u8,
    body_size: usize,
    (opaque, remark, fields): (i32, &[u8], u8),
    each_field: impl Fn(Field),
) -> bool {
    let begin = out.len();
    out.extend_from_slice(&[0; 8]);
    match codec {
        JSON => {
            out.extend_from_slice(b"{\"code\":0,\"extFields\":{");
            let mut is_first = true;
            each_field(&mut |name, value| {
                if !is_first {
                    out.push(b',');
                }
                is_first = false;
                out.push(b'"');
                out.extend_from_slice(name);
                out.extend_from_slice(b"\":\"");
                out.extend_from_slice(value);
                out.push(b'"');
            });
            out.extend_from_slice(b"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
            push_decimal(out, i64::from(opaque));
            if !remark.is_empty() {
                out.extend_from_slice(b",\"remark\":\"");
                out.extend_from_slice(remark);
                out.push(b'"');
            }
            out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
        }
        ROCKETMQ => {
            let size_at = begin_binary(out, opaque, remark);
            each_field(&mut |name, value| push_binary_field(out, name, value));
            end_binary(out, size_at);
        }
        MSGPACK => {
            begin_packed(out, opaque, remark);
            out.push(0x80 | fields);
            each_field(&mut |name, value| {
                push_packed_text(out, name);
                push_packed_text(out, value);
            });
        }
        _ => return false,
    }
    end_header(out, begin, codec, body_size);
    true
}

/// Fill in the two words in front of a header that ends here.
fn end_header(out: &mut [u8], begin: usize, codec: u8, body_size: usize) {
    let header = (out.len() - begin - 8) as u32;
    let length = header + 4 + body_size as u32;
    out[begin..begin + 4].copy_from_slice(&length.to_be_bytes());
    out[begin + 4..begin + 8].copy_from_slice(&(u32::from(codec) << 24 | header).to_be_bytes());
}

/// An answer of success up to its fields; where their size has to be filled in.
fn begin_binary(out: &mut Vec<u8>, opaque: i32, remark: &[u8]) -> usize {
    out.extend_from_slice(&0i16.to_be_bytes());
    out.push(PYTHON);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&opaque.to_be_bytes());
    out.extend_from_slice(&1i32.to_be_bytes());
    out.extend_from_slice(&(remark.len() as i32).to_be_bytes());
    out.extend_from_slice(remark);
    out.extend_from_slice(&[0; 4]);
    out.len() - 4
}

fn push_binary_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(&(name.len() as i16).to_be_bytes());
    out.extend_from_slice(name);
    out.extend_from_slice(&(value.len() as i32).to_be_bytes());
    out.extend_from_slice(value);
}

fn end_binary(out: &mut [u8], size_at: usize) {
    let size = (out.len() - size_at - 4) as i32;
    out[size_at..size_at + 4].copy_from_slice(&size.to_be_bytes());
}

/// An answer of success up to its fields. An empty remark is none.
fn begin_packed(out: &mut Vec<u8>, opaque: i32, remark: &[u8]) {
    out.extend_from_slice(&[0x97, 0, 1]);
    push_packed(out, i64::from(opaque));
    push_packed(out, i64::from(VERSION));
    push_packed(out, i64::from(PYTHON));
    if remark.is_empty() {
        out.push(0xc0);
    } else {
        push_packed_text(out, remark);
    }
}

fn push_packed(out: &mut Vec<u8>, value: i64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, value as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        -0x20..=-1 => out.push(value as i8 as u8),
        -0x80..=-0x21 => out.extend_from_slice(&[0xd0, value as i8 as u8]),
        -0x8000..=-0x81 => {
            out.push(0xd1);
            out.extend_from_slice(&(value as i16).to_be_bytes());
        }
        _ => {
            out.push(0xd2);
            out.extend_from_slice(&(value as i32).to_be_bytes());
        }
    }
}

fn push_packed_text(out: &mut Vec<u8>, text: &[u8]) {
    match text.len() {
        size @ 0..=31 => out.push(0xa0 | size as u8),
        size @ 32..=255 => out.extend_from_slice(&[0xd9, size as u8]),
        size @ 256..=65535 => {
            out.push(0xda);
            out.extend_from_slice(&(size as u16).to_be_bytes());
        }
        size => {
            out.push(0xdb);
            out.extend_from_slice(&(size as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(text);
}

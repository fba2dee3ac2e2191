//! Answers to sends, as whole frames.

use crate::bytes::{decimal, hex16, push_decimal};
use crate::requests::{JSON, MSGPACK, ROCKETMQ};

const VERSION: i16 = 479;
const PYTHON: u8 = 3;

/// What all answers have in common.
pub struct Common {
    /// The part of a message's id that says which broker has it.
    pub id_prefix: Vec<u8>,
    /// TRACE_ON, `true` or `false`.
    pub trace_on: Vec<u8>,
    /// MSG_REGION, which stands in JSON as it is.
    pub region: Vec<u8>,
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
        let header = (out.len() - begin - 8) as u32;
        out[begin..begin + 4].copy_from_slice(&(header + 4).to_be_bytes());
        out[begin + 4..begin + 8].copy_from_slice(&(u32::from(codec) << 24 | header).to_be_bytes());
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
        out.extend_from_slice(&self.region);
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
        out.extend_from_slice(&0i16.to_be_bytes());
        out.push(PYTHON);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&stored.opaque.to_be_bytes());
        out.extend_from_slice(&1i32.to_be_bytes());
        out.extend_from_slice(&0i32.to_be_bytes()); // no remark
        let size_at = out.len();
        out.extend_from_slice(&[0; 4]);
        self.each_field(stored, |name, value| {
            out.extend_from_slice(&(name.len() as i16).to_be_bytes());
            out.extend_from_slice(name);
            out.extend_from_slice(&(value.len() as i32).to_be_bytes());
            out.extend_from_slice(value);
        });
        let size = (out.len() - size_at - 4) as i32;
        out[size_at..size_at + 4].copy_from_slice(&size.to_be_bytes());
    }

    fn packed(&self, out: &mut Vec<u8>, stored: &Stored) {
        out.extend_from_slice(&[0x97, 0, 1]);
        push_packed(out, i64::from(stored.opaque));
        push_packed(out, i64::from(VERSION));
        push_packed(out, i64::from(PYTHON));
        out.push(0xc0);
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

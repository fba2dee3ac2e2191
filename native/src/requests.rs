//! Headers of sends, in the three codecs, as far as they are usual.

use crate::json::{Json, is_text, whole};

/// Codec of a frame's header: JSON.
pub const JSON: u8 = 0;
/// Codec of a frame's header: RocketMQ's binary one.
pub const ROCKETMQ: u8 = 1;
/// Codec of a frame's header: msgpack.
pub const MSGPACK: u8 = 2;

/// Request code SEND_MESSAGE: fields have long names.
pub const SEND_MESSAGE: i32 = 10;
/// Request code SEND_MESSAGE_V2: fields are letters.
pub const SEND_MESSAGE_V2: i32 = 310;
/// Request code SEND_BATCH_MESSAGE: letters, and a body of several messages.
pub const SEND_BATCH_MESSAGE: i32 = 320;

// Of the requests that `pulls` and `queries` read.
const PULL_MESSAGE: i32 = 11;
const LITE_PULL_MESSAGE: i32 = 361;
const QUERY_MESSAGE: i32 = 12;

const FLAG_ONEWAY: i64 = 2;
/// Numbers of 32 bits.
pub const I32: std::ops::RangeInclusive<i64> = i32::MIN as i64..=i32::MAX as i64;

/// What one send says of itself; its properties stand elsewhere.
#[derive(Default)]
pub struct Send<'a> {
    /// Request code.
    pub code: i32,
    /// As sent; valid UTF-8.
    pub topic: &'a [u8],
    /// May be below 0.
    pub queue_id: i32,
    /// Bits of its sender.
    pub sys_flag: i32,
    /// Milliseconds since the epoch, as its sender says.
    pub born_timestamp: i64,
    /// The application's.
    pub flag: i32,
    /// How often it came back.
    pub reconsume_times: i32,
    /// Number of the request on its connection.
    pub opaque: i32,
    /// Of the client.
    pub version: i32,
    /// Nobody waits for an answer.
    pub is_oneway: bool,
    // Which fields there are, as bits, and the values of all but the properties.
    seen: u32,
    values: [&'a [u8]; FIELD_COUNT],
}

const GROUP: usize = 0;
const TOPIC: usize = 1;
const PROPERTIES: usize = 8;
/// Place of a field: the name of the user who has signed.
pub const ACCESS_KEY: usize = 14;
const SECURITY_TOKEN: usize = 15;
/// Place of a field: the signature.
pub const SIGNATURE: usize = 16;
const FRESHNESS: usize = 17;
const FIELD_COUNT: usize = 18;
// producer group, topic, queue, sys flag, born timestamp, flag
const REQUIRED: u32 = 1 | 1 << TOPIC | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7;
const LONG_NAMES: [&[u8]; 14] = [
    b"producerGroup",
    b"topic",
    b"defaultTopic",
    b"defaultTopicQueueNums",
    b"queueId",
    b"sysFlag",
    b"bornTimestamp",
    b"flag",
    b"properties",
    b"reconsumeTimes",
    b"unitMode",
    b"maxReconsumeTimes",
    b"batch",
    b"bname",
];
// Those that are signed, in the order of their names.
const LONG_NAMES_SIGNED: [usize; FIELD_COUNT - 1] =
    [FRESHNESS, ACCESS_KEY, SECURITY_TOKEN, 12, 13, 6, 2, 3, 7, 11, GROUP, PROPERTIES, 4, 9, 5, TOPIC, 10];
const LETTERS_SIGNED: [usize; FIELD_COUNT - 1] =
    [FRESHNESS, ACCESS_KEY, SECURITY_TOKEN, GROUP, TOPIC, 2, 3, 4, 5, 6, 7, PROPERTIES, 9, 10, 11, 12, 13];

/// Which field a name stands for.
fn field(code: i32, name: &[u8]) -> Option<usize> {
    match name {
        [letter @ b'a'..=b'n'] if code != SEND_MESSAGE => Some(usize::from(letter - b'a')),
        b"AccessKey" => Some(ACCESS_KEY),
        b"AccessFreshness" => Some(FRESHNESS),
        b"SecurityToken" => Some(SECURITY_TOKEN),
        b"Signature" => Some(SIGNATURE),
        _ if code == SEND_MESSAGE => LONG_NAMES.iter().position(|known| *known == name),
        _ => None,
    }
}

fn small(value: i64) -> Option<i32> {
    i32::try_from(value).ok()
}

impl<'a> Send<'a> {
    /// Take note of a field; None when it was there before.
    fn once(&mut self, field: usize) -> Option<()> {
        let bit = 1 << field;
        if self.seen & bit != 0 {
            return None;
        }
        self.seen |= bit;
        Some(())
    }

    /// A field whose value is text, valid UTF-8, but for the properties.
    fn set(&mut self, field: usize, value: &'a [u8]) -> Option<()> {
        self.values[field] = value;
        match field {
            GROUP | 2 | 13 | ACCESS_KEY | SECURITY_TOKEN | SIGNATURE | FRESHNESS => {}
            TOPIC => self.topic = value,
            3 | 11 => small(whole(value)?).map(|_| ())?,
            4 => self.queue_id = small(whole(value)?)?,
            5 => self.sys_flag = small(whole(value)?)?,
            6 => self.born_timestamp = whole(value)?,
            7 => self.flag = small(whole(value)?)?,
            9 => self.reconsume_times = small(whole(value)?)?,
            10 | 12 => matches!(value, b"true" | b"false").then_some(())?,
            _ => return None,
        }
        Some(())
    }

    fn envelope(&mut self, flag: i64, opaque: i64, version: i64) -> Option<()> {
        if flag & !FLAG_ONEWAY != 0 {
            return None;
        }
        self.is_oneway = flag == FLAG_ONEWAY;
        self.opaque = small(opaque)?;
        self.version = small(version)?;
        Some(())
    }

    fn is_whole(&self) -> bool {
        self.seen & REQUIRED == REQUIRED
    }

    /// The group of the producer.
    pub fn group(&self) -> &'a [u8] {
        self.values[GROUP]
    }

    /// The value of a field as signatures have it; None when it is not there.
    pub fn text(&self, codec: u8, field: usize) -> Option<&'a [u8]> {
        (self.seen & 1 << field != 0).then(|| as_signed(codec, self.values[field]))
    }

    /// The parts of the header that a signature covers, in their order. `properties` are those that were read.
    pub fn signed<'b>(&'b self, codec: u8, properties: &'b [u8]) -> impl Iterator<Item = &'b [u8]> + Clone {
        let order = if self.code == SEND_MESSAGE { &LONG_NAMES_SIGNED } else { &LETTERS_SIGNED };
        order.iter().filter(move |field| self.seen & 1 << **field != 0).map(move |field| {
            as_signed(codec, if *field == PROPERTIES { properties } else { self.values[*field] })
        })
    }
}

/// The official server reads an empty value of its binary codec as none, and signs the word for it.
fn as_signed(codec: u8, value: &[u8]) -> &[u8] {
    if value.is_empty() && codec == ROCKETMQ { b"null" } else { value }
}

/// The next whole frame, of at most so many bytes: codec, header, body, and where it ends.
pub fn frame(data: &[u8], at: usize, size_max: usize) -> Option<(u8, &[u8], &[u8], usize)> {
    let words = data.get(at..at.checked_add(8)?)?;
    let length = usize::try_from(i32::from_be_bytes(words[..4].try_into().ok()?)).ok()?;
    let word = u32::from_be_bytes(words[4..].try_into().ok()?);
    let header_size = (word & 0xff_ffff) as usize;
    if length > size_max.checked_sub(4)? {
        return None;
    }
    let body_at = at + 8 + header_size;
    let end = at + 4 + length;
    let header = data.get(at + 8..body_at)?;
    let body = data.get(body_at..end)?; // none when the header is longer than the frame
    Some(((word >> 24) as u8, header, body, end))
}

/// The code of a send, when it stands where clients write it.
pub fn code(codec: u8, header: &[u8]) -> Option<i32> {
    any_code(codec, header)
        .filter(|code| matches!(*code, SEND_MESSAGE | SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE))
}

/// The code of any request, when it stands where clients write it and has up to three digits.
fn any_code(codec: u8, header: &[u8]) -> Option<i32> {
    match codec {
        JSON => {
            let rest = header.strip_prefix(b"{\"code\":")?;
            let digits = &rest[..rest.iter().take(4).position(|&b| b == b',')?];
            if digits.first().is_none_or(|first| *first == b'0') || !digits.iter().all(u8::is_ascii_digit) {
                return None;
            }
            Some(digits.iter().fold(0, |code, digit| 10 * code + i32::from(digit - b'0')))
        }
        ROCKETMQ => Some(i32::from(i16::from_be_bytes(header.get(..2)?.try_into().ok()?))),
        MSGPACK => match header {
            [0x97, 0xcd, high, low, ..] => Some(i32::from(u16::from_be_bytes([*high, *low]))),
            [0x97, code @ 1..=0x7f, ..] => Some(i32::from(*code)),
            _ => None,
        },
        _ => None,
    }
}

/// Bytes at the front of a header that have its code.
const CODE_SIZE: usize = 13;

/// Whether all requests that begin in `data`, the first at this place, are sends, pulls or queries by key, by their
/// codes. One that has no code yet is: nobody can tell, or serve it.
pub fn are_served(data: &[u8], mut at: usize, size_max: usize) -> bool {
    while let Some(words) = data.get(at..at.saturating_add(8)) {
        let Ok(length) = usize::try_from(i32::from_be_bytes([words[0], words[1], words[2], words[3]])) else {
            return false;
        };
        let header_size = usize::from(words[5]) << 16 | usize::from(words[6]) << 8 | usize::from(words[7]);
        if length > size_max || length < 4 + header_size {
            return false;
        }
        let header = &data[at + 8..data.len().min(at + 8 + header_size)];
        match any_code(words[4], header) {
            Some(
                SEND_MESSAGE | SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE | PULL_MESSAGE | LITE_PULL_MESSAGE
                | QUERY_MESSAGE,
            ) => {}
            None if header.len() < CODE_SIZE.min(header_size) => {}
            _ => return false,
        }
        at += 4 + length;
    }
    true
}

/// The header of a request of this code, its properties in `properties`; None when it is unusual in any way.
pub fn read<'a>(codec: u8, code: i32, header: &'a [u8], properties: &mut Vec<u8>) -> Option<Send<'a>> {
    properties.clear();
    let mut send = Send { code, ..Send::default() };
    match codec {
        JSON => json(code, header, properties, &mut send)?,
        ROCKETMQ => binary(code, header, properties, &mut send)?,
        MSGPACK => packed(code, header, properties, &mut send)?,
        _ => return None,
    }
    send.is_whole().then_some(send)
}

fn json<'a>(code: i32, header: &'a [u8], properties: &mut Vec<u8>, send: &mut Send<'a>) -> Option<()> {
    // Behind the code, which has been seen.
    let at = 8 + header.get(8..12)?.iter().position(|&b| b == b',')?;
    let mut json = Json::new(header, at);
    let (mut flag, mut opaque, mut version) = (0, 0, 0);
    let mut seen = 0u8;
    loop {
        match json.next()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
        let name = json.plain()?;
        json.expect(b':')?;
        let bit = match name {
            b"extFields" => {
                json_fields(code, &mut json, properties, send)?;
                1
            }
            b"flag" => {
                flag = json.number()?;
                2
            }
            b"language" => {
                json.name_or_number()?;
                4
            }
            b"opaque" => {
                opaque = json.number()?;
                8
            }
            b"remark" => {
                json.plain()?;
                16
            }
            b"serializeTypeCurrentRPC" => {
                json.plain()?;
                32
            }
            b"version" => {
                version = json.number()?;
                64
            }
            _ => return None,
        };
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
    }
    (json.is_over() && I32.contains(&flag)).then_some(())?;
    send.envelope(flag, opaque, version)
}

fn json_fields<'a>(
    code: i32,
    json: &mut Json<'a>,
    properties: &mut Vec<u8>,
    send: &mut Send<'a>,
) -> Option<()> {
    json.expect(b'{')?;
    loop {
        let name = json.plain()?;
        json.expect(b':')?;
        let field = field(code, name)?;
        send.once(field)?;
        if field == PROPERTIES {
            json.text(properties)?;
        } else {
            let value = json.plain()?;
            send.set(field, value)?;
        }
        match json.next()? {
            b',' => {}
            b'}' => return Some(()),
            _ => return None,
        }
    }
}

/// Bytes, and how far they have been read.
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// From the first one on.
    pub fn new(rest: &'a [u8]) -> Self {
        Cursor { rest }
    }

    /// So many of them.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    /// A number of 16 bits.
    pub fn i16(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    /// A number of 32 bits.
    pub fn i32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }
}

fn put<'a>(
    code: i32,
    name: &[u8],
    value: &'a [u8],
    properties: &mut Vec<u8>,
    send: &mut Send<'a>,
) -> Option<()> {
    let field = field(code, name)?;
    send.once(field)?;
    if !is_text(value) {
        return None;
    }
    if field == PROPERTIES {
        properties.extend_from_slice(value);
        return Some(());
    }
    send.set(field, value)
}

fn binary<'a>(code: i32, header: &'a [u8], properties: &mut Vec<u8>, send: &mut Send<'a>) -> Option<()> {
    let mut cursor = Cursor { rest: header };
    cursor.take(3)?; // the code, which has been seen, and the language
    let version = cursor.i16()?;
    let opaque = cursor.i32()?;
    let flag = cursor.i32()?;
    cursor.binary_fields(|name, value| put(code, name, value, properties, send))?;
    send.envelope(i64::from(flag), i64::from(opaque), i64::from(version))
}

impl<'a> Cursor<'a> {
    /// The rest of a header in RocketMQ's own codec: no remark, and fields up to the end.
    pub fn binary_fields(&mut self, mut put: impl FnMut(&'a [u8], &'a [u8]) -> Option<()>) -> Option<()> {
        let remark = self.i32()?;
        let fields = usize::try_from(self.i32()?).ok()?;
        if remark != 0 || fields != self.rest.len() {
            return None;
        }
        while !self.rest.is_empty() {
            let size = usize::try_from(self.i16()?).ok()?;
            let name = self.take(size)?;
            let size = usize::try_from(self.i32()?).ok()?;
            let value = self.take(size)?;
            put(name, value)?;
        }
        Some(())
    }

    /// The same in msgpack.
    pub fn packed_fields(&mut self, mut put: impl FnMut(&'a [u8], &'a [u8]) -> Option<()>) -> Option<()> {
        if self.u8()? != 0xc0 {
            return None; // a remark
        }
        for _ in 0..self.packed_count()? {
            let name = self.packed_text()?;
            let value = self.packed_text()?;
            put(name, value)?;
        }
        self.rest.is_empty().then_some(())
    }

    /// A whole number in the shortest form, or another: msgpack has several.
    pub fn packed_number(&mut self) -> Option<i64> {
        Some(match self.u8()? {
            small @ 0..=0x7f => i64::from(small),
            negative @ 0xe0.. => i64::from(negative as i8),
            0xcc => i64::from(self.u8()?),
            0xcd => i64::from(self.i16()? as u16),
            0xce => i64::from(self.i32()? as u32),
            0xd0 => i64::from(self.u8()? as i8),
            0xd1 => i64::from(self.i16()?),
            0xd2 => i64::from(self.i32()?),
            _ => return None,
        })
    }

    /// The bytes of a text.
    fn packed_text(&mut self) -> Option<&'a [u8]> {
        let size = match self.u8()? {
            short @ 0xa0..=0xbf => usize::from(short & 0x1f),
            0xd9 => usize::from(self.u8()?),
            0xda => usize::from(self.i16()? as u16),
            0xdb => usize::try_from(self.i32()?).ok()?,
            _ => return None,
        };
        self.take(size)
    }

    /// How many pairs the map has that follows.
    fn packed_count(&mut self) -> Option<usize> {
        Some(match self.u8()? {
            short @ 0x80..=0x8f => usize::from(short & 0xf),
            0xde => usize::from(self.i16()? as u16),
            _ => return None,
        })
    }
}

fn packed<'a>(code: i32, header: &'a [u8], properties: &mut Vec<u8>, send: &mut Send<'a>) -> Option<()> {
    let mut cursor = Cursor { rest: header };
    cursor.u8()?; // an array of seven, which has been seen
    cursor.packed_number()?;
    let flag = cursor.packed_number()?;
    let opaque = cursor.packed_number()?;
    let version = cursor.packed_number()?;
    cursor.packed_number()?; // language
    cursor.packed_fields(|name, value| put(code, name, value, properties, send))?;
    send.envelope(flag, opaque, version)
}

//! Records as they lie in the commit log. The layout is drawn in `aerobee_proto.records`.

use crate::bytes::{hex8, hex16};

/// Of a record that begins with a topic of at most 127 bytes.
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
/// Of one with a longer topic.
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// Bytes of an IPv6 address and a port.
pub const HOST_V6: usize = 20;
/// Bit of the sys flag: the producer's address is an IPv6 one.
pub const BORN_V6: i32 = 0x10;
/// Bit of the sys flag: the broker's address is an IPv6 one.
pub const STORE_V6: i32 = 0x20;
/// How the property begins that has the checksum over all of a record.
pub const CHECKSUM: &[u8] = b"__CRC32C\x01";
/// Bytes of that property.
pub const CHECKSUM_SIZE: usize = 34;
/// How the property begins that has RocketMQ's checksum.
pub const PROPERTY_CRC: &[u8] = b"__CRC32#\x01";
/// Bytes of that property.
pub const PROPERTY_CRC_SIZE: usize = 20;
/// Bytes of properties at most: their length is a signed 16-bit number.
pub const PROPERTIES_SIZE_MAX: usize = 32767;
/// The topic of messages that wait for their time.
pub const SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";
/// The bits of a CRC-32 that records keep.
pub const CRC_MASK: u32 = 0x7FFF_FFFF;
/// Everything but hosts, body, topic and properties, the length of the properties with it.
const FIXED: usize = 74;

/// What all records of a store have in common.
pub struct Form {
    /// Whether each carries the checksum over all of it.
    pub has_checksum: bool,
    /// Whether each carries RocketMQ's checksum.
    pub has_property_crc: bool,
    /// The broker's address, 8 or 20 bytes.
    pub store_host: Vec<u8>,
}

/// One message, its place known.
pub struct Message<'a> {
    pub magic: u32,
    pub topic: &'a [u8], // with its length in front
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_timestamp: i64,
    pub reconsume_times: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
    pub suffix: &'a [u8], // properties that the broker adds
}

impl Form {
    /// Bytes of properties as they are stored.
    fn properties_size(&self, properties: usize) -> usize {
        let checksum = if self.has_checksum { CHECKSUM_SIZE } else { 0 };
        let crc = if self.has_property_crc { PROPERTY_CRC_SIZE } else { 0 };
        properties + checksum + crc
    }

    /// Bytes of a record; None when its properties are too many.
    pub fn size(&self, born_host: usize, topic: usize, body: usize, properties: usize) -> Option<usize> {
        let properties = self.properties_size(properties);
        (properties <= PROPERTIES_SIZE_MAX)
            .then(|| FIXED + born_host + self.store_host.len() + topic + body + properties)
    }

    /// Write the record, which has `size` bytes, behind what `out` holds.
    pub fn write(&self, out: &mut Vec<u8>, size: usize, message: &Message) {
        let begin = out.len();
        out.reserve(size);
        let born = if message.born_host.len() == HOST_V6 { BORN_V6 } else { 0 };
        let store = if self.store_host.len() == HOST_V6 { STORE_V6 } else { 0 };
        let sys_flag = message.sys_flag & !(BORN_V6 | STORE_V6) | born | store;
        out.extend_from_slice(&(size as i32).to_be_bytes());
        out.extend_from_slice(&message.magic.to_be_bytes());
        out.extend_from_slice(&(crc32fast::hash(message.body) & CRC_MASK).to_be_bytes());
        out.extend_from_slice(&message.queue_id.to_be_bytes());
        out.extend_from_slice(&message.flag.to_be_bytes());
        out.extend_from_slice(&message.queue_offset.to_be_bytes());
        out.extend_from_slice(&message.physical_offset.to_be_bytes());
        out.extend_from_slice(&sys_flag.to_be_bytes());
        out.extend_from_slice(&message.born_timestamp.to_be_bytes());
        out.extend_from_slice(message.born_host);
        out.extend_from_slice(&message.store_timestamp.to_be_bytes());
        out.extend_from_slice(&self.store_host);
        out.extend_from_slice(&message.reconsume_times.to_be_bytes());
        out.extend_from_slice(&0i64.to_be_bytes()); // where a transaction was prepared
        out.extend_from_slice(&(message.body.len() as i32).to_be_bytes());
        out.extend_from_slice(message.body);
        out.extend_from_slice(message.topic);
        let properties = self.properties_size(message.properties.len() + message.suffix.len());
        out.extend_from_slice(&(properties as i16).to_be_bytes());
        out.extend_from_slice(message.properties);
        out.extend_from_slice(message.suffix);
        if self.has_checksum {
            let crc = crc32c::crc32c(&out[begin..]);
            out.extend_from_slice(CHECKSUM);
            out.extend_from_slice(&hex16(message.physical_offset as u64));
            out.extend_from_slice(&hex8(crc));
            out.push(2);
        }
        if self.has_property_crc {
            let mut crc = crc32fast::hash(&out[begin..]) & CRC_MASK;
            out.extend_from_slice(PROPERTY_CRC);
            for _ in 0..10 {
                out.push(b'0' + (crc % 10) as u8); // the least digit first
                crc /= 10;
            }
            out.push(2);
        }
        assert_eq!(out.len() - begin, size);
    }
}

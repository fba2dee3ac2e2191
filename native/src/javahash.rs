//! Java's string hash: 31 * h + unit over the UTF-16 code units.

/// The hash of what `hash` is the hash of, followed by this text, which is UTF-8.
pub fn extended(mut hash: u32, text: &[u8]) -> u32 {
    if text.is_ascii() {
        for &byte in text {
            hash = hash.wrapping_mul(31).wrapping_add(u32::from(byte));
        }
    } else {
        for unit in String::from_utf8_lossy(text).encode_utf16() {
            hash = hash.wrapping_mul(31).wrapping_add(u32::from(unit));
        }
    }
    hash
}

/// The hash as Java gives it.
pub fn signed(hash: u32) -> i32 {
    hash as i32
}

/// The hash of an index key: never negative.
pub fn of_key(hash: u32) -> i64 {
    match signed(hash) {
        i32::MIN => 0,
        hash => i64::from(hash.abs()),
    }
}

//! Numbers as digits.

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

/// Sixteen hexadecimal digits, capital ones.
pub fn hex16(value: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (at, digit) in digits.iter_mut().enumerate() {
        *digit = DIGITS[(value >> (60 - 4 * at) & 0xf) as usize];
    }
    digits
}

/// Eight hexadecimal digits, capital ones.
pub fn hex8(value: u32) -> [u8; 8] {
    let mut digits = [0; 8];
    for (at, digit) in digits.iter_mut().enumerate() {
        *digit = DIGITS[(value >> (28 - 4 * at) & 0xf) as usize];
    }
    digits
}

/// A number as text; `buffer` holds it.
pub fn decimal(value: i64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut left = value.unsigned_abs();
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = DIGITS[(left % 10) as usize];
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        buffer[at] = b'-';
    }
    &buffer[at..]
}

/// A number as text, at the end of `out`.
pub fn push_decimal(out: &mut Vec<u8>, value: i64) {
    let mut buffer = [0; 20];
    out.extend_from_slice(decimal(value, &mut buffer));
}

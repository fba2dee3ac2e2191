//! JSON as clients write it: no blanks, canonical numbers, no surrogates. Anything else is `None`, and for Python to read.

/// The bytes of one header, and how far it has been read.
pub struct Json<'a> {
    bytes: &'a [u8],
    at: usize,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Bytes of the eight that are zero, as high bits. Above a true one there may be false ones, never below it.
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

/// Where the first byte of a string stands that is not simply itself: a quote, a backslash, a control character.
fn special(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(eight) = bytes.get(at..at + 8).and_then(|b| <[u8; 8]>::try_from(b).ok()) {
        let word = u64::from_le_bytes(eight);
        let quotes = zeros(word ^ (ONES * b'"' as u64));
        let slashes = zeros(word ^ (ONES * b'\\' as u64));
        let controls = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
        let found = quotes | slashes | controls;
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    bytes[at..].iter().position(|&b| b < 0x20 || b == b'"' || b == b'\\').map_or(bytes.len(), |more| at + more)
}

impl<'a> Json<'a> {
    /// From this place of `bytes` on.
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Json { bytes, at }
    }

    /// How far it has been read.
    pub fn place(&self) -> usize {
        self.at
    }

    /// Whether everything has been read.
    pub fn is_over(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The next byte, taken.
    pub fn next(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// This byte and no other.
    pub fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// A string without escapes, valid UTF-8.
    pub fn plain(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let rest = &self.bytes[self.at..];
        let end = special(rest);
        if *rest.get(end)? != b'"' {
            return None;
        }
        self.at += end + 1;
        let text = &rest[..end];
        is_text(text).then_some(text)
    }

    /// A string, its escapes resolved, behind what `out` holds; valid UTF-8.
    pub fn text(&mut self, out: &mut Vec<u8>) -> Option<()> {
        self.expect(b'"')?;
        let begin = out.len();
        loop {
            let rest = &self.bytes[self.at..];
            let end = special(rest);
            out.extend_from_slice(&rest[..end]);
            let stop = *rest.get(end)?;
            self.at += end + 1;
            match stop {
                b'"' => break,
                b'\\' => self.escape(out)?,
                _ => return None,
            }
        }
        is_text(&out[begin..]).then_some(())
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let byte = match self.next()? {
            b'u' => return self.unit(out),
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            same @ (b'"' | b'\\' | b'/') => same,
            _ => return None,
        };
        out.push(byte);
        Some(())
    }

    fn unit(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        let mut unit = 0u32;
        for &digit in digits {
            unit = unit * 16 + (digit as char).to_digit(16)?;
        }
        self.at += 4;
        if unit < 0x80 {
            out.push(unit as u8);
        } else {
            let found = char::from_u32(unit)?; // none: a surrogate
            let mut buffer = [0; 4];
            out.extend_from_slice(found.encode_utf8(&mut buffer).as_bytes());
        }
        Some(())
    }

    /// A bare whole number.
    pub fn number(&mut self) -> Option<i64> {
        let begin = self.at;
        while self.peek().is_some_and(|b| b == b'-' || b.is_ascii_digit()) {
            self.at += 1;
        }
        whole(&self.bytes[begin..self.at])
    }

    /// A name of a client's language, or its number.
    pub fn name_or_number(&mut self) -> Option<()> {
        if self.peek()? == b'"' { self.plain().map(|_| ()) } else { self.number().map(|_| ()) }
    }
}

/// Whether these bytes are UTF-8.
pub fn is_text(bytes: &[u8]) -> bool {
    bytes.is_ascii() || std::str::from_utf8(bytes).is_ok()
}

/// The number that these digits say in the one way in which a program writes it.
pub fn whole(digits: &[u8]) -> Option<i64> {
    let (negative, digits) = match digits {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value = 0i64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(i64::from(digit - b'0'))?;
    }
    Some(if negative { -value } else { value })
}

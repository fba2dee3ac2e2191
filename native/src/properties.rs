//! The property text of a message: which of them the broker needs, and whether it asks for more than to be stored.

use std::ops::Range;

use crate::records::PROPERTIES_SIZE_MAX;

/// Separates a name from its value.
const NAME_END: u8 = 1;
/// Ends a property.
pub const PROPERTY_END: u8 = 2;
const COUNT_MAX: usize = 24;

/// Places in the property text.
pub struct Properties {
    /// The value of UNIQ_KEY: letters and digits.
    pub unique_key: Range<usize>,
    /// The value of KEYS.
    pub keys: Option<Range<usize>>,
    /// The value of TAGS.
    pub tags: Option<Range<usize>>,
    /// Its sender does not wait for the disk.
    pub is_without_wait: bool,
}

/// Names and values as they stand in `text`, in their order; None at the first that lacks one of the two.
struct Pairs<'a> {
    text: &'a [u8],
    at: usize,
}

impl Iterator for Pairs<'_> {
    type Item = Option<(Range<usize>, Range<usize>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.text.get(self.at..).filter(|rest| !rest.is_empty())?;
        let size = rest.iter().position(|&b| b == PROPERTY_END).unwrap_or(rest.len());
        let (begin, end) = (self.at, self.at + size);
        self.at = end + 1;
        let Some(name_size) = rest[..size].iter().position(|&b| b == NAME_END) else { return Some(None) };
        let (name, value) = (begin..begin + name_size, begin + name_size + 1..end);
        Some((!name.is_empty() && !value.is_empty()).then_some((name, value)))
    }
}

/// The properties that all messages of a batch have in common.
#[derive(Default)]
pub struct Common<'a> {
    pairs: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Common<'a> {
    /// Those in `text`; None when there is anything unusual about them.
    pub fn read(text: &'a [u8]) -> Option<Self> {
        let mut pairs: Vec<(&[u8], &[u8])> = Vec::new();
        for pair in (Pairs { text, at: 0 }) {
            let (name, value) = pair?;
            let name = &text[name];
            if pairs.len() == COUNT_MAX || pairs.iter().any(|(known, _)| *known == name) {
                return None;
            }
            pairs.push((name, &text[value]));
        }
        Some(Common { pairs })
    }

    /// The value of a property.
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Add to the properties of one message, which begin at `begin` of `raw`, those that it does not have itself.
    pub fn join(&self, raw: &mut Vec<u8>, begin: usize) -> Option<()> {
        if raw.len() > begin && raw.last() != Some(&PROPERTY_END) {
            raw.push(PROPERTY_END);
        }
        let end = raw.len();
        for (name, value) in &self.pairs {
            let own = &raw[begin..end];
            let mut is_own = false;
            for pair in (Pairs { text: own, at: 0 }) {
                is_own |= own[pair?.0] == **name;
            }
            if !is_own {
                raw.extend_from_slice(name);
                raw.push(NAME_END);
                raw.extend_from_slice(value);
                raw.push(PROPERTY_END);
            }
        }
        Some(())
    }
}

/// The properties in `raw` from `begin` on, which end with a separator afterwards; None when there is anything unusual
/// about them.
pub fn read(raw: &mut Vec<u8>, begin: usize) -> Option<Properties> {
    if raw.len() == begin || raw.len() - begin > PROPERTIES_SIZE_MAX {
        return None;
    }
    if raw.last() != Some(&PROPERTY_END) {
        raw.push(PROPERTY_END);
    }
    let text = &raw[..];
    let mut names: [&[u8]; COUNT_MAX] = [&[]; COUNT_MAX];
    let mut count = 0;
    let (mut unique_key, mut keys, mut tags, mut is_without_wait) = (None, None, None, false);
    let mut at = begin;
    while at < text.len() {
        let end = at + text[at..].iter().position(|&b| b == PROPERTY_END)?;
        let name_end = at + text[at..end].iter().position(|&b| b == NAME_END)?;
        let name = &text[at..name_end];
        let value = name_end + 1..end;
        if name.is_empty() || value.is_empty() || count == COUNT_MAX || names[..count].contains(&name) {
            return None;
        }
        names[count] = name;
        count += 1;
        match name {
            b"UNIQ_KEY" => {
                if !text[value.clone()].iter().all(u8::is_ascii_alphanumeric) {
                    return None;
                }
                unique_key = Some(value);
            }
            b"KEYS" => keys = Some(value),
            b"TAGS" => tags = Some(value),
            b"WAIT" => is_without_wait = &text[value] == b"false",
            // What the broker sets or removes, and what asks for another place than the topic.
            b"MSG_REGION" | b"TRACE_ON" | b"CLUSTER" | b"POP_CK" => return None,
            b"DELAY" | b"TIMER_DELAY_SEC" | b"TIMER_DELAY_MS" | b"TIMER_DELIVER_MS" => return None,
            b"TRAN_MSG" | b"INNER_NUM" => return None,
            _ => {}
        }
        at = end + 1;
    }
    // The names of checksums, wherever they stand.
    if text[begin..].windows(7).any(|seven| seven == b"__CRC32") {
        return None;
    }
    Some(Properties { unique_key: unique_key?, keys, tags, is_without_wait })
}

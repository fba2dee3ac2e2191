//! Keys on their way into a file of the index: entries, and the slots that are to name them.
//!
//! `aerobee_store.index.index_file` draws the file and writes what is made here.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::mapped::Mapped;

pub const HEADER_SIZE: usize = 40;
pub const SLOT_SIZE: usize = 4;
pub const ENTRY_SIZE: usize = 20;
const PREVIOUS_AT: usize = 16; // in an entry
const SECOND_MS: i64 = 1000;
const NUMBER_SIZE: usize = 8; // i64 of this machine

/// Keys of one store time, as `aerobee_store.index.index_file.KeyedBlock` has them: how many records, hashes, places, the
/// first place, the time.
pub type Block<'py> = (usize, Bound<'py, PyBytes>, Bound<'py, PyBytes>, i64, i64);
/// How many entries, their bytes, the slots that are touched (i64 of this machine, ascending), the number of the newest
/// entry of each as it is stored, and how many slots were not in use.
pub type Chained<'py> = (usize, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize);

/// Room that is used again.
#[derive(Default)]
pub struct Rooms {
    entries: Vec<u8>,
    order: Vec<u64>, // slot, and behind it which of the new entries
    touched: Vec<u8>,
    newest: Vec<u8>,
}

/// The file as it is: its slots, the number of the next entry and of the last one that it has room for, the store time
/// (ms) of its first record.
pub struct File<'a> {
    pub view: &'a Mapped,
    pub slot_count: usize,
    pub next_entry: i32,
    pub entry_limit: i32,
    pub begin_timestamp: i64,
}

/// What these keys come to as the next entries of the file, at least one. None when there is none, they do not fit, or
/// anything is no key.
pub fn chained<'py>(
    py: Python<'py>,
    rooms: &mut Rooms,
    file: &File,
    blocks: &[Block<'py>],
) -> PyResult<Option<Chained<'py>>> {
    rooms.entries.clear();
    rooms.order.clear();
    let room = usize::try_from(file.entry_limit.saturating_sub(file.next_entry)).unwrap_or(0);
    for (_, hashes, places, _, stored) in blocks {
        let (hashes, places) = (hashes.as_bytes(), places.as_bytes());
        if hashes.len() != places.len() || rooms.order.len() + hashes.len() / NUMBER_SIZE > room {
            return Ok(None);
        }
        let seconds = seconds_since(file.begin_timestamp, *stored);
        for (hash, place) in numbers(hashes).zip(numbers(places)) {
            let (Ok(hash), Ok(signed)) = (u32::try_from(hash), i32::try_from(hash)) else { return Ok(None) };
            let Some(slot) = (hash as usize).checked_rem(file.slot_count) else { return Ok(None) };
            rooms.order.push((slot as u64) << 32 | rooms.order.len() as u64);
            rooms.entries.extend_from_slice(&signed.to_be_bytes());
            rooms.entries.extend_from_slice(&place.to_be_bytes());
            rooms.entries.extend_from_slice(&seconds.to_be_bytes());
            rooms.entries.extend_from_slice(&[0; ENTRY_SIZE - PREVIOUS_AT]);
        }
    }
    let count = rooms.order.len();
    if count == 0 {
        return Ok(None);
    }
    let begun = rooms.chain(py, file)?;
    let made = |bytes: &[u8]| PyBytes::new(py, bytes);
    Ok(Some((count, made(&rooms.entries), made(&rooms.touched), made(&rooms.newest), begun)))
}

impl Rooms {
    /// Let each new entry name the one before it of its slot; how many slots had none.
    fn chain(&mut self, py: Python, file: &File) -> PyResult<usize> {
        let cells = file.view.cells(py)?;
        self.order.sort_unstable();
        self.touched.clear();
        self.newest.clear();
        let (mut begun, mut of_slot, mut newest) = (0, None, 0_i32);
        for &one in &self.order {
            let (slot, index) = (one >> 32, one as u32 as usize);
            if of_slot != Some(slot) {
                if of_slot.is_some() {
                    self.newest.extend_from_slice(&newest.to_be_bytes());
                }
                self.touched.extend_from_slice(&(slot as i64).to_ne_bytes());
                let stored = i32::from_be_bytes(cells.array(HEADER_SIZE + slot as usize * SLOT_SIZE)?);
                newest = if (0..file.next_entry).contains(&stored) { stored } else { 0 };
                begun += usize::from(newest == 0);
                of_slot = Some(slot);
            }
            let at = index * ENTRY_SIZE + PREVIOUS_AT;
            if let Some(previous) = self.entries.get_mut(at..at + 4) {
                previous.copy_from_slice(&newest.to_be_bytes());
            }
            newest = file.next_entry + index as i32;
        }
        self.newest.extend_from_slice(&newest.to_be_bytes());
        Ok(begun)
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = i64> {
    bytes.chunks_exact(NUMBER_SIZE).filter_map(|one| one.try_into().ok().map(i64::from_ne_bytes))
}

/// Whole seconds from the begin of the file; 0 for a clock that stepped back, and where the begin is not known.
fn seconds_since(begin: i64, stored: i64) -> i32 {
    if begin <= 0 {
        return 0;
    }
    let seconds = stored.saturating_sub(begin).div_euclid(SECOND_MS).max(0);
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

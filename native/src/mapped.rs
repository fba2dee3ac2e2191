//! Files of the log and of the index, mapped by Python: bytes of them are copied out, and nothing else.

use std::ops::Range;

use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// One of them, for the time of a call.
pub struct Mapped {
    buffer: PyBuffer<u8>,
}

impl Mapped {
    /// What a memoryview shows.
    pub fn of(view: &Bound<PyAny>) -> PyResult<Self> {
        Ok(Self { buffer: PyBuffer::get(view)? })
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.buffer.item_count()
    }

    /// Fill `out` with what stands from there on.
    ///
    /// A slice of the memoryview for each piece took 0.3 us, and with `PySlice::new` of pyo3 0.30.1 two numbers that
    /// nobody ever gave back.
    pub fn copy(&self, py: Python, begin: usize, out: &mut [u8]) -> PyResult<()> {
        self.cells(py)?.copy(begin, out)
    }

    /// For who copies many pieces.
    pub fn cells<'a>(&'a self, py: Python<'a>) -> PyResult<Cells<'a>> {
        // Deprecated since the bytes behind such a slice may change while somebody has it. Records are written once,
        // before anybody is told of them, and the index by the thread that calls this; each byte is read once.
        #[expect(deprecated, reason = "what stands for it is unsafe, and copies of whole buffers are too large")]
        let all = self.buffer.as_slice(py).ok_or_else(|| PyBufferError::new_err("a map lies in one piece"))?;
        Ok(Cells { all })
    }
}

/// Its bytes, which may change meanwhile.
pub struct Cells<'a> {
    all: &'a [ReadOnlyCell<u8>],
}

impl Cells<'_> {
    /// As `Mapped::copy`.
    pub fn copy(&self, begin: usize, out: &mut [u8]) -> PyResult<()> {
        let part = part(self.all, begin..begin.saturating_add(out.len()))?;
        for (to, from) in out.iter_mut().zip(part) {
            *to = from.get();
        }
        Ok(())
    }

    /// So many bytes from there on.
    pub fn array<const SIZE: usize>(&self, begin: usize) -> PyResult<[u8; SIZE]> {
        let mut found = [0; SIZE];
        self.copy(begin, &mut found)?;
        Ok(found)
    }
}

fn part(all: &[ReadOnlyCell<u8>], range: Range<usize>) -> PyResult<&[ReadOnlyCell<u8>]> {
    let (begin, end, size) = (range.start, range.end, all.len());
    all.get(range).ok_or_else(|| PyBufferError::new_err(format!("bytes {begin} to {end} of a map of {size}")))
}

//! The native engine of Aerobee's broker: functions over bytes.
//!
//! `Engine.take` reads the usual sends at the front of what a socket gave and makes records, queue entries, hashes of
//! keys and answers of them. `Engine.pull` reads usual pulls, and `Engine.gather` makes an answer of the entries of a
//! queue and the file of the log that they lead to; `Engine.query` and `Engine.answer_query` do the same for queries
//! by key. `Engine.is_sound` proves a record, and `Engine.walk` many that come from
//! another broker's log; `Engine.chain_keys` makes entries of the index. It does no I/O and knows no clock,
//! no thread and no fault: Python owns every state, decides who is let in, writes what is made here, and does by itself
//! whatever is unusual. Nothing is changed by a call that fails. `stored_records` is for whoever reads an answer:
//! clients, and the broker itself.

mod answers;
mod bytes;
mod copying;
mod decoding;
mod engine;
mod indexing;
mod javahash;
mod json;
mod judging;
mod mapped;
mod proof;
mod properties;
mod pulls;
mod queries;
mod records;
mod requests;

use pyo3::prelude::*;

/// Raised by a fault of the engine's own; whoever meets it goes on in Python.
#[pymodule]
mod aerobee_native {
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::engine::EngineFault;

    #[pymodule_export]
    use crate::engine::stored_records;

    /// To be equal to the number that the broker was written for.
    #[pymodule_export]
    const INTERFACE: u32 = 11;

    /// The same for what clients use, that is `stored_records`.
    #[pymodule_export]
    const RECORDS_INTERFACE: u32 = 1;
}

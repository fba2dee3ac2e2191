//! Who lets requests in: Python, asked for each request that is usual in every other way, before anything is changed.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::requests::{ACCESS_KEY, SIGNATURE, Send};

/// A judge as `aerobee_remoting.exchange.gate.Judge` has it; without one everybody is let in.
pub struct Judge<'a>(pub Option<&'a Bound<'a, PyAny>>);

impl Judge<'_> {
    /// Whether this request is let in. `properties` are its own, as it has them.
    pub fn lets_in(&self, codec: u8, send: &Send, properties: &[u8], body: &[u8]) -> PyResult<bool> {
        let Some(judge) = self.0 else { return Ok(true) };
        let py = judge.py();
        let text = |field| send.text(codec, field).map(|value| PyBytes::new(py, value));
        let parts = send.signed(codec, properties);
        let size: usize = parts.clone().map(<[u8]>::len).sum();
        let content = PyBytes::new_with(py, size, |room: &mut [u8]| {
            let mut at = 0;
            for part in parts {
                room[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            Ok(())
        })?;
        let (topic, group) = (PyBytes::new(py, send.topic), PyBytes::new(py, send.group()));
        let asked = (send.code, text(ACCESS_KEY), topic, group);
        judge.call1((asked, text(SIGNATURE), content, PyBytes::new(py, body)))?.is_truthy()
    }
}

//! Traces of routing: which experts each step needed, for [`replay`](crate::replay).
//!
//! docs/trace.md has the format, byte by byte. A trace is written as a model runs and is readable at any time: what a
//! crash cut off is ignored. No text and no weights are in it.

mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::time::Duration;

use spinetail_core::Limits;
use xxhash_rust::xxh3::xxh3_64;

pub use reader::{Step, Trace, TraceError};
pub use writer::TraceWriter;

const MAGIC: [u8; 8] = *b"SPTRACE\0";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 44;
/// Records of a model at most: a replay keeps tables of them.
const MAX_RECORDS: u32 = (Limits::LAYERS * Limits::EXPERTS) as u32;
/// Length and checksum before the bytes of a step.
const FRAME_BYTES: usize = 8;

/// What a trace is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHeader {
    /// Layers of the model.
    pub layers: u16,
    /// Experts of each layer.
    pub experts: u16,
    /// Experts of each row.
    pub top_k: u16,
    /// Bytes of a slot: the largest record, rounded up as the store does.
    pub slot_bytes: u64,
    /// Bytes of the process that are not slots; 0 if that is not known.
    pub fixed_bytes: u64,
    /// [`model_id`] of the model's name; 0 if it has none.
    pub model_id: u64,
}

/// What stands for a model's name in a trace.
pub fn model_id(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// What kind of step it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// One token of each of the batch's sequences.
    Decode,
    /// A part of a prompt.
    Prefill,
}

/// Where the time of a step went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTime {
    /// All of the step but the waits for reads.
    pub compute: Duration,
    /// Waiting for reads.
    pub read: Duration,
    /// Bytes of the records read.
    pub read_bytes: u64,
}

/// The checksum of a header or a step: the low half of XXH3.
fn checksum(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}

/// Bytes of a step at most: five numbers, and every expert of every layer.
fn max_step_bytes(h: &TraceHeader) -> usize {
    1 + 4 * 10 + usize::from(h.layers) * 3 * (1 + usize::from(h.experts))
}

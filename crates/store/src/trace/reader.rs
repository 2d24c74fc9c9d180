//! Reading a trace that may come from anywhere.

use std::time::Duration;

use super::{
    FRAME_BYTES, HEADER_BYTES, MAGIC, MAX_RECORDS, StepKind, StepTime, TraceHeader, VERSION, checksum,
    max_step_bytes,
};

/// Why bytes are not a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// It does not begin as traces do.
    #[error("this is no trace: expected it to begin with SPTRACE; make one with --trace")]
    Magic,
    /// Written by another version.
    #[error("this trace has version {found}, expected {VERSION}; record it again")]
    Version {
        /// The version found.
        found: u16,
    },
    /// The header ends early, or its checksum or its numbers are wrong.
    #[error("the header of this trace is damaged: {what}; record it again")]
    Header {
        /// What is wrong with it.
        what: String,
    },
    /// A step that was written so: its checksum is right.
    #[error("step {step} of this trace is wrong: {what}; record it again")]
    Step {
        /// Which, from 0.
        step: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// A whole trace in memory: two bytes for each expert of each step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    header: TraceHeader,
    heads: Vec<Head>,
    ids: Vec<u16>,
    /// Where the ids of each layer of each step end.
    ends: Vec<usize>,
    ignored_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    kind: StepKind,
    rows: u32,
    time: StepTime,
}

/// One step.
#[derive(Debug, Clone, Copy)]
pub struct Step<'t> {
    /// What kind it was.
    pub kind: StepKind,
    /// Rows of the batch.
    pub rows: u32,
    /// Where its time went.
    pub time: StepTime,
    trace: &'t Trace,
    index: usize,
}

impl<'t> Step<'t> {
    /// The experts that each layer needed, ascending.
    pub fn layers(&self) -> impl Iterator<Item = &'t [u16]> + use<'t> {
        let (trace, layers) = (self.trace, usize::from(self.trace.header.layers));
        (self.index * layers..(self.index + 1) * layers).map(move |i| {
            let start = if i == 0 { 0 } else { trace.ends[i - 1] };
            &trace.ids[start..trace.ends[i]]
        })
    }
}

impl Trace {
    /// Reads a trace. What follows the last whole step is ignored, as after a crash.
    pub fn parse(bytes: &[u8]) -> Result<Self, TraceError> {
        let header = parse_header(bytes)?;
        let mut trace =
            Self { header, heads: Vec::new(), ids: Vec::new(), ends: Vec::new(), ignored_bytes: 0 };
        let mut rest = &bytes[HEADER_BYTES..];
        while let Some((payload, after)) = frame(rest, max_step_bytes(&header)) {
            let step = trace.heads.len();
            trace.push(payload).map_err(|what| TraceError::Step { step, what })?;
            rest = after;
        }
        trace.ignored_bytes = rest.len();
        Ok(trace)
    }

    /// What it is of.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The steps in order.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = Step<'_>> {
        self.heads.iter().enumerate().map(|(index, h)| Step {
            kind: h.kind,
            rows: h.rows,
            time: h.time,
            trace: self,
            index,
        })
    }

    /// Bytes at the end that were no whole step.
    pub fn ignored_bytes(&self) -> usize {
        self.ignored_bytes
    }

    fn push(&mut self, payload: &[u8]) -> Result<(), String> {
        let mut p = Payload(payload);
        let kind = match p.byte()? {
            1 => StepKind::Decode,
            2 => StepKind::Prefill,
            other => return Err(format!("expected kind 1 or 2, found {other}")),
        };
        let rows = p.number(u64::from(u32::MAX), "rows")? as u32;
        if rows == 0 {
            return Err("expected rows, found none".to_owned());
        }
        let compute = Duration::from_micros(p.number(u64::MAX, "microseconds")?);
        let read = Duration::from_micros(p.number(u64::MAX, "microseconds")?);
        let time = StepTime { compute, read, read_bytes: p.number(u64::MAX, "bytes")? };
        let experts = u64::from(self.header.experts);
        for _ in 0..self.header.layers {
            let mut least = 0;
            for _ in 0..p.number(experts, "experts of a layer")? {
                let id = least + p.number(experts, "an expert")?;
                if id >= experts {
                    return Err(format!("expected an expert below {experts}, found {id}"));
                }
                self.ids.push(id as u16);
                least = id + 1;
            }
            self.ends.push(self.ids.len());
        }
        if !p.0.is_empty() {
            return Err(format!("expected its end, found {} bytes more", p.0.len()));
        }
        self.heads.push(Head { kind, rows, time });
        Ok(())
    }
}

fn parse_header(bytes: &[u8]) -> Result<TraceHeader, TraceError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(TraceError::Magic);
    }
    let damaged = |what: String| TraceError::Header { what };
    let Some((body, sum)) = bytes.get(..HEADER_BYTES).and_then(|h| h.split_last_chunk::<4>()) else {
        return Err(damaged(format!("expected {HEADER_BYTES} bytes, found {}", bytes.len())));
    };
    let u16_at = |at: usize| u16::from_le_bytes([body[at], body[at + 1]]);
    let u64_at = |at: usize| (0..8).fold(0, |n, i| n | u64::from(body[at + i]) << (8 * i));
    // Before the checksum: another version may have another header.
    if u16_at(8) != VERSION {
        return Err(TraceError::Version { found: u16_at(8) });
    }
    if checksum(body) != u32::from_le_bytes(*sum) {
        return Err(damaged("its checksum is wrong".to_owned()));
    }
    let h = TraceHeader {
        layers: u16_at(10),
        experts: u16_at(12),
        top_k: u16_at(14),
        slot_bytes: u64_at(16),
        fixed_bytes: u64_at(24),
        model_id: u64_at(32),
    };
    let records = u32::from(h.layers) * u32::from(h.experts);
    if records > MAX_RECORDS || h.layers == 0 || h.top_k == 0 || h.experts < h.top_k || h.slot_bytes == 0 {
        return Err(damaged(format!("no model has this shape: {h:?}")));
    }
    Ok(h)
}

/// The payload of the frame at the start of `bytes` and what follows it, if the frame is whole.
fn frame(bytes: &[u8], max_bytes: usize) -> Option<(&[u8], &[u8])> {
    let len = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    let sum = u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?);
    let end = FRAME_BYTES.checked_add(len)?;
    if len == 0 || len > max_bytes || end > bytes.len() {
        return None;
    }
    let (head, after) = bytes.split_at(end);
    let payload = &head[FRAME_BYTES..];
    (checksum(payload) == sum).then_some((payload, after))
}

/// What is left of a step.
struct Payload<'b>(&'b [u8]);

impl Payload<'_> {
    fn byte(&mut self) -> Result<u8, String> {
        let (&first, rest) = self.0.split_first().ok_or("it ends early")?;
        self.0 = rest;
        Ok(first)
    }

    /// A LEB128 number up to `max`.
    fn number(&mut self, max: u64, what: &str) -> Result<u64, String> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                if n > max {
                    return Err(format!("expected at most {max} {what}, found {n}"));
                }
                return Ok(n);
            }
        }
        Err(format!("a number of {what} has more than 64 bits"))
    }
}

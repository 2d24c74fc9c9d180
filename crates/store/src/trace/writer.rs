//! Writing a trace while a model runs.

use std::io::{self, BufWriter, Write};

use spinetail_core::ExpertId;

use super::{HEADER_BYTES, MAGIC, StepKind, StepTime, TraceHeader, VERSION, checksum};

/// Steps between flushes: what a crash can lose.
const FLUSH_STEPS: u64 = 32;

/// Writes a trace, a step at a time.
///
/// A write that fails does not stop the model: the error is kept, nothing more is written, and
/// [`finish`](Self::finish) returns it.
pub struct TraceWriter {
    out: BufWriter<Box<dyn Write + Send>>,
    layers: u16,
    /// Experts of the step so far, and how many each layer has.
    ids: Vec<u16>,
    counts: Vec<usize>,
    frame: Vec<u8>,
    steps: u64,
    error: Option<io::Error>,
}

impl std::fmt::Debug for TraceWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceWriter").field("steps", &self.steps).field("error", &self.error).finish()
    }
}

impl TraceWriter {
    /// Starts a trace on `out`.
    pub fn new(out: Box<dyn Write + Send>, header: &TraceHeader) -> Self {
        let mut writer = Self {
            out: BufWriter::new(out),
            layers: header.layers,
            ids: Vec::new(),
            counts: Vec::new(),
            frame: Vec::new(),
            steps: 0,
            error: None,
        };
        let bytes = encode_header(header);
        writer.error = writer.out.write_all(&bytes).and_then(|()| writer.out.flush()).err();
        writer
    }

    /// Forgets what came since the last step ended, as after one that failed.
    pub fn begin_step(&mut self) {
        self.ids.clear();
        self.counts.clear();
    }

    /// The experts that a layer needs: distinct and ascending, layers in order.
    pub fn layer(&mut self, ids: &[ExpertId]) {
        let Some(first) = ids.first() else { return };
        if self.counts.len() > usize::from(first.layer) || first.layer >= self.layers {
            debug_assert!(false, "layer {} comes once and in order", first.layer);
            return;
        }
        self.counts.resize(usize::from(first.layer), 0);
        self.counts.push(ids.len());
        self.ids.extend(ids.iter().map(|id| id.expert));
    }

    /// Writes the step.
    pub fn end_step(&mut self, kind: StepKind, rows: usize, time: &StepTime) {
        self.counts.resize(usize::from(self.layers), 0);
        self.frame.clear();
        self.frame.push(match kind {
            StepKind::Decode => 1,
            StepKind::Prefill => 2,
        });
        let micros = |d: std::time::Duration| d.as_micros() as u64;
        for n in [rows as u64, micros(time.compute), micros(time.read), time.read_bytes] {
            put_varint(&mut self.frame, n);
        }
        let mut ids = self.ids.iter();
        for &count in &self.counts {
            put_varint(&mut self.frame, count as u64);
            let mut least = 0;
            for &id in ids.by_ref().take(count) {
                put_varint(&mut self.frame, u64::from(id) - least);
                least = u64::from(id) + 1;
            }
        }
        self.begin_step();
        self.steps += 1;
        if self.error.is_none() {
            self.error = self.write_frame().err();
        }
    }

    /// Steps written, or why not all could be.
    pub fn finish(mut self) -> io::Result<u64> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.steps),
        }
    }

    fn write_frame(&mut self) -> io::Result<()> {
        self.out.write_all(&(self.frame.len() as u32).to_le_bytes())?;
        self.out.write_all(&checksum(&self.frame).to_le_bytes())?;
        self.out.write_all(&self.frame)?;
        if self.steps.is_multiple_of(FLUSH_STEPS) { self.out.flush() } else { Ok(()) }
    }
}

fn encode_header(h: &TraceHeader) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for n in [VERSION, h.layers, h.experts, h.top_k] {
        out.extend(n.to_le_bytes());
    }
    for n in [h.slot_bytes, h.fixed_bytes, h.model_id] {
        out.extend(n.to_le_bytes());
    }
    out.extend(checksum(&out).to_le_bytes());
    debug_assert_eq!(out.len(), HEADER_BYTES);
    out
}

/// LEB128: seven bits a byte, the lowest first, the top bit set on all but the last.
fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

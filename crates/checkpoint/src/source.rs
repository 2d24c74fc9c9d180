//! Where the bytes of one matrix or vector lie in the files, and how they are turned into canonical bytes.

use std::ops::Range;

use spinetail_core::{DType, Part, ReadError, widen};

use crate::fp8;
use crate::safetensors::Files;

/// Rows one after another in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) row_bytes: u64,
}

/// The multipliers of a matrix of FP8: one per block of rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fp8 {
    pub(crate) scales: Run,
    pub(crate) dtype: DType,
    pub(crate) block: [usize; 2],
}

/// What is done to the bytes on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decode {
    /// Nothing.
    Bytes,
    /// To f32, times the multiplier of the block.
    Fp8(Fp8),
    /// To f32, with one added if the source's weights are centred on zero.
    Vector { dtype: DType, add_one: bool },
}

/// One canonical matrix or vector: some rows, in some order, of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// Weight, scales, biases; the last two are unused unless quantized.
    pub(crate) parts: [Run; 3],
    /// Rows of the file's matrix, in canonical order.
    pub(crate) rows: Vec<Range<usize>>,
    pub(crate) decode: Decode,
}

impl Source {
    /// Reads canonical rows `wanted` of `part` into `out`, which has exactly their canonical bytes.
    pub(crate) fn read_rows(
        &self,
        files: &Files,
        part: Part,
        wanted: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), ReadError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let run = self.parts[part as usize];
        let bytes_per_row = out.len() / wanted.len();
        let mut first = 0;
        let mut at = 0;
        for range in &self.rows {
            let start = wanted.start.max(first);
            let end = wanted.end.min(first + range.len());
            if start < end {
                let rows = range.start + start - first..range.start + end - first;
                let bytes = bytes_per_row * rows.len();
                self.read_run(files, run, rows, &mut out[at..at + bytes])?;
                at += bytes;
            }
            first += range.len();
        }
        debug_assert_eq!(at, out.len());
        Ok(())
    }

    fn read_run(&self, files: &Files, run: Run, rows: Range<usize>, out: &mut [u8]) -> Result<(), ReadError> {
        let offset = run.offset + rows.start as u64 * run.row_bytes;
        match self.decode {
            Decode::Bytes => files.read(run.file, offset, out),
            Decode::Fp8(f) => fp8::read(files, run, &f, rows, out),
            Decode::Vector { dtype, add_one } => {
                let mut raw = vec![0; out.len() / 4 * dtype.bytes()];
                files.read(run.file, offset, &mut raw)?;
                let mut values = vec![0.0f32; out.len() / 4];
                widen(dtype, &raw, &mut values);
                for (o, v) in out.chunks_exact_mut(4).zip(values) {
                    o.copy_from_slice(&(if add_one { 1.0 + v } else { v }).to_le_bytes());
                }
                Ok(())
            }
        }
    }
}

//! 8-bit floats (E4M3, no infinities) with one multiplier per block of rows and columns, read as f32.
//!
//! Layout as published by DeepSeek and Qwen: `weight` holds the bytes, `weight_scale_inv` the multipliers, `[rows / 128,
//! columns / 128]` rounded up. Both are few bits wide, so their product is exact in f32.

use std::ops::Range;

use spinetail_core::{ReadError, widen};

use crate::safetensors::Files;
use crate::source::{Fp8, Run};

/// The value of a byte: sign, 4 bits of exponent (bias 7), 3 of mantissa; all ones is not a number.
pub(crate) const fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = ((byte >> 3 & 15) as u32, (byte & 7) as u32);
    let sign = (byte as u32 >> 7) << 31;
    match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        // Subnormal: mantissa · 2^-9, exact in f32.
        (0, m) => {
            let v = m as f32 / 512.0;
            f32::from_bits(v.to_bits() | sign)
        }
        (e, m) => f32::from_bits(sign | (e + 127 - 7) << 23 | m << 20),
    }
}

/// Reads `rows` of the matrix in `run` as f32 into `out`.
pub(crate) fn read(
    files: &Files,
    run: Run,
    fp8: &Fp8,
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<(), ReadError> {
    let columns = run.row_bytes as usize;
    let mut codes = vec![0; columns * rows.len()];
    files.read(run.file, run.offset + rows.start as u64 * run.row_bytes, &mut codes)?;
    let table: [f32; 256] = std::array::from_fn(|i| e4m3(i as u8));
    let [block_rows, block_columns] = fp8.block;
    let mut scales = vec![0.0f32; columns.div_ceil(block_columns)];
    let mut raw = vec![0; fp8.scales.row_bytes as usize];
    let mut loaded = None;
    let out_rows = out.chunks_exact_mut(columns * 4);
    for (row, (codes, out)) in rows.zip(codes.chunks_exact(columns).zip(out_rows)) {
        let block = row / block_rows;
        if loaded != Some(block) {
            let s = fp8.scales;
            files.read(s.file, s.offset + block as u64 * s.row_bytes, &mut raw)?;
            widen(fp8.dtype, &raw, &mut scales);
            loaded = Some(block);
        }
        for ((i, &c), o) in codes.iter().enumerate().zip(out.chunks_exact_mut(4)) {
            o.copy_from_slice(&(table[usize::from(c)] * scales[i / block_columns]).to_le_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_mean_what_the_format_says() {
        for (byte, value) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x7e, 448.0),
            (0xb8, -1.0),
            (0xfe, -448.0),
        ] {
            assert_eq!(e4m3(byte), value, "{byte:#04x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert!(e4m3(0x80).is_sign_negative() && e4m3(0x80) == 0.0);
    }
}

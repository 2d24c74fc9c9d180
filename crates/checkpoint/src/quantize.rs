//! Affine quantization, bit for bit as MLX does it on the CPU (`mx.quantize(mode="affine")`, mlx 0.32).
//!
//! Per group, in f32: the step is the range over 2^bits − 1 codes (at least 1e-7), negative unless the minimum has the
//! larger magnitude; then it is stretched so that the edge of larger magnitude falls on a whole number of steps from
//! zero, and that edge becomes the bias. Codes are made with the unrounded step and bias; only then are both rounded to
//! the type of the source.

use spinetail_core::{Affine, DType, Part, TensorSpec, widen};

/// A weight that no code can stand for.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("row {row}, column {column}: expected finite weights, found {value}")]
pub struct NotFinite {
    /// The row, from the first one given.
    pub row: usize,
    /// The column, or the first column of a group whose range overflows.
    pub column: usize,
    /// The weight, or the step.
    pub value: f32,
}

/// The smallest step.
const MIN_STEP: f32 = 1e-7;

/// The three parts of quantized rows.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Quantized {
    /// Weight, scales, biases.
    pub parts: [Vec<u8>; 3],
}

/// Quantizes whole rows of `source` elements into `out`, whose contents are replaced. `columns` is a multiple of the
/// group size; scales and biases come in the type that `affine` says, which MLX makes that of the source.
pub fn quantize_rows(
    columns: usize,
    source: DType,
    affine: Affine,
    rows: &[u8],
    out: &mut Quantized,
) -> Result<(), NotFinite> {
    let spec = TensorSpec { shape: vec![1, columns], format: spinetail_core::Format::Affine(affine) };
    let count = rows.len() / (columns * source.bytes());
    for (part, bytes) in Part::ALL.into_iter().zip(&mut out.parts) {
        bytes.clear();
        bytes.reserve(count * spec.row_bytes(part));
    }
    let mut values = vec![0.0; columns];
    let mut codes = vec![0u8; affine.group_size];
    for (row, raw) in rows.chunks_exact(columns * source.bytes()).enumerate() {
        widen(source, raw, &mut values);
        if let Some(column) = values.iter().position(|v| !v.is_finite()) {
            return Err(NotFinite { row, column, value: values[column] });
        }
        for (g, group) in values.chunks_exact(affine.group_size).enumerate() {
            let (step, bias) = quantize_group(affine.bits, group, &mut codes);
            if !step.is_finite() {
                // Finite weights whose range is not: MLX makes an infinite scale of them.
                return Err(NotFinite { row, column: g * affine.group_size, value: step });
            }
            pack(affine.bits, &codes, &mut out.parts[Part::Weight as usize]);
            affine.scales.put(step, &mut out.parts[Part::Scales as usize]);
            affine.scales.put(bias, &mut out.parts[Part::Biases as usize]);
        }
    }
    Ok(())
}

/// Smallest and largest weight; eight at a time, so that the compiler can use vectors.
fn range(group: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; 8], [f32::NEG_INFINITY; 8]);
    for eight in group.chunks_exact(8) {
        for ((l, h), &w) in low.iter_mut().zip(&mut high).zip(eight) {
            *l = if w < *l { w } else { *l };
            *h = if w > *h { w } else { *h };
        }
    }
    (low.into_iter().fold(f32::INFINITY, f32::min), high.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

/// Makes the codes of one group; returns step and bias, not yet rounded.
fn quantize_group(bits: u8, group: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let top = ((1u32 << bits) - 1) as f32;
    let (low, high) = range(group);
    let low_is_edge = low.abs() > high.abs();
    let mut step = ((high - low) / top).max(MIN_STEP);
    if !low_is_edge {
        step = -step;
    }
    let edge = if low_is_edge { low } else { high };
    let whole = (edge / step).round_ties_even();
    let mut bias = 0.0;
    if whole != 0.0 {
        step = edge / whole;
        bias = edge;
    }
    for (c, &w) in codes.iter_mut().zip(group) {
        // Adding 1.5 · 2^23 leaves a whole number, rounded half to even, in the lowest bits of the sum.
        *c = (((w - bias) / step).clamp(0.0, top) + 12_582_912.0).to_bits() as u8;
    }
    (step, bias)
}

/// Appends codes as a little-endian bit stream. A multiple of 8 of them, as every group is, fills whole bytes.
fn pack(bits: u8, codes: &[u8], out: &mut Vec<u8>) {
    match bits {
        8 => out.extend_from_slice(codes),
        4 => out.extend(codes.chunks_exact(2).map(|c| c[0] | c[1] << 4)),
        _ => {
            for eight in codes.chunks_exact(8) {
                let word = eight.iter().rev().fold(0u64, |word, &c| word << u32::from(bits) | u64::from(c));
                out.extend_from_slice(&word.to_le_bytes()[..usize::from(bits)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use spinetail_core::{BITS, GROUP_SIZES, unpack_group};

    use super::*;
    use crate::safetensors::parse_file;

    #[test]
    fn packing_is_what_core_unpacks() {
        for bits in BITS {
            let codes: Vec<u8> = (0..64).map(|i| (i * 37 + 5) as u8 & ((1u16 << bits) - 1) as u8).collect();
            let mut bytes = Vec::new();
            pack(bits, &codes, &mut bytes);
            assert_eq!(bytes.len(), 8 * usize::from(bits));
            let mut back = [0.0; 64];
            unpack_group(bits, &bytes, &mut back);
            assert_eq!(back.map(|v| v as u8).to_vec(), codes, "{bits} bits");
        }
    }

    #[test]
    fn not_a_number_is_refused_where_it_is() {
        let affine = Affine { bits: 4, group_size: 32, scales: DType::F32 };
        let mut rows = Vec::new();
        for i in 0..128 {
            DType::F32.put(if i == 70 { f32::NAN } else { 1.0 }, &mut rows);
        }
        let found = quantize_rows(64, DType::F32, affine, &rows, &mut Quantized::default()).unwrap_err();
        assert_eq!((found.row, found.column), (1, 6));
    }

    /// Every tensor of a small file.
    fn read_all(path: &Path) -> impl Fn(&str) -> Vec<u8> {
        let bytes = std::fs::read(path).unwrap();
        let header = parse_file(&bytes).unwrap();
        move |name: &str| {
            let e = &header[name];
            bytes[e.offset as usize..(e.offset + e.bytes) as usize].to_vec()
        }
    }

    #[test]
    fn the_same_bytes_as_mlx() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/quantize/expected.safetensors");
        if !path.exists() {
            println!("skipped: {} is not here", path.display());
            return;
        }
        let get = read_all(&path);
        for (name, dtype) in [("bf16", DType::Bf16), ("f16", DType::F16), ("f32", DType::F32)] {
            let rows = get(&format!("w.{name}"));
            for bits in BITS {
                for group_size in GROUP_SIZES {
                    let affine = Affine { bits, group_size, scales: dtype };
                    let mut out = Quantized::default();
                    quantize_rows(256, dtype, affine, &rows, &mut out).unwrap();
                    for (part, found) in Part::ALL.into_iter().zip(&out.parts) {
                        let key = format!("q.{name}.{bits}.{group_size}.{}", part.suffix());
                        assert!(*found == get(&key), "{key} differs");
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_weight_is_further_off_than_a_step(
            group in prop::collection::vec(-4.0f32..4.0, 32),
            bits in prop::sample::select(BITS.to_vec()),
        ) {
            let mut codes = [0; 32];
            let (step, bias) = quantize_group(bits, &group, &mut codes);
            for (c, w) in codes.iter().zip(&group) {
                prop_assert!((f32::from(*c) * step + bias - w).abs() <= step.abs() * 1.01 + 1e-6);
            }
        }
    }
}

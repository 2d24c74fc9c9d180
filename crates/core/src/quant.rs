//! MLX affine quantization: how the codes are packed and what they mean.
//!
//! Per group of `group_size` weights along the input dimension, `w = scale · q + bias`, with q an unsigned code of
//! `bits` bits. The codes of a row form one little-endian bit stream: element 0 in the lowest bits of byte 0. Scales
//! are as often negative as not. Making codes from floats is the `checkpoint` crate's business.
//!
//! Source of the format: MLX's `quantize`/`dequantize` with `mode="affine"`.

use serde::{Deserialize, Serialize};

use crate::DType;

/// Code widths that MLX's affine mode knows.
pub const BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];

/// Group sizes that MLX's affine mode knows.
pub const GROUP_SIZES: [usize; 3] = [32, 64, 128];

/// An affine code: width, group and the type of scales and biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Affine {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: u8,
    /// Weights that share a scale and a bias: 32, 64 or 128.
    pub group_size: usize,
    /// Type of the scales and biases.
    pub scales: DType,
}

impl Affine {
    /// Whether width and group are among those defined.
    pub fn is_defined(self) -> bool {
        BITS.contains(&self.bits) && GROUP_SIZES.contains(&self.group_size)
    }

    /// Bytes of the codes of `n` weights. Exact: `n` is a multiple of 32 wherever this is used.
    #[inline]
    pub const fn code_bytes(self, n: usize) -> usize {
        n * self.bits as usize / 8
    }
}

/// Unpacks the codes of consecutive weights, as floats (0 … 2^bits − 1).
///
/// `codes` starts at a byte boundary of the bit stream and `out.len()` is a multiple of 8, as every group is, so that
/// each run of 8 codes takes exactly `bits` bytes.
///
/// # Panics
/// If `codes` is shorter than `out.len() · bits / 8`.
#[inline]
pub fn unpack_group(bits: u8, codes: &[u8], out: &mut [f32]) {
    debug_assert_eq!(out.len() % 8, 0);
    match bits {
        4 => {
            for (o, &b) in out.chunks_exact_mut(2).zip(codes) {
                o[0] = f32::from(b & 15);
                o[1] = f32::from(b >> 4);
            }
        }
        8 => {
            for (o, &b) in out.iter_mut().zip(codes) {
                *o = f32::from(b);
            }
        }
        _ => {
            let width = usize::from(bits);
            let mask = (1u64 << width) - 1;
            for (o, c) in out.chunks_exact_mut(8).zip(codes.chunks_exact(width)) {
                let mut word = 0u64;
                for (i, &b) in c.iter().enumerate() {
                    word |= u64::from(b) << (8 * i);
                }
                for (j, o) in o.iter_mut().enumerate() {
                    *o = ((word >> (j * width)) & mask) as f32;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bit stream read one bit at a time: the meaning, without any grouping.
    fn naive(bits: u8, codes: &[u8], n: usize) -> Vec<f32> {
        (0..n)
            .map(|i| {
                let mut q = 0u32;
                for b in 0..usize::from(bits) {
                    let at = i * usize::from(bits) + b;
                    q |= u32::from(codes[at / 8] >> (at % 8) & 1) << b;
                }
                q as f32
            })
            .collect()
    }

    #[test]
    fn unpacking_agrees_with_the_bit_stream() {
        for bits in BITS {
            for n in [32, 64, 128] {
                let bytes = n * usize::from(bits) / 8;
                let codes: Vec<u8> = (0..bytes).map(|i| (i * 197 + 31) as u8).collect();
                let mut out = vec![0.0; n];
                unpack_group(bits, &codes, &mut out);
                assert_eq!(out, naive(bits, &codes, n), "{bits} bits, {n} weights");
            }
        }
    }
}

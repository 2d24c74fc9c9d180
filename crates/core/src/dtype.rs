//! Element types of plain tensors and of quantization scales.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The type of one stored element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl DType {
    /// Bytes of one element.
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The name used by safetensors headers.
    pub const fn safetensors_name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }

    /// Widens the little-endian element at index `i` of `bytes` to f32, exactly.
    #[inline]
    pub fn get(self, bytes: &[u8], i: usize) -> f32 {
        match self {
            Self::F32 => {
                let b = &bytes[i * 4..i * 4 + 4];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
            Self::F16 => f16::from_le_bytes([bytes[i * 2], bytes[i * 2 + 1]]).to_f32(),
            Self::Bf16 => bf16::from_le_bytes([bytes[i * 2], bytes[i * 2 + 1]]).to_f32(),
        }
    }

    /// Appends `value` rounded to this type (to nearest, ties to even), little-endian.
    pub fn put(self, value: f32, out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend_from_slice(&value.to_le_bytes()),
            Self::F16 => out.extend_from_slice(&f16::from_f32(value).to_le_bytes()),
            Self::Bf16 => out.extend_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

/// Widens `out.len()` consecutive little-endian elements to f32.
///
/// # Panics
/// If `bytes` holds fewer than `out.len()` elements.
pub fn widen(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let bytes = &bytes[..out.len() * dtype.bytes()];
    match dtype {
        DType::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        DType::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        DType::Bf16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_agrees_with_single_elements() {
        let values = [0.0f32, -1.5, 3.25e-3, 65504.0, f32::MIN_POSITIVE];
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let mut bytes = Vec::new();
            for v in values {
                dtype.put(v, &mut bytes);
            }
            let mut out = [0.0; 5];
            widen(dtype, &bytes, &mut out);
            for (i, o) in out.iter().enumerate() {
                assert_eq!(o.to_bits(), dtype.get(&bytes, i).to_bits(), "{dtype} element {i}");
            }
        }
    }

    #[test]
    fn bf16_rounds_to_even() {
        let mut bytes = Vec::new();
        // 1 + 2^-8 lies halfway between two bf16 values; the even one is 1.
        DType::Bf16.put(1.0 + 1.0 / 256.0, &mut bytes);
        assert_eq!(DType::Bf16.get(&bytes, 0), 1.0);
    }
}

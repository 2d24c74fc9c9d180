//! A tensor's shape and format, where its parts lie, and what a row of it means in f32.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Affine, DType, Limits, quant::unpack_group, widen};

/// Alignment, in bytes, of each part of a tensor in the layouts that spinetail itself makes: a cache line, and the
/// widest vector register.
pub const PART_ALIGN: usize = 64;

/// How elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One element after another.
    Plain(DType),
    /// Affine codes with scales and biases; two-dimensional tensors only.
    Affine(Affine),
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(d) => d.fmt(f),
            Self::Affine(a) => write!(f, "{}-bit g{} ({} scales)", a.bits, a.group_size, a.scales),
        }
    }
}

/// The parts of a tensor. A plain tensor has only `Weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Elements or codes.
    Weight,
    /// One scale per group.
    Scales,
    /// One bias per group.
    Biases,
}

impl Part {
    /// All three, in storage order.
    pub const ALL: [Self; 3] = [Self::Weight, Self::Scales, Self::Biases];

    /// The suffix MLX gives the part's tensor.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Scales => "scales",
            Self::Biases => "biases",
        }
    }
}

/// Shape (row-major, slowest first) and format.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Dimensions, slowest first: `[rows, columns]` of a matrix, `[n]` of a vector.
    pub shape: Vec<usize>,
    /// How elements are stored.
    pub format: Format,
}

/// Why a shape and a format do not go together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorError {
    /// A group would straddle rows.
    #[error(
        "group size {group_size} does not divide the input dimension {columns}; choose another group size"
    )]
    GroupDoesNotDivide {
        /// Weights per group.
        group_size: usize,
        /// Length of a row.
        columns: usize,
    },
    /// A width or group outside the format.
    #[error(
        "{bits}-bit codes in groups of {group_size} are not defined: bits 2, 3, 4, 5, 6, 8 and groups 32, 64, 128 are"
    )]
    Undefined {
        /// Bits of a code.
        bits: u8,
        /// Weights per group.
        group_size: usize,
    },
    /// Zero, too many or too large dimensions.
    #[error(
        "shape {shape:?} is not supported: 1 or 2 dimensions of 1 to {} are, and affine codes need 2",
        Limits::DIM
    )]
    Shape {
        /// The shape found.
        shape: Vec<usize>,
    },
}

impl TensorSpec {
    /// A plain tensor.
    pub fn plain(shape: &[usize], dtype: DType) -> Self {
        Self { shape: shape.to_vec(), format: Format::Plain(dtype) }
    }

    /// Checks bounds and divisibility; every spec read from outside passes through here before any size is computed.
    pub fn check(&self) -> Result<(), TensorError> {
        let ok =
            matches!(self.shape.len(), 1 | 2) && self.shape.iter().all(|&d| (1..=Limits::DIM).contains(&d));
        if !ok || (matches!(self.format, Format::Affine(_)) && self.shape.len() != 2) {
            return Err(TensorError::Shape { shape: self.shape.clone() });
        }
        if let Format::Affine(a) = self.format {
            if !a.is_defined() {
                return Err(TensorError::Undefined { bits: a.bits, group_size: a.group_size });
            }
            if !self.columns().is_multiple_of(a.group_size) {
                return Err(TensorError::GroupDoesNotDivide {
                    group_size: a.group_size,
                    columns: self.columns(),
                });
            }
        }
        Ok(())
    }

    /// Number of rows: 1 for a vector.
    pub fn rows(&self) -> usize {
        if self.shape.len() == 2 { self.shape[0] } else { 1 }
    }

    /// Length of a row.
    pub fn columns(&self) -> usize {
        *self.shape.last().unwrap_or(&0)
    }

    /// Bytes of one row of `part`; 0 for the scales and biases of a plain tensor.
    pub fn row_bytes(&self, part: Part) -> usize {
        match (self.format, part) {
            (Format::Plain(d), Part::Weight) => self.columns() * d.bytes(),
            (Format::Plain(_), _) => 0,
            (Format::Affine(a), Part::Weight) => a.code_bytes(self.columns()),
            (Format::Affine(a), _) => self.columns() / a.group_size * a.scales.bytes(),
        }
    }

    /// Bytes of all rows of `part`.
    pub fn part_bytes(&self, part: Part) -> usize {
        self.rows() * self.row_bytes(part)
    }

    /// Bytes of all parts, without padding.
    pub fn bytes(&self) -> usize {
        Part::ALL.iter().map(|&p| self.part_bytes(p)).sum()
    }

    /// The parts that are present.
    pub fn parts(&self) -> &'static [Part] {
        match self.format {
            Format::Plain(_) => &Part::ALL[..1],
            Format::Affine(_) => &Part::ALL,
        }
    }
}

/// Where a tensor's parts lie, in bytes from some base: a file, a record, a block of memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorLayout {
    /// Shape and format.
    #[serde(flatten)]
    pub spec: TensorSpec,
    /// Offsets of weight, scales and biases; the last two are 0 and meaningless for a plain tensor.
    pub offsets: [u64; 3],
}

impl TensorLayout {
    /// Lays the parts one after another from `at`, each aligned to [`PART_ALIGN`]; returns the end of the last part.
    pub fn packed(spec: TensorSpec, at: u64) -> (Self, u64) {
        let mut offsets = [0; 3];
        let mut end = at;
        for &part in spec.parts() {
            let start = end.next_multiple_of(PART_ALIGN as u64);
            offsets[part as usize] = start;
            end = start + spec.part_bytes(part) as u64;
        }
        (Self { spec, offsets }, end)
    }

    /// The byte range of `part` from the base.
    pub fn range(&self, part: Part) -> Range<usize> {
        let start = self.offsets[part as usize] as usize;
        start..start + self.spec.part_bytes(part)
    }

    /// The bytes of `part` within `base`; empty for a part that is absent.
    ///
    /// # Panics
    /// If `base` ends before the part does.
    #[inline]
    pub fn slice<'a>(&self, base: &'a [u8], part: Part) -> &'a [u8] {
        if self.spec.row_bytes(part) == 0 { &[] } else { &base[self.range(part)] }
    }
}

/// The scalar meaning of row `row` of a tensor: what every kernel has to agree with.
///
/// `weight`, `scales` and `biases` are the whole parts; `out` has [`TensorSpec::columns`] elements.
///
/// # Panics
/// If a part is shorter than the spec says.
pub fn dequantize_row(
    spec: &TensorSpec,
    weight: &[u8],
    scales: &[u8],
    biases: &[u8],
    row: usize,
    out: &mut [f32],
) {
    let part = |bytes: &'_ [u8], part| -> Range<usize> {
        let n = spec.row_bytes(part);
        debug_assert!(bytes.len() >= (row + 1) * n);
        row * n..(row + 1) * n
    };
    let weight = &weight[part(weight, Part::Weight)];
    match spec.format {
        Format::Plain(dtype) => widen(dtype, weight, out),
        Format::Affine(a) => {
            let scales = &scales[part(scales, Part::Scales)];
            let biases = &biases[part(biases, Part::Biases)];
            let codes = weight.chunks_exact(a.code_bytes(a.group_size));
            for (g, (out, codes)) in out.chunks_exact_mut(a.group_size).zip(codes).enumerate() {
                let (scale, bias) = (a.scales.get(scales, g), a.scales.get(biases, g));
                unpack_group(a.bits, codes, out);
                for o in out {
                    *o = *o * scale + bias;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affine(bits: u8, group_size: usize) -> Format {
        Format::Affine(Affine { bits, group_size, scales: DType::Bf16 })
    }

    #[test]
    fn one_expert_of_the_35b_is_exactly_108_blocks_of_16_kib() {
        let m = |r, c| TensorSpec { shape: vec![r, c], format: affine(4, 64) };
        let layout = crate::RecordLayout::packed(m(512, 2048), m(512, 2048), m(2048, 512));
        assert_eq!(layout.bytes, 108 * 16384);
    }

    #[test]
    fn a_group_that_straddles_rows_is_refused() {
        let spec = TensorSpec { shape: vec![4, 320], format: affine(4, 128) };
        assert_eq!(spec.check(), Err(TensorError::GroupDoesNotDivide { group_size: 128, columns: 320 }));
        assert!(TensorSpec { shape: vec![4, 320], format: affine(4, 64) }.check().is_ok());
        assert!(TensorSpec { shape: vec![4, 320], format: affine(7, 64) }.check().is_err());
        assert!(TensorSpec { shape: vec![320], format: affine(4, 64) }.check().is_err());
    }

    #[test]
    fn parts_are_aligned_and_do_not_overlap() {
        let spec = TensorSpec { shape: vec![3, 96], format: affine(3, 32) };
        let (layout, end) = TensorLayout::packed(spec, 10);
        assert_eq!(layout.range(Part::Weight), 64..64 + 108);
        assert_eq!(layout.range(Part::Scales), 192..192 + 18);
        assert_eq!(layout.range(Part::Biases), 256..256 + 18);
        assert_eq!(end, 274);
    }

    #[test]
    fn a_row_means_scale_times_code_plus_bias() {
        let spec = TensorSpec { shape: vec![2, 32], format: affine(8, 32) };
        let codes: Vec<u8> = (0..64).collect();
        let (mut scales, mut biases) = (Vec::new(), Vec::new());
        for (s, b) in [(0.5, 1.0), (-2.0, 3.0)] {
            DType::Bf16.put(s, &mut scales);
            DType::Bf16.put(b, &mut biases);
        }
        let mut out = vec![0.0; 32];
        dequantize_row(&spec, &codes, &scales, &biases, 1, &mut out);
        assert_eq!(out[0], -2.0 * 32.0 + 3.0);
        assert_eq!(out[31], -2.0 * 63.0 + 3.0);
    }
}

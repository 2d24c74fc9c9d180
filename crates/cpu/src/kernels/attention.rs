//! What attention reads and writes.

use std::ops::Range;

use spinetail_core::DType;

/// Keys and values of one key head.
#[derive(Clone, Copy)]
pub struct KeyValues<'a> {
    pub(super) dtype: DType,
    pub(super) keys: &'a [u8],
    pub(super) values: &'a [u8],
    /// Bytes from one position to the next.
    pub(super) stride: usize,
}

impl<'a> KeyValues<'a> {
    /// Keys and values in f32: the head's first dimension at position 0 is element 0, positions are `stride` apart.
    pub fn f32(keys: &'a [f32], values: &'a [f32], stride: usize) -> Self {
        // SAFETY: any bytes are bytes, and the borrow lasts as long.
        let bytes =
            |x: &'a [f32]| unsafe { std::slice::from_raw_parts(x.as_ptr().cast::<u8>(), size_of_val(x)) };
        Self { dtype: DType::F32, keys: bytes(keys), values: bytes(values), stride: 4 * stride }
    }

    /// As [`KeyValues::f32`], in the bits of f16 (see `Kernels::narrow`).
    pub fn f16(keys: &'a [u16], values: &'a [u16], stride: usize) -> Self {
        // SAFETY: as above.
        let bytes =
            |x: &'a [u16]| unsafe { std::slice::from_raw_parts(x.as_ptr().cast::<u8>(), size_of_val(x)) };
        Self { dtype: DType::F16, keys: bytes(keys), values: bytes(values), stride: 2 * stride }
    }

    /// Whether keys and values of `positions` have `head_dim` elements.
    pub(super) fn holds(&self, positions: &Range<usize>, head_dim: usize) -> bool {
        let width = head_dim * self.dtype.bytes();
        let need = positions.end.saturating_sub(1).saturating_mul(self.stride).saturating_add(width);
        positions.is_empty() || (self.stride >= width && need <= self.keys.len().min(self.values.len()))
    }
}

/// What the query heads of one key head found in a range of positions.
///
/// Splitting a sequence for threads must not change a byte: it is always cut at multiples of
/// [`Attended::SEGMENT`], however many threads there are, and the parts are merged in order.
#[derive(Debug, Clone)]
pub struct Attended {
    pub(super) head_dim: usize,
    /// `[heads]`: the largest score.
    pub(super) max: Vec<f32>,
    /// `[heads]`: the sum of `e^(score − max)`.
    pub(super) sum: Vec<f32>,
    /// `[heads, head_dim]`: the values times those.
    pub(super) out: Vec<f32>,
}

impl Attended {
    /// Positions of a part; only the last one has fewer.
    pub const SEGMENT: usize = 512;

    /// Nothing found yet.
    pub fn new(heads: usize, head_dim: usize) -> Self {
        assert!(heads > 0 && head_dim > 0, "{heads} heads of {head_dim}");
        Self {
            head_dim,
            max: vec![f32::NEG_INFINITY; heads],
            sum: vec![0.0; heads],
            out: vec![0.0; heads * head_dim],
        }
    }

    /// The parts of a sequence of `length` positions.
    pub fn segments(length: usize) -> impl Iterator<Item = Range<usize>> {
        (0..length).step_by(Self::SEGMENT).map(move |at| at..length.min(at + Self::SEGMENT))
    }

    /// Number of query heads.
    pub fn heads(&self) -> usize {
        self.max.len()
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }
}

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

/// Queries of the heads that share a key head, at consecutive rows of one sequence.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// Row r's query of head h begins at `r · row_stride + h · head_stride`.
    pub q: &'a [f32],
    /// Query heads of a row.
    pub heads: usize,
    /// From one head's query to the next.
    pub head_stride: usize,
    /// From one row to the next.
    pub row_stride: usize,
    /// The position of the first row. A row sees the positions up to its own.
    pub position: usize,
}

impl Queries<'_> {
    /// Whether there are `n` queries of `head_dim` elements.
    pub(super) fn holds(&self, n: usize, head_dim: usize) -> bool {
        let last = |count: usize, stride: usize| count.saturating_sub(1).saturating_mul(stride);
        self.heads > 0
            && n.is_multiple_of(self.heads)
            && self.q.len()
                >= last(n / self.heads, self.row_stride)
                    .saturating_add(last(self.heads, self.head_stride))
                    .saturating_add(head_dim)
    }
}

/// What queries found in a range of positions.
///
/// Splitting a sequence for threads must not change a byte: it is always cut at multiples of
/// [`Attended::SEGMENT`], however many threads there are, and the parts are merged in order.
#[derive(Debug, Clone)]
pub struct Attended {
    pub(super) head_dim: usize,
    /// `[queries]`: the largest score.
    pub(super) max: Vec<f32>,
    /// `[queries]`: the sum of `e^(score − max)`.
    pub(super) sum: Vec<f32>,
    /// `[queries, head_dim]`: the values times those.
    pub(super) out: Vec<f32>,
}

impl Attended {
    /// Positions of a part; only the last one has fewer.
    pub const SEGMENT: usize = 512;

    /// For so many queries, row by row. Nothing found yet.
    pub fn new(queries: usize, head_dim: usize) -> Self {
        assert!(queries > 0 && head_dim > 0, "{queries} queries of {head_dim}");
        let (max, sum) = (Vec::with_capacity(queries), Vec::with_capacity(queries));
        let mut part = Self { head_dim, max, sum, out: Vec::with_capacity(queries * head_dim) };
        part.resize(queries);
        part
    }

    /// Has place for so many queries from now on.
    pub fn resize(&mut self, queries: usize) {
        self.max.resize(queries, f32::NEG_INFINITY);
        self.sum.resize(queries, 0.0);
        self.out.resize(queries * self.head_dim, 0.0);
    }

    /// The parts of a sequence of `length` positions.
    pub fn segments(length: usize) -> impl Iterator<Item = Range<usize>> {
        (0..length).step_by(Self::SEGMENT).map(move |at| at..length.min(at + Self::SEGMENT))
    }

    /// Bytes of memory, but for the value itself.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of::<f32>() * (self.max.capacity() + self.sum.capacity() + self.out.capacity())
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.max.len()
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }
}

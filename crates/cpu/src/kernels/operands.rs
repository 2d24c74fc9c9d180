//! What matrix kernels read and write: a stored matrix, and an output that threads fill together.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use spinetail_core::{Format, Part, TensorSpec};

/// A stored matrix, `[rows, columns]`, whose parts are as long as its format says.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    pub(super) format: Format,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) weight: &'a [u8],
    /// Scales and biases; empty for plain weights.
    pub(super) scales: &'a [u8],
    pub(super) biases: &'a [u8],
}

impl<'a> Weights<'a> {
    /// The matrix that `spec` describes, with its weight, scales and biases.
    ///
    /// # Panics
    /// If the spec is not a supported one, or a part is shorter than the spec says.
    pub fn new(spec: &TensorSpec, [weight, scales, biases]: [&'a [u8]; 3]) -> Self {
        assert!(
            spec.check().is_ok(),
            "{:?} {} is not a matrix there are kernels for",
            spec.shape,
            spec.format
        );
        Self {
            format: spec.format,
            rows: spec.rows(),
            columns: spec.columns(),
            weight: &weight[..spec.part_bytes(Part::Weight)],
            scales: &scales[..spec.part_bytes(Part::Scales)],
            biases: &biases[..spec.part_bytes(Part::Biases)],
        }
    }

    /// Number of rows: elements of one output.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Length of a row: elements of one input.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes of a row, scales and biases included.
    pub fn row_bytes(&self) -> usize {
        (self.weight.len() + self.scales.len() + self.biases.len()) / self.rows.max(1)
    }

    /// How the elements are stored.
    pub fn format(&self) -> Format {
        self.format
    }
}

/// An output, `[n, stride]`, that several threads may fill at once, each its own columns.
///
/// Elements are written with relaxed atomic stores, which cost what plain ones do: two threads that write the same
/// element get one of both values, never undefined behaviour.
#[derive(Clone, Copy)]
pub struct SharedOut<'a> {
    cells: &'a [AtomicU32],
    stride: usize,
}

impl<'a> SharedOut<'a> {
    /// Borrows `out`, whose rows are `stride` apart.
    ///
    /// # Panics
    /// If `out` is not a whole number of rows.
    pub fn new(out: &'a mut [f32], stride: usize) -> Self {
        assert!(stride > 0 && out.len().is_multiple_of(stride), "{} is no multiple of {stride}", out.len());
        // SAFETY: both have the same size and alignment, every bit pattern is valid for both, and the exclusive
        // borrow lasts as long as the cells do.
        let cells = unsafe { std::slice::from_raw_parts(out.as_mut_ptr().cast::<AtomicU32>(), out.len()) };
        Self { cells, stride }
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    pub(super) fn rows(&self) -> usize {
        self.cells.len() / self.stride
    }

    /// Writes element `column` of row `row`.
    #[inline(always)]
    pub(super) fn set(&self, row: usize, column: usize, value: f32) {
        self.cells[row * self.stride + column].store(value.to_bits(), Relaxed);
    }
}

//! Matrix products against stored weights of any format.

use spinetail_core::{Part, TensorLayout, TensorSpec, dequantize_row};

use crate::math::dot;

/// A stored matrix: `[rows, columns]`, one output element per row.
#[derive(Clone, Copy)]
pub(crate) struct MatrixView<'a> {
    spec: &'a TensorSpec,
    parts: [&'a [u8]; 3],
}

impl<'a> MatrixView<'a> {
    /// The tensor that `layout` describes within `base`.
    pub(crate) fn new(layout: &'a TensorLayout, base: &'a [u8]) -> Self {
        Self { spec: &layout.spec, parts: Part::ALL.map(|p| layout.slice(base, p)) }
    }

    pub(crate) fn rows(&self) -> usize {
        self.spec.rows()
    }

    /// Widens one row to f32.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let [weight, scales, biases] = self.parts;
        dequantize_row(self.spec, weight, scales, biases, row, out);
    }

    /// `out[n, rows] = x[n, columns] · Wᵀ`. A row is widened once for all of `x`.
    pub(crate) fn apply(&self, x: &[f32], out: &mut [f32], scratch: &mut Vec<f32>) {
        let (rows, columns) = (self.rows(), self.spec.columns());
        scratch.resize(columns, 0.0);
        for r in 0..rows {
            self.row(r, scratch);
            for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(rows)) {
                out[r] = dot(scratch, x);
            }
        }
    }
}

//! Scales and biases, eight groups at a time.

use spinetail_core::{Affine, DType};

use crate::kernels::activations::CHUNK;
use crate::kernels::operands::Weights;
use crate::kernels::vector::Eight;

/// Scales and biases of a matrix.
#[derive(Clone, Copy)]
pub(super) struct Scales<'a> {
    dtype: DType,
    groups: usize,
    scales: &'a [u8],
    biases: &'a [u8],
}

impl<'a> Scales<'a> {
    #[inline(always)]
    pub(super) fn new(w: &Weights<'a>, a: Affine) -> Self {
        Self { dtype: a.scales, groups: w.columns / a.group_size, scales: w.scales, biases: w.biases }
    }

    /// Scales and biases of groups `first..first + count` of a row, at most 8, and zeros.
    ///
    /// # Safety
    /// As [`Eight::load`].
    #[inline(always)]
    pub(super) unsafe fn eight<E: Eight>(&self, row: usize, first: usize, count: usize) -> (E, E) {
        let b = self.dtype.bytes();
        let at = (row * self.groups + first) * b;
        let (scales, biases) = (&self.scales[at..at + count * b], &self.biases[at..at + count * b]);
        // SAFETY: eight elements are read from slices that have eight, or from copies that do.
        unsafe {
            if count == CHUNK {
                (E::widen(self.dtype, scales.as_ptr()), E::widen(self.dtype, biases.as_ptr()))
            } else {
                let mut copies = [[0u8; CHUNK * 4]; 2];
                copies[0][..count * b].copy_from_slice(scales);
                copies[1][..count * b].copy_from_slice(biases);
                (E::widen(self.dtype, copies[0].as_ptr()), E::widen(self.dtype, copies[1].as_ptr()))
            }
        }
    }

    /// As [`Scales::eight`], in memory.
    ///
    /// # Safety
    /// As [`Eight::load`].
    #[inline(always)]
    pub(super) unsafe fn floats<E: Eight>(
        &self,
        row: usize,
        first: usize,
        count: usize,
    ) -> ([f32; CHUNK], [f32; CHUNK]) {
        let mut out = ([0.0; CHUNK], [0.0; CHUNK]);
        // SAFETY: as the caller promises; each array has eight elements.
        unsafe {
            let (scales, biases) = self.eight::<E>(row, first, count);
            scales.store(out.0.as_mut_ptr());
            biases.store(out.1.as_mut_ptr());
        }
        out
    }
}

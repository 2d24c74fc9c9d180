//! Activations to 8 bits.

use crate::kernels::vector::{LANES, Vector};

/// Magnitude below which `127 / magnitude` is not a number: such a group counts as zero.
const SMALLEST: f32 = 128.0 / f32::MAX;

/// Codes, scales and `scale · Σq` of a row, by group; see `Coded`.
///
/// # Safety
/// The processor has the instruction set of `V`; `group` is a multiple of 16, `codes` is as long as `x`, and `scales`
/// and `sums` have an element for each group.
#[inline(always)]
pub(in crate::kernels) unsafe fn quantize<V: Vector>(
    x: &[f32],
    group: usize,
    codes: &mut [i8],
    scales: &mut [f32],
    sums: &mut [f32],
) {
    let groups = x.chunks_exact(group).zip(codes.chunks_exact_mut(group));
    for (((x, codes), scale), sum) in groups.zip(scales).zip(sums) {
        // SAFETY: as the caller promises: groups are whole vectors.
        unsafe {
            let mut magnitude = V::splat(0.0);
            for i in (0..group).step_by(LANES) {
                magnitude = magnitude.max_magnitude(V::load(x.as_ptr().add(i)));
            }
            let (inverse, found) = factors(magnitude.magnitude());
            *scale = found;
            let mut total = V::splat(0.0);
            for i in (0..group).step_by(LANES) {
                // Zero times an infinity or a NaN is a NaN, whose code is anything: the scale is a NaN then.
                let q = V::load(x.as_ptr().add(i)).mul(V::splat(inverse)).round();
                total = total.add(q);
                q.to_i8(codes.as_mut_ptr().add(i));
            }
            *sum = found * total.sum();
        }
    }
}

/// What a group is multiplied by, and its scale.
#[inline(always)]
pub(in crate::kernels) fn factors(magnitude: f32) -> (f32, f32) {
    if !magnitude.is_finite() {
        (0.0, f32::NAN)
    } else if magnitude < SMALLEST {
        (0.0, 0.0)
    } else {
        (127.0 / magnitude, magnitude / 127.0)
    }
}

//! Functions with a sum over the row: dot products, norms, softmax. Sums are by lanes, as in `exact`.

use super::elementwise::{Map, divide, map};
use super::exp::exp;
use crate::kernels::vector::{LANES, Vector};

/// `Σ aᵢ·bᵢ`
///
/// # Safety
/// The processor has the instruction set of `V`; `b` is as long as `a`.
#[inline(always)]
pub(in crate::kernels) unsafe fn dot<V: Vector>(a: &[f32], b: &[f32]) -> f32 {
    // SAFETY: as the caller promises.
    unsafe {
        let mut sum = V::splat(0.0);
        for at in (0..a.len()).step_by(LANES) {
            let n = LANES.min(a.len() - at);
            sum = V::load_part(a.as_ptr().add(at), n, 0.0).fma(V::load_part(b.as_ptr().add(at), n, 0.0), sum);
        }
        sum.sum()
    }
}

/// Multiplies by a number, then by a weight.
struct Weighted(f32);

impl<V: Vector> Map<V, 2> for Weighted {
    #[inline(always)]
    unsafe fn map(&self, [x, w]: [V; 2]) -> V {
        // SAFETY: as the caller promises.
        unsafe { x.mul(V::splat(self.0)).mul(w) }
    }
}

/// `x = x / sqrt(mean(x²) + eps) · w`
///
/// # Safety
/// As [`dot`], for `w` and `x`.
#[inline(always)]
pub(in crate::kernels) unsafe fn rms_norm<V: Vector>(x: &mut [f32], w: &[f32], eps: f32) {
    // SAFETY: as the caller promises.
    unsafe {
        let scale = 1.0 / (dot::<V>(x, x) / x.len() as f32 + eps).sqrt();
        map::<V, 2>(&Weighted(scale), [x.as_ptr(), w.as_ptr()], x.as_mut_ptr(), x.len());
    }
}

/// Multiplies by a number.
struct Scaled(f32);

impl<V: Vector> Map<V, 1> for Scaled {
    #[inline(always)]
    unsafe fn map(&self, [x]: [V; 1]) -> V {
        // SAFETY: as the caller promises.
        unsafe { x.mul(V::splat(self.0)) }
    }
}

/// `x = x · scale / sqrt(Σx² + eps)`
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(in crate::kernels) unsafe fn l2_norm<V: Vector>(x: &mut [f32], scale: f32, eps: f32) {
    // SAFETY: as the caller promises.
    unsafe {
        let scale = scale / (dot::<V>(x, x) + eps).sqrt();
        map::<V, 1>(&Scaled(scale), [x.as_ptr()], x.as_mut_ptr(), x.len());
    }
}

/// `x = softmax(x)`; whether the result is made of numbers.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(in crate::kernels) unsafe fn softmax<V: Vector>(x: &mut [f32]) -> bool {
    let (p, len) = (x.as_mut_ptr(), x.len());
    // SAFETY: as the caller promises; parts stay within x.
    unsafe {
        let mut max = V::splat(f32::NEG_INFINITY);
        for at in (0..len).step_by(LANES) {
            max = max.max(V::load_part(p.add(at), LANES.min(len - at), f32::NEG_INFINITY));
        }
        let max = max.max_lane();
        let mut sum = V::splat(0.0);
        for at in (0..len).step_by(LANES) {
            let n = LANES.min(len - at);
            let e = exp(V::load_part(p.add(at), n, f32::NEG_INFINITY).sub(V::splat(max)));
            e.store_part(p.add(at), n);
            sum = sum.add(e);
        }
        let sum = sum.sum();
        divide::<V>(x, sum);
        sum.is_finite() && max.is_finite()
    }
}

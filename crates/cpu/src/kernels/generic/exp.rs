//! The exponential and what is made of it.

use crate::kernels::vector::Vector;

/// Below the first, e^x rounds to 0; above the second, to infinity.
pub(in crate::kernels) const RANGE: (f32, f32) = (-104.0, 89.0);

/// ln 2 in two parts, the first with so few bits that multiples of it up to 150 are exact.
pub(in crate::kernels) const LN_2: (f32, f32) = (355.0 / 512.0, -2.121_944_4e-4);

/// `(e^r − 1 − r) / r²` for |r| ≤ ln 2 / 2, highest power first. Source: Cephes, `expf.c`.
pub(in crate::kernels) const POLYNOMIAL: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5];

/// e^x, wrong by at most 1.01 units in the last place (a test measures it); 0, infinity and NaN where they belong.
///
/// `x = n·ln 2 + r`: a polynomial in r, and 2ⁿ in two factors, since n may be out of the exponent's range.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: as the caller promises; the powers of two are within ±75.
    unsafe {
        let x = V::splat(RANGE.0).max(V::splat(RANGE.1).min(x));
        let n = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.fma(V::splat(-LN_2.1), n.fma(V::splat(-LN_2.0), x));
        let mut p = V::splat(POLYNOMIAL[0]);
        for c in &POLYNOMIAL[1..] {
            p = p.fma(r, V::splat(*c));
        }
        let y = p.fma(r.mul(r), r).add(V::splat(1.0));
        let half = n.mul(V::splat(0.5)).round();
        y.mul(half.pow2()).mul(n.sub(half).pow2())
    }
}

/// `1 + e⁻ˣ`
///
/// # Safety
/// As [`exp`].
#[inline(always)]
pub(super) unsafe fn one_plus_exp_minus<V: Vector>(x: V) -> V {
    // SAFETY: as the caller promises.
    unsafe { V::splat(1.0).add(exp(V::splat(0.0).sub(x))) }
}

/// `x / (1 + e⁻ˣ)`
///
/// # Safety
/// As [`exp`].
#[inline(always)]
pub(super) unsafe fn silu<V: Vector>(x: V) -> V {
    // SAFETY: as the caller promises.
    unsafe { x.div(one_plus_exp_minus(x)) }
}

//! Functions of one element, or of the same element of several rows.

use super::exp::{exp, one_plus_exp_minus, silu};
use crate::kernels::vector::{LANES, Vector};

/// A function of `N` rows, lane by lane.
pub(super) trait Map<V: Vector, const N: usize> {
    /// # Safety
    /// The processor has the instruction set of `V`.
    unsafe fn map(&self, x: [V; N]) -> V;
}

/// `out = f(inputs)` for `len` elements; `out` may be one of the inputs.
///
/// # Safety
/// The processor has the instruction set of `V`; all rows have `len` elements, and each input is `out` or apart from it.
#[inline(always)]
pub(super) unsafe fn map<V: Vector, const N: usize>(
    f: &impl Map<V, N>,
    inputs: [*const f32; N],
    out: *mut f32,
    len: usize,
) {
    for at in (0..len).step_by(LANES) {
        let n = LANES.min(len - at);
        // SAFETY: as the caller promises.
        unsafe {
            let mut x = [V::splat(0.0); N];
            for i in 0..N {
                x[i] = V::load_part(inputs[i].add(at), n, 0.0);
            }
            f.map(x).store_part(out.add(at), n);
        }
    }
}

struct Exp;

impl<V: Vector> Map<V, 1> for Exp {
    #[inline(always)]
    unsafe fn map(&self, [x]: [V; 1]) -> V {
        // SAFETY: as the caller promises.
        unsafe { exp(x) }
    }
}

/// `x = eˣ`
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(in crate::kernels) unsafe fn exp_in_place<V: Vector>(x: &mut [f32]) {
    // SAFETY: as the caller promises.
    unsafe { map::<V, 1>(&Exp, [x.as_ptr()], x.as_mut_ptr(), x.len()) }
}

struct Swiglu;

impl<V: Vector> Map<V, 2> for Swiglu {
    #[inline(always)]
    unsafe fn map(&self, [gate, up]: [V; 2]) -> V {
        // SAFETY: as the caller promises.
        unsafe { silu(gate).mul(up) }
    }
}

/// `up = silu(gate) · up`
///
/// # Safety
/// The processor has the instruction set of `V`; `gate` is as long as `up`.
#[inline(always)]
pub(in crate::kernels) unsafe fn swiglu<V: Vector>(gate: &[f32], up: &mut [f32]) {
    // SAFETY: as the caller promises.
    unsafe { map::<V, 2>(&Swiglu, [gate.as_ptr(), up.as_ptr()], up.as_mut_ptr(), up.len()) }
}

struct SigmoidGate;

impl<V: Vector> Map<V, 2> for SigmoidGate {
    #[inline(always)]
    unsafe fn map(&self, [gate, x]: [V; 2]) -> V {
        // SAFETY: as the caller promises.
        unsafe { x.div(one_plus_exp_minus(gate)) }
    }
}

/// `x = sigmoid(gate) · x`
///
/// # Safety
/// The processor has the instruction set of `V`; `gate` is as long as `x`.
#[inline(always)]
pub(in crate::kernels) unsafe fn sigmoid_gate<V: Vector>(gate: &[f32], x: &mut [f32]) {
    // SAFETY: as the caller promises.
    unsafe { map::<V, 2>(&SigmoidGate, [gate.as_ptr(), x.as_ptr()], x.as_mut_ptr(), x.len()) }
}

struct Divided(f32);

impl<V: Vector> Map<V, 1> for Divided {
    #[inline(always)]
    unsafe fn map(&self, [x]: [V; 1]) -> V {
        // SAFETY: as the caller promises.
        unsafe { x.div(V::splat(self.0)) }
    }
}

/// `x = x / by`
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn divide<V: Vector>(x: &mut [f32], by: f32) {
    // SAFETY: as the caller promises.
    unsafe { map::<V, 1>(&Divided(by), [x.as_ptr()], x.as_mut_ptr(), x.len()) }
}

struct AddScaled(f32);

impl<V: Vector> Map<V, 2> for AddScaled {
    #[inline(always)]
    unsafe fn map(&self, [x, y]: [V; 2]) -> V {
        // SAFETY: as the caller promises.
        unsafe { x.fma(V::splat(self.0), y) }
    }
}

/// `y = y + s·x`
///
/// # Safety
/// The processor has the instruction set of `V`; `x` is as long as `y`.
#[inline(always)]
pub(in crate::kernels) unsafe fn add_scaled<V: Vector>(y: &mut [f32], s: f32, x: &[f32]) {
    // SAFETY: as the caller promises.
    unsafe { map::<V, 2>(&AddScaled(s), [x.as_ptr(), y.as_ptr()], y.as_mut_ptr(), y.len()) }
}

/// Rotates the leading dimensions of a head, the first half of them paired with the second: see `Kernels::rotate`.
///
/// # Safety
/// The processor has the instruction set of `V`; `cos` and `sin` are equally long, and `x` at least twice as long.
#[inline(always)]
pub(in crate::kernels) unsafe fn rotate<V: Vector>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = x.split_at_mut(cos.len());
    for at in (0..cos.len()).step_by(LANES) {
        let n = LANES.min(cos.len() - at);
        // SAFETY: as the caller promises; both halves are read before either is written.
        unsafe {
            let (first, second) = (first.as_mut_ptr().add(at), second.as_mut_ptr().add(at));
            let inputs = [first.cast_const(), second, cos.as_ptr().add(at), sin.as_ptr().add(at)];
            let mut loaded = [V::splat(0.0); 4];
            for i in 0..4 {
                loaded[i] = V::load_part(inputs[i], n, 0.0);
            }
            let [a, b, cos, sin] = loaded;
            a.mul(cos).sub(b.mul(sin)).store_part(first, n);
            b.mul(cos).add(a.mul(sin)).store_part(second, n);
        }
    }
}

/// The causal depthwise convolution of one token, and SiLU: see `Kernels::conv_silu`.
///
/// # Safety
/// The processor has the instruction set of `V`; `taps` is `[kernel, channels]`, `past` `[kernel − 1, channels]`, `out`
/// as long as `x`.
#[inline(always)]
pub(in crate::kernels) unsafe fn conv_silu<V: Vector>(
    taps: &[f32],
    past: &[f32],
    x: &[f32],
    out: &mut [f32],
) {
    let channels = x.len();
    let before = past.len() / channels;
    for at in (0..channels).step_by(LANES) {
        let n = LANES.min(channels - at);
        // SAFETY: as the caller promises.
        unsafe {
            let mut sum = V::splat(0.0);
            for t in 0..=before {
                let input =
                    if t < before { past.as_ptr().add(t * channels + at) } else { x.as_ptr().add(at) };
                let tap = V::load_part(taps.as_ptr().add(t * channels + at), n, 0.0);
                sum = tap.fma(V::load_part(input, n, 0.0), sum);
            }
            silu(sum).store_part(out.as_mut_ptr().add(at), n);
        }
    }
}

/// `out = x` in f16, rounded to nearest, ties to even.
///
/// # Safety
/// The processor has the instruction set of `V`; `out` is as long as `x`.
#[inline(always)]
pub(in crate::kernels) unsafe fn narrow<V: Vector>(x: &[f32], out: &mut [u16]) {
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        // SAFETY: as the caller promises.
        unsafe {
            let v = V::load_part(x.as_ptr(), x.len(), 0.0);
            if x.len() == LANES {
                v.store_f16(out.as_mut_ptr());
            } else {
                let mut copy = [0; LANES];
                v.store_f16(copy.as_mut_ptr());
                out.copy_from_slice(&copy[..x.len()]);
            }
        }
    }
}

//! Attention of the query heads that share a key head, over a range of positions, with a streaming softmax.
//!
//! Positions are taken sixteen at a time, counted from the start of the range. Per head, of each sixteen: the scores
//! `q·k · scale` and their maximum; what was summed so far, scaled down to the new maximum; and then the weights
//! `e^(score − maximum)` and the values times them, in order of position.

use std::ops::Range;

use spinetail_core::DType;

use super::elementwise::{add_scaled, divide};
use super::exp::exp;
use crate::kernels::attention::{Attended, KeyValues};
use crate::kernels::vector::{DTYPES, LANES, Vector};

/// Query heads whose scores are computed together.
const HEADS: usize = 4;

/// Vectors of a head's output that are accumulated together.
const PARTS: usize = 4;

/// Queries and where they look; see `Kernels::attend`.
pub(in crate::kernels) struct Query<'a> {
    pub(in crate::kernels) q: &'a [f32],
    pub(in crate::kernels) q_stride: usize,
    pub(in crate::kernels) kv: KeyValues<'a>,
    pub(in crate::kernels) positions: Range<usize>,
    pub(in crate::kernels) scale: f32,
}

/// Fills `part` with what its heads find.
///
/// # Safety
/// The processor has the instruction set of `V`; `q` and `kv` have what the heads of `part` and the positions need.
#[inline(always)]
pub(in crate::kernels) unsafe fn attend<V: Vector>(o: &Query<'_>, part: &mut Attended) {
    // SAFETY: as the caller promises.
    unsafe {
        match o.kv.dtype {
            DType::F32 => stream::<V, 0>(o, part),
            DType::F16 => stream::<V, 1>(o, part),
            DType::Bf16 => stream::<V, 2>(o, part),
        }
    }
}

/// # Safety
/// As [`attend`]; keys and values are of type `DTYPES[DTYPE]`.
#[inline(always)]
unsafe fn stream<V: Vector, const DTYPE: usize>(o: &Query<'_>, part: &mut Attended) {
    part.max.fill(f32::NEG_INFINITY);
    part.sum.fill(0.0);
    part.out.fill(0.0);
    for first in o.positions.clone().step_by(LANES) {
        let count = LANES.min(o.positions.end - first);
        let mut head = 0;
        // SAFETY: as the caller promises; heads stay below those of the part.
        unsafe {
            while head + HEADS <= part.heads() {
                block::<V, DTYPE, HEADS>(o, first, count, head, part);
                head += HEADS;
            }
            while head < part.heads() {
                block::<V, DTYPE, 1>(o, first, count, head, part);
                head += 1;
            }
        }
    }
}

/// Heads `head..head + H` at positions `first..first + count`, at most sixteen.
///
/// # Safety
/// As [`stream`].
#[inline(always)]
unsafe fn block<V: Vector, const DTYPE: usize, const H: usize>(
    o: &Query<'_>,
    first: usize,
    count: usize,
    head: usize,
    part: &mut Attended,
) {
    let (d, kv) = (part.head_dim, &o.kv);
    // SAFETY: as the caller promises.
    unsafe {
        let mut scores = [[f32::NEG_INFINITY; LANES]; H];
        for j in 0..count {
            let key = kv.keys.as_ptr().add((first + j) * kv.stride);
            let found = dots::<V, DTYPE, H>(o.q.as_ptr().add(head * o.q_stride), o.q_stride, key, d);
            for h in 0..H {
                scores[h][j] = found[h] * o.scale;
            }
        }
        let values = kv.values.as_ptr().add(first * kv.stride);
        for h in 0..H {
            let scores = V::load(scores[h].as_ptr());
            let (old, found) = (part.max[head + h], scores.max_lane());
            let max = if found > old { found } else { old };
            let weights = exp(scores.sub(V::splat(max)));
            let kept = exp(V::splat(old - max)).to_array()[0];
            part.max[head + h] = max;
            part.sum[head + h] = part.sum[head + h].mul_add(kept, weights.sum());
            let out = part.out[(head + h) * d..(head + h + 1) * d].as_mut_ptr();
            let weights = &weights.to_array()[..count];
            let mut at = 0;
            while at + PARTS * LANES <= d {
                values_of::<V, DTYPE, PARTS>(
                    values.add(at * DTYPES[DTYPE].bytes()),
                    kv.stride,
                    LANES,
                    weights,
                    kept,
                    out.add(at),
                );
                at += PARTS * LANES;
            }
            while at < d {
                let n = LANES.min(d - at);
                values_of::<V, DTYPE, 1>(
                    values.add(at * DTYPES[DTYPE].bytes()),
                    kv.stride,
                    n,
                    weights,
                    kept,
                    out.add(at),
                );
                at += LANES;
            }
        }
    }
}

/// The products of `H` queries, `stride` apart, with a key of `d` elements.
///
/// # Safety
/// As [`stream`].
#[inline(always)]
unsafe fn dots<V: Vector, const DTYPE: usize, const H: usize>(
    q: *const f32,
    stride: usize,
    key: *const u8,
    d: usize,
) -> [f32; H] {
    // SAFETY: as the caller promises.
    unsafe {
        let mut sums = [V::splat(0.0); H];
        for at in (0..d).step_by(LANES) {
            let n = LANES.min(d - at);
            let k = V::widen_part(DTYPES[DTYPE], key.add(at * DTYPES[DTYPE].bytes()), n);
            for h in 0..H {
                sums[h] = V::load_part(q.add(h * stride + at), n, 0.0).fma(k, sums[h]);
            }
        }
        let mut out = [0.0; H];
        for h in 0..H {
            out[h] = sums[h].sum();
        }
        out
    }
}

/// `out = out · kept + Σ weightⱼ · valueⱼ` for `P` vectors of `n` elements each; fewer than sixteen only if `P` is 1.
///
/// # Safety
/// As [`stream`].
#[inline(always)]
unsafe fn values_of<V: Vector, const DTYPE: usize, const P: usize>(
    values: *const u8,
    stride: usize,
    n: usize,
    weights: &[f32],
    kept: f32,
    out: *mut f32,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut sums = [V::splat(kept); P];
        for p in 0..P {
            sums[p] = sums[p].mul(V::load_part(out.add(p * LANES), n, 0.0));
        }
        for (j, &weight) in weights.iter().enumerate() {
            let (weight, value) = (V::splat(weight), values.add(j * stride));
            for p in 0..P {
                let value = V::widen_part(DTYPES[DTYPE], value.add(p * LANES * DTYPES[DTYPE].bytes()), n);
                sums[p] = value.fma(weight, sums[p]);
            }
        }
        for p in 0..P {
            sums[p].store_part(out.add(p * LANES), n);
        }
    }
}

/// `out [heads, head_dim]`: the parts, in order, as one softmax.
///
/// # Safety
/// The processor has the instruction set of `V`; the parts have equal shapes, and `out` that shape.
#[inline(always)]
pub(in crate::kernels) unsafe fn merge<V: Vector>(parts: &[Attended], out: &mut [f32]) {
    out.fill(0.0);
    let Some(first) = parts.first() else { return };
    let d = first.head_dim;
    for (head, out) in out.chunks_exact_mut(d).enumerate() {
        let max = parts.iter().map(|p| p.max[head]).fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
        let mut total = 0.0f32;
        // SAFETY: as the caller promises.
        unsafe {
            for part in parts {
                let weight = exp(V::splat(part.max[head] - max)).to_array()[0];
                total = part.sum[head].mul_add(weight, total);
                add_scaled::<V>(out, weight, &part.out[head * d..(head + 1) * d]);
            }
            divide::<V>(out, total);
        }
    }
}

//! Attention of the query heads that share a key head, at one or more rows, over a range of positions, with a streaming
//! softmax.
//!
//! Positions are taken sixteen at a time, counted from the start of the range. Per query, of each sixteen: the scores
//! `q·k · scale` and their maximum; what was summed so far, scaled down to the new maximum; and then the weights
//! `e^(score − maximum)` and the values times them, in order of position. How many queries are taken together changes
//! nothing in that.

use std::ops::Range;

use spinetail_core::DType;

use super::elementwise::{add_scaled, divide};
use super::exp::exp;
use crate::kernels::attention::{Attended, KeyValues, Queries};
use crate::kernels::vector::{DTYPES, LANES, Vector};

/// Queries that are taken together.
const QUERIES: usize = 4;

/// Keys, or vectors of a head's output, that meet those together where there are registers for their sums.
const TILE: usize = 4;

/// Queries and where they look; see `Kernels::attend`.
pub(in crate::kernels) struct Query<'a> {
    pub(in crate::kernels) queries: Queries<'a>,
    pub(in crate::kernels) kv: KeyValues<'a>,
    pub(in crate::kernels) positions: Range<usize>,
    pub(in crate::kernels) scale: f32,
}

impl Query<'_> {
    /// Where a query begins.
    #[inline(always)]
    pub(in crate::kernels) fn at(&self, query: usize) -> usize {
        let Queries { heads, head_stride, row_stride, .. } = self.queries;
        query / heads * row_stride + query % heads * head_stride
    }

    /// The end of the positions that a query sees.
    #[inline(always)]
    pub(in crate::kernels) fn end(&self, query: usize) -> usize {
        self.positions.end.min(self.queries.position + query / self.queries.heads + 1)
    }
}

/// Fills `part` with what its queries find.
///
/// # Safety
/// The processor has the instruction set of `V`; `q` and `kv` have what the queries of `part` and the positions need.
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
    let queries = part.queries();
    for first in o.positions.clone().step_by(LANES) {
        // Rows before see nothing of these positions.
        let mut query = first.saturating_sub(o.queries.position) * o.queries.heads;
        // SAFETY: as the caller promises; queries stay below those of the part.
        unsafe {
            while query + QUERIES <= queries {
                block::<V, DTYPE, QUERIES>(o, first, query, part);
                query += QUERIES;
            }
            while query < queries {
                block::<V, DTYPE, 1>(o, first, query, part);
                query += 1;
            }
        }
    }
}

/// Queries `query..query + Q` at positions `first..first + 16`, or as many of them as they see, at least one.
///
/// # Safety
/// As [`stream`].
#[inline(always)]
unsafe fn block<V: Vector, const DTYPE: usize, const Q: usize>(
    o: &Query<'_>,
    first: usize,
    query: usize,
    part: &mut Attended,
) {
    let (mut q, mut counts) = ([std::ptr::null(); Q], [0; Q]);
    // SAFETY: as the caller promises.
    unsafe {
        for i in 0..Q {
            q[i] = o.queries.q.as_ptr().add(o.at(query + i));
            counts[i] = LANES.min(o.end(query + i) - first);
        }
        let mut weights = scores::<V, DTYPE, Q>(o, first, q, counts, part.head_dim);
        let mut kept = [0.0; LANES];
        for i in 0..Q {
            let scores = V::load(weights[i].as_ptr());
            let (old, found) = (part.max[query + i], scores.max_lane());
            let max = if found > old { found } else { old };
            part.max[query + i] = max;
            kept[i] = old - max;
            weights[i] = exp(scores.sub(V::splat(max))).to_array();
        }
        let kept = exp(V::load(kept.as_ptr())).to_array();
        for i in 0..Q {
            let sum = V::load(weights[i].as_ptr()).sum();
            part.sum[query + i] = part.sum[query + i].mul_add(kept[i], sum);
        }
        let values = o.kv.values.as_ptr().add(first * o.kv.stride);
        let d = part.head_dim;
        let out = part.out[query * d..(query + Q) * d].as_mut_ptr();
        if counts[0] == counts[Q - 1] {
            let mut q_kept = [0.0; Q];
            q_kept.copy_from_slice(&kept[..Q]);
            row_of_values::<V, DTYPE, Q>(values, o.kv.stride, &weights, counts[0], q_kept, out, d);
        } else {
            for i in 0..Q {
                let (weights, kept) = ([weights[i]], [kept[i]]);
                row_of_values::<V, DTYPE, 1>(
                    values,
                    o.kv.stride,
                    &weights,
                    counts[i],
                    kept,
                    out.add(i * d),
                    d,
                );
            }
        }
    }
}

/// `q·k · scale` of the positions that each query sees, and −∞ after them.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn scores<V: Vector, const DTYPE: usize, const Q: usize>(
    o: &Query<'_>,
    first: usize,
    q: [*const f32; Q],
    counts: [usize; Q],
    d: usize,
) -> [[f32; LANES]; Q] {
    let mut scores = [[f32::NEG_INFINITY; LANES]; Q];
    // SAFETY: as the caller promises: the last query sees the most.
    unsafe {
        let (keys, mut j) = (o.kv.keys.as_ptr().add(first * o.kv.stride), 0);
        while V::MANY && j + TILE <= counts[Q - 1] {
            let found = dots::<V, DTYPE, Q, TILE>(q, keys.add(j * o.kv.stride), o.kv.stride, d);
            for k in 0..TILE {
                for i in 0..Q {
                    scores[i][j + k] = found[k][i] * o.scale;
                }
            }
            j += TILE;
        }
        while j < counts[Q - 1] {
            let [found] = dots::<V, DTYPE, Q, 1>(q, keys.add(j * o.kv.stride), o.kv.stride, d);
            for i in 0..Q {
                scores[i][j] = found[i] * o.scale;
            }
            j += 1;
        }
    }
    for i in 0..Q {
        if counts[i] < counts[Q - 1] {
            scores[i][counts[i]..].fill(f32::NEG_INFINITY);
        }
    }
    scores
}

/// The products of `Q` queries with `K` keys of `d` elements, `stride` bytes apart.
///
/// # Safety
/// As [`stream`].
#[inline(always)]
unsafe fn dots<V: Vector, const DTYPE: usize, const Q: usize, const K: usize>(
    q: [*const f32; Q],
    keys: *const u8,
    stride: usize,
    d: usize,
) -> [[f32; Q]; K] {
    // SAFETY: as the caller promises.
    unsafe {
        let mut sums = [[V::splat(0.0); Q]; K];
        for at in (0..d).step_by(LANES) {
            let n = LANES.min(d - at);
            let mut x = [V::splat(0.0); Q];
            for i in 0..Q {
                x[i] = V::load_part(q[i].add(at), n, 0.0);
            }
            for k in 0..K {
                let key = keys.add(k * stride + at * DTYPES[DTYPE].bytes());
                let key = V::widen_part(DTYPES[DTYPE], key, n);
                for i in 0..Q {
                    sums[k][i] = x[i].fma(key, sums[k][i]);
                }
            }
        }
        let mut out = [[0.0; Q]; K];
        for k in 0..K {
            if let Some(four) = sums[k].first_chunk::<4>() {
                out[k].copy_from_slice(&V::four_sums(*four)[..Q]);
            } else {
                for i in 0..Q {
                    out[k][i] = sums[k][i].sum();
                }
            }
        }
        out
    }
}

/// `out = out · kept + Σ weightⱼ · valueⱼ` of `Q` queries, over `count` values of `d` elements.
///
/// # Safety
/// As [`stream`].
#[inline(always)]
unsafe fn row_of_values<V: Vector, const DTYPE: usize, const Q: usize>(
    values: *const u8,
    stride: usize,
    weights: &[[f32; LANES]; Q],
    count: usize,
    kept: [f32; Q],
    out: *mut f32,
    d: usize,
) {
    let mut at = 0;
    // SAFETY: as the caller promises.
    unsafe {
        while (V::MANY || Q == 1) && at + TILE * LANES <= d {
            let values = values.add(at * DTYPES[DTYPE].bytes());
            values_of::<V, DTYPE, Q, TILE>(values, stride, LANES, weights, count, kept, out.add(at), d);
            at += TILE * LANES;
        }
        while at < d {
            let (n, values) = (LANES.min(d - at), values.add(at * DTYPES[DTYPE].bytes()));
            values_of::<V, DTYPE, Q, 1>(values, stride, n, weights, count, kept, out.add(at), d);
            at += LANES;
        }
    }
}

/// As [`row_of_values`], for `P` vectors of `n` elements each; fewer than sixteen only if `P` is 1. Outputs are `d`
/// apart.
///
/// # Safety
/// As [`stream`].
#[inline(always)]
unsafe fn values_of<V: Vector, const DTYPE: usize, const Q: usize, const P: usize>(
    values: *const u8,
    stride: usize,
    n: usize,
    weights: &[[f32; LANES]; Q],
    count: usize,
    kept: [f32; Q],
    out: *mut f32,
    d: usize,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut sums = [[V::splat(0.0); P]; Q];
        for i in 0..Q {
            for p in 0..P {
                sums[i][p] = V::splat(kept[i]).mul(V::load_part(out.add(i * d + p * LANES), n, 0.0));
            }
        }
        for j in 0..count {
            let mut value = [V::splat(0.0); P];
            for p in 0..P {
                let at = values.add(j * stride + p * LANES * DTYPES[DTYPE].bytes());
                value[p] = V::widen_part(DTYPES[DTYPE], at, n);
            }
            for i in 0..Q {
                let weight = V::splat(*weights[i].as_ptr().add(j));
                for p in 0..P {
                    sums[i][p] = value[p].fma(weight, sums[i][p]);
                }
            }
        }
        for i in 0..Q {
            for p in 0..P {
                sums[i][p].store_part(out.add(i * d + p * LANES), n);
            }
        }
    }
}

/// `out [n, head_dim]`: what the parts, in order, have of `n` queries from `query` on, as one softmax.
///
/// # Safety
/// The processor has the instruction set of `V`; the parts have equal shapes and those queries.
#[inline(always)]
pub(in crate::kernels) unsafe fn merge<V: Vector>(parts: &[Attended], query: usize, out: &mut [f32]) {
    out.fill(0.0);
    let Some(first) = parts.first() else { return };
    let d = first.head_dim;
    for (query, out) in (query..).zip(out.chunks_exact_mut(d)) {
        let max =
            parts.iter().map(|p| p.max[query]).fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
        let mut total = 0.0f32;
        // SAFETY: as the caller promises.
        unsafe {
            for part in parts {
                let weight = exp(V::splat(part.max[query] - max)).to_array()[0];
                total = part.sum[query].mul_add(weight, total);
                add_scaled::<V>(out, weight, &part.out[query * d..(query + 1) * d]);
            }
            divide::<V>(out, total);
        }
    }
}

//! The vector functions.

use std::f32::consts::LOG2_E;

use spinetail_core::DType;

use super::dot;
use crate::kernels::attention::Attended;
use crate::kernels::generic::attention::Query;
use crate::kernels::generic::delta::DeltaStep;
use crate::kernels::generic::exp::{LN_2, POLYNOMIAL, RANGE};
use crate::kernels::vector::LANES;

/// The larger, the second if they are equal or one is NaN: what x86's `max` is.
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The smaller, as [`max`].
fn min(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// `2ⁿ` of an integer from −126 to 127.
fn pow2(n: f32) -> f32 {
    f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// e^x: see `generic::exp`.
fn exp(x: f32) -> f32 {
    let x = max(RANGE.0, min(RANGE.1, x));
    let n = (x * LOG2_E).round_ties_even();
    let r = n.mul_add(-LN_2.1, n.mul_add(-LN_2.0, x));
    let p: f32 = POLYNOMIAL.into_iter().reduce(|p, c| p.mul_add(r, c)).unwrap_or(0.0);
    let y = p.mul_add(r * r, r) + 1.0;
    let half = (n * 0.5).round_ties_even();
    y * pow2(half) * pow2(n - half)
}

fn silu(x: f32) -> f32 {
    x / (1.0 + exp(0.0 - x))
}

pub(crate) fn exp_in_place(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = exp(*x));
}

pub(crate) fn swiglu(gate: &[f32], up: &mut [f32]) {
    up.iter_mut().zip(gate).for_each(|(up, &gate)| *up *= silu(gate));
}

pub(crate) fn sigmoid_gate(gate: &[f32], x: &mut [f32]) {
    x.iter_mut().zip(gate).for_each(|(x, gate)| *x /= 1.0 + exp(0.0 - gate));
}

pub(crate) fn add_scaled(y: &mut [f32], s: f32, x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = x.mul_add(s, *y));
}

pub(crate) fn rms_norm(x: &mut [f32], w: &[f32], eps: f32) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    x.iter_mut().zip(w).for_each(|(x, w)| *x = *x * scale * w);
}

pub(crate) fn l2_norm(x: &mut [f32], scale: f32, eps: f32) {
    let scale = scale / (dot(x, x) + eps).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

pub(crate) fn softmax(x: &mut [f32]) -> bool {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, max);
    x.iter_mut().for_each(|x| *x = exp(*x - largest));
    let mut lanes = [0.0; LANES];
    x.iter().enumerate().for_each(|(i, x)| lanes[i % LANES] += x);
    let sum = super::lane_sum(&lanes);
    x.iter_mut().for_each(|x| *x /= sum);
    sum.is_finite() && largest.is_finite()
}

pub(crate) fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = x.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

pub(crate) fn conv_silu(taps: &[f32], past: &[f32], x: &[f32], out: &mut [f32]) {
    let channels = x.len();
    for (c, out) in out.iter_mut().enumerate() {
        let inputs = past.iter().chain(x).skip(c).step_by(channels);
        let taps = taps.iter().skip(c).step_by(channels);
        *out = silu(taps.zip(inputs).fold(0.0, |sum, (tap, x)| tap.mul_add(*x, sum)));
    }
}

pub(crate) fn narrow(x: &[f32], out: &mut [u16]) {
    for (x, out) in x.iter().zip(out) {
        let mut bytes = Vec::with_capacity(2);
        DType::F16.put(*x, &mut bytes);
        *out = u16::from_le_bytes([bytes[0], bytes[1]]);
    }
}

pub(crate) fn delta_step(s: &mut [f32], o: &DeltaStep<'_>, y: &mut [f32]) {
    for ((s, v), y) in s.chunks_exact_mut(o.k.len()).zip(o.v).zip(y) {
        s.iter_mut().for_each(|s| *s *= o.decay);
        let change = o.beta * (v - dot(s, o.k));
        s.iter_mut().zip(o.k).for_each(|(s, k)| *s = change.mul_add(*k, *s));
        *y = dot(s, o.q);
    }
}

pub(crate) fn attend(o: &Query<'_>, part: &mut Attended) {
    let (d, dtype) = (part.head_dim, o.kv.dtype);
    let row = |bytes: &[u8], position: usize| -> Vec<f32> {
        (0..d).map(|i| dtype.get(&bytes[position * o.kv.stride..], i)).collect()
    };
    for query in 0..part.queries() {
        let q = &o.queries.q[o.at(query)..][..d];
        let (mut largest, mut total, mut out) = (f32::NEG_INFINITY, 0.0f32, vec![0.0f32; d]);
        for first in (o.positions.start..o.end(query)).step_by(LANES) {
            let block = first..o.end(query).min(first + LANES);
            let scores: Vec<f32> = block.clone().map(|j| dot(q, &row(o.kv.keys, j)) * o.scale).collect();
            let found = scores.iter().copied().fold(f32::NEG_INFINITY, max);
            let old = largest;
            largest = max(found, old);
            let kept = exp(old - largest);
            let mut weights = [0.0; LANES];
            weights.iter_mut().zip(&scores).for_each(|(w, s)| *w = exp(s - largest));
            total = total.mul_add(kept, super::lane_sum(&weights));
            out.iter_mut().for_each(|o| *o *= kept);
            for (j, &weight) in block.zip(&weights) {
                add_scaled(&mut out, weight, &row(o.kv.values, j));
            }
        }
        (part.max[query], part.sum[query]) = (largest, total);
        part.out[query * d..(query + 1) * d].copy_from_slice(&out);
    }
}

pub(crate) fn merge(parts: &[Attended], query: usize, out: &mut [f32]) {
    out.fill(0.0);
    let Some(first) = parts.first() else { return };
    for (query, out) in (query..).zip(out.chunks_exact_mut(first.head_dim)) {
        let largest = parts.iter().map(|p| p.max[query]).fold(f32::NEG_INFINITY, |a, b| max(b, a));
        let mut total = 0.0f32;
        for part in parts {
            let weight = exp(part.max[query] - largest);
            total = part.sum[query].mul_add(weight, total);
            add_scaled(out, weight, &part.out[query * part.head_dim..]);
        }
        out.iter_mut().for_each(|x| *x /= total);
    }
}

//! The meaning of every kernel, in obvious code. The other instruction sets give the same bytes.

mod functions;

use std::ops::Range;

use spinetail_core::{Affine, DType, Format, unpack_group, widen};

pub(super) use functions::*;

use super::activations::{CHUNK, Coded, Order};
use super::generic::integer::Operands;
use super::generic::quantize::factors;
use super::operands::{SharedOut, Weights};
use super::vector::LANES;

/// The scalar kernels take activations as they come.
pub(super) static ORDERS: [Order; 6] = [Order::NATURAL; 6];

/// Halves added, lane by lane, until one is left.
fn lane_sum(lanes: &[f32]) -> f32 {
    let mut lanes = lanes.to_vec();
    while lanes.len() > 1 {
        let half = lanes.len() / 2;
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        lanes.truncate(half);
    }
    lanes[0]
}

/// `Σ aᵢ·bᵢ`, by lanes.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for i in 0..a.len().next_multiple_of(LANES) {
        let at = |x: &[f32]| x.get(i).copied().unwrap_or(0.0);
        lanes[i % LANES] = at(a).mul_add(at(b), lanes[i % LANES]);
    }
    lane_sum(&lanes)
}

/// A row of weights in f32.
fn widen_row(w: &Weights<'_>, row: usize) -> Vec<f32> {
    let mut out = vec![0.0; w.columns];
    match w.format {
        Format::Plain(dtype) => widen(dtype, &w.weight[row * w.columns * dtype.bytes()..], &mut out),
        Format::Affine(a) => {
            let groups = w.columns / a.group_size;
            for g in 0..groups {
                let out = &mut out[g * a.group_size..(g + 1) * a.group_size];
                unpack_group(a.bits, &w.weight[a.code_bytes(row * w.columns + g * a.group_size)..], out);
                let scale = a.scales.get(w.scales, row * groups + g);
                let bias = a.scales.get(w.biases, row * groups + g);
                out.iter_mut().for_each(|q| *q = q.mul_add(scale, bias));
            }
        }
    }
    out
}

pub(super) fn exact(w: &Weights<'_>, _: Affine, rows: Range<usize>, x: &[f32], out: &SharedOut<'_>) {
    products(w, rows, x, out);
}

pub(super) fn plain(w: &Weights<'_>, _: DType, rows: Range<usize>, x: &[f32], out: &SharedOut<'_>) {
    products(w, rows, x, out);
}

fn products(w: &Weights<'_>, rows: Range<usize>, x: &[f32], out: &SharedOut<'_>) {
    for row in rows {
        let weights = widen_row(w, row);
        for (i, x) in x.chunks_exact(w.columns).enumerate() {
            out.set(i, row, dot(&weights, x));
        }
    }
}

/// Each pair of codes with the two activations at its place.
pub(super) fn integer(operands: &Operands, repeats: usize) -> f32 {
    let mut sum = 0i32;
    for _ in 0..repeats {
        for (code, x) in std::hint::black_box(operands).pairs() {
            sum = sum.wrapping_add(i32::from(code) * i32::from(x));
        }
    }
    sum as f32
}

pub(super) fn fast(w: &Weights<'_>, a: Affine, rows: Range<usize>, x: &Coded, n: usize, out: &SharedOut<'_>) {
    let groups = w.columns / a.group_size;
    let mut codes = vec![0.0; a.group_size];
    for row in rows {
        for i in 0..n {
            let x = x.row(i);
            let q: Vec<u8> = x.codes.iter().flat_map(|l| l.0).take(w.columns).collect();
            let (scales, sums) = (x.scales, x.sums);
            let mut lanes = [0.0f32; CHUNK];
            for g in 0..groups.next_multiple_of(CHUNK) {
                let (mut total, mut scale, mut bias) = (0, 0.0, 0.0);
                if g < groups {
                    unpack_group(
                        a.bits,
                        &w.weight[a.code_bytes(row * w.columns + g * a.group_size)..],
                        &mut codes,
                    );
                    let q = &q[g * a.group_size..];
                    total = codes.iter().zip(q).map(|(&c, &q)| c as i32 * i32::from(q as i8)).sum();
                    scale = a.scales.get(w.scales, row * groups + g);
                    bias = a.scales.get(w.biases, row * groups + g);
                }
                let lane = &mut lanes[g % CHUNK];
                *lane = (total as f32).mul_add(scale * scales[g], *lane);
                *lane = bias.mul_add(sums[g], *lane);
            }
            out.set(i, row, lane_sum(&lanes));
        }
    }
}

pub(super) fn quantize(x: &[f32], group: usize, codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]) {
    for (g, x) in x.chunks_exact(group).enumerate() {
        let magnitude = x.iter().map(|x| x.abs().to_bits()).max().map_or(0.0, f32::from_bits);
        let (inverse, scale) = factors(magnitude);
        let mut total = 0.0;
        for (code, x) in codes[g * group..].iter_mut().zip(x) {
            let q = (x * inverse).round_ties_even();
            *code = q as i8;
            total += q;
        }
        (scales[g], sums[g]) = (scale, scale * total);
    }
}

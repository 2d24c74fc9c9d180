//! The router, the experts and their sum.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use spinetail_core::{Format, MoeConfig, RecordLayout};
use spinetail_model::{RoutedRow, Routing};

use crate::compute::{ACTIVATION_ROWS, Compute, Precision, Product};
use crate::kernels::{Activations, Weights};
use crate::weights::operand;

/// Contributions of a batch until they are summed, and memory that calls reuse.
#[derive(Default)]
pub(crate) struct Moe {
    /// `[rows, hidden]`: the sum of each row's experts, from its first one on, in ascending order of rank.
    sums: Vec<f32>,
    /// How many experts of each row are in its sum.
    summed: Vec<u32>,
    /// Experts that came before an earlier one of the same row: row, rank, and where its output is in `early_out`.
    early: Vec<(u32, u32, usize)>,
    early_out: Vec<f32>,
    /// `[rows, hidden]`: the gated shared expert.
    shared: Vec<f32>,
    /// Rows that an expert was chosen for, when they are not all.
    gathered: Activations,
    inner: Activations,
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
}

impl Moe {
    /// Makes room for the contributions of a batch.
    pub(crate) fn begin(&mut self, rows: usize, hidden: usize) {
        self.sums.resize(rows * hidden, 0.0);
        self.shared.resize(rows * hidden, 0.0);
        self.summed.clear();
        self.summed.resize(rows, 0);
        self.early.clear();
        self.early_out.clear();
    }

    /// `self.down[n, hidden] = down(silu(gate(x)) ⊙ up(x))`
    fn swiglu(&mut self, compute: &Compute, [gate, up, down]: [Weights<'_>; 3], x: &mut Activations) {
        let n = x.rows();
        let products = [Product::new(gate, n, &mut self.gate), Product::new(up, n, &mut self.up)];
        compute.products(x, &products);
        compute.swiglu(&mut self.gate, &mut self.up, down.columns());
        self.inner.set(&self.up, down.columns());
        compute.products(&mut self.inner, &[Product::new(down, n, &mut self.down)]);
    }

    /// The shared expert on all rows, each times the sigmoid of its gate.
    pub(crate) fn shared(
        &mut self,
        compute: &Compute,
        weights: [Weights<'_>; 3],
        gate: &[f32],
        x: &mut Activations,
    ) {
        let hidden = x.columns();
        self.swiglu(compute, weights, x);
        let (down, len) = (&self.down, hidden * ACTIVATION_ROWS);
        compute.pool.for_each_chunk(&mut self.shared, len, |i, shared| {
            let rows = shared.chunks_exact_mut(hidden).zip(down[i * len..].chunks_exact(hidden));
            for ((shared, y), gate) in rows.zip(&gate[i * ACTIVATION_ROWS..]) {
                let gate = 1.0 / (1.0 + (-gate).exp());
                shared.iter_mut().zip(y).for_each(|(s, y)| *s = gate * y);
            }
        });
    }

    /// One routed expert on the rows of `x` that need it.
    pub(crate) fn expert(
        &mut self,
        compute: &Compute,
        layout: &RecordLayout,
        record: &[u8],
        x: &mut Activations,
        rows: &[RoutedRow],
    ) {
        let hidden = x.columns();
        let weights = [&layout.gate, &layout.up, &layout.down].map(|l| operand(l, record));
        if rows.len() == x.rows() {
            // Every row, in order: rows are distinct and ascending.
            self.swiglu(compute, weights, x);
        } else {
            let mut gathered = std::mem::take(&mut self.gathered);
            // What the 8-bit form of all rows is made for, it is made for once, and not by each expert anew.
            let mut plain = compute.precision == Precision::Exact;
            for w in &weights[..2] {
                match w.format() {
                    Format::Affine(a) if !plain => compute.code(x, a),
                    _ => plain = true,
                }
            }
            gathered.gather(x, rows.iter().map(|r| r.row as usize), plain);
            self.swiglu(compute, weights, &mut gathered);
            self.gathered = gathered;
        }
        self.sum(compute, hidden, rows);
    }

    /// Adds what an expert gave for `rows` to their sums, or keeps it until its turn.
    fn sum(&mut self, compute: &Compute, hidden: usize, rows: &[RoutedRow]) {
        if rows.len() > ACTIVATION_ROWS && rows.iter().all(|r| r.rank == self.summed[r.row as usize]) {
            return self.sum_in_turn(compute, hidden, rows);
        }
        for (r, y) in rows.iter().zip(self.down.chunks_exact(hidden)) {
            let (row, summed) = (r.row as usize, &mut self.summed[r.row as usize]);
            if r.rank != *summed {
                self.early.push((r.row, r.rank, self.early_out.len()));
                self.early_out.extend(y.iter().map(|y| r.weight * y));
                continue;
            }
            *summed += 1;
            weigh(r, y, &mut self.sums[row * hidden..(row + 1) * hidden]);
        }
    }

    /// As [`sum`](Self::sum), of rows whose turn it is: some of them for each thread.
    fn sum_in_turn(&mut self, compute: &Compute, hidden: usize, rows: &[RoutedRow]) {
        let (mut rest, mut first) = (&mut self.sums[..], 0);
        let parts = rows.chunks(ACTIVATION_ROWS).zip(self.down.chunks(ACTIVATION_ROWS * hidden));
        let mut parts: Vec<Part<'_>> = parts
            .map(|(rows, y)| {
                // Rows are ascending, so that each part's sums lie after those of the one before.
                let end = rows.last().map_or(first, |r| r.row as usize + 1);
                let (sums, later) = std::mem::take(&mut rest).split_at_mut((end - first) * hidden);
                rest = later;
                Part { rows, y, sums, first: std::mem::replace(&mut first, end) }
            })
            .collect();
        compute.pool.for_each_chunk(&mut parts, 1, |_, parts| {
            for part in parts {
                for (r, y) in part.rows.iter().zip(part.y.chunks_exact(hidden)) {
                    weigh(r, y, &mut part.sums[(r.row as usize - part.first) * hidden..][..hidden]);
                }
            }
        });
        for r in rows {
            self.summed[r.row as usize] += 1;
        }
    }

    /// `x += Σ routed + shared`: rank after rank, which is expert id after expert id. Experts that came in order are
    /// summed already, which in a long prompt are all; those of an answer come as they are read.
    pub(crate) fn combine(&mut self, compute: &Compute, x: &mut [f32], hidden: usize) {
        self.early.sort_unstable();
        for &(row, rank, at) in &self.early {
            let sum = &mut self.sums[row as usize * hidden..][..hidden];
            let y = &self.early_out[at..at + hidden];
            if rank == 0 { sum.copy_from_slice(y) } else { add(sum, y) }
        }
        self.early.clear();
        self.early_out.clear();
        self.summed.fill(0);
        let (shared, len) = (&self.shared, hidden * ACTIVATION_ROWS);
        compute.pool.for_each_pair((x, len), (&mut self.sums, len), |i, x, sum| {
            add(sum, &shared[i * len..]);
            add(x, sum);
        });
    }
}

/// Some of an expert's rows and what it gave for them, with the sums from row `first` on.
struct Part<'a> {
    rows: &'a [RoutedRow],
    y: &'a [f32],
    sums: &'a mut [f32],
    first: usize,
}

/// Adds an expert's output to the sum of a row, or begins it.
fn weigh(r: &RoutedRow, y: &[f32], sum: &mut [f32]) {
    let sum = sum.iter_mut().zip(y);
    if r.rank == 0 {
        sum.for_each(|(sum, y)| *sum = r.weight * y);
    } else {
        sum.for_each(|(sum, y)| *sum += r.weight * y);
    }
}

/// `y += x`
pub(crate) fn add(y: &mut [f32], x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}

/// Chooses the experts of each row of `logits [rows, experts]`, which is overwritten. Returns whether all rows were
/// made of numbers.
///
/// Softmax over all experts, the `top_k` largest (the lower id of equals), scaled to sum to one where the model says
/// so; ids ascending.
pub(crate) fn choose(compute: &Compute, m: &MoeConfig, logits: &mut [f32], routing: &mut Routing) -> bool {
    let (k, rows, finite) = (m.top_k, logits.len() / m.experts, AtomicBool::new(true));
    compute.pool.for_each_chunk(logits, m.experts * ACTIVATION_ROWS, |_, logits| {
        if !logits.chunks_exact_mut(m.experts).all(|p| compute.kernels.softmax(p)) {
            finite.store(false, Relaxed);
        }
    });
    if !finite.into_inner() {
        return false;
    }
    routing.top_k = k;
    routing.ids.resize(rows * k, 0);
    routing.weights.resize(rows * k, 0.0);
    let ids = (&mut routing.ids[..], k * ACTIVATION_ROWS);
    let weights = (&mut routing.weights[..], k * ACTIVATION_ROWS);
    compute.pool.for_each_pair(ids, weights, |i, ids, weights| {
        let probabilities = logits[i * m.experts * ACTIVATION_ROWS..].chunks_exact(m.experts);
        pick(m, probabilities, ids, weights);
    });
    true
}

/// The experts of some rows, by the probabilities of all.
fn pick<'p>(
    m: &MoeConfig,
    probabilities: impl Iterator<Item = &'p [f32]>,
    ids: &mut [u16],
    weights: &mut [f32],
) {
    let mut order: Vec<u16> = Vec::with_capacity(m.experts);
    let rows = ids.chunks_exact_mut(m.top_k).zip(weights.chunks_exact_mut(m.top_k));
    for (p, (ids, weights)) in probabilities.zip(rows) {
        order.clear();
        order.extend(0..m.experts as u16);
        order.select_nth_unstable_by(m.top_k - 1, |&a, &b| {
            p[usize::from(b)].total_cmp(&p[usize::from(a)]).then(a.cmp(&b))
        });
        let chosen = &mut order[..m.top_k];
        chosen.sort_unstable();
        let sum: f32 = if m.norm_topk { chosen.iter().map(|&e| p[usize::from(e)]).sum() } else { 1.0 };
        ids.copy_from_slice(chosen);
        for (weight, &e) in weights.iter_mut().zip(&*chosen) {
            *weight = p[usize::from(e)] / sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::CpuOptions;

    #[test]
    fn ties_go_to_the_lower_id_and_weights_sum_to_one() {
        let m = MoeConfig { experts: 5, top_k: 2, intermediate: 1, shared_intermediate: 1, norm_topk: true };
        let mut routing = Routing::default();
        let compute = Compute::new(&CpuOptions::default()).expect("threads");
        assert!(choose(&compute, &m, &mut [1.0, 3.0, 3.0, 3.0, 0.0, 9.0, 0.0, 0.0, 0.0, 8.0], &mut routing));
        assert_eq!(routing.ids, [1, 2, 0, 4]);
        assert_eq!(routing.weights[0], 0.5);
        assert!((routing.weights[2] + routing.weights[3] - 1.0).abs() < 1e-6);
        assert!(!choose(&compute, &m, &mut [f32::NAN; 5], &mut routing));
    }
}

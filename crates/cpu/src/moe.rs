//! The router, the experts and their sum.

use spinetail_core::{Format, MoeConfig, RecordLayout};
use spinetail_model::{RoutedRow, Routing};

use crate::compute::{Compute, Precision, Product};
use crate::kernels::{Activations, Kernels, Weights};
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
        let rows = self.shared.chunks_exact_mut(hidden).zip(self.down.chunks_exact(hidden));
        for ((shared, y), gate) in rows.zip(gate) {
            let gate = 1.0 / (1.0 + (-gate).exp());
            shared.iter_mut().zip(y).for_each(|(s, y)| *s = gate * y);
        }
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
        for (r, y) in rows.iter().zip(self.down.chunks_exact(hidden)) {
            let (row, summed) = (r.row as usize, &mut self.summed[r.row as usize]);
            if r.rank != *summed {
                self.early.push((r.row, r.rank, self.early_out.len()));
                self.early_out.extend(y.iter().map(|y| r.weight * y));
                continue;
            }
            *summed += 1;
            let sum = self.sums[row * hidden..(row + 1) * hidden].iter_mut().zip(y);
            if r.rank == 0 {
                sum.for_each(|(sum, y)| *sum = r.weight * y);
            } else {
                sum.for_each(|(sum, y)| *sum += r.weight * y);
            }
        }
    }

    /// `x += Σ routed + shared`: rank after rank, which is expert id after expert id. Experts that came in order are
    /// summed already, which in a long prompt are all; those of an answer come as they are read.
    pub(crate) fn combine(&mut self, x: &mut [f32], hidden: usize) {
        self.early.sort_unstable();
        for &(row, rank, at) in &self.early {
            let sum = &mut self.sums[row as usize * hidden..][..hidden];
            let y = &self.early_out[at..at + hidden];
            if rank == 0 { sum.copy_from_slice(y) } else { add(sum, y) }
        }
        self.early.clear();
        self.early_out.clear();
        self.summed.fill(0);
        let rows = x.chunks_exact_mut(hidden).zip(self.sums.chunks_exact_mut(hidden));
        for ((x, sum), shared) in rows.zip(self.shared.chunks_exact(hidden)) {
            add(sum, shared);
            add(x, sum);
        }
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
pub(crate) fn choose(kernels: &Kernels, m: &MoeConfig, logits: &mut [f32], routing: &mut Routing) -> bool {
    routing.top_k = m.top_k;
    routing.ids.clear();
    routing.weights.clear();
    let mut order: Vec<u16> = Vec::with_capacity(m.experts);
    for p in logits.chunks_exact_mut(m.experts) {
        if !kernels.softmax(p) {
            return false;
        }
        order.clear();
        order.extend(0..m.experts as u16);
        order.select_nth_unstable_by(m.top_k - 1, |&a, &b| {
            p[usize::from(b)].total_cmp(&p[usize::from(a)]).then(a.cmp(&b))
        });
        let chosen = &mut order[..m.top_k];
        chosen.sort_unstable();
        let sum: f32 = if m.norm_topk { chosen.iter().map(|&e| p[usize::from(e)]).sum() } else { 1.0 };
        routing.ids.extend_from_slice(chosen);
        routing.weights.extend(chosen.iter().map(|&e| p[usize::from(e)] / sum));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_id_and_weights_sum_to_one() {
        let m = MoeConfig { experts: 5, top_k: 2, intermediate: 1, shared_intermediate: 1, norm_topk: true };
        let mut routing = Routing::default();
        assert!(choose(
            &Kernels::detect(),
            &m,
            &mut [1.0, 3.0, 3.0, 3.0, 0.0, 9.0, 0.0, 0.0, 0.0, 8.0],
            &mut routing
        ));
        assert_eq!(routing.ids, [1, 2, 0, 4]);
        assert_eq!(routing.weights[0], 0.5);
        assert!((routing.weights[2] + routing.weights[3] - 1.0).abs() < 1e-6);
        assert!(!choose(&Kernels::detect(), &m, &mut [f32::NAN; 5], &mut routing));
    }
}

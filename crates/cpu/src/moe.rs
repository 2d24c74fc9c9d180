//! The router, the experts and their sum.

use spinetail_core::{MoeConfig, RecordLayout};
use spinetail_model::{RoutedRow, Routing};

use crate::compute::{Compute, Product};
use crate::kernels::{Activations, Kernels, Weights};
use crate::weights::operand;

/// Contributions of a batch until they are summed, and memory that calls reuse.
#[derive(Default)]
pub(crate) struct Moe {
    /// `[rows, top_k, hidden]`: weighted outputs of routed experts, by rank.
    routed: Vec<f32>,
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
    pub(crate) fn begin(&mut self, rows: usize, top_k: usize, hidden: usize) {
        self.routed.resize(rows * top_k * hidden, 0.0);
        self.shared.resize(rows * hidden, 0.0);
    }

    /// `self.down[n, hidden] = down(silu(gate(x)) ⊙ up(x))`
    fn swiglu(&mut self, compute: &Compute, [gate, up, down]: [Weights<'_>; 3], x: &mut Activations) {
        let n = x.rows();
        let products = [Product::new(gate, n, &mut self.gate), Product::new(up, n, &mut self.up)];
        compute.products(x, &products);
        compute.kernels.swiglu(&self.gate, &mut self.up);
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
        top_k: usize,
        rows: &[RoutedRow],
    ) {
        let hidden = x.columns();
        let weights = [&layout.gate, &layout.up, &layout.down].map(|l| operand(l, record));
        if rows.len() == x.rows() {
            // Every row, in order: rows are distinct and ascending.
            self.swiglu(compute, weights, x);
        } else {
            let mut gathered = std::mem::take(&mut self.gathered);
            let to = gathered.fill(rows.len(), hidden);
            for (to, r) in to.chunks_exact_mut(hidden).zip(rows) {
                to.copy_from_slice(&x.x()[r.row as usize * hidden..][..hidden]);
            }
            self.swiglu(compute, weights, &mut gathered);
            self.gathered = gathered;
        }
        for (r, y) in rows.iter().zip(self.down.chunks_exact(hidden)) {
            let at = (r.row as usize * top_k + r.rank as usize) * hidden;
            self.routed[at..at + hidden].iter_mut().zip(y).for_each(|(out, y)| *out = r.weight * y);
        }
    }

    /// `x += Σ routed + shared`: rank after rank, which is expert id after expert id.
    pub(crate) fn combine(&mut self, x: &mut [f32], hidden: usize, top_k: usize) {
        let rows = x.chunks_exact_mut(hidden).zip(self.routed.chunks_exact_mut(top_k * hidden));
        for ((x, routed), shared) in rows.zip(self.shared.chunks_exact(hidden)) {
            let (sum, rest) = routed.split_at_mut(hidden);
            rest.chunks_exact(hidden).for_each(|y| add(sum, y));
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

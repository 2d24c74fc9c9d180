//! The router, the experts and their sum.

use spinetail_core::{MoeConfig, RecordLayout};
use spinetail_model::{RoutedRow, Routing};

use crate::linear::MatrixView;
use crate::math::{add, silu, softmax};

/// Contributions of a batch until they are summed, and memory that calls reuse.
#[derive(Default)]
pub(crate) struct Moe {
    /// `[rows, top_k, hidden]`: weighted outputs of routed experts, by rank.
    routed: Vec<f32>,
    /// `[rows, hidden]`: the gated shared expert.
    pub(crate) shared: Vec<f32>,
    gathered: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
    scratch: Vec<f32>,
}

impl Moe {
    /// Makes room for the contributions of a batch.
    pub(crate) fn begin(&mut self, rows: usize, top_k: usize, hidden: usize) {
        self.routed.resize(rows * top_k * hidden, 0.0);
        self.shared.resize(rows * hidden, 0.0);
    }

    /// `out[n, hidden] = down(silu(gate(x)) ⊙ up(x))`
    pub(crate) fn swiglu(
        &mut self,
        [gate, up, down]: [MatrixView<'_>; 3],
        x: &[f32],
        n: usize,
        out: &mut [f32],
    ) {
        self.gate.resize(n * gate.rows(), 0.0);
        self.up.resize(n * up.rows(), 0.0);
        gate.apply(x, &mut self.gate, &mut self.scratch);
        up.apply(x, &mut self.up, &mut self.scratch);
        for (g, u) in self.gate.iter_mut().zip(&self.up) {
            *g = silu(*g) * u;
        }
        down.apply(&self.gate, out, &mut self.scratch);
    }

    /// One routed expert on the rows of `h [_, hidden]` that need it.
    pub(crate) fn expert(
        &mut self,
        layout: &RecordLayout,
        record: &[u8],
        h: &[f32],
        hidden: usize,
        top_k: usize,
        rows: &[RoutedRow],
    ) {
        let mut gathered = std::mem::take(&mut self.gathered);
        let mut down = std::mem::take(&mut self.down);
        gathered.clear();
        for r in rows {
            gathered.extend_from_slice(&h[r.row as usize * hidden..][..hidden]);
        }
        down.resize(rows.len() * hidden, 0.0);
        let views = [&layout.gate, &layout.up, &layout.down].map(|l| MatrixView::new(l, record));
        self.swiglu(views, &gathered, rows.len(), &mut down);
        for (r, y) in rows.iter().zip(down.chunks_exact(hidden)) {
            let at = (r.row as usize * top_k + r.rank as usize) * hidden;
            for (out, y) in self.routed[at..at + hidden].iter_mut().zip(y) {
                *out = r.weight * y;
            }
        }
        self.gathered = gathered;
        self.down = down;
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

/// Chooses the experts of each row of `logits [rows, experts]`, which is overwritten. Returns whether all rows were
/// made of numbers.
///
/// Softmax over all experts, the `top_k` largest (the lower id of equals), scaled to sum to one where the model says
/// so; ids ascending.
pub(crate) fn choose(m: &MoeConfig, logits: &mut [f32], routing: &mut Routing) -> bool {
    routing.top_k = m.top_k;
    routing.ids.clear();
    routing.weights.clear();
    let mut order: Vec<u16> = Vec::with_capacity(m.experts);
    for p in logits.chunks_exact_mut(m.experts) {
        if !softmax(p) {
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
        assert!(choose(&m, &mut [1.0, 3.0, 3.0, 3.0, 0.0, 9.0, 0.0, 0.0, 0.0, 8.0], &mut routing));
        assert_eq!(routing.ids, [1, 2, 0, 4]);
        assert_eq!(routing.weights[0], 0.5);
        assert!((routing.weights[2] + routing.weights[3] - 1.0).abs() < 1e-6);
        assert!(!choose(&m, &mut [f32::NAN; 5], &mut routing));
    }
}

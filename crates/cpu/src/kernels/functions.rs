//! The safe face of the vector functions: operands are checked here, so that nothing behind the table needs to.

use std::ops::Range;

use super::generic::attention::Query;
use super::generic::delta::DeltaStep;
use super::{Attended, Kernels, KeyValues, Queries};

/// All operands of an elementwise function have one length.
#[track_caller]
fn same(a: usize, b: usize) {
    assert_eq!(a, b, "operands differ in length");
}

// SAFETY of every block below: the table is that of an instruction set that the processor has, and the lengths that
// the function relies on were checked just before.
impl Kernels {
    /// `Σ aᵢ·bᵢ`: sixteen sums by fused multiply–adds, added up by halves.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        same(a.len(), b.len());
        // SAFETY: see above.
        unsafe { (self.0.dot)(a, b) }
    }

    /// `y = x / sqrt(mean(x²) + eps) · w`
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn rms_norm(&self, x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
        y.copy_from_slice(x);
        self.rms_norm_in_place(y, w, eps);
    }

    /// `x = x / sqrt(mean(x²) + eps) · w`
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn rms_norm_in_place(&self, x: &mut [f32], w: &[f32], eps: f32) {
        same(x.len(), w.len());
        // SAFETY: see above.
        unsafe { (self.0.rms_norm)(x, w, eps) }
    }

    /// `x = x · scale / sqrt(Σx² + eps)`
    pub fn l2_norm_in_place(&self, x: &mut [f32], scale: f32, eps: f32) {
        // SAFETY: see above.
        unsafe { (self.0.l2_norm)(x, scale, eps) }
    }

    /// `x = softmax(x)`. Returns whether the result is made of numbers.
    pub fn softmax(&self, x: &mut [f32]) -> bool {
        // SAFETY: see above.
        unsafe { (self.0.softmax)(x) }
    }

    /// `x = eˣ`, wrong by at most 1.01 units in the last place; denormal results are rounded twice.
    pub fn exp(&self, x: &mut [f32]) {
        // SAFETY: see above.
        unsafe { (self.0.exp)(x) }
    }

    /// `up = silu(gate) · up`, where `silu(x) = x / (1 + e⁻ˣ)`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn swiglu(&self, gate: &[f32], up: &mut [f32]) {
        same(gate.len(), up.len());
        // SAFETY: see above.
        unsafe { (self.0.swiglu)(gate, up) }
    }

    /// `x = x / (1 + e^−gate)`
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn sigmoid_gate(&self, gate: &[f32], x: &mut [f32]) {
        same(gate.len(), x.len());
        // SAFETY: see above.
        unsafe { (self.0.sigmoid_gate)(gate, x) }
    }

    /// `y = y + s·x`, fused.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add_scaled(&self, y: &mut [f32], s: f32, x: &[f32]) {
        same(y.len(), x.len());
        // SAFETY: see above.
        unsafe { (self.0.add_scaled)(y, s, x) }
    }

    /// Rotates the leading dimensions of a head, `2 · cos.len()` of them, element i paired with element
    /// `i + cos.len()`: `(a, b) = (a·cos − b·sin, b·cos + a·sin)`.
    ///
    /// # Panics
    /// If `cos` and `sin` differ in length or the head is narrower.
    pub fn rotate(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        same(cos.len(), sin.len());
        assert!(x.len() >= 2 * cos.len(), "{} dimensions cannot be rotated in {}", 2 * cos.len(), x.len());
        // SAFETY: see above.
        unsafe { (self.0.rotate)(x, cos, sin) }
    }

    /// Causal depthwise convolution of one token, then SiLU. `taps` is `[kernel, channels]`, oldest first (transposed
    /// from checkpoints); `past`, `[kernel − 1, channels]`, holds the inputs before `x`, oldest first.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn conv_silu(&self, taps: &[f32], past: &[f32], x: &[f32], out: &mut [f32]) {
        same(x.len(), out.len());
        same(taps.len(), past.len() + x.len());
        assert!(!x.is_empty() && past.len().is_multiple_of(x.len()), "inputs of {} channels", x.len());
        // SAFETY: see above.
        unsafe { (self.0.conv_silu)(taps, past, x, out) }
    }

    /// `out = x` in the bits of f16, rounded to nearest, ties to even.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn narrow(&self, x: &[f32], out: &mut [u16]) {
        same(x.len(), out.len());
        // SAFETY: see above.
        unsafe { (self.0.narrow)(x, out) }
    }

    /// One step of a Gated DeltaNet head: `S ← decay·S; S ← S + beta·(v − S·k) ⊗ k; y = S·q`, with `s` `[dv, dk]`.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn delta_step(&self, s: &mut [f32], [q, k, v]: [&[f32]; 3], decay: f32, beta: f32, y: &mut [f32]) {
        same(q.len(), k.len());
        same(v.len(), y.len());
        same(s.len(), v.len() * k.len());
        // SAFETY: see above.
        unsafe { (self.0.delta_step)(s, &DeltaStep { k, q, v, decay, beta }, y) }
    }

    /// Attention of `queries`, which share a key head, over those of `positions` that each of them sees: scores are
    /// `q·k · scale`. Replaces what `part` held, which has as many queries as there are. For bytes that do not depend on
    /// threads or rows, `positions` is one of [`Attended::segments`] and the parts go to [`Kernels::merge`].
    ///
    /// # Panics
    /// If the queries or `kv` are too short.
    pub fn attend(
        &self,
        queries: Queries<'_>,
        kv: KeyValues<'_>,
        positions: Range<usize>,
        scale: f32,
        part: &mut Attended,
    ) {
        let d = part.head_dim();
        let n = part.queries();
        assert!(queries.holds(n, d), "{} elements are no {n} queries", queries.q.len());
        assert!(kv.holds(&positions, d), "keys and values end before position {}", positions.end);
        // SAFETY: see above.
        unsafe { (self.0.attend)(&Query { queries, kv, positions, scale }, part) }
    }

    /// `out [n, head_dim]`: what the parts, in order, have of `n` queries from `query` on, as one softmax. They are the
    /// parts that those queries see something of.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn merge(&self, parts: &[Attended], query: usize, out: &mut [f32]) {
        for part in parts {
            same(part.head_dim(), parts[0].head_dim());
            assert!(part.out.len() >= query * part.head_dim() + out.len(), "{} queries", part.queries());
        }
        // SAFETY: see above.
        unsafe { (self.0.merge)(parts, query, out) }
    }
}

//! Gated softmax attention with grouped queries and partial rotary positions.

use spinetail_core::{AttentionConfig, ModelConfig};

use crate::math::{add_scaled, dot, rms_norm_in_place, sigmoid, softmax};
use crate::sequence::Kv;
use crate::weights::AttentionWeights;

/// Rotary frequencies, and memory that calls reuse.
pub(crate) struct Attention {
    config: AttentionConfig,
    eps: f32,
    /// `theta^(−2i / rotary_dims)`
    frequencies: Vec<f32>,
    scores: Vec<f32>,
    angles: Vec<(f32, f32)>,
}

impl Attention {
    pub(crate) fn new(c: &ModelConfig) -> Self {
        let a = c.attention;
        let frequency = |i: usize| a.rope_theta.powf(-2.0 * i as f64 / a.rotary_dims as f64) as f32;
        Self {
            config: a,
            eps: c.rms_norm_eps as f32,
            frequencies: (0..a.rotary_dims / 2).map(frequency).collect(),
            scores: Vec::new(),
            angles: Vec::new(),
        }
    }

    /// One row: norms and rotates the query and the key, appends key and value, attends, gates.
    ///
    /// `q` is `[heads, 2 · head_dim]` (per head the query, then the output gate), `k` and `v` `[kv_heads · head_dim]`,
    /// `out` `[heads · head_dim]`.
    pub(crate) fn row(
        &mut self,
        w: &AttentionWeights,
        kv: &mut Kv,
        position: u32,
        q: &mut [f32],
        k: &mut [f32],
        v: &[f32],
        out: &mut [f32],
    ) {
        let AttentionConfig { heads, kv_heads, head_dim: d, .. } = self.config;
        let width = kv_heads * d;
        self.angles.clear();
        self.angles.extend(self.frequencies.iter().map(|f| (position as f32 * f).sin_cos()));
        for k in k.chunks_exact_mut(d) {
            rms_norm_in_place(k, &w.k_norm, self.eps);
            rotate(k, &self.angles);
        }
        // A step that failed may have left keys past the sequence's length; they are overwritten.
        kv.keys.truncate(position as usize * width);
        kv.values.truncate(position as usize * width);
        kv.keys.extend_from_slice(k);
        kv.values.extend_from_slice(v);
        let scale = 1.0 / (d as f32).sqrt();
        for (head, (q, out)) in q.chunks_exact_mut(2 * d).zip(out.chunks_exact_mut(d)).enumerate() {
            let (q, gate) = q.split_at_mut(d);
            rms_norm_in_place(q, &w.q_norm, self.eps);
            rotate(q, &self.angles);
            let at = head / (heads / kv_heads) * d;
            self.scores.clear();
            self.scores.extend(kv.keys.chunks_exact(width).map(|k| dot(q, &k[at..at + d]) * scale));
            softmax(&mut self.scores);
            out.fill(0.0);
            for (&p, v) in self.scores.iter().zip(kv.values.chunks_exact(width)) {
                add_scaled(out, p, &v[at..at + d]);
            }
            for (out, &gate) in out.iter_mut().zip(&*gate) {
                *out *= sigmoid(gate);
            }
        }
    }
}

/// Rotates the leading dimensions of a head, the first half of them paired with the second.
fn rotate(x: &mut [f32], angles: &[(f32, f32)]) {
    let (first, rest) = x.split_at_mut(angles.len());
    for ((a, b), &(sin, cos)) in first.iter_mut().zip(rest).zip(angles) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

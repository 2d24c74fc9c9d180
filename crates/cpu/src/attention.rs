//! Gated softmax attention with grouped queries and partial rotary positions.

use std::ops::Range;

use spinetail_core::{AttentionConfig, ModelConfig};

use crate::compute::Compute;
use crate::kernels::Attended;
use crate::sequence::Kv;
use crate::weights::AttentionWeights;

/// Rows whose partial results are held at once: bounds their memory at long contexts.
const ROWS_AT_ONCE: usize = 16;

/// Rotary frequencies, and memory that calls reuse.
pub(crate) struct Attention {
    config: AttentionConfig,
    eps: f32,
    /// `theta^(−2i / rotary_dims)`
    frequencies: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    tasks: Vec<Task>,
    parts: Vec<Attended>,
}

/// The queries of one key head at one row, over one segment of positions.
struct Task {
    row: usize,
    kv_head: usize,
    positions: Range<usize>,
}

impl Attention {
    pub(crate) fn new(c: &ModelConfig) -> Self {
        let a = c.attention;
        let frequency = |i: usize| a.rope_theta.powf(-2.0 * i as f64 / a.rotary_dims as f64) as f32;
        Self {
            config: a,
            eps: c.rms_norm_eps as f32,
            frequencies: (0..a.rotary_dims / 2).map(frequency).collect(),
            cos: Vec::new(),
            sin: Vec::new(),
            tasks: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Consecutive rows of one sequence, the first at `position`.
    ///
    /// `q` is `[n, heads, 2 · head_dim]` (per head the query, then the output gate), `k` and `v`
    /// `[n, kv_heads · head_dim]`, `out` `[n, heads · head_dim]`. Queries and keys are normed and rotated in place.
    pub(crate) fn rows(
        &mut self,
        compute: &Compute,
        w: &AttentionWeights,
        kv: &mut Kv,
        position: usize,
        q: &mut [f32],
        k: &mut [f32],
        v: &[f32],
        out: &mut [f32],
    ) {
        let AttentionConfig { heads, kv_heads, head_dim: d, .. } = self.config;
        let (q_width, kv_width, out_width) = (heads * 2 * d, kv_heads * d, heads * d);
        let rows =
            q.chunks_exact_mut(q_width).zip(k.chunks_exact_mut(kv_width)).zip(v.chunks_exact(kv_width));
        for (i, ((q, k), v)) in rows.enumerate() {
            self.turn_to(position + i);
            for q in q.chunks_exact_mut(2 * d) {
                self.norm_and_rotate(compute, &mut q[..d], &w.q_norm);
            }
            for k in k.chunks_exact_mut(d) {
                self.norm_and_rotate(compute, k, &w.k_norm);
            }
            kv.push(&compute.kernels, k, v);
        }
        let blocks = q.chunks(ROWS_AT_ONCE * q_width).zip(out.chunks_mut(ROWS_AT_ONCE * out_width));
        for (i, (q, out)) in blocks.enumerate() {
            self.attend(compute, kv, position + i * ROWS_AT_ONCE, q, out);
        }
    }

    fn turn_to(&mut self, position: usize) {
        let angles = self.frequencies.iter().map(|f| (position as f32 * f).sin_cos());
        (self.sin, self.cos) = angles.unzip();
    }

    fn norm_and_rotate(&self, compute: &Compute, x: &mut [f32], norm: &[f32]) {
        compute.kernels.rms_norm_in_place(x, norm, self.eps);
        compute.kernels.rotate(x, &self.cos, &self.sin);
    }

    /// Rows whose keys are all in `kv`. A row's positions are cut at the same places whatever the batch or the threads.
    fn attend(&mut self, compute: &Compute, kv: &Kv, position: usize, q: &[f32], out: &mut [f32]) {
        let AttentionConfig { heads, kv_heads, head_dim: d, .. } = self.config;
        let (q_width, group) = (heads * 2 * d, heads / kv_heads);
        let scale = 1.0 / (d as f32).sqrt();
        self.tasks.clear();
        for row in 0..q.len() / q_width {
            for kv_head in 0..kv_heads {
                let segments = Attended::segments(position + row + 1);
                self.tasks.extend(segments.map(|positions| Task { row, kv_head, positions }));
            }
        }
        if self.parts.len() < self.tasks.len() {
            self.parts.resize_with(self.tasks.len(), || Attended::new(group, d));
        }
        let tasks = &self.tasks;
        compute.pool.for_each_chunk(&mut self.parts[..tasks.len()], 1, |i, part| {
            let Task { row, kv_head, positions } = &tasks[i];
            let q = &q[row * q_width + kv_head * group * 2 * d..];
            let kv = kv.head(kv_head * d, kv_heads * d);
            compute.kernels.attend(q, 2 * d, kv, positions.clone(), scale, &mut part[0]);
        });
        let parts = &self.parts;
        compute.pool.for_each_chunk(out, group * d, |i, out| {
            let (row, kv_head) = (i / kv_heads, i % kv_heads);
            // The parts of a row and key head lie together, rows before it have fewer.
            let segments = |row: usize| (position + row + 1).div_ceil(Attended::SEGMENT);
            let first = (0..row).map(segments).sum::<usize>() * kv_heads + kv_head * segments(row);
            compute.kernels.merge(&parts[first..first + segments(row)], out);
            for (h, out) in out.chunks_exact_mut(d).enumerate() {
                let gate = &q[row * q_width + ((kv_head * group + h) * 2 + 1) * d..][..d];
                compute.kernels.sigmoid_gate(gate, out);
            }
        });
    }
}

//! Gated softmax attention with grouped queries and partial rotary positions.

use std::ops::Range;

use spinetail_core::{AttentionConfig, ModelConfig};

use crate::compute::Compute;
use crate::kernels::{Attended, Queries};
use crate::sequence::Kv;
use crate::weights::AttentionWeights;

/// Rows that walk along a sequence's keys together, so that those come from the nearest cache for all but the first.
const ROWS: usize = 16;

/// Tasks for each thread: partial results are held for no more rows than that takes, which bounds their memory.
const TASKS: usize = 4;

/// Rotary frequencies, and memory that calls reuse.
pub(crate) struct Attention {
    config: AttentionConfig,
    eps: f32,
    /// `theta^(−2i / rotary_dims)`
    frequencies: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// By rows, then key heads, then positions; as the parts.
    tasks: Vec<Task>,
    parts: Vec<Attended>,
    /// The first task of each [`ROWS`] rows.
    firsts: Vec<usize>,
}

/// The queries of one key head at some rows, over one segment of positions.
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
            firsts: Vec::new(),
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
        let (n, mut row) = (out.len() / out_width, 0);
        while row < n {
            let segments = (position + row + 1).div_ceil(Attended::SEGMENT);
            let tiles = (TASKS * compute.pool.threads()).div_ceil(segments * kv_heads);
            let rows = row..n.min(row + tiles * ROWS);
            let (q, out) = (
                &q[rows.start * q_width..rows.end * q_width],
                &mut out[rows.start * out_width..rows.end * out_width],
            );
            self.attend(compute, kv, position + row, q, out);
            row = rows.end;
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
        let (scale, n) = (1.0 / (d as f32).sqrt(), q.len() / q_width);
        self.tasks.clear();
        self.firsts.clear();
        for row in (0..n).step_by(ROWS) {
            self.firsts.push(self.tasks.len());
            for kv_head in 0..kv_heads {
                let segments = Attended::segments(position + n.min(row + ROWS));
                self.tasks.extend(segments.map(|positions| Task { row, kv_head, positions }));
            }
        }
        if self.parts.len() < self.tasks.len() {
            self.parts.resize_with(self.tasks.len(), || Attended::new(group, d));
        }
        let tasks = &self.tasks;
        compute.pool.for_each_chunk(&mut self.parts[..tasks.len()], 1, |i, part| {
            let Task { row, kv_head, positions } = &tasks[i];
            part[0].resize(ROWS.min(n - row) * group);
            let queries = Queries {
                q: &q[row * q_width + kv_head * group * 2 * d..],
                heads: group,
                head_stride: 2 * d,
                row_stride: q_width,
                position: position + row,
            };
            let kv = kv.head(kv_head * d, kv_heads * d);
            compute.kernels.attend(queries, kv, positions.clone(), scale, &mut part[0]);
        });
        let (parts, firsts) = (&self.parts, &self.firsts);
        compute.pool.for_each_chunk(out, group * d, |i, out| {
            let (row, kv_head) = (i / kv_heads, i % kv_heads);
            // The last row of a tile may see a segment more than this one.
            let segments = |row: usize| (position + row + 1).div_ceil(Attended::SEGMENT);
            let of_tile = segments(n.min(row / ROWS * ROWS + ROWS) - 1);
            let parts = &parts[firsts[row / ROWS] + kv_head * of_tile..][..segments(row)];
            compute.kernels.merge(parts, row % ROWS * group, out);
            for (h, out) in out.chunks_exact_mut(d).enumerate() {
                let gate = &q[row * q_width + ((kv_head * group + h) * 2 + 1) * d..][..d];
                compute.kernels.sigmoid_gate(gate, out);
            }
        });
    }
}

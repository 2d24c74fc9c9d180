//! Gated softmax attention with grouped queries and partial rotary positions.

use std::ops::Range;

use spinetail_core::{AttentionConfig, ModelConfig};

use crate::compute::{ACTIVATION_ROWS, Compute};
use crate::kernels::{Attended, Queries};
use crate::sequence::Kv;
use crate::weights::AttentionWeights;

/// Rows that walk along a sequence's keys together, so that those come from the nearest cache for all but the first.
const ROWS: usize = 16;

/// Tasks for each thread: partial results are held for no more rows than that takes.
const TASKS: usize = 4;

/// The most that partial results take, unless those of one row take more: at long contexts fewer rows go together, which
/// costs little, since one row takes nearly as long per position as sixteen.
const HELD_BYTES: usize = 16 << 20;

/// Rotary frequencies, and memory that calls reuse.
pub(crate) struct Attention {
    config: AttentionConfig,
    eps: f32,
    /// `theta^(−2i / rotary_dims)`
    frequencies: Vec<f32>,
    /// By rows, then key heads, then positions; as the parts.
    tasks: Vec<Task>,
    /// Each has place for the queries of `part_rows` rows.
    parts: Vec<Attended>,
    part_rows: usize,
    /// The first task of each tile.
    firsts: Vec<usize>,
    /// [`HELD_BYTES`], but in tests.
    held_bytes: usize,
}

/// How many rows attend at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tiles {
    /// Rows of a tile, which walk along the keys together.
    rows: usize,
    /// Tiles whose partial results are held.
    count: usize,
}

impl Tiles {
    /// For rows that see up to `segments` segments.
    fn new(a: &AttentionConfig, segments: usize, threads: usize, held_bytes: usize) -> Self {
        let most = (held_bytes / (segments * a.kv_heads * part_bytes(a, 1))).max(1);
        let rows = ROWS.min(most);
        Self { rows, count: (TASKS * threads).div_ceil(segments * a.kv_heads).min(most / rows) }
    }
}

/// Bytes of the partial results of `rows` rows, one key head and one segment.
fn part_bytes(a: &AttentionConfig, rows: usize) -> usize {
    size_of::<Task>()
        + size_of::<Attended>()
        + rows * a.heads / a.kv_heads * (a.head_dim + 2) * size_of::<f32>()
}

/// The most bytes that partial results take in sequences of up to `context` positions.
pub(crate) fn scratch_bytes(a: &AttentionConfig, context: usize, threads: usize) -> usize {
    let held = |segments: usize| {
        let tiles = Tiles::new(a, segments, threads, HELD_BYTES);
        tiles.count * segments * a.kv_heads * part_bytes(a, tiles.rows)
    };
    (1..=context.div_ceil(Attended::SEGMENT)).map(held).max().unwrap_or(0)
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
            tasks: Vec::new(),
            parts: Vec::new(),
            part_rows: 0,
            firsts: Vec::new(),
            held_bytes: HELD_BYTES,
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
        let (q_width, kv_width) = (heads * 2 * d, kv_heads * d);
        let this = &*self;
        let rows = ((&mut *q, q_width * ACTIVATION_ROWS), (&mut *k, kv_width * ACTIVATION_ROWS));
        compute.pool.for_each_pair(rows.0, rows.1, |i, q, k| {
            let rows = q.chunks_exact_mut(q_width).zip(k.chunks_exact_mut(kv_width));
            for (position, (q, k)) in (position + i * ACTIVATION_ROWS..).zip(rows) {
                let (sin, cos) = this.turn(position);
                let norm_and_rotate = |x: &mut [f32], norm: &[f32]| {
                    compute.kernels.rms_norm_in_place(x, norm, this.eps);
                    compute.kernels.rotate(x, &cos, &sin);
                };
                q.chunks_exact_mut(2 * d).for_each(|q| norm_and_rotate(&mut q[..d], &w.q_norm));
                k.chunks_exact_mut(d).for_each(|k| norm_and_rotate(k, &w.k_norm));
            }
        });
        kv.push(&compute.kernels, k, v);
        self.attend_all(compute, kv, position, q, out);
    }

    /// Sines and cosines of a position's angles.
    fn turn(&self, position: usize) -> (Vec<f32>, Vec<f32>) {
        self.frequencies.iter().map(|f| (position as f32 * f).sin_cos()).unzip()
    }

    /// Rows whose keys are all in `kv`. A row's positions are cut at the same places whatever the batch or the threads.
    fn attend_all(&mut self, compute: &Compute, kv: &Kv, position: usize, q: &[f32], out: &mut [f32]) {
        let AttentionConfig { heads, head_dim: d, .. } = self.config;
        let n = out.len() / (heads * d);
        let segments = (position + n).div_ceil(Attended::SEGMENT).max(1);
        let Tiles { rows, count } =
            Tiles::new(&self.config, segments, compute.pool.threads(), self.held_bytes);
        let rows = rows.min(n).max(1);
        let pieces = q.chunks(count * rows * heads * 2 * d).zip(out.chunks_mut(count * rows * heads * d));
        for (i, (q, out)) in pieces.enumerate() {
            self.attend(compute, kv, position + i * count * rows, rows, q, out);
        }
    }

    /// Tiles of `tile` rows; the last one may have fewer.
    fn attend(
        &mut self,
        compute: &Compute,
        kv: &Kv,
        position: usize,
        tile: usize,
        q: &[f32],
        out: &mut [f32],
    ) {
        let AttentionConfig { heads, kv_heads, head_dim: d, .. } = self.config;
        let (q_width, group) = (heads * 2 * d, heads / kv_heads);
        let (scale, n) = (1.0 / (d as f32).sqrt(), q.len() / q_width);
        self.tasks.clear();
        self.firsts.clear();
        for row in (0..n).step_by(tile) {
            self.firsts.push(self.tasks.len());
            for kv_head in 0..kv_heads {
                let segments = Attended::segments(position + n.min(row + tile));
                self.tasks.extend(segments.map(|positions| Task { row, kv_head, positions }));
            }
        }
        // Parts that keep place for more rows than they are used for would add up to more than was reckoned.
        if self.part_rows != tile {
            (self.parts, self.part_rows) = (Vec::new(), tile);
        }
        if self.parts.len() < self.tasks.len() {
            self.parts.reserve_exact(self.tasks.len() - self.parts.len());
            self.parts.resize_with(self.tasks.len(), || Attended::new(tile * group, d));
        }
        let tasks = &self.tasks;
        compute.pool.for_each_chunk(&mut self.parts[..tasks.len()], 1, |i, part| {
            let Task { row, kv_head, positions } = &tasks[i];
            part[0].resize(tile.min(n - row) * group);
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
            let of_tile = segments(n.min(row / tile * tile + tile) - 1);
            let parts = &parts[firsts[row / tile] + kv_head * of_tile..][..segments(row)];
            compute.kernels.merge(parts, row % tile * group, out);
            for (h, out) in out.chunks_exact_mut(d).enumerate() {
                let gate = &q[row * q_width + ((kv_head * group + h) * 2 + 1) * d..][..d];
                compute.kernels.sigmoid_gate(gate, out);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::{CpuOptions, Precision};
    use crate::kernels::Isa;

    const SHAPE: AttentionConfig =
        AttentionConfig { heads: 4, kv_heads: 2, head_dim: 16, rotary_dims: 8, rope_theta: 1e4 };

    fn compute(threads: usize) -> Compute {
        Compute::new(&CpuOptions {
            threads: Some(threads),
            isa: Some(Isa::Scalar),
            precision: Precision::Exact,
        })
        .expect("a pool")
    }

    /// An attention of [`SHAPE`].
    fn attention(held_bytes: usize) -> Attention {
        Attention {
            config: SHAPE,
            eps: 1e-6,
            frequencies: Vec::new(),
            tasks: Vec::new(),
            parts: Vec::new(),
            part_rows: 0,
            firsts: Vec::new(),
            held_bytes,
        }
    }

    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.7).sin()).collect()
    }

    fn held(a: &Attention) -> usize {
        a.parts.capacity() * size_of::<Attended>() + a.parts.iter().map(Attended::bytes).sum::<usize>()
    }

    #[test]
    fn partial_results_take_what_was_reckoned_and_change_nothing() {
        let (heads, d) = (SHAPE.heads, SHAPE.head_dim);
        let width = SHAPE.kv_heads * d;
        // More than a segment in the first rows, and a third one begins amid them.
        let (position, n) = (1000, 40);
        let kv = Kv::F32 { keys: numbers((position + n) * width), values: numbers((position + n) * width) };
        let q = numbers(n * heads * 2 * d);
        let mut expected = vec![0.0; n * heads * d];
        let rows = q.chunks(heads * 2 * d).zip(expected.chunks_mut(heads * d));
        for (i, (q, out)) in rows.enumerate() {
            attention(HELD_BYTES).attend_all(&compute(1), &kv, position + i, q, out);
        }
        let one_row = 3 * SHAPE.kv_heads * part_bytes(&SHAPE, 1);
        for threads in [1, 3, 9] {
            let compute = compute(threads);
            for most in [1, 5 * one_row, 20 * one_row, HELD_BYTES] {
                let mut a = attention(most);
                for n in [n, 1, 7, n] {
                    let mut out = vec![0.0; n * heads * d];
                    a.attend_all(&compute, &kv, position, &q[..n * heads * 2 * d], &mut out);
                    assert_eq!(out, expected[..out.len()], "{n} rows, {threads} threads, {most} bytes");
                    assert!(held(&a) <= most.max(one_row), "{} bytes for {most}", held(&a));
                }
                let reckoned = scratch_bytes(&SHAPE, position + n, threads);
                assert!(held(&a) <= reckoned, "{} bytes, {reckoned} reckoned", held(&a));
                // With one thread a tile is all that is held, here as in what is reckoned.
                assert!(most < HELD_BYTES || threads > 1 || 2 * held(&a) >= reckoned, "{reckoned}: too much");
            }
        }
    }

    #[test]
    fn long_contexts_and_many_threads_take_no_more_than_the_limit_or_one_row() {
        let large =
            AttentionConfig { heads: 16, kv_heads: 2, head_dim: 256, rotary_dims: 64, rope_theta: 1e7 };
        assert!(scratch_bytes(&large, 4096, 2) < 3 << 20);
        assert!(scratch_bytes(&large, 32768, 2) <= HELD_BYTES);
        assert!(scratch_bytes(&large, 4096, 512) <= HELD_BYTES);
        let segments = 2048;
        let one_row = segments * large.kv_heads * part_bytes(&large, 1);
        assert!(one_row > HELD_BYTES);
        assert_eq!(scratch_bytes(&large, segments * Attended::SEGMENT, 16), one_row);
    }
}

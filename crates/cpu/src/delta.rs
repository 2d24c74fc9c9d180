//! Gated DeltaNet as a recurrence over tokens.

use spinetail_core::{DeltaConfig, ModelConfig};

use crate::compute::Compute;
use crate::sequence::DeltaState;
use crate::weights::DeltaWeights;

/// Rows of a head's state that are moved on together: 16 KiB of them at a key dimension of 128.
const STATE_ROWS: usize = 32;

/// Memory that calls reuse.
pub(crate) struct Delta {
    config: DeltaConfig,
    eps: f32,
    /// `[n, conv_channels]`: queries, keys and values after the convolution.
    mixed: Vec<f32>,
    /// `[value_heads, n, value_dim]`
    y: Vec<f32>,
}

/// What the input projections give: `[n, conv_channels]`, `[n, value_heads · value_dim]`, `[n, value_heads]` twice.
pub(crate) struct DeltaInputs<'a> {
    pub(crate) qkv: &'a [f32],
    pub(crate) z: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) a: &'a [f32],
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + eˣ)`, linear from where the exponential swallows the 1 in f32.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

impl Delta {
    pub(crate) fn new(c: &ModelConfig) -> Self {
        Self { config: c.delta, eps: c.rms_norm_eps as f32, mixed: Vec::new(), y: Vec::new() }
    }

    /// Consecutive rows of one sequence: convolution, recurrence of every head, gated norm. `out` is
    /// `[n, value_heads · value_dim]`.
    pub(crate) fn rows(
        &mut self,
        compute: &Compute,
        w: &DeltaWeights,
        state: &mut DeltaState,
        x: &DeltaInputs<'_>,
        out: &mut [f32],
    ) {
        let d = self.config;
        let (channels, keys, n) = (d.conv_channels(), d.key_channels(), x.qkv.len() / d.conv_channels());
        let kernels = compute.kernels;
        self.mixed.resize(n * channels, 0.0);
        for (qkv, mixed) in x.qkv.chunks_exact(channels).zip(self.mixed.chunks_exact_mut(channels)) {
            kernels.conv_silu(&w.conv1d, &mut state.conv, qkv, mixed);
            let (q, rest) = mixed.split_at_mut(keys);
            let q_scale = 1.0 / (d.key_dim as f32).sqrt();
            q.chunks_exact_mut(d.key_dim).for_each(|q| kernels.l2_norm_in_place(q, q_scale, 1e-6));
            rest[..keys].chunks_exact_mut(d.key_dim).for_each(|k| kernels.l2_norm_in_place(k, 1.0, 1e-6));
        }
        self.y.resize(n * d.value_channels(), 0.0);
        let (mixed, ratio) = (&self.mixed, d.value_heads / d.key_heads);
        let states = (&mut state.s[..], d.value_dim * d.key_dim);
        compute.pool.for_each_pair(states, (&mut self.y[..], n * d.value_dim), |h, s, y| {
            let decay_rate = -w.a_log[h].exp();
            let gates = (0..n).map(|t| {
                let (b, a) = (x.b[t * d.value_heads + h], x.a[t * d.value_heads + h]);
                ((decay_rate * softplus(a + w.dt_bias[h])).exp(), sigmoid(b))
            });
            let gates: Vec<(f32, f32)> = gates.collect();
            let at = |t: usize, start: usize, i: usize, width: usize| {
                &mixed[t * channels + start + i * width..][..width]
            };
            // Rows of the state have nothing to do with each other: some of them, which the first-level cache holds,
            // through all tokens, then the next.
            for (rows, s) in s.chunks_mut(STATE_ROWS * d.key_dim).enumerate() {
                let rows = rows * STATE_ROWS..rows * STATE_ROWS + s.len() / d.key_dim;
                for (t, y) in y.chunks_exact_mut(d.value_dim).enumerate() {
                    let (q, k) = (at(t, 0, h / ratio, d.key_dim), at(t, keys, h / ratio, d.key_dim));
                    let v = &at(t, 2 * keys, h, d.value_dim)[rows.clone()];
                    kernels.delta_step(s, [q, k, v], gates[t].0, gates[t].1, &mut y[rows.clone()]);
                }
            }
            for (t, y) in y.chunks_exact_mut(d.value_dim).enumerate() {
                kernels.rms_norm_in_place(y, &w.norm, self.eps);
                let z = &x.z[t * d.value_channels() + h * d.value_dim..][..d.value_dim];
                kernels.swiglu(z, y);
            }
        });
        for (h, y) in self.y.chunks_exact(n * d.value_dim).enumerate() {
            for (t, y) in y.chunks_exact(d.value_dim).enumerate() {
                out[t * d.value_channels() + h * d.value_dim..][..d.value_dim].copy_from_slice(y);
            }
        }
    }
}

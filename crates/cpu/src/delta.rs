//! Gated DeltaNet as a recurrence over tokens.

use spinetail_core::{DeltaConfig, ModelConfig};

use crate::math::{add_scaled, dot, l2_norm_in_place, rms_norm_in_place, sigmoid, silu, softplus};
use crate::sequence::DeltaState;
use crate::weights::DeltaWeights;

/// Memory that calls reuse.
pub(crate) struct Delta {
    config: DeltaConfig,
    eps: f32,
    /// `[conv_channels]`: queries, keys and values after the convolution.
    mixed: Vec<f32>,
}

impl Delta {
    pub(crate) fn new(c: &ModelConfig) -> Self {
        Self { config: c.delta, eps: c.rms_norm_eps as f32, mixed: vec![0.0; c.delta.conv_channels()] }
    }

    /// One row: convolution, recurrence of every head, gated norm.
    ///
    /// `qkv` is `[conv_channels]`, `z` and `out` `[value_heads · value_dim]`, `b` and `a` `[value_heads]`.
    pub(crate) fn row(
        &mut self,
        w: &DeltaWeights,
        state: &mut DeltaState,
        qkv: &[f32],
        z: &[f32],
        b: &[f32],
        a: &[f32],
        out: &mut [f32],
    ) {
        let d = self.config;
        convolve(&w.conv1d, d.conv_kernel, &mut state.conv, qkv, &mut self.mixed);
        let (q, rest) = self.mixed.split_at_mut(d.key_channels());
        let (k, v) = rest.split_at_mut(d.key_channels());
        q.chunks_exact_mut(d.key_dim).for_each(|q| l2_norm_in_place(q, 1.0 / (d.key_dim as f32).sqrt()));
        k.chunks_exact_mut(d.key_dim).for_each(|k| l2_norm_in_place(k, 1.0));
        let ratio = d.value_heads / d.key_heads;
        let states = state.s.chunks_exact_mut(d.value_dim * d.key_dim);
        for (h, (s, out)) in states.zip(out.chunks_exact_mut(d.value_dim)).enumerate() {
            let key = h / ratio * d.key_dim..(h / ratio + 1) * d.key_dim;
            let (q, k) = (&q[key.clone()], &k[key]);
            let v = &v[h * d.value_dim..(h + 1) * d.value_dim];
            let beta = sigmoid(b[h]);
            let decay = (-w.a_log[h].exp() * softplus(a[h] + w.dt_bias[h])).exp();
            for ((s, &v), y) in s.chunks_exact_mut(d.key_dim).zip(v).zip(out.iter_mut()) {
                s.iter_mut().for_each(|s| *s *= decay);
                let delta = beta * (v - dot(s, k));
                add_scaled(s, delta, k);
                *y = dot(s, q);
            }
            rms_norm_in_place(out, &w.norm, self.eps);
            for (y, &z) in out.iter_mut().zip(&z[h * d.value_dim..]) {
                *y *= silu(z);
            }
        }
    }
}

/// Causal depthwise convolution and SiLU of one token; `past` holds the `kernel − 1` inputs before it, oldest first,
/// and is moved on by one.
fn convolve(weights: &[f32], kernel: usize, past: &mut [f32], input: &[f32], out: &mut [f32]) {
    let channels = input.len();
    for (c, ((out, w), &x)) in out.iter_mut().zip(weights.chunks_exact(kernel)).zip(input).enumerate() {
        let mut sum = 0.0;
        for (t, w) in w[..kernel - 1].iter().enumerate() {
            sum += w * past[t * channels + c];
        }
        *out = silu(sum + w[kernel - 1] * x);
    }
    if kernel > 1 {
        past.copy_within(channels.., 0);
        let last = past.len() - channels;
        past[last..].copy_from_slice(input);
    }
}

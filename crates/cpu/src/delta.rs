//! Gated DeltaNet as a recurrence over tokens.

use spinetail_core::{DeltaConfig, ModelConfig};

use crate::aligned::Aligned;
use crate::compute::{ACTIVATION_ROWS, Compute};
use crate::kernels::Kernels;
use crate::sequence::DeltaState;
use crate::weights::DeltaWeights;

/// Rows of a head's state that are moved on together: 16 KiB of them at a key dimension of 128.
const STATE_ROWS: usize = 32;

/// Tokens whose queries, keys and values of a head are brought together for its state's rows to walk along: in the batch
/// they lie as far apart as pages do, all in the same few places of the first-level cache.
const NEAR_TOKENS: usize = 32;

/// Memory that calls reuse.
pub(crate) struct Delta {
    config: DeltaConfig,
    eps: f32,
    /// `[n, conv_channels]`: queries, keys and values after the convolution.
    mixed: Vec<f32>,
    /// Inputs of the convolution before a batch, and its first ones.
    seam: Vec<f32>,
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
        Self {
            config: c.delta,
            eps: c.rms_norm_eps as f32,
            mixed: Vec::new(),
            seam: Vec::new(),
            y: Vec::new(),
        }
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
        let n = x.qkv.len() / d.conv_channels();
        let kernels = compute.kernels;
        self.convolve(compute, &w.conv1d, &mut state.conv, x.qkv);
        self.y.resize(n * d.value_channels(), 0.0);
        let mixed = &self.mixed;
        let states = (&mut state.s[..], d.value_dim * d.key_dim);
        compute.pool.for_each_pair(states, (&mut self.y[..], n * d.value_dim), |h, s, y| {
            let decay_rate = -w.a_log[h].exp();
            let gates = (0..n).map(|t| {
                let (b, a) = (x.b[t * d.value_heads + h], x.a[t * d.value_heads + h]);
                ((decay_rate * softplus(a + w.dt_bias[h])).exp(), sigmoid(b))
            });
            let gates: Vec<(f32, f32)> = gates.collect();
            head(&kernels, &d, h, mixed, &gates, s, y);
            for (t, y) in y.chunks_exact_mut(d.value_dim).enumerate() {
                kernels.rms_norm_in_place(y, &w.norm, self.eps);
                let z = &x.z[t * d.value_channels() + h * d.value_dim..][..d.value_dim];
                kernels.swiglu(z, y);
            }
        });
        let (y, width) = (&self.y, d.value_channels());
        compute.pool.for_each_chunk(out, width * ACTIVATION_ROWS, |i, out| {
            for (t, out) in (i * ACTIVATION_ROWS..).zip(out.chunks_exact_mut(width)) {
                for (h, out) in out.chunks_exact_mut(d.value_dim).enumerate() {
                    out.copy_from_slice(&y[(h * n + t) * d.value_dim..][..d.value_dim]);
                }
            }
        });
    }

    /// `self.mixed` from the projected `qkv`: convolution, SiLU, and queries and keys of length 1. `past` are the inputs
    /// before them, and afterwards the last ones.
    fn convolve(&mut self, compute: &Compute, taps: &[f32], past: &mut [f32], qkv: &[f32]) {
        let d = self.config;
        let (channels, keys, kernels) = (d.conv_channels(), d.key_channels(), compute.kernels);
        let q_scale = 1.0 / (d.key_dim as f32).sqrt();
        // The first rows' pasts, which lie in both.
        self.seam.clear();
        if qkv.len() > channels {
            self.seam.extend_from_slice(past);
            self.seam.extend_from_slice(&qkv[..past.len().min(qkv.len())]);
        }
        self.mixed.resize(qkv.len(), 0.0);
        let (seam, before) = (&self.seam, &*past);
        compute.pool.for_each_chunk(&mut self.mixed, channels * ACTIVATION_ROWS, |i, mixed| {
            for (t, mixed) in (i * ACTIVATION_ROWS..).zip(mixed.chunks_exact_mut(channels)) {
                let (at, x) = (t * channels, &qkv[t * channels..][..channels]);
                let past = match at.checked_sub(before.len()) {
                    Some(first) => &qkv[first..at],
                    None if at == 0 => before,
                    None => &seam[at..at + before.len()],
                };
                kernels.conv_silu(taps, past, x, mixed);
                let (q, rest) = mixed.split_at_mut(keys);
                q.chunks_exact_mut(d.key_dim).for_each(|q| kernels.l2_norm_in_place(q, q_scale, 1e-6));
                rest[..keys].chunks_exact_mut(d.key_dim).for_each(|k| kernels.l2_norm_in_place(k, 1.0, 1e-6));
            }
        });
        let kept = past.len().saturating_sub(qkv.len());
        let len = past.len();
        past.copy_within(len - kept.., 0);
        past[kept..].copy_from_slice(&qkv[qkv.len() - (len - kept)..]);
    }
}

/// Bytes that the threads take for what they bring together.
pub(crate) fn scratch_bytes(d: &DeltaConfig, threads: usize) -> usize {
    threads * NEAR_TOKENS * (2 * d.key_dim + d.value_dim) * size_of::<f32>()
}

/// Moves the state `s` of value head `h` on through the tokens of `mixed`, `[n, conv_channels]`, with their decays and β.
/// `y` is `[n, value_dim]`.
fn head(
    kernels: &Kernels,
    d: &DeltaConfig,
    h: usize,
    mixed: &[f32],
    gates: &[(f32, f32)],
    s: &mut [f32],
    y: &mut [f32],
) {
    let (dk, dv, keys) = (d.key_dim, d.value_dim, d.key_channels());
    let key_head = h / (d.value_heads / d.key_heads);
    let parts = [(key_head * dk, dk), (keys + key_head * dk, dk), (2 * keys + h * dv, dv)];
    if let ([(decay, beta)], [q, k, v]) = (gates, parts.map(|(at, width)| &mixed[at..at + width])) {
        return kernels.delta_step(s, [q, k, v], *decay, *beta, y);
    }
    let width = 2 * dk + dv;
    let mut near = Aligned::zeroed(NEAR_TOKENS.min(gates.len()) * width);
    let tiles = mixed.chunks(NEAR_TOKENS * d.conv_channels()).zip(gates.chunks(NEAR_TOKENS));
    for ((mixed, gates), y) in tiles.zip(y.chunks_mut(NEAR_TOKENS * dv)) {
        for (row, mut near) in mixed.chunks_exact(d.conv_channels()).zip(near.chunks_exact_mut(width)) {
            for (at, width) in parts {
                let (to, rest) = near.split_at_mut(width);
                to.copy_from_slice(&row[at..at + width]);
                near = rest;
            }
        }
        // Rows of the state have nothing to do with each other: some of them, which the first-level cache holds, through
        // these tokens, then the next.
        for (rows, s) in s.chunks_mut(STATE_ROWS * dk).enumerate() {
            let rows = rows * STATE_ROWS..rows * STATE_ROWS + s.len() / dk;
            let tokens = near.chunks_exact(width).zip(gates).zip(y.chunks_exact_mut(dv));
            for ((x, &(decay, beta)), y) in tokens {
                let (q, x) = x.split_at(dk);
                let (k, v) = x.split_at(dk);
                kernels.delta_step(s, [q, k, &v[rows.clone()]], decay, beta, &mut y[rows.clone()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::{CpuOptions, Precision};
    use crate::kernels::Isa;

    /// Of the chunked form's blocks and of [`NEAR_TOKENS`]: at, below and above.
    const LENGTHS: [usize; 13] = [1, 2, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 1000];

    /// More state rows than [`STATE_ROWS`], and a last few of them.
    const SHAPE: DeltaConfig =
        DeltaConfig { key_heads: 1, value_heads: 2, key_dim: 24, value_dim: 40, conv_kernel: 4 };

    /// What a head's decays and β are like.
    #[derive(Debug, Clone, Copy)]
    enum Gates {
        /// As a trained model's.
        Mild,
        /// No decay: all is kept for ever.
        Keeping,
        /// `e^−30` and less: in a block of 64 the products of such decays are no number in f32.
        Forgetting,
        /// Nothing is written, and everything replaced, by turns, with any decay.
        Switching,
    }

    struct Numbers(u64);

    impl Numbers {
        /// The next number in −1..1.
        fn next(&mut self) -> f32 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
        }

        fn gate(&mut self, kind: Gates, t: usize) -> (f32, f32) {
            let (a, b) = (self.next().abs(), 0.5 + 0.5 * self.next());
            match kind {
                Gates::Mild => ((-0.1 * a).exp(), b),
                Gates::Keeping => (1.0, b),
                Gates::Forgetting => ((-30.0 - 60.0 * a).exp(), b),
                Gates::Switching => ([1.0, 0.0, a][t % 3], [0.0, 1.0][t % 2]),
            }
        }

        /// `[n, conv_channels]`, keys of length 1 as they come from the norm.
        fn mixed(&mut self, n: usize) -> Vec<f32> {
            let mut mixed: Vec<f32> = (0..n * SHAPE.conv_channels()).map(|_| self.next()).collect();
            for row in mixed.chunks_exact_mut(SHAPE.conv_channels()) {
                let k = &mut row[SHAPE.key_channels()..2 * SHAPE.key_channels()];
                let length = k.iter().map(|x| x * x).sum::<f32>().sqrt();
                k.iter_mut().for_each(|x| *x /= length);
            }
            mixed
        }
    }

    /// However a sequence is cut, its rows meet the same three before them.
    #[test]
    fn convolving_many_rows_is_convolving_one_by_one() {
        let (channels, mut r) = (SHAPE.conv_channels(), Numbers(7));
        let options = CpuOptions { threads: Some(3), isa: None, precision: Precision::Exact };
        let compute = Compute::new(&options).expect("a pool");
        let taps: Vec<f32> = (0..4 * channels).map(|_| r.next()).collect();
        let start: Vec<f32> = (0..3 * channels).map(|_| r.next()).collect();
        let qkv: Vec<f32> = (0..50 * channels).map(|_| r.next()).collect();
        let run = |cut: &dyn Fn(usize) -> usize| {
            let mut delta =
                Delta { config: SHAPE, eps: 1e-6, mixed: Vec::new(), seam: Vec::new(), y: Vec::new() };
            let (mut past, mut rest, mut out) = (start.clone(), &qkv[..], Vec::new());
            for i in 0.. {
                let (these, later) = rest.split_at((cut(i) * channels).min(rest.len()));
                delta.convolve(&compute, &taps, &mut past, these);
                out.extend_from_slice(&delta.mixed);
                if later.is_empty() {
                    break;
                }
                rest = later;
            }
            assert_eq!(past, qkv[47 * channels..]);
            out
        };
        let expected = run(&|_| 1);
        assert_eq!(expected.len(), qkv.len());
        for cut in [2, 3, 4, 5, 8, 9, 17, 49, 50] {
            assert!(run(&|_| cut) == expected, "by {cut}");
        }
        assert!(run(&|i| 1 + i % 5) == expected);
    }

    /// The recurrence in f64: the second value head's outputs; moves `s` on.
    fn oracle(mixed: &[f32], gates: &[(f32, f32)], s: &mut [f64]) -> Vec<f64> {
        let (dk, dv) = (SHAPE.key_dim, SHAPE.value_dim);
        let mut y = Vec::new();
        for (row, &(decay, beta)) in mixed.chunks_exact(SHAPE.conv_channels()).zip(gates) {
            let wide =
                |at: usize, n: usize| row[at..at + n].iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let (q, k, v) = (wide(0, dk), wide(dk, dk), wide(2 * dk + dv, dv));
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            for (s, v) in s.chunks_exact_mut(dk).zip(v) {
                s.iter_mut().for_each(|s| *s *= f64::from(decay));
                let change = f64::from(beta) * (v - dot(s, &k));
                s.iter_mut().zip(&k).for_each(|(s, k)| *s += change * k);
                y.push(dot(s, &q));
            }
        }
        y
    }

    #[test]
    fn many_tokens_are_the_recurrence_at_every_length() {
        let (dv, channels) = (SHAPE.value_dim, SHAPE.conv_channels());
        for kind in [Gates::Mild, Gates::Keeping, Gates::Forgetting, Gates::Switching] {
            for n in LENGTHS {
                let mut r = Numbers(n as u64);
                let carried: Vec<f32> = (0..dv * SHAPE.key_dim).map(|_| r.next()).collect();
                let mixed = r.mixed(n);
                let gates: Vec<_> = (0..n).map(|t| r.gate(kind, t)).collect();
                let mut exact: Vec<f64> = carried.iter().map(|&x| x.into()).collect();
                let expected = oracle(&mixed, &gates, &mut exact);
                for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
                    let what = format!("{kind:?}, {n} tokens, {}", kernels.isa());
                    let (mut s, mut y) = (carried.clone(), vec![0.0; n * dv]);
                    head(&kernels, &SHAPE, 1, &mixed, &gates, &mut s, &mut y);
                    let (mut one_s, mut one_y) = (carried.clone(), vec![0.0; n * dv]);
                    let tokens = mixed.chunks_exact(channels).zip(gates.chunks(1));
                    for ((x, gate), y) in tokens.zip(one_y.chunks_exact_mut(dv)) {
                        head(&kernels, &SHAPE, 1, x, gate, &mut one_s, y);
                    }
                    assert!(s == one_s && y == one_y, "{what}: other bytes than token by token");
                    // A step rounds each element some 50 times by 6e-8 at most, and a key of length 1 with β up to 1
                    // lets no error of the state grow: 1000 steps of values up to 1 stay below 50 · 1000 · 6e-8, were
                    // all roundings one way; at random they are a hundredth of that.
                    let far = |found: &[f32], exact: &[f64]| {
                        let apart = found.iter().zip(exact).map(|(f, e)| (f64::from(*f) - e).abs());
                        apart.fold(0.0, |a: f64, b| if b <= a { a } else { b })
                    };
                    assert!(far(&y, &expected) < 1e-4, "{what}: outputs are {:e} off", far(&y, &expected));
                    assert!(far(&s, &exact) < 1e-4, "{what}: the state is {:e} off", far(&s, &exact));
                }
            }
        }
    }
}

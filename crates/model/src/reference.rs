//! The model written for reading: one token after another, one number after another, nothing fused or reused.
//!
//! Weights are dequantized to f32 when they are needed; the products of matrices and vectors are summed in f64 and rounded
//! once, so that this is closer to the exact result than the engines it is compared with. It is far too slow for anything but small
//! models, and is what backends are tested against.
//!
//! Sources of the formulas: `modeling_qwen3_next.py` and `modeling_qwen3_5_moe.py` in transformers, and "Gated Delta
//! Networks" (Yang et al., 2024) for the recurrence.

use spinetail_core::{
    ExpertId, LayerKind, ModelConfig, ModelSource, Part, Projection, ReadError, TensorLayout, TensorSpec,
    dequantize_row,
};

/// What a layer computes on the way, each `[tokens, …]`.
#[derive(Debug, Clone, Default)]
pub struct LayerTaps {
    /// `[tokens, hidden]`: the input after the first norm.
    pub input_norm: Vec<Vec<f32>>,
    /// `[tokens, hidden]`: what attention or DeltaNet adds to the residual stream.
    pub mixer: Vec<Vec<f32>>,
    /// `[tokens, top_k]`: the experts chosen, ascending.
    pub router_ids: Vec<Vec<u16>>,
    /// `[tokens, top_k]`: their weights.
    pub router_weights: Vec<Vec<f32>>,
    /// `[tokens, hidden]`: the layer's output.
    pub output: Vec<Vec<f32>>,
}

/// The reference model over a source of weights.
pub struct Reference<'s> {
    source: &'s dyn ModelSource,
    config: ModelConfig,
}

/// A matrix in f32, `[rows, columns]`.
struct Matrix {
    rows: Vec<Vec<f32>>,
}

impl Matrix {
    /// `y = W x`.
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        self.rows.iter().map(|row| dot(row, x)).collect()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32
}

fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `ln(1 + eˣ)`, linear where the exponential would swallow the 1, as torch does it.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `x / sqrt(mean(x²) + eps) · w`
fn rms_norm(x: &[f32], w: &[f32], eps: f64) -> Vec<f32> {
    let mean = f64::from(dot(x, x)) / x.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter().zip(w).map(|(&x, &w)| (f64::from(x) * scale) as f32 * w).collect()
}

/// `x / sqrt(Σx² + 1e-6)`
fn l2_norm(x: &[f32]) -> Vec<f32> {
    let scale = 1.0 / (f64::from(dot(x, x)) + 1e-6).sqrt();
    x.iter().map(|&x| (f64::from(x) * scale) as f32).collect()
}

impl<'s> Reference<'s> {
    /// The reference over `source`.
    pub fn new(source: &'s dyn ModelSource) -> Self {
        Self { source, config: source.config().clone() }
    }

    fn matrix(&self, name: &str) -> Result<Matrix, ReadError> {
        let unknown = || ReadError::Unknown { what: format!("tensor {name}") };
        let spec = self.source.dense_spec(name).ok_or_else(unknown)?;
        let mut parts = [Vec::new(), Vec::new(), Vec::new()];
        for &part in spec.parts() {
            let bytes = &mut parts[part as usize];
            bytes.resize(spec.part_bytes(part), 0);
            self.source.read_dense(name, part, bytes)?;
        }
        Ok(dequantize(spec, &parts[0], &parts[1], &parts[2]))
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, ReadError> {
        Ok(self.matrix(name)?.rows.concat())
    }

    /// `[tokens, hidden]`: the rows of the embedding.
    pub fn embed(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, ReadError> {
        let table = self.matrix("embed_tokens")?;
        Ok(tokens.iter().map(|&t| table.rows[t as usize].clone()).collect())
    }

    /// Runs layer `n` over a whole sequence that starts at position 0. `x` is `[tokens, hidden]`.
    pub fn layer(&self, n: usize, x: &[Vec<f32>]) -> Result<LayerTaps, ReadError> {
        let p = format!("layers.{n}");
        let eps = self.config.rms_norm_eps;
        let norm = self.vector(&format!("{p}.input_layernorm"))?;
        let mut taps = LayerTaps {
            input_norm: x.iter().map(|x| rms_norm(x, &norm, eps)).collect(),
            ..Default::default()
        };
        taps.mixer = match self.config.layers[n] {
            LayerKind::Attention => self.attention(&format!("{p}.self_attn"), &taps.input_norm)?,
            LayerKind::Delta => self.delta_net(&format!("{p}.linear_attn"), &taps.input_norm)?,
        };
        let post_norm = self.vector(&format!("{p}.post_attention_layernorm"))?;
        for (x, mixer) in x.iter().zip(&taps.mixer) {
            let x = add(x, mixer);
            let h = rms_norm(&x, &post_norm, eps);
            let (ids, weights) = self.route(&p, &h)?;
            let moe = self.experts(n, &p, &h, &ids, &weights)?;
            taps.output.push(add(&x, &moe));
            taps.router_ids.push(ids);
            taps.router_weights.push(weights);
        }
        Ok(taps)
    }

    /// `[tokens, vocab]`: final norm and head over the last layer's output.
    pub fn head(&self, x: &[Vec<f32>]) -> Result<Vec<Vec<f32>>, ReadError> {
        let norm = self.vector("norm")?;
        let head = self.matrix(if self.config.tied_embeddings { "embed_tokens" } else { "lm_head" })?;
        Ok(x.iter().map(|x| head.apply(&rms_norm(x, &norm, self.config.rms_norm_eps))).collect())
    }

    /// `[tokens, vocab]`: the logits of a whole sequence.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, ReadError> {
        let mut x = self.embed(tokens)?;
        for n in 0..self.config.layers.len() {
            x = self.layer(n, &x)?.output;
        }
        self.head(&x)
    }

    /// Gated softmax attention over a whole sequence. `x` is normed, `[tokens, hidden]`.
    fn attention(&self, p: &str, x: &[Vec<f32>]) -> Result<Vec<Vec<f32>>, ReadError> {
        let a = self.config.attention;
        let (q_proj, k_proj) = (self.matrix(&format!("{p}.q_proj"))?, self.matrix(&format!("{p}.k_proj"))?);
        let (v_proj, o_proj) = (self.matrix(&format!("{p}.v_proj"))?, self.matrix(&format!("{p}.o_proj"))?);
        let (q_norm, k_norm) = (self.vector(&format!("{p}.q_norm"))?, self.vector(&format!("{p}.k_norm"))?);
        let (d, eps) = (a.head_dim, self.config.rms_norm_eps);
        // keys and values [tokens][kv_heads][head_dim]
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut out = Vec::new();
        for (position, x) in x.iter().enumerate() {
            let (q, k, v) = (q_proj.apply(x), k_proj.apply(x), v_proj.apply(x));
            let k: Vec<_> = k.chunks(d).map(|k| self.rope(&rms_norm(k, &k_norm, eps), position)).collect();
            keys.push(k);
            values.push(v.chunks(d).map(<[f32]>::to_vec).collect::<Vec<_>>());
            let mut gated = Vec::new();
            // q_proj gives, per head, the query and then the output gate.
            for (head, q) in q.chunks(2 * d).enumerate() {
                let (q, gate) = q.split_at(d);
                let q = self.rope(&rms_norm(q, &q_norm, eps), position);
                let kv = head / (a.heads / a.kv_heads);
                let scores: Vec<f64> =
                    keys.iter().map(|k| f64::from(dot(&q, &k[kv])) / (d as f64).sqrt()).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let exps: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = exps.iter().sum();
                for (i, &g) in gate.iter().enumerate() {
                    let y: f64 = exps.iter().zip(&values).map(|(e, v)| e / sum * f64::from(v[kv][i])).sum();
                    gated.push(y as f32 * sigmoid(g));
                }
            }
            out.push(o_proj.apply(&gated));
        }
        Ok(out)
    }

    /// Rotates the first `rotary_dims` of a head, halves paired.
    fn rope(&self, x: &[f32], position: usize) -> Vec<f32> {
        let a = self.config.attention;
        let half = a.rotary_dims / 2;
        let mut y = x.to_vec();
        for i in 0..half {
            let frequency = a.rope_theta.powf(-2.0 * i as f64 / a.rotary_dims as f64) as f32;
            let (sin, cos) = (position as f32 * frequency).sin_cos();
            y[i] = x[i] * cos - x[i + half] * sin;
            y[i + half] = x[i + half] * cos + x[i] * sin;
        }
        y
    }

    /// Gated DeltaNet over a whole sequence, as a recurrence over tokens. `x` is normed, `[tokens, hidden]`.
    fn delta_net(&self, p: &str, x: &[Vec<f32>]) -> Result<Vec<Vec<f32>>, ReadError> {
        let d = self.config.delta;
        let (qkv_proj, z_proj) =
            (self.matrix(&format!("{p}.in_proj_qkv"))?, self.matrix(&format!("{p}.in_proj_z"))?);
        let (b_proj, a_proj) =
            (self.matrix(&format!("{p}.in_proj_b"))?, self.matrix(&format!("{p}.in_proj_a"))?);
        let (conv, out_proj) = (self.vector(&format!("{p}.conv1d"))?, self.matrix(&format!("{p}.out_proj"))?);
        let (a_log, dt_bias) = (self.vector(&format!("{p}.A_log"))?, self.vector(&format!("{p}.dt_bias"))?);
        let norm = self.vector(&format!("{p}.norm"))?;
        let (key_channels, ratio) = (d.key_channels(), d.value_heads / d.key_heads);
        // What the convolution sees of each token so far, [tokens][conv_channels].
        let mut conv_inputs: Vec<Vec<f32>> = Vec::new();
        // One state per value head, [value_dim][key_dim].
        let mut states = vec![vec![vec![0f32; d.key_dim]; d.value_dim]; d.value_heads];
        let mut out = Vec::new();
        for x in x {
            conv_inputs.push(qkv_proj.apply(x));
            let (z, b, a) = (z_proj.apply(x), b_proj.apply(x), a_proj.apply(x));
            let mixed: Vec<f32> = (0..d.conv_channels())
                .map(|c| silu(causal_conv(&conv, d.conv_kernel, &conv_inputs, c)))
                .collect();
            let mut y = Vec::new();
            for (h, state) in states.iter_mut().enumerate() {
                let head = |at: usize, i: usize, n: usize| &mixed[at + i * n..at + (i + 1) * n];
                let q = l2_norm(head(0, h / ratio, d.key_dim));
                let k = l2_norm(head(key_channels, h / ratio, d.key_dim));
                let v = head(2 * key_channels, h, d.value_dim);
                let q: Vec<f32> = q.iter().map(|q| q / (d.key_dim as f32).sqrt()).collect();
                let beta = sigmoid(b[h]);
                let decay = (-a_log[h].exp() * softplus(a[h] + dt_bias[h])).exp();
                let heads_y = delta_step(state, &q, &k, v, beta, decay);
                let gate = &z[h * d.value_dim..(h + 1) * d.value_dim];
                let normed = rms_norm(&heads_y, &norm, self.config.rms_norm_eps);
                y.extend(normed.iter().zip(gate).map(|(&y, &z)| y * silu(z)));
            }
            out.push(out_proj.apply(&y));
        }
        Ok(out)
    }

    /// The chosen experts, ascending, and their weights. `h` is normed, `[hidden]`.
    fn route(&self, p: &str, h: &[f32]) -> Result<(Vec<u16>, Vec<f32>), ReadError> {
        let m = self.config.moe;
        let logits = self.matrix(&format!("{p}.mlp.gate"))?.apply(h);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exps: Vec<f64> = logits.iter().map(|&l| f64::from(l - max).exp()).collect();
        let sum: f64 = exps.iter().sum();
        let mut order: Vec<usize> = (0..m.experts).collect();
        order.sort_by(|&a, &b| exps[b].total_cmp(&exps[a]).then(a.cmp(&b)));
        order.truncate(m.top_k);
        order.sort_unstable();
        let chosen: f64 = order.iter().map(|&e| exps[e] / sum).sum();
        let scale = if m.norm_topk { chosen } else { 1.0 };
        let weights = order.iter().map(|&e| (exps[e] / sum / scale) as f32).collect();
        Ok((order.iter().map(|&e| e as u16).collect(), weights))
    }

    /// The routed experts and the gated shared one. `h` is normed, `[hidden]`.
    fn experts(
        &self,
        n: usize,
        p: &str,
        h: &[f32],
        ids: &[u16],
        weights: &[f32],
    ) -> Result<Vec<f32>, ReadError> {
        let mut sum = vec![0.0; h.len()];
        for (&expert, &weight) in ids.iter().zip(weights) {
            let [gate, up, down] = self.expert_matrices(ExpertId { layer: n as u16, expert })?;
            for (s, y) in sum.iter_mut().zip(swiglu(&gate, &up, &down, h)) {
                *s += weight * y;
            }
        }
        let matrix = |name: &str| self.matrix(&format!("{p}.mlp.shared_expert.{name}_proj"));
        let shared = swiglu(&matrix("gate")?, &matrix("up")?, &matrix("down")?, h);
        let gate = sigmoid(self.matrix(&format!("{p}.mlp.shared_expert_gate"))?.apply(h)[0]);
        for (s, y) in sum.iter_mut().zip(shared) {
            *s += gate * y;
        }
        Ok(sum)
    }

    fn expert_matrices(&self, id: ExpertId) -> Result<[Matrix; 3], ReadError> {
        let unknown = || ReadError::Unknown { what: id.to_string() };
        let layout = self.source.record_layout(id.layer).ok_or_else(unknown)?;
        let mut record = vec![0; layout.bytes as usize];
        self.source.read_record(id, &mut record)?;
        Ok(Projection::ALL.map(|p| dequantize_layout(layout.get(p), &record)))
    }
}

fn dequantize(spec: &TensorSpec, weight: &[u8], scales: &[u8], biases: &[u8]) -> Matrix {
    let row = |r| {
        let mut row = vec![0.0; spec.columns()];
        dequantize_row(spec, weight, scales, biases, r, &mut row);
        row
    };
    Matrix { rows: (0..spec.rows()).map(row).collect() }
}

fn dequantize_layout(layout: &TensorLayout, base: &[u8]) -> Matrix {
    let [weight, scales, biases] = Part::ALL.map(|p| layout.slice(base, p));
    dequantize(&layout.spec, weight, scales, biases)
}

/// `down(silu(gate(x)) ⊙ up(x))`
fn swiglu(gate: &Matrix, up: &Matrix, down: &Matrix, x: &[f32]) -> Vec<f32> {
    let h: Vec<f32> = gate.apply(x).iter().zip(up.apply(x)).map(|(&g, u)| silu(g) * u).collect();
    down.apply(&h)
}

/// Channel `c` of the depthwise convolution at the last token: the last tap falls on that token, tokens before the
/// first count as zero.
fn causal_conv(weights: &[f32], kernel: usize, inputs: &[Vec<f32>], c: usize) -> f32 {
    let mut sum = 0f64;
    for back in 0..kernel.min(inputs.len()) {
        let input = inputs[inputs.len() - 1 - back][c];
        sum += f64::from(input) * f64::from(weights[c * kernel + kernel - 1 - back]);
    }
    sum as f32
}

/// `S ← g·S; S ← S + β(v − S·k) ⊗ k; y = S·q`, with S `[value_dim][key_dim]`.
fn delta_step(state: &mut [Vec<f32>], q: &[f32], k: &[f32], v: &[f32], beta: f32, decay: f32) -> Vec<f32> {
    let mut y = Vec::new();
    for (s, &v) in state.iter_mut().zip(v) {
        s.iter_mut().for_each(|s| *s *= decay);
        let delta = beta * (v - dot(s, k));
        s.iter_mut().zip(k).for_each(|(s, &k)| *s += delta * k);
        y.push(dot(s, q));
    }
    y
}

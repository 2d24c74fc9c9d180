//! A small random model, written out in any naming.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use spinetail_checkpoint::quantize::{Quantized, quantize_rows};
use spinetail_core::{
    Affine, AttentionConfig, DType, DeltaConfig, Family, LayerKind, ModelConfig, MoeConfig, Role,
    dense_specs, mtp_prefix,
};

use super::{Raw, write_safetensors};

/// How experts are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Experts {
    Unfused,
    Fused,
    Stacked,
}

/// A naming and a convention.
#[derive(Debug, Clone)]
pub struct Form {
    /// Before `layers.` and `embed_tokens`.
    pub prefix: &'static str,
    /// Before `lm_head` and `mtp`.
    pub outside: &'static str,
    pub experts: Experts,
    /// DeltaNet inputs interleaved per key head.
    pub packed: bool,
    /// The 1 added to norms, conv1d with the channel last.
    pub mlx: bool,
    pub nested: bool,
    pub dtype: DType,
    /// Default bits and group; routers get 8.
    pub bits: Option<(u8, usize)>,
    /// Before vision tensors; none if empty.
    pub vision: &'static str,
}

pub const HF_NEXT: Form = Form {
    prefix: "model.",
    outside: "",
    experts: Experts::Unfused,
    packed: true,
    mlx: false,
    nested: false,
    dtype: DType::F32,
    bits: None,
    vision: "",
};
pub const HF_35: Form = Form {
    prefix: "model.language_model.",
    experts: Experts::Fused,
    packed: false,
    nested: true,
    vision: "model.visual.",
    ..HF_NEXT
};
pub const MLX_NEXT: Form = Form { experts: Experts::Stacked, mlx: true, ..HF_NEXT };
pub const MLX_35: Form = Form {
    prefix: "language_model.model.",
    outside: "language_model.",
    packed: false,
    nested: true,
    vision: "vision_tower.",
    ..MLX_NEXT
};

/// A shape in which every dimension differs where it may, and groups of 32 divide all rows.
pub fn shape(family: Family) -> ModelConfig {
    use LayerKind::{Attention, Delta};
    ModelConfig {
        family,
        hidden: 64,
        vocab: 40,
        layers: vec![Delta, Attention, Delta],
        attention: AttentionConfig { heads: 4, kv_heads: 2, head_dim: 24, rotary_dims: 6, rope_theta: 1e4 },
        delta: DeltaConfig { key_heads: 2, value_heads: 4, key_dim: 12, value_dim: 8, conv_kernel: 4 },
        moe: MoeConfig { experts: 3, top_k: 2, intermediate: 32, shared_intermediate: 96, norm_topk: true },
        rms_norm_eps: 1e-6,
        tied_embeddings: false,
        max_positions: 512,
        mtp_layers: 1,
    }
}

fn random(name: &str, n: usize) -> Vec<f32> {
    let mut state =
        name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Multiples of 1/64: every 16-bit type holds them, and 1 more.
            ((state >> 40) as i32 % 64) as f32 / 64.0 * if state >> 63 == 0 { 1.0 } else { -1.0 }
        })
        .collect()
}

fn is_centred(name: &str) -> bool {
    name.ends_with("norm") && !name.ends_with("linear_attn.norm") || name.contains("pre_fc_norm")
}

/// The canonical tensors as the form stores them before quantization: norms have their 1.
pub fn canonical(c: &ModelConfig) -> BTreeMap<String, Vec<f32>> {
    let mut out = BTreeMap::new();
    for d in dense_specs(c) {
        let mut v = random(&d.name, d.shape.iter().product());
        if is_centred(&d.name) {
            v.iter_mut().for_each(|x| *x += 1.0);
        }
        out.insert(d.name, v);
    }
    for layer in 0..c.expert_layers() {
        for e in 0..c.moe.experts {
            for p in ["gate_proj", "up_proj", "down_proj"] {
                let name = format!("{layer}.{e}.{p}");
                out.insert(name.clone(), random(&name, c.moe.intermediate * c.hidden));
            }
        }
    }
    out
}

struct Out<'a> {
    form: &'a Form,
    tensors: BTreeMap<String, Raw>,
}

impl Out<'_> {
    fn plain(&mut self, name: String, shape: &[usize], values: &[f32]) {
        let mut bytes = Vec::new();
        values.iter().for_each(|&v| self.form.dtype.put(v, &mut bytes));
        self.tensors.insert(name, (self.form.dtype.safetensors_name(), shape.to_vec(), bytes));
    }

    /// A matrix or a stack of them; `module` has no `.weight`.
    fn matrix(&mut self, module: &str, suffix: &str, shape: &[usize], values: &[f32], sensitive: bool) {
        let Some((bits, group_size)) = self.form.bits else {
            return self.plain(format!("{module}{suffix}"), shape, values);
        };
        let dtype = self.form.dtype;
        let affine = Affine { bits: if sensitive { 8 } else { bits }, group_size, scales: dtype };
        let columns = shape[shape.len() - 1];
        let mut rows = Vec::new();
        values.iter().for_each(|&v| dtype.put(v, &mut rows));
        let mut q = Quantized::default();
        quantize_rows(columns, dtype, affine, &rows, &mut q).unwrap();
        let with = |last: usize| [&shape[..shape.len() - 1], &[last]].concat();
        let [weight, scales, biases] = q.parts;
        let kind = dtype.safetensors_name();
        let words = with(columns * usize::from(affine.bits) / 32);
        self.tensors.insert(format!("{module}.weight"), ("U32", words, weight));
        self.tensors.insert(format!("{module}.scales"), (kind, with(columns / group_size), scales));
        self.tensors.insert(format!("{module}.biases"), (kind, with(columns / group_size), biases));
    }
}

/// The tensors of a checkpoint.
pub fn encode(c: &ModelConfig, form: &Form) -> BTreeMap<String, Raw> {
    let all = canonical(c);
    let mut out = Out { form, tensors: BTreeMap::new() };
    let place = |name: &str| {
        let prefix =
            if name.starts_with("mtp") || name.starts_with("lm_head") { form.outside } else { form.prefix };
        format!("{prefix}{name}")
    };
    for d in dense_specs(c) {
        let mut v = all[&d.name].clone();
        if !form.mlx && is_centred(&d.name) {
            v.iter_mut().for_each(|x| *x -= 1.0);
        }
        let name = place(&d.name);
        if form.packed && d.name.contains(".in_proj_") {
            continue;
        }
        if d.name.ends_with("conv1d") {
            let [channels, taps] = d.shape[..] else { panic!() };
            let shape = if form.mlx { [channels, taps, 1] } else { [channels, 1, taps] };
            out.plain(format!("{name}.weight"), &shape, &v);
        } else if d.name.ends_with("A_log") || d.name.ends_with("dt_bias") {
            out.plain(name, &d.shape, &v);
        } else if d.role == Role::Vector {
            out.plain(format!("{name}.weight"), &d.shape, &v);
        } else {
            out.matrix(&name, ".weight", &d.shape, &v, d.role == Role::Sensitive);
        }
    }
    if form.packed {
        for i in (0..c.layers.len()).filter(|&i| c.layers[i] == LayerKind::Delta) {
            pack(c, &all, &format!("layers.{i}.linear_attn"), &place(""), &mut out);
        }
    }
    let layers = (0..c.layers.len()).map(|i| format!("layers.{i}")).chain((0..c.mtp_layers).map(mtp_prefix));
    for (i, layer) in layers.enumerate() {
        experts(c, &all, i, &place(&format!("{layer}.mlp")), &mut out);
    }
    if !form.vision.is_empty() {
        out.tensors.insert(format!("{}blocks.0.x", form.vision), ("I8", vec![3], vec![1, 2, 3]));
    }
    out.tensors
}

/// Interleaves per key head, one row at a time, straight from the description.
fn pack(c: &ModelConfig, all: &BTreeMap<String, Vec<f32>>, block: &str, prefix: &str, out: &mut Out<'_>) {
    let (d, h) = (&c.delta, c.hidden);
    let r = d.value_heads / d.key_heads;
    let part = |p: &str| &all[&format!("{block}.{p}")];
    let row = |p: &str, i: usize| part(p)[i * h..(i + 1) * h].to_vec();
    let (mut qkvz, mut ba) = (Vec::new(), Vec::new());
    for head in 0..d.key_heads {
        (0..d.key_dim).for_each(|i| qkvz.extend(row("in_proj_qkv", head * d.key_dim + i)));
        (0..d.key_dim).for_each(|i| qkvz.extend(row("in_proj_qkv", d.key_channels() + head * d.key_dim + i)));
        let values = head * r * d.value_dim..(head + 1) * r * d.value_dim;
        values.clone().for_each(|i| qkvz.extend(row("in_proj_qkv", 2 * d.key_channels() + i)));
        values.for_each(|i| qkvz.extend(row("in_proj_z", i)));
        (head * r..(head + 1) * r).for_each(|i| ba.extend(row("in_proj_b", i)));
        (head * r..(head + 1) * r).for_each(|i| ba.extend(row("in_proj_a", i)));
    }
    out.matrix(&format!("{prefix}{block}.in_proj_qkvz"), ".weight", &[qkvz.len() / h, h], &qkvz, false);
    out.matrix(&format!("{prefix}{block}.in_proj_ba"), ".weight", &[ba.len() / h, h], &ba, false);
}

fn experts(c: &ModelConfig, all: &BTreeMap<String, Vec<f32>>, layer: usize, block: &str, out: &mut Out<'_>) {
    let (n, inner, hidden) = (c.moe.experts, c.moe.intermediate, c.hidden);
    let sensitive = layer >= c.layers.len();
    let get = |e: usize, p: &str| all[&format!("{layer}.{e}.{p}")].clone();
    let shape = |p: &str| if p == "down_proj" { [hidden, inner] } else { [inner, hidden] };
    match out.form.experts {
        Experts::Unfused => {
            for (e, p) in (0..n).flat_map(|e| ["gate_proj", "up_proj", "down_proj"].map(|p| (e, p))) {
                out.matrix(&format!("{block}.experts.{e}.{p}"), ".weight", &shape(p), &get(e, p), sensitive);
            }
        }
        Experts::Fused => {
            let both: Vec<_> =
                (0..n).flat_map(|e| [get(e, "gate_proj"), get(e, "up_proj")].concat()).collect();
            let down: Vec<_> = (0..n).flat_map(|e| get(e, "down_proj")).collect();
            out.matrix(
                &format!("{block}.experts.gate_up_proj"),
                "",
                &[n, 2 * inner, hidden],
                &both,
                sensitive,
            );
            out.matrix(&format!("{block}.experts.down_proj"), "", &[n, hidden, inner], &down, sensitive);
        }
        Experts::Stacked => {
            for p in ["gate_proj", "up_proj", "down_proj"] {
                let values: Vec<_> = (0..n).flat_map(|e| get(e, p)).collect();
                let [rows, columns] = shape(p);
                let module = format!("{block}.switch_mlp.{p}");
                out.matrix(&module, ".weight", &[n, rows, columns], &values, sensitive);
            }
        }
    }
}

/// A `config.json` in the form's style.
pub fn config_json(c: &ModelConfig, form: &Form) -> Value {
    let (a, d, m) = (&c.attention, &c.delta, &c.moe);
    let text = json!({
        "model_type": if c.family == Family::Qwen3Next { "qwen3_next" } else { "qwen3_5_moe_text" },
        "hidden_size": c.hidden, "vocab_size": c.vocab, "num_hidden_layers": c.layers.len(),
        "layer_types": c.layers, "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim, "linear_num_key_heads": d.key_heads, "linear_num_value_heads": d.value_heads,
        "linear_key_head_dim": d.key_dim, "linear_value_head_dim": d.value_dim,
        "linear_conv_kernel_dim": d.conv_kernel, "num_experts": m.experts, "num_experts_per_tok": m.top_k,
        "moe_intermediate_size": m.intermediate, "shared_expert_intermediate_size": m.shared_intermediate,
        "rms_norm_eps": c.rms_norm_eps, "max_position_embeddings": c.max_positions,
        "tie_word_embeddings": c.tied_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": a.rope_theta, "partial_rotary_factor": 0.25},
    });
    let mut root = if form.nested {
        json!({"model_type": c.family.name(), "text_config": text, "tie_word_embeddings": c.tied_embeddings})
    } else {
        text
    };
    if let Some((bits, group_size)) = form.bits {
        let mut q = json!({"bits": bits, "group_size": group_size, "mode": "affine"});
        for name in encode(c, form).keys() {
            let Some(module) = name.strip_suffix(".scales") else { continue };
            let sensitive = module.ends_with(".gate") || module.ends_with("_gate") || module.contains("mtp.");
            if sensitive && bits != 8 {
                q[module] = json!({"bits": 8, "group_size": group_size});
            }
        }
        root["quantization"] = q;
    }
    root
}

/// Writes a checkpoint of one file.
pub fn write(folder: &Path, c: &ModelConfig, form: &Form) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), config_json(c, form).to_string()).unwrap();
    write_safetensors(&folder.join("model.safetensors"), &encode(c, form));
}

//! The shapes of released models, and reading one from a configuration file.

use std::path::Path;

use anyhow::bail;
use spinetail_core::{AttentionConfig, DeltaConfig, Family, LayerKind, ModelConfig, MoeConfig};

pub(super) fn find(name: &str) -> anyhow::Result<ModelConfig> {
    let base = ModelConfig {
        family: Family::Qwen35Moe,
        hidden: 2048,
        vocab: 248_320,
        layers: pattern(40),
        attention: AttentionConfig {
            heads: 16,
            kv_heads: 2,
            head_dim: 256,
            rotary_dims: 64,
            rope_theta: 1e7,
        },
        delta: DeltaConfig { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, conv_kernel: 4 },
        moe: MoeConfig {
            experts: 256,
            top_k: 8,
            intermediate: 512,
            shared_intermediate: 512,
            norm_topk: true,
        },
        rms_norm_eps: 1e-6,
        tied_embeddings: false,
        max_positions: 262_144,
        mtp_layers: 0,
    };
    let large = MoeConfig { experts: 512, top_k: 10, ..base.moe };
    Ok(match name {
        "qwen3.6-35b" => base,
        "qwen3-next-80b" => {
            ModelConfig { family: Family::Qwen3Next, vocab: 151_936, layers: pattern(48), moe: large, ..base }
        }
        "qwen3.5-397b" => ModelConfig {
            hidden: 4096,
            layers: pattern(60),
            attention: AttentionConfig { heads: 32, ..base.attention },
            delta: DeltaConfig { value_heads: 64, ..base.delta },
            moe: MoeConfig { intermediate: 1024, shared_intermediate: 1024, ..large },
            ..base
        },
        path if Path::new(path).is_file() => {
            ModelConfig { mtp_layers: 0, ..spinetail_checkpoint::read_config(Path::new(path))? }
        }
        other => {
            bail!("--config {other}: expected qwen3.6-35b, qwen3-next-80b, qwen3.5-397b or a config.json")
        }
    })
}

/// Three DeltaNet layers, one of attention, and so on.
fn pattern(layers: usize) -> Vec<LayerKind> {
    let kind = |i| if (i + 1) % 4 == 0 { LayerKind::Attention } else { LayerKind::Delta };
    (0..layers).map(kind).collect()
}

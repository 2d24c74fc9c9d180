//! `config.json` of Hugging Face and MLX checkpoints, in every form that is in use, to [`ModelConfig`].
//!
//! What is not understood, and would change what the model computes, is refused by field.

mod fields;
mod quantization;
mod rope;

use std::path::Path;

use serde_json::Value;
use spinetail_core::{AttentionConfig, DeltaConfig, Family, LayerKind, Limits, ModelConfig, MoeConfig};

use crate::error::CheckpointError;
use fields::{Fields, brief};
pub(crate) use quantization::{Quantization, Setting};

type Result<T> = std::result::Result<T, CheckpointError>;

/// Whether the head is the embedding, as far as the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tied {
    Yes,
    No,
    /// Outer and inner configuration disagree: tied exactly if there is no `lm_head`.
    UnlessHead,
}

/// What a `config.json` says.
#[derive(Debug, Clone)]
pub(crate) struct SourceConfig {
    /// The shape; `tied_embeddings` and `mtp_layers` are false and 0 until the tensors have been seen.
    pub(crate) model: ModelConfig,
    pub(crate) tied: Tied,
    /// `model_type` as written at the top.
    pub(crate) model_type: String,
    pub(crate) quantization: Quantization,
}

impl SourceConfig {
    /// Parses the contents of a `config.json`; `path` is for messages.
    pub(crate) fn parse(path: &Path, json: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(json).map_err(|e| CheckpointError::Field {
            path: path.to_owned(),
            field: "the file".to_owned(),
            expected: "JSON".to_owned(),
            found: e.to_string(),
            fix: String::new(),
        })?;
        let root = Fields::root(path, &value)?;
        let nested = root.object("text_config")?;
        let text = nested.as_ref().unwrap_or(&root);
        let family = family(&root, nested.as_ref())?;
        refuse(text, family)?;
        let model = model(&root, text, family)?;
        model.check().map_err(|e| text.wrong(e.field, &e.expected, e.found))?;
        Ok(Self {
            model,
            model_type: root.text("model_type")?.unwrap_or(family.name()).to_owned(),
            tied: tied(&root, nested.as_ref())?,
            quantization: Quantization::parse(&root, nested.as_ref())?,
        })
    }
}

const KNOWN: &str = "qwen3_next, qwen3_5_moe or qwen3_5_moe_text";

fn family(root: &Fields<'_>, nested: Option<&Fields<'_>>) -> Result<Family> {
    let of = |f: &Fields<'_>| -> Result<Option<Family>> {
        Ok(match f.text("model_type")? {
            None => None,
            Some("qwen3_next") => Some(Family::Qwen3Next),
            Some("qwen3_5_moe" | "qwen3_5_moe_text") => Some(Family::Qwen35Moe),
            Some(other) => return Err(f.wrong("model_type", KNOWN, other)),
        })
    };
    let outer = of(root)?;
    let inner = nested.map(of).transpose()?.flatten();
    match (outer, inner) {
        (Some(a), Some(b)) if a != b => {
            Err(root.wrong("model_type", &format!("{}, as in text_config", b.name()), a.name()))
        }
        (Some(f), _) | (None, Some(f)) => Ok(f),
        (None, None) => Err(root.wrong("model_type", KNOWN, "nothing")),
    }
}

/// Refuses what would change the model's arithmetic in a way that is not implemented.
fn refuse(text: &Fields<'_>, family: Family) -> Result<()> {
    for (field, allowed) in [
        ("attention_bias", false),
        ("attn_output_gate", true),
        ("mtp_use_dedicated_embeddings", false),
        ("use_sliding_window", false),
    ] {
        if let Some(found) = text.flag(field)?
            && found != allowed
        {
            return Err(text.wrong(field, &allowed.to_string(), found.to_string()));
        }
    }
    if let Some(act) = text.text("hidden_act")?
        && act != "silu"
    {
        return Err(text.wrong("hidden_act", "silu", act));
    }
    if let Some(step) = text.count("decoder_sparse_step")?
        && step != 1
    {
        return Err(text.wrong("decoder_sparse_step", "1: every layer has experts", step.to_string()));
    }
    if let Some(dense) = text.list("mlp_only_layers")?
        && !dense.is_empty()
    {
        let found = brief(&Value::from(dense));
        return Err(text.wrong("mlp_only_layers", "an empty list: every layer has experts", found));
    }
    // Fields of related architectures that would change the result, with the value that changes nothing.
    for (field, neutral) in [
        ("routed_scaling_factor", 1.0),
        ("logits_scaling", 1.0),
        ("n_group", 1.0),
        ("topk_group", 1.0),
        ("embedding_multiplier", 1.0),
        ("residual_multiplier", 1.0),
    ] {
        if let Some(found) = text.number(field)?
            && found != neutral
        {
            return Err(text.wrong(field, &neutral.to_string(), found.to_string()));
        }
    }
    for field in ["final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar"] {
        if let Some(found) = text.number(field)? {
            return Err(text.wrong(field, "nothing", found.to_string()));
        }
    }
    for (field, only) in [("scoring_func", "softmax"), ("output_gate_type", "sigmoid")] {
        if let Some(found) = text.text(field)?
            && found != only
        {
            return Err(text.wrong(field, only, found));
        }
    }
    for field in ["mtp_num_hidden_layers", "num_nextn_predict_layers"] {
        if let Some(found) = text.count(field)?
            && found > 1
        {
            return Err(text.wrong(field, "0 or 1", found.to_string()));
        }
    }
    // The architecture always renormalises, and its reference ignores the field.
    if family == Family::Qwen35Moe {
        text.flag("norm_topk_prob")?;
    }
    Ok(())
}

fn model(root: &Fields<'_>, text: &Fields<'_>, family: Family) -> Result<ModelConfig> {
    // Absent fields take the value of the configuration class where the tensors' shapes would contradict a wrong one.
    let or = |field: &str, default: usize| text.count(field).map(|v| v.unwrap_or(default));
    let head_dim = or("head_dim", 256)?;
    let rope = rope::parse(root, text)?;
    Ok(ModelConfig {
        family,
        hidden: text.need("hidden_size")?,
        vocab: text.need("vocab_size")?,
        layers: layers(text)?,
        attention: AttentionConfig {
            heads: text.need("num_attention_heads")?,
            kv_heads: text.need("num_key_value_heads")?,
            head_dim,
            rotary_dims: rope.rotary_dims(text, head_dim)?,
            rope_theta: rope.theta,
        },
        delta: DeltaConfig {
            key_heads: or("linear_num_key_heads", 16)?,
            value_heads: or("linear_num_value_heads", 32)?,
            key_dim: or("linear_key_head_dim", 128)?,
            value_dim: or("linear_value_head_dim", 128)?,
            conv_kernel: or("linear_conv_kernel_dim", 4)?,
        },
        moe: MoeConfig {
            experts: text.need("num_experts")?,
            top_k: text.need("num_experts_per_tok")?,
            intermediate: text.need("moe_intermediate_size")?,
            shared_intermediate: text.need("shared_expert_intermediate_size")?,
            norm_topk: family == Family::Qwen35Moe || text.flag("norm_topk_prob")?.unwrap_or(true),
        },
        rms_norm_eps: text.number("rms_norm_eps")?.unwrap_or(1e-6),
        tied_embeddings: false,
        max_positions: text.need("max_position_embeddings")?,
        mtp_layers: 0,
    })
}

fn layers(text: &Fields<'_>) -> Result<Vec<LayerKind>> {
    let n = text.need("num_hidden_layers")?;
    if n == 0 || n > Limits::LAYERS {
        return Err(text.wrong("num_hidden_layers", &format!("1 to {}", Limits::LAYERS), n.to_string()));
    }
    let interval = text.count("full_attention_interval")?;
    if interval == Some(0) {
        return Err(text.wrong("full_attention_interval", "1 or more", "0"));
    }
    let by_interval = |every: usize| -> Vec<LayerKind> {
        let kind =
            |i: usize| if (i + 1).is_multiple_of(every) { LayerKind::Attention } else { LayerKind::Delta };
        (0..n).map(kind).collect()
    };
    let Some(types) = text.list("layer_types")? else {
        // Both references take 4 when neither field is there; the tensors' names contradict a wrong guess.
        return Ok(by_interval(interval.unwrap_or(4)));
    };
    let kinds = types
        .iter()
        .map(|t| match t.as_str() {
            Some("linear_attention") => Ok(LayerKind::Delta),
            Some("full_attention") => Ok(LayerKind::Attention),
            _ => {
                Err(text.wrong("layer_types", "linear_attention or full_attention for each layer", brief(t)))
            }
        })
        .collect::<Result<Vec<_>>>()?;
    if kinds.len() != n {
        let expected = format!("{n} entries, as num_hidden_layers says");
        return Err(text.wrong("layer_types", &expected, kinds.len().to_string()));
    }
    match interval {
        Some(every) if by_interval(every) != kinds => Err(text.wrong_but(
            "full_attention_interval",
            "the pattern that layer_types spells out",
            every.to_string(),
            "remove whichever of the two fields is stale",
        )),
        _ => Ok(kinds),
    }
}

/// transformers goes by the outer field, mlx-lm by the inner one, and writers leave out either.
fn tied(root: &Fields<'_>, nested: Option<&Fields<'_>>) -> Result<Tied> {
    let outer = root.flag("tie_word_embeddings")?;
    let inner = nested.map(|n| n.flag("tie_word_embeddings")).transpose()?.flatten();
    let of = |tied| if tied { Tied::Yes } else { Tied::No };
    Ok(match (outer, inner) {
        (Some(a), Some(b)) if a != b => Tied::UnlessHead,
        (Some(a), _) => of(a),
        (None, Some(true)) => Tied::UnlessHead,
        (None, _) => Tied::No,
    })
}

#[cfg(test)]
mod tests;

//! The shape of a model, in one form for every family and file format.

use serde::{Deserialize, Serialize};

use crate::Limits;

/// Which published architecture a model follows. The maths is one; names and packing in checkpoints differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Qwen3-Next-80B-A3B, Qwen3-Coder-Next.
    Qwen3Next,
    /// Qwen3.5 and Qwen3.6 mixture-of-experts models.
    #[serde(rename = "qwen3_5_moe")]
    Qwen35Moe,
}

impl Family {
    /// The `model_type` of Hugging Face configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qwen3Next => "qwen3_next",
            Self::Qwen35Moe => "qwen3_5_moe",
        }
    }
}

/// The mixer of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// Gated DeltaNet: a fixed-size recurrent state.
    #[serde(rename = "linear_attention")]
    Delta,
    /// Gated softmax attention: a KV cache that grows.
    #[serde(rename = "full_attention")]
    Attention,
}

/// Gated attention.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AttentionConfig {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Leading dimensions of a head that are rotated; even.
    pub rotary_dims: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
}

/// Gated DeltaNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaConfig {
    /// Query and key heads; divides `value_heads`.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal depthwise convolution.
    pub conv_kernel: usize,
}

impl DeltaConfig {
    /// Channels of all query (or key) heads.
    pub const fn key_channels(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Channels of all value heads.
    pub const fn value_channels(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub const fn conv_channels(&self) -> usize {
        2 * self.key_channels() + self.value_channels()
    }
}

/// The sparse mixture of experts of every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoeConfig {
    /// Routed experts.
    pub experts: usize,
    /// Experts a token is routed to.
    pub top_k: usize,
    /// Intermediate width of a routed expert.
    pub intermediate: usize,
    /// Intermediate width of the shared expert.
    pub shared_intermediate: usize,
    /// Whether the weights of the chosen experts are scaled to sum to one.
    pub norm_topk: bool,
}

/// A model's shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// The architecture followed.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// The mixer of each layer.
    pub layers: Vec<LayerKind>,
    /// Attention layers.
    pub attention: AttentionConfig,
    /// DeltaNet layers.
    pub delta: DeltaConfig,
    /// The experts.
    pub moe: MoeConfig,
    /// Added to the mean square in every RMSNorm.
    pub rms_norm_eps: f64,
    /// Whether the head is the embedding.
    pub tied_embeddings: bool,
    /// Positions the model was made for.
    pub max_positions: usize,
    /// Prediction heads (multi-token prediction) that came with the weights: 0 or 1.
    pub mtp_layers: usize,
}

/// A configuration that cannot be: names the field, what is allowed and what was found.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{field}: expected {expected}, found {found}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// What is allowed.
    pub expected: String,
    /// What was found.
    pub found: String,
}

fn within(field: &'static str, found: usize, max: usize) -> Result<(), ConfigError> {
    if (1..=max).contains(&found) {
        return Ok(());
    }
    Err(ConfigError { field, expected: format!("1 to {max}"), found: found.to_string() })
}

fn divides(field: &'static str, divisor: usize, of: usize) -> Result<(), ConfigError> {
    if of.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(ConfigError { field, expected: format!("a divisor of {of}"), found: divisor.to_string() })
}

fn finite(field: &'static str, found: f64, expected: &str, ok: bool) -> Result<(), ConfigError> {
    if ok && found.is_finite() {
        return Ok(());
    }
    Err(ConfigError { field, expected: expected.to_owned(), found: found.to_string() })
}

impl ModelConfig {
    /// Checks every bound and divisibility that the forward pass relies on.
    pub fn check(&self) -> Result<(), ConfigError> {
        let (a, d, m) = (&self.attention, &self.delta, &self.moe);
        within("hidden_size", self.hidden, Limits::DIM)?;
        within("vocab_size", self.vocab, Limits::DIM)?;
        within("num_hidden_layers", self.layers.len(), Limits::LAYERS)?;
        within("num_attention_heads", a.heads, Limits::HEADS)?;
        within("num_key_value_heads", a.kv_heads, Limits::HEADS)?;
        within("head_dim", a.head_dim, 1 << 16)?;
        divides("num_key_value_heads", a.kv_heads, a.heads)?;
        if !a.rotary_dims.is_multiple_of(2) || a.rotary_dims > a.head_dim {
            return Err(ConfigError {
                field: "partial_rotary_factor",
                expected: format!("an even number of rotated dimensions, at most head_dim ({})", a.head_dim),
                found: a.rotary_dims.to_string(),
            });
        }
        finite("rope_theta", a.rope_theta, "a positive number", a.rope_theta > 0.0)?;
        within("linear_num_key_heads", d.key_heads, Limits::HEADS)?;
        within("linear_num_value_heads", d.value_heads, Limits::HEADS)?;
        divides("linear_num_key_heads", d.key_heads, d.value_heads)?;
        within("linear_key_head_dim", d.key_dim, 1 << 16)?;
        within("linear_value_head_dim", d.value_dim, 1 << 16)?;
        within("linear_conv_kernel_dim", d.conv_kernel, Limits::CONV_KERNEL)?;
        within("num_experts", m.experts, Limits::EXPERTS)?;
        within("num_experts_per_tok", m.top_k, m.experts.min(Limits::TOP_K))?;
        within("moe_intermediate_size", m.intermediate, Limits::DIM)?;
        within("shared_expert_intermediate_size", m.shared_intermediate, Limits::DIM)?;
        finite(
            "rms_norm_eps",
            self.rms_norm_eps,
            "a number from 0 to 1",
            (0.0..=1.0).contains(&self.rms_norm_eps),
        )?;
        within("max_position_embeddings", self.max_positions, Limits::CONTEXT)?;
        if self.mtp_layers > 1 {
            return Err(ConfigError {
                field: "mtp_num_hidden_layers",
                expected: "0 or 1".to_owned(),
                found: self.mtp_layers.to_string(),
            });
        }
        Ok(())
    }

    /// Layers that have expert records: the decoder's, then prediction heads.
    pub fn expert_layers(&self) -> usize {
        self.layers.len() + self.mtp_layers
    }

    /// Layers of one kind, prediction heads not counted.
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|&&k| k == kind).count()
    }

    /// Elements of the KV cache for one position, over all attention layers.
    pub fn kv_elements_per_token(&self) -> usize {
        self.count(LayerKind::Attention) * 2 * self.attention.kv_heads * self.attention.head_dim
    }

    /// Elements of the recurrent state (S and the convolution's last inputs), over all DeltaNet layers.
    pub fn state_elements(&self) -> usize {
        let d = &self.delta;
        let s = d.value_heads * d.value_dim * d.key_dim;
        self.count(LayerKind::Delta) * (s + (d.conv_kernel - 1) * d.conv_channels())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The shape of Qwen3.6-35B-A3B.
    pub(crate) fn qwen36_35b() -> ModelConfig {
        use LayerKind::{Attention, Delta};
        ModelConfig {
            family: Family::Qwen35Moe,
            hidden: 2048,
            vocab: 248_320,
            layers: [Delta, Delta, Delta, Attention].repeat(10),
            attention: AttentionConfig {
                heads: 16,
                kv_heads: 2,
                head_dim: 256,
                rotary_dims: 64,
                rope_theta: 1e7,
            },
            delta: DeltaConfig {
                key_heads: 16,
                value_heads: 32,
                key_dim: 128,
                value_dim: 128,
                conv_kernel: 4,
            },
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
            mtp_layers: 1,
        }
    }

    #[test]
    fn the_35b_is_within_bounds_and_has_the_published_state_sizes() {
        let c = qwen36_35b();
        c.check().unwrap();
        // 20 KiB of KV per token in 16 bits; 63 MiB (rounded up from 62.8) of state in 32 bits.
        assert_eq!(c.kv_elements_per_token() * 2, 20 << 10);
        assert_eq!((c.state_elements() * 4).div_ceil(1 << 20), 63);
    }

    #[test]
    fn impossible_shapes_are_refused_by_field() {
        let refuse = |f: fn(&mut ModelConfig)| {
            let mut c = qwen36_35b();
            f(&mut c);
            c.check().unwrap_err().field
        };
        assert_eq!(refuse(|c| c.hidden = 0), "hidden_size");
        assert_eq!(refuse(|c| c.attention.kv_heads = 3), "num_key_value_heads");
        assert_eq!(refuse(|c| c.moe.top_k = 257), "num_experts_per_tok");
        assert_eq!(refuse(|c| c.attention.rotary_dims = 7), "partial_rotary_factor");
        assert_eq!(refuse(|c| c.attention.rope_theta = f64::NAN), "rope_theta");
        assert_eq!(refuse(|c| c.rms_norm_eps = -1.0), "rms_norm_eps");
        assert_eq!(refuse(|c| c.layers.clear()), "num_hidden_layers");
        assert_eq!(refuse(|c| c.delta.key_heads = 5), "linear_num_key_heads");
    }
}

//! Canonical names of the tensors that stay in memory, with the shape each must have.
//!
//! The names are those of Hugging Face's `qwen3_5_moe`, without the `model.` prefix and the `.weight` suffix. Readers
//! of other namings map onto these; everything past the readers knows only these.

use crate::{LayerKind, ModelConfig};

/// What a tensor is to the quantizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A matrix, quantized to the chosen width.
    Matrix,
    /// A matrix that loses more than it saves below 8 bits: routers, shared-expert gates, the prediction head.
    Sensitive,
    /// A small tensor, always f32: norm weights (with the 1 added, never zero-centred), convolution taps, decays.
    Vector,
}

/// One tensor that must be present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseSpec {
    /// Canonical name.
    pub name: String,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// What it is to the quantizer.
    pub role: Role,
}

impl DenseSpec {
    /// Whether the tensor belongs to the prediction heads, which stay on the drive until something drafts with them.
    pub fn is_prediction_head(&self) -> bool {
        self.name.starts_with("mtp.")
    }
}

/// Prefix of the tensors of the transformer layer of prediction head `i`.
pub fn mtp_prefix(i: usize) -> String {
    format!("mtp.layers.{i}")
}

struct Specs {
    out: Vec<DenseSpec>,
    matrix: Role,
}

impl Specs {
    fn matrix(&mut self, name: String, rows: usize, columns: usize) {
        self.out.push(DenseSpec { name, shape: vec![rows, columns], role: self.matrix });
    }

    fn sensitive(&mut self, name: String, rows: usize, columns: usize) {
        self.out.push(DenseSpec { name, shape: vec![rows, columns], role: Role::Sensitive });
    }

    fn vector(&mut self, name: String, shape: &[usize]) {
        self.out.push(DenseSpec { name, shape: shape.to_vec(), role: Role::Vector });
    }

    fn layer(&mut self, c: &ModelConfig, p: &str, kind: LayerKind) {
        let h = c.hidden;
        self.vector(format!("{p}.input_layernorm"), &[h]);
        match kind {
            LayerKind::Delta => {
                let (d, p) = (&c.delta, format!("{p}.linear_attn"));
                self.matrix(format!("{p}.in_proj_qkv"), d.conv_channels(), h);
                self.matrix(format!("{p}.in_proj_z"), d.value_channels(), h);
                self.matrix(format!("{p}.in_proj_b"), d.value_heads, h);
                self.matrix(format!("{p}.in_proj_a"), d.value_heads, h);
                self.vector(format!("{p}.conv1d"), &[d.conv_channels(), d.conv_kernel]);
                self.vector(format!("{p}.dt_bias"), &[d.value_heads]);
                self.vector(format!("{p}.A_log"), &[d.value_heads]);
                self.vector(format!("{p}.norm"), &[d.value_dim]);
                self.matrix(format!("{p}.out_proj"), h, d.value_channels());
            }
            LayerKind::Attention => {
                let (a, p) = (&c.attention, format!("{p}.self_attn"));
                self.matrix(format!("{p}.q_proj"), a.heads * 2 * a.head_dim, h);
                self.matrix(format!("{p}.k_proj"), a.kv_heads * a.head_dim, h);
                self.matrix(format!("{p}.v_proj"), a.kv_heads * a.head_dim, h);
                self.vector(format!("{p}.q_norm"), &[a.head_dim]);
                self.vector(format!("{p}.k_norm"), &[a.head_dim]);
                self.matrix(format!("{p}.o_proj"), h, a.heads * a.head_dim);
            }
        }
        self.vector(format!("{p}.post_attention_layernorm"), &[h]);
        self.sensitive(format!("{p}.mlp.gate"), c.moe.experts, h);
        self.sensitive(format!("{p}.mlp.shared_expert_gate"), 1, h);
        let s = c.moe.shared_intermediate;
        self.matrix(format!("{p}.mlp.shared_expert.gate_proj"), s, h);
        self.matrix(format!("{p}.mlp.shared_expert.up_proj"), s, h);
        self.matrix(format!("{p}.mlp.shared_expert.down_proj"), h, s);
    }
}

/// Every dense tensor of the model, in the order in which a step uses them.
///
/// With tied embeddings there is no `lm_head`. Shapes follow the published configurations: `q_proj` holds, per head,
/// first the query's rows and then the output gate's.
pub fn dense_specs(c: &ModelConfig) -> Vec<DenseSpec> {
    let mut s = Specs { out: Vec::new(), matrix: Role::Matrix };
    s.matrix("embed_tokens".to_owned(), c.vocab, c.hidden);
    for (i, &kind) in c.layers.iter().enumerate() {
        s.layer(c, &format!("layers.{i}"), kind);
    }
    s.vector("norm".to_owned(), &[c.hidden]);
    if !c.tied_embeddings {
        s.matrix("lm_head".to_owned(), c.vocab, c.hidden);
    }
    s.matrix = Role::Sensitive;
    for i in 0..c.mtp_layers {
        s.matrix("mtp.fc".to_owned(), c.hidden, 2 * c.hidden);
        s.vector("mtp.pre_fc_norm_embedding".to_owned(), &[c.hidden]);
        s.vector("mtp.pre_fc_norm_hidden".to_owned(), &[c.hidden]);
        s.layer(c, &mtp_prefix(i), LayerKind::Attention);
        s.vector("mtp.norm".to_owned(), &[c.hidden]);
    }
    s.out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::qwen36_35b;

    #[test]
    fn names_are_unique_and_the_dense_core_has_the_published_size() {
        let mut c = qwen36_35b();
        c.mtp_layers = 0;
        let specs = dense_specs(&c);
        let mut names: Vec<_> = specs.iter().map(|s| &s.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), specs.len());
        // About 2.45 G parameters outside the routed experts (two of them in embedding and head: 1.02 G).
        let n: usize = specs.iter().map(|s| s.shape.iter().product::<usize>()).sum();
        assert!((2_300_000_000..2_600_000_000).contains(&n), "{n}");
    }
}

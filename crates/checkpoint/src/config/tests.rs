//! Every form that is accepted, and what is refused by field.

use serde_json::{Value, json};

use super::*;

fn base() -> Value {
    json!({
        "model_type": "qwen3_next", "hidden_size": 64, "vocab_size": 100, "num_hidden_layers": 4,
        "full_attention_interval": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "rope_theta": 10000, "partial_rotary_factor": 0.5, "rope_scaling": null,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": false, "hidden_act": "silu",
    })
}

fn parse(value: &Value) -> Result<SourceConfig> {
    SourceConfig::parse(Path::new("config.json"), value.to_string().as_bytes())
}

fn with(changes: &Value) -> Result<SourceConfig> {
    let mut value = base();
    let map = value.as_object_mut().unwrap();
    for (k, v) in changes.as_object().unwrap() {
        map.insert(k.clone(), v.clone());
    }
    parse(&value)
}

#[test]
fn the_older_flat_form() {
    use LayerKind::{Attention, Delta};
    let c = with(&json!({"norm_topk_prob": false})).unwrap();
    assert_eq!(c.model.layers, [Delta, Delta, Delta, Attention]);
    assert_eq!((c.model.attention.rotary_dims, c.model.attention.rope_theta), (16, 1e4));
    assert!(!c.model.moe.norm_topk);
    assert!(with(&json!({})).unwrap().model.moe.norm_topk);
}

#[test]
fn fields_that_are_absent_take_the_value_of_the_class() {
    let names = ["head_dim", "partial_rotary_factor", "full_attention_interval", "linear_num_key_heads"];
    let mut value = base();
    for n in names {
        value.as_object_mut().unwrap().remove(n);
    }
    value["linear_num_value_heads"] = json!(32);
    let c = parse(&value).unwrap().model;
    assert_eq!((c.attention.head_dim, c.attention.rotary_dims, c.delta.key_heads), (256, 64, 16));
    assert_eq!(c.count(LayerKind::Attention), 1);
}

#[test]
fn what_is_not_understood_is_refused_by_field_and_value() {
    let list = |n| json!(vec!["linear_attention"; n]);
    for (changes, field, found) in [
        (json!({"model_type": "qwen3_moe"}), "model_type", "qwen3_moe"),
        (json!({"model_type": null}), "model_type", "nothing"),
        (json!({"hidden_size": null}), "hidden_size", "nothing"),
        (json!({"hidden_size": -1}), "hidden_size", "-1"),
        (json!({"hidden_size": 64.5}), "hidden_size", "64.5"),
        (json!({"hidden_size": "64"}), "hidden_size", "\"64\""),
        (json!({"num_hidden_layers": 100_000}), "num_hidden_layers", "100000"),
        (json!({"decoder_sparse_step": 2}), "decoder_sparse_step", "2"),
        (json!({"mlp_only_layers": [3]}), "mlp_only_layers", "[3]"),
        (json!({"attention_bias": true}), "attention_bias", "true"),
        (json!({"attn_output_gate": false}), "attn_output_gate", "false"),
        (json!({"mtp_use_dedicated_embeddings": true}), "mtp_use_dedicated_embeddings", "true"),
        (json!({"hidden_act": "gelu"}), "hidden_act", "gelu"),
        (json!({"layer_types": list(3)}), "layer_types", "3"),
        (json!({"layer_types": list(4)}), "full_attention_interval", "4"),
        (json!({"layer_types": ["x", "x", "x", "x"]}), "layer_types", "\"x\""),
        (json!({"full_attention_interval": 0}), "full_attention_interval", "0"),
        (json!({"rope_theta": null}), "rope_theta", "nothing"),
        (json!({"rope_theta": 0}), "rope_theta", "0"),
        (json!({"partial_rotary_factor": 1.5}), "partial_rotary_factor", "1.5"),
        (json!({"partial_rotary_factor": 0.1}), "partial_rotary_factor", "3"),
        (json!({"rope_scaling": {"type": "linear", "factor": 2.0}}), "rope_scaling.type", "linear"),
        (json!({"rope_scaling": {"rope_type": "default", "factor": 2.0}}), "rope_scaling.factor", "2.0"),
        (json!({"rope_parameters": {"full_attention": {}}}), "rope_parameters.full_attention", "{}"),
        (
            json!({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}),
            "quantization.mode",
            "mxfp4",
        ),
        (json!({"quantization": {"bits": 7, "group_size": 32}}), "quantization.bits", "7"),
        (json!({"quantization": {"bits": 4, "group_size": 16}}), "quantization.group_size", "16"),
        (
            json!({"quantization_config": {"quant_method": "gptq"}}),
            "quantization_config.quant_method",
            "gptq",
        ),
        (
            json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}),
            "quantization_config.weight_block_size",
            "[64,64]",
        ),
    ] {
        let text = with(&changes).unwrap_err().to_string();
        assert!(text.contains(&format!("{field}: ")) && text.contains(&format!("found {found}")), "{text}");
    }
}

#[test]
fn two_rope_values_in_places_of_equal_rank_have_to_agree() {
    let block = |theta: f64| json!({"rope_type": "default", "rope_theta": theta});
    let nested = |outer: Value| {
        let mut text = base();
        text["rope_parameters"] = block(2e4);
        text["model_type"] = json!("qwen3_5_moe_text");
        parse(&json!({"model_type": "qwen3_5_moe", "text_config": text, "rope_parameters": outer}))
    };
    assert_eq!(nested(block(2e4)).unwrap().model.attention.rope_theta, 2e4);
    let text = nested(block(3e4)).unwrap_err().to_string();
    assert!(text.contains("20000") && text.contains("30000"), "{text}");
}

#[test]
fn overrides_are_known_by_module_whatever_their_prefix() {
    let quantization = json!({
        "bits": 4, "group_size": 64, "mode": "affine",
        "language_model.model.layers.0.mlp.gate": {"bits": 8, "group_size": 64},
        "model.layers.1.mlp.gate": false,
        "lm_head": true,
    });
    let q = with(&json!({"quantization": quantization})).unwrap().quantization;
    assert_eq!(q.overrides["layers.0.mlp.gate"].setting, Some(Setting { bits: 8, group_size: 64 }));
    assert_eq!(q.overrides["layers.1.mlp.gate"].setting, None);
    assert_eq!(q.overrides["lm_head"].setting, Some(Setting { bits: 4, group_size: 64 }));
    let twice = json!({
        "bits": 4, "group_size": 64,
        "model.layers.1.mlp.gate": false,
        "language_model.model.layers.1.mlp.gate": true,
    });
    let text = with(&json!({"quantization": twice})).unwrap_err().to_string();
    assert!(text.contains("model.layers.1.mlp.gate") && text.contains("same tensor"), "{text}");
}

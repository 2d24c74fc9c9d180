//! One small model in every naming: all forms give the same canonical tensors, and what is not understood is refused.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod common;

use std::collections::BTreeMap;

use common::build::{self, Experts, Form, HF_35, HF_NEXT, MLX_35, MLX_NEXT};
use common::{Raw, all_tensors, assert_close, write_safetensors};
use serde_json::{Value, json};
use spinetail_checkpoint::{Checkpoint, CheckpointError};
use spinetail_core::{Affine, DType, DenseSource, Family, Format, ModelConfig, RecordSource};

/// Opens what `change` makes of a checkpoint.
fn open_changed(
    c: &ModelConfig,
    form: &Form,
    change: impl FnOnce(&mut Value, &mut BTreeMap<String, Raw>),
) -> Result<BTreeMap<String, Vec<f32>>, CheckpointError> {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, mut tensors) = (build::config_json(c, form), build::encode(c, form));
    change(&mut config, &mut tensors);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    write_safetensors(&dir.path().join("model.safetensors"), &tensors);
    Checkpoint::open(dir.path()).map(|m| all_tensors(&m))
}

fn refusal(form: &Form, change: impl FnOnce(&mut Value, &mut BTreeMap<String, Raw>)) -> String {
    let c = build::shape(if form.packed { Family::Qwen3Next } else { Family::Qwen35Moe });
    open_changed(&c, form, change).unwrap_err().to_string()
}

#[track_caller]
fn names_all(text: &str, needles: &[&str]) {
    for n in needles {
        assert!(text.contains(n), "{n:?} is not in: {text}");
    }
}

#[test]
fn every_naming_gives_the_same_tensors() {
    let text_35 = Form { prefix: "model.", nested: false, vision: "", ..HF_35 };
    let forms = [
        (Family::Qwen3Next, HF_NEXT),
        (Family::Qwen3Next, Form { dtype: DType::Bf16, ..MLX_NEXT }),
        (Family::Qwen3Next, Form { prefix: "", ..MLX_NEXT }),
        (Family::Qwen35Moe, Form { dtype: DType::F16, ..HF_35 }),
        (Family::Qwen35Moe, Form { experts: Experts::Unfused, ..HF_35 }),
        (Family::Qwen35Moe, text_35.clone()),
        (Family::Qwen35Moe, Form { experts: Experts::Unfused, ..text_35.clone() }),
        (Family::Qwen35Moe, Form { outside: "model.", ..text_35 }),
        (Family::Qwen35Moe, MLX_35),
        (Family::Qwen35Moe, Form { experts: Experts::Fused, ..MLX_35 }),
    ];
    for (family, form) in forms {
        for (tied, mtp) in [(false, 1), (true, 0)] {
            let c = ModelConfig { tied_embeddings: tied, mtp_layers: mtp, ..build::shape(family) };
            let found = open_changed(&c, &form, |_, _| ()).unwrap_or_else(|e| panic!("{form:?}: {e}"));
            // 16-bit norms lose digits when the 1 is added in their own type; theirs here are exact.
            assert_close(&build::canonical(&c), &found, 0.0);
        }
    }
}

#[test]
fn quantized_sources_keep_their_bytes_and_formats() {
    for (family, form) in [(Family::Qwen3Next, MLX_NEXT), (Family::Qwen35Moe, MLX_35)] {
        for bits in [2, 3, 4, 5, 6, 8] {
            let form = Form { bits: Some((bits, 32)), dtype: DType::Bf16, ..form.clone() };
            let c = build::shape(family);
            let dir = tempfile::tempdir().unwrap();
            build::write(dir.path(), &c, &form);
            let model = Checkpoint::open(dir.path()).unwrap();
            assert_eq!(*model.config(), c);
            let affine = |bits| Format::Affine(Affine { bits, group_size: 32, scales: DType::Bf16 });
            assert_eq!(model.record_layout(0).unwrap().up.spec.format, affine(bits));
            assert_eq!(model.record_layout(3).unwrap().up.spec.format, affine(8));
            assert_eq!(model.dense_spec("layers.0.linear_attn.in_proj_z").unwrap().format, affine(bits));
            assert_eq!(model.dense_spec("layers.0.mlp.gate").unwrap().format, affine(8));
            // Codes of a group span 2 in at most 2^bits - 1 steps.
            let step = 2.0 / ((1 << bits) - 1) as f32;
            let (exact, found) = (build::canonical(&c), all_tensors(&model));
            assert_close(&exact, &found, step * 1.1);
            common::assert_rows_agree(&model);
        }
    }
}

#[test]
fn what_is_missing_or_left_over_is_named() {
    let remove = |name: &'static str| {
        move |_: &mut Value, t: &mut BTreeMap<String, Raw>| drop(t.remove(name).unwrap())
    };
    let add = |name: &str| {
        let name = name.to_owned();
        move |_: &mut Value, t: &mut BTreeMap<String, Raw>| drop(t.insert(name, ("F32", vec![1], vec![0; 4])))
    };
    for (form, name) in [
        (&HF_NEXT, "model.layers.1.self_attn.q_norm.weight"),
        (&HF_NEXT, "model.layers.2.mlp.experts.1.up_proj.weight"),
        (&HF_NEXT, "lm_head.weight"),
        (&HF_35, "model.language_model.layers.0.mlp.experts.gate_up_proj"),
        (&MLX_35, "language_model.model.layers.0.mlp.switch_mlp.up_proj.weight"),
        (&MLX_35, "language_model.lm_head.weight"),
    ] {
        names_all(&refusal(form, remove(name)), &["missing", name]);
    }
    let head = refusal(&HF_35, remove("mtp.fc.weight"));
    names_all(&head, &["mtp.fc.weight", "missing", "incomplete"]);
    for name in [
        "model.layers.1.self_attn.q_proj.bias",
        "model.layers.3.input_layernorm.weight",
        "mtp.layers.1.input_layernorm.weight",
        "model.layers.0.mlp.experts.3.up_proj.weight",
    ] {
        names_all(&refusal(&HF_NEXT, add(name)), &[name]);
    }
    let twice = refusal(&HF_35, add("language_model.model.norm.weight"));
    names_all(&twice, &["model.language_model.norm.weight", "language_model.model.norm.weight"]);
    // Old exporters save what follows from the configuration.
    let c = build::shape(Family::Qwen3Next);
    open_changed(&c, &HF_NEXT, add("model.layers.1.self_attn.rotary_emb.inv_freq")).unwrap();
}

#[test]
fn shapes_and_types_that_contradict_are_named() {
    let set = |name: &'static str, raw: Raw| {
        move |_: &mut Value, t: &mut BTreeMap<String, Raw>| *t.get_mut(name).unwrap() = raw
    };
    let k = "model.layers.1.self_attn.k_proj.weight";
    let wrong = refusal(&HF_NEXT, set(k, ("F32", vec![64, 48], vec![0; 64 * 48 * 4])));
    names_all(&wrong, &[k, "[48, 64]", "[64, 48]"]);
    let wrong = refusal(&HF_NEXT, set(k, ("F8_E5M2", vec![48, 64], vec![0; 48 * 64])));
    names_all(&wrong, &[k, "F8_E5M2"]);
    let wrong = refusal(&HF_NEXT, set("model.norm.weight", ("I32", vec![64], vec![0; 256])));
    names_all(&wrong, &["model.norm.weight", "I32"]);
    let conv = "model.layers.2.linear_attn.conv1d.weight";
    let wrong = refusal(&HF_NEXT, set(conv, ("F32", vec![80, 4, 1], vec![0; 80 * 16])));
    names_all(&wrong, &[conv, "model.layers.0.linear_attn.conv1d.weight"]);
    let mixed = refusal(&HF_NEXT, |_, t| {
        let raw = ("BF16", vec![32, 64], vec![0; 32 * 64 * 2]);
        t.insert("model.layers.0.mlp.experts.1.up_proj.weight".to_owned(), raw);
    });
    names_all(&mixed, &["model.layers.0.mlp.experts.1.up_proj.weight", "bf16", "f32"]);
}

#[test]
fn a_tied_head_has_to_be_the_embedding() {
    let c = ModelConfig { tied_embeddings: true, ..build::shape(Family::Qwen3Next) };
    let copy = |t: &mut BTreeMap<String, Raw>| t["model.embed_tokens.weight"].clone();
    let same = open_changed(&c, &HF_NEXT, |_, t| {
        let raw = copy(t);
        t.insert("lm_head.weight".to_owned(), raw);
    })
    .unwrap();
    assert!(!same.contains_key("lm_head"));
    let other = open_changed(&c, &HF_NEXT, |_, t| {
        let mut raw = copy(t);
        raw.2[5000] ^= 1;
        t.insert("lm_head.weight".to_owned(), raw);
    });
    names_all(&other.unwrap_err().to_string(), &["lm_head.weight", "tie_word_embeddings"]);
    // Writers that set only the inner or only the outer field: the tensors decide.
    for tied in [true, false] {
        let c = ModelConfig { tied_embeddings: tied, ..build::shape(Family::Qwen35Moe) };
        let found = open_changed(&c, &HF_35, |config, _| {
            config["tie_word_embeddings"] = json!(false);
            config["text_config"]["tie_word_embeddings"] = json!(true);
        });
        assert_eq!(found.unwrap().contains_key("lm_head"), !tied);
    }
}

#[test]
fn one_tap_or_no_deltanet_leaves_the_naming_to_tell() {
    for (family, form) in [(Family::Qwen3Next, HF_NEXT), (Family::Qwen35Moe, MLX_35)] {
        let mut c = build::shape(family);
        c.delta.conv_kernel = 1;
        assert_close(&build::canonical(&c), &open_changed(&c, &form, |_, _| ()).unwrap(), 0.0);
        c.layers = vec![spinetail_core::LayerKind::Attention; 2];
        assert_close(&build::canonical(&c), &open_changed(&c, &form, |_, _| ()).unwrap(), 0.0);
    }
}

#[test]
fn paths_that_are_no_checkpoint_say_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let open = |p: &std::path::Path| Checkpoint::open(p).unwrap_err().to_string();
    names_all(&open(&dir.path().join("none")), &["nothing of that name"]);
    names_all(&open(dir.path()), &["without config.json"]);
    let c = build::shape(Family::Qwen3Next);
    build::write(dir.path(), &c, &HF_NEXT);
    names_all(&open(&dir.path().join("config.json")), &["a file"]);
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    names_all(&open(dir.path()), &["model.safetensors"]);
    let index = dir.path().join("model.safetensors.index.json");
    for bad in ["../model.safetensors", "/etc/passwd", "a/b", "", "..", "C:\\x"] {
        std::fs::write(&index, json!({"weight_map": {"x": bad}}).to_string()).unwrap();
        names_all(&open(dir.path()), &["weight_map", "same folder"]);
    }
    std::fs::write(&index, "{\"weight_map\":[]}").unwrap();
    names_all(&open(dir.path()), &["weight_map"]);
}

/// The same tensors with every projection in blocks of FP8, and what those mean in f32.
fn fp8_twins(tensors: BTreeMap<String, Raw>) -> [BTreeMap<String, Raw>; 2] {
    let (mut fp8, mut twin) = (tensors.clone(), tensors.clone());
    for (name, (_, shape, _)) in tensors {
        if shape.len() < 2 || !name.contains("_proj") {
            continue;
        }
        let [rows, columns] = shape[shape.len() - 2..] else { panic!() };
        let stack = shape.iter().product::<usize>() / rows / columns;
        let blocks = [rows.div_ceil(128), columns.div_ceil(128)];
        let mut lead = shape[..shape.len() - 2].to_vec();
        lead.extend(blocks);
        let scale = |s: usize, r: usize, c: usize| 0.5 + ((s * blocks[0] + r) * blocks[1] + c) as f32 / 8.0;
        let (mut codes, mut values, mut scales) = (Vec::new(), Vec::new(), Vec::new());
        for s in 0..stack {
            for i in 0..rows * columns {
                let (r, c) = (i / columns, i % columns);
                let code = (s * 31 + r * 7 + c * 13) as u8 & 0xbf;
                // Exponent below 8: mantissa and exponent as the format has them, spelled out.
                let (e, m) = (i32::from(code >> 3 & 15), f32::from(code & 7));
                let size = if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) };
                let value = if code >= 128 { -size } else { size } * scale(s, r / 128, c / 128);
                codes.push(code);
                values.extend_from_slice(&value.to_le_bytes());
            }
            for i in 0..blocks[0] * blocks[1] {
                DType::Bf16.put(scale(s, i / blocks[1], i % blocks[1]), &mut scales);
            }
        }
        twin.insert(name.clone(), ("F32", shape.clone(), values));
        fp8.insert(format!("{name}_scale_inv"), ("BF16", lead, scales));
        fp8.insert(name, ("F8_E4M3", shape, codes));
    }
    [fp8, twin]
}

#[test]
fn blocks_of_fp8_through_every_slicing() {
    let fused = Form { experts: Experts::Fused, ..HF_35 };
    for (family, form) in [(Family::Qwen3Next, HF_NEXT), (Family::Qwen35Moe, fused)] {
        let mut c = build::shape(family);
        // Blocks end within the packed inputs' heads and within the fused up projection, and are ragged.
        (c.hidden, c.moe.intermediate, c.delta.key_dim, c.delta.value_dim) = (160, 96, 20, 28);
        let [fp8, twin] = fp8_twins(build::encode(&c, &form));
        let open = |tensors: BTreeMap<String, Raw>| {
            let dir = tempfile::tempdir().unwrap();
            let mut config = build::config_json(&c, &form);
            config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            write_safetensors(&dir.path().join("model.safetensors"), &tensors);
            Checkpoint::open(dir.path()).unwrap()
        };
        let model = open(fp8);
        common::assert_rows_agree(&model);
        assert_close(&all_tensors(&open(twin)), &all_tensors(&model), 0.0);
    }
}

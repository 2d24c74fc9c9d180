//! Cases A19 to A23 of `shared/cases`, as far as they concern checkpoints: which tensors are read, what is refused.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod common;

use std::path::Path;

use common::{all_tensors, assert_close, make_cases};
use serde_json::{Value, json};
use spinetail_checkpoint::Checkpoint;
use spinetail_core::{DenseSource, LayerKind};

fn refusal(folder: &Path) -> String {
    match Checkpoint::open(folder) {
        Ok(_) => panic!("{} was accepted", folder.display()),
        Err(e) => e.to_string(),
    }
}

fn edit(folder: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = folder.join(file);
    let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

fn names_all(text: &str, needles: &[&str]) {
    for n in needles {
        assert!(text.contains(n), "{n:?} is not in: {text}");
    }
}

#[test]
fn a19_one_is_added_once() {
    let Some(dir) = make_cases(&["base", "mlx-mtp-kept", "mlx-no-metadata"]) else { return };
    let open = |n: &str| Checkpoint::open(&dir.path().join(n)).unwrap();
    let base = all_tensors(&open("base"));
    assert_eq!(open("base").config().count(LayerKind::Attention), 1);
    assert_close(&base, &all_tensors(&open("mlx-no-metadata")), 0.0);
    let kept = open("mlx-mtp-kept");
    assert_eq!(kept.config().mtp_layers, 1);
    let mut kept = all_tensors(&kept);
    kept.retain(|k, _| base.contains_key(k));
    assert_close(&base, &kept, 0.0);
}

#[test]
fn a20_override_keys() {
    let keys = ["mixed-mlx-keys", "mixed-hf-keys", "mixed-bare-keys"];
    let Some(dir) = make_cases(&[&keys[..], &["mixed-twin"]].concat()) else { return };
    let twin = all_tensors(&Checkpoint::open(&dir.path().join("mixed-twin")).unwrap());
    for name in keys {
        // Norms of the twin had the 1 taken away in f32.
        assert_close(&twin, &all_tensors(&Checkpoint::open(&dir.path().join(name)).unwrap()), 1e-6);
    }
    let folder = dir.path().join("mixed-hf-keys");
    edit(&folder, "config.json", |c| {
        c["quantization"]["model.layers.9.mlp.gate"] = json!({"bits": 8, "group_size": 64});
    });
    names_all(&refusal(&folder), &["model.layers.9.mlp.gate"]);
    let folder = dir.path().join("mixed-mlx-keys");
    let key = "language_model.model.layers.0.linear_attn.in_proj_qkv";
    edit(&folder, "config.json", |c| c["quantization"][key]["bits"] = json!(5));
    names_all(&refusal(&folder), &[key, "5-bit", "6-bit", &format!("{key}.weight")]);
    edit(&folder, "config.json", |c| c["quantization"][key] = json!(false));
    names_all(&refusal(&folder), &[key, "unquantized"]);
    edit(&folder, "config.json", |c| {
        c["quantization"].as_object_mut().unwrap().remove(key);
    });
    names_all(&refusal(&folder), &["4-bit", "6-bit", &format!("{key}.weight")]);
}

#[test]
fn a21_fp8_blocks() {
    let Some(dir) = make_cases(&["fp8", "fp8-twin", "fp8-scale-lost"]) else { return };
    let open = |n: &str| Checkpoint::open(&dir.path().join(n)).unwrap();
    assert_close(&all_tensors(&open("fp8-twin")), &all_tensors(&open("fp8")), 1e-6);
    let lost = refusal(&dir.path().join("fp8-scale-lost"));
    names_all(&lost, &["model.layers.2.mlp.shared_expert.gate_proj.weight_scale_inv"]);
    let folder = dir.path().join("fp8");
    edit(&folder, "config.json", |c| c["quantization_config"]["quant_method"] = json!("awq"));
    names_all(&refusal(&folder), &["quantization_config.quant_method", "awq"]);
    edit(&folder, "config.json", |c| c["quantization_config"] = Value::Null);
    names_all(&refusal(&folder), &["F8_E4M3"]);
}

#[test]
fn a22_shards_and_index() {
    let Some(dir) = make_cases(&["base", "shard-missing", "shard-short", "shard-stray", "index-liar"]) else {
        return;
    };
    let at = |n: &str| dir.path().join(n);
    let base = all_tensors(&Checkpoint::open(&at("base")).unwrap());
    names_all(&refusal(&at("shard-missing")), &["model-00002-of-00003.safetensors"]);
    let second = at("shard-short").join("model-00002-of-00003.safetensors");
    let size = std::fs::metadata(second).unwrap().len();
    let short = refusal(&at("shard-short"));
    names_all(&short, &["model-00002-of-00003.safetensors", "model.layers.", &size.to_string()]);
    names_all(&short, &[&(size + 1000).to_string()]);
    assert_close(&base, &all_tensors(&Checkpoint::open(&at("shard-stray")).unwrap()), 0.0);
    let liar = refusal(&at("index-liar"));
    names_all(&liar, &["lm_head.weight", "model-00001-of-00003.safetensors", "model-0000"]);
    // Without an index, the three shards still make the model, and two of them do not.
    let folder = at("base");
    std::fs::remove_file(folder.join("model.safetensors.index.json")).unwrap();
    assert_close(&base, &all_tensors(&Checkpoint::open(&folder).unwrap()), 0.0);
    std::fs::remove_file(folder.join("model-00003-of-00003.safetensors")).unwrap();
    names_all(&refusal(&folder), &["model-00003-of-00003.safetensors"]);
}

#[test]
fn a23_rope_in_every_form() {
    let Some(dir) = make_cases(&["base"]) else { return };
    let folder = dir.path().join("base");
    let original = std::fs::read(folder.join("config.json")).unwrap();
    let with = |change: &dyn Fn(&mut Value)| {
        std::fs::write(folder.join("config.json"), &original).unwrap();
        edit(&folder, "config.json", |c| {
            c.as_object_mut().unwrap().remove("rope_parameters");
            change(c);
        });
        Checkpoint::open(&folder).map(|c| (c.config().attention.rope_theta, c.config().attention.rotary_dims))
    };
    let parameters = json!({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25});
    let right = (10000.0, 16);
    let a = with(&|c| {
        c["rope_theta"] = json!(10000.0);
        c["partial_rotary_factor"] = json!(0.25);
    });
    assert_eq!(a.unwrap(), right);
    assert_eq!(with(&|c| c["rope_parameters"] = parameters.clone()).unwrap(), right);
    let c = with(&|c| {
        c["rope_parameters"] = parameters.clone();
        c["rope_theta"] = json!(5_000_000);
    });
    assert_eq!(c.unwrap(), right);
    let d = with(&|c| {
        *c = json!({"model_type": "qwen3_5_moe", "text_config": c.clone(), "rope_parameters": parameters.clone()});
    });
    assert_eq!(d.unwrap(), right);
    names_all(&with(&|_| ()).unwrap_err().to_string(), &["rope_theta"]);
    let f = with(&|c| {
        c["rope_parameters"] = json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0});
    });
    names_all(&f.unwrap_err().to_string(), &["yarn", "rope_parameters.rope_type"]);
}

#[test]
fn pip_opens() {
    let Some(folder) = common::shared("models/pip") else {
        println!("skipped: shared/models is not here");
        return;
    };
    let pip = Checkpoint::open(&folder).unwrap();
    assert_eq!(pip.config().mtp_layers, 1);
    assert!(all_tensors(&pip).values().flatten().all(|v| v.is_finite()));
}

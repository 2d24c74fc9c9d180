//! Cases A19 to A23 by their logits: one model in many spellings, and checkpoints that must be refused.
//!
//! The checkpoints are written by `shared/cases/checkpoints.py`, with `SPINETAIL_TEST_PYTHON` (default `python3`) and
//! numpy; without them the tests say so and pass.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests stop at the first surprise and say what they skip"
)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use spinetail_engine::{Engine, EngineOptions, Observer, Precision};

/// Writes the named checkpoint below `root`.
fn make(root: &Path, name: &str) -> Option<PathBuf> {
    let script = common::shared().join("cases/checkpoints.py");
    let python = std::env::var("SPINETAIL_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let made = script.is_file()
        && Command::new(python).arg(script).arg(root).arg(name).output().is_ok_and(|o| o.status.success());
    if !made {
        println!("skipped: {name} needs shared/cases, python3 and numpy");
        return None;
    }
    Some(root.join(name))
}

#[derive(Default)]
struct Logits(Vec<Vec<f32>>);

impl Observer for Logits {
    fn logits(&mut self, _: usize, logits: &[f32]) {
        self.0.push(logits.to_vec());
    }
}

fn logits(folder: &Path) -> Vec<Vec<f32>> {
    let ids: Vec<u32> = serde_json::from_slice(&std::fs::read(folder.join("ids.json")).unwrap()).unwrap();
    let options = EngineOptions { precision: Precision::Exact, ..EngineOptions::default() };
    let engine = Engine::open(folder, &options, &mut |_, _| {});
    let engine = engine.unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut seen = Logits::default();
    engine.session().unwrap().evaluate(&ids, &mut seen).unwrap();
    seen.0
}

fn refusal(folder: &Path) -> String {
    match Engine::open(folder, &EngineOptions::default(), &mut |_, _| {}) {
        Ok(_) => panic!("{} was not refused", folder.display()),
        Err(e) => e.to_string(),
    }
}

/// Largest difference as a part of the range of `theirs`.
fn distance(ours: &[Vec<f32>], theirs: &[Vec<f32>]) -> f32 {
    let (ours, theirs) = (ours.concat(), theirs.concat());
    assert_eq!(ours.len(), theirs.len());
    let range =
        theirs.iter().copied().fold(f32::MIN, f32::max) - theirs.iter().copied().fold(f32::MAX, f32::min);
    ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / range
}

/// What transformers computed, as far as it was written down: argmax of each row, and the start of the last one.
fn assert_expected(name: &str, ours: &[Vec<f32>]) {
    let path = common::shared().join("cases/checkpoints_expected.json");
    let expected: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let expected = &expected[name];
    let range = expected["range"][1].as_f64().unwrap() - expected["range"][0].as_f64().unwrap();
    let argmax: Vec<usize> =
        ours.iter().map(|row| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()).collect();
    assert_eq!(json!(argmax), expected["argmax"], "{name}");
    for (i, theirs) in expected["last_row_first_8"].as_array().unwrap().iter().enumerate() {
        let d = (f64::from(ours[ours.len() - 1][i]) - theirs.as_f64().unwrap()).abs();
        assert!(d <= 1e-4 * range, "{name}: logit {i} of the last row differs by {d}");
    }
}

#[test]
fn one_model_in_every_spelling_gives_the_same_logits() {
    let root = tempfile::tempdir().unwrap();
    let Some(base) = make(root.path(), "base") else { return };
    let base = logits(&base);
    assert_expected("base", &base);
    for (twin, names) in [
        ("base", &["mlx-mtp-kept", "mlx-no-metadata", "shard-stray"][..]),
        ("mixed-twin", &["mixed-mlx-keys", "mixed-hf-keys", "mixed-bare-keys"]),
        ("fp8-twin", &["fp8"]),
    ] {
        let theirs = if twin == "base" { base.clone() } else { logits(&make(root.path(), twin).unwrap()) };
        assert_expected(twin, &theirs);
        for name in names {
            let d = distance(&logits(&make(root.path(), name).unwrap()), &theirs);
            assert!(d <= 1e-4, "{name}: {d:e} of the range from {twin}");
        }
    }
}

#[test]
fn broken_checkpoints_are_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    for (name, words) in [
        ("shard-missing", &["model-00002-of-00003.safetensors"][..]),
        ("shard-short", &["model-00002-of-00003.safetensors"]),
        (
            "index-liar",
            &["lm_head.weight", "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"],
        ),
        ("fp8-scale-lost", &["model.layers.2.mlp.shared_expert.gate_proj.weight_scale_inv"]),
    ] {
        let Some(folder) = make(root.path(), name) else { return };
        let message = refusal(&folder);
        for word in words {
            assert!(message.contains(word), "{name}: {message:?} does not name {word}");
        }
    }
}

#[test]
fn rope_is_read_in_every_form_and_never_guessed() {
    let root = tempfile::tempdir().unwrap();
    let Some(folder) = make(root.path(), "base") else { return };
    let base = logits(&folder);
    let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let block = json!({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25});
    let write = |rope: Value, nested: bool| {
        let mut c = config.as_object().unwrap().clone();
        c.remove("rope_parameters");
        let mut outer = if nested {
            json!({"model_type": "qwen3_5_moe", "text_config": c}).as_object().unwrap().clone()
        } else {
            c
        };
        outer.extend(rope.as_object().unwrap().clone());
        std::fs::write(folder.join("config.json"), Value::Object(outer).to_string()).unwrap();
    };
    let same = [
        (json!({"rope_theta": 10000.0, "partial_rotary_factor": 0.25}), false),
        (json!({"rope_parameters": block}), false),
        (json!({"rope_parameters": block}), true),
    ];
    for (rope, nested) in same {
        write(rope.clone(), nested);
        assert!(distance(&logits(&folder), &base) <= 1e-4, "{rope}, nested {nested}");
    }
    // A stale value beside the block: the block wins.
    write(json!({"rope_parameters": block, "rope_theta": 5_000_000}), false);
    assert!(distance(&logits(&folder), &base) <= 1e-4);
    write(json!({}), false);
    assert!(refusal(&folder).contains("rope_theta"));
    write(json!({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}}), false);
    assert!(refusal(&folder).contains("yarn"));
}

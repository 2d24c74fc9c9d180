//! Repacking: the container holds what the checkpoint holds, in the formats asked for, or nothing is written.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod common;

use std::path::Path;

use common::build::{self, Form, HF_35, HF_NEXT, MLX_35, MLX_NEXT};
use common::{all_tensors, assert_close, make_cases, write_safetensors};
use spinetail_checkpoint::{Checkpoint, CheckpointError, RepackOptions, Summary, open_model, repack};
use spinetail_core::{
    Affine, DType, DenseSource, Family, Format, ModelConfig, Part, RecordSource, Role, dense_specs,
};

fn options(bits: Option<u8>, group_size: Option<usize>) -> RepackOptions {
    RepackOptions { bits, group_size, ..RepackOptions::default() }
}

fn run(from: &Path, to: &Path, o: RepackOptions) -> Result<Summary, CheckpointError> {
    repack(from, to, o, &mut |_| true)
}

fn affine(bits: u8, scales: DType) -> Format {
    Format::Affine(Affine { bits, group_size: 32, scales })
}

#[track_caller]
fn names_all(text: &str, needles: &[&str]) {
    for n in needles {
        assert!(text.contains(n), "{n:?} is not in: {text}");
    }
}

#[test]
fn sixteen_bits_keep_everything() {
    for (family, form) in [
        (Family::Qwen3Next, Form { dtype: DType::Bf16, ..HF_NEXT }),
        (Family::Qwen35Moe, HF_35),
        (Family::Qwen35Moe, Form { dtype: DType::F16, ..MLX_35 }),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to.qpack"));
        let c = build::shape(family);
        build::write(&from, &c, &form);
        std::fs::write(from.join("tokenizer.json"), "{}").unwrap();
        std::fs::write(from.join("README.md"), "not needed").unwrap();
        run(&from, &to, options(Some(16), None)).unwrap();
        let model = open_model(&to).unwrap();
        assert_eq!(*model.config(), c);
        assert_eq!(model.dense_spec("embed_tokens").unwrap().format, Format::Plain(form.dtype));
        assert_close(&build::canonical(&c), &all_tensors(&*model), 0.0);
        assert!(to.join("tokenizer.json").exists() && to.join("config.json").exists());
        assert!(!to.join("README.md").exists());
        assert!(
            spinetail_container::verify(&to, &mut |_| std::ops::ControlFlow::Continue(()))
                .unwrap()
                .is_intact()
        );
    }
}

#[test]
fn quantizing_goes_by_role() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let c = build::shape(Family::Qwen3Next);
    build::write(&from, &c, &Form { dtype: DType::Bf16, ..HF_NEXT });
    for bits in [2, 3, 4, 5, 6, 8] {
        let to = dir.path().join(format!("{bits}.qpack"));
        run(&from, &to, options(Some(bits), Some(32))).unwrap();
        let model = open_model(&to).unwrap();
        for d in dense_specs(&c) {
            let expected = match d.role {
                Role::Matrix => affine(bits, DType::Bf16),
                Role::Sensitive => affine(8, DType::Bf16),
                Role::Vector => Format::Plain(DType::F32),
            };
            assert_eq!(model.dense_spec(&d.name).unwrap().format, expected, "{}", d.name);
        }
        for (layer, expected) in [(0, bits), (2, bits), (3, 8)] {
            let format = model.record_layout(layer).unwrap().down.spec.format;
            assert_eq!(format, affine(expected, DType::Bf16));
        }
        let step = 2.0 / ((1 << bits) - 1) as f32;
        assert_close(&build::canonical(&c), &all_tensors(&*model), step * 1.1);
    }
}

#[test]
fn repacking_is_what_mlx_would_store() {
    // The same weights quantized by the writer of the test, as MLX stores them, and by repacking.
    let c = ModelConfig { mtp_layers: 0, ..build::shape(Family::Qwen3Next) };
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    build::write(&at("hf"), &c, &HF_NEXT);
    build::write(&at("mlx"), &c, &Form { bits: Some((4, 32)), ..MLX_NEXT });
    run(&at("hf"), &at("a.qpack"), options(None, Some(32))).unwrap();
    run(&at("mlx"), &at("b.qpack"), options(None, None)).unwrap();
    let (a, b) = (open_model(&at("a.qpack")).unwrap(), open_model(&at("b.qpack")).unwrap());
    assert_close(&all_tensors(&*a), &all_tensors(&*b), 0.0);
    for file in ["dense.bin", "experts/layer_001.bin"] {
        let read = |n: &str| std::fs::read(at(n).join(file)).unwrap();
        assert!(read("a.qpack") == read("b.qpack"), "{file}");
    }
}

#[test]
fn a_quantized_source_keeps_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    let c = build::shape(Family::Qwen35Moe);
    build::write(&at("from"), &c, &Form { bits: Some((3, 32)), dtype: DType::F16, ..MLX_35 });
    let source = Checkpoint::open(&at("from")).unwrap();
    for (name, bits) in [("a", None), ("b", Some(3)), ("c", Some(16))] {
        run(&at("from"), &at(name), options(bits, None)).unwrap();
        let model = open_model(&at(name)).unwrap();
        assert_eq!(model.record_layout(0), source.record_layout(0));
        assert_close(&all_tensors(&source), &all_tensors(&*model), 0.0);
        for part in Part::ALL {
            let spec = source.dense_spec("lm_head").unwrap();
            let mut bytes = [(); 2].map(|()| vec![0; spec.part_bytes(part)]);
            source.read_dense("lm_head", part, &mut bytes[0]).unwrap();
            model.read_dense("lm_head", part, &mut bytes[1]).unwrap();
            assert_eq!(bytes[0], bytes[1]);
        }
    }
    let refused = run(&at("from"), &at("d"), options(Some(4), None)).unwrap_err().to_string();
    names_all(&refused, &["bits", "3", "4", "quantized already"]);
    let refused = run(&at("from"), &at("d"), options(None, Some(64))).unwrap_err().to_string();
    names_all(&refused, &["group size", "32", "64"]);
    assert!(!at("d").exists());
}

#[test]
fn refusals_come_before_the_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    let c = build::shape(Family::Qwen3Next);
    build::write(&at("from"), &c, &HF_NEXT);
    let refused = |bits, group| run(&at("from"), &at("to"), options(bits, group)).unwrap_err().to_string();
    // out_proj has 32 columns, shared down_proj 96, experts' down_proj 32.
    names_all(&refused(Some(4), None), &["layers.0.linear_attn.out_proj", "32", "group size 64"]);
    names_all(&refused(Some(7), None), &["bits", "7"]);
    names_all(&refused(None, Some(48)), &["group size", "48"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let mut tensors = build::encode(&c, &HF_NEXT);
    let bad = "model.layers.2.mlp.experts.1.up_proj.weight";
    tensors.get_mut(bad).unwrap().2[400..404].copy_from_slice(&f32::NAN.to_le_bytes());
    write_safetensors(&at("from").join("model.safetensors"), &tensors);
    names_all(&refused(None, Some(32)), &["layers.2.mlp.experts.1.up_proj", "NaN", "row 1, column 36"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn progress_ends_at_the_total_and_can_stop() {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    build::write(&at("from"), &build::shape(Family::Qwen35Moe), &HF_35);
    let (mut last, mut calls) = ((0, 1), 0);
    repack(&at("from"), &at("to"), options(Some(16), None), &mut |p| {
        last = (p.done_bytes, p.total_bytes);
        calls += 1;
        true
    })
    .unwrap();
    assert_eq!(last.0, last.1);
    let mut left = calls / 2;
    let stopped = repack(&at("from"), &at("to2"), options(Some(16), None), &mut |_| {
        left -= 1;
        left > 0
    });
    assert!(matches!(stopped, Err(CheckpointError::Cancelled)));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    let again = run(&at("to"), &at("to3"), options(None, None)).unwrap_err().to_string();
    names_all(&again, &["container of version 2"]);
}

#[test]
fn a22_nothing_under_the_final_name() {
    let names = ["shard-missing", "shard-short", "index-liar"];
    let Some(dir) = make_cases(&names) else { return };
    for name in names {
        run(&dir.path().join(name), &dir.path().join("out.qpack"), options(None, None)).unwrap_err();
        assert!(!dir.path().join("out.qpack").exists());
    }
}

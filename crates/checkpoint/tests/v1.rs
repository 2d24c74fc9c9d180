//! Version 1 containers, as Swiftlet writes them: opened as they are, and repacked.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::build::{self, Form, MLX_35, MLX_NEXT};
use common::{Raw, all_tensors, assert_close, write_safetensors};
use serde_json::json;
use spinetail_checkpoint::{Checkpoint, RepackOptions, open_model, repack};
use spinetail_core::{DType, Family, ModelConfig};

/// Writes what Swiftlet makes of an MLX checkpoint: sections back to back, strides of whole 16 KiB.
fn write_v1(folder: &Path, c: &ModelConfig, form: &Form, strip: bool) {
    let mut resident = build::encode(c, form);
    let (mut sections, mut offset) = (Vec::new(), 0);
    let experts = c.moe.experts;
    let mut layers: Vec<Vec<Vec<u8>>> = vec![vec![Vec::new(); experts]; c.layers.len()];
    for projection in ["gate_proj", "up_proj", "down_proj"] {
        for part in ["weight", "scales", "biases"] {
            for (i, records) in layers.iter_mut().enumerate() {
                let name = format!("{}layers.{i}.mlp.switch_mlp.{projection}.{part}", form.prefix);
                let Some((dtype, shape, bytes)) = resident.remove(&name) else { continue };
                let size = bytes.len() / experts;
                for (record, bytes) in records.iter_mut().zip(bytes.chunks_exact(size)) {
                    record.extend_from_slice(bytes);
                }
                if i == 0 {
                    let name = format!("{projection}.{part}");
                    sections.push(json!({"name": name, "dtype": dtype, "shape": shape[1..], "offset": offset, "size": size}));
                    offset += size;
                }
            }
        }
    }
    let stride = offset.next_multiple_of(16384);
    let packed = folder.join("packed_experts");
    std::fs::create_dir_all(&packed).unwrap();
    for (i, records) in layers.iter().enumerate() {
        let padded = |r: &Vec<u8>| [&r[..], &vec![0xee; stride - r.len()]].concat();
        let bytes: Vec<u8> = records.iter().flat_map(padded).collect();
        std::fs::write(packed.join(format!("layer_{i:02}.bin")), bytes).unwrap();
    }
    let layout = json!({"expertCount": experts, "layerCount": c.layers.len(), "expertStride": stride, "sections": sections});
    std::fs::write(packed.join("layout.json"), layout.to_string()).unwrap();
    if strip {
        let short = |k: String| k.strip_prefix("language_model.").map_or(k.clone(), str::to_owned);
        resident = resident.into_iter().map(|(k, v)| (short(k), v)).collect::<BTreeMap<String, Raw>>();
    }
    write_safetensors(&folder.join("model.safetensors"), &resident);
    std::fs::write(folder.join("config.json"), build::config_json(c, form).to_string()).unwrap();
    let manifest = json!({"magic": "QPACK", "version": 1, "modelName": "m", "files": {}});
    std::fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
}

#[test]
fn version_1_is_read_and_repacked() {
    let quantized = |form: &Form| Form { bits: Some((4, 32)), dtype: DType::Bf16, ..form.clone() };
    for (family, form, strip) in [
        (Family::Qwen3Next, quantized(&MLX_NEXT), false),
        (Family::Qwen35Moe, quantized(&MLX_35), false),
        (Family::Qwen35Moe, quantized(&MLX_35), true),
        (Family::Qwen35Moe, Form { dtype: DType::Bf16, ..MLX_35 }, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        let c = ModelConfig { mtp_layers: 0, ..build::shape(family) };
        build::write(&at("mlx"), &c, &form);
        write_v1(&at("v1"), &c, &form, strip);
        let expected = all_tensors(&Checkpoint::open(&at("mlx")).unwrap());
        let v1 = open_model(&at("v1")).unwrap();
        assert_eq!(*v1.config(), c);
        assert_close(&expected, &all_tensors(&*v1), 0.0);
        // Unquantized ones keep their bytes too when asked to.
        let bits = if form.bits.is_none() { Some(16) } else { None };
        let options = RepackOptions { bits, ..RepackOptions::default() };
        repack(&at("v1"), &at("v2"), options, &mut |_| true).unwrap();
        assert_close(&expected, &all_tensors(&*open_model(&at("v2")).unwrap()), 0.0);
    }
}

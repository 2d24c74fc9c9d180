//! Version 1 containers as Swiftlet writes them, built here from the description in `docs/format.md`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use spinetail_container::v1::V1;
use spinetail_container::{Container, Kind, detect, verify};
use spinetail_core::{DType, ExpertId, Format, ModelConfig, Part, Projection};

use crate::common::{affine, bytes_of};

const STRIDE: u64 = 16384;

fn config() -> ModelConfig {
    ModelConfig { mtp_layers: 0, ..crate::common::config() }
}

/// The sections of an expert, packed as Swiftlet packs them. `bits` 16 is unquantized.
fn sections(bits: usize) -> (Vec<Value>, u64) {
    let (mut out, mut at) = (Vec::new(), 0);
    for p in Projection::ALL {
        let (rows, columns) = if p == Projection::Down { (96, 64) } else { (64, 96) };
        let parts: &[(Part, &str, usize, usize)] = if bits == 16 {
            &[(Part::Weight, "BF16", columns, 2)]
        } else {
            &[
                (Part::Weight, "U32", columns * bits / 32, 4),
                (Part::Scales, "BF16", columns / 32, 2),
                (Part::Biases, "BF16", columns / 32, 2),
            ]
        };
        for &(part, dtype, width, bytes) in parts {
            let size = (rows * width * bytes) as u64;
            let name = format!("{}.{}", p.name(), part.suffix());
            out.push(
                json!({"name": name, "dtype": dtype, "shape": [rows, width], "offset": at, "size": size}),
            );
            at += size;
        }
    }
    (out, at)
}

struct Fixture {
    _dir: tempfile::TempDir,
    path: PathBuf,
    layout: Value,
}

impl Fixture {
    fn new(bits: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old.qpack");
        std::fs::create_dir_all(path.join("packed_experts")).unwrap();
        let (sections, end) = sections(bits);
        let stride = end.next_multiple_of(STRIDE);
        let layout = json!({
            "expertCount": 3, "layerCount": 2, "expertStride": stride, "sections": sections,
            "linearLayers": [true, false],
        });
        let this = Self { _dir: dir, path, layout };
        this.write("packed_experts/layout.json", &serde_json::to_vec(&this.layout).unwrap());
        for layer in 0..2 {
            let bytes = bytes_of(&format!("v1 {layer}"), 3 * stride as usize);
            this.write(&format!("packed_experts/layer_{layer:02}.bin"), &bytes);
        }
        // A safetensors file with no tensors: what is in it is not this crate's business.
        this.write("model.safetensors", b"\x02\0\0\0\0\0\0\0{}");
        this.write("config.json", b"{\"model_type\": \"qwen3_5_moe\"}");
        this.manifest(&json!({"model.safetensors": 10, "packed_experts/layer_00.bin": 3 * stride}));
        this
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path.join(name), bytes).unwrap();
    }

    fn manifest(&self, files: &Value) {
        let m = json!({"magic": "QPACK", "version": 1, "modelName": "qwen3_5_moe", "quantBits": 4,
            "quantGroupSize": 64, "sourceCheckpoint": "x", "files": files, "later": "key"});
        self.write("manifest.json", &serde_json::to_vec(&m).unwrap());
    }

    fn relayout(&self, change: impl FnOnce(&mut Value)) {
        let mut layout = self.layout.clone();
        change(&mut layout);
        self.write("packed_experts/layout.json", &serde_json::to_vec(&layout).unwrap());
    }

    fn error(&self) -> String {
        match V1::open(&self.path) {
            Err(e) => e.to_string(),
            Ok(v1) => v1.record_layout(&config()).unwrap_err().to_string(),
        }
    }
}

#[test]
fn quantized_records_are_read_as_they_are() {
    for bits in [2, 3, 4, 5, 6, 8] {
        let f = Fixture::new(bits);
        assert_eq!(detect(&f.path).unwrap(), Some(Kind::V1));
        let v1 = V1::open(&f.path).unwrap();
        assert_eq!(v1.manifest().model_name.as_deref(), Some("qwen3_5_moe"));
        assert_eq!(v1.config_json(), "{\"model_type\": \"qwen3_5_moe\"}");
        assert_eq!(v1.sections().len(), 9);
        assert_eq!(v1.dense_path(), f.path.join("model.safetensors"));
        let layout = v1.record_layout(&config()).unwrap();
        assert_eq!(layout.gate.spec.format, affine(bits as u8));
        assert_eq!(layout.down.spec.shape, [96, 64]);
        let file = std::fs::read(f.path.join("packed_experts/layer_01.bin")).unwrap();
        let stride = v1.stride_bytes() as usize;
        for room in [layout.bytes as usize, stride + 3] {
            let mut out = vec![0; room];
            v1.read_record(ExpertId { layer: 1, expert: 2 }, &mut out).unwrap();
            let read = if room > stride { stride } else { room };
            assert!(out[..read] == file[2 * stride..][..read]);
            // The sections lie where the layout says.
            let scales = layout.up.slice(&out, Part::Scales);
            let at = v1.sections().iter().find(|s| s.name == "up_proj.scales").unwrap().offset as usize;
            assert!(scales == &file[2 * stride + at..][..scales.len()]);
        }
        let mut out = vec![0; stride];
        assert!(v1.read_record(ExpertId { layer: 2, expert: 0 }, &mut out).is_err());
        assert!(v1.read_record(ExpertId { layer: 0, expert: 3 }, &mut out).is_err());
        assert!(v1.read_record(ExpertId { layer: 0, expert: 0 }, &mut out[..9]).is_err());
        assert!(Container::open(&f.path).is_err());
    }
}

#[test]
fn unquantized_records_have_only_weights() {
    let f = Fixture::new(16);
    let layout = V1::open(&f.path).unwrap().record_layout(&config()).unwrap();
    assert_eq!(layout.down.spec.format, Format::Plain(DType::Bf16));
    assert_eq!(layout.bytes, 3 * 64 * 96 * 2);
}

#[test]
fn sections_may_come_in_any_order_and_optional_things_may_be_missing() {
    let f = Fixture::new(4);
    f.relayout(|l| {
        l["sections"].as_array_mut().unwrap().reverse();
        l.as_object_mut().unwrap().remove("linearLayers");
    });
    f.manifest(&json!({"generation_config.json": 12, "merges.txt": 1}));
    let v1 = V1::open(&f.path).unwrap();
    v1.record_layout(&config()).unwrap();
    assert_eq!(v1.read_file("generation_config.json").unwrap(), None);
    assert!(v1.read_file("../x").is_err());
    f.write("manifest.json", br#"{"magic": "QPACK", "version": 1}"#);
    V1::open(&f.path).unwrap();
}

#[test]
fn hostile_layouts_are_refused_by_field() {
    let f = Fixture::new(4);
    let set = |pointer: &str, value: Value, says: &str| {
        f.relayout(|l| *l.pointer_mut(pointer).unwrap() = value.clone());
        let error = f.error();
        assert!(error.contains("layout.json") && error.contains(says), "{pointer} = {value}: {error}");
    };
    set("/expertCount", json!(0), "expertCount");
    set("/expertCount", json!(u64::MAX), "expertCount");
    set("/expertCount", json!("3"), "JSON");
    set("/layerCount", json!(100_000), "layerCount");
    set("/expertStride", json!(0), "expertStride");
    set("/expertStride", json!(u64::MAX), "expertStride");
    set("/expertStride", json!(STRIDE + 8), "expertStride");
    set("/sections/0/name", json!("../gate"), "name");
    set("/sections/0/name", json!("up_proj.weight"), "up_proj.weight");
    set("/sections/0/dtype", json!("F8_E4M3"), "dtype");
    set("/sections/0/shape", json!([u64::MAX, u64::MAX]), "shape");
    set("/sections/0/shape", json!([64]), "shape");
    set("/sections/0/shape", json!([64, 0]), "shape");
    set("/sections/0/size", json!(1), "size");
    set("/sections/0/offset", json!(u64::MAX), "offset");
    set("/sections/8/offset", json!(STRIDE * 4), "offset");
    set("/sections/1/offset", json!(8), "offset");
    set("/sections", json!([]), "gate_proj.weight");
    set("/sections/1/dtype", json!("U32"), "size");
    set("/linearLayers", json!([true]), "linearLayers");
    set("/linearLayers", json!([true, true]), "linearLayers[1]");
    set("/sections", json!(sections(8).0.iter().take(1).collect::<Vec<_>>()), "gate_proj.scales");
}

#[test]
fn contradictions_with_the_model_are_refused_by_name() {
    let f = Fixture::new(4);
    let v1 = V1::open(&f.path).unwrap();
    let refuse = |says: &str, change: &dyn Fn(&mut ModelConfig)| {
        let mut c = config();
        change(&mut c);
        let error = v1.record_layout(&c).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    };
    refuse("expertCount", &|c| c.moe.experts = 4);
    refuse("layerCount", &|c| c.layers.push(spinetail_core::LayerKind::Delta));
    refuse("linearLayers", &|c| c.layers.reverse());
    refuse("prediction heads", &|c| c.mtp_layers = 1);
    refuse("gate_proj.scales", &|c| c.hidden = 128);
    refuse("gate_proj.weight", &|c| c.moe.intermediate = 32);
    refuse("hidden_size", &|c| c.hidden = 0);
    // Twice the width at half the bits in groups of twice the size fits gate and up, but not down.
    refuse("down_proj.weight", &|c| c.hidden = 192);
}

#[test]
fn wrong_sizes_and_missing_files_are_refused_by_name() {
    let refuse = |says: &str, damage: &dyn Fn(&Path)| {
        let f = Fixture::new(4);
        damage(&f.path);
        let error = V1::open(&f.path).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    };
    for name in
        ["config.json", "model.safetensors", "packed_experts/layout.json", "packed_experts/layer_01.bin"]
    {
        refuse(name, &|p| std::fs::remove_file(p.join(name)).unwrap());
    }
    for (name, bytes) in
        [("model.safetensors", 11), ("packed_experts/layer_00.bin", 5), ("packed_experts/layer_01.bin", 5)]
    {
        refuse(name, &|p| std::fs::write(p.join(name), vec![0; bytes]).unwrap());
    }
    let f = Fixture::new(4);
    f.manifest(&json!({"../../etc/passwd": 3}));
    assert!(V1::open(&f.path).unwrap_err().to_string().contains("etc/passwd"));
}

#[cfg(unix)]
#[test]
fn links_to_regular_files_are_followed() {
    let f = Fixture::new(4);
    let (file, blob) = (f.path.join("model.safetensors"), f._dir.path().join("blob"));
    std::fs::rename(&file, &blob).unwrap();
    std::os::unix::fs::symlink(&blob, &file).unwrap();
    V1::open(&f.path).unwrap();
}

#[test]
fn verifying_checks_sizes_and_the_hashes_there_are() {
    let f = Fixture::new(4);
    let check = || verify(&f.path, &mut |_| ControlFlow::Continue(())).unwrap();
    let report = check();
    assert!(report.is_intact() && report.kind == Kind::V1, "{:?}", report.damage);
    assert_eq!((report.checked_items, report.unchecked.len()), (0, 5), "{:?}", report.unchecked);

    let hex = |name: &str| {
        let digest = Sha256::digest(std::fs::read(f.path.join(name)).unwrap());
        digest.iter().map(|b| format!("{b:02X}")).collect::<String>()
    };
    let layer = "packed_experts/layer_01.bin";
    let hashes = json!({"files": {layer: hex(layer), "config.json": hex("config.json")}});
    f.write("hashes.json", &serde_json::to_vec(&hashes).unwrap());
    let report = check();
    assert!(report.is_intact(), "{:?}", report.damage);
    assert_eq!((report.checked_items, report.unchecked.len()), (2, 3));

    f.write("config.json", b"{\"model_type\": \"qwen3_5_mod\"}");
    f.write("packed_experts/layer_00.bin", b"short");
    let report = check();
    let found: Vec<_> = report.damage.iter().map(|d| (d.file.as_str(), d.what.as_str())).collect();
    assert_eq!(found, [("packed_experts/layer_00.bin", "size"), ("config.json", "contents")]);

    f.write("hashes.json", br#"{"files": {"../x": "00"}}"#);
    assert!(verify(&f.path, &mut |_| ControlFlow::Continue(())).is_err());
}

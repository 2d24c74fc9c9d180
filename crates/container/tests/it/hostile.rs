//! Containers made to mislead: each is refused, by file and field, and nothing panics.

use std::fs::OpenOptions;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use spinetail_container::{Checksums, Container, ContainerError, Manifest, detect};
use xxhash_rust::xxh3::xxh3_64;

use crate::common::{copy, files, written};

fn manifest_text() -> Vec<u8> {
    let (_dir, path) = written();
    std::fs::read(path.join("manifest.json")).unwrap()
}

fn parse(bytes: &[u8]) -> Result<Manifest, ContainerError> {
    Manifest::parse(Path::new("manifest.json"), bytes)
}

/// Sets the value at a JSON pointer; a missing last key is added.
fn set(manifest: &mut Value, pointer: &str, value: Value) {
    if let Some(v) = manifest.pointer_mut(pointer) {
        *v = value;
        return;
    }
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    manifest.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.to_owned(), value);
}

#[test]
fn hostile_values_are_refused_by_field() {
    let good: Value = serde_json::from_slice(&manifest_text()).unwrap();
    let huge = u64::MAX;
    let cases = [
        ("/magic", json!("QPACk"), "magic"),
        ("/magic", json!(5), "magic"),
        ("/magic", json!(null), "magic"),
        ("/version", json!(3), "version"),
        ("/version", json!(0), "version"),
        ("/version", json!(-2), "version"),
        ("/version", json!("2"), "version"),
        ("/version", json!(2.5), "version"),
        ("/features", json!(["sparse_codes"]), "sparse_codes"),
        ("/features", json!([["sparse"]]), "features"),
        ("/features", json!("none"), "features"),
        ("/surprise", json!(1), "surprise"),
        ("/model/surprise", json!(1), "model.surprise"),
        ("/model/moe/surprise", json!(1), "model.moe.surprise"),
        ("/dense/tensors/3/surprise", json!(1), "dense.tensors[3].surprise"),
        ("/experts/layers/1/record/gate/format/affine/surprise", json!(1), "surprise"),
        ("/model/hidden", json!(0), "hidden_size"),
        ("/model/hidden", json!(huge), "hidden_size"),
        ("/model/hidden", json!(128), "shape"),
        ("/model/hidden", json!(-1), "hidden"),
        ("/model/hidden", json!("96"), "hidden"),
        ("/model/hidden", json!(1e300), "hidden"),
        ("/model/vocab", json!(huge), "vocab_size"),
        ("/model/attention/head_dim", json!(65536), "shape"),
        ("/model/moe/experts", json!(4097), "num_experts"),
        ("/model/moe/experts", json!(4), "mlp.gate.shape"),
        ("/model/mtp_layers", json!(2), "mtp"),
        ("/model/mtp_layers", json!(0), "dense.tensors"),
        ("/model/layers", json!([]), "num_hidden_layers"),
        ("/model/layers", json!(vec!["full_attention"; 600]), "num_hidden_layers"),
        ("/model/layers", json!(["full_attention", "mamba"]), "mamba"),
        ("/model/rms_norm_eps", json!(2.0), "rms_norm_eps"),
        ("/source/name", json!("a\u{1b}[2Jb"), "source.name"),
        ("/source/files/0/sha256", json!("zz"), "source.files[0].sha256"),
        ("/created_by", json!("x".repeat(5000)), "created_by"),
        ("/files/0/path", json!("../config.json"), "files[0].path"),
        ("/files/0/path", json!("/etc/passwd"), "files[0].path"),
        ("/files/0/path", json!("C:\\x"), "files[0].path"),
        ("/files/0/path", json!("experts/layer_000.bin"), "files[0].path"),
        ("/files/0/path", json!("dense.bin"), "files[0].path"),
        ("/files/0/path", json!("Manifest.json"), "files[0].path"),
        ("/files/0/path", json!("writing.lock"), "files[0].path"),
        ("/files/0/path", json!("TOKENIZER.json"), "files[1].path"),
        ("/files/0/path", json!(""), "files[0].path"),
        ("/files/0/bytes", json!(huge), "files[0].bytes"),
        ("/files/0/sha256", json!("ABCD"), "files[0].sha256"),
        ("/dense/file", json!("../dense.bin"), "dense.file"),
        ("/dense/file", json!("/dev/zero"), "dense.file"),
        ("/dense/alignment", json!(1), "dense.alignment"),
        ("/dense/bytes", json!(huge), "dense.bytes"),
        ("/dense/bytes", json!(0), "dense.bytes"),
        ("/dense/tensors", json!([]), "dense.tensors[0]"),
        ("/dense/tensors/0/name", json!("lm_head"), "dense.tensors[0].name"),
        ("/dense/tensors/0/shape", json!([huge, huge]), "shape"),
        ("/dense/tensors/0/shape", json!([]), "shape"),
        ("/dense/tensors/0/offsets/0", json!(huge), "offset of weight"),
        ("/dense/tensors/0/offsets/0", json!(1), "offset of weight"),
        ("/dense/tensors/1/offsets/0", json!(0), "offset of weight"),
        ("/dense/tensors/1/offsets/0", json!(1u64 << 40), "offset of weight"),
        ("/dense/tensors/1/offsets/1", json!(64), "offsets"),
        ("/dense/tensors/0/offsets", json!([0, 0]), "length"),
        ("/dense/tensors/0/format", json!({"plain": "f64"}), "f64"),
        ("/dense/tensors/1/format", json!({"plain": "bf16"}), "f32"),
        (
            "/dense/tensors/0/format",
            json!({"affine": {"bits": 7, "group_size": 32, "scales": "bf16"}}),
            "7-bit",
        ),
        (
            "/dense/tensors/0/format",
            json!({"affine": {"bits": 4, "group_size": 0, "scales": "bf16"}}),
            "groups",
        ),
        (
            "/dense/tensors/0/format",
            json!({"affine": {"bits": 4, "group_size": 64, "scales": "bf16"}}),
            "group",
        ),
        ("/experts/alignment", json!(0), "experts.alignment"),
        ("/experts/alignment", json!(1u64 << 63), "experts.alignment"),
        ("/experts/expert_count", json!(huge), "experts.expert_count"),
        ("/experts/expert_count", json!(2), "experts.expert_count"),
        ("/experts/layers", json!([]), "experts.layers"),
        ("/experts/layers/1/layer", json!(0), "experts.layers[1].layer"),
        ("/experts/layers/1/file", json!("experts/layer_000.bin"), "experts.layers[1].file"),
        ("/experts/layers/1/file", json!("experts/../../x"), "experts.layers[1].file"),
        ("/experts/layers/0/stride_bytes", json!(huge), "stride_bytes"),
        ("/experts/layers/0/stride_bytes", json!(0), "stride_bytes"),
        ("/experts/layers/0/stride_bytes", json!(4097), "stride_bytes"),
        ("/experts/layers/0/record/bytes", json!(huge), "record.bytes"),
        ("/experts/layers/0/record/bytes", json!(64), "record.gate"),
        ("/experts/layers/0/record/gate/offsets/0", json!(huge), "offset of weight"),
        ("/experts/layers/0/record/gate/offsets/0", json!(huge - 63), "offset of weight"),
        ("/experts/layers/0/record/gate/offsets/0", json!(8), "offset of weight"),
        ("/experts/layers/0/record/up/offsets/0", json!(0), "record.up: offset of weight"),
        ("/experts/layers/0/record/down/offsets/2", json!(0), "offset of"),
        ("/experts/layers/0/record/gate/shape", json!([96, 64]), "record.gate.shape"),
        ("/experts/layers/0/record/down/shape", json!([64, 96]), "record.down.shape"),
        ("/experts/layers/0/record", json!({}), "gate"),
    ];
    parse(&serde_json::to_vec(&good).unwrap()).unwrap();
    for (pointer, value, says) in cases {
        let mut manifest = good.clone();
        set(&mut manifest, pointer, value.clone());
        let error = parse(&serde_json::to_vec(&manifest).unwrap()).expect_err(pointer).to_string();
        assert!(error.contains("manifest.json") && error.contains(says), "{pointer} = {value}: {error}");
    }
}

#[test]
fn missing_extra_and_doubled_keys_are_refused() {
    let good: Value = serde_json::from_slice(&manifest_text()).unwrap();
    for key in good.as_object().unwrap().keys() {
        let mut manifest = good.clone();
        manifest.as_object_mut().unwrap().remove(key);
        let error = parse(&serde_json::to_vec(&manifest).unwrap()).expect_err(key).to_string();
        assert!(error.contains(key.as_str()), "{key}: {error}");
    }
    let mut manifest = good.clone();
    let tensors = manifest["dense"]["tensors"].as_array_mut().unwrap();
    let last = tensors.last().unwrap().clone();
    tensors.push(last);
    assert!(
        parse(&serde_json::to_vec(&manifest).unwrap()).unwrap_err().to_string().contains("dense.tensors[")
    );
    let text = String::from_utf8(serde_json::to_vec(&good).unwrap()).unwrap();
    let doubled = text.replacen("\"hidden\":96", "\"hidden\":96,\"hidden\":96", 1);
    assert_ne!(doubled, text);
    assert!(parse(doubled.as_bytes()).unwrap_err().to_string().contains("hidden"));
}

#[test]
fn a_newer_version_is_refused_before_its_form_is_looked_at() {
    let error = parse(br#"{"magic": "QPACK", "version": 9, "anything": {"at": "all"}}"#).unwrap_err();
    assert!(matches!(error, ContainerError::Version { found: 9, .. }));
    assert!(error.to_string().contains("upgrade spinetail"), "{error}");
    let error = parse(br#"{"magic": "QPACK", "version": 2, "features": ["warp"], "x": 1}"#).unwrap_err();
    assert!(matches!(&error, ContainerError::Feature { feature, .. } if feature == "warp"));
    assert!(error.to_string().contains("upgrade spinetail"), "{error}");
}

#[test]
fn what_is_not_json_is_refused() {
    for text in
        ["", "[]", "null", "\"QPACK\"", "{", "{\"magic\"", "\u{0}", "{\"magic\":\"QPACK\",\"version\":2}"]
    {
        assert!(parse(text.as_bytes()).is_err(), "{text:?}");
    }
    assert!(parse(&[0xff, 0xfe, 0x00]).is_err());
    for deep in ["[".repeat(100_000), "{\"magic\":".repeat(100_000)] {
        assert!(parse(deep.as_bytes()).is_err());
    }
    let deep =
        format!("{{\"magic\": \"QPACK\", \"version\": 2, \"features\": [], \"model\": {}", "[".repeat(5000));
    assert!(parse(deep.as_bytes()).is_err());
    let long = vec![b' '; 9 << 20];
    assert!(parse(&long).unwrap_err().to_string().contains("size"));
}

/// Replaces the manifest and makes `checksums.bin` agree with it, as someone with intent would.
fn replace_manifest(path: &Path, manifest: &[u8]) {
    std::fs::write(path.join("manifest.json"), manifest).unwrap();
    let mut sums = std::fs::read(path.join("checksums.bin")).unwrap();
    sums[16..48].copy_from_slice(&Sha256::digest(manifest));
    seal(&mut sums);
    std::fs::write(path.join("checksums.bin"), sums).unwrap();
}

fn seal(sums: &mut [u8]) {
    let body = sums.len() - 8;
    let sum = xxh3_64(&sums[..body]);
    sums[body..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_manifest_that_contradicts_the_files_is_refused() {
    let (_dir, path) = written();
    let good: Value = serde_json::from_slice(&manifest_text()).unwrap();
    replace_manifest(&path, &serde_json::to_vec(&good).unwrap());
    Container::open(&path).unwrap();
    let mut manifest = good.clone();
    set(&mut manifest, "/files/0/bytes", json!(1));
    replace_manifest(&path, &serde_json::to_vec(&manifest).unwrap());
    assert!(Container::open(&path).unwrap_err().to_string().contains("config.json: size: expected 1 bytes"));
    set(&mut manifest, "/files/0/bytes", good["files"][0]["bytes"].clone());
    set(&mut manifest, "/files/0/path", json!("absent.json"));
    replace_manifest(&path, &serde_json::to_vec(&manifest).unwrap());
    assert!(Container::open(&path).unwrap_err().to_string().contains("absent.json"));
}

#[test]
fn counts_in_the_checksum_file_must_be_the_manifests() {
    let (_dir, path) = written();
    let good = std::fs::read(path.join("checksums.bin")).unwrap();
    for at in [48, 52, 56, 60] {
        for value in [0u32, 1, 4097, u32::MAX] {
            let mut sums = good.clone();
            sums[at..at + 4].copy_from_slice(&value.to_le_bytes());
            if sums == good {
                continue;
            }
            seal(&mut sums);
            std::fs::write(path.join("checksums.bin"), &sums).unwrap();
            assert!(Container::open(&path).is_err(), "{value} at {at}");
        }
    }
    // Swapped counts give the same size; only the manifest tells.
    let mut sums = good.clone();
    let parts = u32::from_le_bytes(good[48..52].try_into().unwrap());
    sums[48..52].copy_from_slice(&(parts + 9).to_le_bytes());
    sums[52..56].copy_from_slice(&0u32.to_le_bytes());
    seal(&mut sums);
    Checksums::parse(Path::new("checksums.bin"), &sums).unwrap();
    std::fs::write(path.join("checksums.bin"), &sums).unwrap();
    let error = Container::open(&path).unwrap_err().to_string();
    assert!(error.contains("dense parts"), "{error}");
}

#[test]
fn files_cut_short_lengthened_or_missing_are_refused_by_name() {
    let (dir, good) = written();
    for (i, name) in files(&good).into_iter().enumerate() {
        let path = dir.path().join(format!("{i}.qpack"));
        copy(&good, &path);
        let file = path.join(&name);
        let len = file.metadata().unwrap().len();
        for bytes in [len - 1, len + 1, 0, len + (1 << 40)] {
            OpenOptions::new().write(true).open(&file).unwrap().set_len(bytes).unwrap();
            let error = Container::open(&path).expect_err(&name).to_string();
            assert!(error.contains(&name), "{name} of {bytes} bytes: {error}");
        }
        std::fs::remove_file(&file).unwrap();
        let error = Container::open(&path).expect_err(&name).to_string();
        assert!(error.contains(if name == "manifest.json" { "not a container" } else { &name }), "{error}");
        std::fs::create_dir(&file).unwrap();
        assert!(Container::open(&path).is_err());
        std::fs::remove_dir_all(&path).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn links_are_refused() {
    let (dir, path) = written();
    for name in files(&path) {
        let (file, elsewhere) = (path.join(&name), dir.path().join("elsewhere"));
        std::fs::rename(&file, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        let error = Container::open(&path).expect_err(&name).to_string();
        assert!(error.contains("symbolic link"), "{error}");
        std::fs::remove_file(&file).unwrap();
        std::fs::rename(&elsewhere, &file).unwrap();
    }
    let (folder, elsewhere) = (path.join("experts"), dir.path().join("elsewhere"));
    std::fs::rename(&folder, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &folder).unwrap();
    assert!(Container::open(&path).unwrap_err().to_string().contains("symbolic link"));
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&elsewhere, &folder).unwrap();
    Container::open(&path).unwrap();
}

#[test]
fn folders_that_are_no_container_say_so() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(detect(dir.path()).unwrap(), None);
    assert_eq!(detect(&dir.path().join("absent")).unwrap(), None);
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    assert_eq!(detect(&file).unwrap(), None);
    assert!(matches!(Container::open(dir.path()), Err(ContainerError::NotAContainer { .. })));
    std::fs::write(dir.path().join("manifest.json"), br#"{"name": "an app"}"#).unwrap();
    assert!(detect(dir.path()).unwrap_err().to_string().contains("magic"));
}

/// Every place in a JSON value, as pointers.
fn places(value: &Value, at: String, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, v)| places(v, format!("{at}/{key}"), out));
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, v)| places(v, format!("{at}/{i}"), out));
        }
        _ => {}
    }
    out.push(at);
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|b| json!(b)),
        any::<u64>().prop_map(|n| json!(n)),
        (0u64..300).prop_map(|n| json!(n)),
        (0u32..64).prop_map(|n| json!(1u64 << n)),
        any::<i64>().prop_map(|n| json!(n)),
        any::<f64>().prop_map(|n| json!(n)),
        ".{0,12}".prop_map(|s| json!(s)),
        Just(json!([])),
        Just(json!({})),
        Just(json!([0, 0, 0])),
        Just(json!({"plain": "f32"})),
        Just(json!({"affine": {"bits": 8, "group_size": 32, "scales": "f32"}})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_manifest_changed_anywhere_never_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4),
    ) {
        static GOOD: std::sync::OnceLock<Value> = std::sync::OnceLock::new();
        let mut manifest =
            GOOD.get_or_init(|| serde_json::from_slice(&manifest_text()).unwrap()).clone();
        for (index, value) in edits {
            let mut all = Vec::new();
            places(&manifest, String::new(), &mut all);
            set(&mut manifest, &all[index.index(all.len())], value);
        }
        // What is accepted has to add up without overflow.
        if let Ok(m) = parse(&serde_json::to_vec(&manifest).unwrap()) {
            let parts = m.dense_parts();
            prop_assert!(parts.iter().all(|p| p.offset + p.bytes <= p.end && p.end <= m.dense.bytes));
            prop_assert!(m.total_bytes() > 0);
        }
    }

    #[test]
    fn bytes_changed_anywhere_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        static GOOD: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let mut text = GOOD.get_or_init(manifest_text).clone();
        for (index, byte) in edits {
            let at = index.index(text.len());
            text[at] = byte;
        }
        if let Some(cut) = cut {
            text.truncate(cut.index(text.len()));
        }
        let _ = parse(&text);
        let _ = Checksums::parse(Path::new("checksums.bin"), &text);
    }
}

//! Repacking bytes as they arrive gives what repacking the folder gives, however they arrive.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::build::{self, Experts, Form, HF_35, HF_NEXT, MLX_35, MLX_NEXT};
use common::{Raw, write_safetensors};
use spinetail_checkpoint::stream::{self, Shard, StreamPlan, StreamRepack, StreamSource};
use spinetail_checkpoint::{CheckpointError, RepackOptions, SMALL_FILES, repack};
use spinetail_container::Opened;
use spinetail_core::{DType, Family, ModelConfig};

/// A checkpoint in memory, as a source has it.
struct Remote {
    config: Vec<u8>,
    index: Option<Vec<u8>>,
    files: Vec<(String, Vec<u8>)>,
}

impl Remote {
    fn read(folder: &Path) -> Self {
        let read = |n: &str| std::fs::read(folder.join(n)).ok();
        let index = read(stream::INDEX);
        let listed: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        let names = stream::shard_names(folder, index.as_deref(), Some(&listed)).unwrap();
        let files = names.into_iter().map(|n| (n.clone(), read(&n).unwrap())).collect();
        Self { config: read("config.json").unwrap(), index, files }
    }

    fn plan(&self, o: RepackOptions) -> Result<StreamPlan, CheckpointError> {
        let shard = |(name, bytes): &(String, Vec<u8>)| {
            let file = Path::new(name);
            let n = stream::header_bytes(file, *bytes.first_chunk().unwrap(), bytes.len() as u64).unwrap();
            let header = bytes[8..8 + n as usize].to_vec();
            Shard { name: name.clone(), bytes: bytes.len() as u64, header }
        };
        let shards = self.files.iter().map(shard).collect();
        let (config, index) = (self.config.as_slice(), self.index.as_deref());
        StreamPlan::new(StreamSource { name: "from", revision: None, config, index, shards }, o)
    }
}

/// Splits the tensors over `n` files, in an order of names that has nothing to do with their use.
fn shard(folder: &Path, tensors: BTreeMap<String, Raw>, n: usize) {
    let mut shards = vec![BTreeMap::new(); n];
    let mut map = serde_json::Map::new();
    let name = |i: usize| format!("model-{:05}-of-{n:05}.safetensors", i + 1);
    for (i, (tensor, raw)) in tensors.into_iter().enumerate() {
        let to = i * 7919 % n;
        map.insert(tensor.clone(), name(to).into());
        shards[to].insert(tensor, raw);
    }
    for (i, tensors) in shards.iter().enumerate() {
        write_safetensors(&folder.join(name(i)), tensors);
    }
    let index = serde_json::json!({"weight_map": map});
    std::fs::write(folder.join(stream::INDEX), index.to_string()).unwrap();
}

/// Feeds everything in pieces of changing size, files in turn; a new process, as it were, now and then.
fn feed(remote: &Remote, output: &Path, o: RepackOptions, sizes: &[usize], restarts: usize) {
    let total: usize = remote.files.iter().map(|f| f.1.len()).sum();
    let mut at = vec![0usize; remote.files.len()];
    for run in 0..=restarts {
        let (mut repack, opened) = StreamRepack::open(output, remote.plan(o).unwrap(), &[]).unwrap();
        assert_eq!(opened, if run == 0 { Opened::New } else { Opened::Resumed });
        let until = total * (run + 1) / (restarts + 1);
        let mut step = 0;
        while at.iter().sum::<usize>() < until {
            let file = step % at.len();
            step += 1;
            let bytes = &remote.files[file].1[at[file]..];
            // Never less than a unit, or nothing moves.
            let n = sizes[step % sizes.len()].max(repack.unit_bytes(file)).min(bytes.len());
            at[file] += repack.write(file, at[file] as u64, &bytes[..n]).unwrap();
        }
        if run < restarts {
            // What was written after the last note that survived comes again.
            at[run % remote.files.len()] = 0;
        } else {
            for name in SMALL_FILES.iter().filter(|n| **n == "config.json") {
                repack.add_file(name, &remote.config).unwrap();
            }
            let hashes = vec!["0".repeat(64); at.len()];
            repack.finish(&hashes, &[], &mut |_| true).unwrap();
            return;
        }
    }
}

fn same_but_for_the_source(a: &Path, b: &Path) {
    let read = |at: &Path, name: &str| std::fs::read(at.join(name)).unwrap();
    let mut names = vec!["dense.bin".to_owned(), "config.json".to_owned()];
    names.extend(
        std::fs::read_dir(a.join("experts"))
            .unwrap()
            .map(|e| format!("experts/{}", e.unwrap().file_name().to_string_lossy())),
    );
    for name in names {
        assert!(read(a, &name) == read(b, &name), "{name}");
    }
    let manifest = |at: &Path| -> serde_json::Value {
        let mut json: serde_json::Value = serde_json::from_slice(&read(at, "manifest.json")).unwrap();
        for file in json["source"]["files"].as_array_mut().unwrap() {
            file.as_object_mut().unwrap().remove("sha256");
        }
        json
    };
    assert_eq!(manifest(a), manifest(b));
    // The manifest's hash, and with it the last one, differ.
    let sums = |at: &Path| {
        let mut bytes = read(at, "checksums.bin");
        bytes[16..48].fill(0);
        bytes.truncate(bytes.len() - 8);
        bytes
    };
    assert!(sums(a) == sums(b));
}

#[test]
fn every_form_streams_to_what_repacking_makes_of_it() {
    let bf16 = |form: Form| Form { dtype: DType::Bf16, ..form };
    let (next, moe) = (Family::Qwen3Next, Family::Qwen35Moe);
    let quantize = |bits| RepackOptions { bits: Some(bits), group_size: Some(32), ..Default::default() };
    let keep = RepackOptions::default();
    let cases: Vec<(Family, Form, usize, RepackOptions)> = vec![
        (next, bf16(HF_NEXT), 1, quantize(4)),
        (next, HF_NEXT, 3, quantize(3)),
        (next, bf16(HF_NEXT), 4, quantize(16)),
        (moe, bf16(HF_35), 2, quantize(4)),
        (
            moe,
            Form { dtype: DType::F16, ..HF_35 },
            5,
            RepackOptions { record_alignment: 4096, ..quantize(8) },
        ),
        (moe, bf16(Form { experts: Experts::Unfused, ..HF_35 }), 3, quantize(2)),
        (next, Form { bits: Some((4, 32)), ..bf16(MLX_NEXT) }, 2, keep),
        (moe, Form { bits: Some((3, 32)), ..bf16(MLX_35) }, 3, keep),
        (moe, bf16(MLX_35), 1, quantize(5)),
    ];
    for (i, (family, form, shards, o)) in cases.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        let c: ModelConfig = build::shape(family);
        build::write(&at("from"), &c, &form);
        if shards > 1 {
            std::fs::remove_file(at("from").join("model.safetensors")).unwrap();
            shard(&at("from"), build::encode(&c, &form), shards);
        }
        repack(&at("from"), &at("a.qpack"), o, &mut |_| true).unwrap();
        let remote = Remote::read(&at("from"));
        feed(&remote, &at("b.qpack"), o, &[1 << 20], 0);
        same_but_for_the_source(&at("a.qpack"), &at("b.qpack"));
        feed(&remote, &at("c.qpack"), o, &[1, 333, 4096, 77, 10_000], 3 + i % 3);
        same_but_for_the_source(&at("a.qpack"), &at("c.qpack"));
    }
}

#[test]
fn what_repacking_refuses_is_refused_and_so_is_what_needs_two_places() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let c = build::shape(Family::Qwen3Next);
    build::write(&from, &c, &HF_NEXT);
    let mut remote = Remote::read(&from);
    let refused = |remote: &Remote, bits| {
        let o = RepackOptions { bits, group_size: Some(32), ..Default::default() };
        remote.plan(o).unwrap_err().to_string()
    };
    assert!(refused(&remote, Some(7)).contains("bits"));
    let cut = remote.files[0].1.len() - 1;
    remote.files[0].1.truncate(cut);
    let e = refused(&remote, None);
    assert!(e.contains("from/model.safetensors") && e.contains("cut short"), "{e}");
    let text = |v: serde_json::Value| v.to_string().into_bytes();
    let mut tied = build::config_json(&c, &HF_NEXT);
    tied["tie_word_embeddings"] = true.into();
    let mut remote = Remote::read(&from);
    remote.config = text(tied);
    let e = refused(&remote, None);
    assert!(e.contains("lm_head.weight") && e.contains("download"), "{e}");
    remote.config = b"{}".to_vec();
    assert!(refused(&remote, None).contains("model_type"));
    let names = |index: Option<&[u8]>, listed: &[&str]| {
        let listed: Vec<String> = listed.iter().map(|s| (*s).to_owned()).collect();
        stream::shard_names(Path::new("from"), index, Some(&listed)).unwrap_err().to_string()
    };
    let e = names(None, &["model-00001-of-00002.safetensors", "x"]);
    assert!(e.contains("model-00002-of-00002.safetensors"), "{e}");
    let e = names(Some(br#"{"weight_map": {"a": "b.safetensors"}}"#), &["c.safetensors"]);
    assert!(e.contains("b.safetensors"), "{e}");
    assert!(names(Some(br#"{"weight_map": {"a": "../b"}}"#), &[]).contains("same folder"));
}

#[test]
fn a_weight_that_no_code_stands_for_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let c = build::shape(Family::Qwen3Next);
    build::write(dir.path(), &c, &HF_NEXT);
    let mut tensors = build::encode(&c, &HF_NEXT);
    let bad = "model.layers.2.mlp.experts.1.up_proj.weight";
    tensors.get_mut(bad).unwrap().2[400..404].copy_from_slice(&f32::NAN.to_le_bytes());
    write_safetensors(&dir.path().join("model.safetensors"), &tensors);
    let remote = Remote::read(dir.path());
    let o = RepackOptions { group_size: Some(32), ..Default::default() };
    let (repack, _) = StreamRepack::open(&dir.path().join("o"), remote.plan(o).unwrap(), &[]).unwrap();
    let e = repack.write(0, 0, &remote.files[0].1).unwrap_err().to_string();
    assert!(
        ["layers.2.mlp.experts.1.up_proj", "NaN", "row 1, column 36"].iter().all(|s| e.contains(s)),
        "{e}"
    );
}

#[test]
fn plans_tell_files_apart_by_what_becomes_of_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let c = build::shape(Family::Qwen35Moe);
    build::write(dir.path(), &c, &HF_35);
    let remote = Remote::read(dir.path());
    let print = |bits, alignment| {
        let o = RepackOptions { bits, group_size: Some(32), record_alignment: alignment };
        remote.plan(o).unwrap().fingerprint(0)
    };
    assert_eq!(print(Some(4), 4096), print(None, 16384));
    assert_ne!(print(Some(4), 4096), print(Some(5), 4096));
    assert_ne!(print(Some(4), 4096), print(Some(16), 4096));
}

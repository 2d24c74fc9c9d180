//! Every kind of source, well behaved: what comes out, what is asked for, and what a second run asks for.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::checkpoint::build::{self, Form, HF_35, MLX_NEXT};
use common::server::{Server, hex};
use common::{assert_intact, assert_only, assert_same_data, contents, hub_request, run, settings};
use sha2::{Digest, Sha256};
use spinetail_checkpoint::{RepackOptions, repack};
use spinetail_container::{Container, Kind};
use spinetail_core::{DType, Family};
use spinetail_hub::{HubError, ModelKind, PullRequest, Source, list_models, remove_model};

fn checkpoint(folder: &Path, family: Family, form: &Form) {
    build::write(folder, &build::shape(family), form);
    std::fs::write(folder.join("tokenizer.json"), "{\"t\": 1}").unwrap();
    std::fs::write(folder.join("README.md"), "not needed").unwrap();
}

fn options(bits: Option<u8>) -> RepackOptions {
    RepackOptions { bits, group_size: Some(32), ..RepackOptions::default() }
}

#[test]
fn a_checkpoint_is_repacked_on_the_way() {
    for (family, form, bits) in [
        (Family::Qwen35Moe, Form { dtype: DType::Bf16, ..HF_35 }, Some(4)),
        (Family::Qwen3Next, Form { bits: Some((4, 32)), dtype: DType::Bf16, ..MLX_NEXT }, None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("deep/er/to.qpack"));
        checkpoint(&from, family, &form);
        repack(&from, &dir.path().join("a.qpack"), options(bits), &mut |_| true).unwrap();
        let server = Server::of(contents(&from), |_| None);
        let mut request = hub_request(&to);
        request.options = options(bits);
        let (result, notes) = run(&request, &settings(&server.endpoint()));
        let summary = result.unwrap();
        assert!(summary.repacked && !summary.already_there && notes.is_empty(), "{notes:?}");
        assert_eq!(summary.bytes, contents(&to).values().map(|b| b.len() as u64).sum::<u64>());
        assert_only(to.parent().unwrap(), &["to.qpack"]);
        assert_intact(&to);
        assert_same_data(&dir.path().join("a.qpack"), &to);
        let manifest = Container::open(&to).unwrap().manifest().clone();
        assert_eq!(manifest.source.revision, Some("a".repeat(40)));
        assert_eq!(manifest.source.name, "acme/tiny");
        let file = &contents(&from)["model.safetensors"];
        assert_eq!(manifest.source.files[0].sha256, Some(hex(&Sha256::digest(file))));
        // The token to the hub, never to the CDN; no encoding but the file's own; nothing that is not needed.
        let requests = server.requests();
        assert!(requests.iter().all(|r| r.authorization.is_some() != r.cdn));
        assert!(requests.iter().all(|r| r.encoding.as_deref() == Some("identity")));
        assert!(!requests.iter().any(|r| r.path.ends_with("README.md")));
        // Again: two questions, no bytes.
        let again = run(&request, &settings(&server.endpoint())).0.unwrap();
        assert!(again.already_there && again.received_bytes == 0);
        assert!(server.requests().iter().all(|r| r.path.starts_with("/api/")));
        // With other wishes, or of another commit, it is not what is there.
        request.options.bits = Some(8);
        let e = run(&request, &settings(&server.endpoint())).0.unwrap_err();
        assert!(matches!(e, HubError::Exists { .. }) && e.to_string().contains("4 bits"), "{e}");
        request.options.bits = None;
        server.change(&"b".repeat(40), contents(&from));
        let e = run(&request, &settings(&server.endpoint())).0.unwrap_err();
        assert!(e.to_string().contains(&"b".repeat(40)), "{e}");
    }
}

/// A small container of version 2, made from a checkpoint.
fn container(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let (from, to) = (dir.join("from"), dir.join("made.qpack"));
    checkpoint(&from, Family::Qwen35Moe, &Form { dtype: DType::Bf16, ..HF_35 });
    repack(&from, &to, options(Some(4)), &mut |_| true).unwrap();
    contents(&to)
}

/// A container of version 1 of sorts: the right files of the right lengths.
fn version_1() -> BTreeMap<String, Vec<u8>> {
    let layout = serde_json::json!({
        "expertCount": 2, "layerCount": 2, "expertStride": 16384,
        "sections": [{"name": "gate_proj.weight", "dtype": "BF16", "shape": [2, 4], "offset": 0, "size": 16}],
        "linearLayers": [true, false],
    });
    let manifest = serde_json::json!({
        "magic": "QPACK", "version": 1, "modelName": "qwen3_next", "quantBits": 4, "quantGroupSize": 64,
        "files": {"model.safetensors": 1000, "packed_experts/layer_00.bin": 32768, "gone.txt": 5},
    });
    let bytes = |n: usize, seed: usize| (0..n).map(|i| (i * 31 + seed + i / 256) as u8).collect::<Vec<_>>();
    BTreeMap::from([
        ("manifest.json".to_owned(), manifest.to_string().into_bytes()),
        ("config.json".to_owned(), b"{\"model_type\": \"qwen3_next\"}".to_vec()),
        ("tokenizer.json".to_owned(), b"{}".to_vec()),
        ("model.safetensors".to_owned(), bytes(1000, 1)),
        ("packed_experts/layout.json".to_owned(), layout.to_string().into_bytes()),
        ("packed_experts/layer_00.bin".to_owned(), bytes(32768, 2)),
        ("packed_experts/layer_01.bin".to_owned(), bytes(32768, 3)),
    ])
}

#[test]
fn finished_containers_come_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    for (i, (files, kind)) in
        [(container(dir.path()), Kind::V2), (version_1(), Kind::V1)].into_iter().enumerate()
    {
        let mut with_more = files.clone();
        with_more.insert("README.md".to_owned(), b"not needed".to_vec());
        let server = Server::of(with_more, |_| None);
        for source in ["hub", "mirror"] {
            let to = dir.path().join(format!("{source}-{i}.qpack"));
            let mut request = hub_request(&to);
            if source == "mirror" {
                request.source = Source::Url(server.mirror());
            }
            let summary = run(&request, &settings(&server.endpoint())).0.unwrap();
            assert_eq!((summary.kind, summary.repacked, summary.already_there), (kind, false, false));
            assert!(contents(&to) == files, "{:?}", contents(&to).keys());
            // Without hashes, version 2 vouches for itself, and version 1 for nothing.
            assert_eq!(summary.unverified.is_empty(), kind == Kind::V2, "{:?}", summary.unverified);
            let _ = server.requests();
            let again = run(&request, &settings(&server.endpoint())).0.unwrap();
            assert!(again.already_there);
            let asked = server.requests();
            assert!(!asked.iter().any(|r| r.path.ends_with(".bin") || r.path.ends_with(".safetensors")));
            request.options.bits = Some(4);
            let e = run(&request, &settings(&server.endpoint())).0.unwrap_err().to_string();
            assert!(e.contains("finished container"), "{e}");
            request.options.bits = None;
            let large = files.keys().find(|n| n.ends_with(".bin")).unwrap();
            std::fs::write(to.join(large), "something else").unwrap();
            let e = run(&request, &settings(&server.endpoint())).0.unwrap_err();
            assert!(matches!(e, HubError::Exists { .. }), "{e}");
        }
    }
}

#[test]
fn a_mirror_with_hashes_is_held_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = version_1();
    let sums: BTreeMap<_, _> = files.iter().map(|(n, b)| (n.clone(), hex(&Sha256::digest(b)))).collect();
    let hashes = serde_json::json!({"files": sums}).to_string().into_bytes();
    files.insert("hashes.json".to_owned(), hashes.clone());
    let server = Server::of(files.clone(), |_| None);
    let mut request = hub_request(&dir.path().join("a"));
    request.source = Source::Url(format!("{}/", server.mirror()));
    let summary = run(&request, &settings(&server.endpoint())).0.unwrap();
    assert_eq!(summary.unverified, ["hashes.json"]);
    files.get_mut("packed_experts/layer_01.bin").unwrap()[77] ^= 1;
    let server = Server::of(files.clone(), |_| None);
    request.output = dir.path().join("b");
    request.source = Source::Url(server.mirror());
    let (result, notes) = run(&request, &settings(&server.endpoint()));
    let e = result.unwrap_err();
    assert!(matches!(&e, HubError::Hash { file, .. } if file == "packed_experts/layer_01.bin"), "{e}");
    assert!(notes.iter().any(|n| n.contains("layer_01.bin starts over")), "{notes:?}");
    assert_only(dir.path(), &["a", "b.partial"]);
}

#[test]
fn a_mirror_may_refuse_what_it_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let files = version_1();
    let has: Vec<String> = files.keys().cloned().collect();
    // As some file stores do.
    let server = Server::of(files.clone(), move |r| {
        let known = has.iter().any(|n| r.path.ends_with(n.as_str()));
        (!known).then(|| common::server::Fault::Answer(403, String::new(), b"AccessDenied".to_vec()))
    });
    let mut request = hub_request(&dir.path().join("a"));
    request.source = Source::Url(server.mirror());
    run(&request, &settings("https://hub.invalid")).0.unwrap();
    assert!(contents(&request.output) == files);
}

#[test]
fn a_checkpoint_on_a_mirror_needs_nobody_to_list_it() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    checkpoint(&from, Family::Qwen35Moe, &Form { dtype: DType::Bf16, ..HF_35 });
    repack(&from, &dir.path().join("a"), options(Some(4)), &mut |_| true).unwrap();
    let server = Server::of(contents(&from), |_| None);
    let mut request = PullRequest::new(Source::Url(server.mirror()), dir.path().join("b"));
    request.options = options(Some(4));
    let summary = run(&request, &settings("https://hub.invalid")).0.unwrap();
    assert_eq!((summary.commit, summary.unverified), (None, vec!["model.safetensors".to_owned()]));
    assert!(server.requests().iter().all(|r| r.authorization.is_none()));
    assert_intact(&dir.path().join("b"));
    assert_same_data(&dir.path().join("a"), &dir.path().join("b"));
    assert!(run(&request, &settings("https://hub.invalid")).0.unwrap().already_there);
}

#[test]
fn the_models_folder_lists_and_removes_what_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    let files = container(dir.path());
    let models = dir.path().join("models");
    let at = |n: &str| models.join(n);
    let place = |name: &str, files: &BTreeMap<String, Vec<u8>>| {
        for (file, bytes) in files {
            let path = at(name).join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    };
    assert!(list_models(&models).unwrap().is_empty());
    place("two.qpack", &files);
    place("one", &version_1());
    place(
        "half.qpack.partial",
        &BTreeMap::from([("writing.lock".to_owned(), vec![]), ("x".to_owned(), vec![1])]),
    );
    place("thesis", &BTreeMap::from([("chapter.tex".to_owned(), vec![1])]));
    place("checkpoint", &contents(&dir.path().join("from")));
    #[cfg(unix)]
    std::os::unix::fs::symlink(dir.path().join("made.qpack"), at("link")).unwrap();
    let found: Vec<_> = list_models(&models).unwrap().into_iter().map(|m| (m.name, m.kind)).collect();
    let expected = [
        ("checkpoint", ModelKind::Checkpoint),
        ("half.qpack", ModelKind::Unfinished),
        ("one", ModelKind::ContainerV1),
        ("two.qpack", ModelKind::Container),
    ];
    assert_eq!(found, expected.map(|(n, k)| (n.to_owned(), k)));
    for name in ["thesis", "link", "..", ".", "", "/", "two.qpack/experts", "../models/one", "nothing"] {
        let e = remove_model(&models, name).unwrap_err();
        assert!(matches!(e, HubError::NotRemoved { .. }), "{name}: {e}");
    }
    let bytes: u64 = files.values().map(|b| b.len() as u64).sum();
    // A link within goes, and what it points to stays.
    #[cfg(unix)]
    std::os::unix::fs::symlink(dir.path().join("from"), at("two.qpack").join("outside")).unwrap();
    assert!(remove_model(&models, "two.qpack").unwrap() >= bytes);
    assert!(dir.path().join("from/config.json").exists());
    let held = std::fs::File::options().write(true).open(at("half.qpack.partial/writing.lock")).unwrap();
    held.try_lock().unwrap();
    assert!(remove_model(&models, "half.qpack").unwrap_err().to_string().contains("another process"));
    drop(held);
    remove_model(&models, "half.qpack").unwrap();
    remove_model(&models, "one").unwrap();
    let left: Vec<_> = list_models(&models).unwrap().into_iter().map(|m| m.name).collect();
    assert_eq!(left, ["checkpoint"]);
}

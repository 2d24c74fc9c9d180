//! Verifying finds every kind of damage, wherever it is, and names all of it.

use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;
use spinetail_container::{Container, ContainerError, Kind, VerifyReport, verify};
use spinetail_core::{DenseSource, ExpertId, Part, ReadError, RecordSource};

use crate::common::{copy, files, written};

fn check(path: &Path) -> Result<VerifyReport, ContainerError> {
    verify(path, &mut |_| ControlFlow::Continue(()))
}

fn flip(path: &Path, at: usize, bits: u8) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= bits;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn an_intact_container_is_intact_and_every_byte_is_counted() {
    let (_dir, path) = written();
    let (mut last, mut total) = (0, 0);
    let report = verify(&path, &mut |p| {
        assert!(p.done_bytes > last && p.done_bytes <= p.total_bytes);
        (last, total) = (p.done_bytes, p.total_bytes);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(report.is_intact(), "{:?}", report.damage);
    assert_eq!(report.kind, Kind::V2);
    assert_eq!(last, total, "progress ends at the end");
    assert!(report.unchecked.is_empty(), "{:?}", report.unchecked);
    let size = |f: &str| path.join(f).metadata().unwrap().len();
    let sums = ["manifest.json", "checksums.bin"].map(size).iter().sum::<u64>();
    assert_eq!(report.checked_bytes + sums, files(&path).iter().map(|f| size(f)).sum::<u64>());
}

#[test]
fn all_damage_is_listed_and_strangers_are_named() {
    let (_dir, path) = written();
    let c = Container::open(&path).unwrap();
    let stride = c.record_files()[1].stride_bytes as usize;
    flip(&path.join("experts/layer_001.bin"), stride + 100, 1);
    flip(&path.join("experts/layer_001.bin"), 3 * stride - 1, 0x80);
    let norm = c.manifest().dense.tensors.iter().find(|t| t.name == "norm").unwrap();
    flip(&path.join("dense.bin"), norm.layout.offsets[0] as usize + 5, 4);
    flip(&path.join("tokenizer.json"), 0, 2);
    std::fs::write(path.join("README.md"), "hello").unwrap();
    let report = check(&path).unwrap();
    let found: Vec<_> = report.damage.iter().map(|d| (d.file.as_str(), d.what.as_str())).collect();
    assert_eq!(
        found,
        [
            ("dense.bin", "weight of norm"),
            ("experts/layer_001.bin", "expert 1 of layer 1"),
            ("experts/layer_001.bin", "expert 2 of layer 1"),
            ("tokenizer.json", "contents"),
        ]
    );
    assert_eq!(report.unchecked, ["README.md: not part of the container"]);
    assert!(report.damage[0].to_string().contains("expected xxh3 "), "{}", report.damage[0]);

    // Use finds what it can without verifying.
    let mut out = vec![0; 96 * 4];
    assert!(matches!(c.read_dense("norm", Part::Weight, &mut out), Err(ReadError::Checksum { .. })));
    let id = ExpertId { layer: 1, expert: 1 };
    let mut out = vec![0; stride];
    c.read_record(id, &mut out).unwrap();
    assert!(matches!(c.check_record(id, &out), Err(ReadError::Checksum { .. })));
    assert!(c.read_file("tokenizer.json").unwrap_err().to_string().contains("SHA-256"));
}

#[test]
fn wrong_lengths_are_damage_and_the_rest_is_still_checked() {
    let (_dir, path) = written();
    let layer = path.join("experts/layer_000.bin");
    let bytes = std::fs::read(&layer).unwrap();
    std::fs::write(&layer, &bytes[..bytes.len() / 2]).unwrap();
    std::fs::remove_file(path.join("experts/layer_002.bin")).unwrap();
    flip(&path.join("dense.bin"), 0, 1);
    let report = check(&path).unwrap();
    let found: Vec<_> = report.damage.iter().map(|d| (d.file.as_str(), d.what.as_str())).collect();
    assert_eq!(
        found,
        [
            ("dense.bin", "weight of embed_tokens"),
            ("experts/layer_000.bin", "size"),
            ("experts/layer_000.bin", "expert 1 of layer 0"),
            ("experts/layer_002.bin", "file"),
        ]
    );
}

#[test]
fn a_damaged_description_does_not_hide_other_damage() {
    let (_dir, path) = written();
    let manifest = path.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"tiny\"", "\"tinz\"")).unwrap();
    flip(&path.join("experts/layer_002.bin"), 7, 1);
    let report = check(&path).unwrap();
    let found: Vec<_> = report.damage.iter().map(|d| d.file.as_str()).collect();
    assert_eq!(found, ["manifest.json", "experts/layer_002.bin"]);
    assert!(Container::open(&path).unwrap_err().to_string().contains("manifest.json: contents"));

    std::fs::write(&manifest, text).unwrap();
    flip(&path.join("checksums.bin"), 80, 1);
    flip(&path.join("config.json"), 0, 1);
    let report = check(&path).unwrap();
    let found: Vec<_> = report.damage.iter().map(|d| d.file.as_str()).collect();
    assert_eq!(found, ["checksums.bin", "config.json"]);
    assert_eq!(report.unchecked.len(), 1);
}

#[test]
fn it_can_be_interrupted() {
    let (_dir, path) = written();
    let result = verify(&path, &mut |_| ControlFlow::Break(()));
    assert!(matches!(result, Err(ContainerError::Interrupted { .. })));
}

/// Whether opening or verifying says that something is wrong.
fn is_noticed(path: &Path) -> bool {
    match check(path) {
        Ok(report) => !report.is_intact(),
        Err(_) => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_flipped_bit_of_any_file_is_found(
        file in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        static GOOD: std::sync::OnceLock<(tempfile::TempDir, std::path::PathBuf)> = std::sync::OnceLock::new();
        let (dir, good) = GOOD.get_or_init(written);
        let path = dir.path().join("copy.qpack");
        copy(good, &path);
        let names = files(&path);
        let name = file.get(&names);
        let len = path.join(name).metadata().unwrap().len() as usize;
        flip(&path.join(name), at.index(len), 1 << bit);
        prop_assert!(is_noticed(&path), "bit {bit} of byte {} of {name}", at.index(len));
    }
}

/// Every byte of the small files, and every class of byte of the large ones.
#[test]
fn every_class_of_byte_is_covered() {
    let (_dir, path) = written();
    let c = Container::open(&path).unwrap();
    let mut places: Vec<(String, usize)> = Vec::new();
    for name in ["manifest.json", "checksums.bin", "config.json", "tokenizer.json"] {
        let len = path.join(name).metadata().unwrap().len() as usize;
        let step = if name == "manifest.json" { 13 } else { 1 };
        places.extend((0..len).step_by(step).map(|at| (name.to_owned(), at)));
    }
    for p in c.manifest().dense_parts() {
        let (first, end) = (p.offset as usize, p.end as usize);
        let last = first + p.bytes as usize - 1;
        places.extend([first, last, (last + 1).min(end - 1), end - 1].map(|at| ("dense.bin".to_owned(), at)));
    }
    for (layer, file) in c.manifest().experts.layers.iter().zip(c.record_files()) {
        let (bytes, stride) = (file.layout.bytes as usize, file.stride_bytes as usize);
        for expert in 0..c.expert_count() {
            let at = [0, bytes - 1, bytes.min(stride - 1), stride - 1];
            places.extend(at.map(|at| (layer.file.clone(), expert * stride + at)));
        }
    }
    for (name, at) in places {
        let file = path.join(&name);
        flip(&file, at, 0x10);
        assert!(is_noticed(&path), "byte {at} of {name}");
        flip(&file, at, 0x10);
    }
    assert!(check(&path).unwrap().is_intact());
}

//! The checkpoints of `fixtures/parity`, written by transformers and mlx-lm: all are read, every tensor accounted for.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

mod common;

use std::path::Path;

use spinetail_checkpoint::Checkpoint;

#[test]
fn every_fixture_opens() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/parity");
    let Ok(cases) = folder.read_dir() else {
        println!("skipped: fixtures/parity is not here");
        return;
    };
    for case in cases {
        let path = case.unwrap().path();
        if path.is_dir() {
            let model = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let tensors = common::all_tensors(&model);
            assert!(tensors.values().flatten().all(|v| v.is_finite()), "{}", path.display());
        }
    }
}

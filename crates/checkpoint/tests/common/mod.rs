//! What the tests share: a tiny safetensors writer, tensors by name, and the checkpoints of `shared/cases`.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests stop at the first surprise and say what they skip"
)]

pub mod build;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use spinetail_checkpoint::Checkpoint;
use spinetail_core::{
    DenseSource, ExpertId, Part, Projection, RecordSource, TensorSpec, dense_specs, dequantize_row,
};

/// A tensor to be written: type name, shape, bytes.
pub type Raw = (&'static str, Vec<usize>, Vec<u8>);

/// Writes a safetensors file, tensors in the order of their names, starting at an odd byte.
pub fn write_safetensors(path: &Path, tensors: &BTreeMap<String, Raw>) {
    let mut header = String::from("{");
    let mut at = 0;
    for (i, (name, (dtype, shape, bytes))) in tensors.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let end = at + bytes.len();
        header += &format!(
            "{comma}\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}"
        );
        at = end;
    }
    header.push('}');
    if header.len().is_multiple_of(2) {
        header.push(' ');
    }
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    for (_, _, bytes) in tensors.values() {
        out.extend_from_slice(bytes);
    }
    std::fs::write(path, out).unwrap();
}

/// The meaning of a tensor in f32, all rows.
pub fn meaning(spec: &TensorSpec, parts: &[Vec<u8>; 3]) -> Vec<f32> {
    let mut out = vec![0.0; spec.rows() * spec.columns()];
    for (row, out) in out.chunks_exact_mut(spec.columns()).enumerate() {
        dequantize_row(spec, &parts[0], &parts[1], &parts[2], row, out);
    }
    out
}

/// Every canonical tensor of a model in f32: dense by name, experts as `L.E.projection`.
pub fn all_tensors<M: DenseSource + RecordSource + ?Sized>(model: &M) -> BTreeMap<String, Vec<f32>> {
    let mut out = BTreeMap::new();
    for d in dense_specs(model.config()) {
        let spec = model.dense_spec(&d.name).unwrap();
        assert_eq!(spec.shape, d.shape, "{}", d.name);
        let parts = Part::ALL.map(|p| {
            let mut bytes = vec![0; spec.part_bytes(p)];
            if !bytes.is_empty() {
                model.read_dense(&d.name, p, &mut bytes).unwrap();
            }
            bytes
        });
        out.insert(d.name, meaning(spec, &parts));
    }
    for layer in 0..model.config().expert_layers() as u16 {
        let layout = model.record_layout(layer).unwrap().clone();
        for expert in 0..model.expert_count() as u16 {
            let mut record = vec![0xaa; layout.bytes as usize + 8];
            model.read_record(ExpertId { layer, expert }, &mut record).unwrap();
            for projection in Projection::ALL {
                let t = layout.get(projection);
                let parts = Part::ALL.map(|p| t.slice(&record, p).to_vec());
                out.insert(format!("{layer}.{expert}.{}", projection.name()), meaning(&t.spec, &parts));
            }
        }
    }
    out
}

/// Asserts that dense tensors read a few rows at a time are those read whole.
pub fn assert_rows_agree(model: &Checkpoint) {
    for d in dense_specs(model.config()) {
        let spec = model.dense_spec(&d.name).unwrap();
        for &part in spec.parts() {
            let row = spec.row_bytes(part);
            let (mut whole, mut pieces) = (vec![0; spec.part_bytes(part)], vec![0; spec.part_bytes(part)]);
            model.read_dense(&d.name, part, &mut whole).unwrap();
            for (i, piece) in pieces.chunks_mut(5 * row).enumerate() {
                let rows = i * 5..i * 5 + piece.len() / row;
                model.read_dense_rows(&d.name, part, rows, piece).unwrap();
            }
            assert!(whole == pieces, "{} {part:?}", d.name);
        }
    }
}

/// Asserts that two models have the same tensors up to `tolerance` times each tensor's largest magnitude.
pub fn assert_close(a: &BTreeMap<String, Vec<f32>>, b: &BTreeMap<String, Vec<f32>>, tolerance: f32) {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (name, x) in a {
        let y = &b[name];
        assert_eq!(x.len(), y.len(), "{name}");
        let scale = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (i, (x, y)) in x.iter().zip(y).enumerate() {
            assert!((x - y).abs() <= tolerance * scale, "{name}[{i}]: {x} and {y}");
        }
    }
}

/// A folder of the repository's surroundings that need not be there.
pub fn shared(path: &str) -> Option<PathBuf> {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path);
    found.exists().then_some(found)
}

/// A Python that has numpy, unless there is none: `SPINETAIL_TEST_PYTHON`, or `python3`.
fn python() -> Option<String> {
    let candidate = std::env::var("SPINETAIL_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let works = Command::new(&candidate).args(["-c", "import numpy"]).output().ok()?.status.success();
    works.then_some(candidate)
}

/// Makes the named checkpoints of `shared/cases`; `None` (and says so) where that cannot be done here.
pub fn make_cases(names: &[&str]) -> Option<tempfile::TempDir> {
    let Some(script) = shared("cases/checkpoints.py") else {
        println!("skipped: shared/cases is not here");
        return None;
    };
    let Some(python) = python() else {
        println!("skipped: no Python with numpy (set SPINETAIL_TEST_PYTHON)");
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let done = Command::new(python).arg(script).arg(folder.path()).args(names).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(folder)
}

//! Writes one valid input per target to `corpus/`, after checking that the target accepts it.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use spinetail_core::ExpertId;
use spinetail_store::trace::{StepKind, StepTime, TraceHeader, TraceWriter};

// The small container of the container crate's own tests.
#[allow(dead_code)]
#[path = "../../crates/container/tests/it/common.rs"]
mod common;

const LAYOUT: &str = r#"{"expertCount": 2, "layerCount": 2, "expertStride": 16384, "linearLayers": [true, false],
"sections": [
{"name": "gate_proj.weight", "dtype": "U32", "shape": [32, 8], "offset": 0, "size": 1024},
{"name": "gate_proj.scales", "dtype": "BF16", "shape": [32, 2], "offset": 1024, "size": 128},
{"name": "gate_proj.biases", "dtype": "BF16", "shape": [32, 2], "offset": 1152, "size": 128},
{"name": "up_proj.weight", "dtype": "BF16", "shape": [32, 64], "offset": 2048, "size": 4096},
{"name": "down_proj.weight", "dtype": "F32", "shape": [64, 32], "offset": 6144, "size": 8192}]}"#;

/// A file in memory that can be looked at afterwards.
#[derive(Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a lock").extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn seed(target: &str, body: fn(&[u8]) -> bool, data: &[u8]) {
    assert!(body(data), "{target} does not accept its seed");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&folder).expect("the corpus folder");
    std::fs::write(folder.join("seed"), data).expect("the seed");
}

/// Two steps of a model of two layers.
fn trace() -> Vec<u8> {
    let out = Shared::default();
    let written = Shared(Arc::clone(&out.0));
    let header =
        TraceHeader { layers: 2, experts: 8, top_k: 2, slot_bytes: 4096, fixed_bytes: 0, model_id: 0 };
    let mut writer = TraceWriter::new(Box::new(out), &header);
    for kind in [StepKind::Prefill, StepKind::Decode] {
        for layer in 0..2 {
            writer.layer(&[1, 5].map(|expert| ExpertId { layer, expert }));
        }
        writer.end_step(kind, 1, &StepTime::default());
    }
    writer.finish().expect("memory");
    let bytes = written.0.lock().expect("a lock");
    bytes.clone()
}

fn main() {
    let (_dir, path) = common::written();
    let read = |name: &str| std::fs::read(path.join(name)).expect("a file of the container");
    seed("manifest", spinetail_fuzz::manifest, &read("manifest.json"));
    seed("v1_layout", spinetail_fuzz::v1_layout, LAYOUT.as_bytes());
    let header =
        br#"{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"__metadata__":{"format":"pt"}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 12]].concat();
    seed("safetensors_header", spinetail_fuzz::safetensors_header, &file);
    seed("trace", spinetail_fuzz::trace, &trace());
    seed("checksums", spinetail_fuzz::checksums, &read("checksums.bin"));
}

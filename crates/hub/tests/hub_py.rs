//! Case A24 of `shared/cases`: its own hub, in every mode. Skipped where it, or Python, is not there.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests stop at the first surprise and say what they skip"
)]

mod common;

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::checkpoint::{build, shared};
use common::{assert_intact, assert_same_data, contents, hub_request, run, settings};
use spinetail_checkpoint::{RepackOptions, repack};
use spinetail_container::Container;
use spinetail_core::{DType, Family, ModelConfig, MoeConfig};

const MODES: [&str; 9] =
    ["plain", "ignore-range", "gzip", "drop", "changed", "late-416", "renamed", "gated-cdn", "busy"];

/// A running `hub.py`.
struct Hub {
    child: Child,
    endpoint: String,
    log: PathBuf,
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two ports next to each other that nobody uses.
fn ports() -> u16 {
    loop {
        let first = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        if port < 65_000 && std::net::TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}

fn start(script: &Path, folder: &Path, mode: &str) -> Hub {
    let port = ports();
    let mut child = Command::new("python3")
        .arg(script)
        .args([folder.as_os_str(), mode.as_ref()])
        .arg(port.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("HF_ENDPOINT="), "{line}");
    // The line comes just before it listens.
    for _ in 0..200 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let log = folder.parent().unwrap().join("hub-log.jsonl");
    let _ = std::fs::remove_file(&log);
    Hub { child, endpoint: format!("http://127.0.0.1:{port}"), log }
}

impl Hub {
    fn requests(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let _ = std::fs::remove_file(&self.log);
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }
}

/// The script, if it can be run here.
fn script() -> Option<PathBuf> {
    let Some(script) = shared("cases/hub.py") else {
        println!("skipped: shared/cases is not here");
        return None;
    };
    let works = Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success());
    if !works {
        println!("skipped: python3 is not here");
        return None;
    }
    Some(script)
}

fn options() -> RepackOptions {
    RepackOptions { group_size: Some(32), ..RepackOptions::default() }
}

/// A checkpoint of three files.
fn checkpoint(folder: &Path) {
    let c = build::shape(Family::Qwen35Moe);
    let c = ModelConfig { moe: MoeConfig { experts: 12, ..c.moe }, ..c };
    let form = build::Form { dtype: DType::Bf16, ..build::HF_35 };
    build::write(folder, &c, &form);
    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    let (mut shards, mut map) = (vec![std::collections::BTreeMap::new(); 3], serde_json::Map::new());
    for (i, (name, raw)) in build::encode(&c, &form).into_iter().enumerate() {
        map.insert(name.clone(), format!("model-{}.safetensors", i % 3).into());
        shards[i % 3].insert(name, raw);
    }
    for (i, tensors) in shards.iter().enumerate() {
        common::checkpoint::write_safetensors(&folder.join(format!("model-{i}.safetensors")), tensors);
    }
    let index = serde_json::json!({"weight_map": map}).to_string();
    std::fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{}").unwrap();
}

/// As `hub.py` changes the files: two bits of each, one early and one late.
fn changed(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for (name, mut bytes) in contents(from) {
        if name.ends_with(".safetensors") {
            let n = bytes.len();
            bytes[n / 10] ^= 1;
            bytes[n - 1] ^= 1;
        }
        std::fs::write(to.join(name), bytes).unwrap();
    }
}

#[test]
fn a24_every_mode() {
    let Some(script) = script() else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    checkpoint(&at("base"));
    changed(&at("base"), &at("base-2"));
    repack(&at("base"), &at("expected"), options(), &mut |_| true).unwrap();
    let differs = repack(&at("base-2"), &at("expected-2"), options(), &mut |_| true);
    for mode in MODES {
        println!("{mode}");
        let hub = start(&script, &at("base"), mode);
        let mut request = hub_request(&at(&format!("{mode}.qpack")));
        request.options = options();
        let (result, notes) = run(&request, &settings(&hub.endpoint));
        if mode == "changed" && differs.is_err() {
            // What the new bytes say may be no checkpoint at all; then nothing is published.
            assert!(result.is_err() && !request.output.exists());
            continue;
        }
        let summary = result.unwrap();
        assert_intact(&request.output);
        let new = mode == "changed";
        assert_same_data(&at(if new { "expected-2" } else { "expected" }), &request.output);
        assert_eq!(new, notes.iter().any(|n| n.contains("the source has changed")), "{notes:?}");
        assert!(summary.unverified.is_empty());
        // Every file against the hash on the hub's 302.
        let source = if new { "base-2" } else { "base" };
        for file in &Container::open(&request.output).unwrap().manifest().source.files {
            use sha2::Digest;
            let bytes = std::fs::read(at(source).join(&file.path)).unwrap();
            let sha256 = common::server::hex(&sha2::Sha256::digest(bytes));
            assert_eq!(file.sha256.as_ref(), Some(&sha256), "{}", file.path);
        }
        let requests = hub.requests();
        assert!(requests.iter().all(|r| r["cdn"].as_bool() != r["authorization"].as_bool()), "{requests:?}");
        // Again: no bytes.
        assert!(run(&request, &settings(&hub.endpoint)).0.unwrap().already_there);
        assert!(hub.requests().iter().all(|r| r["path"].as_str().unwrap().starts_with("/api/")));
    }
}

#[test]
fn a24_stopped_in_drop_and_run_again() {
    let Some(script) = script() else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    checkpoint(&at("base"));
    repack(&at("base"), &at("expected"), options(), &mut |_| true).unwrap();
    let hub = start(&script, &at("base"), "drop");
    let mut request = hub_request(&at("o.qpack"));
    request.options = options();
    let total = contents(&at("base"))
        .iter()
        .filter(|(n, _)| n.ends_with("tensors"))
        .map(|(_, b)| b.len() as u64)
        .sum();
    let mut seen: u64 = 0;
    let result = spinetail_hub::pull(&request, &settings(&hub.endpoint), &mut |event| {
        if let spinetail_hub::Event::Progress(p) = event {
            seen = seen.max(p.done_bytes);
        }
        if seen * 3 > total { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    // It may have been too quick to be stopped; `torture.rs` is not.
    if result.is_err() {
        assert!(!request.output.exists());
        run(&request, &settings(&hub.endpoint)).0.unwrap();
    }
    assert_intact(&request.output);
    assert_same_data(&at("expected"), &request.output);
}

//! Pulls that are killed, with SIGKILL and no warning, at random moments: what is there in the end is what an undisturbed
//! pull makes, byte for byte. The puller is a process of its own, this test's executable run again.
//!
//! The small one runs with every test; `scripts/pull-torture.sh` runs the one of several gigabytes.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests stop at the first surprise and report figures"
)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::server::{Content, Fault, Server, hex};
use common::{assert_intact, assert_only, assert_same_data, hub_request, run, settings};
use serde_json::json;
use sha2::{Digest, Sha256};

/// The variable that makes the executable a puller: endpoint and output.
const PULL: &str = "SPINETAIL_TEST_PULL";

/// Not a test by itself: what the others run in a process of its own.
#[test]
#[ignore = "run by the other tests in a process of its own"]
fn puller() {
    let Ok(task) = std::env::var(PULL) else { return };
    let (endpoint, output) = task.split_once('|').unwrap();
    let mut request = hub_request(Path::new(output));
    request.options.bits = Some(4);
    request.journal_bytes = 1 << 20;
    let settings = spinetail_hub::Settings { read_timeout: Duration::from_secs(30), ..settings(endpoint) };
    let (result, _) = run(&request, &settings);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or(" 0 kB").trim();
    println!("peak {peak}");
    result.unwrap();
}

fn start(endpoint: &str, output: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "puller", "--ignored", "--nocapture"])
        .env(PULL, format!("{endpoint}|{}", output.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lets a puller end by itself; the peak of its resident memory in KiB, 0 where the system does not say.
fn finish(child: Child) -> u64 {
    let done = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
    let peak = text.lines().find_map(|l| l.split_once("peak ")).map(|(_, p)| p);
    peak.and_then(|p| p.split(' ').next()?.parse().ok()).unwrap_or(0)
}

/// A checkpoint that is nowhere: a header, and weights that are a function of where they lie.
struct Synthetic {
    layers: usize,
    experts: usize,
    hidden: usize,
    intermediate: usize,
    vocab: usize,
    shards: usize,
}

/// Fills `out` with finite bf16 weights: those `at` bytes from the start of the data of file `file`.
fn weights(file: u64, at: u64, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        let at = at + i as u64;
        // One hash for four elements; each takes 16 bits of it.
        let mut h =
            (at / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ file.wrapping_mul(0xd134_2543_de82_ef95);
        h = (h ^ (h >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        h ^= h >> 32;
        let bits = (h >> (16 * (at / 2 % 4))) as u16;
        // Any sign and mantissa; magnitudes from 2^-7 to 2.
        let value = (bits & 0x80ff) | 0x3c00 | (bits & 0x0300);
        *byte = value.to_le_bytes()[(at % 2) as usize];
    }
}

impl Synthetic {
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (h, i, e) = (self.hidden, self.intermediate, self.experts);
        let mut all = vec![
            ("model.language_model.embed_tokens.weight".to_owned(), vec![self.vocab, h]),
            ("model.language_model.norm.weight".to_owned(), vec![h]),
            ("lm_head.weight".to_owned(), vec![self.vocab, h]),
        ];
        for l in 0..self.layers {
            let mut add = |name: &str, shape: &[usize]| {
                all.push((format!("model.language_model.layers.{l}.{name}"), shape.to_vec()));
            };
            add("input_layernorm.weight", &[h]);
            add("post_attention_layernorm.weight", &[h]);
            if l % 4 == 3 {
                add("self_attn.q_proj.weight", &[4 * 2 * 64, h]);
                add("self_attn.k_proj.weight", &[64, h]);
                add("self_attn.v_proj.weight", &[64, h]);
                add("self_attn.o_proj.weight", &[h, 4 * 64]);
                add("self_attn.q_norm.weight", &[64]);
                add("self_attn.k_norm.weight", &[64]);
            } else {
                add("linear_attn.in_proj_qkv.weight", &[2 * 2 * 64 + 4 * 64, h]);
                add("linear_attn.in_proj_z.weight", &[4 * 64, h]);
                add("linear_attn.in_proj_b.weight", &[4, h]);
                add("linear_attn.in_proj_a.weight", &[4, h]);
                add("linear_attn.conv1d.weight", &[2 * 2 * 64 + 4 * 64, 1, 4]);
                add("linear_attn.dt_bias", &[4]);
                add("linear_attn.A_log", &[4]);
                add("linear_attn.norm.weight", &[64]);
                add("linear_attn.out_proj.weight", &[h, 4 * 64]);
            }
            add("mlp.gate.weight", &[e, h]);
            add("mlp.shared_expert_gate.weight", &[1, h]);
            add("mlp.shared_expert.gate_proj.weight", &[i, h]);
            add("mlp.shared_expert.up_proj.weight", &[i, h]);
            add("mlp.shared_expert.down_proj.weight", &[h, i]);
            add("mlp.experts.gate_up_proj", &[e, 2 * i, h]);
            add("mlp.experts.down_proj", &[e, h, i]);
        }
        all
    }

    fn config(&self) -> Vec<u8> {
        json!({"model_type": "qwen3_5_moe", "tie_word_embeddings": false, "text_config": {
            "model_type": "qwen3_5_moe_text", "hidden_size": self.hidden, "vocab_size": self.vocab,
            "num_hidden_layers": self.layers, "full_attention_interval": 4, "num_attention_heads": 4,
            "num_key_value_heads": 1, "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
            "num_experts": self.experts, "num_experts_per_tok": 2, "moe_intermediate_size": self.intermediate,
            "shared_expert_intermediate_size": self.intermediate, "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}})
        .to_string()
        .into_bytes()
    }

    /// The files of the checkpoint, hashed.
    fn files(&self) -> BTreeMap<String, Content> {
        let mut shards = vec![Vec::new(); self.shards];
        for (i, tensor) in self.tensors().into_iter().enumerate() {
            shards[i % self.shards].push(tensor);
        }
        let (mut files, mut map) = (BTreeMap::new(), serde_json::Map::new());
        for (n, tensors) in shards.into_iter().enumerate() {
            let name = format!("model-{:05}-of-{:05}.safetensors", n + 1, self.shards);
            let (mut header, mut at) = (serde_json::Map::new(), 0u64);
            for (tensor, shape) in tensors {
                let end = at + 2 * shape.iter().product::<usize>() as u64;
                let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]});
                map.insert(tensor.clone(), name.clone().into());
                header.insert(tensor, entry);
                at = end;
            }
            let json = serde_json::Value::from(header).to_string();
            let head = [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat();
            files.insert(name, generated(n as u64, head, at));
        }
        files.insert("config.json".to_owned(), Content::of(self.config()));
        files.insert("tokenizer.json".to_owned(), Content::of(b"{}".to_vec()));
        let index = json!({"weight_map": map}).to_string().into_bytes();
        files.insert("model.safetensors.index.json".to_owned(), Content::of(index));
        files
    }
}

/// A file of which nothing but its head is kept.
fn generated(file: u64, head: Vec<u8>, data_bytes: u64) -> Content {
    let bytes = head.len() as u64 + data_bytes;
    let read = move |at: u64, out: &mut [u8]| {
        let from_head = head.len().saturating_sub(at as usize).min(out.len());
        out[..from_head].copy_from_slice(&head[(at as usize).min(head.len())..][..from_head]);
        let data = (at + from_head as u64).saturating_sub(head.len() as u64);
        weights(file, data, &mut out[from_head..]);
    };
    let (mut hash, mut buffer, mut at) = (Sha256::new(), vec![0; 1 << 20], 0);
    while at < bytes {
        let n = (bytes - at).min(buffer.len() as u64) as usize;
        read(at, &mut buffer[..n]);
        hash.update(&buffer[..n]);
        at += n as u64;
    }
    Content { bytes, sha256: hex(&hash.finalize()), read: Arc::new(read) }
}

/// Pulls once undisturbed and once with kills, and compares. `pause` is after every 16 KiB of a connection.
fn torture(model: &Synthetic, kills: u32, pause: Option<Duration>) {
    let dir = tempfile::tempdir().unwrap();
    let (clean, killed) = (dir.path().join("clean.qpack"), dir.path().join("killed.qpack"));
    let began = Instant::now();
    let files = model.files();
    let total: u64 = files.values().map(|c| c.bytes).sum();
    let hashed = began.elapsed();
    let server = Server::start(files, move |r| pause.filter(|_| r.cdn).map(Fault::Slow));
    let began = Instant::now();
    let peak_clean = finish(start(&server.endpoint(), &clean));
    let time_clean = began.elapsed();
    assert_intact(&clean);

    let mut random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), kills);
    let (began, sent_before) = (Instant::now(), server.sent());
    let mut done = 0;
    while done < kills {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // So that all the kills fit into one pull even if nothing were lost.
        let until = server.sent() + (random >> 33) % (total / u64::from(kills + 1)).max(1);
        let mut child = start(&server.endpoint(), &killed);
        let mut ended = false;
        while server.sent() < until && !ended {
            std::thread::sleep(Duration::from_millis(1));
            ended = child.try_wait().unwrap().is_some();
        }
        if ended {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        done += 1;
        assert!(!killed.exists(), "named though it was killed");
    }
    assert_eq!(done, kills, "the pull ended before it could be killed as often");
    let peak_killed = finish(start(&server.endpoint(), &killed));
    let (time_killed, sent) = (began.elapsed(), server.sent() - sent_before);
    assert_intact(&killed);
    assert_same_data(&clean, &killed);
    let manifests = [&clean, &killed].map(|c| std::fs::read(c.join("manifest.json")).unwrap());
    assert!(manifests[0] == manifests[1]);
    assert_only(dir.path(), &["clean.qpack", "killed.qpack"]);
    let mb = |n: u64| n as f64 / 1e6;
    println!(
        "{:.0} MB hashed in {hashed:.1?}; pulled in {time_clean:.1?}, peak {:.1} MB; with {done} kills {:.0} MB sent in {time_killed:.1?}, peak {:.1} MB",
        mb(total),
        mb(peak_clean * 1024),
        mb(sent),
        mb(peak_killed * 1024)
    );
    assert!(peak_clean.max(peak_killed) < 1 << 20, "more than 1 GiB of memory");
}

#[test]
fn a_pull_survives_ten_kills() {
    let model = Synthetic { layers: 4, experts: 40, hidden: 256, intermediate: 128, vocab: 500, shards: 3 };
    torture(&model, 10, Some(Duration::from_millis(1)));
}

#[test]
#[ignore = "several gigabytes, several minutes: scripts/pull-torture.sh"]
fn a_pull_of_gigabytes_survives_ten_kills() {
    let model =
        Synthetic { layers: 8, experts: 128, hidden: 1024, intermediate: 512, vocab: 32_000, shards: 6 };
    torture(&model, 10, None);
}

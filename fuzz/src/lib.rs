//! What each fuzz target does with its bytes. A target panics if an invariant of the parser does not hold.
//!
//! `cargo run --example seed` writes small valid inputs to `corpus/`; `cargo +nightly fuzz run TARGET` starts there.

use std::path::Path;

use spinetail_checkpoint::safetensors::{HeaderError, parse_file, parse_header};
use spinetail_container::{Checksums, Manifest, v1};
use spinetail_core::{
    AttentionConfig, DeltaConfig, Family, LayerKind, ModelConfig, MoeConfig, Part, Projection, RecordLayout,
};
use spinetail_store::policy::PolicyKind;
use spinetail_store::replay::{ReplayOptions, TraceStats, replay};
use spinetail_store::trace::Trace;
use xxhash_rust::xxh3::xxh3_64;

/// Parts lie within the record and apart from each other.
fn check_record(record: &RecordLayout) {
    let mut ranges: Vec<_> = Projection::ALL
        .into_iter()
        .flat_map(|p| record.get(p).spec.parts().iter().map(move |&part| record.get(p).range(part)))
        .collect();
    ranges.sort_by_key(|r| r.start);
    assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start));
    assert!(ranges.iter().all(|r| r.end as u64 <= record.bytes));
}

/// `manifest.json` of version 2, to the last check that needs no file.
pub fn manifest(data: &[u8]) -> bool {
    let Ok(m) = Manifest::parse(Path::new("manifest.json"), data) else { return false };
    let mut at = 0;
    for p in m.dense_parts() {
        assert!(p.offset == at && p.offset + p.bytes <= p.end);
        at = p.end;
    }
    assert_eq!(at, m.dense.bytes);
    for layer in &m.experts.layers {
        check_record(&layer.record);
        assert!(layer.record.bytes <= layer.stride_bytes);
    }
    assert!(m.total_bytes() > 0);
    true
}

/// `packed_experts/layout.json` of version 1, against a small model with as many layers and experts as it says.
pub fn v1_layout(data: &[u8]) -> bool {
    let file = Path::new("layout.json");
    let Ok(layout) = v1::Layout::parse(file, data) else { return false };
    assert!(layout.record_bytes() <= layout.expert_stride);
    assert!(layout.layer_bytes() >= layout.expert_stride);
    let delta = |i: usize| layout.linear_layers.as_ref().is_none_or(|l| l.get(i) == Some(&true));
    let kind = |i| if delta(i) { LayerKind::Delta } else { LayerKind::Attention };
    let config = ModelConfig {
        family: Family::Qwen35Moe,
        hidden: 64,
        vocab: 16,
        layers: (0..layout.layer_count).map(kind).collect(),
        attention: AttentionConfig { heads: 1, kv_heads: 1, head_dim: 8, rotary_dims: 4, rope_theta: 1e4 },
        delta: DeltaConfig { key_heads: 1, value_heads: 1, key_dim: 8, value_dim: 8, conv_kernel: 4 },
        moe: MoeConfig {
            experts: layout.expert_count,
            top_k: 1,
            intermediate: 32,
            shared_intermediate: 8,
            norm_topk: true,
        },
        rms_norm_eps: 1e-6,
        tied_embeddings: true,
        max_positions: 1024,
        mtp_layers: 0,
    };
    let Ok(record) = layout.record_layout(file, &config) else { return false };
    check_record(&record);
    assert!(record.gate.spec.part_bytes(Part::Weight) > 0);
    true
}

/// `checksums.bin`, as it is and with its last checksum put right, which no fuzzer would guess.
pub fn checksums(data: &[u8]) -> bool {
    let file = Path::new("checksums.bin");
    let as_it_is = Checksums::parse(file, data).is_ok();
    let mut sealed = data.to_vec();
    if let Some(body) = sealed.len().checked_sub(8) {
        let sum = xxh3_64(&sealed[..body]);
        sealed[body..].copy_from_slice(&sum.to_le_bytes());
    }
    let _ = Checksums::parse(file, &sealed);
    as_it_is
}

/// A safetensors file, and the same bytes as a header alone, of a file that is as long as the header wants it.
pub fn safetensors_header(data: &[u8]) -> bool {
    let check = |entries: &std::collections::HashMap<_, spinetail_checkpoint::safetensors::Entry>,
                 file_bytes: u64| {
        let mut ranges: Vec<_> = entries.values().map(|e| (e.offset, e.offset + e.bytes)).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|w| w[0].1 == w[1].0));
        assert!(ranges.last().is_none_or(|r| r.1 == file_bytes));
    };
    let file = parse_file(data);
    if let Ok(entries) = &file {
        check(entries, data.len() as u64);
    }
    if let Err(HeaderError::Trailing { expected, .. }) = parse_header(data, u64::MAX) {
        check(&parse_header(data, expected).expect("only the length was wrong"), expected);
    }
    file.is_ok()
}

/// A trace, as it is and with checksums put right, and a replay of what is in it where the model is small.
pub fn trace(data: &[u8]) -> bool {
    let as_it_is = Trace::parse(data).is_ok();
    let mut sealed = data.to_vec();
    if let Some(header) = sealed.get(..40) {
        let sum = xxh3_64(header) as u32;
        if let Some(at) = sealed.get_mut(40..44) {
            at.copy_from_slice(&sum.to_le_bytes());
        }
    }
    // Frames as long as the bytes say, so that the fuzzer has only the payload to find.
    let mut at = 44;
    while let Some(len) =
        sealed.get(at..at + 4).and_then(|b| b.first_chunk()).map(|b| u32::from_le_bytes(*b) as usize)
    {
        let Some(payload) = sealed.get(at + 8..).and_then(|b| b.get(..len)) else { break };
        let sum = xxh3_64(payload) as u32;
        sealed[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        at += 8 + len;
    }
    if let Ok(trace) = Trace::parse(&sealed) {
        let h = trace.header();
        for ids in trace.steps().flat_map(|s| s.layers()) {
            assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|&id| id < h.experts));
        }
        if u32::from(h.layers) * u32::from(h.experts) < 4096 {
            let stats = TraceStats::new(&trace);
            assert!(stats.repetition <= 1.0 && stats.top_tenth_share <= 1.0);
            let caches = PolicyKind::ALL.map(|p| ReplayOptions::new(7, p));
            assert!(replay(&trace, &caches).iter().all(|o| o.decode.hits <= o.decode.uses));
        }
    }
    as_it_is
}

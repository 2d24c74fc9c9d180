//! A small model of unusual shape, with a prediction head and a different format wherever one is possible.

use std::path::{Path, PathBuf};

use spinetail_container::{Plan, SourceFile, SourceIdentity, Summary, Writer};
use spinetail_core::{
    Affine, AttentionConfig, DType, DeltaConfig, ExpertId, Family, Format, LayerKind, ModelConfig, MoeConfig,
    Part, RecordLayout, Role, TensorSpec, dense_specs,
};

pub(crate) fn config() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen35Moe,
        hidden: 96,
        vocab: 50,
        layers: vec![LayerKind::Delta, LayerKind::Attention],
        attention: AttentionConfig {
            heads: 3,
            kv_heads: 1,
            head_dim: 32,
            rotary_dims: 8,
            rope_theta: 12345.678,
        },
        delta: DeltaConfig { key_heads: 1, value_heads: 3, key_dim: 32, value_dim: 32, conv_kernel: 4 },
        moe: MoeConfig { experts: 3, top_k: 2, intermediate: 64, shared_intermediate: 32, norm_topk: true },
        rms_norm_eps: 1e-6,
        tied_embeddings: false,
        max_positions: 4096,
        mtp_layers: 1,
    }
}

pub(crate) fn affine(bits: u8) -> Format {
    Format::Affine(Affine { bits, group_size: 32, scales: DType::Bf16 })
}

pub(crate) fn plan() -> Plan {
    let config = config();
    let formats =
        [affine(4), Format::Plain(DType::Bf16), affine(3), Format::Plain(DType::F16), affine(8), affine(6)];
    let mut matrices = 0;
    let dense = dense_specs(&config)
        .into_iter()
        .map(|s| {
            let format = match s.role {
                Role::Vector => Format::Plain(DType::F32),
                Role::Sensitive => affine(8),
                Role::Matrix => {
                    matrices += 1;
                    formats[matrices % formats.len()]
                }
            };
            (s.name, TensorSpec { shape: s.shape, format })
        })
        .collect();
    let (i, h) = (config.moe.intermediate, config.hidden);
    let record = |gate, up, down| {
        let spec = |shape: [usize; 2], format| TensorSpec { shape: shape.to_vec(), format };
        RecordLayout::packed(spec([i, h], gate), spec([i, h], up), spec([h, i], down))
    };
    let experts = vec![
        record(affine(4), affine(4), affine(5)),
        record(affine(2), affine(3), affine(6)),
        record(Format::Plain(DType::Bf16), affine(8), Format::Plain(DType::F16)),
    ];
    let source = SourceIdentity {
        format: "hf".to_owned(),
        name: "tiny".to_owned(),
        model_type: "qwen3_5_moe".to_owned(),
        revision: Some("test".to_owned()),
        files: vec![SourceFile { path: "model.safetensors".to_owned(), bytes: 12, sha256: None }],
    };
    Plan { config, source, dense, experts, record_alignment: 4096 }
}

/// Bytes that differ from place to place and never repeat soon.
pub(crate) fn bytes_of(seed: &str, n: usize) -> Vec<u8> {
    let mut state =
        seed.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

pub(crate) fn part_bytes(name: &str, spec: &TensorSpec, part: Part) -> Vec<u8> {
    bytes_of(&format!("{name}.{}", part.suffix()), spec.part_bytes(part))
}

pub(crate) fn record_bytes(id: ExpertId, layout: &RecordLayout) -> Vec<u8> {
    let mut record = bytes_of(&id.to_string(), layout.bytes as usize);
    // Padding between parts is zero, as a repacker writes it; the writer takes the record as it is.
    record[0] = 1;
    record
}

pub(crate) fn ids(plan: &Plan) -> Vec<ExpertId> {
    let experts = plan.config.moe.experts as u16;
    (0..plan.experts.len() as u16)
        .flat_map(|layer| (0..experts).map(move |expert| ExpertId { layer, expert }))
        .collect()
}

pub(crate) const SMALL_FILES: [(&str, &[u8]); 2] =
    [("config.json", b"{\"model_type\": \"qwen3_5_moe\"}\n"), ("tokenizer.json", b"{}")];

/// Writes everything of `plan` but finishing.
pub(crate) fn fill(writer: &mut Writer, plan: &Plan) {
    for (name, bytes) in SMALL_FILES {
        writer.add_file(name, bytes).unwrap();
    }
    for (name, spec) in &plan.dense {
        for &part in spec.parts() {
            let bytes = part_bytes(name, spec, part);
            for (i, piece) in bytes.chunks(1000).enumerate() {
                writer.write_dense(name, part, i as u64 * 1000, piece).unwrap();
            }
        }
    }
    for id in ids(plan).into_iter().rev() {
        writer.write_record(id, &record_bytes(id, &plan.experts[usize::from(id.layer)])).unwrap();
    }
}

pub(crate) fn write(output: &Path, plan: &Plan) -> Summary {
    let mut writer = Writer::create(output, plan.clone()).unwrap();
    fill(&mut writer, plan);
    writer.finish().unwrap()
}

/// A written container and the folder that goes when it is dropped.
pub(crate) fn written() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.qpack");
    write(&path, &plan());
    (dir, path)
}

/// Every file of a folder, relative to it, sorted.
pub(crate) fn files(root: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                out.push(path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/"));
            }
        }
    }
    out.sort();
    out
}

/// Copies a folder.
pub(crate) fn copy(from: &Path, to: &Path) {
    for name in files(from) {
        let target = to.join(&name);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(from.join(&name), target).unwrap();
    }
}

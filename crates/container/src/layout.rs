//! Where the bytes of a container lie, computed from what it holds: the plan given to the writer, the packing of
//! `dense.bin`, the strides of records.
//!
//! Pure arithmetic; nothing here opens a file.

use std::collections::HashMap;

use spinetail_core::{ModelConfig, PART_ALIGN, Part, RecordLayout, TensorLayout, TensorSpec, dense_specs};

use crate::manifest::{
    DenseSection, ExpertLayer, ExpertSection, Manifest, Quantization, SourceIdentity, TensorEntry,
};
use crate::{VERSION, checksums::Checksums};

/// `dense.bin` is a whole number of these, so that direct reads can read all of it.
pub(crate) const DENSE_FILE_ALIGN: u64 = 4096;

/// Strides that records may be aligned to: the largest block of Linux drives, and Apple's page.
pub(crate) const RECORD_ALIGNMENTS: [u64; 2] = [4096, 16384];

/// Everything a container will hold, known before its first byte is written.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The model's shape.
    pub config: ModelConfig,
    /// Where the weights came from.
    pub source: SourceIdentity,
    /// Name and spec of every dense tensor that [`dense_specs`] lists, in any order.
    pub dense: Vec<(String, TensorSpec)>,
    /// One layout per expert layer, the decoder's first, then prediction heads.
    pub experts: Vec<RecordLayout>,
    /// Alignment of a record's start and stride: 4096 or 16384.
    pub record_alignment: u64,
}

impl Plan {
    /// Bytes the container takes, but for its manifest and the small files added to it.
    pub fn total_bytes(&self) -> u64 {
        let sound = |s: &&(String, TensorSpec)| s.1.check().is_ok();
        let (mut end, mut parts) = (0u64, 0u64);
        for (_, spec) in self.dense.iter().filter(sound) {
            for &part in spec.parts() {
                end = end.next_multiple_of(PART_ALIGN as u64).saturating_add(spec.part_bytes(part) as u64);
                parts += 1;
            }
        }
        let experts = self.config.moe.experts as u64;
        let strides = self.experts.iter().map(|r| stride(r.bytes, self.record_alignment));
        let records = strides.fold(0u64, |sum, s| sum.saturating_add(s.saturating_mul(experts)));
        let sums = Checksums::file_bytes(parts, self.experts.len() as u64, experts.min(1 << 16));
        end.next_multiple_of(DENSE_FILE_ALIGN).saturating_add(records).saturating_add(sums)
    }

    /// The manifest of this plan, without small files, not yet validated.
    pub(crate) fn manifest(self) -> Manifest {
        let (tensors, bytes) = pack_dense(&self.config, self.dense);
        let quantization = Quantization::most(&self.experts);
        let layer = |(i, record): (usize, RecordLayout)| ExpertLayer {
            layer: i,
            file: layer_file(i),
            stride_bytes: stride(record.bytes, self.record_alignment),
            record,
        };
        Manifest {
            magic: crate::manifest::MAGIC.to_owned(),
            version: VERSION,
            features: Vec::new(),
            quantization,
            created_by: concat!("spinetail ", env!("CARGO_PKG_VERSION")).to_owned(),
            files: Vec::new(),
            dense: DenseSection { file: DENSE_FILE.to_owned(), bytes, alignment: PART_ALIGN as u64, tensors },
            experts: ExpertSection {
                alignment: self.record_alignment,
                expert_count: self.config.moe.experts,
                layers: self.experts.into_iter().enumerate().map(layer).collect(),
            },
            source: self.source,
            model: self.config,
        }
    }
}

pub(crate) const DENSE_FILE: &str = "dense.bin";
pub(crate) const EXPERTS_FOLDER: &str = "experts";

/// The file of expert layer `i`, relative to the container.
pub(crate) fn layer_file(i: usize) -> String {
    format!("{EXPERTS_FOLDER}/layer_{i:03}.bin")
}

/// Bytes from one record to the next; saturates, and bounds are checked elsewhere.
pub(crate) fn stride(record_bytes: u64, alignment: u64) -> u64 {
    record_bytes.checked_next_multiple_of(alignment.max(1)).unwrap_or(u64::MAX)
}

/// Puts tensors in the order of use and packs them; tensors the model does not have come last, for validation to
/// name. Returns the length of the file.
fn pack_dense(config: &ModelConfig, mut dense: Vec<(String, TensorSpec)>) -> (Vec<TensorEntry>, u64) {
    let order: HashMap<String, usize> = match config.check() {
        Ok(()) => dense_specs(config).into_iter().enumerate().map(|(i, s)| (s.name, i)).collect(),
        Err(_) => HashMap::new(),
    };
    dense.sort_by_key(|(name, _)| order.get(name).copied().unwrap_or(usize::MAX));
    let mut end = 0;
    let mut tensors = Vec::with_capacity(dense.len());
    for (name, spec) in dense {
        // A spec that is out of bounds is left unplaced: its size may not even fit, and validation names it.
        let layout = if spec.check().is_ok() {
            let (layout, next) = TensorLayout::packed(spec, end);
            end = next;
            layout
        } else {
            TensorLayout { spec, offsets: [0; 3] }
        };
        tensors.push(TensorEntry { name, layout });
    }
    (tensors, end.next_multiple_of(DENSE_FILE_ALIGN))
}

/// One part of a dense tensor in `dense.bin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DensePart {
    /// Index into the manifest's tensors.
    pub tensor: usize,
    /// Which part.
    pub part: Part,
    /// Where it starts.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Where the padding after it ends: the start of the next part, or the end of the file. Its checksum covers
    /// everything up to here.
    pub end: u64,
}

/// The parts of validated entries, in the order of the file.
pub(crate) fn dense_parts(dense: &DenseSection) -> Vec<DensePart> {
    let mut parts: Vec<DensePart> = Vec::with_capacity(dense.tensors.len() * 3);
    for (tensor, entry) in dense.tensors.iter().enumerate() {
        for &part in entry.layout.spec.parts() {
            let offset = entry.layout.offsets[part as usize];
            if let Some(last) = parts.last_mut() {
                last.end = offset;
            }
            let bytes = entry.layout.spec.part_bytes(part) as u64;
            parts.push(DensePart { tensor, part, offset, bytes, end: dense.bytes });
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MANIFEST_BYTES;
    use spinetail_core::{
        Affine, AttentionConfig, DType, DeltaConfig, Family, Format, LayerKind, MoeConfig, Role,
    };

    /// The shape of Qwen3.5-397B-A17B with a prediction head, at 4 bits.
    fn largest_released() -> Plan {
        use LayerKind::{Attention, Delta};
        let config = ModelConfig {
            family: Family::Qwen35Moe,
            hidden: 4096,
            vocab: 248_320,
            layers: [Delta, Delta, Delta, Attention].repeat(15),
            attention: AttentionConfig {
                heads: 32,
                kv_heads: 2,
                head_dim: 256,
                rotary_dims: 64,
                rope_theta: 1e7,
            },
            delta: DeltaConfig {
                key_heads: 16,
                value_heads: 64,
                key_dim: 128,
                value_dim: 128,
                conv_kernel: 4,
            },
            moe: MoeConfig {
                experts: 512,
                top_k: 10,
                intermediate: 1024,
                shared_intermediate: 1024,
                norm_topk: true,
            },
            rms_norm_eps: 1e-6,
            tied_embeddings: false,
            max_positions: 262_144,
            mtp_layers: 1,
        };
        let affine = Format::Affine(Affine { bits: 4, group_size: 64, scales: DType::Bf16 });
        let spec = |shape: &[usize]| TensorSpec { shape: shape.to_vec(), format: affine };
        let dense = dense_specs(&config)
            .into_iter()
            .map(|s| match s.role {
                Role::Vector => (s.name, TensorSpec::plain(&s.shape, DType::F32)),
                _ => (s.name, spec(&s.shape)),
            })
            .collect();
        let record = RecordLayout::packed(spec(&[1024, 4096]), spec(&[1024, 4096]), spec(&[4096, 1024]));
        let experts = vec![record; 61];
        Plan { config, source: SourceIdentity::default(), dense, experts, record_alignment: 16384 }
    }

    #[test]
    fn the_largest_released_model_is_well_within_the_limits() {
        let plan = largest_released();
        // 61 layers of 512 records of 432 blocks of 16 KiB: 221 GB.
        assert_eq!(plan.experts[0].bytes, 432 * 16384);
        assert!(plan.total_bytes() > 61 * 512 * 432 * 16384);
        let manifest = plan.clone().manifest();
        let file = std::path::Path::new("manifest.json");
        manifest.validate(file).unwrap();
        assert_eq!(manifest.total_bytes(), plan.total_bytes());
        let text = manifest.to_text(file).unwrap();
        assert!((text.len() as u64) < MANIFEST_BYTES / 8, "{} bytes", text.len());
        assert_eq!(Manifest::parse(file, text.as_bytes()).unwrap(), manifest);
    }
}

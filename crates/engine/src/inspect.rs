//! What a model is and what it needs, without loading it.

use std::collections::BTreeMap;
use std::path::Path;

use spinetail_checkpoint::open_model;
use spinetail_core::{ModelConfig, Projection, dense_specs};

use crate::bench::TokenBytes;
use crate::engine::EngineOptions;
use crate::error::EngineError;
use crate::memory::MemoryPlan;

/// A model as it lies on the drive.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelSummary {
    /// The model's shape.
    pub config: ModelConfig,
    /// Parameters, prediction heads not counted.
    pub parameters: u64,
    /// Parameters that one token uses, embedding row and head included.
    pub active_parameters: u64,
    /// Bytes that one expert record takes in memory: its slot.
    pub record_bytes: u64,
    /// Bytes that all expert records of the decoder take in memory, each in a slot.
    pub experts_bytes: u64,
    /// Bytes of expert records that one token uses: what is read per token when nothing is cached.
    pub expert_bytes_per_token: u64,
    /// Bytes of dense weights that one token touches: all of them, but one row of the embedding.
    pub dense_bytes_per_token: u64,
    /// Formats of the dense matrices, and the bytes stored in each.
    pub dense_formats: Vec<(String, u64)>,
    /// Formats of the expert matrices, and how many layers have each.
    pub expert_formats: Vec<(String, usize)>,
    /// How the budget would be divided.
    pub plan: MemoryPlan,
}

/// Looks at the container or checkpoint folder at `path`, as if it were to be run with `options`.
pub fn inspect(path: &Path, options: &EngineOptions) -> Result<ModelSummary, EngineError> {
    let context = options.context;
    let source = open_model(path)?;
    let c = source.config().clone();
    if context == 0 || context as usize > c.max_positions {
        return Err(EngineError::Context { asked: context, max: c.max_positions });
    }
    let plan = MemoryPlan::new(&*source, options)?;
    let elements = |shape: &[usize]| shape.iter().product::<usize>() as u64;
    let mut formats: BTreeMap<String, u64> = BTreeMap::new();
    let (mut dense, mut active) = (0, 0);
    for asked in dense_specs(&c).iter().filter(|s| !s.is_prediction_head()) {
        let Some(spec) = source.dense_spec(&asked.name) else { continue };
        *formats.entry(spec.format.to_string()).or_default() += spec.bytes() as u64;
        dense += elements(&spec.shape);
        // Of an embedding that is not also the head, a token touches one row.
        let one_row = asked.name == "embed_tokens" && !c.tied_embeddings;
        active += if one_row { spec.columns() as u64 } else { elements(&spec.shape) };
    }
    let mut expert_formats: BTreeMap<String, usize> = BTreeMap::new();
    for layout in (0..c.layers.len()).filter_map(|l| source.record_layout(l as u16)) {
        let names: Vec<String> = Projection::ALL.map(|p| layout.get(p).spec.format.to_string()).to_vec();
        let same = names.iter().all(|n| *n == names[0]);
        let name = if same {
            names[0].clone()
        } else {
            format!("gate {}, up {}, down {}", names[0], names[1], names[2])
        };
        *expert_formats.entry(name).or_default() += 1;
    }
    let token = TokenBytes::of(&*source);
    let expert = 3 * (c.hidden * c.moe.intermediate * c.layers.len()) as u64;
    Ok(ModelSummary {
        parameters: dense + expert * c.moe.experts as u64,
        active_parameters: active + expert * c.moe.top_k as u64,
        record_bytes: plan.slot_bytes,
        experts_bytes: plan.records_bytes,
        expert_bytes_per_token: token.experts,
        dense_bytes_per_token: token.dense,
        dense_formats: formats.into_iter().collect(),
        expert_formats: expert_formats.into_iter().collect(),
        config: c,
        plan,
    })
}

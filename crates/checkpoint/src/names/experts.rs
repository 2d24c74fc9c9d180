//! The routed experts: stacked (MLX), fused (Hugging Face `qwen3_5_moe`) or one tensor each.

use std::ops::Range;

use spinetail_core::{Family, Format, ModelConfig, Projection, RecordLayout, TensorSpec, mtp_prefix};

use super::matrix::Matrix;
use super::{Names, Result};
use crate::error::CheckpointError;
use crate::source::Source;

/// Where one projection of every expert of a layer lies.
#[derive(Debug)]
enum Place {
    /// In one tensor: some rows of each matrix of a stack.
    Stacked(Matrix, Range<usize>),
    /// In a tensor for each.
    Each(Vec<Source>),
}

/// The experts of one layer.
#[derive(Debug)]
pub(crate) struct ExpertLayer {
    pub(crate) layout: RecordLayout,
    places: [Place; 3],
}

impl ExpertLayer {
    /// Where a projection of expert `e` lies.
    pub(crate) fn source(&self, projection: Projection, e: usize) -> Source {
        match &self.places[projection as usize] {
            Place::Stacked(m, rows) => m.source(e, vec![rows.clone()]),
            Place::Each(all) => all[e].clone(),
        }
    }
}

pub(super) fn resolve(names: &mut Names<'_>, config: &ModelConfig) -> Result<Vec<ExpertLayer>> {
    let decoder = (0..config.layers.len()).map(|i| format!("layers.{i}"));
    let heads = (0..config.mtp_layers).map(mtp_prefix);
    decoder.chain(heads).map(|p| layer(names, config, &format!("{p}.mlp"))).collect()
}

fn layer(names: &mut Names<'_>, config: &ModelConfig, block: &str) -> Result<ExpertLayer> {
    let mut find = |projection| place(names, config, block, projection);
    let (gate, gate_place) = find(Projection::Gate)?;
    let (up, up_place) = find(Projection::Up)?;
    let (down, down_place) = find(Projection::Down)?;
    Ok(ExpertLayer {
        layout: RecordLayout::packed(gate, up, down),
        places: [gate_place, up_place, down_place],
    })
}

fn place(
    names: &mut Names<'_>,
    config: &ModelConfig,
    block: &str,
    projection: Projection,
) -> Result<(TensorSpec, Place)> {
    let (experts, inner, hidden) = (config.moe.experts, config.moe.intermediate, config.hidden);
    let (rows, columns) = match projection {
        Projection::Gate | Projection::Up => (inner, hidden),
        Projection::Down => (hidden, inner),
    };
    let spec = |format| TensorSpec { shape: vec![rows, columns], format };
    let p = projection.name();
    if projection != Projection::Down {
        let fused = [format!("{block}.experts.gate_up_proj"), format!("{block}.experts.gate_up_proj.weight")];
        if let Some(name) = fused.iter().find(|n| names.has(n)) {
            let m = names.matrix(name, Some(experts), 2 * inner, hidden)?;
            let first = if projection == Projection::Gate { 0 } else { inner };
            return Ok((spec(m.format), Place::Stacked(m, first..first + inner)));
        }
    }
    let stacked = [
        format!("{block}.switch_mlp.{p}.weight"),
        format!("{block}.experts.{p}"),
        format!("{block}.experts.{p}.weight"),
    ];
    if let Some(name) = stacked.iter().find(|n| names.has(n)) {
        let m = names.matrix(name, Some(experts), rows, columns)?;
        return Ok((spec(m.format), Place::Stacked(m, 0..rows)));
    }
    each(names, config, block, projection, [rows, columns]).map(|(f, all)| (spec(f), Place::Each(all)))
}

fn each(
    names: &mut Names<'_>,
    config: &ModelConfig,
    block: &str,
    projection: Projection,
    [rows, columns]: [usize; 2],
) -> Result<(Format, Vec<Source>)> {
    let name = |e: usize| format!("{block}.experts.{e}.{}.weight", projection.name());
    let unfused = (0..config.moe.experts).any(|e| names.has(&name(e)));
    if !unfused {
        // No form is there at all: name the usual one.
        return Err(names.missing(&match (names.mlx_naming(), config.family, projection) {
            (true, _, p) => format!("{block}.switch_mlp.{}.weight", p.name()),
            (false, Family::Qwen3Next, _) => name(0),
            (false, Family::Qwen35Moe, Projection::Down) => format!("{block}.experts.down_proj"),
            (false, Family::Qwen35Moe, _) => format!("{block}.experts.gate_up_proj"),
        }));
    }
    let mut format = None;
    let mut all = Vec::with_capacity(config.moe.experts);
    for e in 0..config.moe.experts {
        let m = names.matrix(&name(e), None, rows, columns)?;
        let first = *format.get_or_insert(m.format);
        if m.format != first {
            let shown = names.peek(&name(e)).map_or_else(|| name(e), |t| t.name.clone());
            let expected = format!("{first}, as expert 0 of the layer: all records of a layer are alike");
            return Err(CheckpointError::tensor(&shown, expected, m.format.to_string()));
        }
        all.push(m.whole());
    }
    format.map(|f| (f, all)).ok_or_else(|| names.missing(&name(0)))
}

//! The tensors that stay in memory.

use std::collections::HashMap;

use spinetail_core::{DType, DeltaConfig, DenseSpec, ModelConfig, Role, TensorSpec, dense_specs};

use super::matrix::float_type;
use super::packed::{packed_rows, unpack};
use super::{Names, Result};
use crate::error::CheckpointError;
use crate::source::{Decode, Run, Source};

/// A dense tensor: what it is and where it lies.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    pub(crate) spec: TensorSpec,
    pub(crate) source: Source,
}

pub(super) fn resolve(names: &mut Names<'_>, config: &ModelConfig) -> Result<HashMap<String, Dense>> {
    let centred = zero_centred(names, config)?;
    let mut out = HashMap::new();
    for spec in dense_specs(config) {
        let dense = match spec.role {
            Role::Vector => vector(names, &spec, centred)?,
            Role::Matrix | Role::Sensitive => matrix(names, &spec, &config.delta)?,
        };
        out.insert(spec.name, dense);
    }
    Ok(out)
}

/// The head of a model whose configuration says that there is none of its own.
pub(super) fn tied_head(names: &mut Names<'_>, config: &ModelConfig) -> Result<Option<Dense>> {
    if !config.tied_embeddings || !names.has("lm_head.weight") {
        return Ok(None);
    }
    let shape = vec![config.vocab, config.hidden];
    let spec = DenseSpec { name: "lm_head".to_owned(), shape, role: Role::Matrix };
    matrix(names, &spec, &config.delta).map(Some)
}

fn matrix(names: &mut Names<'_>, d: &DenseSpec, delta: &DeltaConfig) -> Result<Dense> {
    let (rows, columns) = (d.shape[0], d.shape[1]);
    let short = format!("{}.weight", d.name);
    let packed = d.name.rsplit_once(".linear_attn.").and_then(|(layer, part)| {
        let (whole, rows) = unpack(delta, part)?;
        let name = format!("{layer}.linear_attn.{whole}.weight");
        (!names.has(&short) && names.has(&name)).then_some((name, packed_rows(delta, whole), rows))
    });
    let (format, source) = match packed {
        Some((name, all, rows)) => {
            let m = names.matrix(&name, None, all, columns)?;
            (m.format, m.source(0, rows))
        }
        None => {
            let m = names.matrix(&short, None, rows, columns)?;
            (m.format, m.whole())
        }
    };
    Ok(Dense { spec: TensorSpec { shape: d.shape.clone(), format }, source })
}

fn vector(names: &mut Names<'_>, d: &DenseSpec, centred: bool) -> Result<Dense> {
    let bare = d.name.ends_with(".A_log") || d.name.ends_with(".dt_bias");
    let t = names.need(&if bare { d.name.clone() } else { format!("{}.weight", d.name) })?;
    let conv = d.name.ends_with(".conv1d");
    let fits = if conv {
        // Hugging Face puts the taps last, MLX the (single) input channel.
        t.shape == [d.shape[0], 1, d.shape[1]] || t.shape == [d.shape[0], d.shape[1], 1]
    } else {
        t.shape == d.shape
    };
    if !fits {
        let expected = match (conv, &d.shape[..]) {
            (true, &[c, k]) => format!("shape [{c}, 1, {k}] or [{c}, {k}, 1]"),
            (_, shape) => format!("shape {shape:?}"),
        };
        return Err(CheckpointError::tensor(&t.name, expected, format!("{} {:?}", t.dtype, t.shape)));
    }
    let dtype = float_type(&t)?;
    let row_bytes = (d.shape.last().copied().unwrap_or(0) * dtype.bytes()) as u64;
    let rows = if d.shape.len() == 2 { d.shape[0] } else { 1 };
    let weight = Run { file: t.file, offset: t.offset, row_bytes };
    Ok(Dense {
        spec: TensorSpec::plain(&d.shape, DType::F32),
        source: Source {
            parts: [weight, Run::default(), Run::default()],
            rows: std::iter::once(0..rows).collect(),
            decode: Decode::Vector { dtype, add_one: centred && is_centred_in_hf(&d.name) },
        },
    })
}

/// Norms whose weights Hugging Face stores less one. The gated norm within DeltaNet is not among them.
fn is_centred_in_hf(name: &str) -> bool {
    name.ends_with("norm") && !name.ends_with(".linear_attn.norm") || name.contains(".pre_fc_norm_")
}

/// Whether norm weights lack the 1. The shape of the convolution tells the two conventions apart; where it cannot (one
/// tap, or no DeltaNet layer), the naming does.
fn zero_centred(names: &Names<'_>, config: &ModelConfig) -> Result<bool> {
    let mut seen: Option<(bool, String)> = None;
    for i in 0..config.layers.len() {
        let Some(t) = names.peek(&format!("layers.{i}.linear_attn.conv1d.weight")) else { continue };
        let hf = match t.shape[..] {
            [_, 1, k] if k > 1 => true,
            [_, k, 1] if k > 1 => false,
            _ => continue,
        };
        match &seen {
            Some((first, name)) if *first != hf => {
                let expected = format!("its channel where {name} has it");
                return Err(CheckpointError::tensor(&t.name, expected, format!("shape {:?}", t.shape)));
            }
            _ => seen = Some((hf, t.name.clone())),
        }
    }
    Ok(seen.map_or_else(|| !names.mlx_naming(), |(hf, _)| hf))
}

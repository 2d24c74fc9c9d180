//! Source bytes to target bytes: copied, or quantized.

use std::ops::Range;

use spinetail_core::{DType, ExpertId, Format, Part, Projection, RecordLayout, TensorSpec};

use super::{Result, Source};
use crate::error::CheckpointError;
use crate::quantize::{NotFinite, Quantized, quantize_rows};

pub(crate) fn not_finite(name: &str, first_row: usize, e: NotFinite) -> CheckpointError {
    CheckpointError::Tensor {
        name: name.to_owned(),
        expected: "finite weights with a finite range".to_owned(),
        found: format!("{} at row {}, column {}", e.value, first_row + e.row, e.column),
        fix: "get the checkpoint again; with 16 bits it is copied as it is".to_owned(),
    }
}

/// What an expert's matrix is called in messages.
pub(crate) fn expert_name(id: ExpertId, projection: Projection) -> String {
    format!("layers.{}.mlp.experts.{}.{}", id.layer, id.expert, projection.name())
}

/// Some rows of a dense tensor in the target format, by part.
pub(super) fn convert_rows(
    model: &dyn Source,
    name: &str,
    source: &TensorSpec,
    target: &TensorSpec,
    rows: Range<usize>,
) -> Result<[Vec<u8>; 3]> {
    let mut parts: [Vec<u8>; 3] = Default::default();
    for &part in source.parts() {
        let out = &mut parts[part as usize];
        out.resize(rows.len() * source.row_bytes(part), 0);
        model.read_rows(name, part, rows.clone(), out)?;
    }
    match (source.format, target.format) {
        (Format::Plain(dtype), Format::Affine(affine)) => {
            let mut out = Quantized::default();
            quantize_rows(source.columns(), dtype, affine, &parts[0], &mut out)
                .map_err(|e| not_finite(name, rows.start, e))?;
            Ok(out.parts)
        }
        // Canonical vectors are f32 and never quantized; one bad norm or decay spoils every token.
        (Format::Plain(DType::F32), Format::Plain(_)) if is_vector(name, source) => {
            let width = source.columns().max(1);
            let mut values = (0..parts[0].len() / 4).map(|i| (i, DType::F32.get(&parts[0], i)));
            match values.find(|(_, v)| !v.is_finite()) {
                Some((i, value)) => {
                    Err(not_finite(name, rows.start, NotFinite { row: i / width, column: i % width, value }))
                }
                None => Ok(parts),
            }
        }
        _ => Ok(parts),
    }
}

fn is_vector(name: &str, spec: &TensorSpec) -> bool {
    spec.shape.len() == 1 || name.ends_with(".conv1d")
}

/// One expert's record in the target layout; bytes that belong to no part are zero.
pub(super) fn convert_record(
    model: &dyn Source,
    id: ExpertId,
    source: &RecordLayout,
    target: &RecordLayout,
) -> Result<Vec<u8>> {
    let mut record = vec![0; source.bytes as usize];
    model.read_record(id, &mut record)?;
    let mut out = vec![0; target.bytes as usize];
    let mut quantized = Quantized::default();
    for projection in Projection::ALL {
        let (from, to) = (source.get(projection), target.get(projection));
        if let (Format::Plain(dtype), Format::Affine(affine)) = (from.spec.format, to.spec.format) {
            let rows = from.slice(&record, Part::Weight);
            quantize_rows(from.spec.columns(), dtype, affine, rows, &mut quantized)
                .map_err(|e| not_finite(&expert_name(id, projection), 0, e))?;
            for &part in to.spec.parts() {
                out[to.range(part)].copy_from_slice(&quantized.parts[part as usize]);
            }
        } else {
            for &part in to.spec.parts() {
                out[to.range(part)].copy_from_slice(from.slice(&record, part));
            }
        }
    }
    Ok(out)
}

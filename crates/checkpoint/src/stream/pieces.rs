//! Which bytes of a file go where: the tensors' sources turned round.

use spinetail_container::Plan;
use spinetail_core::{Affine, DType, ExpertId, Format, Part, Projection, TensorSpec};

use super::Result;
use crate::error::CheckpointError;
use crate::names::Resolved;
use crate::source::{Decode, Source};

/// What is done to bytes on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Copy,
    /// To f32.
    Vector {
        dtype: DType,
        add_one: bool,
    },
    /// Whole rows to codes.
    Quantize {
        dtype: DType,
        affine: Affine,
        columns: u32,
    },
}

/// Where they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Index into the plan's dense tensors.
    Dense(u32),
    Record(ExpertId, Projection),
}

/// Consecutive bytes of a file that are consecutive rows of one part of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) place: Place,
    /// Of the source.
    pub(super) part: Part,
    /// Source bytes of the tensor's rows before this piece.
    pub(super) first_byte: u64,
    pub(super) how: How,
}

impl Piece {
    /// Bytes that can only be converted together.
    pub(super) fn unit_bytes(&self) -> u64 {
        match self.how {
            How::Copy => 1,
            How::Vector { dtype, .. } => dtype.bytes() as u64,
            How::Quantize { dtype, columns, .. } => u64::from(columns) * dtype.bytes() as u64,
        }
    }
}

struct Pieces {
    files: Vec<Vec<Piece>>,
}

impl Pieces {
    fn add(&mut self, source: &Source, from: &TensorSpec, to: &TensorSpec, place: Place) {
        let how = match (source.decode, from.format, to.format) {
            (Decode::Vector { dtype, add_one }, ..) => How::Vector { dtype, add_one },
            (_, Format::Plain(dtype), Format::Affine(affine)) => {
                How::Quantize { dtype, affine, columns: from.columns() as u32 }
            }
            _ => How::Copy,
        };
        for &part in from.parts() {
            let run = source.parts[part as usize];
            let mut first_byte = 0;
            for rows in source.rows.iter().filter(|r| !r.is_empty()) {
                let start = run.offset + rows.start as u64 * run.row_bytes;
                let bytes = rows.len() as u64 * run.row_bytes;
                let piece = Piece { start, end: start + bytes, place, part, first_byte, how };
                self.files[run.file as usize].push(piece);
                first_byte += bytes;
            }
        }
    }
}

/// The pieces of every file, in its order.
pub(super) fn of(resolved: &Resolved, plan: &Plan, files: usize) -> Result<Vec<Vec<Piece>>> {
    let mut pieces = Pieces { files: vec![Vec::new(); files] };
    for (i, (name, target)) in plan.dense.iter().enumerate() {
        if let Some(dense) = resolved.dense.get(name) {
            pieces.add(&dense.source, &dense.spec, target, Place::Dense(i as u32));
        }
    }
    for (layer, (experts, target)) in resolved.experts.iter().zip(&plan.experts).enumerate() {
        for expert in 0..plan.config.moe.experts {
            let id = ExpertId { layer: layer as u16, expert: expert as u16 };
            for projection in Projection::ALL {
                let source = experts.source(projection, expert);
                let (from, to) = (&experts.layout.get(projection).spec, &target.get(projection).spec);
                pieces.add(&source, from, to, Place::Record(id, projection));
            }
        }
    }
    for file in &mut pieces.files {
        file.sort_unstable_by_key(|p| (p.start, p.end));
        if let Some(pair) = file.windows(2).find(|pair| pair[1].start < pair[0].end) {
            return Err(CheckpointError::Tensor {
                name: format!("{:?} and {:?}", pair[0].place, pair[1].place),
                expected: "bytes that belong to one of them".to_owned(),
                found: format!("both from byte {}", pair[1].start),
                fix: String::new(),
            });
        }
    }
    Ok(pieces.files)
}

/// FNV-1a over all that a piece is.
pub(super) fn fingerprint(pieces: &[Piece]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |numbers: &[u64]| {
        for byte in numbers.iter().flat_map(|n| n.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for p in pieces {
        add(&[p.start, p.end, p.first_byte, p.part as u64]);
        match p.place {
            Place::Dense(i) => add(&[0, u64::from(i)]),
            Place::Record(id, projection) => {
                add(&[1, u64::from(id.layer), u64::from(id.expert), projection as u64]);
            }
        }
        match p.how {
            How::Copy => add(&[0]),
            How::Vector { dtype, add_one } => add(&[1, dtype.bytes() as u64, u64::from(add_one)]),
            How::Quantize { affine, .. } => add(&[2, u64::from(affine.bits), affine.group_size as u64]),
        }
    }
    hash
}

//! Which expert, and how its record is laid out.

use serde::{Deserialize, Serialize};

use crate::{TensorLayout, TensorSpec};

/// One routed expert of one layer. Layers past the decoder's are prediction heads: the first is `layers.len()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExpertId {
    /// Index of the layer.
    pub layer: u16,
    /// Index of the expert within the layer.
    pub expert: u16,
}

impl std::fmt::Display for ExpertId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expert {} of layer {}", self.expert, self.layer)
    }
}

/// The three matrices of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Projection {
    /// `[intermediate, hidden]`
    Gate,
    /// `[intermediate, hidden]`
    Up,
    /// `[hidden, intermediate]`
    Down,
}

impl Projection {
    /// All three, in the order in which they are consumed.
    pub const ALL: [Self; 3] = [Self::Gate, Self::Up, Self::Down];

    /// The name used in checkpoints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }
}

/// The layout of the records of one layer: offsets are from the start of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordLayout {
    /// `[intermediate, hidden]`
    pub gate: TensorLayout,
    /// `[intermediate, hidden]`
    pub up: TensorLayout,
    /// `[hidden, intermediate]`
    pub down: TensorLayout,
    /// Bytes from the start of the record to the end of its last part.
    pub bytes: u64,
}

impl RecordLayout {
    /// gate, up, down one after another in the order of use, every part aligned to [`crate::PART_ALIGN`].
    pub fn packed(gate: TensorSpec, up: TensorSpec, down: TensorSpec) -> Self {
        let (gate, end) = TensorLayout::packed(gate, 0);
        let (up, end) = TensorLayout::packed(up, end);
        let (down, bytes) = TensorLayout::packed(down, end);
        Self { gate, up, down, bytes }
    }

    /// The layout of one projection.
    pub fn get(&self, projection: Projection) -> &TensorLayout {
        match projection {
            Projection::Gate => &self.gate,
            Projection::Up => &self.up,
            Projection::Down => &self.down,
        }
    }
}

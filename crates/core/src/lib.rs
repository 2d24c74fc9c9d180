//! The vocabulary every other crate shares: what a model looks like, how a tensor's bytes are laid out and what
//! they mean, what an expert record is, and the traits through which bytes are handed over.
//!
//! Nothing here opens a file, starts a thread or reads the environment.

mod config;
mod dtype;
mod expert;
mod limits;
mod names;
mod quant;
mod ring;
mod slot;
mod source;
mod tensor;

pub use config::{AttentionConfig, ConfigError, DeltaConfig, Family, LayerKind, ModelConfig, MoeConfig};
pub use dtype::{DType, widen};
pub use expert::{ExpertId, Projection, RecordLayout};
pub use limits::Limits;
pub use names::{DenseSpec, Role, dense_specs, mtp_prefix};
pub use quant::{Affine, BITS, GROUP_SIZES, unpack_group};
pub use ring::{ReadRing, RingEnd};
pub use slot::{Pages, SLAB_ALIGN, Slab, SlabError, SlotMemory};
pub use source::{DenseSource, ModelSource, ReadError, ReadMode, RecordSource};
pub use tensor::{Format, PART_ALIGN, Part, TensorError, TensorLayout, TensorSpec, dequantize_row};

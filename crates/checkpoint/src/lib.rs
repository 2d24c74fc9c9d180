//! Checkpoints as published: Hugging Face and MLX safetensors, their configurations and tensor names, quantizing, and
//! repacking into a container.
//!
//! [`Checkpoint`] serves a folder as a model without converting it. Files are read by ranges, never whole. Everything
//! that comes from outside is bounded and checked; what is not understood is refused by name. Nothing here knows of
//! caches or computes a forward pass.

mod config;
mod error;
mod fp8;
mod model;
mod names;
pub mod quantize;
mod repack;
pub mod safetensors;
mod source;
pub mod stream;
mod v1;

pub use error::CheckpointError;
pub use model::{Checkpoint, open_model, open_model_with, read_config};
pub use repack::{Progress, RepackOptions, SMALL_FILES, repack};
pub use spinetail_container::{OpenOptions, Summary};

//! The CPU backend, in f32: the `exact` precision.
//!
//! Weights stay in the format they came in and are widened a row at a time; activations are f32; DeltaNet is the
//! recurrence over tokens. Every output element is one sum in one fixed order, so that a row's bytes do not depend on
//! what else is in the batch. Knows nothing of files or of tokens' text.

mod attention;
mod backend;
mod delta;
pub mod kernels;
mod linear;
mod math;
mod memory;
mod moe;
mod sequence;
mod weights;

pub use backend::CpuBackend;
pub use memory::HostMemory;

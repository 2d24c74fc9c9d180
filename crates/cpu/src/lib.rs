//! The CPU backend: kernels, threads, and the model's steps over them.
//!
//! `exact` computes in f32. `fast` multiplies 2- to 8-bit weights with activations rounded to 8 bits per group, and keeps
//! keys and values in 16: the default. In both, every output element is one sum in one fixed order that depends on the shapes alone, so
//! that a row's bytes depend neither on what else is in the batch nor on threads. Knows nothing of files or of tokens' text.

mod aligned;
mod attention;
mod backend;
mod compute;
mod delta;
pub mod kernels;
mod memory;
mod moe;
mod pool;
pub mod probe;
mod sequence;
mod weights;

pub use backend::CpuBackend;
pub use compute::{CpuOptions, Precision};
pub use memory::{HostMemory, Region};
pub use pool::{MAX_THREADS, Pool, PoolError, PoolOptions};

//! Memory for expert records, given to the store by whoever computes on it.
//!
//! The store decides which record lies where; how the bytes are allocated (plain memory, memory a GPU can see) is the
//! backend's business.

use std::ptr::NonNull;

use serde::{Deserialize, Serialize};

/// Alignment, in bytes, that every slab has at least: what direct reads need on every drive known.
pub const SLAB_ALIGN: usize = 16 * 1024;

/// The pages that memory is mapped with, where the system leaves the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// Of 2 MiB, as far as the system has any.
    #[default]
    Huge,
    /// The smallest there are.
    Small,
}

impl Pages {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Huge, Self::Small];

    /// The name people see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Huge => "huge",
            Self::Small => "small",
        }
    }
}

impl std::fmt::Display for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Slab memory could not be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "no memory for {bytes} bytes of expert slots; lower the memory budget, raise the limit of address space (`ulimit -v`) where there is one, or close other programs"
)]
pub struct SlabError {
    /// Bytes asked for.
    pub bytes: usize,
}

/// A block of host-addressable memory.
///
/// # Safety
/// `base` must stay the same and be valid for reads and writes of `len` bytes, from any thread, until the slab is
/// dropped, be aligned to [`SLAB_ALIGN`], and point to initialised (zeroed) bytes that nothing else writes.
#[allow(unsafe_code)]
pub unsafe trait Slab: Send + Sync {
    /// Start of the block.
    fn base(&self) -> NonNull<u8>;
    /// Bytes of the block.
    fn len(&self) -> usize;
    /// Whether the block has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Allocates slabs. Dropping a slab gives its memory back to the operating system.
pub trait SlotMemory: Send + Sync {
    /// A zeroed slab of `bytes` bytes.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Slab>, SlabError>;
}

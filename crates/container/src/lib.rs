//! The `.qpack` container: a folder that holds a model as it is used, dense tensors in one file, one aligned record
//! per expert in others, and a checksum for every byte.
//!
//! `docs/format.md` draws the format; this crate writes version 2, reads version 2 ([`Container`]) and Swiftlet's
//! version 1 ([`v1::V1`]), and verifies both ([`verify()`]). It must not know what the tensors compute, where a
//! container came from over a network, or what the user typed.

mod checksums;
mod data;
mod dense;
mod error;
mod files;
mod layout;
mod manifest;
mod page_cache;
pub mod partial;
mod placed;
mod reader;
#[cfg(all(
    feature = "io-uring",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod uring;
#[cfg(not(all(
    feature = "io-uring",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
#[path = "no_uring.rs"]
mod uring;
pub mod v1;
mod validate;
mod verify;
mod writer;

use std::path::Path;

pub use checksums::Checksums;
pub use data::{BLOCK_BYTES, DataFile, Reading};
pub use error::ContainerError;
pub use files::{pread_exact, pwrite_all, read_small_file};
pub use layout::{DensePart, Plan};
pub use manifest::{
    DenseSection, ExpertLayer, ExpertSection, FileEntry, MANIFEST_BYTES, Manifest, Quantization, SourceFile,
    SourceIdentity, TensorEntry,
};
pub use page_cache::page_cache_bytes;
pub use placed::{Opened, PlacedWriter};
pub use reader::{Container, Listing, OpenOptions, RecordFile};
pub use verify::{Damage, Progress, VerifyReport, verify};
pub use writer::{Summary, Writer};

/// The version this crate writes, and the newest it reads.
pub const VERSION: u32 = 2;

/// Which container a folder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Version 2: [`Container`].
    V2,
    /// Swiftlet's version 1: [`v1::V1`].
    V1,
}

/// Says which container `path` holds; `None` if it has no `manifest.json`.
///
/// A manifest of another program, of a newer version or with a feature unknown here is an error, not `None`: reading
/// such a folder as something else would hide the reason.
pub fn detect(path: &Path) -> Result<Option<Kind>, ContainerError> {
    let file = path.join(manifest::FILE);
    match std::fs::symlink_metadata(&file) {
        Ok(_) => {}
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(ContainerError::io("look at", &file, error)),
    }
    let bytes = read_small_file(&file, MANIFEST_BYTES)?;
    manifest_kind(&file, &bytes).map(Some)
}

/// Says which container a manifest belongs to; `file` is named in errors and not opened.
pub fn manifest_kind(file: &Path, manifest: &[u8]) -> Result<Kind, ContainerError> {
    manifest::head(file, manifest)
}

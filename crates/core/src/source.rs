//! Where a model's bytes come from, whatever holds them: a container, a checkpoint, memory, a test.

use std::path::PathBuf;

use crate::{ExpertId, ModelConfig, Part, RecordLayout, TensorSpec};

/// Bytes could not be read. Says which file, where, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The operating system refused.
    #[error("cannot read {bytes} bytes at {offset} of {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Offset of the read.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The file ended early.
    #[error("{} ends too early: expected {bytes} bytes at {offset}, found {found}; the file was cut short, get it again", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Offset of the read.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes there.
        found: u64,
    },
    /// The bytes are not those that were written.
    #[error("{what} in {} is damaged: expected checksum {expected:016x}, found {found:016x}; get the file again", path.display())]
    Checksum {
        /// Which record or tensor.
        what: String,
        /// The file.
        path: PathBuf,
        /// Checksum recorded.
        expected: u64,
        /// Checksum of the bytes read.
        found: u64,
    },
    /// Asked for something the model does not have.
    #[error("the model has no {what}")]
    Unknown {
        /// What was asked for.
        what: String,
    },
}

/// The tensors that stay in memory, by canonical name (see [`crate::dense_specs`]).
pub trait DenseSource: Send + Sync {
    /// The model's shape.
    fn config(&self) -> &ModelConfig;

    /// Shape and format of a tensor; `None` if the model has no tensor of that name.
    fn dense_spec(&self, name: &str) -> Option<&TensorSpec>;

    /// Reads a whole part into `out`, whose length is the spec's [`TensorSpec::part_bytes`].
    fn read_dense(&self, name: &str, part: Part, out: &mut [u8]) -> Result<(), ReadError>;
}

/// Expert records. One call is one positioned read wherever the source is a container.
pub trait RecordSource: Send + Sync {
    /// The layout of the records of `layer`; `None` past the last layer.
    fn record_layout(&self, layer: u16) -> Option<&RecordLayout>;

    /// Experts of each layer.
    fn expert_count(&self) -> usize;

    /// Reads the record into the start of `out`, which has at least the layout's `bytes` bytes; bytes past those are
    /// the source's to use (a direct read fills whole blocks).
    fn read_record(&self, id: ExpertId, out: &mut [u8]) -> Result<(), ReadError>;
}

/// A whole model: dense tensors and expert records.
pub trait ModelSource: DenseSource + RecordSource {}

impl<T: DenseSource + RecordSource> ModelSource for T {}

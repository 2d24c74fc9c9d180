//! Where a model's bytes come from, whatever holds them: a container, a checkpoint, memory, a test.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{ExpertId, ModelConfig, Part, ReadRing, RecordLayout, TensorLayout, TensorSpec};

/// How the system is asked for the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadMode {
    /// From the drive into the memory where they are used. Needs places, lengths and addresses that are multiples of
    /// 4096; what is not is read buffered.
    #[default]
    Direct,
    /// Through the system's page cache.
    Buffered,
    /// As direct, through Linux's io_uring: one thread has all reads on their way.
    Uring,
}

impl ReadMode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Direct, Self::Buffered, Self::Uring];

    /// The name people see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Uring => "uring",
        }
    }
}

impl std::fmt::Display for ReadMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

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

    /// Where a tensor lies in this source's image: the tensors as they lie in one file, in which those that stay in
    /// memory can be used. `None` for every tensor where there is no image.
    fn image_layout(&self, _name: &str) -> Option<&TensorLayout> {
        None
    }

    /// Reads the start of the image, checked as [`DenseSource::read_dense`] checks, as fast as the drive allows.
    /// `progress` is told bytes as they have been read and checked.
    ///
    /// `out` is a multiple of 4096 bytes within the image's length; parts that it has no room for are not checked. Reads are
    /// fastest into memory that begins at a multiple of 4096 and of the system's large pages; memory that has never been
    /// touched is touched just before it is read into.
    fn read_image(&self, _out: &mut [u8], _progress: &mut dyn FnMut(u64)) -> Result<(), ReadError> {
        Err(ReadError::Unknown { what: "image".to_owned() })
    }
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

    /// How records are read now: a source that was asked for a ring goes over to direct reads, and one that was asked for
    /// those to buffered ones, where the system refuses them.
    fn read_mode(&self) -> ReadMode {
        ReadMode::Buffered
    }

    /// A ring for up to `reads` reads at once, where that is the mode and the system allows it. A source whose mode it is
    /// and that has none to give has said why, and is in another mode afterwards.
    fn ring(&self, _reads: u32) -> Option<Box<dyn ReadRing + '_>> {
        None
    }
}

/// A whole model: dense tensors and expert records.
pub trait ModelSource: DenseSource + RecordSource {}

impl<T: DenseSource + RecordSource> ModelSource for T {}

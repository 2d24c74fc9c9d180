//! What can be wrong with a checkpoint: which file, tensor or field, what was expected, what was found, what to do.

use std::path::{Path, PathBuf};

use spinetail_container::ContainerError;
use spinetail_core::ReadError;

use crate::safetensors::HeaderError;

/// A checkpoint cannot be opened, read or repacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused to open, list or read.
    #[error("cannot {action} {}: {error}; check the path, its permissions and the drive", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The path holds nothing that is known.
    #[error("{} is not a model: expected {expected}, found {found}", path.display())]
    NotAModel {
        /// The path given.
        path: PathBuf,
        /// What would have been accepted.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// Bytes could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A container could not be read or written, or a small file of the checkpoint could not be read.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// A safetensors header that cannot be.
    #[error("{}: {error}; the file is damaged or not safetensors, get it again", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: HeaderError,
    },
    /// A shard that the index lists is not there.
    #[error("{listed_by} needs {file}, which is not in {}; get the missing file", folder.display())]
    MissingShard {
        /// The folder.
        folder: PathBuf,
        /// Who says so.
        listed_by: String,
        /// The missing file.
        file: String,
    },
    /// The index names a file that does not hold the tensor.
    #[error(
        "the index says that {tensor} lies in {said}, but {}; get the index and the shards again, from one source",
        match found { Some(f) => format!("it lies in {f}"), None => "no listed file holds it".to_owned() }
    )]
    IndexLies {
        /// The tensor.
        tensor: String,
        /// The file that the index names.
        said: String,
        /// The listed file that holds the tensor.
        found: Option<String>,
    },
    /// Two files hold the same tensor and no index says which counts.
    #[error(
        "{tensor} lies in both {first} and {second}; remove the stale file or add model.safetensors.index.json"
    )]
    TwoCopies {
        /// The tensor.
        tensor: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
    /// A field of a JSON file that is not understood.
    #[error("{}: {field}: expected {expected}, found {found}{}", path.display(), hint(fix))]
    Field {
        /// The file.
        path: PathBuf,
        /// The field, with dots.
        field: String,
        /// What is understood.
        expected: String,
        /// What was found.
        found: String,
        /// What to do; may be empty.
        fix: String,
    },
    /// A tensor is not there.
    #[error("tensor {name} is missing{}", hint(fix))]
    MissingTensor {
        /// The name, in the checkpoint's own spelling.
        name: String,
        /// What to do; may be empty.
        fix: String,
    },
    /// A tensor that no supported architecture has.
    #[error(
        "tensor {name} is not part of any supported model; spinetail does not know what it would change, so it does not ignore it"
    )]
    UnknownTensor {
        /// The name.
        name: String,
    },
    /// A tensor's shape, type or values are not what the model needs.
    #[error("tensor {name}: expected {expected}, found {found}{}", hint(fix))]
    Tensor {
        /// The name, in the checkpoint's own spelling.
        name: String,
        /// What is needed.
        expected: String,
        /// What was found.
        found: String,
        /// What to do; may be empty.
        fix: String,
    },
    /// Repacking was asked for in a way that the source does not allow.
    #[error("{option}: expected {expected}, found {found}; {fix}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is allowed.
        expected: String,
        /// What was asked for.
        found: String,
        /// What to do.
        fix: &'static str,
    },
    /// The caller asked to stop.
    #[error("repacking was stopped; nothing was written under the final name")]
    Cancelled,
}

fn hint(fix: &str) -> String {
    if fix.is_empty() { String::new() } else { format!("; {fix}") }
}

impl CheckpointError {
    pub(crate) fn io(action: &'static str, path: &Path, error: std::io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), error }
    }

    pub(crate) fn tensor(name: &str, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Tensor {
            name: name.to_owned(),
            expected: expected.into(),
            found: found.into(),
            fix: String::new(),
        }
    }
}

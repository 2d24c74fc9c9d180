//! What can go wrong with a container: which file, which field, what was expected, what was found, what to do.

use std::fmt::{Debug, Display};
use std::path::{Path, PathBuf};

use spinetail_core::ReadError;

/// What to do about a file whose contents cannot be right.
pub(crate) const GET_AGAIN: &str =
    "the container is damaged or was made by something else: get it or repack it again";

/// Open files of a process beside a model's large ones: its own output, libraries, a trace, connections of a server.
const OTHER_DESCRIPTORS: usize = 32;

/// Whether an error says that this process may open no more files.
fn is_out_of_descriptors(e: &std::io::Error) -> bool {
    #[cfg(unix)]
    return e.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error());
    #[cfg(not(unix))]
    {
        let _ = e;
        false
    }
}

/// A container could not be read, written or verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// The operating system refused.
    #[error("cannot {action} {}: {error}; check the path, its permissions and the drive", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// More files have to be open than may be.
    #[error(
        "cannot open {}: the model's {files} large files need up to {needed} open files, and the system allows fewer ({error}); \
         raise the limit (`ulimit -n {needed}`)",
        path.display()
    )]
    Descriptors {
        /// The file.
        path: PathBuf,
        /// The model's large files.
        files: usize,
        /// Files that have to be open at once, those of the rest of the process included.
        needed: usize,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Bytes could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file is not JSON of the form expected.
    #[error("{}: {field}: expected JSON of the documented form, found: {error}; {GET_AGAIN}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// The field, as a path into the file; `.` is all of it.
        field: String,
        /// What was expected and found, at which line and column.
        error: serde_json::Error,
    },
    /// A field holds something it must not.
    #[error("{}: {field}: expected {expected}, found {found}; {advice}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The field, as a path into the file.
        field: String,
        /// What is allowed.
        expected: String,
        /// What is there.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// A version this build does not read.
    #[error("{}: version: expected 1 or {}, found {found}; upgrade spinetail to read this container", file.display(), crate::VERSION)]
    Version {
        /// The manifest.
        file: PathBuf,
        /// Its version.
        found: u64,
    },
    /// A feature this build does not know, without which the container would be misread.
    #[error("{}: features: expected none, found {feature:?}; upgrade spinetail to read this container", file.display())]
    Feature {
        /// The manifest.
        file: PathBuf,
        /// The feature.
        feature: String,
    },
    /// The output is there already.
    #[error("{} exists already; remove it or choose another output", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// Another process is writing the same output.
    #[error("{} is being written by another process; wait for it, or choose another output", path.display())]
    Busy {
        /// The unfinished folder.
        path: PathBuf,
    },
    /// Something that this crate did not make stands where the unfinished folder has to be.
    #[error("{} is in the way: expected an unfinished container with its lock file, found {found}; move it away", path.display())]
    InTheWay {
        /// Where the unfinished folder has to be.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// The drive is too full.
    #[error("not enough space for {}: needs {needed} bytes, {available} are available; free {} bytes or choose another drive", path.display(), needed.saturating_sub(*available))]
    NoSpace {
        /// The output.
        path: PathBuf,
        /// Bytes the container takes.
        needed: u64,
        /// Bytes the drive has for this user.
        available: u64,
    },
    /// A name that must not be used for a file or folder.
    #[error("{name:?} cannot be used as a name: {why}")]
    Name {
        /// The name.
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// The writer was given something the plan does not have, twice, out of order, or of another size.
    #[error("cannot write {what}: expected {expected}, found {found}; the source does not match the plan")]
    Write {
        /// What was written.
        what: String,
        /// What the plan allows.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The writer was finished too early.
    #[error(
        "the container is incomplete: expected {expected} bytes of {what}, found {found}; nothing was kept"
    )]
    Incomplete {
        /// The first tensor or record missing.
        what: String,
        /// Its bytes.
        expected: u64,
        /// Bytes written.
        found: u64,
    },
    /// The container has no such file.
    #[error("{} has no file {name:?}; it was not in the model's source", path.display())]
    NoFile {
        /// The container.
        path: PathBuf,
        /// The name asked for.
        name: String,
    },
    /// There is no container.
    #[error("{} is not a container: expected a folder with manifest.json, found none; an unfinished copy looks like this too", path.display())]
    NotAContainer {
        /// The path given.
        path: PathBuf,
    },
    /// The caller asked to stop.
    #[error("verifying {} was interrupted, nothing was changed; run it again", path.display())]
    Interrupted {
        /// The container.
        path: PathBuf,
    },
}

impl ContainerError {
    /// The same, unless this process has too many files open for the `files` large ones that a model has: then that is said.
    pub(crate) fn name_descriptors(self, files: usize) -> Self {
        match self {
            Self::Io { path, error, .. } if is_out_of_descriptors(&error) => {
                Self::Descriptors { path, files, needed: 2 * files + OTHER_DESCRIPTORS, error }
            }
            other => other,
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path, error: std::io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), error }
    }

    pub(crate) fn invalid(
        file: &Path,
        field: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            file: file.to_owned(),
            field: field.into(),
            expected: expected.into(),
            found: found.into(),
            advice: GET_AGAIN,
        }
    }
}

/// Refuses `found` unless it is `expected`.
pub(crate) fn equal<T: PartialEq + Debug>(
    file: &Path,
    field: impl Display,
    expected: &T,
    found: &T,
) -> Result<(), ContainerError> {
    if expected == found {
        return Ok(());
    }
    Err(ContainerError::invalid(file, field.to_string(), format!("{expected:?}"), format!("{found:?}")))
}

/// Reads the bytes of `file` as JSON of the form `T`.
pub(crate) fn from_json<T: serde::de::DeserializeOwned>(
    file: &Path,
    bytes: &[u8],
) -> Result<T, ContainerError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|e| {
        let field = crate::manifest::clipped(&e.path().to_string());
        ContainerError::Json { file: file.to_owned(), field, error: e.into_inner() }
    })?;
    json.end().map_err(|error| ContainerError::Json {
        file: file.to_owned(),
        field: ".".to_owned(),
        error,
    })?;
    Ok(value)
}

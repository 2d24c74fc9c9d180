//! What can go wrong with a download or the models folder: what was expected, what was found, what to do.

use std::path::{Path, PathBuf};

use spinetail_checkpoint::CheckpointError;
use spinetail_container::ContainerError;

/// A model could not be had, listed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A setting or a name that cannot be used.
    #[error("{what}: expected {expected}, found {found:?}")]
    Setting {
        /// Which.
        what: &'static str,
        /// What is allowed.
        expected: &'static str,
        /// What was given.
        found: String,
    },
    /// The network or the server failed, again and again.
    #[error(
        "{url}: gave up after {attempts} attempts without progress; the last: {why}. What has arrived is kept: run the same command again to go on"
    )]
    Network {
        /// What was asked for.
        url: String,
        /// How often.
        attempts: u32,
        /// The last failure.
        why: String,
    },
    /// The system gives no thread.
    #[error(
        "cannot start a thread to download with: {error}; end other programs, or raise the limit of processes (`ulimit -u`) or of memory (`ulimit -v`)"
    )]
    Thread {
        /// The system's reason.
        error: std::io::Error,
    },
    /// An answer that no second attempt would change.
    #[error("{url}: expected an answer of 200 or 206, found {status}{}", detail(meaning))]
    Status {
        /// What was asked for.
        url: String,
        /// The status.
        status: u16,
        /// What the server said about it.
        meaning: String,
    },
    /// The server wants to know who asks, or does not like who does.
    #[error(
        "{url}: access refused ({status}{}). {}",
        detail(meaning),
        if *token {
            "The token given does not open this: accept the model's licence on its page with the account the token belongs to, and check that the token may read gated repositories"
        } else {
            "If the name is right, the model is gated or private: accept its licence on its page, make an access token, and give it in HF_TOKEN"
        }
    )]
    Refused {
        /// What was asked for.
        url: String,
        /// 401 or 403.
        status: u16,
        /// What the server said about it.
        meaning: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// There is no such thing.
    #[error("{url}: not found (404); check the name and the revision")]
    NotFound {
        /// What was asked for.
        url: String,
    },
    /// The server asks for a longer wait than one wants to sit through.
    #[error(
        "{url}: too many requests (429); the server asks to wait {seconds} s. What has arrived is kept: run the same command again then"
    )]
    RateLimited {
        /// What was asked for.
        url: String,
        /// How long.
        seconds: u64,
    },
    /// Redirects that lead nowhere, or somewhere they must not.
    #[error("{url}: {why}")]
    Redirect {
        /// What was asked for.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// An answer that should be small is not.
    #[error("{url}: expected at most {limit} bytes, found {found}")]
    TooLarge {
        /// What was asked for.
        url: String,
        /// The limit.
        limit: u64,
        /// Bytes announced or sent.
        found: String,
    },
    /// A listing that cannot be understood.
    #[error("{url}: expected {expected}, found {found}")]
    Answer {
        /// What was asked for.
        url: String,
        /// What the protocol says.
        expected: &'static str,
        /// What came.
        found: String,
    },
    /// Something else came under the file's name.
    #[error("{file}: expected the file's own bytes, found {found}; {fix}")]
    NotTheFile {
        /// The file.
        file: String,
        /// What came.
        found: &'static str,
        /// What to do.
        fix: &'static str,
    },
    /// A file is longer or shorter than its listing says.
    #[error(
        "{file}: expected {expected} bytes, found {found}; the source contradicts itself, tell whoever runs it"
    )]
    Length {
        /// The file.
        file: String,
        /// As listed.
        expected: u64,
        /// As sent.
        found: String,
    },
    /// A file is not what its listing says, twice.
    #[error(
        "{file}: expected SHA-256 {expected}, found {found}, twice; the source is damaged or tampered with, tell whoever runs it"
    )]
    Hash {
        /// The file.
        file: String,
        /// As listed.
        expected: String,
        /// Of the bytes that came.
        found: String,
    },
    /// The source kept changing.
    #[error(
        "the source changed while it was being read, {rounds} times; the last: {why}. Nothing was published; run again later, or name a commit as the revision"
    )]
    Changed {
        /// How often.
        rounds: u32,
        /// What changed.
        why: String,
    },
    /// The source holds nothing that can be used.
    #[error("{source_name} is not a model: expected {expected}, found {found}")]
    NotAModel {
        /// The repository or URL.
        source_name: String,
        /// What would have been accepted.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// The output is there and is something else.
    #[error("{} exists already and {found}; remove it or choose another output", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
        /// How it differs.
        found: String,
    },
    /// A finished container does not match its own checksums.
    #[error("{source_name} is damaged: {first}{}; nothing was kept, tell whoever runs it", if *count > 1 { format!(", and {} more", count - 1) } else { String::new() })]
    Damaged {
        /// The repository or URL.
        source_name: String,
        /// The first thing wrong.
        first: String,
        /// How many.
        count: usize,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A container could not be written or read.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// A checkpoint is not understood, or could not be repacked.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A model that must not be removed.
    #[error("{} is not removed: {why}", path.display())]
    NotRemoved {
        /// The folder.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The caller asked to stop.
    #[error("stopped; what has arrived is kept: run the same command again to go on")]
    Cancelled,
}

fn detail(meaning: &str) -> String {
    if meaning.is_empty() { String::new() } else { format!(": {meaning}") }
}

impl HubError {
    pub(crate) fn io(action: &'static str, path: &Path, error: std::io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), error }
    }
}

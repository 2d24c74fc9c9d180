//! What the store can refuse.

use spinetail_core::{ExpertId, ReadError, SlabError};

/// What went wrong while records were fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A record could not be read.
    #[error("{id} could not be read: {error}")]
    Read {
        /// The record.
        id: ExpertId,
        /// Why; part of the message, and so no source.
        error: ReadError,
    },
    /// Slot memory could not be had.
    #[error(transparent)]
    Memory(#[from] SlabError),
    /// An id past the model's layers or experts.
    #[error("the model has no {id}")]
    Unknown {
        /// The id asked for.
        id: ExpertId,
    },
    /// No thread could be had to read with.
    #[error(
        "no thread could be started to read experts: {error}; raise the limit on threads, or close other programs"
    )]
    Threads {
        /// The system's reason.
        error: std::io::Error,
    },
}

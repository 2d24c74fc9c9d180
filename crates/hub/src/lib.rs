//! Getting models: from the Hugging Face hub's protocol or a static mirror, resumed, verified, repacked on the way; and
//! the folder they lie in.
//!
//! [`pull`] is the front door. Everything here that goes over a network goes through [`Settings`] handed in: nothing is
//! read from the environment. Tensors are somebody else's: what a checkpoint's bytes mean is known to
//! `spinetail_checkpoint::stream`, which is handed bytes and the place in the file they came from.

mod client;
mod convert;
mod error;
mod journal;
mod listing;
mod mirror;
mod models_dir;
mod plain;
mod progress;
mod pull;
mod repository;
mod running;
mod transfer;
mod url;

pub use client::{Retry, Secret, Settings};
pub use error::HubError;
pub use models_dir::{ModelEntry, ModelKind, list_models, remove_model};
pub use progress::{Event, Progress, Stage};
pub use pull::{PullRequest, PullSummary, Source, pull};

//! The hybrid forward pass: Gated DeltaNet and gated attention layers, each followed by a sparse mixture of experts.
//!
//! [`step`] drives a [`Backend`] through the layers and a store through the experts they route to; it holds no
//! tensor and no arithmetic. [`reference`] is the same model written for reading, slow and obvious, and is what
//! backends are tested against, beside the published libraries' own figures. Text, sampling and files are other crates' business.

mod backend;
mod forward;
mod lookahead;
pub mod reference;

pub use backend::{Backend, BackendError, RoutedRow, Routing, Row, SavedState, SequenceId};
pub use forward::{Scratch, StepError, step};
pub use lookahead::{Lookahead, LookaheadMode};

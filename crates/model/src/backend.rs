//! The seam between the model and whatever computes it.
//!
//! It is coarse on purpose: about ten fused steps that match the model, none with a default body. A backend owns the
//! dense weights, the activations of the current batch and the state of every sequence, wherever its memory is; the
//! host sees token ids going in, expert ids coming out of [`Backend::route`], and logits at the end.

use std::any::Any;
use std::sync::Arc;

use spinetail_core::ReadError;
use spinetail_store::Lease;

/// Names a sequence within its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u32);

/// One row of a batch: a token of a sequence.
///
/// Rows of one sequence are consecutive in a batch, in order of position, and start at the sequence's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The sequence.
    pub sequence: SequenceId,
    /// The token's position in it, from 0.
    pub position: u32,
    /// The token.
    pub token: u32,
}

/// A row that an expert works on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutedRow {
    /// Row of the batch.
    pub row: u32,
    /// Which of the row's experts this is, in ascending order of id: the place of its contribution in the sum.
    pub rank: u32,
    /// What the expert's output is multiplied by.
    pub weight: f32,
}

/// The experts each row of a batch is routed to, `[rows, top_k]`, ids ascending within a row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Routing {
    /// Experts of a row.
    pub top_k: usize,
    /// Expert ids, row after row.
    pub ids: Vec<u16>,
    /// The weights that belong to them.
    pub weights: Vec<f32>,
}

/// A sequence's recurrent state at some position; see [`Backend::save_state`]. Cloning is cheap.
#[derive(Clone)]
pub struct SavedState {
    /// Whose state it is.
    pub sequence: SequenceId,
    /// Tokens that the state has seen.
    pub position: u32,
    /// The states of all DeltaNet layers, in whatever form and memory the backend keeps them.
    pub recurrent: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for SavedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SavedState({:?} at {})", self.sequence, self.position)
    }
}

/// What a backend can refuse.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The device or its threads could not be had.
    #[error("{reason}")]
    Setup {
        /// What was refused.
        reason: String,
    },
    /// Memory could not be had.
    #[error("no memory for {bytes} bytes; lower the context, or use a machine with more memory")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// Weights could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A tensor is missing or is not what the model's shape asks for.
    #[error("tensor {name}: expected {expected}, found {found}")]
    Tensor {
        /// Canonical name.
        name: String,
        /// What the model's shape asks for.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Numbers ran away: nothing that follows would mean anything.
    #[error(
        "{at} produced a value that is not a number or is infinite; the weights are damaged or were made with \
         another recipe (check them with `spinetail verify`)"
    )]
    NotFinite {
        /// Where it was noticed, such as `layer 3`.
        at: String,
    },
    /// A sequence that was never made, or was dropped.
    #[error("there is no sequence {}", sequence.0)]
    UnknownSequence {
        /// The sequence asked for.
        sequence: SequenceId,
    },
    /// An argument whose size does not fit the batch.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// The argument.
        what: &'static str,
        /// Its size as the batch asks for it.
        expected: String,
        /// Its size.
        found: String,
    },
    /// A row does not continue its sequence.
    #[error("sequence {} has {length} tokens; a row at position {position} does not continue it", sequence.0)]
    Position {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens that it has.
        length: u32,
        /// Position asked for.
        position: u32,
    },
    /// The sequence's context is full.
    #[error(
        "the context of {capacity} tokens is full; start again with a larger context or a shorter prompt"
    )]
    ContextFull {
        /// Positions the sequence was made for.
        capacity: u32,
    },
    /// A token past the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// A saved state that this sequence cannot go back to.
    #[error("the saved state of position {position} does not belong to this sequence")]
    State {
        /// Position of the saved state.
        position: u32,
    },
}

/// Computes the model's steps. See the module's page for what it owns.
///
/// A batch begins with [`embed`](Self::embed) or [`set_hidden`](Self::set_hidden), which fill the residual stream
/// `x [rows, hidden]`; then for each layer, in order: `attention` or `delta_net`, `route`, `shared_expert` and
/// `expert` in any order, `combine`; then `head`. Output bytes of a row depend on the row's sequence alone, never on
/// what else is in the batch or on the order in which experts arrive.
pub trait Backend: Send {
    /// A new sequence of at most `capacity` positions.
    fn create_sequence(&mut self, capacity: u32) -> Result<SequenceId, BackendError>;

    /// Forgets a sequence and begins it again with `length` positions of random keys, values and recurrent state, so
    /// that a step at a long context can be measured without running that context first. The same `seed` gives the
    /// same numbers; they mean nothing.
    fn fill_sequence(&mut self, sequence: SequenceId, length: u32, seed: u64) -> Result<(), BackendError>;

    /// Forgets a sequence. Unknown ids are ignored.
    fn drop_sequence(&mut self, sequence: SequenceId);

    /// Begins a batch: `x = embedding[token]`.
    fn embed(&mut self, rows: &[Row]) -> Result<(), BackendError>;

    /// Begins a batch with a residual stream from elsewhere, `[rows, hidden]`; the rows' tokens are ignored.
    fn set_hidden(&mut self, rows: &[Row], x: &[f32]) -> Result<(), BackendError>;

    /// Copies the residual stream, `[rows, hidden]`, to the host.
    fn hidden(&mut self, x: &mut Vec<f32>) -> Result<(), BackendError>;

    /// `x += attention(norm(x))`, appending keys and values to the rows' sequences.
    fn attention(&mut self, layer: usize) -> Result<(), BackendError>;

    /// `x += delta_net(norm(x))`, advancing the recurrent states of the rows' sequences.
    fn delta_net(&mut self, layer: usize) -> Result<(), BackendError>;

    /// `h = norm(x)`, then the router on `h`: which experts each row needs, to the host.
    fn route(&mut self, layer: usize, routing: &mut Routing) -> Result<(), BackendError>;

    /// The router of `layer` on the current residual stream, whatever layer the batch is at: a guess at what
    /// [`route`](Self::route) will say there, to read ahead by. Changes nothing.
    fn predict(&mut self, layer: usize, routing: &mut Routing) -> Result<(), BackendError>;

    /// The gated shared expert on `h`, kept for `combine`.
    fn shared_expert(&mut self, layer: usize) -> Result<(), BackendError>;

    /// One routed expert on the rows of `h` that need it, kept for `combine`.
    fn expert(&mut self, layer: usize, lease: &Lease, rows: &[RoutedRow]) -> Result<(), BackendError>;

    /// `x += Σ experts + shared`, a row's experts in ascending order of id.
    fn combine(&mut self, layer: usize) -> Result<(), BackendError>;

    /// Final norm and head of the given rows of the batch: `logits [rows.len(), vocab]`. Ends nothing: it may be
    /// called again for other rows.
    fn head(&mut self, rows: &[u32], logits: &mut [f32]) -> Result<(), BackendError>;

    /// Frees memory that only batches need; the next batch takes what it needs. Between batches only.
    fn trim(&mut self);

    /// A copy of the sequence's recurrent state. Keys and values are not copied: they stay with the sequence, and the
    /// state is good only for that one.
    fn save_state(&mut self, sequence: SequenceId) -> Result<SavedState, BackendError>;

    /// Takes the sequence back to a position it was at when `state` was saved.
    fn restore_state(&mut self, sequence: SequenceId, state: &SavedState) -> Result<(), BackendError>;
}

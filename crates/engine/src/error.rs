//! What an engine or a session can refuse. Every message says what to do.

use spinetail_checkpoint::CheckpointError;
use spinetail_model::{BackendError, StepError};

use crate::engine::Engine;
use crate::memory::MemoryPlan;
use crate::text::{ParamError, SampleError, TextError};

/// Why an engine could not be opened or a session could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model could not be opened.
    #[error(transparent)]
    Model(#[from] CheckpointError),
    /// The backend refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// Tokenizer or chat template, or text and messages that they refuse.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A sampling parameter or stop string.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// Logits that no token can be drawn from.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Something that does not exist yet.
    #[error("{what} is not supported; {fix}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to do instead.
        fix: String,
    },
    /// A context outside the model's.
    #[error(
        "a context of {asked} tokens: expected 1 to {max}, the most that this model was made for; choose another context"
    )]
    Context {
        /// Positions asked for.
        asked: u32,
        /// The model's own limit.
        max: usize,
    },
    /// The budget does not cover what the model needs.
    #[error("{}", budget_message(*.budget, *.minimum, .plan))]
    Budget {
        /// Bytes given.
        budget: u64,
        /// Bytes needed at least.
        minimum: u64,
        /// What takes them.
        plan: Box<MemoryPlan>,
    },
    /// The budget does not cover what two models need that are in memory together.
    #[error(
        "a memory budget of {} MiB is too small for two models at once: they need at least {} MiB together ({} and {}, and {} \
         for comparing); raise the memory budget or lower the context",
        *.budget >> 20, mib(.least.iter().sum::<u64>() + .comparing), mib(.least[0]), mib(.least[1]), mib(*.comparing)
    )]
    SharedBudget {
        /// Bytes given.
        budget: u64,
        /// Bytes that each needs at least.
        least: [u64; 2],
        /// Bytes for comparing them.
        comparing: u64,
    },
    /// Less address space than the budget takes.
    #[error(
        "a memory budget of {} MiB with its threads takes {} MiB of address space: expected a limit of at least that, \
         found {} MiB of which {} MiB are left; raise the limit (`ulimit -v`), or lower the memory budget or the threads",
        .budget.div_ceil(1 << 20), .needed.div_ceil(1 << 20), .limit >> 20, .left >> 20
    )]
    AddressSpace {
        /// Bytes of the budget.
        budget: u64,
        /// Bytes of address space for it.
        needed: u64,
        /// The limit.
        limit: u64,
        /// What is left of it.
        left: u64,
    },
    /// A prompt without tokens.
    #[error("the prompt is empty: there is nothing to continue; give at least one token of text")]
    EmptyPrompt,
    /// A prompt past the context.
    #[error("{tokens} tokens do not fit the context of {context}; shorten the prompt or raise the context")]
    PromptTooLong {
        /// Tokens of the prompt and of what came before it.
        tokens: usize,
        /// Positions of the session.
        context: usize,
    },
    /// A text far past the context, of which not all tokens were counted.
    #[error(
        "at least {least} tokens do not fit the context of {context}; shorten the text or raise the context"
    )]
    TextTooLong {
        /// Tokens that it certainly has.
        least: usize,
        /// Positions of the session.
        context: usize,
    },
    /// A text of several documents that has more tokens than are kept.
    #[error("the text has more than {limit} tokens; take fewer of its documents, or cut it")]
    TextTooLarge {
        /// The bound.
        limit: usize,
    },
    /// A text that cannot be read.
    #[error("cannot read the text: {0}; give a file that can be read")]
    Input(std::io::Error),
    /// A text that is none.
    #[error("the text is not UTF-8 from byte {at} on; convert it first")]
    NotUtf8 {
        /// Where the first byte is that belongs to no character.
        at: u64,
    },
    /// Two models whose predictions are not about the same tokens.
    #[error(
        "the model, with a vocabulary of {vocab}, and its reference, with one of {reference}, do not make the same \
         tokens of the text; compare forms of one model"
    )]
    Incomparable {
        /// Entries of the model's vocabulary.
        vocab: usize,
        /// Entries of its reference's.
        reference: usize,
    },
    /// A file could not be written.
    #[error("cannot write {}: {error}; choose another place, or make room", path.display())]
    Write {
        /// The file.
        path: std::path::PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The caller stopped it.
    #[error("stopped before the prompt was read to its end")]
    Cancelled,
    /// An earlier step failed half-way.
    #[error("an earlier step of this session failed; start the prompt again")]
    Broken,
}

impl EngineError {
    pub(crate) fn incomparable(engine: &Engine, reference: &Engine) -> Self {
        Self::Incomparable { vocab: engine.config().vocab, reference: reference.config().vocab }
    }
}

/// Rounded up: what is said to be enough is.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

fn budget_message(budget: u64, minimum: u64, p: &MemoryPlan) -> String {
    format!(
        "a memory budget of {} MiB is too small for this model: it needs at least {} MiB (dense weights {} MiB, KV cache {}, \
         states {}, scratch {}, process {}, one token's experts {}); raise the memory budget or lower the context",
        // Rounded down, so that it never looks like enough.
        budget >> 20,
        mib(minimum),
        mib(p.dense_bytes),
        mib(p.kv_bytes),
        mib(p.state_bytes),
        mib(p.scratch_bytes),
        mib(p.process_bytes),
        mib(minimum - p.fixed_bytes()),
    )
}

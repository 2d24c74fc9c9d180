//! The public API of spinetail: [`Engine`], a loaded model, and [`Session`], one conversation with it.
//!
//! Everything that people use (command line, server, bindings) is built on these two. No HTTP, no command line and no
//! environment: settings come as arguments.

mod bench;
mod chat;
mod control_group;
mod divergence;
mod documents;
pub mod drive;
mod dump;
mod engine;
mod error;
mod estimate;
mod generate;
mod hot;
mod inspect;
pub mod machine;
mod memory;
mod perplexity;
mod session;
mod share;
pub mod text;

pub use bench::{BenchOptions, Measured, TokenBytes};
pub use chat::ChatPrompt;
pub use divergence::{Divergence, divergence};
pub use dump::dump_logits;
pub use engine::{
    Engine, EngineOptions, ExpertOptions, Isa, LookaheadMode, Pages, PolicyKind, Precision, ReadMode,
    UnknownIsa, UnknownPolicy, load_text,
};
pub use error::EngineError;
pub use estimate::{Estimate, MachineSpeed, Routing};
pub use generate::{Answer, Event, GenerateOptions};
pub use inspect::{ModelSummary, inspect};
pub use memory::MemoryPlan;
pub use perplexity::{Perplexity, perplexity};
pub use session::{Observer, Progress, Session};
pub use share::{SharedBudget, share_budget};

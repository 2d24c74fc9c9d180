//! An HTTP server that speaks OpenAI's protocol, over one engine.
//!
//! [`serve`] is all that most callers need; [`Server`] is for those who want to know the port first. Answers come from
//! one thread that owns a session; everything else waits in a bounded queue before it. Must not compute anything about
//! models: prompts, sampling and stopping are the engine's. `docs/server.md` describes the protocol.

mod app;
mod body;
mod chat;
mod completions;
mod connection;
mod error;
mod fields;
mod guard;
mod ids;
mod options;
mod queue;
mod sampling;
mod server;
mod stream;
mod wire;
mod worker;

pub use error::ServeError;
pub use options::{ApiKey, Limits, ServeOptions};
pub use server::{Server, serve};

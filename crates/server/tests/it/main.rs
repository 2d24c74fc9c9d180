//! The server over a real port: what clients send, what comes back, and what hostile ones cannot do.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers are not marked as tests

mod chat;
mod client;
mod completions;
mod hostile;
mod lifecycle;
mod refused;
mod server;

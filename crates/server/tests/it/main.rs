//! The server over a real port: what clients send, what comes back, and what hostile ones cannot do.

mod chat;
mod client;
mod completions;
mod hostile;
mod lifecycle;
mod refused;
mod server;

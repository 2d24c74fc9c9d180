//! The real binary, driven as people and scripts drive it: standard output, standard error, exit status.

mod chat;
mod common;
mod containers;
mod generate;
mod hostile;
mod manners;
mod names;
mod perplexity;
mod settings;
#[cfg(unix)]
mod terminal;

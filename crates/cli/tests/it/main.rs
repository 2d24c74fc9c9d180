//! The real binary, driven as people and scripts drive it: standard output, standard error, exit status.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod bench;
mod chat;
mod common;
mod containers;
mod doctor;
mod generate;
mod hostile;
#[cfg(unix)]
mod interrupted;
#[cfg(target_os = "linux")]
mod limits;
mod manners;
mod names;
mod perplexity;
mod replay;
mod serve;
mod settings;
#[cfg(unix)]
mod terminal;

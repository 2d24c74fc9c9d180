//! The `spinetail` binary: what was typed, handed to the library crates. Nothing is computed or decided here.

mod args;
mod commands;
mod dirs;
mod input;
mod interrupt;
mod models;
mod output;
mod settings;
mod units;

use std::process::ExitCode;

use clap::Parser;

use args::Cli;
use settings::UsageError;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.run(&cli.globals) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough.
        Err(e) if output::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            output::error(&e);
            ExitCode::from(if e.is::<UsageError>() { 2 } else { 1 })
        }
    }
}

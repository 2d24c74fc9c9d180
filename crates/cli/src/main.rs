//! The `spinetail` binary: what was typed, handed to the library crates. Nothing is computed or decided here.

mod args;
mod commands;
mod models;
mod output;
mod units;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Chat(a) => commands::chat::run(&a),
        Command::Generate(a) => commands::generate::run(&a),
        Command::Logits(a) => commands::logits::run(&a),
        Command::Repack(a) => commands::repack::run(&a),
        Command::Verify(a) => commands::verify::run(&a),
        Command::Inspect(a) => commands::inspect::run(&a),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough.
        Err(e) if output::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            output::error(&e);
            ExitCode::FAILURE
        }
    }
}

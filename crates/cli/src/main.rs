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
use interrupt::Interrupted;
use settings::UsageError;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return explain(&e),
    };
    if !cli.command.logs() {
        output::warnings_to_stderr();
    }
    match cli.command.run(&cli.globals) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough.
        Err(e) if output::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) if e.is::<Interrupted>() => ExitCode::from(interrupt::STATUS),
        Err(e) => {
            output::error(&e);
            ExitCode::from(if e.is::<UsageError>() { 2 } else { 1 })
        }
    }
}

/// Prints what clap has to say: help, version, or what is wrong with the arguments.
fn explain(e: &clap::Error) -> ExitCode {
    match e.print() {
        Err(io) if !e.use_stderr() && io.kind() != std::io::ErrorKind::BrokenPipe => {
            output::error(&anyhow::anyhow!(
                "cannot write to standard output: {io}; make room, or send it elsewhere"
            ));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2)),
    }
}

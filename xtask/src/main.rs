//! Chores of the repository, run as `cargo xtask NAME`. Nothing that the product needs lives here.

mod synth;
mod tidy;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Chores of the repository")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the habits that no compiler checks: file lengths, headers, who may use unsafe
    Tidy,
    /// Write a container of a real model's shape with random weights
    Synth(synth::SynthArgs),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Tidy => tidy::run(),
        Command::Synth(a) => synth::run(&a),
    }
}

//! What can be typed: the groups of flags that commands share. Help, completions and man pages are made from these
//! definitions and those in `commands/`, and from nothing else.
//!
//! This is the first of two stages: a flag that was not given is `None` here. `settings` asks the environment and the
//! configuration file next, and only then are there values.

use std::path::PathBuf;

use clap::builder::ValueHint;
use clap::{Args, Parser, ValueEnum};

use spinetail_engine::{Isa, PolicyKind};

use crate::commands::Command;
use crate::settings as set;
use crate::settings::Seed;

/// Mixture-of-experts language models larger than memory, on the machine you have.
#[derive(Debug, Parser)]
#[command(name = "spinetail", version, about, propagate_version = true)]
#[command(
    after_help = "A setting may also stand in the configuration file (temperature = 0.6) or in the environment \
                        (SPINETAIL_TEMPERATURE=0.6); a flag wins over the environment, and that over the file."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GlobalArgs {
    /// Configuration file, instead of spinetail/config.toml in the platform's folder
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Print the settings in use, and where each comes from, to standard error
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionArg {
    /// f32 activations: the reference path
    Exact,
    /// Activations in 8 bits against quantized weights, keys and values in 16
    Fast,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// How experts are read; without it, as the drive was found to be read fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReadsArg {
    /// Past the system's page cache
    Direct,
    /// Through the system's page cache
    Buffered,
    /// As direct, by Linux's io_uring instead of threads
    Uring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PagesArg {
    /// Of 2 MiB
    Huge,
    /// The smallest there are
    Small,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LookaheadArg {
    /// Where it is measured to pay
    Auto,
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shown {
    Show,
    Hide,
}

/// Flags of every command that runs a model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Positions of the context: prompt and answer together [default: 4096, or what the model was made for]
    #[arg(long, value_name = "N", value_parser = set::CONTEXT.parse, allow_negative_numbers = true)]
    pub(crate) context: Option<u32>,
    /// How numbers are computed [default: fast]
    #[arg(long, value_enum)]
    pub(crate) precision: Option<PrecisionArg>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

/// What of the machine an engine may use, and how: flags of every command that runs a model, whatever else it takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct MachineArgs {
    /// Memory the process may use, such as 2.6GiB; experts get what is left of it
    #[arg(long, value_name = "SIZE", value_parser = set::MEMORY.parse, allow_negative_numbers = true)]
    pub(crate) memory: Option<u64>,
    /// Threads that compute [default: one per processor]
    #[arg(long, value_name = "N", value_parser = set::THREADS.parse, allow_negative_numbers = true)]
    pub(crate) threads: Option<usize>,
    /// Instruction set of the kernels, such as avx2 or scalar [default: the best there is]
    #[arg(long, value_name = "NAME", value_parser = set::ISA.parse)]
    pub(crate) isa: Option<Isa>,
    #[command(flatten)]
    pub(crate) experts: ExpertArgs,
}

/// Flags about reading and keeping experts. The answers depend on none of them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Experts (answers depend on none of these)")]
pub(crate) struct ExpertArgs {
    /// How experts are read [default: as `spinetail doctor` found best for the drive, else direct]
    #[arg(long, value_enum)]
    pub(crate) reads: Option<ReadsArg>,
    /// Reads on their way at once [default: as `spinetail doctor` found, else 8]
    #[arg(long, value_name = "N", value_parser = set::READERS.parse, allow_negative_numbers = true)]
    pub(crate) readers: Option<usize>,
    /// Pages of the memory for experts [default: as `spinetail doctor` found, else huge]
    #[arg(long, value_enum)]
    pub(crate) pages: Option<PagesArg>,
    /// Hold every record that is read against its checksum [default: off]
    #[arg(long, value_enum)]
    pub(crate) verify_reads: Option<Switch>,
    /// Which expert gives way to another: lru, lfu, decayed-lfu, clock or s3-fifo [default: decayed-lfu]
    #[arg(long, value_name = "NAME", value_parser = set::POLICY.parse)]
    pub(crate) policy: Option<PolicyKind>,
    /// Read the next layer's experts ahead [default: auto]
    #[arg(long, value_enum)]
    pub(crate) lookahead: Option<LookaheadArg>,
    /// Remember from run to run which experts are used most [default: on]
    #[arg(long, value_enum)]
    pub(crate) learn: Option<Switch>,
}

/// Flags of commands that can record routing.
#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArgs {
    /// Record which experts each token needs to a new file, for `spinetail replay`; no text is in it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: Option<PathBuf>,
}

/// Flags of every command that chooses tokens. What is not given is as the model's generation_config.json says, then as
/// its makers recommend.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sampling (what is not given is as the model's files say)")]
pub(crate) struct SamplingArgs {
    /// Most tokens of an answer [default: 1024 for chat, 256 for generate]
    #[arg(long, value_name = "N", value_parser = set::MAX_TOKENS.parse, allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<usize>,
    /// 0 takes the likeliest token each time; higher is more varied
    #[arg(long, value_name = "T", value_parser = set::TEMPERATURE.parse, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f64>,
    /// Only the K likeliest tokens; 0 is all
    #[arg(long, value_name = "K", value_parser = set::TOP_K.parse, allow_negative_numbers = true)]
    pub(crate) top_k: Option<i64>,
    /// Only the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", value_parser = set::TOP_P.parse, allow_negative_numbers = true)]
    pub(crate) top_p: Option<f64>,
    /// Only tokens at least this likely in relation to the likeliest
    #[arg(long, value_name = "P", value_parser = set::MIN_P.parse, allow_negative_numbers = true)]
    pub(crate) min_p: Option<f64>,
    /// Taken once from every token that was generated before
    #[arg(long, value_name = "X", value_parser = set::PRESENCE_PENALTY.parse, allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f64>,
    /// Taken for every time that a token was generated before
    #[arg(long, value_name = "X", value_parser = set::FREQUENCY_PENALTY.parse, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f64>,
    /// Makes tokens of the prompt and the answer less likely; 1 is off
    #[arg(long, value_name = "X", value_parser = set::REPETITION_PENALTY.parse, allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f64>,
    /// Ends the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = set::STOP.parse, allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// The same seed gives the same answer; `random` picks one [default: 0]
    #[arg(long, value_name = "N|random", value_parser = set::SEED.parse, allow_negative_numbers = true)]
    pub(crate) seed: Option<Seed>,
}

//! What can be typed: the one definition of commands and flags, from which help is made.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::units::parse_size;

/// Mixture-of-experts language models larger than memory, on the machine you have.
#[derive(Debug, Parser)]
#[command(name = "spinetail", version, about, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Talk with a model: each PROMPT is answered in turn; with none, lines are read from the terminal
    Chat(ChatArgs),
    /// Continue a prompt once
    Generate(GenerateArgs),
    /// Write the logits of given token ids to a safetensors file
    Logits(LogitsArgs),
    /// Make a container from a checkpoint folder
    Repack(RepackArgs),
    /// Check every record and file of a container against its checksum
    Verify(VerifyArgs),
    /// Say what a model is, what stays in memory and what it needs
    Inspect(InspectArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionArg {
    /// f32 activations: the reference path
    Exact,
    /// Integer dot products (not available yet)
    Fast,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Flags of every command that runs a model.
#[derive(Debug, Clone, Args)]
pub(crate) struct EngineArgs {
    /// Positions of the context: prompt and answer together
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) context: u32,
    /// How numbers are computed
    #[arg(long, value_enum, default_value_t = PrecisionArg::Exact)]
    pub(crate) precision: PrecisionArg,
    /// Memory the process may use, such as 2.6GiB; experts get what is left of it
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Container or checkpoint folder, or the name of a model
    #[arg(default_value = "pip")]
    pub(crate) model: PathBuf,
    /// What to say, one message after another
    pub(crate) prompts: Vec<String>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Let the model think before it answers
    #[arg(long, value_enum, default_value_t = Switch::Off)]
    pub(crate) thinking: Switch,
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) max_tokens: usize,
    /// Print timings and cache statistics after each answer
    #[arg(long)]
    pub(crate) stats: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Container or checkpoint folder, or the name of a model
    #[arg(default_value = "pip")]
    pub(crate) model: PathBuf,
    /// The prompt
    #[arg(
        long,
        value_name = "TEXT",
        required_unless_present = "prompt_file",
        conflicts_with = "prompt_file"
    )]
    pub(crate) prompt: Option<String>,
    /// File that holds the prompt; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Treat the prompt as a user's message instead of raw text
    #[arg(long)]
    pub(crate) chat: bool,
    /// System message, with --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(crate) system: Option<String>,
    /// Let the model think before it answers, with --chat
    #[arg(long, value_enum, default_value_t = Switch::Off)]
    pub(crate) thinking: Switch,
    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_tokens: usize,
    /// Print timings and cache statistics to standard error
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    /// Container or checkpoint folder, or the name of a model
    pub(crate) model: PathBuf,
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub(crate) tokens: Vec<u32>,
    /// File to write: tensor `logits` [tokens, vocab] in f32
    #[arg(long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Also write `layers.N.output` [tokens, hidden]
    #[arg(long)]
    pub(crate) layers: bool,
    /// How numbers are computed
    #[arg(long, value_enum, default_value_t = PrecisionArg::Exact)]
    pub(crate) precision: PrecisionArg,
    /// Memory the process may use, such as 2.6GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct RepackArgs {
    /// Checkpoint folder (Hugging Face or MLX), or an older container
    #[arg(long, value_name = "DIR")]
    pub(crate) source: PathBuf,
    /// Container to make; it must not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Bits of quantized weights: 2, 3, 4, 5, 6 or 8; 16 keeps the source's precision. 4 if not given; a source that is
    /// quantized already keeps its own bytes
    #[arg(long, value_name = "BITS")]
    pub(crate) bits: Option<u8>,
    /// Weights that share a scale: 32, 64 or 128. 64 if not given
    #[arg(long, value_name = "N")]
    pub(crate) group_size: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Container, or the name of a model
    pub(crate) model: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Container or checkpoint folder, or the name of a model
    #[arg(default_value = "pip")]
    pub(crate) model: PathBuf,
    /// Positions of the context to reckon with
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) context: u32,
    /// Memory the process may use, such as 2.6GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
}

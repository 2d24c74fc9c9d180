//! `spinetail logits`

use std::path::PathBuf;

use anyhow::bail;
use clap::builder::ValueHint;
use spinetail_engine::dump_logits;

use crate::args::{GlobalArgs, MachineArgs, PrecisionArg};
use crate::models;
use crate::settings::{EngineSettings, Settings};

#[derive(Debug, clap::Args)]
pub(crate) struct LogitsArgs {
    /// Container or checkpoint folder, or the name of a model
    #[arg(value_hint = ValueHint::AnyPath)]
    model: PathBuf,
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// File to write: tensor `logits` [tokens, vocab] in f32
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Also write `layers.N.output` [tokens, hidden]
    #[arg(long)]
    layers: bool,
    /// How numbers are computed, whatever the configuration says [default: exact]
    #[arg(long, value_enum)]
    precision: Option<PrecisionArg>,
    #[command(flatten)]
    machine: MachineArgs,
}

pub(crate) fn run(a: &LogitsArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let context = u32::try_from(a.tokens.len())?;
    let asked = EngineSettings::for_comparing(&a.machine, Some(context), a.precision, &mut settings)?;
    let path = models::find(&a.model, &mut settings)?;
    let engine = super::open(&path, &asked, &mut settings)?;
    settings.print();
    let vocab = engine.config().vocab;
    if let Some(token) = a.tokens.iter().find(|&&t| t as usize >= vocab) {
        bail!("token {token} is outside the vocabulary of {vocab}; give ids from 0 to {}", vocab - 1);
    }
    dump_logits(&mut engine.session()?, &a.tokens, a.layers, &a.output)?;
    Ok(())
}
